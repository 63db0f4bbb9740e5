"""Write results to files, and format them for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.text.display import one_line, shorten, text_width

if TYPE_CHECKING:
    from elmo.lexicon.usages import Usage
    from elmo.text.tokenizers import Tokenizer

_LINE_WIDTH = 100  # of a sentence in a table, in Latin letters


def check_result_file(path: Path | None, *, inputs: Iterable[str | Path] = ()) -> None:
    """Check that a file of results can be written, before the work starts."""
    from elmo.storage.atomic import check_output_file

    if path is not None:
        check_output_file(path, suffixes=(".tsv", ".json"), inputs=inputs)


def write_results(path: Path, *, columns: Sequence[str], rows: Iterable[Sequence[Any]], values: Any) -> None:
    r"""Write a table (.tsv) or ``values`` (.json), depending on the suffix.

    In a table, ``\``, tab and line ends are escaped as in Python.
    """
    from elmo.storage.atomic import atomic_file, make_parents
    from elmo.text.lines import escape_field

    make_parents(path)
    with (
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        if path.suffix.lower() == ".json":
            file.write(json.dumps(values, ensure_ascii=False, indent=1) + "\n")
            return
        for row in chain([columns], rows):
            file.write("\t".join("" if x is None else escape_field(str(x)) for x in row) + "\n")


def format_usage(usage: Usage) -> str:
    """Format the sentence of a usage on one line of a terminal, with its word in brackets."""
    before, word, after = (one_line(part) for part in usage.parts())
    width = max(_LINE_WIDTH - text_width(word), 20)
    left = shorten(before[::-1], max(width // 2, width - text_width(after)))[::-1]
    return f"{left}[{word}]{shorten(after, max(width - text_width(left), 1))}"


def hint_about_tokenizer(tokenizer: Tokenizer, word: str) -> str:
    """Return a hint if no text can contain a word, because the tokenizer splits it; otherwise ''."""
    from elmo.lexicon.usages import split_phrase

    tokens = tokenizer(word).tokens
    if tokens == split_phrase(word):
        return ""
    name = getattr(tokenizer, "name", "of this model")
    return f"; the tokenizer {name} splits it into {' | '.join(tokens)[:60]}: choose another with --tokenizer"
