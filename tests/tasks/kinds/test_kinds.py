"""Every kind of task: learns, predicts, checks its data, scores, and handles long examples."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import ConfigError, DataError, Elmo
from elmo.errors import MissingExtraError
from elmo.tasks.data.examples import (
    Document,
    LabeledText,
    Location,
    Predicate,
    Question,
    SourceText,
    Span,
    TaggedSentence,
    TextPair,
    Words,
)
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.fit import FitOptions
from elmo.tasks.heads import layers as attention
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths, SentenceGroups
from elmo.tasks.kinds import coreference, roles, tagging
from elmo.tasks.kinds.answers import Answers, AnswersOptions, PredictedAnswer
from elmo.tasks.kinds.coreference import Coreference, CoreferenceOptions, embed_document, split_document
from elmo.tasks.kinds.entailment import Entailment
from elmo.tasks.kinds.registry import KINDS, build_options, build_task, check_kind
from elmo.tasks.kinds.roles import Roles
from elmo.tasks.kinds.similarity import PredictedScore, Similarity
from elmo.tasks.kinds.tagging import PredictedTags, Tagging
from elmo.tasks.kinds.task import Labels
from elmo.tasks.model import TaskModel
from tests.formats.tiny import tiny_model

CHOICE = Features(elmo="both", dropout=0.0, characters=12)


def words(random: np.random.Generator, n: int) -> list[str]:
    return [str(word) for word in random.choice(["a", "b", "c"], n)]


def tagged(random: np.random.Generator) -> TaggedSentence:
    row = words(random, 7)
    at = int(random.integers(0, 5))
    row[at : at + 2] = ["Q", "R"]
    tags = ["O"] * 7
    tags[at : at + 2] = ["B-X", "I-X"]
    return TaggedSentence(tuple(row), tuple(tags))


def labelled(random: np.random.Generator) -> LabeledText:
    row = words(random, 6)
    label = str(random.choice(["good", "bad"]))
    row[int(random.integers(0, 6))] = {"good": "Q", "bad": "Z"}[label]
    return LabeledText(tuple(row), label)


def pair(random: np.random.Generator) -> TextPair:
    is_same = bool(random.integers(0, 2))
    first = ["Q" if random.integers(0, 2) else "Z", *words(random, 3)]
    other = {"Q": "Z", "Z": "Q"}[first[0]]
    second = [first[0] if is_same else other, *words(random, 2)]
    return TextPair(tuple(first), tuple(second), "yes" if is_same else "no", 5.0 if is_same else 1.0)


def question(random: np.random.Generator) -> Question:
    row = words(random, 8)
    at = int(random.integers(0, 7))
    row[at : at + 2] = ["Q", "R"]
    text = " ".join(row)
    ends = np.cumsum([len(word) + 1 for word in row]).tolist()
    offsets = tuple((end - 1 - len(word), end - 1) for word, end in zip(row, ends, strict=True))
    return Question("1", ("who", "?"), tuple(row), text, offsets, ("Q R",), (Span(at, at + 2),))


def predicate(random: np.random.Generator) -> Predicate:
    row = words(random, 7)
    at = int(random.integers(1, 5))
    row[at] = "V"
    return Predicate(tuple(row), at, (Span(at - 1, at, "ARG0"), Span(at + 1, at + 3, "ARG1")))


def document(random: np.random.Generator) -> Document:
    rows = [words(random, 5) for _ in range(3)]
    spans = []
    for number, row in enumerate(rows):
        at = int(random.integers(0, 4))
        row[at : at + 2] = ["Q", "R"]
        spans.append(Span(5 * number + at, 5 * number + at + 2))
    return Document("d", tuple(map(tuple, rows)), (tuple(spans),))


def source_text(random: np.random.Generator) -> SourceText:
    """Translate each word by itself, and copy the word Q, which has no translation."""
    row = words(random, 3)
    if random.integers(0, 2):
        row[int(random.integers(0, 3))] = "Q"
    german = {"a": "ein", "b": "Baum", "c": "Haus", "Q": "Q"}
    return SourceText(tuple(row), " ".join(german[word] for word in row) + " steht dort.")


MAKERS: dict[str, tuple[Any, dict[str, Any], float]] = {
    "tagging": (tagged, {"hidden_width": 16, "dropout": 0.0}, 0.95),
    "classification": (labelled, {"hidden_width": 12, "dropout": 0.0}, 0.9),
    "entailment": (pair, {"hidden_width": 24, "dropout": 0.0}, 0.9),
    "similarity": (pair, {"hidden_width": 16, "dropout": 0.0}, 0.9),
    "answers": (question, {"hidden_width": 12, "dropout": 0.0}, 0.9),
    "roles": (predicate, {"hidden_width": 24, "n_layers": 2, "dropout": 0.0, "predicate_width": 8}, 0.9),
    "coreference": (document, {"hidden_width": 16, "max_span_width": 3, "dropout": 0.0}, 0.9),
    "translation": (source_text, {"hidden_width": 32, "dropout": 0.0, "n_units": 40, "beam_width": 3}, 0.9),
}


def made(kind: str, n: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [MAKERS[kind][0](random) for _ in range(n)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny"
    Elmo(tiny_model()).save_pretrained(place)
    return place


def test_every_kind_is_tested() -> None:
    assert set(MAKERS) == set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_learns_saves_and_predicts_the_same_in_any_batch(kind: str, folder: Path, tmp_path: Path) -> None:
    _, head, wanted = MAKERS[kind]
    n = {"coreference": 40, "entailment": 200}.get(kind, 120)
    train, dev = made(kind, n, 1), made(kind, 12, 2)
    task = build_task(kind, train, build_options(kind, head))
    options = FitOptions(
        epochs=14 if kind == "coreference" else 8, batch_size=8, learning_rate=0.005 if kind == "entailment" else 0.01
    )
    sources = FeatureStore(CHOICE, Elmo.from_pretrained(folder))
    model = TaskModel.train(task, train, dev, store=sources, options=options, elmo_name=str(folder))
    scores = model.evaluate(dev)
    assert scores[task.main_score] >= wanted, scores
    assert max(epoch.scores[task.main_score] for epoch in model.epochs) == scores[task.main_score]
    model.save(tmp_path / "task.safetensors")
    again = TaskModel.load(tmp_path / "task.safetensors")
    assert again.task == task
    together = [one.to_json() for one in again.predict(dev)]
    assert together == [one.to_json() for one in model.predict(dev)]
    alone = [again.predict([example])[0].to_json() for example in dev]
    assert _rounded(alone) == _rounded(together)
    assert again.evaluate(dev) == scores


def _rounded(value: Any) -> Any:
    """Round confidences to three digits: sums in another order differ in the last digits."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def test_unknown_kinds_and_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"kind of task must be one of tagging, classification, .*; found 'parsing'"):
        check_kind("parsing")
    with pytest.raises(
        ConfigError, match="the head for answers has no option 'n_layers'; it has: by_character, dropout"
    ):
        build_options("answers", {"n_layers": 2})


