"""The words whose change the explorer measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from elmo import Elmo
from elmo.formats import native
from elmo.serve.explore import find_content_words
from elmo.text.reader import Sentence, read_sentences
from tests.formats.tiny import tiny_model


@pytest.mark.parametrize(("tokenizer", "expected"), [("en", ["sings"]), ("de", ["anna", "sings", "song"])])
def test_capitalized_words_are_names_except_in_languages_that_capitalize_all_nouns(
    tmp_path: Path, tokenizer: str, expected: list[str]
) -> None:
    native.write(tiny_model("chars"), tmp_path / "model")
    (tmp_path / "period.txt").write_text("Then Anna sings the Song .\n" * 12, encoding="utf-8")
    elmo = Elmo.from_pretrained(tmp_path / "model", tokenizer=tokenizer)
    read: Callable[[], Iterable[Sentence]] = partial(
        read_sentences, [str(tmp_path / "period.txt")], tokenizer=elmo.tokenizer
    )
    assert sorted(find_content_words(elmo, {"old": read, "new": read}, max_words=9)) == expected
