"""Find the known words that are most similar to words that the models have never seen, in English and in Chinese."""

import sys

import matplotlib.pyplot as plt
import numpy as np

from elmo import Elmo, similarities
from elmo.plots import find_fonts

UNSEEN = {
    "en": ["goverment", "beautifull", "hangry", "unsingable", "Zorbington"],
    "zh": ["高铁站", "元宇宙", "新冠病毒", "打工人", "奶茶店"],
}


def layer_0(elmo, words):
    """Return vectors that depend on the characters of each word only, so the order of the words does not matter."""
    rows = [words[k : k + 50] for k in range(0, len(words), 50)]
    return np.concatenate([encoding.vectors for encoding in elmo.encode(rows, layers=0)])


found = {}
for language, unseen in UNSEEN.items():
    elmo = Elmo.from_pretrained(language)
    assert not set(unseen) & set(elmo.vocab.words)
    known = [word for word in elmo.vocab.words[:5000] if word.isalpha()]  # the vocabulary is sorted by frequency
    cosines = similarities(layer_0(elmo, unseen), layer_0(elmo, known))
    for word, row in zip(unseen, cosines, strict=True):
        found[word] = [(known[k], row[k]) for k in row.argsort()[::-1][:3]]
assert found["goverment"][0][0] == "government"  # spelling mistakes change the vector only a little
assert found["beautifull"][0][0] == "beautiful"
assert found["元宇宙"][0][0] == "宇宙"

plt.rcParams["font.family"] = find_fonts(str(found))[0]
figure, columns = plt.subplots(1, 2, figsize=(8, 5), sharex=True, layout="constrained")
for axes, unseen in zip(columns, UNSEEN.values(), strict=True):
    pairs = [pair for word in unseen for pair in found[word]]
    places = [k + k // 3 for k in range(len(pairs))]  # with an empty row above each group of three
    axes.barh(places, [cosine for _, cosine in pairs], color="#0072B2")
    axes.set_yticks(places, [known for known, _ in pairs])
    for number, word in enumerate(unseen):
        axes.text(0, 4 * number - 1, f" {word}", color="#D55E00", fontsize=11, va="center")
    axes.set(ylim=(len(pairs) + len(unseen) - 1.5, -1.6), xlabel="cosine in layer 0")
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "unseen_words.png", dpi=120)
