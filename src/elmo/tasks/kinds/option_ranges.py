"""The options of a kind of task in, nothing out: what lies out of range is refused.

Every kind names its options alike, so the name tells the range: dropout is a share, widths, lengths and
counts are whole numbers from 1. An option that came ``LATER`` is kept with a model only where it was chosen:
models and runs from before it stay what they are.
"""

from __future__ import annotations

import math
from dataclasses import asdict, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from elmo.config import MAX_LAYERS
from elmo.errors import ConfigError

LATER = {"is_later": True}  # the metadata of an option that models saved before it do not have


def kept_options(options: Any) -> dict[str, Any]:
    """All that a saved model has to know."""
    usual = {one.name: one.default for one in fields(options) if one.metadata == LATER}
    return {
        name: value for name, value in asdict(options).items() if name not in usual or value != usual[name]
    }


def check_options(options: Any) -> None:
    """Refuse an option that no network can be built or trained with."""
    types = get_type_hints(type(options))
    for one in fields(options):
        value = getattr(options, one.name)
        expected = None if value is None and one.default is None else _broken(one.name, value)
        if get_origin(types[one.name]) is Literal and value not in get_args(types[one.name]):
            expected = f"one of {', '.join(get_args(types[one.name]))}"
        if expected is not None:
            raise ConfigError(f"option {one.name}: expected {expected}, found {value!r:.40}")


def _broken(name: str, value: Any) -> str | None:
    """What was expected; None where the value is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name.endswith("dropout"):
        return None if is_number and 0 <= value < 1 else "a share from 0 to below 1"
    if name == "kept_share":
        return None if is_number and value > 0 and math.isfinite(value) else "a number above 0"
    if name.startswith(("has_", "is_", "by_", "use_")):
        return None if isinstance(value, bool) else "true or false"
    if name == "n_layers":  # a bound, for a stranger's file may say anything
        is_right = is_number and isinstance(value, int) and 1 <= value <= MAX_LAYERS
        return None if is_right else f"a whole number from 1 to {MAX_LAYERS}"
    if name.endswith("_width") or name.startswith(("n_", "max_")):
        return None if is_number and isinstance(value, int) and value >= 1 else "a whole number from 1"
    return None
