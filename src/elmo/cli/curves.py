"""``elmo curves``: plot training runs, and print a table of their results."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli.console import logger
from elmo.cli.generate import options_from
from elmo.cli.options import AsJson, examples
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.plots.training import RunSummary

EXAMPLES = examples(
    "elmo curves first",
    "elmo curves first second.training --out both.svg --against steps",
    "elmo curves second.training/log.jsonl --smooth 5 --json",
)


@options_from("elmo.plots.training:draw_curves", minimums={"smooth": 1})
def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Folders MODEL.training, models next to them, or log.jsonl files.", show_default=False
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Picture to write: .png, .pdf or .svg.")] = Path(
        "curves.png"
    ),
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Plot training loss and held-out perplexity of one or more runs, finished or not."""
    from elmo.plots.figure import check_picture
    from elmo.plots.training import draw_curves, read_nonempty, summarize

    check_picture(out)
    logs = read_nonempty(runs)
    draw_curves(logs, out, **options)
    summaries = [summarize(run, options["smooth"]) for run in logs]
    if as_json:
        print(json.dumps([asdict(summary) for summary in summaries]))
    else:
        print("\n".join(_format_table(summaries)))
    logger.info("wrote %s", out)


def _format_table(summaries: list[RunSummary]) -> list[str]:
    """Format one line per run, names on the left, numbers aligned on the right."""
    from elmo.plots.training import format_perplexity, format_short
    from elmo.text.display import text_width

    def cell(value: float | None) -> str:
        return "-" if value is None else format_perplexity(value)

    rows = [["run", "step", "tokens", "epoch", "loss", "forward", "backward", "best", "at step"]]
    for run in summaries:
        steps = f"{run.step:,}" + (f" of {run.n_steps:,}" if run.n_steps else "")
        loss = "-" if run.loss is None else f"{run.loss:.3f}"
        best, best_step = (run.best.heldout, f"{run.best.step:,}") if run.best else (None, "-")
        position = [one_line(run.run), steps, format_short(run.tokens), str(run.epoch), loss]
        rows.append([*position, cell(run.heldout_forward), cell(run.heldout_backward), cell(best), best_step])
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        aligned = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name + " " * (widths[0] - text_width(name)), *aligned]))
    return lines
