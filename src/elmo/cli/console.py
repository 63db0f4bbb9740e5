"""Write errors, log records and progress of a command to stderr, as text or as JSON lines."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, cast

from elmo.errors import ElmoError
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.jobs.plan import Progress
    from elmo.text.lines import Tally
    from elmo.text.reader import Sentence
    from elmo.text.tokenizers import Tokenizer

FIRST_SECONDS = 1.0  # time until the first log line about training
LOG_SECONDS = 10.0  # minimum time between two log lines about progress
logger = logging.getLogger("elmo.cli")
_READER = "elmo.text.reader"  # its INFO records, how text is split, are shown once by all commands
_SHOWN = (logger, logging.getLogger("elmo.catalog"), logging.getLogger(_READER))  # whose INFO records are shown
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Console:
    """Writes everything that a command prints, except its results.

    Attributes:
        is_json: Whether to write JSON lines.
        is_verbose: Whether to show all log records and tracebacks.
        is_quiet: Whether to show errors only.
        after_interrupt: Hint to append to the message after Ctrl-C, or a function that returns the hint.
    """

    def __init__(self) -> None:
        self.is_json = False
        self.is_verbose = False
        self.is_quiet = False
        self.after_interrupt: str | Callable[[], str] = ""
        self._handler = _LogHandler(self)

    @property
    def is_bar_shown(self) -> bool:
        """Whether to show progress bars: on a terminal, in text mode, and not with ``--quiet``."""
        return not (self.is_quiet or self.is_json) and sys.stderr.isatty()

    @contextmanager
    def handle_logging(self) -> Iterator[None]:
        """Show the log records of elmo while a command runs."""
        package, root, silent = logging.getLogger("elmo"), logging.getLogger(), logging.NullHandler()
        loggers = (package, *_SHOWN)
        levels = [each.level for each in loggers]
        with warnings.catch_warnings():  # also restores what captureWarnings changes
            logging.captureWarnings(True)
            package.addHandler(self._handler)
            root.addHandler(silent)  # hides the records of other libraries
            package.setLevel(logging.WARNING)
            for each in _SHOWN:
                each.setLevel(logging.INFO)
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):
                    # file names and text may contain characters that the terminal cannot encode
                    stream.reconfigure(errors="backslashreplace")
            try:
                yield
            finally:
                logging.captureWarnings(False)
                root.removeHandler(silent)
                root.removeHandler(self._handler)
                package.removeHandler(self._handler)
                for each, level in zip(loggers, levels, strict=True):
                    each.setLevel(level)

    @contextmanager
    def show_log(self, name: str) -> Iterator[None]:
        """Also show the INFO records of the logger ``name``, unless the command is quiet."""
        shown = logging.getLogger(name)
        if not (self.is_quiet or self.is_verbose):
            shown.setLevel(logging.INFO)
        try:
            yield
        finally:
            shown.setLevel(logging.NOTSET)

    def set_verbose(self) -> None:
        """Show all log records, including those of other libraries, and Python warnings."""
        self.is_verbose = True
        for shown in (logging.getLogger("elmo"), *_SHOWN):
            shown.setLevel(logging.DEBUG)
        logging.getLogger("elmo").removeHandler(self._handler)
        logging.getLogger().addHandler(self._handler)

    def set_quiet(self) -> None:
        """Show errors only."""
        self.is_quiet = True
        for each in (logging.getLogger("elmo"), *_SHOWN):
            each.setLevel(logging.ERROR)

    def print_error(self, message: str, *, kind: str, code: int, trace: str | None = None) -> None:
        """Print on one line why the command failed, after the traceback if there is one."""
        if self.is_json:
            fields: dict[str, Any] = {"error": kind, "exit_code": code}
            fields |= {"traceback": trace} if trace else {}
            self.print_line(_format_json("error", one_line(message), fields))
        else:
            self.print_line(f"{trace or ''}elmo: {one_line(message)}")

    def print_interrupt(self, *, kind: str, code: int) -> None:
        """Print that Ctrl-C stopped the command, and how to continue."""
        hint = self.after_interrupt
        try:
            hint = hint if isinstance(hint, str) else hint()
        except ElmoError:  # the output of the job cannot be read; the next run reports the error
            hint = ""
        self.print_error(f"interrupted{hint}", kind=kind, code=code)

    def print_line(self, line: str) -> None:
        """Print a line to stderr; do nothing if stderr is closed."""
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)


class _LogHandler(logging.Handler):
    """Prints log records to the current ``sys.stderr``, which a progress bar may have replaced."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._shown: set[str] = set()  # messages of the reader; some commands read the text twice

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = one_line(record.getMessage())
        except (TypeError, ValueError):
            self.handleError(record)
            return
        if record.name == _READER and record.levelno == logging.INFO:
            if message in self._shown:
                return
            self._shown.add(message)
        level = record.levelname.lower()
        if self._console.is_json:
            fields = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
            line = _format_json(level, message, {"logger": record.name} | fields)
        else:
            line = f"elmo: {'' if record.levelno == logging.INFO else f'{level}: '}{message}"
        self._console.print_line(line)