def tags(*rows: Sequence[str]) -> list[TaggedSentence]:
    return [TaggedSentence(("w",) * len(row), tuple(row), Location("x.conll", k)) for k, row in enumerate(rows)]


def test_unseen_labels_are_reported_and_a_completely_unknown_set_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    task = Tagging.from_examples(tags(["B-X", "I-X", "O"], ["O", "B-Y", "O"]))
    task.check(tags(["S-X", "O"]))  # another scheme of the same labels will do
    with caplog.at_level(logging.WARNING):
        task.check(tags(["O", "B-X"], ["B-Z", "O"]))
    unseen = "1 of 2 labels were not seen in training and are never predicted; the first is 'Z'"
    assert unseen in caplog.text
    with pytest.raises(DataError, match=r"x.conll:0: unknown label 'Z'; this model knows: "):
        task.check(tags(["B-Z", "O"]))
    with pytest.raises(DataError, match="the training data must have at least 2 different tags; found O"):
        Tagging.from_examples(tags(["O", "O"]))


LESS = FitOptions(epochs=8, batch_size=8, learning_rate=0.01)


@pytest.mark.slow
def test_tags_are_predicted_in_the_scheme_of_the_data(folder: Path) -> None:
    train = made("tagging", 60, 1)
    task = Tagging.from_examples(train, build_options("tagging", MAKERS["tagging"][1]))
    assert (task.scheme, task.main_score) == ("IOB2", "f1")
    assert {"S-X", "B-X", "E-X"} & set(task.labels.names) == {"B-X", "E-X"}
    sources = FeatureStore(CHOICE, Elmo.from_pretrained(folder))
    model = TaskModel.train(task, train, train[:9], store=sources, options=LESS)
    said = {tag for one in model.predict(train) for tag in one.tags}
    assert said == {"O", "B-X", "I-X"}


