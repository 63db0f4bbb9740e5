"""``elmo convert``: convert a model between file formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.generate import options_from

EXAMPLES = opt.examples(
    "elmo convert en half --dtype float16",
    "elmo convert path/to/model for-allennlp --to hdf5",
    "elmo convert en web --to onnx",
)


@options_from("elmo.formats.pretrained:convert")
def command(
    model: opt.ModelArgument,
    out: Annotated[Path, opt.argument(metavar="OUT", help="Folder to create.")],
    **options: Any,
) -> None:
    """Convert a model of any published format to elmo's own format, to AllenNLP's or to ONNX."""
    from elmo.formats import convert

    convert(model, out, **options)
    logger.info("wrote %s", out)
