"""Choose the layers of ELMo for a sentiment classifier by a grid search in scikit-learn.

python examples/sklearn/sentiment.py train.txt dev.txt    # lines such as "3 A good film .", also .xz
"""

import lzma
import sys
from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from elmo.integrations import ElmoVectorizer


def read(path: str) -> tuple[list[str], list[str]]:
    """Read texts and labels."""
    with lzma.open(path, "rt", encoding="utf-8") if path.endswith(".xz") else Path(path).open(encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(" ", 1) for line in file]
    return [text for _, text in rows], [label for label, _ in rows]


if __name__ == "__main__":  # joblib imports this file in its worker processes
    (texts, labels), (dev_texts, dev_labels) = read(sys.argv[1]), read(sys.argv[2])
    pipeline = Pipeline([
        ("elmo", ElmoVectorizer("en", tokenizer="whitespace")),
        ("scale", StandardScaler()),
        ("classify", LogisticRegression(C=0.01, max_iter=500)),
    ])  # fmt: skip
    search = GridSearchCV(pipeline, {"elmo__layers": [1, 2, "average"]}, cv=2, n_jobs=2)
    search.fit(texts, labels)
    for layers, score in zip(
        search.cv_results_["param_elmo__layers"], search.cv_results_["mean_test_score"], strict=True
    ):
        print(f"layers {layers!s:8} accuracy {score:.4f}")
    print(f"dev accuracy with layers {search.best_params_}: {search.score(dev_texts, dev_labels):.4f}")
