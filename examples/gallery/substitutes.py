"""Predict which words could stand in the place of "party", in three sentences."""

import sys

from elmo import Elmo
from elmo.lexicon import find_substitutes
from elmo.plots import draw_substitutes

SENTENCES = [
    "The [[party]] won the election.",
    "A small [[party]] of soldiers crossed the river.",
    "They danced at the [[party]] all night.",
]

elmo = Elmo.from_pretrained("en")
results = find_substitutes(elmo, SENTENCES, n=6)

election, soldiers, dance = ([item.word for item in result.items] for result in results)
assert {"government", "opposition", "coalition", "democrats", "labour"} & {word.lower() for word in election}
assert "group" in soldiers
assert "group" not in election

draw_substitutes(results, sys.argv[1] if len(sys.argv) > 1 else "substitutes.png")
