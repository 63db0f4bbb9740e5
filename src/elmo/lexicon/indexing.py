"""Build an index of the words of a corpus (``elmo index``).

Building an index is an embedding job with shards, a manifest and a lock. An interrupted job resumes after its
last complete shard. ``index.json`` is written last, so an index that has this file is complete. To rebuild an
index, a new index is built in a subfolder. It replaces the old index when it is complete; until then, the old
index stays usable.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np

from elmo.engine.batches import split_batches
from elmo.errors import ConfigError, DataError, OutputError
from elmo.jobs.groups import Group
from elmo.jobs.manifest import OutputFiles, read_manifest
from elmo.jobs.plan import EmbedJob, Progress, encode_sentences
from elmo.jobs.shard import Layout
from elmo.jobs.sharded import ShardedRun, compute_fingerprint, keep_split
from elmo.jobs.workers import ShardMaker
from elmo.lexicon.index import MANIFEST, SHARDS, VERSION, WORDS, Index, UsageShard, UsedSentence
from elmo.lexicon.lance import LanceIndex, check_library
from elmo.lexicon.usages import Reservoir, Vectors, WordFilter, check_one_vector, entry_key
from elmo.storage.atomic import atomic_file, cannot_write, check_own, hold_lock, sync
from elmo.storage.files import format_path
from elmo.text.lines import ErrorPolicy, Tally, escape_field
from elmo.text.reader import InputFormat, Sentence, require_words

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice

logger = logging.getLogger(__name__)

REBUILD = ".anew"  # folder of a new index inside the folder of the old one, so on the same disk


@dataclass(frozen=True)
class IndexJob:
    """The text to index, and the options of ``build_index``.

    Args:
        inputs: Files, globs or folders of text, compressed or not; - is stdin.
        out: Folder of the index.
        words: Words or phrases to index; all words by default.
        limit: Maximum number of usages per word; if there are more, a random sample is used. Default: no limit.
        layers: Vectors of the usages: sense, average, top, concat or the number of a layer.
        input_format: Format of the input: raw text or tokens separated by spaces, with one sentence per line, or
            CoNLL-U.
        split: Split lines of text into sentences. Default: if they are paragraphs.
        errors: What to do with bytes that are not UTF-8: stop, replace them, skip the line, or keep them as surrogate
            escapes.
        dtype: Type of the vectors on disk.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.
        keep_case: Treat Bank and bank as different words.
        seed: Random seed for sampling usages.
        approximate: Also build an approximate index, for fast searches in many millions of usages.
        to: Also store the usages in a Lance table, for approximate searches in corpora beyond memory.
        shard_tokens: Maximum number of tokens per shard; by default, shards have about 64 MB of vectors.
        restart: Start over instead of resuming an unfinished index; a complete index is kept until the new one is
            complete.
        workers: Number of processes; affects the speed, not the index.
        runner: What runs the workers: processes of this machine ("local"), "ray" or "spark"; affects the speed, not the
            index. On a cluster, the index must be on storage that all machines share.
        cluster: Address of the Ray cluster, such as "auto", or master of Spark, such as "spark://host:7077". Default:
            this machine, or the cluster that this process is connected to.

    Example:
        >>> job = IndexJob(("corpus.txt",), Path("bank-index"), words=("bank",))
    """

    inputs: tuple[str, ...]
    out: Path
    words: tuple[str, ...] | None = None
    limit: int | None = None
    layers: LayerChoice | int = "sense"
    input_format: InputFormat = "text"
    split: bool | None = None
    errors: ErrorPolicy = "strict"
    dtype: Literal["float16", "float32"] = "float16"
    start: Literal["zero", "warm"] = "zero"
    keep_case: bool = False
    seed: int = 0
    approximate: bool = False
    to: Literal["lance"] | None = None
    shard_tokens: int | None = None
    restart: bool = False
    workers: int = 1
    runner: Literal["local", "ray", "spark"] = "local"
    cluster: str | None = None

    def __post_init__(self) -> None:
        check_one_vector(self.layers)
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", self.out.as_posix()):  # "s3://bucket" as a Path
            raise ConfigError(f"{format_path(self.out)}: an index must be in a local folder, not in an object store")
        if self.to not in (None, "lance"):
            raise ConfigError(f"to must be 'lance' or None; found {self.to!r:.40}")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit must be at least 1; found {self.limit}")
        if self.limit is not None and "-" in self.inputs:
            raise ConfigError("cannot use limit with stdin: the text is read twice; use a file")
        self.embed_job()  # checks the other options

    def embed_job(self) -> EmbedJob:
        """Return the embedding job that computes the vectors."""
        return EmbedJob(
            inputs=self.inputs, out=self.out / SHARDS, layers=self.layers, input_format=self.input_format,
            split=self.split, errors=self.errors, dtype=self.dtype, start=self.start, restart=self.restart,
            shard_tokens=self.shard_tokens, workers=self.workers, runner=self.runner, cluster=self.cluster,
        )  # fmt: skip


def build_index(
    job: IndexJob,
    elmo: Elmo,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_graph_progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Build an index, or resume an unfinished one.

    Args:
        job: The text to index, and the options.
        elmo: The model.
        on_progress: Called with the progress of the embedding job.
        on_graph_progress: Called with the number of usages in the approximate index, or in the Lance table, and the
            total number.

    Example:
        >>> index = build_index(IndexJob(("corpus.txt",), Path("built")), elmo)
        >>> len(index.numbers("bank"))
        6
    """
    if job.to == "lance":
        check_library()  # before hours of embedding
    if job.restart and is_complete(job.out):
        with _rebuild(job) as new:
            _build(new, elmo, on_progress)
    else:
        _build(job, elmo, on_progress)
    index = Index(job.out)
    if job.approximate:
        from elmo.lexicon.neighbors import ApproximateIndex

        ApproximateIndex.build(index, on_progress=on_graph_progress)
    if job.to == "lance":
        LanceIndex.build(index, on_progress=on_graph_progress)
    return index


