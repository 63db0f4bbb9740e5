"""Options and output that the commands of ``elmo task`` share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elmo.cli.console import Console

KINDS = "tagging, classification, entailment, similarity, answers, roles or coreference"
FLAGS = {"column": ("--column", "-c"), "file_format": "--format", "header": "--header/--no-header"}
METAVARS = {"also": "MODEL", "column": "NAME|N", "text_column": "NAME|N", "file_format": "FORMAT", "tokenizer": "NAME"}
DATA = ("column", "text_column", "file_format", "header", "separator", "tokenizer")

TaskFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model file written by 'elmo task train'.", show_default=False)
]
# no environment variable ELMO_MODEL here: a task model refers to its own biLM
Bilm = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help="The biLM, if it is not at the location stored in the model file.",
        show_default=False,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="ELMO_CACHE",
        metavar="FOLDER",
        help="Folder that keeps computed layers.",
        show_default="elmo/layers in the user's cache folder",
        rich_help_panel="Cache",
    ),
]


def is_bar_shown(report: Console) -> bool:
    """Whether to show progress bars: on a terminal, in text mode, and not with --quiet."""
    return not (report.is_quiet or report.is_json) and sys.stderr.isatty()


def score_lines(scores: Mapping[str, float]) -> list[str]:
    """Return a line for each score."""
    return [f"{name.replace('_', ' '):20}{format_score(name, value):>9}" for name, value in scores.items()]


def format_score(name: str, value: float) -> str:
    """Format a score as a percentage, or an error as a plain number."""
    return f"{value:.4f}" if name.endswith("_error") else f"{value:.2%}"
