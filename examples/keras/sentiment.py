"""Train a sentiment classifier with Keras 3, the model of the TF-Hub tutorials.

    pip install 'pyelmo[keras]'
    python examples/keras/sentiment.py train.tsv dev.tsv --out sentiment.keras

Each line of the files has a label and a text, separated by a tab.
"""

import argparse
from pathlib import Path

import numpy as np

from elmo.integrations import ElmoLayer

import keras  # isort: skip -- after elmo.integrations, which chooses the torch backend


def read(path: Path) -> tuple[list[str], list[str]]:
    """Return labels and texts."""
    rows = [line.split("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if "\t" in line]
    return [label for label, _ in rows], [text for _, text in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="en")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train-bilm", action="store_true", help="train the biLM too")
    arguments = parser.parse_args()

    keras.utils.set_random_seed(1)
    labels, texts = read(arguments.train)
    dev_labels, dev_texts = read(arguments.dev)
    names = sorted(set(labels))

    embedding = ElmoLayer(arguments.model, pooling="mean", train_bilm=arguments.train_bilm)
    inputs = keras.Input((None, embedding.n_ids), dtype="int32")
    hidden = keras.layers.Dense(256, activation="relu")(embedding(inputs))
    model = keras.Model(inputs, keras.layers.Dense(len(names), activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    ids = np.array([names.index(label) for label in labels])
    dev_ids = np.array([names.index(label) for label in dev_labels])
    dev = (embedding.prepare(dev_texts, max_tokens=60), dev_ids)
    model.fit(
        embedding.prepare(texts, max_tokens=60),
        ids,
        validation_data=dev,
        epochs=arguments.epochs,
        batch_size=32,
        verbose=2,
    )
    print("shares of the layers:", [round(share, 3) for share in embedding.shares])

    model.save(arguments.out)
    loaded = keras.saving.load_model(arguments.out)
    same = np.array_equal(loaded.predict(dev[0], verbose=0), model.predict(dev[0], verbose=0))
    print(f"saved to {arguments.out}; loaded again, the predictions are {'equal' if same else 'different'}")


if __name__ == "__main__":
    main()
