"""Files of predictions: the readers can read them, they are complete, invalid names are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmo import DataError, OutputError
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
)
from elmo.tasks.kinds.answers import PredictedAnswer
from elmo.tasks.kinds.classification import PredictedLabel
from elmo.tasks.kinds.coreference import PredictedClusters
from elmo.tasks.kinds.registry import read_examples
from elmo.tasks.kinds.roles import PredictedRoles
from elmo.tasks.kinds.similarity import PredictedScore
from elmo.tasks.kinds.tagging import PredictedTags
from elmo.tasks.kinds.translation import PredictedTranslation
from elmo.tasks.output import SUFFIXES, check_output, to_record, write_predictions

WORDS = ("They", "lent\N{NO-BREAK SPACE}out", "河岸", "cash", "and", "left")
HERE = Location("a.conll", 1)
TEXT = "The Bank lends."
ASKED: dict[str, tuple[list[Any], list[Any]]] = {
    "tagging": (
        [TaggedSentence(WORDS, None), TaggedSentence(("Bank",), ("B-ORG",))],
        [PredictedTags(("O", "O", "B-LOC", "O", "O", "O"), (0.5,) * 6), PredictedTags(("B-ORG",), (0.987654,))],
    ),
    "classification": ([LabeledText(WORDS, "good")], [PredictedLabel("bad", {"bad": 0.75, "good": 0.25})]),
    "entailment": ([TextPair(WORDS, ("a", "b"), "yes", 4.0)], [PredictedLabel("no", {"no": 0.75, "yes": 0.25})]),
    "similarity": ([TextPair(WORDS, ("a", "b"), "yes", 4.0)], [PredictedScore(3.14159)]),
    "answers": (
        [Question("q1", ("Who", "?"), ("The", "Bank"), TEXT, ((0, 3), (4, 8)), ("The Bank",), (Span(0, 2),))],
        [PredictedAnswer((("Bank", 0.6), ("The Bank", 0.3)))],
    ),
    "roles": (
        [Predicate(WORDS, 5, None, HERE), Predicate(WORDS, 1, (Span(0, 1, "A0"),), HERE)],
        [PredictedRoles((Span(0, 1, "A0"),), (0.9,)), PredictedRoles((Span(0, 1, "A0"), Span(2, 4, "A1")), (0.8, 0.7))],
    ),
    "coreference": (
        [Document("d; part 002", (("Ann", "lends", "her", "cash"), ("She",)), None, ("A", "A", "A", "A", "B"))],
        [PredictedClusters(((Span(0, 1), Span(2, 3), Span(4, 5)),), ((0.9, 0.8, 0.7),))],
    ),
    "translation": (
        [SourceText(WORDS, "Sie verliehen Geld."), SourceText((), None)],
        [
            PredictedTranslation("Sie gehen", ("▁Sie", "▁gehen"), ((0.75, 0.25, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1)), -0.5),
            PredictedTranslation("", (), (), 0.0),
        ],
    ),
}


def write(kind: str, path: Path) -> Path:
    examples, predictions = ASKED[kind]
    write_predictions(path, kind, zip(examples, predictions, strict=True))
    return path


@pytest.mark.parametrize("kind", ASKED)
def test_json_lines_have_predictions_and_known_gold_answers_of_every_kind(kind: str, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in write(kind, tmp_path / "p.jsonl").read_text("utf-8").splitlines()]
    examples, predictions = ASKED[kind]
    assert len(rows) == len(examples)
    for row, one in zip(rows, predictions, strict=True):
        assert row.items() >= one.to_json().items()
    gold = {
        "tagging": ["B-ORG"],
        "classification": "good",
        "entailment": "yes",
        "similarity": 4.0,
        "answers": ["The Bank"],
        "translation": "Sie verliehen Geld.",
        "roles": [{"start": 0, "end": 1, "role": "A0"}],
    }
    assert [row["gold"] for row in rows if "gold" in row] == ([gold[kind]] if kind in gold else [])


def test_tags_are_read_back_from_columns(tmp_path: Path) -> None:
    for suffix in (".conll", ".tsv"):
        found = read_examples("tagging", [write("tagging", tmp_path / f"p{suffix}")]).examples
        assert [one.words for one in found] == [WORDS, ("Bank",)]
        assert [one.tags for one in found] == [one.tags for one in ASKED["tagging"][1]]


def test_roles_of_one_sentence_are_read_back_from_one_block_of_columns(tmp_path: Path) -> None:
    path = write("roles", tmp_path / "p.conll")
    found = read_examples("roles", [path]).examples
    assert [(one.predicate, one.words) for one in found] == [(1, WORDS), (5, WORDS)]
    assert [one.roles for one in found] == [one.roles for one in reversed(ASKED["roles"][1])]
    assert path.read_text("utf-8").count("They") == 1


def test_a_role_around_its_predicate_is_split(tmp_path: Path) -> None:
    example = Predicate(("a", "b", "c", "d"), 1, None)
    one = PredictedRoles((Span(0, 4, "A0"),), (0.5,))
    write_predictions(tmp_path / "p.conll", "roles", zip([example], [one], strict=True))
    (found,) = read_examples("roles", [tmp_path / "p.conll"]).examples
    assert found.roles == (Span(0, 1, "A0"), Span(2, 4, "C-A0"))


def test_the_same_sentence_twice_stays_two_sentences(tmp_path: Path) -> None:
    examples = [Predicate(("a", "b"), 1, None, Location("x", line)) for line in (1, 4)]
    message = [PredictedRoles((Span(0, 1, "A0"),), (0.5,))] * 2
    write_predictions(tmp_path / "p.conll", "roles", zip(examples, message, strict=True))
    assert len(read_examples("roles", [tmp_path / "p.conll"]).examples) == 2


def test_clusters_are_read_back_with_name_and_speakers(tmp_path: Path) -> None:
    (found,) = read_examples("coreference", [write("coreference", tmp_path / "p.conll")]).examples
    (document,) = ASKED["coreference"][0]
    assert (found.name, found.text, found.speakers) == (document.name, document.text, document.speakers)
    assert found.clusters == ASKED["coreference"][1][0].clusters


def test_answers_are_written_in_the_format_of_squad(tmp_path: Path) -> None:
    assert json.loads(write("answers", tmp_path / "p.json").read_text()) == {"q1": "Bank"}


def test_translations_are_written_as_one_line_per_text(tmp_path: Path) -> None:
    assert write("translation", tmp_path / "p.txt").read_text(encoding="utf-8") == "Sie gehen\n\n"
    rows = [json.loads(line) for line in write("translation", tmp_path / "p.jsonl").read_text("utf-8").splitlines()]
    assert rows[0]["alignment"] == [0, 5]
    assert rows[1] == {"source": [], "translation": "", "score": 0.0, "units": [], "alignment": []}


def test_tables_are_read_back_as_labeled_data(tmp_path: Path) -> None:
    (text,) = read_examples("classification", [write("classification", tmp_path / "a.tsv")]).examples
    assert (text.label, text.words) == ("bad", WORDS)
    (pair,) = read_examples("entailment", [write("entailment", tmp_path / "b.tsv")]).examples
    assert (pair.label, pair.first, pair.second) == ("no", WORDS, ("a", "b"))
    (alike,) = read_examples("similarity", [write("similarity", tmp_path / "c.tsv")]).examples
    assert (alike.score, alike.second) == (3.1416, ("a", "b"))
    assert write("answers", tmp_path / "d.tsv").read_text().splitlines()[1] == "q1\tBank\t0.6000\tWho ?"


def test_words_that_columns_cannot_represent_are_refused_or_escaped(tmp_path: Path) -> None:
    odd = [TaggedSentence(("a\tb", "\udc80"), None)]
    message = [PredictedTags(("O", "O"), (1.0, 1.0))]
    path = tmp_path / "p.conll"
    path.write_text("before")
    with pytest.raises(
        OutputError, match=r"cannot write 'a\\tb' to a column: it must not be blank or contain tabs, .* \.jsonl"
    ):
        write_predictions(path, "tagging", zip(odd, message, strict=True))
    assert [one.name for one in tmp_path.iterdir()] == ["p.conll"]
    assert path.read_text() == "before"
    write_predictions(tmp_path / "p.jsonl", "tagging", zip(odd, message, strict=True))
    assert json.loads((tmp_path / "p.jsonl").read_text())["words"] == ["a\tb", "\udc80"]
    texts = [LabeledText(("a\tb\n", "c"), None)]
    said = [PredictedLabel("x", {"x": 1.0})]
    write_predictions(tmp_path / "p.tsv", "classification", zip(texts, said, strict=True))
    assert (tmp_path / "p.tsv").read_text().splitlines()[1] == "x\t1.0000\ta\\tb\\n c"


def test_unknown_suffixes_and_input_files_are_refused_as_output(tmp_path: Path) -> None:
    for kind, suffixes in SUFFIXES.items():
        for suffix in (".jsonl", ".conll", ".json", ".tsv", ".txt", ""):
            if suffix in suffixes:
                check_output(tmp_path / f"p{suffix}", kind)
            else:
                with pytest.raises(OutputError, match=f"the file name for predictions of {kind} must end in"):
                    check_output(tmp_path / f"p{suffix}", kind)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*file is a file, not a folder"):
        check_output(tmp_path / "file" / "p.jsonl", "tagging")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(OutputError, match="found a folder"):
        check_output(tmp_path / "folder.jsonl", "tagging")
    with pytest.raises(OutputError, match="is one of the inputs"):
        check_output(tmp_path / "p.jsonl", "tagging", inputs=["-", str(tmp_path / "p.jsonl")])


def test_an_object_that_is_not_an_example_is_refused() -> None:
    with pytest.raises(TypeError, match="expected an example of a task; found int"):
        to_record(3, PredictedScore(1.0))


@pytest.mark.parametrize(("kind", "suffix"), [(kind, one) for kind in SUFFIXES for one in SUFFIXES[kind]])
def test_an_iterator_of_predictions_gives_the_same_file(kind: str, suffix: str, tmp_path: Path) -> None:
    whole = write(kind, tmp_path / f"whole{suffix}")
    write_predictions(tmp_path / f"p{suffix}", kind, iter(zip(*ASKED[kind], strict=True)))
    assert (tmp_path / f"p{suffix}").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("suffix", [".jsonl", ".conll"])
def test_an_error_while_writing_leaves_the_old_file(suffix: str, tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[Any, Any]]:
        yield from zip(*ASKED["coreference"], strict=True)
        raise DataError("x.txt:7: no")

    path = tmp_path / f"p{suffix}"
    path.write_text("before")
    with pytest.raises(DataError, match=r"x\.txt:7"):
        write_predictions(path, "coreference", broken())
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "before"
