"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo import DataError
from elmo.cli.options import parse_words


def test_words_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("bank\n\n 苹果 \nbank\n", encoding="utf-8")
    assert parse_words(str(path)) == ("bank", "苹果")
    assert parse_words("bank, New York,bank") == ("bank", "New York")
    assert parse_words("bank") == ("bank",)
    assert parse_words(None) is None
    for value in ("nowhere.txt", "a/b"):
        with pytest.raises(DataError, match="no such file; expected a file of words or a list such as a,b,c"):
            parse_words(value)
