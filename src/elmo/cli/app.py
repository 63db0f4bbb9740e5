"""The typer application of ``elmo``: the list of commands and the global options."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from elmo import __version__
from elmo.cli import task
from elmo.cli.options import examples

_TYPE = re.compile(r" <(?:list\[)?(?:str|path)\]?>", re.IGNORECASE)  # types that the help of an argument does not need


class _PanelGroup(TyperGroup):
    """A typer group that lists its commands in panels as plain text; rich would double the time of ``--help``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            row = (name, command.get_short_help_str(limit=90))
            panels.setdefault(command.rich_help_panel or "Commands", []).append(row)
        _write_panels(panels, formatter)


class _PanelCommand(TyperCommand):
    """A typer command that lists its options in panels as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                panel = "Options"
                if parameter.param_type_name == "argument":
                    panel, row = "Arguments", (_TYPE.sub("", row[0]), row[1])
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or panel, []).append(row)
        _write_panels(panels, formatter)


def _write_panels(panels: dict[str, list[tuple[str, str]]], formatter: Any) -> None:
    for title, rows in panels.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


_PANELS = {  # each command is the function ``command`` of the module elmo.cli.NAME
    "Embed": ("embed", "compare", "demo", "info", "convert", "warm", "calibrate", "sharpen", "align"),
    "Published models": ("models", "download", "cache"),
    "Train": ("train", "perplexity", "curves"),
    "Words": (
        "index",
        "neighbors",
        "substitutes",
        "explain",
        "senses",
        "change",
        "wsd",
        "probe",
        "similarity",
        "score",
    ),
    "Tasks": ("evidence",),
    "Service": ("explore", "serve"),
}


def build_app(argv: Sequence[str]) -> typer.Typer:
    """Build the typer application for these command-line arguments.

    Only the commands that ``argv`` names get their options; the other commands are only listed in the help,
    because reading the options of all commands would double the time of ``elmo --help``.
    """
    app = typer.Typer(
        name="elmo",
        cls=_PanelGroup,
        callback=set_global_options,
        epilog=examples(
            "elmo embed corpus.txt --out vectors.h5", "elmo compare bank 'the bank of the river' 'the bank has money'"
        ),
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    for panel, names in _PANELS.items():
        for name in names:
            module = import_module(f"elmo.cli.{name}")
            command = module.command if name in argv else _without_options(module.command.__doc__)
            app.command(name, cls=_PanelCommand, rich_help_panel=panel, epilog=module.EXAMPLES)(command)
    if "task" in argv:
        app.add_typer(task.app, name="task", rich_help_panel="Tasks")
        for subcommand in task.app.registered_commands:
            subcommand.cls = _PanelCommand
    else:
        app.command("task", rich_help_panel="Tasks")(_without_options(task.app.info.help))
    return app


def _without_options(description: str | None) -> Callable[[], None]:
    def command() -> None:
        """Do nothing; this command is only listed in the help."""

    command.__doc__ = description
    return command


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"elmo {__version__}")
        raise typer.Exit


def _set_log_format(context: typer.Context, value: str) -> str:
    context.obj.is_json = value == "json"
    return value


def set_global_options(
    context: typer.Context,
    *,
    log_format: Annotated[
        Literal["text", "json"],
        # is_eager: the callback runs first, so that errors in other arguments are already printed as JSON
        typer.Option(
            help="Format of errors, log messages and progress on stderr.", callback=_set_log_format, is_eager=True
        ),
    ] = "text",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all log records and tracebacks.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show errors only, without warnings and progress.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """ELMo: word vectors that depend on the whole sentence.

    The options below may be placed before or after the name of a command.
    """
    del log_format, version  # handled by their callbacks
    if verbose and quiet:
        raise typer.BadParameter("--verbose and --quiet cannot be combined", ctx=context)
    if verbose:
        context.obj.set_verbose()
    if quiet:
        context.obj.set_quiet()


def move_global_options(argv: Sequence[str]) -> list[str]:
    """Move the global options before the name of the command, where typer expects them."""
    first: list[str] = []
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--":
            rest += [argument, *arguments]
        elif argument in ("--verbose", "-v", "--quiet", "-q") or argument.startswith("--log-format="):
            first.append(argument)
        elif argument == "--log-format":
            value = next(arguments, None)
            first += [argument] if value is None else [argument, value]
        else:
            rest.append(argument)
    return first + rest