def test_a_long_document_is_split_between_sentences_and_keeps_its_clusters() -> None:
    text = tuple(tuple(f"{k}.{i}" for i in range(4)) for k in range(6))
    spans = (Span(0, 2), Span(9, 11), Span(23, 24))
    whole = Document("d", text, (spans, (Span(4, 5),)), tuple("ab" * 12))
    first, second, third = split_document(whole, 9)
    assert [len(part.text) for part in (first, second, third)] == [2, 2, 2]
    assert first.clusters == ((Span(0, 2),), (Span(4, 5),))
    assert (second.clusters, third.clusters) == (((Span(1, 3),),), ((Span(7, 8),),))
    assert second.speakers == tuple("ab" * 4)
    assert split_document(whole, 24) == [whole]


def tag_rows(*rows: str) -> list[TaggedSentence]:
    split = [tuple(row.split()) for row in rows]
    return [TaggedSentence(("w",) * len(row), row, Location("x.conll", k)) for k, row in enumerate(split)]


def said(*rows: str) -> list[PredictedTags]:
    split = [tuple(row.split()) for row in rows]
    return [PredictedTags(row, (1.0,) * len(row)) for row in split]


@pytest.mark.parametrize("odd", ["b-X", "B_X", "o", "B-"])
def test_one_mistyped_tag_among_spans_is_refused_with_its_position(odd: str) -> None:
    with pytest.raises(DataError, match=rf"x\.conll:30: tag 2 must be O or a span tag .* found '{odd}'"):
        Tagging.from_examples(tag_rows(*["B-X I-X O"] * 30, f"O {odd} O"))


