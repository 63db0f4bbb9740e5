"""Text in, an index of the words' usages with their vectors on disk out: ``elmo index``.

The work is that of ``elmo embed``: shards, a manifest, a lock; stopped at any instant, it goes on after the
last whole shard. ``index.json`` comes last: where it is, all is.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.embed.atomic import cannot_write, locked, replacing
from elmo.embed.groups import Group
from elmo.embed.manifest import ShardRecord, read_manifest
from elmo.embed.output_files import OutputFiles
from elmo.embed.pieces import pieces
from elmo.embed.request import EmbedJob, Progress, encode
from elmo.embed.shard import Layout
from elmo.embed.to_files import ToFiles, fingerprint_now
from elmo.errors import ConfigError, OutputError
from elmo.formats.checksums import sha256
from elmo.formats.files import shown
from elmo.lexicon.choice import Choice, Reader, Sample, entry_key
from elmo.lexicon.index import MANIFEST, SHARDS, VERSION, WORDS, Index, escaped
from elmo.lexicon.usage_shard import UsageShard
from elmo.lexicon.usages import Vectors
from elmo.text.source import ErrorPolicy, InputFormat, Tally

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


@dataclass(frozen=True)
class IndexJob:
    """What to read, which words of it to take, and where to put them."""

    inputs: tuple[str, ...]  # files, globs, folders, "-"
    out: Path  # a folder
    words: tuple[str, ...] | None = None  # None: all
    limit: int | None = None  # usages of one word; of more, a sample
    layers: str | int = "average"  # as in Elmo.encode, but one vector a word
    input_format: InputFormat = "text"
    split: bool = False
    errors: ErrorPolicy = "strict"
    dtype: Literal["float32", "float16"] = "float16"
    start: Literal["zero", "warm"] = "zero"
    keep_case: bool = False  # Bank is another word than bank
    seed: int = 0
    shard_tokens: int | None = None  # None: as many as make a shard of about 64 MB, within reason
    restart: bool = False

    def __post_init__(self) -> None:
        if self.layers == "all":
            raise ConfigError(
                "a usage has one vector: layers must be average, top, concat or a number, not all"
            )
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be at least 1, found {self.limit}")
        if self.limit is not None and "-" in self.inputs:
            raise ConfigError("a sample needs to read the text twice, which stdin cannot be; save it first")

    def embedding(self) -> EmbedJob:
        """The part of it that ``elmo embed`` does."""
        return EmbedJob(
            inputs=self.inputs, out=self.out / SHARDS, layers=self.layers, input_format=self.input_format,
            split=self.split, errors=self.errors, dtype=self.dtype, start=self.start, restart=self.restart,
            shard_tokens=self.shard_tokens,
        )  # fmt: skip


def build_index(job: IndexJob, elmo: Elmo, *, on_progress: Callable[[Progress], None] | None = None) -> Index:
    """Make the index, or what is left of it."""
    embedding = job.embedding()
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    encode([], embedding, elmo)  # a wrong option is told before anything is written
    tally = Tally()
    choice = Choice(job.words, key=entry_key(elmo, keep_case=job.keep_case))
    files = OutputFiles(job.out / SHARDS)
    sentences = embedding.sentences(elmo.tokenizer, tally)  # a missing file is told at once
    _make_folder(job.out)
    with locked(files.lock, subject=job.out) as lock:
        sample = None
        if job.limit is not None:
            again = embedding.sentences(elmo.tokenizer)
            sample = Sample(again, choice, limit=job.limit, seed=job.seed)
        reader = Reader(choice, sample)
        work = ToFiles(
            embedding, elmo, files=files, lock=lock, limit=embedding.tokens_per_shard(layout),
            report=on_progress or (lambda _: None), maker=_Maker(embedding, elmo, layout, files),
            options={
                "words": None if job.words is None else list(job.words), "limit": job.limit,
                "seed": job.seed, "keep_case": job.keep_case,
            },
        )  # fmt: skip
        if job.restart:
            (job.out / MANIFEST).unlink(missing_ok=True)
        summary = work.run(reader.used(sentences), tally)
        if not (summary.was_complete and (job.out / MANIFEST).exists()):
            _finish(job, elmo, reader, files)
    return Index(job.out)


class _Maker:
    """Makes shards of usages."""

    def __init__(self, job: EmbedJob, elmo: Elmo, layout: Layout, files: OutputFiles) -> None:
        self.job, self.elmo, self.layout, self.files = job, elmo, layout, files

    def vectors(self, group: Group, on_piece: Callable[[int, int], None] | None = None) -> Vectors:
        """Those of the wanted words only; of a phrase the mean."""
        sentences: Any = group.sentences
        vectors = self.layout.empty(sum(len(sentence.spans) for sentence in sentences))
        n_sentences = n_tokens = at = 0
        for piece in pieces(sentences, batch_size=None):
            for sentence, encoding in zip(piece, encode(piece, self.job, self.elmo), strict=True):
                begins, ends = np.array(sentence.spans).T
                rows = np.asarray(encoding.vectors)[begins]
                for k in np.flatnonzero(ends - begins > 1):
                    phrase = np.asarray(encoding.vectors)[begins[k] : ends[k]]
                    rows[k] = phrase.mean(axis=0, dtype=np.float32)
                vectors[at : at + len(rows)] = rows
                at += len(rows)
                n_tokens += len(encoding)
            n_sentences += len(piece)
            if on_piece is not None:
                on_piece(n_sentences, n_tokens)
        return vectors

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard, whole or not at all."""
        sentences: Any = group.sentences
        path = self.files.shard(group.index, is_only=group.is_last and group.index == 0)
        with replacing(path) as temporary, temporary.open("xb") as file:
            UsageShard.of(sentences, vectors).write(file)
        return ShardRecord(
            file=path.name, sha256=sha256(path), first=group.first, sentences=len(sentences),
            tokens=group.n_tokens, input=group.digest,
        )  # fmt: skip


