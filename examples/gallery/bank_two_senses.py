"""Compare the vectors of "bank" in six sentences: three about rivers, three about money."""

import sys

from elmo import Elmo
from elmo.embed import compare
from elmo.plots import draw_comparison

SENTENCES = [
    "They walked along the bank of the river.",
    "The village lies on the north bank of the stream.",
    "We sat on the bank and watched the boats.",
    "The bank lent the company two million dollars.",
    "Her bank gave her a loan to buy the house.",
    "He put his money in the bank.",
]

elmo = Elmo.from_pretrained("en")
comparison = compare(elmo, "bank", SENTENCES)
cosines = comparison.matrices["sense"]  # (6, 6)

river, money = [0, 1, 2], [3, 4]
assert cosines[0, 1] > cosines[river][:, money].max()  # rivers are closer to each other than to these loans
assert cosines[3, 4] > cosines[river][:, money].max()  # and the loans to each other
# The last sentence is difficult: "in the bank" is a place, too, as in "on the bank".

draw_comparison(comparison, sys.argv[1] if len(sys.argv) > 1 else "bank_two_senses.png")
