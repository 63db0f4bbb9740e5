"""``elmo curves``: training runs in, a picture of them and a table of their figures out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.options import AsJson, examples
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.plots.training import Figures

EXAMPLES = examples(
    "elmo curves first",
    "elmo curves first second.training --out both.svg --against steps",
    "elmo curves second.training/log.jsonl --smooth 5 --json",
)


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Folders MODEL.training, models beside theirs, or files log.jsonl.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .png, .pdf or .svg file.")] = Path(
        "curves.png"
    ),
    against: Annotated[
        Literal["tokens", "hours", "steps"], typer.Option(help="What runs from left to right.")
    ] = "tokens",
    smooth: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Reports that a point of the loss is a mean of.",
            show_default="a fiftieth of them",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw training loss and held-out perplexity of one or more runs, finished or not."""
    from elmo.plots.figure import check
    from elmo.plots.training import draw_curves, figures, with_entries

    check(out)
    found = with_entries(runs)
    draw_curves(found, out, against=against, smooth=smooth)
    stand = [figures(run, smooth) for run in found]
    if as_json:
        print(json.dumps([asdict(one) for one in stand]))
    else:
        print("\n".join(_lines(stand)))
    logger.info("%s: written", out)


def _lines(stand: list[Figures]) -> list[str]:
    """A table: a line for each run, names on the left, numbers below one another."""
    from elmo.plots.training import perplexity_text, short_count
    from elmo.text.display import text_width

    def told(value: float | None) -> str:
        return "-" if value is None else perplexity_text(value)

    rows = [["run", "step", "tokens", "epoch", "loss", "forward", "backward", "best", "at step"]]
    for one in stand:
        steps = f"{one.step:,}" + (f" of {one.n_windows:,}" if one.n_windows else "")
        loss = "-" if one.loss is None else f"{one.loss:.3f}"
        best = one.best
        where = [one_line(one.run), steps, short_count(one.tokens), str(one.epoch)]
        last = [loss, told(one.heldout_forward), told(one.heldout_backward)]
        rows.append([*where, *last, told(best.heldout if best else None), f"{best.step:,}" if best else "-"])
    sizes = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        numbers = [cell.rjust(size) for cell, size in zip(rest, sizes[1:], strict=True)]
        lines.append("  ".join([first + " " * (sizes[0] - text_width(first)), *numbers]))
    return lines
