"""Convert CoNLL columns (words, and tags such as B-LOC) to spaCy's format, with the tokens as they are.

python examples/spacy/convert.py train.conll train.spacy
"""

import lzma
import sys
from itertools import groupby
from pathlib import Path

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

source, target = sys.argv[1:]
vocab, docs = Vocab(), []
with (
    lzma.open(source, "rt", encoding="utf-8") if source.endswith(".xz") else Path(source).open(encoding="utf-8") as file
):
    for is_sentence, lines in groupby(file, key=lambda line: bool(line.strip())):
        if is_sentence:
            rows = [line.split() for line in lines]
            docs.append(Doc(vocab, words=[row[0] for row in rows], ents=[row[-1] for row in rows]))
DocBin(docs=docs).to_disk(target)
