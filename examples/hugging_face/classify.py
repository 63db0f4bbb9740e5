"""Embed a dataset with datasets.map, which stores the vectors, and train a classifier on them.

    pip install 'pyelmo[datasets,lexicon]'
    python examples/hugging_face/classify.py train.csv dev.csv

The files have the columns text and label. A second run finds the vectors in the cache of datasets.
"""

import sys

import numpy as np
from datasets import load_dataset
from sklearn.linear_model import LogisticRegression

from elmo.integrations import EmbedColumn, embed_dataset


def main() -> None:
    data = load_dataset("csv", data_files={"train": sys.argv[1], "dev": sys.argv[2]})
    function = EmbedColumn("en", column="text")
    train, dev = (embed_dataset(data[name], function).with_format("numpy") for name in ("train", "dev"))
    model = LogisticRegression(max_iter=1000).fit(np.stack(list(train["vector"])), train["label"][:])
    accuracy = model.score(np.stack(list(dev["vector"])), dev["label"][:])
    print(f"accuracy on {sys.argv[2]}: {100 * accuracy:.1f}%")


if __name__ == "__main__":
    main()
