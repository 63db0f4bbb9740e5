"""``elmo warm``: a model and running text in, the model with a state for sentences to start from out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from elmo.cli.options import Device, Errors, ModelArgument, Tokenizer, examples
from elmo.cli.report import logger
from elmo.errors import OutputError

EXAMPLES = examples(
    "elmo warm path/to/model corpus.txt",
    "elmo warm en corpus.txt --out warm-model",
    "elmo embed corpus.txt --model warm-model --start warm --out warm.h5",
)


def command(
    model: ModelArgument,
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT", help="Running text: files, globs, folders; - is stdin.", show_default=False
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A new folder for a copy in elmo's own format.",
            show_default="MODEL itself, or NAME-warm here when MODEL is of another format",
        ),
    ] = None,
    split: Annotated[bool, typer.Option("--split", help="Split lines into sentences.")] = False,
    errors: Errors = "strict",
    tokenizer: Tokenizer = None,
    device: Device = "cpu",
) -> None:
    """Read running text once and store its mean state with the model, for --start warm."""
    from elmo.embed.elmo import Elmo
    from elmo.formats import native
    from elmo.text.reader import read_sentences

    folder = Path(model)
    if out is None and not native.can_read(folder):
        # other formats have no place for a state: a copy in our own gets it
        out = Path(f"{folder.name.split('.')[0] or 'model'}-warm")
    if out is not None and out.exists():
        raise OutputError(f"{out}: is there already; give a new folder")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    sentences = read_sentences(text, tokenizer=elmo.tokenizer, split=split, errors=errors)
    warm = elmo.warm_up((sentence.tokens for sentence in sentences), show_progress=sys.stderr.isatty())
    if out is None:
        native.add_warm(folder, warm)
    else:
        elmo.save_pretrained(out)
    logger.info("%s: has a warm state now; use it with --start warm", out or folder)
