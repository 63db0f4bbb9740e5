"""What an archive may hold: the bounds that its readers keep, and the members that they hand out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elmo.errors import FormatError

MAX_MEMBERS = 4096
MAX_RATIO = 20  # of unpacked to packed size; trained weights reach 1.1, vocabularies 4
FREE_BYTES = 1 << 24  # a member below this may have any ratio
FREE_TOTAL = 1 << 26  # and an archive below this


@dataclass(frozen=True)
class Member:
    """A file or folder of an archive; its bytes can be read until the next member is asked for."""

    name: str  # as the archive spells it: not safe to use as a path
    size: int  # as declared
    is_folder: bool
    read: Callable[[int], bytes]


def check_total(n_bytes: int, packed: int) -> None:
    """Refuse an archive that unpacks to far more than it holds."""
    if n_bytes > MAX_RATIO * packed + FREE_TOTAL:
        raise FormatError(
            f"expected at most {MAX_RATIO} times its {packed} bytes when unpacked, found {n_bytes} or more"
        )