def is_complete(folder: Path) -> bool:
    """Return whether a folder contains a complete and readable index."""
    try:
        return len(Index(folder).words) >= 0
    except DataError:
        return False


def _build(job: IndexJob, elmo: Elmo, on_progress: Callable[[Progress], None] | None) -> None:
    embed_job = job.embed_job()
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    encode_sentences([], embed_job, elmo)  # reports invalid options before anything is written
    tally = Tally()
    word_filter = WordFilter(job.words, key=entry_key(elmo, keep_case=job.keep_case))
    files = OutputFiles(job.out / SHARDS)
    embed_job = keep_split(embed_job, files)
    # Missing files and text without any word are reported before anything is written.
    sentences = require_words(embed_job.sentences(elmo.tokenizer, tally), inputs=job.inputs)
    _make_folder(job.out)
    with hold_lock(files.lock, subject=job.out) as lock:
        _finish_rebuild(job.out)
        reader = _UsageReader(word_filter)
        if job.limit is not None:
            reader.sample(embed_job.sentences(elmo.tokenizer), limit=job.limit, seed=job.seed)
        work = ShardedRun(
            embed_job, elmo, files=files, lock=lock, limit=embed_job.tokens_per_shard(layout),
            report=on_progress or (lambda _: None),
            maker=_UsageShardMaker(embed_job, elmo),
            options={
                "words": None if job.words is None else list(job.words), "limit": job.limit,
                "seed": job.seed, "keep_case": job.keep_case,
            },
        )  # fmt: skip

        def read() -> Iterator[UsedSentence]:
            if not work.manifest.is_complete:  # known once the job starts to read its input
                (job.out / MANIFEST).unlink(missing_ok=True)
            yield from reader.read(sentences)

        summary = work.run(read(), tally)
        if not summary.was_complete or not is_complete(job.out):
            _write_description(job, elmo, reader, files)
        if tally.repaired:
            logger.warning("%d lines were not valid UTF-8 and were repaired", tally.repaired)
        if tally.skipped:
            logger.warning("%d lines were not valid UTF-8 and were skipped", tally.skipped)


def _make_folder(folder: Path) -> None:
    try:
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{format_path(folder)}: expected a folder, found a file")
        if folder.is_dir() and any(folder.iterdir()) and not OutputFiles(folder / SHARDS).is_known():
            raise OutputError(f"{format_path(folder)}: this folder has other files; use an empty or a new folder")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from error


class _UsageReader:
    """Finds the words to index in sentences, and counts sentences and tokens."""

    def __init__(self, word_filter: WordFilter) -> None:
        self._filter = word_filter
        self._sampled: frozenset[int] | None = None  # numbers of the sampled usages; None for all usages
        self.counts: Counter[str] | None = None  # occurrences in the corpus; None without a sample
        self.n_sentences = self.n_tokens = 0

    def sample(self, sentences: Iterable[Sentence], *, limit: int, seed: int) -> None:
        """Read the text once, and choose a random sample of at most ``limit`` usages of each word."""
        reservoirs: dict[str, Reservoir[int]] = {}
        number = 0
        for sentence in sentences:
            for _, entry in self._filter.find(sentence.tokens.tokens):
                if entry not in reservoirs:
                    reservoirs[entry] = Reservoir(limit, seed=seed, entry=entry)
                reservoirs[entry].add(number)
                number += 1
        self.counts = Counter({entry: reservoir.n for entry, reservoir in reservoirs.items()})
        self._sampled = frozenset(n for reservoir in reservoirs.values() for n in reservoir.sample())

    def read(self, sentences: Iterable[Sentence]) -> Iterator[UsedSentence]:
        """Yield the sentences that have words to index."""
        number = 0
        for sentence in sentences:
            self.n_sentences += 1
            self.n_tokens += len(sentence)
            matches = self._filter.find(sentence.tokens.tokens)
            if self._sampled is not None:
                first, number = number, number + len(matches)
                matches = [match for n, match in enumerate(matches, start=first) if n in self._sampled]
            if matches:
                yield UsedSentence(
                    sentence.tokens, sentence.path, sentence.line, sentence.start,
                    spans=tuple(span for span, _ in matches), entries=tuple(entry for _, entry in matches),
                )  # fmt: skip


