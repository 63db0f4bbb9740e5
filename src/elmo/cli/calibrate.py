"""``elmo calibrate``: add similarity statistics to a model."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.generate import options_from

EXAMPLES = opt.examples(
    "elmo calibrate path/to/model articles.txt",
    "elmo calibrate en articles.txt --out calibrated-model",
    "elmo compare bank 'the bank' 'a bank' --model calibrated-model",
)


@options_from(
    "elmo.embed.calibration:calibrate_model",
    skip=("tokenizer", "device", "show_progress"),
    metavars={"out": "FOLDER"},
    minimums={"max_tokens": 1},
)
def command(
    model: opt.ModelArgument,
    text: Annotated[
        list[str], opt.argument(metavar="TEXT", help="Text on many subjects: files, globs or folders; - is stdin.")
    ],
    *,
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Add statistics to a model that show how similar random usages of the same word are.

    elmo compare uses them to rank similarities: "more alike than 93% of pairs of uses of 'bank'".
    """
    from elmo.embed.calibration import calibrate_model

    folder, statistics = calibrate_model(
        model, text, tokenizer=tokenizer, device=device, show_progress=sys.stderr.isatty(), **options
    )
    logger.info("added similarity statistics of %s words to %s", f"{len(statistics.words):,}", folder)
