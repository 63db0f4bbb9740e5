"""``elmo sharpen``: transform the vectors of a model so that word senses separate better."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger

_MAX_CLIPPED = 1e-3  # share of clipped values above which the change of the probabilities is noticeable
EXAMPLES = opt.examples(
    "elmo sharpen en articles.txt --out sharp",
    "elmo compare bank 'the bank of the river' 'the bank has money' --model sharp",
    "elmo convert sharp sharp-half --dtype float16",
)


def command(
    model: opt.ModelArgument,
    text: Annotated[
        list[str],
        opt.argument(metavar="TEXT", help="Running text on many subjects: files, globs or folders; - is stdin."),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the model.")],
    input_format: opt.InputFormat = "text",
    split: opt.Split = None,
    errors: opt.Errors = "strict",
    tokenizer: opt.Tokenizer = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Random seed for choosing words and usages.")
    ] = 0,
    device: opt.Device = "cpu",
) -> None:
    """Transform the vectors of a model so that their similarities separate word senses better.

    The sentences of the text must be in their original order. About 300,000 tokens are needed, and at most two
    million are read, which takes a minute or two with the bundled models. Predictions stay the same, except where
    the original model clips its states. Task models and indexes of the original model cannot be used with the new
    model.
    """
    from elmo.embed.elmo import Elmo
    from elmo.formats import native
    from elmo.lexicon.sharpen import sharpen_model
    from elmo.storage.atomic import check_output_folder
    from elmo.text.reader import read_sentences, require_words

    check_output_folder(out)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    sentences = read_sentences(text, tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors)
    by_file = groupby(require_words(sentences, inputs=text), key=lambda sentence: sentence.path)
    texts = ((sentence.tokens for sentence in file) for _, file in by_file)
    result = sharpen_model(elmo, texts, seed=seed, show_progress=sys.stderr.isatty())
    native.write(result.model, out)
    if result.clipped > _MAX_CLIPPED:
        logger.warning(
            "predictions differ slightly: the original model clips %.2g%% of its state values, the new model none",
            100 * result.clipped,
        )
    if result.after <= result.before:
        logger.warning(
            "the vectors did not improve; check that the text is in its original order and covers many subjects"
        )
    logger.info(
        "wrote %s: for held-out words, a usage is more similar to a nearby usage than to a distant usage of the same "
        "word in %.0f%% of cases (before: %.0f%%)",
        out,
        100 * result.after,
        100 * result.before,
    )
