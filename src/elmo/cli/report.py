"""How far a job came, in; a bar on a terminal, or a log line now and then, out.

What happens, in; lines on stderr out: errors, log records and progress, as text or as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elmo.errors import ElmoError

if TYPE_CHECKING:
    from elmo.jobs.plan import Progress


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
    from elmo.jobs.manifest import OutputFiles, read_manifest

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


logger = logging.getLogger("elmo.cli")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Report:
    """Everything that one run of the command says beside its results."""

    def __init__(self) -> None:
        self.is_json = False
        self.is_verbose = False
        self.is_quiet = False
        # what to do after Ctrl-C, for the one line that says it came; a function finds out when it has come
        self.after_interrupt: str | Callable[[], str] = ""
        self._handler = _Handler(self)

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Show what libraries log, for as long as the command runs."""
        room, root, silent = logging.getLogger("elmo"), logging.getLogger(), logging.NullHandler()
        levels = room.level, logger.level
        with warnings.catch_warnings():  # undoes captureWarnings, too
            logging.captureWarnings(True)
            room.addHandler(self._handler)
            root.addHandler(silent)  # other libraries' records are not for our users' terminals
            room.setLevel(logging.WARNING)
            logger.setLevel(logging.INFO)
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):
                    # file names and text may hold what the terminal's encoding has not
                    stream.reconfigure(errors="backslashreplace")
            try:
                yield
            finally:
                logging.captureWarnings(False)
                root.removeHandler(silent)
                root.removeHandler(self._handler)
                room.removeHandler(self._handler)
                room.setLevel(levels[0])
                logger.setLevel(levels[1])

    @contextlib.contextmanager
    def showing(self, room: str) -> Iterator[None]:
        """Show what a room has to tell in passing, too, as far as the user wants to hear anything."""
        told = logging.getLogger(room)
        if not (self.is_quiet or self.is_verbose):
            told.setLevel(logging.INFO)
        try:
            yield
        finally:
            told.setLevel(logging.NOTSET)

    def be_verbose(self) -> None:
        """Show all that is logged, by other libraries and Python's warnings too."""
        self.is_verbose = True
        logging.getLogger("elmo").setLevel(logging.DEBUG)
        logger.setLevel(logging.DEBUG)
        logging.getLogger("elmo").removeHandler(self._handler)
        logging.getLogger().addHandler(self._handler)

    def be_quiet(self) -> None:
        """Show errors only."""
        self.is_quiet = True
        logging.getLogger("elmo").setLevel(logging.ERROR)
        logger.setLevel(logging.ERROR)

    def error(self, message: str, *, kind: str, code: int, trace: str | None = None) -> None:
        """The one line that says why the command ends."""
        if self.is_json:
            fields: dict[str, Any] = {"error": kind, "exit_code": code}
            self.write(
                _json_line("error", one_line(message), fields | ({"traceback": trace} if trace else {}))
            )
        else:
            self.write(f"{trace or ''}elmo: {one_line(message)}")

    def interrupted(self, *, kind: str, code: int) -> None:
        """The one line that says that Ctrl-C came, and what to do after it."""
        after = self.after_interrupt
        try:
            rest = after if isinstance(after, str) else after()
        except ElmoError:  # what is there cannot be read: the next run will say so
            rest = ""
        self.error(f"interrupted{rest}", kind=kind, code=code)

    def write(self, line: str) -> None:
        """One line on stderr; where that is closed, nobody is there to be told."""
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


class _Handler(logging.Handler):
    """Log records as lines; stderr is looked up each time, for a progress bar may have taken it over."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = one_line(record.getMessage())
        except (TypeError, ValueError):
            self.handleError(record)
            return
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if self._report.is_json:
            line = _json_line(record.levelname.lower(), message, {"logger": record.name} | fields)
        else:
            word = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
            line = f"elmo: {word}{message}"
        self._report.write(line)


def one_line(text: str) -> str:
    """The text without line breaks; what a terminal would obey or cannot show is escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _json_line(level: str, message: str, fields: dict[str, Any]) -> str:
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": time, "level": level, "message": message} | fields, default=str)
