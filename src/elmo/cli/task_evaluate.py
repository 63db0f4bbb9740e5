"""``elmo task evaluate``: a model of a task and labelled examples in, its scores out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from elmo.cli.options import AsJson, Tokenizer, examples
from elmo.cli.report import logger, one_line
from elmo.cli.task_options import (
    Also,
    Bilm,
    Cache,
    CacheLimit,
    Column,
    FileFormat,
    Header,
    NoCache,
    Separator,
    TaskFile,
    TextColumn,
    counts,
    cutting,
    is_bar_shown,
    layer_cache,
    load_model,
    read,
    reader_options,
    remembered,
    score_lines,
)

EXAMPLES = examples(
    "elmo task evaluate ner.safetensors dev.conll",
    "elmo task evaluate ner.safetensors dev.conll --out predictions.conll --json",
)


def command(
    context: typer.Context,
    task_model: TaskFile,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Labelled examples, compressed or not.", show_default=False),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the predictions: .jsonl; .conll, .tsv or .json where the kind has it.",
            show_default=False,
        ),
    ] = None,
    model: Bilm = None,
    also: Also = None,
    column: Column = None,
    text_column: TextColumn = None,
    file_format: FileFormat = None,
    header: Header = None,
    separator: Separator = None,
    tokenizer: Tokenizer = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    cache_limit: CacheLimit = 20.0,
    as_json: AsJson = False,
) -> None:
    """Measure a model on examples whose answers are known."""
    from elmo.tasks.output import check_output, write_predictions
    from elmo.text.reader import expand

    expand(files)  # a typo is told before a large model is loaded
    found = load_model(
        task_model,
        bilm=model,
        also=also,
        kept=layer_cache(cache, has_none=no_cache, limit=cache_limit),
    )
    kind = found.task.kind
    if out is not None:
        check_output(out, kind, inputs=[*files, task_model])
    asked = reader_options(
        kind,
        column=column,
        text_column=text_column,
        file_format=file_format,
        header=header,
        separator=separator,
    )
    known = remembered(found)
    cut, _ = cutting(tokenizer or known.get("tokenizer"), lambda: found.sources.elmo)
    reading = read(kind, files, cut=cut, options={**known.get("options", {}), **asked})
    gold = reading.examples
    found.task.check(gold)
    with context.obj.showing("elmo.tasks.features.store"):
        predictions = found.predict(gold, show_progress=is_bar_shown(context.obj))
    scores = found.task.scores(gold, predictions)
    values = {
        "model": str(task_model),
        "kind": kind,
        "files": list(files),
        **counts(gold),
        "left_out": dict(reading.left_out),
        "scores": scores,
    }
    if as_json:
        print(json.dumps(values))
    else:
        lines = [f"{name:20}{n:>9,}" for name, n in counts(gold).items()] + score_lines(scores)
        print("\n".join(map(one_line, lines)))
    if out is not None:
        write_predictions(out, kind, examples=gold, predictions=predictions)
        logger.info("%s: written", out)
