"""``elmo index``: text in, a folder with the usages of its words and their vectors out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from elmo.cli.options import (
    Device,
    Errors,
    InputFormat,
    Inputs,
    Model,
    NowAndThen,
    OneVector,
    Split,
    Start,
    Tokenizer,
    Words,
    examples,
    layer_choice,
    word_list,
)
from elmo.cli.report import logger

EXAMPLES = examples(
    "elmo index corpus.txt --out usages",
    "elmo index corpus.txt --words bank,river --out few",
    "elmo index corpus.txt more/*.txt --limit 100 --out sample",
)


def command(
    context: typer.Context,
    inputs: Inputs,
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the index goes.", show_default=False)],
    model: Model = None,
    words: Words = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Usages of one word; of more, a fair sample.", show_default="all"
        ),
    ] = None,
    layers: OneVector = "average",
    input_format: InputFormat = "text",
    tokenizer: Tokenizer = None,
    split: Split = False,
    errors: Errors = "strict",
    dtype: Annotated[
        Literal["float16", "float32"], typer.Option(help="Type of the vectors on disk.")
    ] = "float16",
    start: Start = "zero",
    keep_case: Annotated[bool, typer.Option("--keep-case", help="Bank is another word than bank.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample.")] = 0,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Make an approximate index, too, for many millions.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew; a whole index stays until the new one is whole.")
    ] = False,
    device: Device = "cpu",
) -> None:
    """Index a corpus: where each word stands, and its vector there.

    After Ctrl-C, a kill or a full disk, give the same command again: it goes on after its last whole part,
    to the same bytes as if it had never stopped.
    """
    from elmo.cli.report import shown, what_is_kept
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.build_index import IndexJob, build_index, is_whole
    from elmo.lexicon.index import SHARDS
    from elmo.text.reader import expand

    job = IndexJob(
        inputs=tuple(inputs), out=out, words=word_list(words), limit=limit, layers=layer_choice(layers),
        input_format=input_format, split=split, errors=errors, dtype=dtype, start=start,
        keep_case=keep_case, seed=seed, restart=restart,
    )  # fmt: skip
    expand(job.inputs)  # a typo is told before a large model is loaded
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    context.obj.after_interrupt = partial(what_is_kept, out / SHARDS, restart=restart)
    if restart and is_whole(out):
        context.obj.after_interrupt = "; the old index is as it was"
    with shown(context.obj, n_sentences=None, is_stdout_free=True) as show:
        index = build_index(job, elmo, on_progress=show)
    if approximate:
        from elmo.lexicon.neighbors import ApproximateIndex

        told = NowAndThen("approximate index", is_quiet=context.obj.is_quiet)
        ApproximateIndex.build(index, on_progress=lambda n_done: told(n_done, len(index)))
    if not len(index):
        logger.warning("%s: no usage was found in %s tokens", out, f"{index.n_tokens:,}")
    logger.info(
        "%s: %s usages of %s words in %s tokens",
        out, f"{len(index):,}", f"{index.n_words:,}", f"{index.n_tokens:,}",
        extra={"usages": len(index), "words": index.n_words, "tokens": index.n_tokens},
    )  # fmt: skip
