"""Files, their first lines, and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Place
from elmo.tasks.data.files import (
    WHITESPACE,
    NoFilesError,
    files_of,
    is_blank,
    opened,
    suffix_of,
    tokens_of,
    words_of,
)


def test_paths_may_be_one_several_or_a_folder(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).touch()
    assert files_of(tmp_path / "a.txt") == files_of([str(tmp_path / "a.txt")]) == [tmp_path / "a.txt"]
    assert files_of(tmp_path) == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert files_of("-") == ["-"]
    with pytest.raises(NoFilesError, match="at least one file"):
        files_of([])
    assert issubclass(NoFilesError, ConfigError)


def test_compression_does_not_hide_a_suffix() -> None:
    assert [suffix_of(Path(name)) for name in ("a.TSV.xz", "a.csv", "a.gz")] == [".tsv", ".csv", ""]
    assert suffix_of("-") == ""


def test_a_file_is_given_from_its_first_line_that_says_something(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n \t\nx\n\n", encoding="utf-8")
    first, lines = opened(path)
    assert (first.text, first.number) == ("x", 3)
    assert [line.number for line in lines] == [3, 4]
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a.txt: expected examples, found an empty file"):
        opened(path)


def test_a_space_of_another_kind_may_be_a_word() -> None:
    assert is_blank(" \t")
    assert not is_blank("\u00a0")


def test_words_of_any_tokeniser_are_placed_where_they_spell_the_text() -> None:
    assert tokens_of("a bc", lambda text: ["a", "b", "c"]).offsets == ((0, 1), (2, 3), (3, 4))
    assert tokens_of("A", lambda text: ["a"]).offsets is None
    assert tokens_of("a b", WHITESPACE).offsets == ((0, 1), (2, 3))


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:3: expected words in the text, found ' '$"):
        words_of(" ", WHITESPACE, what="text", place=Place("f", 3))
    with pytest.raises(DataError, match="expected a list of strings, found one string"):
        words_of("a b", lambda text: text, what="text", place=Place("f", 3))
