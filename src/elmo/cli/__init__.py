"""The command ``elmo``.

- ``app`` lists the commands and declares the global options.
- Each command has a file with its name, which parses the arguments, calls the library and prints the result.
- ``generate`` creates the options of a command from the signature of a library function.
- ``options`` declares the options that several commands share.
- ``console`` writes errors, log records and progress to stderr.
- ``results`` prints results and writes them to files.

This file runs a command and turns every error into one line and an exit code.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from elmo.cli.console import Console
from elmo.errors import ElmoError

FAILED, MISUSED, UNEXPECTED, INTERRUPTED, PIPE_CLOSED = 1, 2, 70, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    The exit codes are 0: success; 1: an error, explained in one line on stderr; 2: wrong usage; 70: a bug in
    elmo; 130: interrupted with Ctrl-C; 141: the program that reads the output has closed the pipe.
    """
    if argv is None:  # this process exits after the command
        atexit.register(gc.freeze)  # do not search torch's many objects for garbage at exit
        _clean_up_on_signals()
    console = Console()
    with console.handle_logging():
        try:
            try:
                return _run(sys.argv[1:] if argv is None else argv, console)
            finally:
                if not sys.stdout.closed:
                    sys.stdout.flush()  # raises an error now if the disk is full
        except BaseException as error:
            return _handle_error(error, console)


class _SignalError(BaseException):
    """A signal asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _clean_up_on_signals() -> None:
    """Turn signals that would end the process at once into an exception, so that temporary files are removed."""

    def stop(number: int, _: object) -> None:
        raise _SignalError(number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, stop)


def _run(argv: Sequence[str], console: Console) -> int:
    import typer
    from typer.main import get_command

    from elmo.cli.app import build_app, move_global_options

    group: Any = get_command(build_app(argv))
    match list(argv):
        case [name, "--help" | "-h"] if name in group.commands:
            # Print the help as click does, but without parsing the arguments, because typer would import
            # pydantic for that, which takes longer than everything else.
            parent = typer.Context(group, info_name="elmo", help_option_names=["--help", "-h"])
            command = group.commands[name]
            print(command.get_help(typer.Context(command, info_name=name, parent=parent)))
            return 0
    # UsageError, from click or from the copy of click in newer versions of typer
    usage_error = cast("type[Exception]", typer.BadParameter.__mro__[1])
    try:
        with group.make_context("elmo", move_global_options(argv) or ["--help"], obj=console) as context:
            group.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    except usage_error as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "elmo"
        _simplify_message(error)
        message = " ".join(getattr(error, "format_message", error.__str__)().split())
        console.print_error(f"{message} (see: {path} --help)", kind="UsageError", code=MISUSED)
        return MISUSED
    return 0


def _simplify_message(error: Any) -> None:
    """Replace the message of pydantic in a usage error with a shorter one."""
    details = getattr(error.__cause__, "errors", list)()
    if not details:
        return
    detail: dict[str, Any] = details[0]
    limits, found = detail.get("ctx", {}), f"found {str(detail['input'])[:40]!r}"
    match detail["type"]:
        case "int_parsing" | "int_from_float":
            error.message = f"expected a whole number, {found}"
        case "float_parsing":
            error.message = f"expected a number, {found}"
        case "greater_than_equal":
            error.message = f"expected at least {limits['ge']}, {found}"
        case "less_than_equal":
            error.message = f"expected at most {limits['le']}, {found}"
        case _:
            error.message = error.message.removeprefix("Value error, ")


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # cannot set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _handle_error(error: BaseException, console: Console) -> int:
    """Print an error on one line and return the exit code of the command."""
    if isinstance(error, _SignalError):  # now end as without a handler, so that the caller sees the signal
        signal.signal(error.number, signal.SIG_DFL)
        os.kill(os.getpid(), error.number)
    if isinstance(error, KeyboardInterrupt):
        with _ignoring_interrupts():  # a second Ctrl-C would print a traceback
            console.print_interrupt(kind="Interrupted", code=INTERRUPTED)
        return INTERRUPTED
    if any(isinstance(cause, BrokenPipeError) for cause in (error, error.__cause__)):
        _discard_stdout()
        return PIPE_CLOSED
    if isinstance(error, SystemExit):
        raise error
    code, trace = FAILED, None
    if isinstance(error, ElmoError):
        message = str(error)
    elif isinstance(error, OSError):
        _discard_stdout()
        paths = (error.filename, error.filename2)
        names = [os.fsdecode(path) for path in paths if isinstance(path, str | bytes)]
        if not names and error.errno == errno.ENOSPC:  # an error without a file name comes from print
            names = ["stdout"]
        message = ": ".join([*names, error.strerror or str(error) or type(error).__name__])
    elif isinstance(error, MemoryError) or _is_out_of_memory(error):
        message = "out of memory; use a smaller --batch-size, shorter sentences or a smaller model"
    else:
        code = UNEXPECTED
        trace = "".join(traceback.format_exception(error)) if console.is_verbose else None
        hint = "" if trace else "; please report this bug with the traceback that --verbose shows"
        message = f"unexpected {type(error).__name__}: {error}{hint}"
    console.print_error(message, kind=type(error).__name__, code=code, trace=trace)
    return code


_OUT_OF_MEMORY = (  # parts of messages of torch, C++, Python's threads, the dynamic linker, and oneDNN
    "allocate memory", "out of memory", "bad_alloc", "can't start new thread", "failed to map segment",
    "could not execute a primitive", "could not create a primitive",
)  # fmt: skip


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether a library ran out of memory; torch, for example, raises a plain ``RuntimeError`` on the CPU."""
    return isinstance(error, RuntimeError | ImportError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _discard_stdout() -> None:
    """Discard output that cannot be written, so that Python does not try to write it again at exit."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        except (OSError, ValueError):
            return
