"""The path of ``--out`` in, the name of every file that a job may write out.

What a job is asked, what it tells on its way, and what it did: frozen dataclasses of ``elmo embed``.

The state of a job as JSON beside its output: what it was asked, and which shards are whole.

The manifest is written anew, atomically, after each shard; what it does not list does not exist. It holds
no time and no machine, so that two runs of one job end with the same bytes.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from elmo.embed.encoding import Encoding
from elmo.errors import ConfigError, DataError, ElmoError, OutputError
from elmo.jobs.shard import Layout
from elmo.jobs.writers import HDF5_SUFFIXES, SUFFIXES
from elmo.storage.atomic import cannot_write, replacing, temporary_name
from elmo.storage.files import names, read_json, shown
from elmo.text.reader import ErrorPolicy, InputFormat, Sentence, Tally, expand, read_sentences
from elmo.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


class OutputFiles:
    """``vectors.npz``: that file, or ``vectors-00000.npz``, …, and ``vectors.npz.manifest.json`` beside it.

    ``vectors.hdf5``: that file; its shards are staged in ``vectors.hdf5.parts/`` until the last is there.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.suffix = out.suffix.lower()
        if self.suffix not in SUFFIXES:
            raise OutputError(
                f"{shown(out)}: expected a name that ends in {', '.join(SUFFIXES)}, found {out.suffix!r}"
            )
        self.is_assembled = self.suffix in HDF5_SUFFIXES
        self.folder = out.parent
        self.manifest = _manifest(out)
        self.lock = out.with_name(f".{out.name}.lock")
        self.shard_folder = out.with_name(f"{out.name}.parts") if self.is_assembled else out.parent
        self.shard_suffix = ".safetensors" if self.is_assembled else out.suffix
        self._prefix = "part" if self.is_assembled else out.stem

    def shard(self, index: int, *, is_only: bool) -> Path:
        """Where a shard goes; ``is_only``: the job has no other."""
        if is_only and not self.is_assembled:
            return self.out
        return self.shard_folder / f"{self._prefix}-{index:05d}{self.shard_suffix}"

    def make_folders(self) -> None:
        """Make the folders that are not there yet."""
        try:
            if self.out.is_dir():
                raise OutputError(f"{shown(self.out)}: expected the name of a file, found a folder")
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise cannot_write(self.out, error) from error

    def is_known(self) -> bool:
        """Whether a job has begun to write here."""
        return self.manifest.exists() or self.lock.exists()

    def existing(self) -> list[Path]:
        """Files of earlier runs: whole shards and the file asked for itself, the manifest apart."""
        found = [self.shard_folder / name for name in names(self.shard_folder) if self._is_shard(name)]
        return [self.out, *found] if self.out.is_file() else found

    def remove_strays(self, keep: Iterable[Path]) -> None:
        """Remove what killed runs left: temporary files, and whole shards that are not to ``keep``.

        Call it with the lock held.
        """
        kept = set(keep)
        try:
            for path in [*self.existing(), *self._temporaries()]:
                if path not in kept:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(self.out, error) from error

    def remove_parts(self) -> None:
        """Remove the staged shards of a file that has been put together."""
        if self.is_assembled:
            shutil.rmtree(self.shard_folder, ignore_errors=True)

    def _is_shard(self, name: str) -> bool:
        pattern = rf"{re.escape(self._prefix)}-\d{{5,}}{re.escape(self.shard_suffix)}"
        # "a-00000.npz" may be the whole output of another job, which then has a manifest of its own
        return re.fullmatch(pattern, name) is not None and not _manifest(self.shard_folder / name).exists()

    def _temporaries(self) -> list[Path]:
        found = [self.folder / temporary_name(path.name) for path in (self.out, self.manifest)]
        for name in names(self.shard_folder):
            inner = name.removeprefix(".").removesuffix(".part")
            if name == temporary_name(inner) and self._is_shard(inner):
                found.append(self.shard_folder / name)
        return found


def _manifest(out: Path) -> Path:
    return out.with_name(f"{out.name}.manifest.json")


SHARD_BYTES = 1 << 26  # vectors of one shard, unless asked otherwise
SHARD_TOKENS = 1 << 17  # however small their vectors: tokens take some 200 bytes each while they are read


