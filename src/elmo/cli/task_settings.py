"""What ``elmo task train`` was asked for, by --set and by options of its own, in; options of tasks out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.NAME=VALUE",
        help="What has no option of its own, named as in a plan of elmo evidence: head.max_span_width=12, "
        "fit.decay=0.3, words.dropout=0; may be repeated.",
        rich_help_panel="How it learns",
        show_default=False,
    ),
]

# by the parameters of the command: what a plan calls them
_OWN: Mapping[str, tuple[str, str]] = {
    "network": ("head", "network"),
    "hidden": ("head", "hidden_width"),
    "layers": ("head", "n_layers"),
    "dropout": ("head", "dropout"),
    "crf": ("head", "has_crf"),
    "elmo": ("words", "elmo"),
    "top_only": ("words", "top_only"),
    "layer_norm": ("words", "layer_norm"),
    "elmo_dropout": ("words", "dropout"),
    "mix_penalty": ("words", "mix_penalty"),
    "tune_bilm": ("words", "is_bilm_tuned"),
    "tune_vectors": ("words", "is_static_tuned"),
    "characters": ("words", "characters"),
    **{name: ("fit", name) for name in ("epochs", "patience", "batch_size", "learning_rate", "seed")},
}


def assigned(
    context: typer.Context, kind: str, assignments: Sequence[str] | None
) -> Mapping[str, Mapping[str, Any]]:
    """The values of ``--set`` by the tables of a plan: head, fit and words."""
    from elmo.errors import ConfigError, raise_all
    from elmo.tasks.evidence.option_tables import assignments_of
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.by_name import KINDS
    from elmo.tasks.vectors.word_vectors import VectorChoice

    tables = {"head": KINDS[kind][1], "fit": FitOptions, "words": VectorChoice}
    found, problems = assignments_of(assignments or (), tables)
    for parameter, (table, name) in _OWN.items():
        source = context.get_parameter_source(parameter)
        if name in found[table] and source is not None and source.name == "COMMANDLINE":
            problems.append(f"{table}.{name} is {_option(parameter)}; give one of the two")
    raise_all(problems, subject="--set", kind=ConfigError)
    return found


def head_options(kind: str, asked: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """The options of the kind's network; one that it has not is named as the user wrote it."""
    from dataclasses import fields

    from elmo.errors import ConfigError
    from elmo.tasks.kinds.by_name import KINDS, task_options

    names = {parameter: name for parameter, (table, name) in _OWN.items() if table == "head"}
    known = {one.name for one in fields(KINDS[kind][1])}
    for parameter, value in asked.items():
        if value is not None and names[parameter] not in known:
            has = ", ".join(_option(one) for one, name in names.items() if name in known)
            raise ConfigError(f"{kind} has no {_option(parameter)}; of its network, it has {has}")
    return task_options(kind, {names[parameter]: value for parameter, value in asked.items()} | {**more})


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"
