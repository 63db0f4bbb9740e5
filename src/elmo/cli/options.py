"""The options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

if TYPE_CHECKING:
    from elmo.embed.encoding import LayerChoice

MODEL_HELP = "en or zh (bundled), a folder, an archive or a Hub id, in any published format."
LAYERS = ("average", "top", "all", "concat")


def examples(*commands: str) -> str:
    """Return the end of a command's help; tests run every example."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)  # \b: keeps the line breaks


def _check_layers(value: str) -> str:
    if value in LAYERS or (value.isascii() and value.isdigit() and len(value) < 4):
        return value
    raise typer.BadParameter(f"expected {', '.join(LAYERS)} or the number of a layer, found {value[:40]!r}")


def _check_one_vector(value: str) -> str:
    if value == "all":
        raise typer.BadParameter("expected one vector per word, found all; use concat to join the layers")
    return _check_layers(value)


def parse_layers(value: str) -> LayerChoice | int:
    """Convert the value of ``--layers`` for the library."""
    return int(value) if value.isdigit() else cast("LayerChoice", value)


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT", help="Files, globs or folders, plain or compressed; - is stdin.", show_default=False
    ),
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", envvar="ELMO_MODEL", metavar="MODEL", help=MODEL_HELP, show_default=False)
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
Layers = Annotated[
    str, typer.Option(metavar="average|top|all|concat|0..", callback=_check_layers, help="Layers to use.")
]
OneVector = Annotated[
    str, typer.Option("--layers", metavar="average|top|concat|0..", callback=_check_one_vector, help="Layers to use.")
]
InputFormat = Annotated[
    Literal["text", "tokens", "conllu"],
    typer.Option("--format", help="One sentence per line, tokens separated by spaces, or CoNLL-U."),
]
Split = Annotated[bool, typer.Option("--split", help="Split lines of text into sentences.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="en|zh|whitespace|spacy:xx", help="Tokenizer for text.", show_default="that of the model, or en"
    ),
]
Start = Annotated[
    Literal["zero", "warm"],
    typer.Option(help="LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'."),
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda|mps|xpu", help="Where to compute.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "int8"],
    typer.Option(help="Precision of the network; lower precision is faster on processors that support it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Errors = Annotated[
    Literal["strict", "replace", "skip", "surrogateescape"],
    typer.Option(help="What to do with bytes that are not UTF-8."),
]
Words = Annotated[
    str | None,
    typer.Option(metavar="FILE|a,b,c", help="Words: a file with one word per line, or a list.", show_default=False),
]
MarkedSentences = Annotated[
    list[str],
    typer.Argument(metavar="SENTENCE", help="Sentences with the word marked like [[this]].", show_default=False),
]
MarkedWord = Annotated[
    str | None, typer.Option("--word", help="The word, for sentences without a marked word.", show_default=False)
]
ResultFile = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE.tsv", help="Also write the results to a .tsv or .json file.", show_default=False
    ),
]
By = Annotated[
    Literal["layers", "substitutes"],
    typer.Option(help="Compare the vectors of the word, or its predicted substitutes."),
]
AsWritten = Annotated[
    bool, typer.Option("--as-written", help="Keep inflected and capitalized forms; do not replace them by the word.")
]


def _check_picture(path: Path | None) -> Path | None:
    """Check that a picture can be drawn, before the work starts."""
    if path is not None:
        from elmo.plots.figure import check_picture

        check_picture(path)
    return path


Picture = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.png", help="Also draw a figure (.png, .pdf or .svg).", show_default=False, callback=_check_picture
    ),
]


def parse_words(value: str | None, *, option: str = "--words") -> tuple[str, ...] | None:
    """Read the words of an option: a list ``a,b,c``, or a file if the value looks like a path."""
    from elmo.errors import DataError
    from elmo.text.lines import read_lines

    if value is None:
        return None
    path = Path(value)
    if "," not in value and (path.suffix or "/" in value or path.is_file()):
        if not path.is_file():
            raise DataError(f"{value[:200]}: no such file; pass words as a file or as a,b,c")
        listed = [line.text.strip() for line in read_lines(path)]
    else:
        listed = [word.strip() for word in value.split(",")]
    words = tuple(dict.fromkeys(word for word in listed if word))
    if not words:
        raise DataError(f"{option} {value[:80]!r}: expected words, found none")
    return words
