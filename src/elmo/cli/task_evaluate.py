"""``elmo task evaluate``: score a task model on labeled files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from elmo.cli.console import logger
from elmo.cli.generate import options_from
from elmo.cli.options import AsJson, examples
from elmo.cli.task_options import DATA, FLAGS, METAVARS, Bilm, Cache, TaskFile, is_bar_shown, score_lines
from elmo.text.display import one_line

EXAMPLES = examples(
    "elmo task evaluate ner.safetensors dev.conll",
    "elmo task evaluate ner.safetensors dev.conll --out predictions.conll --json",
)


@options_from(
    "elmo.tasks.run:evaluate",
    skip=("model", "cache", "show_progress"),
    panels={"Data": DATA, "Cache": ("no_cache", "cache_limit")},
    flags=FLAGS,
    metavars={**METAVARS, "out": "FILE", "cache_limit": "GB"},
    minimums={"cache_limit": 0.0},
)
def command(
    context: typer.Context,
    task_model: TaskFile,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Labeled files, plain or compressed.", show_default=False)
    ],
    *,
    model: Bilm = None,
    cache: Cache = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Score a task model on labeled files."""
    from elmo.tasks.run import evaluate

    with context.obj.show_log("elmo.tasks.features.store"):
        result = evaluate(
            task_model, files, model=model, cache=cache, show_progress=is_bar_shown(context.obj), **options
        )
    if as_json:
        values = {
            "model": str(task_model),
            "kind": result.kind,
            "files": list(files),
            **result.counts,
            "left_out": dict(result.left_out),
            "scores": result.scores,
        }
        print(json.dumps(values))
    else:
        lines = [f"{name:20}{n:>9,}" for name, n in result.counts.items()] + score_lines(result.scores)
        print("\n".join(map(one_line, lines)))
    if options["out"] is not None:
        logger.info("wrote %s", Path(options["out"]))
