"""Measure how the use of "cell" changed, from sentences as in old novels to sentences of today."""

import sys

from elmo import Elmo
from elmo.lexicon import ChangeOptions, embed_usages, find_marked_usage, measure_change
from elmo.plots import draw_changes

OLD = [
    "The monk prayed alone in his [[cell]].", "They locked him in a dark [[cell]] below the castle.",
    "The jailer opened the door of the [[cell]].", "She died in her [[cell]] at the convent.",
    "The hermit lived in a [[cell]] in the rock.", "He was led from his [[cell]] to the scaffold.",
    "A ray of light fell into the narrow [[cell]].", "The prisoner walked up and down his [[cell]].",
]  # fmt: skip
NEW = [
    "The virus enters the [[cell]] through a protein.", "Each [[cell]] has a copy of the gene.",
    "The drug kills the cancer [[cell]].", "The patient received a stem [[cell]] transplant.",
    "The [[cell]] divides into two daughter cells.", "The membrane surrounds the [[cell]].",
    "He called her on his [[cell]] phone.", "The police searched his [[cell]] for a weapon.",
]  # fmt: skip

elmo = Elmo.from_pretrained("en")
old, new = (embed_usages(elmo, [find_marked_usage(elmo.tokenizer, line) for line in lines]) for lines in (OLD, NEW))
changes = measure_change(
    [("cell", {"old": old, "new": new})], ["old", "new"], options=ChangeOptions(min_count=8, keep_usages=True)
)

change = changes.words[0].overall
assert change.p < 0.01  # random divisions of the sentences differ less

draw_changes(changes, sys.argv[1] if len(sys.argv) > 1 else "word_change.png")