def _format_json(level: str, message: str, fields: dict[str, Any]) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return dump_json({"time": now, "level": level, "message": message} | fields, sys.stderr)


def dump_json(values: Any, stream: TextIO) -> str:
    """Return values as one line of JSON; non-ASCII characters are escaped if ``stream`` cannot encode all of them."""
    is_unicode = (stream.encoding or "utf-8").lower().startswith("utf")
    return json.dumps(values, ensure_ascii=not is_unicode, default=str)


class LogInterval:
    """Limits log lines about progress to one every ``LOG_SECONDS`` seconds; the first after ``first``."""

    def __init__(self, *, first: float | None = None) -> None:
        self._last = time.monotonic() - (0.0 if first is None else LOG_SECONDS - first)

    def is_over(self) -> bool:
        """Return whether the next line is due; if it is, start a new interval."""
        now = time.monotonic()
        if now - self._last < LOG_SECONDS:
            return False
        self._last = now
        return True

    def restart(self) -> None:
        """Start a new interval, because a line was logged."""
        self._last = time.monotonic()


class ShowProgress(Protocol):
    """A function that shows the progress of a job."""

    def __call__(self, progress: Progress, /) -> None:
        """Show the progress; jobs call this often."""
        ...


@contextmanager
def show_progress(console: Console, *, n_sentences: int | None, is_stdout_free: bool) -> Iterator[ShowProgress | None]:
    """Yield a function that shows progress: a bar on a terminal, otherwise log lines; None with --quiet.

    ``is_stdout_free`` states that no results are printed to stdout, where they would disturb the bar.
    """
    is_bar = not console.is_json and sys.stderr.isatty() and (is_stdout_free or not sys.stdout.isatty())
    if console.is_quiet:
        yield None
    elif is_bar:
        with _show_bar(n_sentences) as show:
            yield show
    else:
        yield _ProgressLines(n_sentences)


