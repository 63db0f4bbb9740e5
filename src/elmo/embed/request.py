"""What a job is asked, what it tells on its way, and what it did: frozen dataclasses of ``elmo embed``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from elmo.embed.encoding import Encoding
from elmo.embed.shard import Layout
from elmo.errors import ConfigError, OutputError
from elmo.text.source import ErrorPolicy, InputFormat, Sentence, Tally, expand, read_sentences
from elmo.text.tokens import Tokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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