def test_tags_that_rarely_mark_spans_are_plain(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not Tagging.from_examples(tag_rows("NN VB S-Bar", "NN O")).has_spans
        Tagging.from_examples(tag_rows("B-X L-X O U-Y"))
    assert "tag scheme plain (no spans), 4 labels" in caplog.text
    assert "tag scheme BIOES (letters BILU), 4 labels" in caplog.text


def test_invalid_and_missing_tags_are_refused_before_training() -> None:
    task = Tagging.from_examples(tag_rows("B-X I-X O"))
    with pytest.raises(DataError, match=r"x\.conll:1: tag 2 must be O or a span tag .* found '_'"):
        task.check(tag_rows("B-X O", "O _"))
    with pytest.raises(DataError, match=r"x\.conll:3: each word must have a tag"):
        task.check([TaggedSentence(("w",), None, Location("x.conll", 3))])
    with pytest.raises(DataError, match="each word must have a tag"):
        Tagging.from_examples(tag_rows("NN VB")).check([TaggedSentence(("w",), None)])


@pytest.mark.parametrize("gold", ["B-X E-X O S-X", "B-X L-X O U-X", "B-X I-X O B-X", "I-X I-X O I-X"])
@pytest.mark.parametrize("train", ["B-X I-X O B-X", "B-X L-X O U-X", "I-X I-X O I-X"])
def test_accuracy_does_not_depend_on_the_tag_scheme(train: str, gold: str) -> None:
    task = Tagging.from_examples(tag_rows(train))
    right = task.score(tag_rows(gold), said(train))
    assert (right["accuracy"], right["f1"]) == (1.0, 1.0)
    half = task.score(tag_rows(gold), said("O O " + train[-5:]))
    assert (half["accuracy"], half["recall"]) == (0.5, 0.5)


def test_letters_of_the_data_are_saved_and_default_to_bies() -> None:
    task = Tagging.from_examples(tag_rows("B-X L-X O U-Y"))
    values = task.to_json()
    assert Tagging.from_json(values) == task
    assert task.letters == "BILU"
    del values["letters"]
    assert Tagging.from_json(values).letters == "BIES"


def test_tags_are_predicted_in_the_letters_of_the_data() -> None:
    task = Tagging.from_examples(tag_rows("B-X I-X L-X O U-X"))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(4)).eval()  # untrained, it guesses all kinds of tags
    vectors = FeatureVectors(8 * torch.randn(20, 9, 4), torch.ones(20, 9, dtype=torch.bool))
    found = task.predict(head, lambda _: vectors, [TaggedSentence(("w",) * 9, None)] * 20)
    assert {tag for one in found for tag in one.tags} == {"B-X", "I-X", "L-X", "O", "U-X"}


@pytest.mark.parametrize("what", ["tags", "labels", "roles"])
def test_an_unknown_label_is_refused_with_the_known_ones(what: str) -> None:
    with pytest.raises(DataError, match=f"^unknown {what[:-1]} 'Z'; this model knows: A, B$"):
        Labels(("A", "B")).check([("Z", None)], what=what)


@pytest.mark.parametrize("unseen", [["Z"], ["Z", "Z"], ["Z", "Y", "Z"]])
def test_unseen_labels_are_counted_in_a_warning(unseen: list[str], caplog: pytest.LogCaptureFixture) -> None:
    Labels(("A", "B")).check([("A", None), *((name, None) for name in unseen)], what="labels")
    n = len(unseen)
    assert caplog.messages == [
        f"{n} of {n + 1} labels were not seen in training and are never predicted; the first is 'Z'"
    ]


def document_with(*clusters: Sequence[Span]) -> Document:
    return Document("d", (("a",) * 400,), tuple(map(tuple, clusters)), location=Location("x.conll", 1))


def pairs_of_mentions(n: int) -> list[list[Span]]:
    return [[Span(k, k + 1), Span(k, k + 2)] for k in range(n)]


def test_singletons_are_predicted_if_the_data_has_enough_of_them() -> None:
    lone = [Span(300, 301)]
    assert not Coreference.from_examples([document_with(*pairs_of_mentions(3))]).has_singletons
    assert not Coreference.from_examples([document_with(*pairs_of_mentions(99), lone)]).has_singletons
    assert Coreference.from_examples([document_with(*pairs_of_mentions(30), lone)]).has_singletons
    for given in (True, False):
        task = Coreference.from_examples([document_with(lone)], CoreferenceOptions(has_singletons=given))
        assert task.has_singletons is given
        assert Coreference.from_json(task.to_json()) == task
        task.build_head(FeatureWidths(4, 4))
    with pytest.raises(DataError, match="training documents must have clusters; found none"):
        Coreference.from_examples([document_with()])


def test_mentions_that_are_too_wide_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    clusters = [[Span(0, 3), Span(4, 5)], [Span(6, 7), Span(8, 9)]]
    Coreference.from_examples([document_with(*clusters)], CoreferenceOptions(max_span_width=3))
    assert not caplog.text
    Coreference.from_examples([document_with(*clusters)], CoreferenceOptions(max_span_width=2))
    assert "25.0 % of the mentions (1 of 4) are wider than max_span_width (2)" in caplog.text


