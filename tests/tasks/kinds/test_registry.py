"""Kinds by name, and their examples from files."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from elmo import ConfigError, DataError
from elmo.tasks.kinds.registry import KINDS, iter_examples, read_examples

_EMPTY = "\t" + 7 * "-\t"
FILES = {
    "tagging": ("x.conll", "the DT\nbank NN\n\n"),
    "classification": ("x.txt", "1 a good film\n"),
    "entailment": ("x.tsv", "sentence1\tsentence2\tlabel\na b\tc\tyes\n"),
    "similarity": ("x.tsv", "first\tsecond\tscore\na b\tc\t4.5\n"),
    "answers": (
        "x.json",
        json.dumps({"data": [{"paragraphs": [{"context": "a b c", "qas": [
            {"id": "1", "question": "what ?", "answers": [{"text": "b", "answer_start": 2}]}
        ]}]}]}),
    ),
    "translation": ("x.tsv", "source\ttarget\na b\tc d\n"),
    "roles": ("x.conll", "I\tPRP\t-\t-\t(ARG0*)\nran\tVBD\trun\trun.01\t(V*)\n\n"),
    "coreference": (
        "x.conll",
        f"#begin document (d); part 000\nd\t0\t0\tI{_EMPTY}(0)\nd\t0\t1\tran{_EMPTY}-\n\n#end document\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_with_labels_and_without(tmp_path: Path, kind: str) -> None:
    name, text = FILES[kind]
    (tmp_path / name).write_text(text, encoding="utf-8")
    options = {"first": "first", "second": "second", "score": "score"} if kind == "similarity" else None
    (example,) = read_examples(kind, [tmp_path / name], options=options).examples
    assert example.location.path.endswith(name)
    assert all(example.sentences)
    if kind == "similarity":
        assert example.score == 4.5
    (blind,) = read_examples(
        kind, [tmp_path / name], is_labeled=False,
        options={"file_format": "columns"} if kind == "tagging" else options,
    ).examples  # fmt: skip
    if kind != "classification":  # lines without labels are text from their beginning
        assert blind.sentences == example.sentences


def test_an_option_that_a_kind_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the reader of coreference has no option 'tags'"):
        read_examples("coreference", [tmp_path], options={"tags": 2})
    with pytest.raises(ConfigError, match="kind of task must be one of tagging"):
        read_examples("parsing", [tmp_path])


def _predicates(*words: str) -> str:
    return "".join(f"{word}\tX\tx\tbe.01\t(V*)\n\n" for word in words)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("tagging", "a.conll", "The O\n\n" * 3 + "The O x\n"),
        ("classification", "a.jsonl", '{"text": "a b"}\n' * 3 + "[]\n"),
        ("entailment", "a.tsv", "sentence1\tsentence2\n" + "a\tb\n" * 3 + "fine\n"),
        ("roles", "a.tsv", _predicates("a", "b", "c") + "\tN\tb\tx\n"),
        ("coreference", "a.conll", 3 * FILES["coreference"][1] + "#begin document (e)\n"),
    ],
)
def test_a_file_is_read_no_further_than_its_examples_are_taken(tmp_path: Path, kind: str, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = iter_examples(kind, [tmp_path / name])
    assert len(list(islice(found, 2))) == 2
    with pytest.raises(DataError, match=name):
        list(found)
