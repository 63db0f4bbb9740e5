"""How far a job came, in; a bar on a terminal, or a log line now and then, out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from elmo.cli.report import Report, logger

if TYPE_CHECKING:
    from elmo.embed.job import Progress

EVERY = 10.0  # seconds between two log lines


class Show(Protocol):
    """Shows how far a job came."""

    def __call__(self, progress: Progress, /) -> None:
        """Called often; shows what is worth showing."""
        ...


@contextmanager
def shown(report: Report, *, n_sentences: int | None, is_stdout_free: bool) -> Iterator[Show | None]:
    """What to tell progress to, if anything; ``is_stdout_free``: no results go there."""
    is_bar = not report.is_json and sys.stderr.isatty() and (is_stdout_free or not sys.stdout.isatty())
    if report.is_quiet:
        yield None
    elif is_bar:
        with _bar(n_sentences) as show:
            yield show
    else:
        yield _Lines(n_sentences)


def what_is_kept(out: Path, *, restart: bool) -> str:
    """What to do after Ctrl-C of a job that writes ``out``: it goes on after its whole shards only."""
    from elmo.embed.manifest import read_manifest
    from elmo.embed.output_files import OutputFiles

    manifest = OutputFiles(out).manifest
    if not manifest.exists() or not read_manifest(manifest).shards:
        return "; nothing was kept yet: the same command begins anew"
    if restart:
        return "; without --restart it goes on after its last whole part"
    return "; give the same command again to go on after its last whole part"


class _Lines:
    """A log line every ``EVERY`` seconds."""

    def __init__(self, n_sentences: int | None) -> None:
        self._n_sentences = n_sentences
        self._rate = _Rate()
        self._last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        rate = self._rate(progress)
        if time.monotonic() - self._last < EVERY:
            return
        self._last = time.monotonic()
        of_all = "" if self._n_sentences is None else f" of {self._n_sentences:,}"
        done = f"{progress.sentences:,}{of_all} sentences, {progress.tokens:,} tokens, {rate:,.0f} tokens/s"
        logger.info(
            f"{progress.stage}: {done}",
            extra={
                "stage": progress.stage,
                "sentences": progress.sentences,
                "tokens": progress.tokens,
                "tokens_per_second": round(rate, 1),
                "all_sentences": self._n_sentences,
            },
        )


class _Rate:
    """Tokens a second, those of earlier runs not counted."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._before: int | None = None

    def __call__(self, progress: Progress) -> float:
        if self._before is None:
            self._before = progress.tokens if progress.kept else 0
        return (progress.tokens - self._before) / max(time.monotonic() - self._begin, 1e-9)


@contextmanager
def _bar(n_sentences: int | None) -> Iterator[Show]:
    from rich import progress as rich
    from rich.console import Console

    bar = rich.Progress(
        rich.TextColumn("{task.fields[stage]}"),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[done]}"),
        rich.TimeElapsedColumn() if n_sentences is None else rich.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results on stdout stay as they are
    )
    rate = _Rate()
    with bar:
        task = bar.add_task("", total=n_sentences, stage="", done="")

        def show(progress: Progress) -> None:
            done = f"{progress.sentences:,} sentences, {rate(progress):,.0f} tokens/s"
            bar.update(task, completed=progress.sentences, stage=progress.stage, done=done)

        yield show
