"""``elmo curves``: print a table of the results of training runs, and plot their curves."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.generate import is_set, options_from
from elmo.cli.results import print_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.plots.training import RunSummary

EXAMPLES = opt.examples(
    "elmo curves first",
    "elmo curves first --out curves.png",
    "elmo curves first second.training --out both.svg --against steps",
    "elmo curves second.training/log.jsonl --smooth 5 --json",
)


@options_from("elmo.plots.training:draw_curves", minimums={"smooth": 1})
def command(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        opt.argument(
            metavar="RUN", help="Training runs: folders MODEL.training, the model folders MODEL, or log.jsonl files."
        ),
    ],
    *,
    out: Annotated[Path | None, opt.option(metavar="FILE", help="Also draw a picture: .png, .pdf or .svg.")] = None,
    as_json: opt.AsJson = False,
    **options: Any,
) -> None:
    """Show the training loss and the held-out perplexity of runs, finished or not, and plot their curves."""
    from elmo.plots.figure import check_picture
    from elmo.plots.training import draw_curves, read_nonempty, summarize

    if out is not None:
        check_picture(out)
    elif is_set(context, "against"):
        raise typer.BadParameter("--against has no effect on the table; add --out FILE to draw a picture", ctx=context)
    logs = read_nonempty(runs)
    if out is not None:
        draw_curves(logs, out, **options)
    summaries = [summarize(run, options["smooth"]) for run in logs]
    print_results([asdict(summary) for summary in summaries], _format_table(summaries), as_json=as_json)
    if out is not None:
        logger.info("wrote %s", out)


def _format_table(summaries: list[RunSummary]) -> list[str]:
    """Return a table with one line per run: its name on the left, numbers aligned on the right."""
    from elmo.plots.training import format_perplexity, format_short
    from elmo.text.display import text_width

    def cell(value: float | None) -> str:
        return "-" if value is None else format_perplexity(value)

    rows = [["run", "step", "tokens", "epoch", "loss", "forward", "backward", "best", "at step"]]
    for run in summaries:
        steps = f"{run.step:,}" + (f" of {run.n_steps:,}" if run.n_steps else "")
        loss = "-" if run.loss is None else f"{run.loss:.3f}"
        best, best_step = (run.best.heldout, f"{run.best.step:,}") if run.best else (None, "-")
        position = [one_line(run.run), steps, format_short(run.tokens), f"{run.epoch:.4g}", loss]
        rows.append([*position, cell(run.heldout_forward), cell(run.heldout_backward), cell(best), best_step])
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *numbers in rows:
        aligned = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([name + " " * (widths[0] - text_width(name)), *aligned]))
    return lines
