"""Scores of spans, by label and in all."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from elmo.tasks.data.examples import Span
from elmo.tasks.data.schemes import decode_spans
from elmo.tasks.scores.labels import LabelScore, span_scores

TAGS = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]


def random_pair(random: Random, n: int) -> tuple[list[str], list[str]]:
    """Tags, and others that agree with most of them."""
    gold = random.choices(TAGS, k=n)
    return gold, [tag if random.random() < 0.8 else random.choice(TAGS) for tag in gold]


def test_a_span_is_right_where_its_place_and_label_are() -> None:
    gold = [[Span(0, 2, "PER"), Span(3, 4, "LOC")], [Span(0, 1, "PER")]]
    said = [[Span(0, 2, "PER"), Span(3, 4, "ORG")], [Span(1, 2, "PER"), Span(1, 2, "PER")]]
    scores = span_scores(gold, said)
    assert scores.overall == LabelScore(precision=1 / 3, recall=1 / 3, f1=1 / 3, support=3)
    assert scores.by_label == {
        "LOC": LabelScore(0.0, 0.0, 0.0, 1),
        "ORG": LabelScore(0.0, 0.0, 0.0, 0),
        "PER": LabelScore(0.5, 0.5, 0.5, 2),
    }
    assert scores.macro == LabelScore(0.5 / 3, 0.5 / 3, 0.5 / 3, 3)


def test_nothing_found_where_nothing_is_scores_nought() -> None:
    assert span_scores([], []).overall == span_scores([[]], [[]]).macro == LabelScore(0.0, 0.0, 0.0, 0)


def test_sentences_must_be_as_many_on_both_sides() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        span_scores([[], []], [[]])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "strict"])
def test_scores_agree_with_seqeval(mode: str) -> None:
    """On 1,000 pairs of sequences, in corpora of four, and on all of them together."""
    scheme = pytest.importorskip("seqeval.scheme").IOB2
    default = pytest.importorskip("seqeval.metrics.sequence_labeling").precision_recall_fscore_support
    strict = pytest.importorskip("seqeval.metrics.v1").precision_recall_fscore_support
    random = Random(3)
    sentences = [random_pair(random, random.randint(1, 12)) for _ in range(1000)]
    is_strict = mode == "strict"

    def theirs_of(average: str | None) -> tuple[Any, ...]:
        options = {"average": average, "zero_division": 0}
        return strict(gold, said, scheme=scheme, **options) if is_strict else default(gold, said, **options)

    for corpus in [*(sentences[k : k + 4] for k in range(0, len(sentences), 4)), sentences]:
        gold, said = [one for one, _ in corpus], [other for _, other in corpus]
        scores = span_scores(
            [decode_spans(tags, "IOB2", is_strict=is_strict) for tags in gold],
            [decode_spans(tags, "IOB2", is_strict=is_strict) for tags in said],
        )
        if not scores.by_label:
            continue  # seqeval takes the mean of nothing
        for average, ours in (("micro", scores.overall), ("macro", scores.macro)):
            theirs = theirs_of(average)
            assert (ours.precision, ours.recall, ours.f1) == pytest.approx(theirs[:3], abs=1e-12)
            assert ours.support == theirs[3]
        each = scores.by_label.values()
        for name, values in zip(("precision", "recall", "f1", "support"), theirs_of(None), strict=True):
            assert [getattr(one, name) for one in each] == pytest.approx(list(values), abs=1e-12)


@pytest.mark.slow
def test_a_corpus_of_200_000_tokens_is_scored_in_two_seconds() -> None:
    random = Random(4)
    pairs = [random_pair(random, 25) for _ in range(1000)] * 8
    begin = time.process_time()
    scores = span_scores(
        [decode_spans(tags, "IOB2") for tags, _ in pairs], [decode_spans(tags, "IOB2") for _, tags in pairs]
    )
    assert time.process_time() - begin < 2.0
    assert scores.overall.support > 50_000
