"""Write the shards of a job and its manifest, and resume where an earlier run stopped.

Reading, computing and writing overlap: while the calling thread computes the vectors of a group, one thread
reads and tokenizes the next group, and another writes the shard of the previous one. Only these three groups
are in memory. With workers, this process reads and updates the manifest, and each worker computes and writes
one shard at a time; this process holds the text of twice as many groups as there are workers.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from elmo.errors import DataError, OutputError
from elmo.jobs.groups import Group, split_groups
from elmo.jobs.manifest import Manifest, OutputFiles, ShardRecord, read_manifest
from elmo.jobs.pipeline import BackgroundWriter, read_ahead
from elmo.jobs.plan import EmbedJob, JobSummary, Progress
from elmo.jobs.reader import read_shard
from elmo.jobs.shard import Vectors
from elmo.jobs.workers import ShardMaker, Workers, model_folder
from elmo.jobs.writers import write_hdf5
from elmo.storage.atomic import atomic_file, cannot_write
from elmo.storage.files import compute_sha256, format_path
from elmo.text.lines import Tally, expand_paths
from elmo.text.reader import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


class Maker(Protocol):
    """Makes a shard from a group of sentences."""

    def vectors(self, group: Group, on_batch: Callable[[int, int], None] | None = None) -> Vectors:
        """Compute the vectors; ``on_batch`` receives the number of sentences and tokens done."""
        ...

    def write(self, group: Group, vectors: Vectors) -> ShardRecord:
        """Write the shard atomically and return its record."""
        ...


class ShardedRun:
    """One run of a job that writes files; the caller holds the lock of the job.

    A different ``maker`` can write other content into the shards; ``options`` are then its options.
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
            options=_output_options(job, elmo, limit) | dict(options or {}),
        )
        self.kept = 0
        self.n_sentences = self.n_tokens = 0  # computed, but maybe not yet in a complete shard

    def run(self, sentences: Iterator[Sentence], tally: Tally) -> JobSummary:
        """Run the rest of the job."""
        self._prepare()
        was_complete = self.manifest.is_complete
        self.kept = self.n_sentences = sum(record.sentences for record in self.manifest.shards)
        self.n_tokens = sum(record.tokens for record in self.manifest.shards)
        with self._read_groups(sentences) as groups:
            self._make_shards(self._skip_done(groups))
        if not was_complete:
            self._finish()
        files, shards = self.files, self.manifest.shards
        outputs = [files.out] if files.is_assembled else [files.folder / record.file for record in shards]
        return JobSummary(
            sentences=sum(record.sentences for record in shards),
            tokens=sum(record.tokens for record in shards),
            kept=self.kept,
            was_complete=was_complete,
            files=tuple(outputs),
            manifest=files.manifest,
            repaired_lines=tally.repaired,
            skipped_lines=tally.skipped,
        )

    def _prepare(self) -> None:
        """Keep the complete shards of an earlier run, and remove its other files."""
        files, restart = self.files, self.job.restart
        shutil.rmtree(model_folder(files.out), ignore_errors=True)  # left by the workers of a killed run
        self._check_not_input([files.out, *files.existing()])  # --restart would remove them
        is_new = not files.manifest.exists()
        if is_new and not restart and files.existing():
            raise OutputError(
                f"{format_path(files.existing()[0])} already exists without a manifest; choose another "
                "output, or use --restart to replace it"
            )
        earlier = None if is_new else self._read_manifest()
        if earlier is not None and not restart:
            self.manifest = self._keep_complete(earlier)
        if self.manifest is not earlier:
            # Write it before any shard, to recognize the files of a killed run.
            self.manifest.write(files.manifest)
        try:
            self._check_not_input([files.manifest])  # a folder or glob of the input may match it
        except OutputError:
            if is_new:
                files.manifest.unlink()
            raise
        keep = [files.shard_folder / record.file for record in self.manifest.shards]
        files.remove_strays([*keep, files.out] if self.manifest.sha256 else keep)
        if self.manifest.is_complete:
            files.remove_parts()

    def _check_not_input(self, outputs: list[Path]) -> None:
        inputs = {path.resolve() for path in expand_paths(self.job.inputs) if path != "-"}
        if inputs & {path.resolve() for path in outputs}:
            raise OutputError(f"{format_path(self.files.out)} is one of the inputs; choose another output")

    def _read_manifest(self) -> Manifest | None:
        """Read the manifest of an earlier run; None if it may be replaced."""
        path = self.files.manifest
        try:
            earlier = read_manifest(path)
        except DataError as error:
            if self.job.restart:
                return None
            raise OutputError(f"{error}; use --restart to start over") from error
        if earlier.out != self.manifest.out:
            raise OutputError(
                f"{format_path(path)} belongs to {format_path(earlier.out)}; choose another name for this output"
            )
        differences = earlier.differences(self.manifest)
        if differences and not earlier.shards and not earlier.is_complete:
            return None  # stopped before the first complete shard: nothing is lost
        if differences and not self.job.restart:
            raise OutputError(
                f"{format_path(self.files.out)} was started with other options: {'; '.join(differences)}; "
                "use the same options to resume, choose another output, or use --restart to start over"
            )
        return earlier

    def _keep_complete(self, earlier: Manifest) -> Manifest:
        """Cut the manifest off before the first shard that is missing or damaged."""
        files = self.files
        if earlier.sha256 is not None:
            is_sound = files.out.is_file() and compute_sha256(files.out) == earlier.sha256
            return earlier if is_sound else replace(earlier, shards=(), is_complete=False, sha256=None)
        for index, record in enumerate(earlier.shards):
            path = files.shard_folder / record.file
            is_ours = path in (files.shard(index, is_only=False), files.shard(index, is_only=len(earlier.shards) == 1))
            if not (is_ours and path.is_file() and compute_sha256(path) == record.sha256):
                return replace(earlier, shards=earlier.shards[:index], is_complete=False)
        return earlier

    def _read_groups(self, sentences: Iterator[Sentence]) -> AbstractContextManager[Iterator[Group]]:
        """Split the input into groups, read ahead in a thread.

        Not with workers, which compute in other processes, and not from a pipe: a thread that waits for input
        cannot be stopped.
        """
        gather = partial(split_groups, max_tokens=self.limit)
        if self.job.workers > 1 or self.job.reads_pipe():
            return nullcontext(gather(sentences))
        return read_ahead(sentences, gather)

    def _skip_done(self, groups: Iterable[Group]) -> Iterator[Group]:
        """Yield the groups without a complete shard; check that the others have not changed."""
        done, was_complete, n_groups = self.manifest.shards, self.manifest.is_complete, 0
        for group in groups:
            n_groups += 1
            if group.index < len(done):
                record, last = done[group.index], group.first + len(group.sentences)
                if record.sentences != len(group.sentences) or record.input != group.digest:
                    raise self._input_error(f"has changed in sentences {group.first + 1} to {last}")
            elif was_complete:
                raise self._input_error("has grown")
            else:
                yield group
        if n_groups < len(done):
            raise self._input_error("has become shorter")

    def _input_error(self, change: str) -> OutputError:
        return OutputError(
            f"{format_path(self.files.out)}: the input {change} since this job was started; use the same "
            "input, choose another output, or use --restart to start over"
        )

    def _make_shards(self, groups: Iterator[Group]) -> None:
        n_before = len(self.manifest.shards)
        if self.job.workers > 1:
            self._make_with_workers(groups)
        else:
            self._make_here(groups)
        if len(self.manifest.shards) > n_before:
            self._report("embedding")

    def _make_here(self, groups: Iterator[Group]) -> None:
        """Compute one shard while the previous one is written; Ctrl-C waits for the write and keeps it."""
        with BackgroundWriter() as writer:
            for group in groups:
                vectors = self.maker.vectors(group, partial(self._report, "embedding"))
                writer.submit(partial(self._write, group, vectors))
                self._count(len(group.sentences), group.n_tokens)
                self._report("embedding")

    def _write(self, group: Group, vectors: Vectors) -> None:
        self._record(self.maker.write(group, vectors), is_last=group.is_last)

    def _make_with_workers(self, groups: Iterator[Group]) -> None:
        """Let workers make the shards; record them in the order of their groups."""
        first = next(groups, None)
        if first is None:
            return
        pending: deque[_PendingShard] = deque()
        try:
            with Workers(self.job, self.elmo, lock=self.lock) as workers:
                try:
                    for group in chain([first], groups):
                        while pending and (len(pending) == 2 * self.job.workers or pending[0].is_done()):
                            self._record_first(pending)
                            self._report("embedding")
                        pending.append(_PendingShard(workers.submit(group), is_last=group.is_last))
                    while pending:
                        self._record_first(pending)
                        self._report("embedding")
                except BaseException as error:
                    # Ctrl-C keeps the shards that are done; any other error waits for the pending ones
                    while pending and (isinstance(error, Exception) or pending[0].is_done()):
                        self._record_first(pending)
                    raise
        except BaseException:
            with suppress(OutputError):
                self.files.remove_strays(self.files.shard_folder / record.file for record in self.manifest.shards)
            raise

    def _record_first(self, pending: deque[_PendingShard]) -> None:
        """Wait for the first pending shard, and record it."""
        record = pending[0].future.result()
        is_last = pending.popleft().is_last
        self._record(record, is_last=is_last)
        self._count(record.sentences, record.tokens)

    def _record(self, record: ShardRecord, *, is_last: bool) -> None:
        """Add a complete shard to the manifest, after all shards before it."""
        is_complete = is_last and not self.files.is_assembled
        self.manifest = replace(self.manifest, shards=(*self.manifest.shards, record), is_complete=is_complete)
        self.manifest.write(self.files.manifest)

    def _finish(self) -> None:
        """Assemble an HDF5 file from its parts, and mark the job as complete."""
        files, records = self.files, self.manifest.shards
        if files.is_assembled:
            self._report("assembling")
            parts = [files.shard_folder / record.file for record in records]
            needed, free = sum(part.stat().st_size for part in parts), shutil.disk_usage(files.folder).free
            if free < needed:  # better now than after an hour of writing
                raise OutputError(
                    f"{format_path(files.out)} needs {needed:,} bytes, but the disk has {free:,} left; free "
                    "some space and run the job again to resume it"
                )
            with atomic_file(files.out) as temporary:
                write_hdf5((read_shard(part) for part in parts), temporary)
            self.manifest = replace(self.manifest, sha256=compute_sha256(files.out))
        elif len(records) == 1 and records[0].file != files.out.name:
            # started when the input was longer: the first shard is now the whole output
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

    def _report(self, stage: Literal["embedding", "assembling"], n_sentences: int = 0, n_tokens: int = 0) -> None:
        """Report progress; ``n_sentences`` and ``n_tokens`` of the current group come on top."""
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
class _PendingShard:
    """A shard that a worker is making."""

    future: Future[ShardRecord]
    is_last: bool

    def is_done(self) -> bool:
        return self.future.done() and not self.future.cancelled() and self.future.exception() is None


def compute_fingerprint(elmo: Elmo, *, start: str) -> str:
    """Compute the fingerprint of the current weights, and of the warm state if ``start`` is "warm"."""
    from elmo.formats.pretrained import fingerprint

    current = replace(elmo.pretrained, weights=elmo.bilm.state_dict())
    return fingerprint(current, with_warm=start == "warm")


def _output_options(job: EmbedJob, elmo: Elmo, limit: int) -> dict[str, Any]:
    """Return all options that change the bytes of the output, as JSON values."""
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
