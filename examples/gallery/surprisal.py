"""Measure the surprisal of each word of garden-path sentences, which first lead their readers to a wrong analysis."""

import sys

import matplotlib.pyplot as plt
import numpy as np

from elmo import Elmo
from elmo.predict import score_sentences

SENTENCES = {  # the words with a star make the structure clear; the key is the word that reveals it without them
    "fell": "The horse *that *was raced past the barn fell .",
    "ran": "While the man hunted *, the deer ran away .",
    "was": "The student forgot *that the solution was wrong .",
}

elmo = Elmo.from_pretrained("en")
figure, panels = plt.subplots(len(SENTENCES), 1, figsize=(7, 6.5), layout="constrained")
for axes, (key, sentence) in zip(panels, SENTENCES.items(), strict=True):
    words = np.array([word.lstrip("*") for word in sentence.split()])
    always = np.array([k for k, word in enumerate(sentence.split()) if "*" not in word])
    position = list(words).index(key)
    at_key = []
    for kept, style, label in ((np.arange(len(words)), "s--", "clear"), (always, "o-", "garden path")):
        (scores,) = score_sentences(elmo, [list(words[kept])])
        bits = -scores.forward[:-1] / np.log(2)  # without the prediction that the sentence ends
        axes.plot(kept, bits, style, color="#0072B2" if label == "clear" else "#D55E00", label=label)
        at_key.append(bits[list(kept).index(position)])
    clear, garden_path = at_key
    assert garden_path > clear + 2  # the model is led astray as well
    axes.axvspan(position - 0.4, position + 0.4, color="0.93", zorder=0)
    axes.set_xticks(range(len(words)), [word if k in always else f"({word})" for k, word in enumerate(words)])
    axes.set(ylabel="surprisal, bits", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "surprisal.png", dpi=120)
