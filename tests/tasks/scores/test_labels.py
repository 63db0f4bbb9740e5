"""Scores of labels."""

from __future__ import annotations

from random import Random

import pytest

from elmo.errors import DataError
from elmo.tasks.scores.labels import LabelScore, label_scores


def test_labels_are_scored_in_all_and_each() -> None:
    scores = label_scores(["a", "a", "b", "c"], ["a", "b", "b", "b"])
    assert scores.accuracy == 0.5
    assert scores.by_label == {
        "a": LabelScore(precision=1.0, recall=0.5, f1=2 / 3, support=2),
        "b": LabelScore(precision=1 / 3, recall=1.0, f1=0.5, support=1),
        "c": LabelScore(precision=0.0, recall=0.0, f1=0.0, support=1),
    }
    assert scores.macro.f1 == pytest.approx((2 / 3 + 0.5) / 3)
    assert scores.confusion == {("a", "a"): 1, ("a", "b"): 1, ("b", "b"): 1, ("c", "b"): 1}


def test_each_label_must_have_its_prediction() -> None:
    with pytest.raises(DataError, match="cannot compute scores: there are no labeled examples"):
        label_scores([], [])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        label_scores(["a"], ["a", "b"])


def test_scores_agree_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = Random(4)
    for size in (1, 2, 5, 30, 300) * 8:
        labels = random.sample("abcdefgh", random.randint(1, 8))
        gold, said = random.choices(labels, k=size), random.choices(labels, k=size)
        scores = label_scores(gold, said)
        names = list(scores.by_label)
        assert scores.accuracy == pytest.approx(metrics.accuracy_score(gold, said))
        assert scores.macro.f1 == pytest.approx(metrics.f1_score(gold, said, average="macro", zero_division=0))
        theirs = metrics.precision_recall_fscore_support(gold, said, labels=names, zero_division=0)
        for name, values in zip(("precision", "recall", "f1", "support"), theirs, strict=True):
            each = [getattr(one, name) for one in scores.by_label.values()]
            assert each == pytest.approx(list(values), abs=1e-12)
        if len(names) == 1:
            continue  # scikit-learn warns of a matrix of one number
        matrix = metrics.confusion_matrix(gold, said, labels=names)
        assert [[scores.confusion.get((one, other), 0) for other in names] for one in names] == matrix.tolist()
