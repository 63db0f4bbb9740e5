"""Group uses of 打, a Chinese verb with dozens of meanings, by the similarity of its vectors."""

import sys

import matplotlib.pyplot as plt
import numpy as np
from scipy.cluster.hierarchy import dendrogram, linkage

from elmo import Elmo, similarities
from elmo.plots import find_fonts

SENTENCES = [  # words are separated by spaces, because the tokenizer would read 打电话 as one word
    "他 正在 给 妈妈 打 电话 。", "我 晚上 再 打 电话 给 你 。", "他 打 了 一个 电话 到 公司 。",
    "孩子们 在 操场 上 打 篮球 。", "他 喜欢 打 网球 。", "我们 周末 去 打 羽毛球 。",
    "士兵 打 了 胜仗 。", "他们 在 前线 打 仗 。", "红军 打 了 三年 游击战 。",
    "她 打 着 一把 红 伞 。", "他 打 着 灯笼 走 在 路上 。",
    "她 在 家里 打 毛衣 。", "村民 打 了 一口 井 。", "商店 打 八折 。",
]  # fmt: skip

elmo = Elmo.from_pretrained("zh")
vectors = np.array([encoding.word("打") for encoding in elmo.encode(map(str.split, SENTENCES), layers="sense")])
cosines = similarities(vectors, vectors)  # (sentence, sentence)

others = cosines - 2 * np.eye(len(cosines))
assert set(others.argmax(axis=1)[:3]) <= {0, 1, 2}  # the use most similar to a telephone call is another call
assert set(others.argmax(axis=1)[3:6]) <= {3, 4, 5, 11}  # of a ball game: another game, or knitting, a mistake
assert set(others.argmax(axis=1)[9:11]) == {9, 10}  # to hold up an umbrella or a lantern

plt.rcParams["font.family"] = find_fonts("".join(SENTENCES))[0]
figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
pairs = 1 - cosines[np.triu_indices(len(cosines), 1)]
labels = [sentence.replace(" ", "").replace("打", "【打】") for sentence in SENTENCES]
dendrogram(
    linkage(pairs, "average"), orientation="left", labels=labels, color_threshold=0, above_threshold_color="#0072B2"
)
axes.set(xlabel="1 − cosine")
axes.tick_params(labelsize=10, length=0)
axes.spines[["top", "right", "left"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "chinese_senses.png", dpi=120)
