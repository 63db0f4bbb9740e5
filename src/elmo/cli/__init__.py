"""Arguments in, an exit code out: the command ``elmo``, and what becomes of all that goes wrong in it."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, cast

from elmo.cli.report import Report
from elmo.errors import ElmoError

REFUSED, MISUSED, UNEXPECTED, INTERRUPTED, PIPE_CLOSED = 1, 2, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    0: done; 1: refused, with the reason in one line on stderr; 2: wrong usage; 70: a mistake of ours;
    130: Ctrl-C; 141: whoever read our output has gone.
    """
    report = Report()
    with report.logging():
        try:
            try:
                return _run(sys.argv[1:] if argv is None else argv, report)
            finally:
                if not sys.stdout.closed:
                    sys.stdout.flush()  # a full disk shows here at the latest
        except BaseException as error:  # every way out is told apart, and has its code
            return _exit_code(error, report)


def _run(argv: Sequence[str], report: Report) -> int:
    import typer
    from typer.main import get_command

    from elmo.cli.app import app, globals_first

    command: Any = get_command(app)
    match list(argv):
        case [name, "--help" | "-h"] if name in command.commands:
            # As click would, but without reading the options before it: that makes typer import pydantic,
            # which takes longer than all the rest.
            names = ["--help", "-h"]
            outer = typer.Context(command, info_name="elmo", help_option_names=names)
            named = command.commands[name]
            context = typer.Context(named, info_name=name, parent=outer)
            print(named.get_help(context))
            return 0
    # click's own classes, or those of the copy inside newer typer
    usage_error = cast("type[Exception]", typer.BadParameter.__mro__[1])
    try:
        with command.make_context("elmo", globals_first(argv) or ["--help"], obj=report) as context:
            command.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    except usage_error as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "elmo"
        _say_plainly(error)
        message = " ".join(getattr(error, "format_message", error.__str__)().split())
        report.error(f"{message} (see: {path} --help)", kind="UsageError", code=MISUSED)
        return MISUSED
    return 0


def _say_plainly(error: Any) -> None:
    """Put what typer took over from pydantic's error into our words, where they are fewer."""
    found = getattr(error.__cause__, "errors", list)()
    if not found:
        return
    first: dict[str, Any] = found[0]
    limits, given = first.get("ctx", {}), f"found {str(first['input'])[:40]!r}"
    match first["type"]:
        case "int_parsing" | "int_from_float":
            error.message = f"expected a whole number, {given}"
        case "float_parsing":
            error.message = f"expected a number, {given}"
        case "greater_than_equal":
            error.message = f"expected at least {limits['ge']}, {given}"
        case "less_than_equal":
            error.message = f"expected at most {limits['le']}, {given}"
        case _:
            error.message = error.message.removeprefix("Value error, ")


def _exit_code(error: BaseException, report: Report) -> int:
    """Say what went wrong, in one line."""
    causes = (error, error.__cause__)
    if isinstance(error, KeyboardInterrupt):
        report.interrupted(kind="Interrupted", code=INTERRUPTED)
        return INTERRUPTED
    if any(isinstance(cause, BrokenPipeError) for cause in causes):
        _forget_stdout()
        return PIPE_CLOSED
    if isinstance(error, ElmoError):
        message = str(error)
    elif isinstance(error, OSError):
        _forget_stdout()
        names = [
            os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)
        ]
        if (
            not names and error.errno == errno.ENOSPC
        ):  # of all that we write, only prints do not name their file
            names = ["stdout"]
        message = ": ".join([*names, error.strerror or str(error) or type(error).__name__])
    elif isinstance(error, MemoryError) or _is_out_of_memory(error):
        message = "out of memory; a smaller --batch-size, shorter sentences or a smaller model need less"
    elif isinstance(error, SystemExit):
        raise error
    else:
        trace = "".join(traceback.format_exception(error)) if report.is_verbose else None
        hint = "" if trace else "; run again with --verbose for the traceback, and please report it"
        message = f"unexpected {type(error).__name__}: {error}{hint}"
        report.error(message, kind=type(error).__name__, code=UNEXPECTED, trace=trace)
        return UNEXPECTED
    report.error(message, kind=type(error).__name__, code=REFUSED)
    return REFUSED


def _is_out_of_memory(error: BaseException) -> bool:
    """Torch has no MemoryError of its own on the CPU: it says so in a RuntimeError."""
    text = str(error)
    return isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)


def _forget_stdout() -> None:
    """Let what cannot be written go: the interpreter would try again as it ends, and complain."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        except (OSError, ValueError):
            return
