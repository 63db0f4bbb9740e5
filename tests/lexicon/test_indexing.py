"""An index that is made anew, on a full disk, killed, or half moved: the old one or the new one, whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import OutputError
from elmo.formats import native
from elmo.jobs.manifest import read_manifest
from elmo.lexicon.indexing import REBUILD, IndexJob, build_index
from elmo.lexicon.index import MANIFEST, Index
from elmo.lexicon.neighbors import ApproximateIndex
from tests.formats.tiny import tiny_model
from tests.jobs.jobs import contents

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals and sets limits")

SCRIPT = """
import sys
from pathlib import Path
from elmo.embed.elmo import Elmo
from elmo.jobs.manifest import read_manifest
from elmo.lexicon.indexing import IndexJob, build_index
job = IndexJob(("-",), Path("usages"), shard_tokens=12, dtype="float32", restart=sys.argv[1:] == ["restart"])
build_index(job, Elmo.from_pretrained("model"))
"""
LINES = [f"the bank of river {k}\n" for k in range(40)]


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    """As a disk is that has no more room: what is written beyond this fails."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def long(job: IndexJob, tmp_path: Path) -> IndexJob:
    """An index of another text at the place of ``job``'s, made anew; one shard, of some 25 kB."""
    text = tmp_path / "long.txt"
    text.write_text("".join(LINES * 5))
    return replace(job, inputs=(str(text),), shard_tokens=None, restart=True)


def test_a_restart_ends_with_the_bytes_of_a_new_index(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    build_index(job, elmo)
    assert len(contents(job.out)) > 4  # shards that the new index has not
    built = build_index(long, elmo)
    elsewhere = replace(long, out=job.out.with_name("elsewhere"))
    assert built.words == build_index(elsewhere, elmo).words
    assert contents(long.out) == contents(elsewhere.out)
    again = build_index(replace(long, restart=False), elmo)
    assert len(again) == len(built)


def test_a_full_disk_leaves_the_old_index_and_one_line(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    with files_of_at_most(8192), pytest.raises(OutputError, match="the old index is unchanged") as caught:
        build_index(long, elmo)
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(job.out) == before
    assert len(build_index(long, elmo).usages("bank")) == len(LINES) * 5


def test_a_full_disk_keeps_the_shards_that_are_whole(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    text = Path(long.inputs[0])
    text.write_text("".join(LINES) + " ".join(f"w{k}" for k in range(300)) + "\n")
    first = replace(long, restart=False, shard_tokens=100)
    with files_of_at_most(16384), pytest.raises(OutputError, match="cannot be written"):
        build_index(first, elmo)
    shards = {path: path.stat().st_mtime_ns for path in first.out.glob("usages-*")}
    assert shards
    build_index(first, elmo)
    assert {path: path.stat().st_mtime_ns for path in shards} == shards


def test_a_graph_that_finds_no_room_leaves_the_older_one(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    pytest.importorskip("usearch")
    index = build_index(replace(long, out=job.out.with_name("graph")), elmo)
    ApproximateIndex.build(index)
    before = contents(index.folder)
    with files_of_at_most(8192), pytest.raises(OutputError, match=r"bytes left: free some space") as caught:
        ApproximateIndex.build(index)
    assert "\n" not in str(caught.value)
    assert contents(index.folder) == before
    opened = ApproximateIndex.open(index)
    assert opened._graph.expansion_search == 512  # as a new one: it is not kept in the file
    assert len(opened.nearest(index.vectors([0]), 3)[0]) == 3


def test_inputs_within_the_old_index_are_refused(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    with pytest.raises(OutputError, match="contains input files"):
        build_index(replace(job, inputs=(str(job.out / "words.tsv"),), restart=True), elmo)
    assert contents(job.out) == before


def test_killed_while_files_are_moved_it_has_one_whole_index_in_the_end(
    job: IndexJob, elmo: Elmo, long: IndexJob
) -> None:
    build_index(job, elmo)
    old = shutil.copytree(job.out, job.out.with_name("old"))
    new = job.out.with_name("new")
    build_index(replace(long, out=new), elmo)
    expected = contents(new)
    moved = sorted(path.name for path in new.iterdir() if path.name != MANIFEST)
    for n_moved in (None, *range(len(moved) + 1)):
        shutil.rmtree(job.out)
        shutil.copytree(old, job.out)
        shutil.copytree(new, job.out / REBUILD)
        if n_moved is not None:
            (job.out / MANIFEST).unlink()
            for name in moved[:n_moved]:
                (job.out / REBUILD / name).replace(job.out / name)
        build_index(replace(long, restart=False), elmo)
        assert contents(job.out) == expected, n_moved
        assert not (job.out / REBUILD).exists()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """The script in a process of its own, with some lines to read and more to wait for."""
    native.write(tiny_model(softmax=True), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def start_it(*arguments: str, until: Callable[[], bool]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        started.append(process)
        assert process.stdin
        process.stdin.write("".join(LINES[:30]))
        process.stdin.flush()
        deadline = time.monotonic() + 240
        while not until():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return process

    yield start_it
    for process in started:
        process.kill()
        process.communicate()


def test_killed_in_the_middle_it_goes_on_or_leaves_the_old_one(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_begun(folder: Path) -> bool:
        manifest = folder / "usages.safetensors.manifest.json"
        return manifest.exists() and len(read_manifest(manifest).shards) >= 2

    def build(job: IndexJob, lines: list[str]) -> None:
        (tmp_path / "stdin").write_text("".join(lines))
        with (tmp_path / "stdin").open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            build_index(job, elmo)

    out, elmo = tmp_path / "usages", Elmo.from_pretrained("model")
    job = IndexJob(("-",), out, shard_tokens=12, dtype="float32")
    build(replace(job, out=tmp_path / "whole"), LINES)
    expected = contents(tmp_path / "whole")

    process = start(until=lambda: is_begun(out))
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in sorted(out.glob("usages-*.safetensors"))[:2]}
    build(job, LINES)
    assert contents(out) == expected
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    process = start("restart", until=lambda: is_begun(out / REBUILD))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(Index(out)) == len(Index(tmp_path / "whole"))  # still the old one
    shorter = LINES[:20]
    build(replace(job, restart=True), shorter)
    assert not (out / REBUILD).exists()
    assert len(Index(out).usages("bank")) == len(shorter)
