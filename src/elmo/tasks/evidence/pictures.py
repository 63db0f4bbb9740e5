"""Evidence and a folder in, its pictures out; without matplotlib, the names of those that were left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elmo.errors import MissingExtraError
from elmo.tasks.evidence.tables import Evidence, Mix

CURVES, MIXES, GAINS = "sample-efficiency.png", "mixes.png", "gains.png"
_DRAWN = (("input", ("input", "both")), ("output", ("output", "both")))  # a place, and runs to take it from


def draw_pictures(evidence: Evidence, folder: Path) -> tuple[list[str], list[str]]:
    """Names of the pictures that were drawn, and of those that were not because matplotlib is missing."""
    drawn: list[str] = []
    left_out: list[str] = []
    for name, draw in _pictures(evidence).items():
        try:
            draw(folder / name)
            drawn.append(name)
        except MissingExtraError:
            left_out.append(name)
    return drawn, left_out


def _pictures(evidence: Evidence) -> dict[str, Callable[[Path], None]]:
    """What there is to draw."""
    scores = {one.task: one.score for one in evidence.tasks}
    found: dict[str, Callable[[Path], None]] = {}

    def curves(path: Path) -> None:
        from elmo.tasks.evidence.curve_picture import draw_curves

        draw_curves(evidence.curves, path, scores=scores)

    def gains(path: Path) -> None:
        from elmo.tasks.evidence.gains_picture import draw_gains

        draw_gains(next(table for table in evidence.tables if table.number == 1), path, scores=scores)

    def mixes(path: Path) -> None:
        from elmo.tasks.mix_picture import MAX_COLUMNS, LearnedMix, draw_mixes

        chosen = [one for one in _chosen(evidence) if one.place == "input"][:MAX_COLUMNS]
        chosen += [one for one in _chosen(evidence) if one.place == "output"][:MAX_COLUMNS]
        draw_mixes([LearnedMix(one.task, one.place, one.shares, one.gamma) for one in chosen], path)

    if evidence.curves:
        found[CURVES] = curves
    if any(table.number == 1 for table in evidence.tables):
        found[GAINS] = gains
    if _chosen(evidence):
        found[MIXES] = mixes
    return found


def _chosen(evidence: Evidence) -> list[Mix]:
    """One mix for each task and place."""
    found = []
    for task in evidence.tasks:
        for place, conditions in _DRAWN:
            mixes = {
                mix.condition: mix for mix in evidence.mixes if (mix.task, mix.place) == (task.task, place)
            }
            found += [mixes[name] for name in conditions if name in mixes][:1]
    return found
