"""Tag words with a linear classifier of scikit-learn: rows are the tokens of all sentences.

python examples/sklearn/tagging.py train.conll dev.conll    # words and tags in columns
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from elmo.integrations import ElmoTokenVectorizer


def read(path: str) -> tuple[list[list[str]], list[str]]:
    """Read sentences, and the tags of all their words."""
    blocks = Path(path).read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split() for line in block.splitlines()] for block in blocks]
    return [[row[0] for row in sentence] for sentence in rows], [row[-1] for sentence in rows for row in sentence]


(sentences, tags), (dev_sentences, dev_tags) = read(sys.argv[1]), read(sys.argv[2])
vectorizer = ElmoTokenVectorizer("en", layers=1)
tagger = LogisticRegression(max_iter=500).fit(np.concatenate(vectorizer.fit_transform(sentences)), tags)
print(f"accuracy {tagger.score(np.concatenate(vectorizer.transform(dev_sentences)), dev_tags):.4f}")
