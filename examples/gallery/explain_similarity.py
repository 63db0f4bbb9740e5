"""Explain which words make two uses of "bank" more or less similar."""

import sys

from elmo import Elmo, explain
from elmo.plots import draw_explanation

elmo = Elmo.from_pretrained("en")
explanation = explain(
    elmo, "I sat by the [[bank]] of the river.", other="She opened an account at the [[bank]].", layers="sense"
)
other = explanation.other

river = explanation.scores[explanation.tokens.index("river")]
account = other.scores[other.tokens.index("account")]
assert river + account < 0  # the words that show the two senses lower the similarity

draw_explanation(explanation, sys.argv[1] if len(sys.argv) > 1 else "explain_similarity.png")
