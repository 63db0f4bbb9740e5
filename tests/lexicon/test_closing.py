"""Readers close their files at once if they fail, not when the garbage collector runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from elmo import DataError
from elmo.lexicon.index import Index
from elmo.lexicon.probe import read_labels
from elmo.lexicon.sense_corpora import read_gold, read_sense_corpus
from elmo.lexicon.usages import COLUMNS, read_uses
from elmo.lexicon.word_pairs import read_pairs

PAIR = "bank\tN\t1-1\tthe bank\ta bank\n"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[IO[Any]]:
    """Return the list of all files that are opened in a test."""
    files: list[IO[Any]] = []
    original = Path.open

    def open_and_keep(path: Path, *arguments: Any, **options: Any) -> IO[Any]:
        files.append(original(path, *arguments, **options))
        return files[-1]

    monkeypatch.setattr(Path, "open", open_and_keep)
    return files


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda path: read_uses(path.parent), "\t".join(COLUMNS) + "\nbank\n"),
        (lambda path: list(read_sense_corpus(path)), '{"toks": []}\nx\n'),
        (lambda path: list(read_sense_corpus(path)), "<corpus>\n</text>\n"),
        (read_gold, "a bank%1:17:01::\nb\n"),
        (read_pairs, f"{PAIR}bank\n"),
        (lambda path: read_labels(path, 2), "a\tX\nb\n"),
    ],
)
def test_an_error_closes_the_file(
    tmp_path: Path, opened: list[IO[Any]], read: Callable[[Path], object], text: str
) -> None:
    path = tmp_path / "x.uses.csv"
    path.write_text(text + "more\n" * 9, encoding="utf-8")
    opened.clear()
    with pytest.raises(DataError, match=r":2: ") as caught:  # keeps the frames of the readers
        read(path)
    assert [file.closed for file in opened] == [True]
    assert caught.value.__traceback__ is not None


def test_an_error_in_gold_labels_closes_both_files(tmp_path: Path, opened: list[IO[Any]]) -> None:
    data, gold = tmp_path / "data.txt", tmp_path / "gold.txt"
    data.write_text(PAIR, encoding="utf-8")
    gold.write_text("T\nx\nF\n", encoding="utf-8")
    opened.clear()
    with pytest.raises(DataError, match="expected T or F") as caught:
        read_pairs(data, gold)
    assert [file.closed for file in opened] == [True, True]
    assert caught.value.__traceback__ is not None


def test_a_limit_closes_the_file(tmp_path: Path, opened: list[IO[Any]]) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tX\n\n" * 9, encoding="utf-8")
    opened.clear()
    assert read_labels(path, 2, max_tokens=3).is_truncated
    assert [file.closed for file in opened] == [True]


def test_a_damaged_list_of_words_is_closed(index: Index, opened: list[IO[Any]]) -> None:
    (index.folder / "words.tsv").write_text("word\tusages\toccurrences\nbank\nriver\t1\t1\n", encoding="utf-8")
    opened.clear()
    with pytest.raises(DataError, match="expected a word and two numbers") as caught:
        _ = index.words
    assert [file.closed for file in opened] == [True]
    assert caught.value.__traceback__ is not None