def test_a_mention_in_two_clusters_is_refused_before_training() -> None:
    twice = document_with([Span(0, 1), Span(2, 3)], [Span(2, 3)])
    for refused in (Coreference.from_examples, Coreference(has_singletons=True).check):
        with pytest.raises(DataError, match=r"x\.conll:1: .* 'd' must be in one cluster; .* tokens 2 to 3"):
            refused([twice])


def test_a_missing_extra_is_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    for begun in (Coreference.from_examples, Coreference(has_singletons=True).check):
        with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[tasks\]'"):
            begun([document_with(*pairs_of_mentions(2))])


def test_chinese_answers_are_scored_by_their_characters() -> None:
    gold = Question("1", ("谁",), ("北", "京"), "北京大学", ((0, 1), (1, 2)), ("北京大学",), ())
    predicted = [PredictedAnswer((("北京", 1.0),))]
    assert Answers().score([gold], predicted)["f1"] == pytest.approx(2 / 3)
    assert Answers(AnswersOptions(by_character=False)).score([gold], predicted)["f1"] == 0
    english = replace(gold, answers=("the red house",))
    predicted = [PredictedAnswer((("house red", 1.0),))]
    assert Answers().score([english], predicted)["f1"] == 1
    assert Answers(AnswersOptions(by_character=True)).score([english], predicted)["f1"] == pytest.approx(0.4)


def test_a_score_outside_the_scale_is_reported_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [TextPair(("a",), ("b",), None, score) for score in (1.0, 2.5, 5.0)]
    task = Similarity.from_examples(pairs)
    assert (task.low, task.high) == (1, 5)
    other = [replace(pairs[0], score=6.0, location=Location("a.tsv", 3)), pairs[1]]
    task.check(other)
    assert (
        "a.tsv:3: 1 of 2 scores are outside the training scale of 1 to 5 and are never predicted; the first is 6"
        in caplog.text
    )
    assert task.score(other, [PredictedScore(4.0), PredictedScore(2.5)])["mean_squared_error"] == 2
    with pytest.raises(DataError, match="the score must be a finite number; found none"):
        Similarity.from_examples([replace(pairs[0], score=None)])
    with pytest.raises(DataError, match="the score must be a finite number; found nan"):
        task.check([replace(pairs[0], score=float("nan"))])