@contextmanager
def show_counts(
    console: Console, stage: Literal["embedding", "predicting"], *, n_sentences: int | None
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows progress from the numbers of finished sentences and tokens."""
    from elmo.jobs.plan import Progress

    with show_progress(console, n_sentences=n_sentences, is_stdout_free=True) as show:

        def report(n_done: int, n_tokens: int) -> None:
            if show is not None:
                show(Progress(stage, sentences=n_done, tokens=n_tokens, shards=0, kept=0))

        yield report


class _ProgressLines:
    """Logs the progress of a job every ``LOG_SECONDS`` seconds."""

    def __init__(self, n_sentences: int | None) -> None:
        self._n_sentences = n_sentences
        self._rate = _TokenRate()
        self._interval = LogInterval()

    def __call__(self, progress: Progress) -> None:
        rate = self._rate(progress)
        if not self._interval.is_over():
            return
        total = "" if self._n_sentences is None else f" of {self._n_sentences:,}"
        counts = f"{progress.sentences:,}{total} sentences, {progress.tokens:,} tokens, {rate:,.0f} tokens/s"
        seconds = self._rate.seconds_left(progress, self._n_sentences)
        counts += "" if seconds is None else f", {format_time(seconds)} left"
        logger.info(
            f"{progress.stage}: {counts}",
            extra={
                "stage": progress.stage,
                "sentences": progress.sentences,
                "tokens": progress.tokens,
                "tokens_per_second": round(rate, 1),
                "all_sentences": self._n_sentences,
                "seconds_left": None if seconds is None else round(seconds),
            },
        )


class _TokenRate:
    """Computes tokens per second and the time left, without what was finished before the job was resumed."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._before: tuple[int, int] | None = None  # sentences and tokens that were finished before

    def __call__(self, progress: Progress) -> float:
        if self._before is None:
            self._before = (progress.sentences, progress.tokens) if progress.kept else (0, 0)
        return (progress.tokens - self._before[1]) / max(time.monotonic() - self._start, 1e-9)

    def seconds_left(self, progress: Progress, n_sentences: int | None) -> float | None:
        """Estimate the time until ``n_sentences`` sentences are finished; None if it is unknown."""
        n_done = progress.sentences - (self._before or (0, 0))[0]
        if n_sentences is None or n_done < 1:
            return None
        return (time.monotonic() - self._start) / n_done * max(0, n_sentences - progress.sentences)


def format_time(seconds: float) -> str:
    """Format a duration, such as 2 h 10 min or 3 min 5 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


@contextmanager
def _show_bar(n_sentences: int | None) -> Iterator[ShowProgress]:
    from rich import progress as rich_progress
    from rich.console import Console as RichConsole

    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.fields[stage]}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.fields[done]}"),
        rich_progress.TimeElapsedColumn() if n_sentences is None else rich_progress.TimeRemainingColumn(),
        console=RichConsole(stderr=True),
        transient=True,
        redirect_stdout=False,  # results on stdout bypass the bar
    )
    rate = _TokenRate()
    with bar:
        task = bar.add_task("", total=n_sentences, stage="", done="")

        def show(progress: Progress) -> None:
            done = f"{progress.sentences:,} sentences, {rate(progress):,.0f} tokens/s"
            bar.update(task, completed=progress.sentences, stage=progress.stage, done=done)

        yield show


def track_sentences(sentences: Iterable[Sentence], show: ShowProgress | None) -> Iterator[Sentence]:
    """Yield the sentences unchanged, and show how many have been read."""
    from elmo.jobs.plan import Progress

    n_tokens = 0
    for n, sentence in enumerate(sentences, start=1):
        n_tokens += len(sentence)
        if show is not None and n % 1000 == 0:
            show(Progress(cast("Any", "reading"), sentences=n, tokens=n_tokens, shards=0, kept=0))
        yield sentence


class UsageProgress:
    """Logs the number of finished usages every ``LOG_SECONDS`` seconds."""

    def __init__(self, stage: str, *, is_quiet: bool) -> None:
        self._stage, self._is_quiet, self._interval = stage, is_quiet, LogInterval()

    def __call__(self, n_done: int, n_all: int) -> None:
        """Log the number of finished usages if a line is due."""
        if not self._is_quiet and self._interval.is_over():
            logger.info("%s: %s of %s usages", self._stage, f"{n_done:,}", f"{n_all:,}")


def describe_resume(out: Path, *, restart: bool) -> str:
    """Return the hint for the message after Ctrl-C: how to resume the job that writes ``out``."""
    from elmo.jobs.manifest import OutputFiles, read_manifest

    files = OutputFiles(out)
    if not files.has_manifest() or not read_manifest(files.manifest).shards:
        return "; nothing was saved, so the same command starts from the beginning"
    if restart:
        return "; run the command without --restart to resume after the last complete shard"
    return "; run the same command again to resume after the last complete shard"


def warn_about_script(tokenizer: Tokenizer, sentences: Sequence[str]) -> None:
    """Warn if Chinese text is tokenized with English rules."""
    from elmo.text.chinese import guess_tokenizer

    guess = guess_tokenizer(" ".join(sentences))
    if guess is not None and guess.tokenizer == "zh" and getattr(tokenizer, "name", "") == "en":
        logger.warning(
            "the text is Chinese, but English rules split it into characters; use the bundled Chinese model "
            "with --model zh (or --tokenizer zh, if your model is Chinese)"
        )


def warn_about_bytes(tally: Tally) -> None:
    """Warn about lines that are not UTF-8 and were therefore repaired or skipped."""
    if tally.repaired:
        logger.warning("repaired lines that are not UTF-8: %d", tally.repaired)
    if tally.skipped:
        logger.warning("skipped lines that are not UTF-8: %d", tally.skipped)
