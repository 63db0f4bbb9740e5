"""Sentences in; whole shards and their manifest out, from where an earlier run was stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.embed.atomic import cannot_write, replacing
from elmo.embed.groups import Group, groups
from elmo.embed.manifest import Manifest, ShardRecord, read_manifest
from elmo.embed.output_files import OutputFiles
from elmo.embed.reading import read_shard
from elmo.embed.request import EmbedJob, Progress, Summary, encode
from elmo.embed.shard import Layout, Shard
from elmo.embed.writers import WRITERS, write_hdf5
from elmo.errors import DataError, OutputError
from elmo.formats.checksums import sha256
from elmo.formats.files import shown
from elmo.text.source import Sentence, Tally, expand

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo


class ToFiles:
    """One run of a job that writes files, under its lock."""

    def __init__(
        self, job: EmbedJob, elmo: Elmo, *, files: OutputFiles, layout: Layout, limit: int,
        report: Callable[[Progress], None],
    ) -> None:  # fmt: skip
        self.job, self.elmo, self.files, self.layout, self.limit = job, elmo, files, layout, limit
        self.report = report
        self.manifest = Manifest(
            out=files.out.name, model=_model(elmo, job), options=_options(job, elmo, limit)
        )
        self.kept = 0

    def run(self, sentences: Iterator[Sentence], tally: Tally) -> Summary:
        """Do what is left of the job."""
        self._begin()
        was_complete, n_begun = self.manifest.is_complete, len(self.manifest.shards)
        self.kept = sum(record.sentences for record in self.manifest.shards)
        n_groups = 0
        for group in groups(sentences, max_tokens=self.limit):
            n_groups += 1
            if group.index < n_begun:
                self._check_unchanged(self.manifest.shards[group.index], group)
            elif was_complete:
                raise self._changed("has grown")
            else:
                self._add(group)
        if n_groups < n_begun:
            raise self._changed("has become shorter")
        if not was_complete:
            self._finish()
        shards = self.manifest.shards
        names = (
            [self.files.out] if self.files.is_assembled else [self.files.folder / one.file for one in shards]
        )
        return Summary(
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
        self._refuse_if_input([files.out, *files.existing()])  # which --restart would remove
        is_new = not files.manifest.exists()
        if is_new and not restart and files.existing():
            raise OutputError(
                f"{shown(files.existing()[0])}: exists already, without the manifest of a job; name another "
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
        out = shown(self.files.out)
        inputs = {path.resolve() for path in expand(self.job.inputs) if path != "-"}
        if inputs & {path.resolve() for path in outputs}:
            raise OutputError(f"{out}: lies among the input, which would then change; put it elsewhere")

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
            raise OutputError(f"{shown(path)}: belongs to {shown(begun.out)}; give this output another name")
        differences = begun.differences(self.manifest)
        if differences and not self.job.restart:
            raise OutputError(
                f"{shown(self.files.out)}: was begun differently: {'; '.join(differences)}; give the same "
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
            f"{shown(self.files.out)}: the input {how} since this job was begun; give the same input again, "
            "name another output, or use --restart to begin anew"
        )

    def _add(self, group: Group) -> None:
        """Embed a group and write its shard."""
        files = self.files
        shard = Shard.of(group.sentences, self._vectors(group), first=group.first)
        path = files.shard(group.index, is_only=group.is_last and group.index == 0)
        with replacing(path) as temporary:
            path.parent.mkdir(exist_ok=True)
            with temporary.open("xb") as file:
                WRITERS[files.shard_suffix.lower()](shard, file)
        record = ShardRecord(
            file=path.name,
            sha256=sha256(path),
            first=group.first,
            sentences=len(group.sentences),
            tokens=group.n_tokens,
            input=group.digest,
        )
        is_complete = group.is_last and not files.is_assembled
        self.manifest = replace(
            self.manifest, shards=(*self.manifest.shards, record), is_complete=is_complete
        )
        self.manifest.write(files.manifest)
        self._report("embedding")

    def _vectors(self, group: Group) -> np.ndarray[Any, Any]:
        vectors, at = self.layout.empty(group.n_tokens), 0
        size = self.job.batch_size
        for begin in range(0, len(group.sentences), size):
            batch = group.sentences[begin : begin + size]
            for encoding in encode(batch, self.job, self.elmo):
                vectors[..., at : at + len(encoding), :] = encoding.vectors
                at += len(encoding)
            self._report("embedding", sentences=begin + len(batch), tokens=at)
        return vectors

    def _finish(self) -> None:
        """Put the parts of an HDF5 file together, and say that the job is done."""
        files, records = self.files, self.manifest.shards
        if files.is_assembled:
            self._report("assembling")
            parts = [files.shard_folder / one.file for one in records]
            needed, free = sum(part.stat().st_size for part in parts), shutil.disk_usage(files.folder).free
            if free < needed:  # better told now than after an hour of writing
                raise OutputError(
                    f"{shown(files.out)}: needs {needed:,} bytes, but the disk has {free:,} left; free some "
                    "space and run it again to go on"
                )
            with replacing(files.out) as temporary:
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

    def _report(
        self, stage: Literal["embedding", "assembling"], *, sentences: int = 0, tokens: int = 0
    ) -> None:
        shards = self.manifest.shards
        self.report(
            Progress(
                stage=stage,
                sentences=sum(one.sentences for one in shards) + sentences,
                tokens=sum(one.tokens for one in shards) + tokens,
                shards=len(shards),
                kept=self.kept,
            )
        )


def _model(elmo: Elmo, job: EmbedJob) -> str:
    """The fingerprint of the weights as they are now."""
    from elmo.formats.fingerprint import fingerprint

    now = replace(elmo.pretrained, weights=elmo.bilm.state_dict())
    return fingerprint(now, with_warm=job.start == "warm")


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
        "precision": str(next(elmo.bilm.parameters()).dtype).removeprefix("torch."),  # of the network
        "shard_tokens": limit,
    }
