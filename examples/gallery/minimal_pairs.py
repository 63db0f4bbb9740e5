"""Test the grammar of the language models with minimal pairs: is the correct sentence more probable?"""

import sys

import matplotlib.pyplot as plt
import numpy as np

from elmo import Elmo
from elmo.predict import MinimalPair, score_minimal_pairs

PAIRS = [
    ("The keys to the cabinet are here.", "The keys to the cabinet is here."),
    ("The author that the critics admire is famous.", "The author that the critics admire are famous."),
    ("She bought these books.", "She bought this books."),
    ("The soldiers defended themselves.", "The soldiers defended himself."),
    ("The girl saw herself in the mirror.", "The girl saw himself in the mirror."),
    ("No student has ever read the book.", "The student has ever read the book."),
    ("They have gone home.", "They have go home."),
    ("He gave her the letter.", "He gave the letter her."),
    ("I know what you found.", "I know what you found it."),
    ("She devoured the cake.", "She slept the cake."),
    ("The children are here.", "The childs are here."),
]

elmo = Elmo.from_pretrained("en")
results = list(score_minimal_pairs(elmo, [MinimalPair(*pair) for pair in PAIRS]))
differences = np.array([sum(result.good) - sum(result.bad) for result in results]) / np.log(2)  # both directions
right = np.array([result.is_right["both"] for result in results])
assert right[:4].all()  # agreement
assert right.mean() > 0.7  # the model may be wrong about some pairs

figure, axes = plt.subplots(figsize=(8.4, 4.4), layout="constrained")
axes.barh(range(len(PAIRS)), differences, color=np.where(right, "#0072B2", "#D55E00"))
axes.set_yticks(range(len(PAIRS)), [f"{good}\n*{bad}" for good, bad in PAIRS], fontsize=8)
axes.invert_yaxis()
axes.axvline(0, color="black", linewidth=0.8)
axes.set_xlabel("the correct sentence is more probable by … bits")
axes.spines[["top", "right"]].set_visible(False)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "minimal_pairs.png", dpi=120)
