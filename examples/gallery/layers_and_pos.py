"""Ask each layer of the model whether a word is used as a noun or as a verb."""

import sys

import matplotlib.pyplot as plt
import numpy as np

from elmo import Elmo

USES = {  # two sentences with the noun, then two with the verb
    "watch": ["His watch was broken .", "She bought a new watch .", "They watch the game .", "We watch birds here ."],
    "plan": ["The plan was simple .", "He had a good plan .", "They plan a journey .", "We plan to leave soon ."],
    "answer": ["The answer was wrong .", "She gave no answer .", "They answer every letter .", "We answer quickly ."],
    "visit": ["The visit was short .", "He enjoyed his visit .", "They visit their aunt .", "We visit the museum ."],
    "promise": [
        "The promise was broken .",
        "She kept her promise .",
        "They promise to help .",
        "We promise to write .",
    ],
    "cook": ["The cook was tired .", "He is a good cook .", "They cook rice .", "We cook in the evening ."],
    "dream": ["The dream was strange .", "She had a dream .", "They dream of peace .", "We dream every night ."],
    "walk": ["The walk was long .", "He took a walk .", "They walk to school .", "We walk along the river ."],
}

elmo = Elmo.from_pretrained("en")
encodings = [elmo.encode([line.split() for line in lines], layers="all") for lines in USES.values()]
vectors = np.array([[e.word(word) for e in row] for word, row in zip(USES, encodings, strict=True)])

figure, panels = plt.subplots(1, elmo.n_layers, figsize=(8, 3), sharey=True, layout="constrained")
for layer, axes in enumerate(panels):
    x = vectors[:, :, layer]  # (word, use, width)
    for k in range(len(USES)):
        others = np.delete(x, k, axis=0)  # the direction from nouns to verbs, learned from the other words
        noun, verb = others[:, :2].mean(axis=(0, 1)), others[:, 2:].mean(axis=(0, 1))
        scores = (x[k] - (noun + verb) / 2) @ (verb - noun)
        axes.scatter(scores[:2], [k + 0.12] * 2, color="#0072B2", label="noun" if k == 0 else None)
        axes.scatter(scores[2:], [k - 0.12] * 2, color="#E69F00", marker="s", label="verb" if k == 0 else None)
        assert layer == 0 or scores[:2].mean() < scores[2:].mean()
    axes.axvline(0, color="0.8", zorder=0)
    axes.set(title=f"layer {layer}", xticks=[], xlabel="noun ← → verb")
panels[0].set_yticks(range(len(USES)), USES)
panels[0].legend(fontsize=8)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "layers_and_pos.png", dpi=120)
