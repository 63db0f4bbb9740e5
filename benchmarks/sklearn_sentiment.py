"""Compare a grid search in scikit-learn over the layers of ELMo with the same search by hand, on SST-5.

    python benchmarks/sklearn_sentiment.py $DATA/sentiment-sst5/train.txt.xz $DATA/sentiment-sst5/dev.txt.xz

The pipeline is ElmoVectorizer, StandardScaler and LogisticRegression, with GridSearchCV in two processes. By hand, all
sentences are encoded with ``Elmo.encode`` once, and each fold is scaled and fitted. Also prints the size of the pickled
estimators; the fitted vectorizer is loaded in another process, which must compute the same vectors.
"""

from __future__ import annotations

import argparse
import lzma
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from elmo import Elmo
from elmo.integrations import ElmoVectorizer

LAYERS = [1, "average"]
OTHER = """
import pickle, sys
import numpy as np
np.save(sys.argv[2], pickle.load(open(sys.argv[1], "rb")).transform(sys.argv[3:]))
"""


def read(path: Path) -> tuple[list[str], np.ndarray]:
    """Read texts and labels."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(" ", 1) for line in file]
    return [text for _, text in rows], np.array([label for label, _ in rows])


def build_classifier() -> LogisticRegression:
    """Build the classifier of both searches."""
    return LogisticRegression(C=0.01, max_iter=200)


def main() -> None:
    """Run both searches and print their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    options = parser.parse_args()
    (texts, labels), (dev_texts, dev_labels) = read(options.train), read(options.dev)
    folds = StratifiedKFold(2)
    steps = [("elmo", ElmoVectorizer("en", tokenizer="whitespace")), ("scale", StandardScaler())]
    pipeline = Pipeline([*steps, ("classify", build_classifier())])
    search = GridSearchCV(pipeline, {"elmo__layers": LAYERS}, cv=folds, n_jobs=2).fit(texts, labels)
    elmo = Elmo.from_pretrained("en", tokenizer="whitespace")
    by_hand, dev_scores = [], []
    for layers in LAYERS:
        rows, dev_rows = (
            np.stack([encoding.sentence() for encoding in elmo.encode(part, layers=layers)])
            for part in (texts, dev_texts)
        )
        scores = []
        for train, test in folds.split(rows, labels):
            model = make_pipeline(StandardScaler(), build_classifier()).fit(rows[train], labels[train])
            scores.append(model.score(rows[test], labels[test]))
        by_hand.append(np.mean(scores))
        model = make_pipeline(StandardScaler(), build_classifier()).fit(rows, labels)
        dev_scores.append(model.score(dev_rows, dev_labels))
    print("layers    grid search  by hand")
    for layers, ours, expected in zip(LAYERS, search.cv_results_["mean_test_score"], by_hand, strict=True):
        print(f"{layers!s:9} {100 * ours:.2f}        {100 * expected:.2f}")
    best = LAYERS.index(search.best_params_["elmo__layers"])
    dev = search.score(dev_texts, dev_labels)
    print(f"dev accuracy with layers {LAYERS[best]}: {100 * dev:.2f}, by hand {100 * dev_scores[best]:.2f}")
    vectorizer = search.best_estimator_["elmo"]
    print(f"pickled: vectorizer {len(pickle.dumps(vectorizer)):,} bytes, search {len(pickle.dumps(search)):,} bytes")
    with tempfile.TemporaryDirectory() as name:
        stored, vectors = Path(name) / "v.pickle", Path(name) / "v.npy"
        stored.write_bytes(pickle.dumps(vectorizer))
        subprocess.run([sys.executable, "-c", OTHER, stored, vectors, *dev_texts[:50]], check=True)
        is_equal = np.array_equal(np.load(vectors), vectorizer.transform(dev_texts[:50]))
    print(f"vectors of another process: {'equal' if is_equal else 'different'}")
    if not is_equal or not np.allclose(search.cv_results_["mean_test_score"], by_hand, atol=1e-12):
        sys.exit("the results differ")


if __name__ == "__main__":
    main()