class Vectors:
    """Three numbers for each word; counts the tokens of each batch with padding."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, sentences: Sequence[Words]) -> FeatureVectors:
        longest = max(map(len, sentences))
        self.sizes.append(len(sentences) * longest)
        inputs = torch.zeros(len(sentences), longest, 3)
        mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
        for k, words in enumerate(sentences):
            for place, word in enumerate(words):
                inputs[k, place] = torch.tensor([len(word) / 9, ord(word[0]) % 7 / 7, 1.0])
            mask[k, : len(words)] = True
        return FeatureVectors(inputs, mask)


def test_a_document_with_one_long_sentence_is_not_padded_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (*(("ab", "c", "def", "g", "he")[: 1 + k % 5] for k in range(60)), ("x", "yz") * 50)
    document = Document("d", text, ((Span(0, 1), Span(3, 5)), (Span(10, 11),)))
    task = Coreference.from_examples([document], build_options("coreference", {"hidden_width": 4, "dropout": 0}))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3)).eval()
    padded, grouped = Vectors(), Vectors()
    assert isinstance(embed_document(padded, text), FeatureVectors)
    expected = task.loss(head, padded, [document]).item()
    said = task.predict(head, padded, [document])
    monkeypatch.setattr(coreference, "MAX_PADDED", 300)
    assert isinstance(embed_document(grouped, text), SentenceGroups)
    n_words = sum(map(len, text))
    assert sum(grouped.sizes) <= 2 * n_words < padded.sizes[0]
    assert task.loss(head, grouped, [document]).item() == pytest.approx(expected, abs=1e-5)
    assert task.predict(head, grouped, [document])[0].clusters == said[0].clusters


@pytest.mark.parametrize("has_crf", [True, False])
def test_a_sentence_of_two_thousand_words_is_tagged(has_crf: bool) -> None:
    words, tags = ("a", "Bc", "d", "e") * 500, ("O", "B-X", "I-X", "O") * 500
    task = Tagging.from_examples(
        [TaggedSentence(words, tags)], build_options("tagging", {"hidden_width": 4, "has_crf": has_crf})
    )
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3))
    loss = task.loss(head, Vectors(), [TaggedSentence(words, tags)])
    loss.backward()
    assert loss.isfinite()
    assert all(one.grad is None or one.grad.isfinite().all() for one in head.parameters())
    (said,) = task.predict(head.eval(), Vectors(), [TaggedSentence(words, None)])
    assert len(said.tags) == 2000
    assert all(0 < one <= 1.001 for one in said.confidences)


def test_an_answer_is_learned_and_found_in_a_passage_of_many_blocks() -> None:
    passage = tuple("ab" if k % 3 else "c" for k in range(2500))
    offsets = tuple((3 * k, 3 * k + len(word)) for k, word in enumerate(passage))
    text = "".join(word.ljust(3) for word in passage)
    question = Question("1", ("who",), passage, text, offsets, ("ab",), (Span(2400, 2401),))
    task = Answers.from_examples([question], build_options("answers", {"hidden_width": 3}))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3))
    loss = task.loss(head, Vectors(), [question])
    loss.backward()
    assert loss.isfinite()
    (said,) = task.predict(head.eval(), Vectors(), [question])
    assert said.text in text


def test_a_long_premise_is_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [TextPair(("ab", "c") * 40, ("c", "ab") * 30, label) for label in ("yes", "no")]
    task = Entailment.from_examples(pairs, build_options("entailment", {"hidden_width": 4}))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3)).eval()
    whole = task.loss(head, Vectors(), pairs).item()
    monkeypatch.setattr(attention, "MAX_SCORES", 1000)
    assert task.loss(head, Vectors(), pairs).item() == pytest.approx(whole, abs=1e-6)


def test_tags_are_converted_and_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("B-X", "I-X", "O"), ("O", "B-Y", "O"), ("B-X", "I-X", "O")]
    examples = [TaggedSentence(("a", "b", "c"), row) for row in rows]
    task = Tagging.from_examples(examples, build_options("tagging", {"hidden_width": 2, "dropout": 0}))
    convert_tags, asked = tagging.convert_tags, []

    def counted(tags: tuple[str, ...], *schemes: tagging.Scheme) -> tuple[str, ...]:
        asked.append(tags)
        return convert_tags(tags, *schemes)

    monkeypatch.setattr(tagging, "convert_tags", counted)
    head = task.build_head(FeatureWidths(3))
    first, second = (task.loss(head, Vectors(), examples).item() for _ in range(2))
    assert first == second
    assert sorted(asked) == sorted(set(rows))
    names = [task.labels.names[number] for number in task._encode_tags(examples[0])[1]]
    assert names == ["B-X", "E-X", "O"]


def test_roles_are_encoded_once_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = (Span(0, 1, "ARG0"),)
    examples = [Predicate(("a",) * n, 1, spans) for n in (2, 3, 3)]
    task = Roles.from_examples(examples, build_options("roles", {"hidden_width": 2, "n_layers": 1}))
    encode_spans, asked = roles.encode_spans, []

    def counted(given: tuple[Span, ...], n: int, scheme: tagging.Scheme) -> tuple[str, ...]:
        asked.append(n)
        return encode_spans(given, n, scheme)

    monkeypatch.setattr(roles, "encode_spans", counted)
    head = task.build_head(FeatureWidths(3)).eval()
    assert task.loss(head, Vectors(), examples).item() == task.loss(head, Vectors(), examples).item()
    assert asked == [2, 3]
