"""What the commands about words share: the option ``--words``, and files of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

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


def check_result_file(path: Path | None) -> None:
    """Refuse a name before anything is computed."""
    from elmo.errors import OutputError

    if path is None:
        return
    if path.suffix.lower() not in (".tsv", ".json"):
        raise OutputError(f"{path}: expected a name that ends in .tsv or .json")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {path.parent}")


def write_results(path: Path, *, columns: Sequence[str], rows: Iterable[Sequence[Any]], values: Any) -> None:
    """A table, or ``values`` as JSON, by the suffix; whole or not at all."""
    from elmo.cli.report import one_line
    from elmo.embed.atomic import replacing

    with replacing(path) as temporary:
        if path.suffix.lower() == ".json":
            temporary.write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            return
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.write("\t".join(columns) + "\n")
            for row in rows:
                file.write("\t".join(one_line(str(value)).replace("\t", " ") for value in row) + "\n")
