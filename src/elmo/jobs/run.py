"""Sentences in; whole shards and their manifest out, from where an earlier run was stopped.

Reading, computing and writing overlap: while the calling thread computes a group's vectors, one thread reads
and tokenises the next group, and another writes the shard of the one before. These three groups are all that
is held, however large the input. With workers, this process reads and keeps the manifest, and each worker
computes and writes a shard at a time; held here is the text of twice as many groups as there are workers.

Files of text in; shards of vectors with a manifest, or JSON lines on a stream, out: ``elmo embed``.

A job may be stopped at any instant, by Ctrl-C, ``kill -9`` or a full disk, and started again with the same
arguments: it goes on after the last whole shard and ends with the same bytes (on the same machine, with as
many threads). Memory is that of the model and of three groups of sentences, one being read, one computed and
one written, whatever the size of the input; with workers, each has the model and one group. Only HDF5, whose
``sentence_to_index`` is one string, holds the distinct sentences' text when it is put together at the end.
"""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from elmo.config import BiLmConfig, n_parameters
from elmo.engine.batches import Group, check_length, split_groups, split_batches
from elmo.errors import DataError, OutputError
from elmo.jobs.pipeline import BackgroundWriter, read_ahead
from elmo.jobs.plan import (
    EmbedJob,
    Manifest,
    OutputFiles,
    JobPlan,
    Progress,
    ShardRecord,
    JobSummary,
    encode,
    read_manifest,
)
from elmo.jobs.reader import read_shard
from elmo.jobs.shard import Layout
from elmo.jobs.worker import ShardMaker, Vectors
from elmo.jobs.workers import Workers, model_folder
from elmo.jobs.writers import check_libraries, json_line, write_hdf5
from elmo.storage.atomic import atomic_file, cannot_write, hold_lock
from elmo.storage.checksums import sha256
from elmo.storage.files import format_path
from elmo.text.reader import Sentence, Tally, expand
from elmo.text.tokenizers import Tokenizer
from elmo.text.tokenizers import tokenizer as tokenizer_by_name

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


