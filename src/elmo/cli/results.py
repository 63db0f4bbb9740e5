"""Print the results of a command and write them to files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.cli.console import dump_json, logger
from elmo.text.display import one_line, shorten, text_width

if TYPE_CHECKING:
    from elmo.lexicon.usages import Usage

_LINE_WIDTH = 100  # maximum width of a sentence in a table, in Latin letters


def check_result_file(path: Path | None, *, inputs: Iterable[str | Path] = ()) -> None:
    """Check that a file of results can be written; call this before the work starts."""
    from elmo.storage.atomic import check_output_file

    if path is not None:
        check_output_file(path, suffixes=(".tsv", ".json"), inputs=inputs)


def print_json(values: Any) -> None:
    """Print values as one line of JSON."""
    print(dump_json(values, sys.stdout))


def print_results(values: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print ``values`` as JSON, or ``lines`` as text in which unprintable characters are escaped."""
    if as_json:
        print_json(values)
    else:
        print("\n".join(map(one_line, lines)))


def write_results(path: Path | None, *, columns: Sequence[str], rows: Iterable[Sequence[Any]], values: Any) -> None:
    r"""Write ``rows`` as a table (.tsv) or ``values`` as JSON (.json), depending on the suffix of ``path``.

    In a table, ``\``, tabs and line breaks are escaped as in Python. Nothing is written if ``path`` is None.
    """
    if path is None:
        return
    from elmo.storage.atomic import atomic_file, make_parents
    from elmo.text.lines import escape_field

    make_parents(path)
    with (
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        if path.suffix.lower() == ".json":
            file.write(json.dumps(values, ensure_ascii=False, indent=1) + "\n")
        else:
            for row in chain([columns], rows):
                file.write("\t".join("" if x is None else escape_field(str(x)) for x in row) + "\n")
    logger.info("wrote %s", path)


def format_usage(usage: Usage) -> str:
    """Return the sentence of a usage, shortened to one line of a terminal, with the word in brackets."""
    before, word, after = (one_line(part) for part in usage.parts())
    width = max(_LINE_WIDTH - text_width(word), 20)
    left = shorten(before[::-1], max(width // 2, width - text_width(after)))[::-1]
    return f"{left}[{word}]{shorten(after, max(width - text_width(left), 1))}"