def _make_folder(folder: Path) -> None:
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{shown(folder)}: expected the name of a folder, found a file")
        is_other = folder.is_dir() and any(folder.iterdir()) and not OutputFiles(folder / SHARDS).is_known()
        if is_other:
            raise OutputError(f"{shown(folder)}: this folder holds other files; name an empty or a new one")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from error


def _finish(job: IndexJob, elmo: Elmo, reader: Reader, files: OutputFiles) -> None:
    """Write the list of words, and the file that says that all is there."""
    shards = [UsageShard.read(job.out / record.file) for record in read_manifest(files.manifest).shards]
    n_words = n_usages = 0
    with replacing(job.out / WORDS) as temporary, temporary.open("x", encoding="utf-8", newline="\n") as file:
        file.write("word\tusages\toccurrences\n")
        for entry, n in _merged(shards):
            occurrences = n if reader.counts is None else reader.counts[entry]
            file.write(f"{escaped(entry)}\t{n}\t{occurrences}\n")
            n_words, n_usages = n_words + 1, n_usages + n
    values: Mapping[str, Any] = {
        "version": VERSION,
        "model": fingerprint_now(elmo, start=job.start),
        "tokenizer": getattr(elmo.tokenizer, "name", type(elmo.tokenizer).__name__),
        "layers": job.layers, "start": job.start, "keep_case": job.keep_case,
        "is_simplified": elmo.config.alphabet == "simplified",
        "width": shards[0].vectors.shape[1], "dtype": job.dtype,
        "sentences": reader.n_sentences, "tokens": reader.n_tokens, "words": n_words, "usages": n_usages,
    }  # fmt: skip
    with replacing(job.out / MANIFEST) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _merged(shards: list[UsageShard]) -> Iterator[tuple[str, int]]:
    """All entries in the order of their bytes, with the number of their usages."""

    def raw(item: tuple[str, int]) -> bytes:
        return item[0].encode("utf-8", "surrogatepass")

    merged = heapq.merge(*(shard.entries() for shard in shards), key=raw)
    for entry, same in groupby(merged, key=lambda item: item[0]):
        yield entry, sum(n for _, n in same)
