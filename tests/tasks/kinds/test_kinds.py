"""The kinds of tasks: each learns a toy problem end to end, is saved, and tells of labels it has not seen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo
from elmo.tasks.data.examples import (
    Document,
    LabelledText,
    Place,
    Predicate,
    Question,
    Span,
    TaggedSentence,
    TextPair,
)
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.fit import FitOptions
from elmo.tasks.kinds.coreference import split_document
from elmo.tasks.kinds.registry import KINDS, build_options, build_task, check_kind
from elmo.tasks.kinds.tagging import Tagging
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


def labelled(random: np.random.Generator) -> LabelledText:
    row = words(random, 6)
    label = str(random.choice(["good", "bad"]))
    row[int(random.integers(0, 6))] = {"good": "Q", "bad": "Z"}[label]
    return LabelledText(tuple(row), label)


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


MAKERS: dict[str, tuple[Any, dict[str, Any], float]] = {
    "tagging": (tagged, {"hidden_width": 16, "dropout": 0.0}, 0.95),
    "classification": (labelled, {"hidden_width": 12, "dropout": 0.0}, 0.9),
    "entailment": (pair, {"hidden_width": 24, "dropout": 0.0}, 0.9),
    "similarity": (pair, {"hidden_width": 16, "dropout": 0.0}, 0.9),
    "answers": (question, {"hidden_width": 12, "dropout": 0.0}, 0.9),
    "roles": (predicate, {"hidden_width": 24, "n_layers": 2, "dropout": 0.0, "predicate_width": 8}, 0.9),
    "coreference": (document, {"hidden_width": 16, "max_span_width": 3, "dropout": 0.0}, 0.9),
}


def made(kind: str, n: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [MAKERS[kind][0](random) for _ in range(n)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "tiny"
    Elmo(tiny_model()).save_pretrained(place)
    return place


def test_every_kind_is_tried_here() -> None:
    assert set(MAKERS) == set(KINDS)


@pytest.mark.parametrize("kind", MAKERS)
def test_it_learns_is_saved_and_predicts_the_same_alone_and_together(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    _, head, wanted = MAKERS[kind]
    n = {"coreference": 40, "entailment": 200}.get(kind, 120)
    train, dev = made(kind, n, 1), made(kind, 12, 2)
    task = build_task(kind, train, build_options(kind, head))
    options = FitOptions(
        epochs=14 if kind == "coreference" else 8,
        batch_size=8,
        learning_rate=0.005 if kind == "entailment" else 0.01,
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
    """Confidences to three places: sums in another order differ in the last."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def test_an_unknown_kind_and_an_unknown_option_are_named() -> None:
    with pytest.raises(
        ConfigError, match=r"kind of task: expected one of tagging, classification, .*, found 'parsing'"
    ):
        check_kind("parsing")
    with pytest.raises(ConfigError, match="answers has no option 'n_layers'; it has: by_character, dropout"):
        build_options("answers", {"n_layers": 2})


def tags(*rows: Sequence[str]) -> list[TaggedSentence]:
    return [TaggedSentence(("w",) * len(row), tuple(row), Place("x.conll", k)) for k, row in enumerate(rows)]


def test_labels_that_were_not_seen_are_told_and_a_foreign_set_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = Tagging.from_examples(tags(["B-X", "I-X", "O"], ["O", "B-Y", "O"]))
    task.check(tags(["S-X", "O"]))  # another scheme of the same labels will do
    with caplog.at_level(logging.WARNING):
        task.check(tags(["O", "B-X"], ["B-Z", "O"]))
    assert "1 label was not seen in training: 'Z'; it is never predicted" in caplog.text
    with pytest.raises(DataError, match=r"x.conll:0: the label 'Z' is none that was learned: "):
        task.check(tags(["B-Z", "O"]))
    with pytest.raises(DataError, match="expected at least 2 different tags to learn, found O"):
        Tagging.from_examples(tags(["O", "O"]))


LESS = FitOptions(epochs=8, batch_size=8, learning_rate=0.01)


def test_tags_are_predicted_in_the_scheme_of_the_data(folder: Path) -> None:
    train = made("tagging", 60, 1)
    task = Tagging.from_examples(train, build_options("tagging", MAKERS["tagging"][1]))
    assert (task.scheme, task.main_score) == ("IOB2", "f1")
    assert {"S-X", "B-X", "E-X"} & set(task.labels.names) == {"B-X", "E-X"}
    sources = FeatureStore(CHOICE, Elmo.from_pretrained(folder))
    model = TaskModel.train(task, train, train[:9], store=sources, options=LESS)
    said = {tag for one in model.predict(train) for tag in one.tags}
    assert said == {"O", "B-X", "I-X"}


def test_a_long_document_is_cut_between_sentences_and_clusters_go_with_their_mentions() -> None:
    text = tuple(tuple(f"{k}.{i}" for i in range(4)) for k in range(6))
    spans = (Span(0, 2), Span(9, 11), Span(23, 24))
    whole = Document("d", text, (spans, (Span(4, 5),)), tuple("ab" * 12))
    first, second, third = split_document(whole, 9)
    assert [len(part.text) for part in (first, second, third)] == [2, 2, 2]
    assert first.clusters == ((Span(0, 2),), (Span(4, 5),))
    assert (second.clusters, third.clusters) == (((Span(1, 3),),), ((Span(7, 8),),))
    assert second.speakers == tuple("ab" * 4)
    assert split_document(whole, 24) == [whole]
