"""The options of a kind of task in, nothing out: what lies out of range is refused.

Every kind names its options alike, so the name tells the range: dropout is a share, widths, lengths and
counts are whole numbers from 1.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from elmo.errors import ConfigError


def check_options(options: Any) -> None:
    """Refuse an option that no network can be built or trained with."""
    for one in fields(options):
        value = getattr(options, one.name)
        expected = None if value is None and one.default is None else _broken(one.name, value)
        if expected is not None:
            raise ConfigError(f"option {one.name}: expected {expected}, found {value!r:.40}")


def _broken(name: str, value: Any) -> str | None:
    """What was expected; None where the value is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "dropout":
        return None if is_number and 0 <= value < 1 else "a share from 0 to below 1"
    if name == "kept_share":
        return None if is_number and value > 0 and math.isfinite(value) else "a number above 0"
    if name in ("has_crf", "has_singletons", "by_character"):
        return None if isinstance(value, bool) else "true or false"
    if name.endswith("_width") or name.startswith(("n_", "max_")):
        return None if is_number and isinstance(value, int) and value >= 1 else "a whole number from 1"
    return None
