"""Check the names and types of options in plans of ``elmo evidence`` and in ``--set TABLE.NAME=VALUE``.

The ranges of values are checked by the dataclasses of the options.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def find_unknown_names(names: Iterable[str], known: Collection[str], *, table: str) -> list[str]:
    """Return an error message for each name that is not among the known names."""
    listed = ", ".join(known)
    return [f"[{table}] has no option {name[:40]!r}; it has: {listed}" for name in names if name not in known]


def find_option_problems(
    values: Mapping[str, Any], options: type[Any], *, table: str, without: Collection[str] = ()
) -> list[str]:
    """Return an error message for each unknown name and each value of the wrong type.

    Args:
        values: Option values by name.
        options: Dataclass that defines the names and types of the options.
        table: Name of the table in messages, such as "head".
        without: Fields of the dataclass that cannot be set.
    """
    types = get_type_hints(options)
    known = [entry.name for entry in fields(options) if entry.name not in without]
    problems = find_unknown_names(values, known, table=table)
    for name, value in values.items():
        if name in known and not _has_type(value, types[name]):
            problems.append(f"[{table}] {name} must be {_type_name(types[name])}; found {value!r:.40}")
    return problems


def parse_assignments(
    assignments: Iterable[str], tables: Mapping[str, type[Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Parse ``TABLE.NAME=VALUE`` strings; return the values of each table, and a list of error messages."""
    values: dict[str, dict[str, Any]] = {table: {} for table in tables}
    problems: list[str] = []
    for assignment in assignments:
        target, equals, text = assignment.partition("=")
        table, _, name = target.strip().partition(".")
        if not equals or not name or table not in tables:
            expected = f"TABLE.NAME=VALUE, with one of the tables {', '.join(tables)}"
            problems.append(f"each setting must be {expected}; found {assignment[:60]!r}")
        elif name in values[table]:
            problems.append(f"[{table}] {name} must be set once; found a second value: {text[:40]!r}")
        else:
            values[table][name] = _parse_value(text.strip())
    for table, options in tables.items():
        problems += find_option_problems(values[table], options, table=table)
    return values, problems


def _parse_value(text: str) -> Any:
    """Parse a TOML value; also accept strings without quotes, and numbers such as ``.5``."""
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
