"""``elmo convert``: a model of any published format in, a folder of another out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from elmo.cli.options import ModelArgument, examples
from elmo.cli.report import logger

EXAMPLES = examples(
    "elmo convert en half --dtype float16",
    "elmo convert path/to/model for-allennlp --to hdf5",
)


def command(
    model: ModelArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.", show_default=False)],
    to: Annotated[
        Literal["native", "hdf5"],
        typer.Option(help="elmo's own format, or what AllenNLP and bilm-tf read."),
    ] = "native",
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"], typer.Option(help="Precision of the weights in the file.")
    ] = "float32",
) -> None:
    """Write a model of any published format in elmo's own, or in AllenNLP's."""
    from elmo.formats.loading import convert

    convert(model, out, to=to, dtype=dtype)
    logger.info("%s: written", out)
