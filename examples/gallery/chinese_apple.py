"""Place uses of 苹果 between fruits and companies: 苹果 is the word for apples, and for Apple."""

import sys

import matplotlib.pyplot as plt
import numpy as np

from elmo import Elmo, similarity
from elmo.plots import find_fonts

FRUITS = ["他每天吃一个香蕉。", "桌上有葡萄和梨。", "这种西瓜很好吃。"], ["香蕉", "葡萄", "西瓜"]
COMPANIES = ["微软发布了新款手机。", "谷歌的股票价格上涨了。", "华为在北京成立了新公司。"], ["微软", "谷歌", "华为"]
APPLES = [
    "他每天吃一个苹果。", "桌上有苹果和香蕉。", "这种苹果又甜又脆。", "妈妈买了两斤苹果。",
    "苹果发布了新款手机。", "苹果的股票价格上涨了。", "苹果起诉了三星公司。", "我的手机是苹果的。",
]  # fmt: skip

elmo = Elmo.from_pretrained("zh")


def vectors(sentences, words):
    encodings = elmo.encode(sentences, layers="sense")
    return [encoding.word(word) for encoding, word in zip(encodings, words, strict=True)]


fruit, company = (np.mean(vectors(*group), axis=0) for group in (FRUITS, COMPANIES))
apples = vectors(APPLES, ["苹果"] * len(APPLES))
x = np.array([similarity(apple, fruit) for apple in apples])
y = np.array([similarity(apple, company) for apple in apples])
assert (x > y)[:4].all()  # the apples that one can eat are closer to the fruits
assert (y > x)[4:7].all()  # the company is closer to the companies; the last sentence is difficult

plt.rcParams["font.family"] = find_fonts("".join(APPLES))[0]
figure, axes = plt.subplots(figsize=(6.4, 5), layout="constrained")
axes.axline((0.5, 0.5), slope=1, color="0.8")
colors = ["#009E73"] * 4 + ["#0072B2"] * 4
axes.scatter(x, y, c=colors)
for sentence, color, *point in zip(APPLES, colors, x, y, strict=True):
    axes.annotate(sentence, point, xytext=(6, -3), textcoords="offset points", color=color, fontsize=9)
axes.set(xlabel="similarity to fruits (香蕉, 葡萄, 西瓜)", ylabel="similarity to companies (微软, 谷歌, 华为)")
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "chinese_apple.png", dpi=120)
