"""Files, their first lines, and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location
from elmo.tasks.data.files import (
    WHITESPACE,
    NoFilesError,
    find_files,
    is_blank,
    opened,
    get_suffix,
    split_tokens,
    split_words,
)


def test_paths_may_be_one_several_or_a_folder(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).touch()
    assert find_files(tmp_path / "a.txt") == find_files([str(tmp_path / "a.txt")]) == [tmp_path / "a.txt"]
    assert find_files(tmp_path) == [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert find_files("-") == ["-"]
    with pytest.raises(NoFilesError, match="at least one file"):
        find_files([])
    assert issubclass(NoFilesError, ConfigError)


def test_compression_does_not_hide_a_suffix() -> None:
    assert [get_suffix(Path(name)) for name in ("a.TSV.xz", "a.csv", "a.gz")] == [".tsv", ".csv", ""]
    assert get_suffix("-") == ""


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
    assert split_tokens("a bc", lambda text: ["a", "b", "c"]).offsets == ((0, 1), (2, 3), (3, 4))
    assert split_tokens("A", lambda text: ["a"]).offsets is None
    assert split_tokens("a b", WHITESPACE).offsets == ((0, 1), (2, 3))


def test_a_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match=r"^f:3: expected words in the text, found ' '$"):
        split_words(" ", WHITESPACE, what="text", place=Location("f", 3))
    with pytest.raises(DataError, match="expected a list of strings, found one string"):
        split_words("a b", lambda text: text, what="text", place=Location("f", 3))
