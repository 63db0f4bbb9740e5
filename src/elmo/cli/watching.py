"""How far a training run came, in; log lines, and TensorBoard's files on request, out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.cli.report import logger

if TYPE_CHECKING:
    from elmo.cli.report import Report as Reporter
    from elmo.train.draft import BuildProgress
    from elmo.train.loop import Report


def watching(reporter: Reporter, out: Path, *, has_tensorboard: bool) -> dict[str, Any]:
    """Who is told how far the run is."""
    told: list[Any] = [] if reporter.is_quiet else [_Told()]
    if has_tensorboard:
        from elmo.train.run_folder import RunFolder
        from elmo.train.tensorboard import TensorBoard

        told.append(TensorBoard(RunFolder(out).path / "tensorboard"))

    def tell(report: Report) -> None:
        for each in told:
            each(report)

    return {"on_report": tell, "on_progress": None if reporter.is_quiet else _Read()}


class _Read:
    """A line now and then while the corpus is built."""

    EVERY = 10.0  # seconds

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: BuildProgress) -> None:
        if time.monotonic() - self._last < self.EVERY:
            return
        self._last = time.monotonic()
        share = f"{progress.done / progress.total:.0%}, " if progress.total else ""
        doing = {"read": "reading the text", "write": "writing the corpus"}[progress.step]
        logger.info(
            f"{doing}: {share}{progress.n_sentences:,} sentences, {progress.n_tokens:,} tokens",
            extra={"stage": progress.step, "tokens": progress.n_tokens, "sentences": progress.n_sentences},
        )


class _Told:
    """A line for each report: loss or perplexity, speed, time left."""

    def __init__(self) -> None:
        self._begin: tuple[float, int] | None = None  # when, and at which step, this process began

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if self._begin is None:
            self._begin = (now, report.step)
        fields: dict[str, Any] = {"step": report.step, "steps": report.n_windows, "epoch": report.epoch}
        heldout = {
            name: value
            for name in ("heldout_forward", "heldout_backward")
            if (value := getattr(report, name)) is not None
        }
        if heldout:
            fields |= heldout
            told = "held-out perplexity " + " / ".join(f"{value:,.1f}" for value in heldout.values())
        else:
            fields["loss"] = report.loss
            told = f"loss {report.loss:.3f}"
        steps, seconds = report.step - self._begin[1], now - self._begin[0]
        if steps and seconds:
            rate = steps * report.n_tokens / seconds
            left = (report.n_windows - report.step) * seconds / steps
            fields |= {"tokens_per_second": round(rate, 1), "seconds_left": round(left)}
            told += f", {rate:,.0f} tokens/s, {_time(left)} left"
        logger.info(f"step {report.step:,} of {report.n_windows:,}: {told}", extra=fields)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
