"""Compare uses of a word with spaCy: the similarity of two tokens depends on their sentences."""

import spacy

nlp = spacy.blank("en")
nlp.add_pipe("elmo")

river, money, loan = nlp.pipe([
    "They walked along the bank of the river.",
    "The bank lent the company two million dollars.",
    "Her bank gave her a loan to buy the house.",
])  # fmt: skip
print(f"river bank, money bank: {river[4].similarity(money[1]):.2f}")
print(f"loan bank, money bank:  {loan[1].similarity(money[1]):.2f}")
