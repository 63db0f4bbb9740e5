"""``elmo convert``: convert a model between file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from elmo.cli.console import logger
from elmo.cli.generate import options_from
from elmo.cli.options import ModelArgument, examples

EXAMPLES = examples("elmo convert en half --dtype float16", "elmo convert path/to/model for-allennlp --to hdf5")


@options_from("elmo.formats.pretrained:convert")
def command(
    model: ModelArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to create.", show_default=False)],
    **options: Any,
) -> None:
    """Convert a model of any published format to elmo's own format, or to AllenNLP's."""
    from elmo.formats import convert

    convert(model, out, **options)
    logger.info("wrote %s", out)
