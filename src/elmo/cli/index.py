"""``elmo index``: build a searchable index of the usages in a corpus."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.console import UsageProgress, describe_resume, logger, show_progress
from elmo.cli.generate import options_from

EXAMPLES = opt.examples(
    "elmo index corpus.txt --out usages",
    "elmo index corpus.txt --words bank,river --out few",
    "elmo index corpus.txt more/*.txt --limit 100 --out sample",
    "elmo index corpus.txt --workers 2 --out fast",
    "elmo index corpus.txt --out large --to lance",
)


@options_from(
    "elmo.lexicon.indexing:IndexJob",
    skip=("inputs", "out", "words", "layers", "shard_tokens"),
    flags={"input_format": "--format"},
    minimums={"limit": 1, "seed": 0, "workers": 1},
)
def command(
    context: typer.Context,
    inputs: opt.Inputs,
    *,
    out: Annotated[Path, opt.option(metavar="FOLDER", help="Folder for the index.")],
    model: opt.Model = None,
    words: opt.Words = None,
    layers: opt.OneVector = "sense",
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Build a searchable index of the usages in a corpus: their positions and vectors.

    If the command is interrupted, run it again: it resumes after the last complete shard and writes the same
    bytes as an uninterrupted run.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.index import SHARDS
    from elmo.lexicon.indexing import IndexJob, build_index, is_complete

    job = IndexJob(
        inputs=tuple(inputs), out=out, words=opt.parse_words(words), layers=opt.parse_layers(layers), **options
    )
    job.embed_job().files()  # reports a missing file before a large model is loaded
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    context.obj.after_interrupt = partial(describe_resume, out / SHARDS, restart=job.restart)
    if job.restart and is_complete(out):
        context.obj.after_interrupt = "; the old index is unchanged"
    second_step = "approximate index" if job.to is None else "Lance table"
    graph_progress = UsageProgress(second_step, is_quiet=context.obj.is_quiet)
    with show_progress(context.obj, n_sentences=None, is_stdout_free=True) as show:
        index = build_index(job, elmo, on_progress=show, on_graph_progress=graph_progress)
    if not len(index):
        logger.warning("%s: found no usages in %s tokens", out, f"{index.n_tokens:,}")
    logger.info(
        "%s: %s usages of %s words in %s tokens",
        out, f"{len(index):,}", f"{index.n_words:,}", f"{index.n_tokens:,}",
        extra={"usages": len(index), "words": index.n_words, "tokens": index.n_tokens},
    )  # fmt: skip
