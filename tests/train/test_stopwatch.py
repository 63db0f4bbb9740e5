"""Times of a run: they grow, leave pauses out, and forget what was done after the last checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from elmo import OutputError
from elmo.train.log import LogEntry, Stopwatch, read_times


def tell(folder: Path, *steps: int) -> dict[int, float]:
    watch = Stopwatch(folder)
    for step in steps:
        watch(LogEntry(step, 640))
    return read_times(folder / "times.jsonl")


def test_every_step_has_one_time_and_they_grow(tmp_path: Path) -> None:
    times = tell(tmp_path, 10, 20, 20, 30)
    assert list(times) == [10, 20, 30]
    assert (tmp_path / "times.jsonl").read_text().count("\n") == 3
    assert 0 <= times[10] <= times[20] <= times[30]


def test_a_run_that_goes_on_counts_from_its_last_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "times.jsonl").write_text(
        '{"step": 10, "seconds": 100.0}\n{"step": 20, "seconds": 1e6}\n{"step": 3'
    )
    times = tell(tmp_path, 20, 30)
    assert list(times) == [10, 20, 30]
    assert 100 <= times[20] <= times[30] < 1e6


def test_times_that_are_damaged_do_not_stop_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "times.jsonl").write_text("damaged\n")
    with caplog.at_level(logging.WARNING, logger="elmo"):
        assert list(tell(tmp_path, 20)) == [20]
    assert "times.jsonl, line 1" in caplog.text


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"times\.jsonl: cannot be written"):
        tell(tmp_path / "nowhere", 10)
