"""A table of a plan and the options that it sets in, all that is wrong with it out: names and types.

The same tables may be given in a command line, value by value: ``head.max_span_width=12``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SPOKEN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def unknown_names(given: Iterable[str], known: Collection[str], *, place: str) -> list[str]:
    """A problem for each name that is not known."""
    listed = ", ".join(known)
    return [f"[{place}] has no {name[:40]!r}; it has {listed}" for name in given if name not in known]


def table_of(given: Any, *, place: str) -> tuple[Mapping[str, Any], list[str]]:
    """A table as it is; anything else as an empty one, with the problem."""
    if isinstance(given, dict):
        return given, []
    return {}, [f"[{place}]: expected a table, found {given!r:.40}"]


def option_problems(
    given: Mapping[str, Any], options: type[Any], *, place: str, without: Collection[str] = ()
) -> list[str]:
    """What is wrong with values for a dataclass of options, ``without`` those that a plan does not set."""
    types = get_type_hints(options)
    known = [one.name for one in fields(options) if one.name not in without]
    found = unknown_names(given, known, place=place)
    for name, value in given.items():
        if name in known and not _fits(value, types[name]):
            found.append(f"[{place}] {name}: expected {_spoken(types[name])}, found {value!r:.40}")
    return found


def assignments_of(
    given: Iterable[str], tables: Mapping[str, type[Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """``table.name=value``, as often as you like, as values by table; and what is wrong with them."""
    found: dict[str, dict[str, Any]] = {table: {} for table in tables}
    problems: list[str] = []
    for one in given:
        place, equals, text = one.partition("=")
        table, _, name = place.strip().partition(".")
        if not equals or not name or table not in tables:
            problems.append(
                f"expected TABLE.NAME=VALUE with one of the tables {', '.join(tables)}, found {one[:60]!r}"
            )
        elif name in found[table]:
            problems.append(f"[{table}] {name}: expected one value, found a second, {text[:40]!r}")
        else:
            found[table][name] = _value(text.strip())
    for table, options in tables.items():
        problems += option_problems(found[table], options, place=table)
    return found, problems


def _value(text: str) -> Any:
    """As TOML has it; text needs no quotation marks, nor a number a digit before its point."""
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


def _fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(wanted))
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if isinstance(value, bool):  # which is a number to Python
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _spoken(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(_spoken(one) for one in get_args(wanted) if one is not type(None))
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(str, get_args(wanted)))}"
    return _SPOKEN.get(wanted, str(wanted))
