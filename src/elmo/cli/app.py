"""The commands, gathered into one with its global options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from elmo import __version__
from elmo.cli import (
    change,
    compare,
    convert,
    curves,
    demo,
    embed,
    evidence,
    index,
    info,
    neighbors,
    perplexity,
    probe,
    score,
    senses,
    sharpen,
    similarity,
    substitutes,
    task,
    train,
    warm,
    wsd,
)
from elmo.cli.options import examples


class _Group(TyperGroup):
    """A command whose help lists its commands by panel, in plain text: rich would double the time of it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            found: Any = self.get_command(ctx, name)
            panels.setdefault(found.rich_help_panel, []).append((name, found.get_short_help_str(limit=90)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


app = typer.Typer(
    name="elmo",
    cls=_Group,
    epilog=examples(
        "elmo embed corpus.txt --out vectors.h5",
        "elmo compare bank 'the bank of the river' 'the bank has money'",
    ),
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

for panel, name, module in (
    ("Embed", "embed", embed),
    ("Embed", "compare", compare),
    ("Embed", "demo", demo),
    ("Embed", "info", info),
    ("Embed", "convert", convert),
    ("Embed", "warm", warm),
    ("Embed", "sharpen", sharpen),
    ("Train", "train", train),
    ("Train", "perplexity", perplexity),
    ("Train", "curves", curves),
    ("Words", "index", index),
    ("Words", "neighbors", neighbors),
    ("Words", "substitutes", substitutes),
    ("Words", "senses", senses),
    ("Words", "change", change),
    ("Words", "wsd", wsd),
    ("Words", "probe", probe),
    ("Words", "similarity", similarity),
    ("Words", "score", score),
    ("Tasks", "evidence", evidence),
):
    app.command(name, rich_help_panel=panel, epilog=module.EXAMPLES)(module.command)
app.add_typer(task.app, name="task", rich_help_panel="Tasks")


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"elmo {__version__}")
        raise typer.Exit


def _log_format(context: typer.Context, value: str) -> str:
    context.obj.is_json = value == "json"
    return value


@app.callback()
def options(
    context: typer.Context,
    *,
    log_format: Annotated[
        Literal["text", "json"],
        # called as it is parsed, so that a mistake later in the line is already told as JSON
        typer.Option(
            help="Errors, log and progress on stderr as text or as JSON lines.",
            callback=_log_format,
            is_eager=True,
        ),
    ] = "text",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all that is logged, and tracebacks.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show errors only; no progress.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """ELMo: a vector for every word that depends on its whole sentence.

    The options below may stand before or after a command's name.
    """
    del log_format, version  # done by their callbacks
    if verbose and quiet:
        raise typer.BadParameter("--verbose and --quiet contradict each other", ctx=context)
    if verbose:
        context.obj.be_verbose()
    if quiet:
        context.obj.be_quiet()


def globals_first(argv: Sequence[str]) -> list[str]:
    """The arguments with the global options moved before the command's name, where typer looks for them."""
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
