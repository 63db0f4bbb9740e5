"""``elmo sharpen``: a model and running text in, the same language model with other vectors out."""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from elmo.cli.options import Device, Errors, InputFormat, ModelArgument, Split, Tokenizer, examples
from elmo.cli.console import logger

MUCH_CLIPPED = 1e-3  # share of numbers that were; more than that changes probabilities visibly
EXAMPLES = examples(
    "elmo sharpen en articles.txt --out sharp",
    "elmo compare bank 'the bank of the river' 'the bank has money' --model sharp",
    "elmo convert sharp sharp-half --dtype float16",
)


def command(
    model: ModelArgument,
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT",
            help="Running text of many subjects: files, globs, folders; - is stdin.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder for the model.")],
    input_format: InputFormat = "text",
    split: Split = False,
    errors: Errors = "strict",
    tokenizer: Tokenizer = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=2**63 - 1, help="Chooses words and their uses.")
    ] = 0,
    device: Device = "cpu",
) -> None:
    """Turn a model's vectors so that their angles tell the senses of a word apart.

    Of the text, a file or more in its order, the first two million tokens are read: by a model of the bundled
    size in a minute or two. Some 300,000 are needed. The model predicts what it did before, but for states
    that it clipped; only its vectors lie otherwise, so what was learned from the old ones has to be learned
    again.
    """
    from elmo.embed.elmo import Elmo
    from elmo.formats import native
    from elmo.lexicon.sharpen import sharpen
    from elmo.storage.atomic import check_output_folder
    from elmo.text.reader import read_sentences, require_words

    check_output_folder(out)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    sentences = read_sentences(
        text, tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors
    )
    by_file = groupby(require_words(sentences, inputs=text), key=lambda sentence: sentence.path)
    texts = ((sentence.tokens for sentence in some) for _, some in by_file)
    found = sharpen(elmo, texts, seed=seed, show_progress=sys.stderr.isatty())
    native.write(found.model, out)
    if found.clipped > MUCH_CLIPPED:
        logger.warning(
            "%.2g%% of its states' numbers were clipped, and no longer are: predictions differ a little",
            100 * found.clipped,
        )
    if found.after <= found.before:
        logger.warning("nothing was gained by it: is the text in its order, and of many subjects?")
    logger.info(
        "%s: of three uses of a word, the two near each other in the text have the nearer vectors in %.0f%% "
        "(before: %.0f%%), by words that were set aside",
        out,
        100 * found.after,
        100 * found.before,
    )
