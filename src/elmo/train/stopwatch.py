"""Reports of a run in, ``times.jsonl`` out: the seconds that training took up to each, pauses left out.

They have a file of their own because ``log.jsonl`` is the same to the byte however often a run was stopped,
and no clock is.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.embed.atomic import cannot_write, replacing
from elmo.errors import FormatError
from elmo.train.log import TIMES, read_times

if TYPE_CHECKING:
    from elmo.train.log import Entry
    from elmo.train.loop import Report

_log = logging.getLogger(__name__)


class Stopwatch:
    """Give it to a run as ``on_report``; it runs from when it is made."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / TIMES
        self._begin = time.monotonic()
        self._before: float | None = None  # what the processes before this one took
        self._step = 0  # the last that was written

    def __call__(self, report: Report | Entry) -> None:
        """Write the time of a report; that of another report of the same step stands already."""
        try:
            if self._before is None:
                self._before = self._take_up(report.step)
            if report.step <= self._step:
                return
            self._step = report.step
            seconds = self._before + time.monotonic() - self._begin
            with self._path.open("a", encoding="ascii") as file:
                file.write(json.dumps({"step": report.step, "seconds": round(seconds, 3)}) + "\n")
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _take_up(self, step: int) -> float:
        """What was spent before ``step``; what was written after the checkpoint that led here is dropped."""
        try:
            times = read_times(self._path) if self._path.exists() else {}
        except FormatError as error:  # no reason to stop a run
            _log.warning("%s; its times are counted anew", error)
            times = {}
        kept = {earlier: seconds for earlier, seconds in times.items() if earlier < step}
        lines = [
            json.dumps({"step": earlier, "seconds": seconds}) + "\n" for earlier, seconds in kept.items()
        ]
        with replacing(self._path) as part:
            part.write_text("".join(lines), encoding="ascii")
        return max(kept.values(), default=0.0)