@dataclass(frozen=True)
class EmbedJob:
    """What to read, what to make of it, and where to put it."""

    inputs: tuple[str, ...]  # files, globs, folders, "-"
    out: Path | None = None  # its suffix is the format; None: JSON lines on a stream
    layers: str | int = "average"  # as in Elmo.encode
    input_format: InputFormat = "text"
    split: bool = False  # lines of text into sentences
    errors: ErrorPolicy = "strict"  # bytes that are no UTF-8
    dtype: Literal["float32", "float16"] = "float32"
    start: Literal["zero", "warm"] = "zero"
    batch_size: int | None = None  # changes the speed, never the vectors; None: by tokens, as encode does
    shard_tokens: int | None = None  # None: as many as make a shard of about 64 MB, within reason
    restart: bool = False  # begin anew, whatever is there
    workers: int = 1  # processes that share the work; changes the speed, never the vectors
    devices: tuple[str, ...] = ()  # dealt out to the workers; none: that of the model

    def __post_init__(self) -> None:
        for name in ("batch_size", "shard_tokens", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}")
        if self.workers > 1 and self.out is None:
            raise ConfigError(
                f"{self.workers} workers need a file to write: give an output (--out), or take one worker"
            )
        if len(self.devices) > self.workers:
            raise ConfigError(
                f"{len(self.devices)} devices need as many workers, found {self.workers}; give --workers"
            )
        if len({name.partition(":")[0] for name in self.devices}) > 1:
            raise ConfigError(f"devices must be of one kind, found {', '.join(self.devices)[:80]}")

    def tokens_per_shard(self, layout: Layout) -> int:
        """At most so many, but for one longer sentence."""
        return self.shard_tokens or min(max(1, SHARD_BYTES // layout.token_bytes), SHARD_TOKENS)

    def may_wait(self) -> bool:
        """Whether its input is another program's output, which may come late or never."""
        return any(path == "-" or not path.is_file() for path in expand(self.inputs))

    def sentences(self, tokenizer: Tokenizer, tally: Tally | None = None) -> Iterator[Sentence]:
        """The input, tokenised; it is looked up at once and read as it is used."""
        return read_sentences(
            self.inputs,
            tokenizer=tokenizer,
            input_format=self.input_format,
            split=self.split,
            errors=self.errors,
            tally=tally,
        )


@dataclass(frozen=True)
class Plan:
    """What a job would do, from its text alone; bytes are estimates."""

    sentences: int
    tokens: int
    shards: int
    tokens_per_shard: int
    output_bytes: int
    memory_bytes: int  # of the whole process at its highest
    files: tuple[Path, ...]  # that would be written, in order; the manifest is the last


@dataclass(frozen=True)
class Progress:
    """How far a job came."""

    stage: Literal["embedding", "assembling", "predicting"]
    sentences: int  # done so far, those of earlier runs included
    tokens: int
    shards: int  # whole so far
    kept: int  # sentences that an earlier run had done


@dataclass(frozen=True)
class Summary:
    """What a job did."""

    sentences: int
    tokens: int
    kept: int  # sentences that an earlier run had done
    was_complete: bool  # an earlier run had done all of it: nothing was written
    files: tuple[Path, ...]  # of the output, in order
    manifest: Path | None
    repaired_lines: int  # with bytes that were no UTF-8
    skipped_lines: int
    is_cut_short: bool = False  # whoever read the stream has closed it


def encode(sentences: Sequence[Sentence], job: EmbedJob, elmo: Elmo) -> list[Encoding]:
    """Each sentence's vectors as the job wants them; ``OutputError`` when a number does not fit its type."""
    found = elmo.encode(
        [sentence.tokens for sentence in sentences],
        layers=cast("Any", job.layers),
        start=job.start,
        batch_size=job.batch_size,
        dtype=job.dtype,
    )
    for sentence, encoding in zip(sentences, found, strict=True):
        if not np.isfinite(np.asarray(encoding.vectors)).all():
            raise OutputError(
                f"{sentence.place}: a number of its vectors does not fit {job.dtype}; use float32"
            )
    return found


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
