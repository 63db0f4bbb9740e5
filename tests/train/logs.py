"""Write logs like those of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

DIRECTIONS = ("forward", "backward")


def lines(
    n_reports: int = 20, *, directions: tuple[str, ...] = DIRECTIONS, every: int = 10, floor: float = 4.0
) -> list[dict[str, Any]]:
    """Return log entries: a loss that falls from 9 to ``floor``, a perplexity after every fifth entry."""
    found: list[dict[str, Any]] = []
    for k in range(1, n_reports + 1):
        report = {"step": k * every, "n_steps": n_reports * every, "n_tokens": 640, "epoch": k // 8}
        loss = floor + (9 - floor) / k
        found.append({**report, "loss": loss})
        if k % 5 == 0 and directions:
            found.append({**report, **{f"heldout_{name}": math.exp(loss) for name in directions}})
    return found


def write_log(folder: Path, entries: list[dict[str, Any]] | None = None, *, tail: bytes = b"") -> Path:
    """Write a training folder with this log and ``tail`` at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(entry) + "\n" for entry in (lines() if entries is None else entries))
    (folder / "log.jsonl").write_bytes(text.encode("ascii") + tail)
    return folder


def write_times(folder: Path, seconds_a_step: float, entries: list[dict[str, Any]] | None = None) -> None:
    """Write ``times.jsonl`` next to the log."""
    steps = sorted({entry["step"] for entry in (lines() if entries is None else entries)})
    text = "".join(json.dumps({"step": step, "seconds": step * seconds_a_step}) + "\n" for step in steps)
    (folder / "times.jsonl").write_text(text, encoding="ascii")
