"""Types and ranges of task options.

Every kind uses the same option names for the same things, so that the name of an option determines its range:
dropout is a fraction, widths, lengths and counts are integers from 1. Options may come from Python, from a
plan of ``elmo evidence`` or from ``--set TABLE.NAME=VALUE``; types are checked here for all of them.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from elmo.config import MAX_LAYERS
from elmo.errors import ConfigError

OPTIONAL = {"is_optional": True}  # metadata: saved with a model only if it differs from the default
_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def saved_options(options: Any) -> dict[str, Any]:
    """Return the options that a saved model keeps; ``OPTIONAL`` ones are left out at their default.

    In this way, models and runs from before an option was added keep their description.
    """
    defaults = {entry.name: entry.default for entry in fields(options) if entry.metadata == OPTIONAL}
    values = asdict(options)
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def check_options(options: Any) -> None:
    """Raise ``ConfigError`` for a value that no network can be built or trained with."""
    types = get_type_hints(type(options))
    for entry in fields(options):
        value = getattr(options, entry.name)
        expected = None if value is None and entry.default is None else _expected_range(entry.name, value)
        if get_origin(types[entry.name]) is Literal and value not in get_args(types[entry.name]):
            expected = _type_name(types[entry.name])
        if expected is not None:
            raise ConfigError(f"option {entry.name}: expected {expected}, found {value!r:.40}")


def _expected_range(name: str, value: Any) -> str | None:
    """Return the range that an option's name requires; None if the value is in it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_integer = is_number and isinstance(value, int)
    if name.endswith("dropout"):
        return None if is_number and 0 <= value < 1 else "a number from 0 to below 1"
    if name == "kept_share":
        return None if is_number and value > 0 and math.isfinite(value) else "a number above 0"
    if name.startswith(("has_", "is_", "by_", "use_")):
        return None if isinstance(value, bool) else "true or false"
    if name == "n_layers":  # limited, because it may come from an untrusted model file
        return None if is_integer and 1 <= value <= MAX_LAYERS else f"an integer from 1 to {MAX_LAYERS}"
    if name.endswith("_width") or name.startswith(("n_", "max_")):
        return None if is_integer and value >= 1 else "an integer from 1"
    return None


def find_unknown_names(names: Iterable[str], known: Collection[str], *, table: str) -> list[str]:
    """Return a message for each name that is not known."""
    listed = ", ".join(known)
    return [f"[{table}] has no option {name[:40]!r}; it has: {listed}" for name in names if name not in known]


def find_option_problems(
    values: Mapping[str, Any], options: type[Any], *, table: str, without: Collection[str] = ()
) -> list[str]:
    """Return a message for each value that does not fit a dataclass of options, ``without`` some fields."""
    types = get_type_hints(options)
    known = [entry.name for entry in fields(options) if entry.name not in without]
    problems = find_unknown_names(values, known, table=table)
    for name, value in values.items():
        if name in known and not _has_type(value, types[name]):
            problems.append(f"[{table}] {name}: expected {_type_name(types[name])}, found {value!r:.40}")
    return problems


def parse_assignments(
    assignments: Iterable[str], tables: Mapping[str, type[Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Parse ``TABLE.NAME=VALUE`` strings; return the values by table, and messages about problems."""
    values: dict[str, dict[str, Any]] = {table: {} for table in tables}
    problems: list[str] = []
    for assignment in assignments:
        target, equals, text = assignment.partition("=")
        table, _, name = target.strip().partition(".")
        if not equals or not name or table not in tables:
            problems.append(
                f"expected TABLE.NAME=VALUE with one of the tables {', '.join(tables)}, "
                f"found {assignment[:60]!r}"
            )
        elif name in values[table]:
            problems.append(f"[{table}] {name}: expected one value, found a second: {text[:40]!r}")
        else:
            values[table][name] = _parse_value(text.strip())
    for table, options in tables.items():
        problems += find_option_problems(values[table], options, table=table)
    return values, problems


def _parse_value(text: str) -> Any:
    """Parse a TOML value; strings need no quotes, and ``.5`` is a number."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        values = {}
    if len(values) == 1:
        return values["value"]
    try:
        return float(text)
    except ValueError:
        return text


def _has_type(value: Any, expected: Any) -> bool:
    if get_origin(expected) in (Union, UnionType):
        return any(_has_type(value, option) for option in get_args(expected))
    if get_origin(expected) is Literal:
        return value in get_args(expected)
    if isinstance(value, bool):  # bool is a subclass of int
        return expected is bool
    return isinstance(value, (int, float) if expected is float else expected)


def _type_name(expected: Any) -> str:
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(_type_name(option) for option in get_args(expected) if option is not type(None))
    if get_origin(expected) is Literal:
        return f"one of {', '.join(map(str, get_args(expected)))}"
    return _TYPE_NAMES.get(expected, str(expected))
