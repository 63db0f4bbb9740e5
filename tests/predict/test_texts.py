"""``read_text``: strings, tokens and files as sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elmo.errors import DataError
from elmo.predict.texts import read_text
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens


def tokens(text: Any, **options: Any) -> list[tuple[str, ...]]:
    options = {"tokenizer": "en", **options}
    return [sentence.tokens.tokens for sentence in read_text(text, **options)]


def test_strings_tokens_sentences_and_paths_can_be_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One line.\nAnother\n", encoding="utf-8")
    mixed = [
        "A string.",
        ["its", "own", "tokens."],
        Tokens.from_words(("more",)),
        Sentence(Tokens.from_words(("placed",)), "somewhere", 7),
        tmp_path / "a.txt",
        tmp_path / "*.txt",
    ]
    lines = [("One", "line", "."), ("Another",)]
    assert tokens(mixed) == [
        ("A", "string", "."), ("its", "own", "tokens."), ("more",), ("placed",), *lines, *lines
    ]  # fmt: skip


def test_a_string_is_one_sentence_unless_split() -> None:
    assert tokens("It was. It is.") == [("It", "was", ".", "It", "is", ".")]
    assert tokens("It was. It is.", split=True) == [("It", "was", "."), ("It", "is", ".")]
    sentences = list(read_text("It was. It is.", tokenizer="en", split=True))
    assert [(sentence.place, sentence.start) for sentence in sentences] == [("<text>:1", 0), ("<text>:1", 8)]


def test_a_function_can_be_the_tokenizer() -> None:
    assert tokens("a-b c", tokenizer=str.split) == [("a-b", "c")]


def test_a_string_that_names_a_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus.txt").write_text("text\n")
    monkeypatch.chdir(tmp_path)
    for text in ("corpus.txt", ["corpus.txt", "other.txt"]):
        with pytest.raises(DataError, match=r"pass Path\('corpus\.txt'\)"):
            tokens(text)
    assert tokens("corpus txt") == [("corpus", "txt")]
    assert tokens("a\0b") == [("a", "\0", "b")]
    assert len(tokens("long " * 10_000)[0]) == 10_000


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (7, "found int"),
        (b"bytes", "found bytes"),
        ([7], "sentence 1 must be text"),
        (["a", b"b"], "sentence 2 must be text"),
        ([["a", 7]], "sentence 1: tokens: expected strings, found int"),
        ([Path("nothing.txt")], "nothing.txt"),
    ],
)
def test_other_types_are_errors(text: Any, part: str) -> None:
    with pytest.raises(DataError, match=part):
        tokens(text)
