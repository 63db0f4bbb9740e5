"""The state of a job as JSON beside its output: what it was asked, and which shards are whole.

The manifest is written anew, atomically, after each shard; what it does not list does not exist. It holds
no time and no machine, so that two runs of one job end with the same bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from elmo.embed.atomic import replacing
from elmo.errors import DataError, ElmoError
from elmo.formats.files import read_json, shown

VERSION = 1
_LIMIT = 1 << 28  # bytes: about a million shards
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ShardRecord:
    """One whole shard."""

    file: str  # its name, in the folder of the manifest (for HDF5: in the folder of parts)
    sha256: str
    first: int  # index of its first sentence
    sentences: int
    tokens: int
    input: str  # SHA-256 of all sentences from the first of the job to the last of this shard


@dataclass(frozen=True)
class Manifest:
    """A job and how far it came."""

    out: str  # the name that was asked for
    model: str  # its fingerprint
    options: dict[str, Any]  # all that changes the bytes of the output
    shards: tuple[ShardRecord, ...] = ()
    is_complete: bool = False
    sha256: str | None = field(default=None)  # of ``out``, when the shards were put together into one file

    def write(self, path: Path) -> None:
        """Replace the manifest at ``path``."""
        values = {"version": VERSION, **asdict(self)}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="ascii")

    def differences(self, other: Manifest) -> list[str]:
        """Where another job's wishes differ from this one's, each in a few words."""
        found = ["the model"] if self.model != other.model else []
        for name in sorted(self.options.keys() | other.options.keys()):
            ours, theirs = (json.dumps(options.get(name)) for options in (self.options, other.options))
            if ours != theirs:
                found.append(f"{name.replace('_', ' ')} (begun with {ours[:80]}, now {theirs[:80]})")
        return found


def read_manifest(path: Path) -> Manifest:
    """What ``Manifest.write`` wrote; ``DataError`` for anything else."""
    try:
        values = read_json(path, _LIMIT)
    except ElmoError as error:
        raise DataError(str(error)) from error
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise DataError(
            f"{shown(path)}: expected the manifest of an embedding job, version {VERSION}, found another"
        )
    kinds = {
        "out": str,
        "model": str,
        "options": dict,
        "shards": list,
        "is_complete": bool,
        "sha256": str | None,
    }
    if values.keys() != kinds.keys() or not all(isinstance(values[name], kinds[name]) for name in kinds):
        raise DataError(
            f"{shown(path)}: expected the keys {', '.join(kinds)}, found others or of another type"
        )
    values["shards"] = tuple(
        _record(shard, place=f"{shown(path)}: shard {i}") for i, shard in enumerate(values["shards"])
    )
    sums = [shard.sha256 for shard in values["shards"]] + [values["sha256"] or "0" * 64]
    names = [shard.file for shard in values["shards"]] + [values["out"]]
    if not all(_SHA256.fullmatch(value) for value in sums) or not all(map(_is_plain, names)):
        raise DataError(f"{shown(path)}: expected plain file names with their SHA-256, found others")
    at = 0
    for shard in values["shards"]:
        if shard.first != at or shard.sentences < 0 or shard.tokens < 0:
            raise DataError(
                f"{shown(path)}: expected a shard that begins with sentence {at}, found {shard.first}"
            )
        at += shard.sentences
    return Manifest(**values)


def _record(values: Any, *, place: str) -> ShardRecord:
    kinds = {one.name: int if one.type == "int" else str for one in fields(ShardRecord)}
    if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != kinds:
        raise DataError(f"{place}: expected {', '.join(kinds)}, found {str(values)[:80]}")
    return ShardRecord(**values)


def _is_plain(name: str) -> bool:
    """Whether a name stays in its folder."""
    return name not in ("", ".", "..") and "\0" not in name and Path(name).name == name
