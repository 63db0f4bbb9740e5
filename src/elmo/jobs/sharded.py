"""Write the shards of a job and its manifest, and resume where an earlier run stopped.

Reading, computing and writing overlap: while the calling thread computes the vectors of a group, one thread
reads and tokenizes the next group, and another writes the shard of the previous one. Only these three groups
are in memory. With workers, this process only reads the input and updates the manifest; each worker computes
and writes one shard at a time. This process then holds the text of up to two groups per worker.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from elmo.engine.threads import get_result
from elmo.errors import DataError, ElmoError, OutputError
from elmo.jobs.groups import Group, split_groups
from elmo.jobs.manifest import Manifest, OutputFiles, ShardRecord, read_manifest
from elmo.jobs.pipeline import BackgroundWriter, read_ahead
from elmo.jobs.plan import EmbedJob, JobSummary, Progress
from elmo.jobs.reader import read_shard
from elmo.jobs.shard import Vectors
from elmo.jobs.workers import ShardMaker, Workers, remove_model
from elmo.jobs.writers import write_hdf5
from elmo.storage.atomic import atomic_file, cannot_write
from elmo.storage.files import compute_sha256, format_path
from elmo.text.lines import Tally
from elmo.text.reader import Sentence

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.jobs.engines import EnginePool

_log = logging.getLogger(__name__)


class ShardedRun:
    """One run of a job that writes files; the caller must hold the lock of the job.

    To write other content into the shards, pass an instance of a subclass of ``ShardMaker`` as ``maker``. Workers
    create their own instance from the job and the model. ``options`` are additional options that change the output;
    they are recorded in the manifest.
    """

    def __init__(
        self, job: EmbedJob, elmo: Elmo, *, files: OutputFiles, lock: int, limit: int,
        report: Callable[[Progress], None], maker: ShardMaker | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.elmo, self.files, self.lock, self.limit = job, elmo, files, lock, limit
        self.report = report  # called from this thread only
        self.maker = ShardMaker(job, elmo) if maker is None else maker
        self.manifest = Manifest(
            out=files.out.name,
            model=compute_fingerprint(elmo, start=job.start, layers=job.layers),
            options=_output_options(job, elmo, limit) | dict(options or {}),
        )
        self.kept = 0
        self.n_sentences = self.n_tokens = 0  # computed so far; the last ones may not be written yet

    def run(self, sentences: Iterator[Sentence], tally: Tally) -> JobSummary:
        """Compute and write the shards that earlier runs have not completed."""
        self._prepare()
        was_complete = self.manifest.is_complete
        self.kept = self.n_sentences = sum(record.sentences for record in self.manifest.shards)
        self.n_tokens = sum(record.tokens for record in self.manifest.shards)
        if self.kept and not was_complete:
            _log.info("resuming %s after %s sentences", format_path(self.files.out), f"{self.kept:,}")
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
        """Find the complete shards of an earlier run, and remove its other files."""
        files, restart = self.files, self.job.restart
        remove_model(files.out)  # left by the workers of a killed run
        self._check_not_input([files.out, *files.existing()])  # --restart would remove them
        is_new = not files.has_manifest()
        if is_new and not restart and files.existing():
            raise OutputError(
                f"cannot write {format_path(files.existing()[0])}: it already exists without a manifest; choose "
                "another output, or use --restart to replace it"
            )
        earlier = None if is_new else self._read_manifest()
        if earlier is not None and not restart:
            self.manifest = self._keep_complete(earlier)
        if self.manifest is not earlier:
            # Write the manifest before any shard, so that the next run recognizes the files of this one.
            self.manifest.write(files.manifest)
        try:
            self._check_not_input([files.manifest])  # a folder or glob of the input may match it
        except OutputError:
            if is_new:
                files.remove(files.manifest)
            raise
        keep = [files.shard_folder / record.file for record in self.manifest.shards]
        files.remove_strays([*keep, files.out] if self.manifest.sha256 else keep)
        if self.manifest.is_complete:
            files.remove_parts()

    def _check_not_input(self, outputs: list[Path]) -> None:
        inputs = {path.resolve() for path in self.job.files() if path != "-"}
        if inputs & {path.resolve() for path in outputs}:
            raise OutputError(
                f"cannot write {format_path(self.files.out)}: the output, or another file of the job, is one of "
                "the inputs; choose another output"
            )

    def _read_manifest(self) -> Manifest | None:
        """Read the manifest of an earlier run; return None if this run may replace it."""
        path = self.files.manifest
        try:
            earlier = read_manifest(path)
        except DataError as error:
            if self.job.restart:
                return None
            raise OutputError(f"{error}; use --restart to start over") from error
        if earlier.out != self.manifest.out:
            raise OutputError(
                f"cannot write {format_path(path)}: it is the manifest of {format_path(earlier.out)}; choose "
                "another output"
            )
        if self.job.set_aside is not None:  # a run without this option ends at the first unusable sentence
            earlier = replace(earlier, options=earlier.options | {"set_aside": True})
        differences = earlier.differences(self.manifest)
        if differences and not earlier.shards and not earlier.is_complete:
            return None  # it stopped before its first shard was complete, so nothing is lost
        if differences and not self.job.restart:
            raise OutputError(
                f"cannot resume {format_path(self.files.out)}: it was started with other options: "
                f"{'; '.join(differences)}; use the same options, choose another output, or use --restart to start over"
            )
        return earlier

    def _keep_complete(self, earlier: Manifest) -> Manifest:
        """Return the manifest with only the shards before the first one that is missing or damaged."""
        files = self.files
        if earlier.sha256 is not None:
            is_sound = files.has_shard(files.out, earlier.sha256)
            return earlier if is_sound else replace(earlier, shards=(), is_complete=False, sha256=None)
        for index, record in enumerate(earlier.shards):
            path = files.shard_folder / record.file
            is_ours = path in (files.shard(index, is_only=False), files.shard(index, is_only=len(earlier.shards) == 1))
            if not (is_ours and files.has_shard(path, record.sha256)):
                return replace(earlier, shards=earlier.shards[:index], is_complete=False)
        return earlier

    def _read_groups(self, sentences: Iterator[Sentence]) -> AbstractContextManager[Iterator[Group]]:
        """Split the input into groups, which a thread reads ahead.

        No thread is used with workers, which compute in other processes, or for pipes, because a thread that
        waits for input cannot be stopped.
        """
        gather = partial(split_groups, max_tokens=self.limit)
        if self.job.has_workers or self.job.reads_pipe():
            return nullcontext(gather(sentences))
        return read_ahead(sentences, gather)

    def _skip_done(self, groups: Iterable[Group]) -> Iterator[Group]:
        """Yield the groups without a complete shard; check that the input of the other groups is unchanged."""
        done, was_complete, n_groups = self.manifest.shards, self.manifest.is_complete, 0
        for group in groups:
            n_groups += 1
            if group.index < len(done):
                record, last = done[group.index], group.first + len(group.sentences)
                if record.sentences != len(group.sentences) or record.input != group.digest:
                    raise self._input_error(f"sentences {group.first + 1} to {last} have changed")
            elif was_complete:
                raise self._input_error("it is longer now")
            else:
                yield group
        if n_groups < len(done):
            raise self._input_error("it is shorter now")

    def _input_error(self, change: str) -> OutputError:
        return OutputError(
            f"cannot resume {format_path(self.files.out)}: the input has changed since the job was started: {change}; "
            "use the same input, choose another output, or use --restart to start over"
        )

    def _make_shards(self, groups: Iterator[Group]) -> None:
        n_before = len(self.manifest.shards)
        if self.job.has_workers:
            self._make_with_workers(groups)
        else:
            self._make_here(groups)
        if len(self.manifest.shards) > n_before:
            self._report("embedding")

    def _make_here(self, groups: Iterator[Group]) -> None:
        """Compute one shard while the previous one is written; after Ctrl-C, the write is completed."""
        with BackgroundWriter() as writer:
            for group in groups:
                vectors = self.maker.vectors(group, partial(self._report, "embedding"))
                writer.submit(partial(self._write, group, vectors))
                self.n_sentences += len(group.sentences)
                self.n_tokens += group.n_tokens
                self._report("embedding")

    def _write(self, group: Group, vectors: Vectors) -> None:
        self._record(self.maker.write(group, vectors), is_last=group.is_last)

    def _make_with_workers(self, groups: Iterator[Group]) -> None:
        """Let workers make the shards; add them to the manifest in the order of their groups."""
        first = next(groups, None)
        if first is None:
            return
        pending: deque[tuple[Group, Future[ShardRecord]]] = deque()
        try:
            with self._open_pool() as workers:
                try:
                    for group in chain([first], groups):
                        while pending and (len(pending) == 2 * self.job.workers or _is_made(pending[0][1])):
                            self._record_first(pending)
                            self._report("embedding")
                        pending.append((group, workers.submit(group)))
                    while pending:
                        self._record_first(pending)
                        self._report("embedding")
                except BaseException as error:
                    # after Ctrl-C, keep only finished shards; after any other error, wait for the pending shards
                    while pending and (isinstance(error, Exception) or _is_made(pending[0][1])):
                        self._record_first(pending)
                    raise
        except BaseException:
            with suppress(OutputError):
                self.files.remove_strays(self.files.shard_folder / record.file for record in self.manifest.shards)
            raise

    def _open_pool(self) -> Workers | EnginePool:
        """Return the workers of the job: processes of this machine, or those of an engine."""
        if self.job.runner == "local":
            return Workers(self.job, self.elmo, lock=self.lock, maker=type(self.maker))
        from elmo.jobs.engines import POOLS

        return POOLS[self.job.runner](self.job, self.elmo, maker=type(self.maker))

    def _record_first(self, pending: deque[tuple[Group, Future[ShardRecord]]]) -> None:
        """Wait for the first pending shard, and add it to the manifest."""
        group, future = pending[0]
        record = get_result(future)
        pending.popleft()
        self._record(record, is_last=group.is_last)
        self.n_sentences += record.sentences
        self.n_tokens += record.tokens

    def _record(self, record: ShardRecord, *, is_last: bool) -> None:
        """Add a complete shard to the manifest, which must already list all earlier shards."""
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
            if free < needed:  # fail now, not after an hour of writing
                raise OutputError(
                    f"cannot write {format_path(files.out)}: the disk must have {needed:,} free bytes; found {free:,}; "
                    "free some space and run the job again to resume it"
                )
            with atomic_file(files.out) as temporary:
                write_hdf5((read_shard(part) for part in parts), temporary)
            self.manifest = replace(self.manifest, sha256=compute_sha256(files.out))
        elif len(records) == 1 and records[0].file != files.out.name:
            # an earlier run with a longer input wrote the first shard, which is now the whole output
            try:
                files.rename(files.folder / records[0].file, files.out)
            except OSError as error:
                raise cannot_write(files.out, error) from error
            self.manifest = replace(self.manifest, shards=(replace(records[0], file=files.out.name),))
        elif self.manifest.is_complete:
            return
        self.manifest = replace(self.manifest, is_complete=True)
        self.manifest.write(files.manifest)
        files.remove_parts()

    def _report(self, stage: Literal["embedding", "assembling"], n_sentences: int = 0, n_tokens: int = 0) -> None:
        """Report progress; ``n_sentences`` and ``n_tokens`` are the parts of the current group that are done."""
        self.report(
            Progress(
                stage=stage,
                sentences=self.n_sentences + n_sentences,
                tokens=self.n_tokens + n_tokens,
                shards=len(self.manifest.shards),
                kept=self.kept,
            )
        )


def _is_made(future: Future[ShardRecord]) -> bool:
    """Return whether a worker has made the shard without an error."""
    return future.done() and not future.cancelled() and future.exception() is None


def keep_split(job: EmbedJob, files: OutputFiles) -> EmbedJob:
    """Return the job with ``split=False`` if it resumes one that kept lines: earlier releases did so by default."""
    if job.split is None and not job.restart:
        with suppress(ElmoError):  # the run reports it
            if files.has_manifest() and read_manifest(files.manifest).options.get("split") is False:
                _log.info("%s was started with --no-split: keeping lines", format_path(files.out))
                return replace(job, split=False)
    return job


def compute_fingerprint(elmo: Elmo, *, start: str, layers: str | int = "average") -> str:
    """Compute the fingerprint of what determines the vectors of a model with this start state and these layers.

    The warm state is included if ``start`` is "warm", and the softmax if ``layers`` is "sense".
    """
    from elmo.formats.pretrained import fingerprint

    current = replace(elmo.pretrained, weights=elmo.bilm.state_dict())
    return fingerprint(current, with_warm=start == "warm", with_softmax=layers == "sense")


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
        **({} if job.set_aside is None else {"set_aside": True}),
    }
