"""What the commands about words share: the option ``--words``, and files of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

Words = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|a,b,c", help="Which words: a file with one a line, or a list.", show_default=False
    ),
]
ResultFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE.tsv", help="Write the results, too (.tsv or .json).",
                 show_default=False),
]  # fmt: skip
AsWritten = Annotated[
    bool,
    typer.Option("--as-written", help="Read Bank and banks as they are, not as the word that is asked for."),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="Draw it, too (.png, .pdf or .svg).", show_default=False),
]


def word_list(given: str | None) -> tuple[str, ...] | None:
    """The words that ``--words`` names; a name with a dot or a slash in it is a file's."""
    from elmo.errors import DataError
    from elmo.text.source import read_lines

    if given is None:
        return None
    path = Path(given)
    if "," not in given and (path.suffix or "/" in given or path.is_file()):
        if not path.is_file():
            raise DataError(f"{given[:200]}: no such file; words are given as a file or as a,b,c")
        found = [line.text.strip() for line in read_lines(path)]
    else:
        found = [word.strip() for word in given.split(",")]
    words = tuple(dict.fromkeys(word for word in found if word))
    if not words:
        raise DataError(f"--words {given[:80]!r}: expected words, found none")
    return words


def check_result_file(path: Path | None, *, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse a name before anything is computed: what cannot be written, or is an input."""
    from elmo.errors import OutputError
    from elmo.formats.files import shown

    if path is None:
        return
    if path.suffix.lower() not in (".tsv", ".json"):
        raise OutputError(f"{shown(path)}: expected a name that ends in .tsv or .json")
    if path.is_dir():
        raise OutputError(f"{shown(path)}: expected the name of a file, found a folder")
    if not path.parent.is_dir():
        raise OutputError(f"{shown(path)}: there is no folder {shown(path.parent)}")
    if path.resolve() in (Path(one).resolve() for one in inputs if one != "-"):
        raise OutputError(f"{shown(path)}: lies among the input; put it elsewhere")


def write_results(path: Path, *, columns: Sequence[str], rows: Iterable[Sequence[Any]], values: Any) -> None:
    r"""A table, or ``values`` as JSON, by the suffix; whole or not at all.

    In a table ``\``, tab and line ends are escaped as Python does.
    """
    from elmo.embed.atomic import replacing

    with (
        replacing(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        if path.suffix.lower() == ".json":
            file.write(json.dumps(values, ensure_ascii=False, indent=1) + "\n")
            return
        for row in chain([columns], rows):
            file.write("\t".join("" if x is None else str(x).translate(_ESCAPES) for x in row) + "\n")
