"""``elmo warm``: add a warm state to a model."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.generate import options_from

EXAMPLES = opt.examples(
    "elmo warm path/to/model corpus.txt",
    "elmo warm en corpus.txt --out warm-model",
    "elmo embed corpus.txt --model warm-model --start warm --out warm.h5",
)


@options_from(
    "elmo.embed.warm:add_warm_state", skip=("tokenizer", "device", "show_progress"), metavars={"out": "FOLDER"}
)
def command(
    model: opt.ModelArgument,
    text: Annotated[list[str], opt.argument(metavar="TEXT", help="Running text: files, globs or folders; - is stdin.")],
    *,
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Add a warm state, computed from running text, to a model, for --start warm.

    The warm state is the mean state between sentences. Only the first 2,048 sentences are read.
    """
    from elmo.embed.warm import add_warm_state

    folder = add_warm_state(
        model, text, tokenizer=tokenizer, device=device, show_progress=sys.stderr.isatty(), **options
    )
    logger.info("added a warm state to %s; use it with --start warm", folder)
