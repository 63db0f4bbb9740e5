"""What happens, in; lines on stderr out: errors, log records and progress, as text or as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from elmo.errors import ElmoError

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
