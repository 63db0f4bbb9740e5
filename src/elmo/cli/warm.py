"""``elmo warm``: add a warm state to a model."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from elmo.cli.console import logger
from elmo.cli.generate import options_from
from elmo.cli.options import Device, ModelArgument, Tokenizer, examples

EXAMPLES = examples(
    "elmo warm path/to/model corpus.txt",
    "elmo warm en corpus.txt --out warm-model",
    "elmo embed corpus.txt --model warm-model --start warm --out warm.h5",
)


@options_from(
    "elmo.embed.warm:add_warm_state", skip=("tokenizer", "device", "show_progress"), metavars={"out": "FOLDER"}
)
def command(
    model: ModelArgument,
    text: Annotated[
        list[str],
        typer.Argument(metavar="TEXT", help="Running text: files, globs or folders; - is stdin.", show_default=False),
    ],
    *,
    tokenizer: Tokenizer = None,
    device: Device = "cpu",
    **options: Any,
) -> None:
    """Read running text and store its mean state with the model, for --start warm."""
    from elmo.embed.warm import add_warm_state

    folder = add_warm_state(
        model, text, tokenizer=tokenizer, device=device, show_progress=sys.stderr.isatty(), **options
    )
    logger.info("added a warm state to %s; use it with --start warm", folder)