class _UsageShardMaker(ShardMaker):
    """Makes shards with the vectors of usages instead of all tokens."""

    def vectors(self, group: Group, on_batch: Callable[[int, int], None] | None = None) -> Vectors:
        """Compute the vectors of the usages; the vector of a phrase is the mean of its tokens' vectors."""
        sentences = cast("Sequence[UsedSentence]", group.sentences)
        vectors = self.empty(sum(len(sentence.spans) for sentence in sentences))
        n_sentences = n_tokens = n_usages = 0
        for batch in split_batches(sentences, batch_size=None):
            for sentence, encoding in zip(batch, encode_sentences(batch, self.job, self.elmo), strict=True):
                begins, ends = np.array(sentence.spans).T
                tokens = np.asarray(encoding.vectors)
                rows = tokens[begins]
                for k in np.flatnonzero(ends - begins > 1):
                    rows[k] = tokens[begins[k] : ends[k]].mean(axis=0, dtype=np.float32)
                vectors[n_usages : n_usages + len(rows)] = rows
                n_usages += len(rows)
                n_tokens += len(encoding)
            n_sentences += len(batch)
            if on_batch is not None:
                on_batch(n_sentences, n_tokens)
        return vectors

    def _write_shard(self, group: Group, vectors: Vectors, file: BinaryIO) -> None:
        UsageShard.build(cast("Sequence[UsedSentence]", group.sentences), vectors).write(file)


def _write_description(job: IndexJob, elmo: Elmo, reader: _UsageReader, files: OutputFiles) -> None:
    """Write the list of words and then ``index.json``, which marks the index as complete."""
    counts: Counter[str] = Counter()
    sizes: list[int] = []
    width = 0
    for record in read_manifest(files.manifest).shards:
        shard = UsageShard.read(job.out / record.file)
        counts.update(dict(shard.entries()))
        sizes.append(len(shard))
        width = shard.vectors.shape[1]
    with atomic_file(job.out / WORDS) as temporary, temporary.open("x", encoding="utf-8", newline="\n") as file:
        file.write("word\tusages\toccurrences\n")
        for entry, n in sorted(counts.items()):
            n_occurrences = n if reader.counts is None else reader.counts[entry]
            file.write(f"{escape_field(entry)}\t{n}\t{n_occurrences}\n")
    values: dict[str, Any] = {
        "version": VERSION,
        "model": compute_fingerprint(elmo, start=job.start, layers=job.layers),
        "source": elmo.source,
        "tokenizer": getattr(elmo.tokenizer, "name", type(elmo.tokenizer).__name__),
        "layers": job.layers, "start": job.start, "keep_case": job.keep_case,
        "is_simplified": elmo.config.alphabet == "simplified",
        "width": width, "dtype": job.dtype,
        "sentences": reader.n_sentences, "tokens": reader.n_tokens, "words": len(counts),
        "usages": sum(sizes), "shards": sizes,
    }  # fmt: skip
    if elmo.pretrained.alignment is not None:
        values["targets"] = list(elmo.pretrained.alignment.targets)
    with atomic_file(job.out / MANIFEST) as temporary:
        temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


# --- Replacing a complete index ---------------------------------------------------------------------


@contextmanager
def _rebuild(job: IndexJob) -> Iterator[IndexJob]:
    """Provide a job that builds a new index in a subfolder; on success, the new index replaces the old one."""
    folder = job.out
    if any(path != "-" and folder.resolve() in path.resolve().parents for path in job.embed_job().files()):
        raise OutputError(f"{format_path(folder)} contains input files; use another folder for the index")
    new = folder / REBUILD
    with hold_lock(OutputFiles(folder / SHARDS).lock, subject=folder):
        _finish_rebuild(folder)
        try:
            yield replace(job, out=new)
        except OutputError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise OutputError(f"{error}; the old index is unchanged") from error
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _replace_index(folder)


def _finish_rebuild(folder: Path) -> None:
    """Clean up after an interrupted rebuild: install a new index if it is complete, otherwise remove it.

    The caller must hold the lock.
    """
    check_own(folder / REBUILD)
    if (folder / REBUILD / MANIFEST).exists():
        _replace_index(folder)
    shutil.rmtree(folder / REBUILD, ignore_errors=True)


def _replace_index(folder: Path) -> None:
    """Move the new files over the old ones; if this is interrupted, it can be run again."""
    files, new = OutputFiles(folder / SHARDS), folder / REBUILD
    try:
        (folder / MANIFEST).unlink(missing_ok=True)  # so that nobody can open a mixture of both indexes
        for path in sorted(new.iterdir()):
            if path.name not in (MANIFEST, files.lock.name):  # the lock in use stays where it is
                path.replace(folder / path.name)
        files.remove_strays(folder / record.file for record in read_manifest(files.manifest).shards)
        sync(folder)
        (new / MANIFEST).replace(folder / MANIFEST)
        sync(folder)
        shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
