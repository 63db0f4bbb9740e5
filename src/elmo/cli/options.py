"""Options that several commands have, each declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

if TYPE_CHECKING:
    from elmo.embed.result import LayerChoice

MODEL_HELP = "en or zh (bundled), a folder, an archive or a Hub id; any published format."
LAYERS = ("average", "top", "all", "concat")


def examples(*commands: str) -> str:
    """The end of a command's help; tests run every line of it."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)  # \b: keep these lines


def _layers(value: str) -> str:
    if value in LAYERS or (value.isascii() and value.isdigit() and len(value) < 4):
        return value
    raise typer.BadParameter(f"expected {', '.join(LAYERS)} or a layer's number, found {value[:40]!r}")


def layer_choice(value: str) -> LayerChoice | int:
    """What ``--layers`` stands for."""
    return int(value) if value.isdigit() else cast("LayerChoice", value)


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files, globs or folders, compressed or not; - is stdin.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", envvar="ELMO_MODEL", metavar="MODEL", help=MODEL_HELP, show_default=False),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
Layers = Annotated[
    str,
    typer.Option(
        metavar="average|top|all|concat|0..", callback=_layers, help="Which layers' vectors to take."
    ),
]


def _one_layer(value: str) -> str:
    if value == "all":
        raise typer.BadParameter("a word has one vector here: all gives several, concat joins them")
    return _layers(value)


OneVector = Annotated[
    str,
    typer.Option(
        "--layers",
        metavar="average|top|concat|0..",
        callback=_one_layer,
        help="Which layers' vector to take.",
    ),
]
InputFormat = Annotated[
    Literal["text", "tokens", "conllu"],
    typer.Option("--format", help="A sentence a line, tokens parted by spaces, or CoNLL-U."),
]
Split = Annotated[bool, typer.Option("--split", help="Split lines of text into sentences.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="en|zh|whitespace|spacy:xx",
        help="How text is cut into tokens.",
        show_default="the model's own, else en",
    ),
]
Start = Annotated[
    Literal["zero", "warm"], typer.Option(help="What the LSTMs remember when a sentence begins.")
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda|mps", help="Where to compute.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "int8"],
    typer.Option(help="Of the network: rougher is faster where the processor has units for it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Errors = Annotated[
    Literal["strict", "replace", "skip", "surrogateescape"],
    typer.Option(help="What to do with bytes that are not UTF-8."),
]
