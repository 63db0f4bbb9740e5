"""The folder of a whole index in, a place beside it out, where a new one is made that then takes its place.

Until the new index is whole, the old one is as it was, whatever happens: a full disk, Ctrl-C, a kill.

Text in, an index of the words' usages with their vectors on disk out: ``elmo index``.

The work is that of ``elmo embed``: shards, a manifest, a lock; stopped at any instant, it goes on after the
last whole shard. ``index.json`` comes last: where it is, all is.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.engine.batches import Group, pieces
from elmo.errors import ConfigError, DataError, OutputError
from elmo.jobs.plan import EmbedJob, OutputFiles, Progress, ShardRecord, encode, read_manifest
from elmo.jobs.run import ToFiles, fingerprint_now
from elmo.jobs.shard import Layout
from elmo.lexicon.index import MANIFEST, SHARDS, VERSION, WORDS, Index, UsageShard
from elmo.lexicon.usages import Choice, Reader, Sample, UsedSentence, Vectors, entry_key
from elmo.storage.atomic import cannot_write, locked, replacing
from elmo.storage.checksums import sha256
from elmo.storage.files import shown, sync
from elmo.text.lines import escaped
from elmo.text.reader import ErrorPolicy, InputFormat, Tally, expand, with_a_word

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


ANEW = ".anew"  # within the old index's folder: on the same disk, and known to be ours


def is_whole(folder: Path) -> bool:
    """Whether an index is there and can be read."""
    try:
        return len(Index(folder).words) >= 0
    except DataError:
        return False


@contextmanager
def beside(folder: Path, *, inputs: tuple[str, ...]) -> Iterator[Path]:
    """Where to make the new index; on leaving it takes the place of the old, after an error it is gone."""
    place = folder.resolve()
    if any(path != "-" and place in path.resolve().parents for path in expand(inputs)):
        raise OutputError(f"{shown(folder)}: lies among the input, which would then change; put it elsewhere")
    aside = folder / ANEW
    with locked(OutputFiles(folder / SHARDS).lock, subject=folder):
        settle(folder)
        try:
            yield aside
        except OutputError as error:
            _forget(aside)
            raise OutputError(f"{error}; the old index is as it was") from error
        except BaseException:
            _forget(aside)
            raise
        _take_over(aside, folder)


def settle(folder: Path) -> None:
    """Finish what a killed run had all but done, and forget what it had not; call it with the lock held."""
    aside = folder / ANEW
    if (aside / MANIFEST).exists():
        _take_over(aside, folder)
    _forget(aside)


def _take_over(aside: Path, folder: Path) -> None:
    """Move the new files over the old; killed at any instant, it may be done again from its beginning."""
    files = OutputFiles(folder / SHARDS)
    try:
        (folder / MANIFEST).unlink(missing_ok=True)  # so that nobody reads half of each
        for path in sorted(aside.iterdir()):
            if path.name not in (MANIFEST, files.lock.name):  # the lock that is held stays where it is
                path.replace(folder / path.name)
        files.remove_strays(folder / record.file for record in read_manifest(files.manifest).shards)
        sync(folder)
        (aside / MANIFEST).replace(folder / MANIFEST)
        sync(folder)
        _forget(aside)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _forget(aside: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)


_log = logging.getLogger(__name__)


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
    """Make the index, or what is left of it; ``restart`` keeps a whole one until the new one is whole."""
    if not (job.restart and is_whole(job.out)):
        return _build(job, elmo, on_progress)
    with beside(job.out, inputs=job.inputs) as aside:
        _build(replace(job, out=aside), elmo, on_progress)
    return Index(job.out)


def _build(job: IndexJob, elmo: Elmo, on_progress: Callable[[Progress], None] | None) -> Index:
    embedding = job.embedding()
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    encode([], embedding, elmo)  # a wrong option is told before anything is written
    tally = Tally()
    choice = Choice(job.words, key=entry_key(elmo, keep_case=job.keep_case))
    files = OutputFiles(job.out / SHARDS)
    # a missing file is told at once, and so is a text of which no index can be made
    sentences = with_a_word(embedding.sentences(elmo.tokenizer, tally), named=job.inputs)
    _make_folder(job.out)
    with locked(files.lock, subject=job.out) as lock:
        settle(job.out)
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

        def used() -> Iterator[UsedSentence]:
            if not work.manifest.is_complete:  # asked only when the job has found out what it goes on from
                (job.out / MANIFEST).unlink(missing_ok=True)
            yield from reader.used(sentences)

        summary = work.run(used(), tally)
        if not summary.was_complete or not is_whole(job.out):
            _finish(job, elmo, reader, files)
        _tell(tally)
    return Index(job.out)


def _tell(tally: Tally) -> None:
    if tally.repaired:
        _log.warning("lines repaired that were not UTF-8: %d", tally.repaired)
    if tally.skipped:
        _log.warning("lines left out that were not UTF-8: %d", tally.skipped)


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
    counts: Counter[str] = Counter()
    sizes: list[int] = []
    width = 0
    for record in read_manifest(files.manifest).shards:
        shard = UsageShard.read(job.out / record.file)
        counts.update(dict(shard.entries()))
        sizes.append(len(shard))
        width = shard.vectors.shape[1]
    with replacing(job.out / WORDS) as temporary, temporary.open("x", encoding="utf-8", newline="\n") as file:
        file.write("word\tusages\toccurrences\n")
        for entry, n in sorted(counts.items()):
            occurrences = n if reader.counts is None else reader.counts[entry]
            file.write(f"{escaped(entry)}\t{n}\t{occurrences}\n")
    values: Mapping[str, Any] = {
        "version": VERSION,
        "model": fingerprint_now(elmo, start=job.start),
        "tokenizer": getattr(elmo.tokenizer, "name", type(elmo.tokenizer).__name__),
        "layers": job.layers, "start": job.start, "keep_case": job.keep_case,
        "is_simplified": elmo.config.alphabet == "simplified",
        "width": width, "dtype": job.dtype,
        "sentences": reader.n_sentences, "tokens": reader.n_tokens, "words": len(counts),
        "usages": sum(sizes), "shards": sizes,
    }  # fmt: skip
    with replacing(job.out / MANIFEST) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
