"""Options and arguments that several commands share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

if TYPE_CHECKING:
    from elmo.embed.encoding import LayerChoice

MODEL_HELP = "en or zh (bundled), a name listed by 'elmo models', a folder, an archive or a Hub id."
LAYERS = ("sense", "average", "top", "all", "concat")

# Declare a parameter whose default is not shown in the help, because it is None or missing.
argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)


def examples(*commands: str) -> str:
    """Return the section of a command's help that lists examples; tests run every example."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)  # \b: keeps the line breaks


def check_layers(value: str) -> str:
    """Check the value of ``--layers``."""
    if value in LAYERS or (value.isascii() and value.isdigit() and len(value) < 4):
        return value
    raise typer.BadParameter(f"expected {', '.join(LAYERS)} or a layer number, found {value[:40]!r}")


def _check_one_vector(value: str) -> str:
    if value == "all":
        raise typer.BadParameter(
            "all gives several vectors per word, but this command needs one; use concat to join the layers"
        )
    return check_layers(value)


def parse_layers(value: str) -> LayerChoice | int:
    """Convert the value of ``--layers`` to a layer number or to the name of a layer choice."""
    return int(value) if value.isdigit() else cast("LayerChoice", value)


_INPUTS = argument(metavar="INPUT", help="Files, globs or folders, plain or compressed; - is stdin.")
Inputs = Annotated[list[str], _INPUTS]
OptionalInputs = Annotated[list[str] | None, _INPUTS]
Texts = Annotated[list[str], argument(metavar="TEXT", help=_INPUTS.help)]
Word = Annotated[str, argument(metavar="WORD", help="A word, or a phrase such as 'New York'.")]
MarkedSentences = Annotated[
    list[str], argument(metavar="SENTENCE", help="Sentences in which the word is marked like [[this]].")
]
Model = Annotated[str | None, option("--model", "-m", envvar="ELMO_MODEL", metavar="MODEL", help=MODEL_HELP)]
ModelArgument = Annotated[str, argument(metavar="MODEL", help=MODEL_HELP)]
Layers = Annotated[
    str,
    typer.Option(
        metavar="sense|average|top|all|concat|0..",
        callback=check_layers,
        help="Vectors to use: sense (for comparing usages), the average of all layers, the top layer, all layers "
        "separately or concatenated, or a layer number.",
    ),
]
OneVector = Annotated[
    str,
    typer.Option(
        "--layers",
        metavar="sense|average|top|concat|0..",
        callback=_check_one_vector,
        help="Vectors to use: sense (for comparing usages), the average of all layers, the top layer, all layers "
        "concatenated, or a layer number.",
    ),
]
InputFormat = Annotated[
    Literal["text", "tokens", "conllu"],
    typer.Option(
        "--format",
        help="Format of the input: raw text or tokens separated by spaces, with one sentence per line, or CoNLL-U.",
    ),
]
Split = Annotated[
    bool | None,
    typer.Option(
        "--split/--no-split", help="Split lines of text into sentences.", show_default="if they are paragraphs"
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="en|zh|de|…|whitespace|characters|spacy:xx",
        help="Tokenizer for raw text.",
        show_default="the tokenizer of the model, or en",
    ),
]
Start = Annotated[
    Literal["zero", "warm"],
    typer.Option(help="LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'."),
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda|mps|xpu", help="Device to compute on.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "int8"],
    typer.Option(help="Precision of the network; lower precision is faster on processors that support it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Errors = Annotated[
    Literal["strict", "replace", "skip", "surrogateescape"],
    typer.Option(
        help="What to do with bytes that are not UTF-8: stop, replace them, skip the line, or keep them as "
        "surrogate escapes."
    ),
]
Words = Annotated[
    str | None,
    option(
        metavar="FILE|a,b,c", help="Use only these words: a file with one word per line, or a comma-separated list."
    ),
]
ResultFile = Annotated[
    Path | None, option("--out", metavar="FILE.tsv", help="Also write the results to a .tsv or .json file.")
]
ScoreFile = Annotated[Path | None, option("--out", metavar="FILE", help="Write scores to a .tsv or .jsonl file.")]
By = Annotated[
    Literal["layers", "substitutes"],
    typer.Option(help="Represent each usage by the vector of the word (layers) or by predicted substitutes."),
]
AsWritten = Annotated[
    bool,
    typer.Option(
        "--as-written",
        help="Embed inflected and capitalized forms as written, instead of replacing them with the word.",
    ),
]


def check_picture_option(path: Path | None) -> Path | None:
    """Check before the work starts that a picture can be written to this file."""
    if path is not None:
        from elmo.plots.figure import check_picture

        check_picture(path)
    return path


Picture = Annotated[
    Path | None,
    option(metavar="FILE.png", help="Also draw a figure (.png, .pdf or .svg).", callback=check_picture_option),
]


def parse_words(value: str | None, *, option: str = "--words") -> tuple[str, ...] | None:
    """Return the words of an option: a list such as ``a,b,c``, or the lines of a file."""
    from elmo.errors import DataError
    from elmo.text.lines import read_lines

    if value is None:
        return None
    path = Path(value)
    if "," not in value and (path.suffix or "/" in value or path.is_file()):
        if not path.is_file():
            raise DataError(f"{value[:200]}: no such file; expected a file of words or a list such as a,b,c")
        listed = [line.text.strip() for line in read_lines(path)]
    else:
        listed = [word.strip() for word in value.split(",")]
    words = tuple(dict.fromkeys(word for word in listed if word))
    if not words:
        raise DataError(f"{option} {value[:80]!r}: expected words, found none")
    return words
