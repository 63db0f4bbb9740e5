"""What each kind reads off its data, what it refuses and how it scores; nothing is trained."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from elmo.errors import DataError, MissingExtraError
from elmo.tasks.data.examples import Document, Place, Question, Span, TaggedSentence, TextPair
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from elmo.tasks.kinds.answers import Answers, AnswersOptions, PredictedAnswer
from elmo.tasks.kinds.coreference import Coreference, CoreferenceOptions
from elmo.tasks.kinds.similarity import PredictedScore, Similarity
from elmo.tasks.kinds.tagging import PredictedTags, Tagging
from elmo.tasks.kinds.task import Labels


def tagged(*rows: str) -> list[TaggedSentence]:
    split = [tuple(row.split()) for row in rows]
    return [TaggedSentence(("w",) * len(row), row, Place("x.conll", k)) for k, row in enumerate(split)]


def said(*rows: str) -> list[PredictedTags]:
    split = [tuple(row.split()) for row in rows]
    return [PredictedTags(row, (1.0,) * len(row)) for row in split]


@pytest.mark.parametrize("odd", ["b-X", "B_X", "o", "B-"])
def test_one_mistyped_tag_among_spans_is_refused_with_its_place(odd: str) -> None:
    with pytest.raises(DataError, match=rf"x\.conll:30: tag 2: expected O, or B- .* found '{odd}'"):
        Tagging.from_examples(tagged(*["B-X I-X O"] * 30, f"O {odd} O"))


def test_tags_that_often_mark_no_span_are_plain(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not Tagging.from_examples(tagged("NN VB S-Bar", "NN O")).has_spans
        Tagging.from_examples(tagged("B-X L-X O U-Y"))
    assert "tag scheme plain (no spans), 4 labels" in caplog.text
    assert "tag scheme BIOES (letters BILU), 4 labels" in caplog.text


def test_tags_of_no_scheme_and_none_at_all_are_refused_before_training() -> None:
    task = Tagging.from_examples(tagged("B-X I-X O"))
    with pytest.raises(DataError, match=r"x\.conll:1: tag 2: expected O, .* found '_'"):
        task.check(tagged("B-X O", "O _"))
    with pytest.raises(DataError, match=r"x\.conll:3: expected a tag for each word"):
        task.check([TaggedSentence(("w",), None, Place("x.conll", 3))])
    with pytest.raises(DataError, match=r"expected a tag for each word"):
        Tagging.from_examples(tagged("NN VB")).check([TaggedSentence(("w",), None)])


@pytest.mark.parametrize("gold", ["B-X E-X O S-X", "B-X L-X O U-X", "B-X I-X O B-X", "I-X I-X O I-X"])
@pytest.mark.parametrize("train", ["B-X I-X O B-X", "B-X L-X O U-X", "I-X I-X O I-X"])
def test_accuracy_does_not_hang_on_the_scheme_and_its_letters(train: str, gold: str) -> None:
    task = Tagging.from_examples(tagged(train))
    right = task.score(tagged(gold), said(train))
    assert (right["accuracy"], right["f1"]) == (1.0, 1.0)
    half = task.score(tagged(gold), said("O O " + train[-5:]))
    assert (half["accuracy"], half["recall"]) == (0.5, 0.5)


def test_letters_of_the_data_are_saved_and_bies_where_a_model_has_none() -> None:
    task = Tagging.from_examples(tagged("B-X L-X O U-Y"))
    values = task.to_json()
    assert Tagging.from_json(values) == task
    assert task.letters == "BILU"
    del values["letters"]
    assert Tagging.from_json(values).letters == "BIES"


def test_tags_are_predicted_in_the_letters_of_the_data() -> None:
    task = Tagging.from_examples(tagged("B-X I-X L-X O U-X"))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(4)).eval()  # untrained, it guesses all kinds of tags
    vectors = FeatureVectors(8 * torch.randn(20, 9, 4), torch.ones(20, 9, dtype=torch.bool))
    found = task.predict(head, lambda _: vectors, [TaggedSentence(("w",) * 9, None)] * 20)
    assert {tag for one in found for tag in one.tags} == {"B-X", "I-X", "L-X", "O", "U-X"}


@pytest.mark.parametrize("what", ["tags", "labels", "roles"])
def test_the_message_of_a_foreign_label_is_a_sentence(what: str) -> None:
    with pytest.raises(DataError, match=f"^unknown {what[:-1]} 'Z'; this model knows: A, B$"):
        Labels(("A", "B")).check([("Z", None)], what=what)


@pytest.mark.parametrize(
    ("unseen", "told"),
    [
        (["Z"], "1 label was not seen in training: 'Z'; it is never predicted"),
        (["Z", "Z"], "2 labels were not seen in training (all 'Z'); they are never predicted"),
        (
            ["Z", "Y", "Z"],
            "3 labels were not seen in training (2 different ones, for example 'Z'); they are never predicted",
        ),
    ],
)
def test_unseen_labels_are_counted_in_good_english(
    unseen: list[str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    Labels(("A", "B")).check([("A", None), *((name, None) for name in unseen)], what="labels")
    assert caplog.messages == [told]


def document(*clusters: Sequence[Span]) -> Document:
    return Document("d", (("a",) * 400,), tuple(map(tuple, clusters)), place=Place("x.conll", 1))


def pairs_of_mentions(n: int) -> list[list[Span]]:
    return [[Span(k, k + 1), Span(k, k + 2)] for k in range(n)]


def test_singletons_count_where_the_data_has_more_than_slips_of_them() -> None:
    lone = [Span(300, 301)]
    assert not Coreference.from_examples([document(*pairs_of_mentions(3))]).has_singletons
    assert not Coreference.from_examples([document(*pairs_of_mentions(99), lone)]).has_singletons
    assert Coreference.from_examples([document(*pairs_of_mentions(30), lone)]).has_singletons
    for given in (True, False):
        task = Coreference.from_examples([document(lone)], CoreferenceOptions(has_singletons=given))
        assert task.has_singletons is given
        assert Coreference.from_json(task.to_json()) == task
        task.build_head(FeatureWidths(4, 4))
    with pytest.raises(DataError, match="expected training documents with clusters, found none"):
        Coreference.from_examples([document()])


def test_mentions_too_wide_to_be_found_are_told(caplog: pytest.LogCaptureFixture) -> None:
    clusters = [[Span(0, 3), Span(4, 5)], [Span(6, 7), Span(8, 9)]]
    Coreference.from_examples([document(*clusters)], CoreferenceOptions(max_span_width=3))
    assert not caplog.text
    Coreference.from_examples([document(*clusters)], CoreferenceOptions(max_span_width=2))
    assert "25.0 % of the mentions (1 of 4) are wider than max_span_width (2)" in caplog.text


def test_a_mention_in_two_clusters_is_refused_before_training() -> None:
    twice = document([Span(0, 1), Span(2, 3)], [Span(2, 3)])
    for refused in (Coreference.from_examples, Coreference(has_singletons=True).check):
        with pytest.raises(
            DataError, match=r"x\.conll:1: 'd': expected each mention once, found tokens 2 to 3"
        ):
            refused([twice])


def test_a_missing_extra_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    for begun in (Coreference.from_examples, Coreference(has_singletons=True).check):
        with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[tasks\]'"):
            begun([document(*pairs_of_mentions(2))])


def test_chinese_answers_are_scored_by_their_characters() -> None:
    gold = Question("1", ("谁",), ("北", "京"), "北京大学", ((0, 1), (1, 2)), ("北京大学",), ())
    predicted = [PredictedAnswer((("北京", 1.0),))]
    assert Answers().score([gold], predicted)["f1"] == pytest.approx(2 / 3)
    assert Answers(AnswersOptions(by_character=False)).score([gold], predicted)["f1"] == 0
    english = replace(gold, answers=("the red house",))
    predicted = [PredictedAnswer((("house red", 1.0),))]
    assert Answers().score([english], predicted)["f1"] == 1
    assert Answers(AnswersOptions(by_character=True)).score([english], predicted)["f1"] == pytest.approx(0.4)


def test_a_score_off_the_scale_is_told_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [TextPair(("a",), ("b",), None, score) for score in (1.0, 2.5, 5.0)]
    task = Similarity.from_examples(pairs)
    assert (task.low, task.high) == (1, 5)
    other = [replace(pairs[0], score=6.0, place=Place("a.tsv", 3)), pairs[1]]
    task.check(other)
    assert "a.tsv:3: 1 of 2 scores are outside the learned scale 1..5, for example 6" in caplog.text
    assert task.score(other, [PredictedScore(4.0), PredictedScore(2.5)])["mean_squared_error"] == 2
    with pytest.raises(DataError, match="expected a score, found none"):
        Similarity.from_examples([replace(pairs[0], score=None)])
    with pytest.raises(DataError, match="expected a score, found nan"):
        task.check([replace(pairs[0], score=float("nan"))])
