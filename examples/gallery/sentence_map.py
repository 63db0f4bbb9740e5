"""Draw a map of Chinese sentences about five topics."""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.manifold import TSNE

from elmo import Elmo, similarities
from elmo.plots import find_fonts

TOPICS = {
    "体育": ["中国队以三比一战胜了日本队。", "他在奥运会上获得了游泳金牌。", "这场足球比赛最后打成平局。",
             "她是世界排名第一的网球选手。", "球队在主场输掉了决赛。"],
    "天气": ["台风给南方带来了暴雨。", "冬天这里经常下雪。", "今年夏天气温特别高。",
             "北方地区气候干燥，降水很少。", "明天多云，有大风。"],
    "音乐": ["她发行了第三张个人专辑。", "这首歌由他作词作曲。", "乐队的吉他手离开了乐队。",
             "钢琴家演奏了贝多芬的作品。", "这位歌手举办了演唱会。"],
    "战争": ["军队包围了这座城市。", "两国签订了停战协议。", "将军率领部队渡过了河。",
             "敌军的进攻被击退了。", "飞机轰炸了敌人的阵地。"],
    "动物": ["这种鸟生活在热带雨林中。", "熊猫以竹子为食。", "鲸是体型最大的哺乳动物。",
             "雌鸟每次产卵三至五枚。", "这种鱼分布在太平洋。"],
}  # fmt: skip

elmo = Elmo.from_pretrained("zh")
sentences = [sentence for group in TOPICS.values() for sentence in group]
topics = np.repeat(list(TOPICS), [len(group) for group in TOPICS.values()])
vectors = np.array([encoding.sentence() for encoding in elmo.encode(sentences, layers="sense")])  # means over the words

cosines = similarities(vectors, vectors) - 2 * np.eye(len(vectors))
nearest = cosines.argmax(axis=1)
right = np.mean(topics[nearest] == topics)
assert right > 0.7  # with random vectors, one in six

points = TSNE(perplexity=5, metric="cosine", init="pca", random_state=0).fit_transform(vectors - vectors.mean(axis=0))
plt.rcParams["font.family"] = find_fonts("".join([*TOPICS, *sentences]))[0]
figure, (axes, texts) = plt.subplots(1, 2, figsize=(8.6, 5.6), width_ratios=(5, 3), layout="constrained")
texts.set(xlim=(0, 1), ylim=(len(sentences) + 1.5 * len(TOPICS), 0))
texts.axis("off")
line = 0.5
for color, topic in zip(("#0072B2", "#A66F00", "#00795A", "#C04A00", "#A84D7F"), TOPICS, strict=True):
    texts.text(0, line, topic, color=color, fontsize=11, va="center")
    for number in np.flatnonzero(topics == topic):
        line += 1
        texts.text(0, line, f"{number + 1}  {sentences[number]}", color=color, fontsize=9, va="center")
        axes.text(*points[number], number + 1, color="white", fontsize=8, ha="center", va="center")
    axes.scatter(*points[topics == topic].T, s=170, color=color)
    line += 1.5
axes.set(xticks=[], yticks=[])
axes.margins(0.08)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "sentence_map.png", dpi=120)