class Maker(Protocol):
    """Makes a shard of a group of sentences."""

    def vectors(self, group: Group, on_piece: Callable[[int, int], None] | None = None) -> Vectors:
        """What takes time; ``on_piece`` hears how many sentences and tokens are done."""
        ...

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard; when its record is there, so is the whole file."""
        ...


class ShardedRun:
    """One run of a job that writes files, under its lock.

    Another ``maker`` may put other things into the shards; ``options`` are then what else changes them.
    """

    def __init__(
        self, job: EmbedJob, elmo: Elmo, *, files: OutputFiles, lock: int, limit: int,
        report: Callable[[Progress], None], maker: Maker | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.elmo, self.files, self.lock, self.limit = job, elmo, files, lock, limit
        self.report = report  # called from this thread only
        self.maker = ShardMaker(job, elmo) if maker is None else maker
        self.manifest = Manifest(
            out=files.out.name,
            model=compute_fingerprint(elmo, start=job.start),
            options=_options(job, elmo, limit) | dict(options or {}),
        )
        self.kept = 0
        self.n_sentences = self.n_tokens = 0  # whose vectors are there, if not yet in a whole shard

    def run(self, sentences: Iterator[Sentence], tally: Tally) -> JobSummary:
        """Do what is left of the job."""
        self._begin()
        was_complete = self.manifest.is_complete
        self.kept = self.n_sentences = sum(record.sentences for record in self.manifest.shards)
        self.n_tokens = sum(record.tokens for record in self.manifest.shards)
        with self._groups(sentences) as found:
            self._add_all(self._left_to_do(found))
        if not was_complete:
            self._finish()
        shards = self.manifest.shards
        names = (
            [self.files.out] if self.files.is_assembled else [self.files.folder / one.file for one in shards]
        )
        return JobSummary(
            sentences=sum(one.sentences for one in shards),
            tokens=sum(one.tokens for one in shards),
            kept=self.kept,
            was_complete=was_complete,
            files=tuple(names),
            manifest=self.files.manifest,
            repaired_lines=tally.repaired,
            skipped_lines=tally.skipped,
        )

    def _begin(self) -> None:
        """Find out what an earlier run left, keep what is whole, and remove the rest."""
        files, restart = self.files, self.job.restart
        shutil.rmtree(model_folder(files.out), ignore_errors=True)  # of a killed run's workers
        self._refuse_if_input([files.out, *files.existing()])  # which --restart would remove
        is_new = not files.manifest.exists()
        if is_new and not restart and files.existing():
            raise OutputError(
                f"{format_path(files.existing()[0])}: already exists, without the manifest of a job; name another "
                "output, or use --restart to replace it"
            )
        begun = None if is_new else self._read()
        if begun is not None and not restart:
            self.manifest = self._whole(begun)
        if self.manifest is not begun:
            # Written before any shard, so that what a killed run leaves can be told from a stranger's files.
            self.manifest.write(files.manifest)
        try:
            self._refuse_if_input([files.manifest])  # a folder or pattern of the input takes it in
        except OutputError:
            if is_new:
                files.manifest.unlink()
            raise
        records = self.manifest.shards
        keep = [files.shard_folder / one.file for one in records]
        files.remove_strays([*keep, files.out] if self.manifest.sha256 else keep)
        if self.manifest.is_complete:
            files.remove_parts()

    def _refuse_if_input(self, outputs: list[Path]) -> None:
        out = format_path(self.files.out)
        inputs = {path.resolve() for path in expand(self.job.inputs) if path != "-"}
        if inputs & {path.resolve() for path in outputs}:
            raise OutputError(f"{out}: is one of the inputs, which would then change; put it elsewhere")

    def _read(self) -> Manifest | None:
        """The manifest of an earlier run; None when it is damaged and may be replaced."""
        path = self.files.manifest
        try:
            begun = read_manifest(path)
        except DataError as error:
            if self.job.restart:
                return None
            raise OutputError(f"{error}; use --restart to begin anew") from error
        if begun.out != self.manifest.out:
            raise OutputError(f"{format_path(path)}: belongs to {format_path(begun.out)}; give this output another name")
        differences = begun.differences(self.manifest)
        if differences and not begun.shards and not begun.is_complete:
            return None  # it was stopped before anything was whole: nothing would be lost
        if differences and not self.job.restart:
            raise OutputError(
                f"{format_path(self.files.out)}: was begun differently: {'; '.join(differences)}; give the same "
                "arguments to go on, name another output, or use --restart to begin anew"
            )
        return begun

    def _whole(self, begun: Manifest) -> Manifest:
        """The manifest, cut off before the first shard that is missing or damaged."""
        files = self.files
        if begun.sha256 is not None:
            is_sound = files.out.is_file() and sha256(files.out) == begun.sha256
            return begun if is_sound else replace(begun, shards=(), is_complete=False, sha256=None)
        for index, record in enumerate(begun.shards):
            path = files.shard_folder / record.file
            is_ours = path in (
                files.shard(index, is_only=False),
                files.shard(index, is_only=len(begun.shards) == 1),
            )
            if not (is_ours and path.is_file() and sha256(path) == record.sha256):
                return replace(begun, shards=begun.shards[:index], is_complete=False)
        return begun

    def _check_unchanged(self, record: ShardRecord, group: Group) -> None:
        if record.sentences != len(group.sentences) or record.input != group.digest:
            last = group.first + len(group.sentences)
            raise self._changed(
                f"is not the same any more, somewhere in sentences {group.first + 1} to {last}"
            )

    def _changed(self, how: str) -> OutputError:
        return OutputError(
            f"{format_path(self.files.out)}: the input {how} since this job was begun; give the same input again, "
            "name another output, or use --restart to begin anew"
        )

    def _groups(self, sentences: Iterator[Sentence]) -> AbstractContextManager[Iterator[Group]]:
        """The input in groups, read ahead.

        Not so where workers compute anyway, and not where reading may wait: no thread can be stopped then.
        """
        gather = partial(split_groups, max_tokens=self.limit)
        if self.job.workers > 1 or self.job.may_wait():
            return nullcontext(gather(sentences))
        return read_ahead(sentences, gather)

    def _left_to_do(self, found: Iterable[Group]) -> Iterator[Group]:
        """The groups without a whole shard; the others must be as they were."""
        begun, was_complete, n_groups = self.manifest.shards, self.manifest.is_complete, 0
        for group in found:
            n_groups += 1
            if group.index < len(begun):
                self._check_unchanged(begun[group.index], group)
            elif was_complete:
                raise self._changed("has grown")
            else:
                yield group
        if n_groups < len(begun):
            raise self._changed("has become shorter")

    def _add_all(self, left: Iterator[Group]) -> None:
        """Make the shards of all groups, if there are any."""
        n_before = len(self.manifest.shards)
        if self.job.workers > 1:
            self._add_by_workers(left)
        else:
            self._add_here(left)
        if len(self.manifest.shards) > n_before:
            self._report("embedding")

    def _add_here(self, left: Iterator[Group]) -> None:
        """Compute one shard while the one before is written; Ctrl-C waits for that one, and keeps it."""
        with BackgroundWriter() as behind:
            for group in left:
                vectors = self.maker.vectors(group, partial(self._report, "embedding"))
                behind.do(partial(self._write, group, vectors))
                self._count(len(group.sentences), group.n_tokens)
                self._report("embedding")

    def _add_by_workers(self, left: Iterator[Group]) -> None:
        """Have workers make the shards; they are recorded in their order."""
        first = next(left, None)
        if first is None:
            return
        under_way: _UnderWay = deque()
        try:
            with Workers(self.job, self.elmo, lock=self.lock) as workers:
                try:
                    for group in chain([first], left):
                        while under_way and (
                            len(under_way) == 2 * self.job.workers or under_way[0].is_whole()
                        ):
                            self._take(under_way)
                            self._report("embedding")
                        under_way.append(_Shard(workers.submit(group), is_last=group.is_last))
                    while under_way:
                        self._take(under_way)
                        self._report("embedding")
                except BaseException as error:
                    # Ctrl-C keeps what is whole by now; another error comes after the shards under way
                    while under_way and (isinstance(error, Exception) or under_way[0].is_whole()):
                        self._take(under_way)
                    raise
        except BaseException:
            with suppress(OutputError):
                self.files.remove_strays(self.files.shard_folder / one.file for one in self.manifest.shards)
            raise

    def _take(self, under_way: _UnderWay) -> None:
        """Wait for the first of the shards under way, and record it."""
        record = under_way[0].future.result()
        is_last = under_way.popleft().is_last
        self._record(record, is_last=is_last)
        self._count(record.sentences, record.tokens)

    def _write(self, group: Group, vectors: Vectors) -> None:
        self._record(self.maker.write(group, vectors), is_last=group.is_last)

    def _record(self, record: ShardRecord, *, is_last: bool) -> None:
        """Say that a shard is whole; all before it are, too."""
        is_complete = is_last and not self.files.is_assembled
        self.manifest = replace(
            self.manifest, shards=(*self.manifest.shards, record), is_complete=is_complete
        )
        self.manifest.write(self.files.manifest)

    def _finish(self) -> None:
        """Put the parts of an HDF5 file together, and say that the job is done."""
        files, records = self.files, self.manifest.shards
        if files.is_assembled:
            self._report("assembling")
            parts = [files.shard_folder / one.file for one in records]
            needed, free = sum(part.stat().st_size for part in parts), shutil.disk_usage(files.folder).free
            if free < needed:  # better told now than after an hour of writing
                raise OutputError(
                    f"{format_path(files.out)}: needs {needed:,} bytes, but the disk has {free:,} left; free some "
                    "space and run it again to go on"
                )
            with atomic_file(files.out) as temporary:
                write_hdf5((read_shard(part) for part in parts), temporary)
            self.manifest = replace(self.manifest, sha256=sha256(files.out))
        elif len(records) == 1 and records[0].file != files.out.name:
            # begun when the input was longer: its first shard is now the whole job
            try:
                (files.folder / records[0].file).replace(files.out)
            except OSError as error:
                raise cannot_write(files.out, error) from error
            self.manifest = replace(self.manifest, shards=(replace(records[0], file=files.out.name),))
        elif self.manifest.is_complete:
            return
        self.manifest = replace(self.manifest, is_complete=True)
        self.manifest.write(files.manifest)
        files.remove_parts()

    def _count(self, n_sentences: int, n_tokens: int) -> None:
        self.n_sentences += n_sentences
        self.n_tokens += n_tokens

    def _report(
        self, stage: Literal["embedding", "assembling"], n_sentences: int = 0, n_tokens: int = 0
    ) -> None:
        """Tell how far the job came; a group at hand comes on top of what is counted."""
        self.report(
            Progress(
                stage=stage,
                sentences=self.n_sentences + n_sentences,
                tokens=self.n_tokens + n_tokens,
                shards=len(self.manifest.shards),
                kept=self.kept,
            )
        )


@dataclass(frozen=True)
class _Shard:
    """A shard that a worker makes."""

    future: Future[ShardRecord]
    is_last: bool

    def is_whole(self) -> bool:
        return self.future.done() and not self.future.cancelled() and self.future.exception() is None


_UnderWay = deque[_Shard]  # in the order of their groups


def compute_fingerprint(elmo: Elmo, *, start: str) -> str:
    """Of the weights as they are, and of the warm state where sentences start from it."""
    from elmo.formats.pretrained import fingerprint

    now = replace(elmo.pretrained, weights=elmo.bilm.state_dict())
    return fingerprint(now, with_warm=start == "warm")


def _options(job: EmbedJob, elmo: Elmo, limit: int) -> dict[str, Any]:
    """All that changes the bytes of the output, as JSON values."""
    return {
        "inputs": list(job.inputs),
        "input_format": job.input_format,
        "split": job.split,
        "errors": job.errors,
        "tokenizer": getattr(elmo.tokenizer, "name", type(elmo.tokenizer).__name__),
        "layers": job.layers,
        "start": job.start,
        "dtype": job.dtype,
        "device": elmo.device.type,
        "precision": elmo.precision,
        "shard_tokens": limit,
    }


_LIBRARIES = 300 << 20  # memory of Python and torch themselves, about
_TOKEN_TEXT = 200  # memory of a token with its offsets, about

__all__ = ["EmbedJob", "JobPlan", "Progress", "JobSummary", "plan", "run"]


def plan(job: EmbedJob, model: Elmo | BiLmConfig, *, tokenizer: Tokenizer | None = None) -> JobPlan:
    """Count what a job would read and write; only text is read, and nothing is written.

    With a config alone, ``tokenizer`` stands for the model's own tokeniser (English when not given).
    """
    config = model if isinstance(model, BiLmConfig) else model.config
    if tokenizer is None:
        tokenizer = tokenizer_by_name("en") if isinstance(model, BiLmConfig) else model.tokenizer
    layout = Layout.of(config, layers=job.layers, dtype=job.dtype)
    limit = job.tokens_per_shard(layout)
    files = None if job.out is None else OutputFiles(job.out)
    n_sentences = n_tokens = n_bytes = n_shards = widest_shard = widest_batch = 0
    for group in split_groups(job.sentences(tokenizer), max_tokens=limit):
        lengths = [len(sentence.tokens) for sentence in group.sentences]
        widest_shard = max(widest_shard, group.n_tokens)
        for piece in split_batches(group.sentences, batch_size=job.batch_size):
            widest_batch = max(widest_batch, sum(len(sentence.tokens) for sentence in piece))
        n_shards += 1
        n_sentences += len(lengths)
        n_tokens += group.n_tokens
        n_bytes += sum(len(token) for sentence in group.sentences for token in sentence.tokens.tokens)
    # A number is a dozen characters of JSON; elsewhere a token has its end and offsets, a sentence its place.
    is_json = files is None or files.suffix == ".jsonl"
    numbers = 12 * (layout.n_layers or 1) * layout.width if is_json else layout.token_bytes + 24
    per_sentence = 1000 if files is not None and files.is_assembled else 40  # HDF5: a dataset each
    # The network holds a batch's layers about three times over, a writer its shard twice.
    loaded = _LIBRARIES + 4 * n_parameters(config)
    computing = 3 * widest_batch * 4 * config.n_layers * config.width
    writing, text = 2 * widest_shard * layout.token_bytes, widest_shard * _TOKEN_TEXT
    if job.workers == 1:  # the next group is being computed while a shard is written, and a third is read
        memory = loaded + computing + writing + widest_shard * layout.token_bytes + 3 * text
    else:
        memory = loaded + 2 * job.workers * text + job.workers * (loaded + computing + writing + text)
    written: tuple[Path, ...] = ()
    if files is not None:
        is_one = n_shards == 1 or files.is_assembled
        shards = [files.shard(i, is_only=is_one) for i in range(n_shards)]
        written = (*([files.out] if is_one else shards), files.manifest)
    return JobPlan(
        sentences=n_sentences,
        tokens=n_tokens,
        shards=0 if files is None else n_shards,
        tokens_per_shard=limit,
        output_bytes=n_tokens * numbers + n_bytes + n_sentences * per_sentence,
        memory_bytes=memory,
        files=written,
    )


def run(
    job: EmbedJob,
    elmo: Elmo,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    stdout: TextIO | None = None,
) -> JobSummary:
    """Do the job, or what is left of it; ``stdout`` gets the JSON lines of a job without ``out``.

    ``OutputError`` when the output cannot be written or belongs to another job; whole shards stay.
    """
    layout = Layout.of(elmo.config, layers=job.layers, dtype=job.dtype)
    limit = job.tokens_per_shard(layout)
    encode([], job, elmo)  # a wrong option is told before anything is written
    tally = Tally()
    report = on_progress or (lambda _: None)
    if job.out is None:
        return _to_stream(job, elmo, tally=tally, report=report, stream=stdout or sys.stdout)
    files = OutputFiles(job.out)
    check_libraries(files.suffix)
    sentences = job.sentences(elmo.tokenizer, tally)
    files.make_folders()
    with hold_lock(files.lock, subject=job.out) as lock:
        return ShardedRun(job, elmo, files=files, lock=lock, limit=limit, report=report).run(sentences, tally)


def _to_stream(
    job: EmbedJob, elmo: Elmo, *, tally: Tally, report: Callable[[Progress], None], stream: TextIO
) -> JobSummary:
    """JSON lines on a stream; a reader who has seen enough ends the job quietly."""
    sentences, n_sentences, n_tokens, is_cut_short = job.sentences(elmo.tokenizer, tally), 0, 0, False
    try:
        for batch in split_batches(sentences, batch_size=job.batch_size):
            for sentence in batch:
                check_length(sentence)
            for encoding in encode(batch, job, elmo):
                stream.write(json_line(n_sentences, encoding) + "\n")
                n_sentences += 1
                n_tokens += len(encoding)
            stream.flush()
            report(Progress(stage="embedding", sentences=n_sentences, tokens=n_tokens, shards=0, kept=0))
    except BrokenPipeError:
        is_cut_short = True
        with suppress(OSError):
            stream.close()  # else the interpreter tries to flush it once more as it exits, and complains
    except OSError as error:
        raise cannot_write(Path(getattr(stream, "name", None) or "<stream>"), error) from error
    return JobSummary(
        sentences=n_sentences,
        tokens=n_tokens,
        kept=0,
        was_complete=False,
        files=(),
        manifest=None,
        repaired_lines=tally.repaired,
        skipped_lines=tally.skipped,
        is_cut_short=is_cut_short,
    )
