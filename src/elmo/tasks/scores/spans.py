"""The spans of sentences as they are and as they were predicted in, precision, recall and F1 out.

A span is right where start, end and label are all the same, as CoNLL-2000's and CoNLL-2003's conlleval
counts. All scores are shares from 0 to 1; a share of nothing is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elmo.errors import DataError
from elmo.tasks.data.examples import Span
from elmo.tasks.scores.labels import LabelScore


@dataclass(frozen=True)
class SpanScores:
    """How well spans were found."""

    overall: LabelScore  # all spans counted together (micro)
    macro: LabelScore  # the mean over labels that are there or were predicted
    by_label: Mapping[str, LabelScore]  # in the order of the labels

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "overall": asdict(self.overall),
            "macro": asdict(self.macro),
            "by_label": {label: asdict(score) for label, score in self.by_label.items()},
        }


def span_scores(gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> SpanScores:
    """Compare the spans of each sentence (or predicate); one that is named twice counts once."""
    if len(gold) != len(predicted):
        raise DataError(
            f"expected the predicted spans of {len(gold):,} sentences, found those of {len(predicted):,}"
        )
    n_gold: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_right: Counter[str] = Counter()
    for true, said in zip(gold, predicted, strict=True):
        true_set, said_set = set(true), set(said)
        n_gold.update(span.label for span in true_set)
        n_predicted.update(span.label for span in said_set)
        n_right.update(span.label for span in true_set & said_set)
    by_label = {
        label: LabelScore.of_counts(
            n_right=n_right[label], n_predicted=n_predicted[label], n_gold=n_gold[label]
        )
        for label in sorted(n_gold.keys() | n_predicted.keys())
    }
    overall = LabelScore.of_counts(
        n_right=n_right.total(), n_predicted=n_predicted.total(), n_gold=n_gold.total()
    )
    return SpanScores(overall, LabelScore.macro(by_label.values()), by_label)
