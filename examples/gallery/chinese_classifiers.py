"""Test whether the Chinese model knows which classifier a noun takes, such as 只 in 一只猫 (one cat)."""

import sys

import matplotlib.pyplot as plt
import numpy as np

from elmo import Elmo
from elmo.plots import find_fonts
from elmo.predict import score_sentences

CLASSIFIERS = "本部只匹条座位件首架张"
NOUNS = {  # with the classifiers that a dictionary lists
    "书": "本部", "小说": "本部", "电影": "部", "猫": "只", "狗": "只条", "马": "匹", "鱼": "条", "河": "条",
    "山": "座", "桥": "座", "房子": "座", "学生": "位", "教授": "位", "事情": "件", "衣服": "件", "歌": "首",
    "飞机": "架", "桌子": "张",
}  # fmt: skip

elmo = Elmo.from_pretrained("zh")
sentences = [["他们", "看到", f"一{classifier}", noun, "。"] for noun in NOUNS for classifier in CLASSIFIERS]
# the forward language model predicts the noun (token 3) after the classifier;
# the backward one predicts the classifier (after <S>, so its number is 3, too) before the noun
logs = np.array([scores.forward[3] + scores.backward[3] for scores in score_sentences(elmo, sentences)])
logs = logs.reshape(len(NOUNS), len(CLASSIFIERS))
shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)

right = [CLASSIFIERS[best] in allowed for best, allowed in zip(shares.argmax(axis=1), NOUNS.values(), strict=True)]
assert np.mean(right) >= 0.5  # guessing would find about one in ten

plt.rcParams["font.family"] = find_fonts(CLASSIFIERS + "".join(NOUNS))[0]
figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")
image = axes.imshow(shares.T, cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(len(NOUNS)), ["\n".join(noun) for noun in NOUNS])  # top to bottom
axes.set_yticks(range(len(CLASSIFIERS)), CLASSIFIERS)
for column, allowed in enumerate(NOUNS.values()):
    for classifier in allowed:
        box = (column - 0.5, CLASSIFIERS.index(classifier) - 0.5)
        axes.add_patch(plt.Rectangle(box, 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.5))
axes.set_title(f"{sum(right)} of {len(NOUNS)} nouns get a classifier of the dictionary (orange frames)", fontsize=10)
axes.tick_params(length=0)
figure.colorbar(image, shrink=0.6)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "chinese_classifiers.png", dpi=120)
