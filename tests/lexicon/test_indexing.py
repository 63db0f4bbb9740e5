"""Building an index: words, samples, stopped jobs, and rebuilding while the old index stays complete."""

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

import numpy as np
import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, OutputError
from elmo.formats import native
from elmo.jobs.manifest import read_manifest
from elmo.jobs.plan import Progress
from elmo.lexicon.index import MANIFEST, Index
from elmo.lexicon.indexing import REBUILD, IndexJob, build_index
from elmo.lexicon.neighbors import ApproximateIndex
from tests.embed.sentences import tiny_elmo
from tests.formats.tiny import tiny_model
from tests.jobs.jobs import contents, stop_after
from tests.jobs.processes import children
from tests.lexicon.conftest import LINES

needs_posix = pytest.mark.skipif(os.name == "nt", reason="sends signals and limits file sizes")


def test_punctuation_is_not_indexed_and_words_are_counted(index: Index) -> None:
    assert len(index) == sum(any(map(str.isalnum, word)) for line in LINES for word in line.split())
    assert index.words["bank"] == (5, 5)
    assert index.words["river"] == (3, 3)
    assert "." not in index.words
    assert "😀" not in index.words
    assert (index.n_tokens, index.n_sentences) == (sum(len(line.split()) for line in LINES), len(LINES))
    assert len(index.words) == index.n_words


def test_only_the_listed_words_and_phrases_are_indexed(job: IndexJob, elmo: Elmo) -> None:
    index = build_index(replace(job, words=("new york", "BANK", "sea")), elmo)
    assert index.words == {"bank": (5, 5), "new york": (2, 2)}
    (first, second) = index.usages("New York").items
    assert (first.word, second.word) == ("New York", "new york")
    whole = np.asarray(elmo.encode([first.sentence], layers="sense")[0].vectors)[first.begin : first.end]
    assert np.allclose(index.usages("New York").vectors[0], whole.mean(axis=0), atol=1e-7)
    assert len(index.usages("sea")) == 0
    assert index.n_tokens == sum(len(line.split()) for line in LINES)  # of the text, not of the index


def test_a_limit_samples_usages_and_keeps_the_counts(job: IndexJob, elmo: Elmo) -> None:
    index = build_index(replace(job, limit=2), elmo)
    assert index.words["bank"] == (2, 5)
    assert index.words["rose"] == (1, 1)
    assert len(index.usages("bank")) == 2
    other = build_index(replace(job, limit=2, words=("bank",), out=job.out.with_name("other")), elmo)
    assert [one.place for one in other.usages("bank").items] == [one.place for one in index.usages("bank").items]


@pytest.mark.parametrize("reports", [1, 2, 3])
def test_a_stopped_job_resumes_and_writes_the_same_bytes(job: IndexJob, elmo: Elmo, reports: int) -> None:
    build_index(job, elmo)
    expected = contents(job.out)
    started = replace(job, out=job.out.with_name("started"))
    with pytest.raises(KeyboardInterrupt):
        build_index(started, elmo, on_progress=stop_after(reports))
    with pytest.raises(DataError, match="not complete; run the same elmo index command again"):
        Index(started.out)
    seen: list[Progress] = []
    build_index(started, elmo, on_progress=seen.append)
    assert contents(started.out) == expected
    assert reports == 1 or seen[-1].kept > 0


@pytest.fixture
def many(corpus: Path, job: IndexJob) -> IndexJob:
    """A job of about forty shards."""
    corpus.write_text("".join(f"{line} {k}\n" for k in range(10) for line in LINES if line), encoding="utf-8")
    return job


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"words": ("bank", "new york"), "limit": 7, "layers": "top"}])
def test_workers_write_the_same_bytes_as_one_process(many: IndexJob, options: dict[str, object]) -> None:
    elmo = tiny_elmo(softmax=True)
    one = replace(many, **options)  # type: ignore[arg-type]
    build_index(one, elmo)
    two = replace(one, out=one.out.with_name("two"), workers=2)
    build_index(two, elmo)
    assert contents(two.out) == contents(one.out)
    assert len(contents(two.out)) > 5
    build_index(replace(two, restart=True), elmo)
    assert contents(two.out) == contents(one.out)


@needs_posix
@pytest.mark.slow
def test_an_index_resumes_after_a_killed_worker(many: IndexJob) -> None:
    elmo = tiny_elmo(softmax=True)
    build_index(many, elmo)
    killed = replace(many, out=many.out.with_name("killed"), workers=2)
    before = set(children(os.getpid()))

    def kill_one(progress: Progress) -> None:
        if progress.shards == 3:
            os.kill(max(set(children(os.getpid())) - before), signal.SIGKILL)

    with pytest.raises(OutputError, match=r"a worker was killed \(signal 9\); run the job again to resume it"):
        build_index(killed, elmo, on_progress=kill_one)
    seen: list[Progress] = []
    build_index(killed, elmo, on_progress=seen.append)
    assert seen[-1].kept > 0
    assert contents(killed.out) == contents(many.out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be at least 1; found 0"),
        ({"runner": "dask"}, "runner must be local, ray or spark; found 'dask'"),
        ({"cluster": "auto"}, "cluster needs a runner"),
    ],
)
def test_workers_that_do_not_fit_are_refused(job: IndexJob, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(job, **options)  # type: ignore[arg-type]


def test_a_complete_index_is_not_written_again(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = {path: path.stat().st_mtime_ns for path in job.out.iterdir()}
    build_index(job, elmo)
    assert {path: path.stat().st_mtime_ns for path in job.out.iterdir()} == before


def test_other_options_for_the_same_folder_need_restart(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    other = replace(job, words=("bank",))
    with pytest.raises(OutputError, match="was started with other options: words"):
        build_index(other, elmo)
    assert len(build_index(replace(other, restart=True), elmo)) == 5


def test_a_folder_with_other_files_is_not_used(job: IndexJob, elmo: Elmo) -> None:
    job.out.mkdir()
    (job.out / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match="has other files"):
        build_index(job, elmo)
    with pytest.raises(OutputError, match="expected a folder, found a file"):
        build_index(replace(job, out=job.out / "thesis.tex"), elmo)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_text_without_tokens_is_rejected_and_leaves_no_files(job: IndexJob, elmo: Elmo, text: str) -> None:
    Path(job.inputs[0]).write_text(text)
    with pytest.raises(DataError, match="expected text, found no words"):
        build_index(job, elmo)
    assert not job.out.exists()


def test_empty_text_leaves_the_old_index_unchanged(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    Path(job.inputs[0]).write_text("\n")
    with pytest.raises(DataError, match="found no words"):
        build_index(replace(job, restart=True), elmo)
    assert contents(job.out) == before


def test_text_with_only_punctuation_gives_an_empty_index(job: IndexJob, elmo: Elmo) -> None:
    Path(job.inputs[0]).write_text(". , !\n")
    index = build_index(job, elmo)
    assert len(index) == 0
    assert index.words == {}
    assert index.nearest(np.ones((1, elmo.width), np.float32)) == [[]]
    assert len(index.usages("bank")) == 0


def test_words_with_backslashes_survive_the_word_list(job: IndexJob, elmo: Elmo) -> None:
    Path(job.inputs[0]).write_text("a\\n b\\\\c \\t 河\\x\n", encoding="utf-8")
    index = build_index(job, elmo)
    assert set(index.words) == {"a\\n", "b\\\\c", "\\t", "河\\x"}


def test_killed_before_the_last_file_it_resumes_to_the_same_bytes(
    job: IndexJob, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(job, elmo)
    whole = contents(job.out)
    killed = replace(job, out=job.out.with_name("killed"))

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # called after words.tsv is written and before index.json
        patch.setattr("elmo.lexicon.indexing.compute_fingerprint", kill)
        with pytest.raises(KeyboardInterrupt):
            build_index(killed, elmo)
    assert (killed.out / "words.tsv").exists()
    assert not (killed.out / "index.json").exists()
    build_index(killed, elmo)
    assert contents(killed.out) == whole


def test_a_rejected_restart_leaves_the_index_unchanged(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    with pytest.raises(OutputError, match="contains input files"):
        build_index(replace(job, inputs=(str(job.out),), restart=True), elmo)
    assert contents(job.out) == before


def test_tokens_with_no_break_spaces_or_surrogates_are_sampled(job: IndexJob, elmo: Elmo) -> None:
    words = ["10\u00a0000", *(f"caf{chr(code)}" for code in (0xDCE8, 0xDCE9))]
    Path(job.inputs[0]).write_bytes((" ".join(words) + "\n").encode("utf-8", "surrogateescape") * 3)
    sampled = replace(job, input_format="tokens", errors="surrogateescape", limit=2)
    index = build_index(sampled, elmo)
    assert index.words == dict.fromkeys(words, (2, 3))
    assert len(index.usages("10\u00a0000")) == 2


def test_invalid_jobs_are_rejected_before_writing(job: IndexJob, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="several vectors per usage"):
        replace(job, layers="all")
    with pytest.raises(ConfigError, match="an index must be in a local folder"):
        IndexJob(("a.txt",), Path("s3://bucket/index"))
    with pytest.raises(ConfigError, match="cannot use limit with stdin: the text is read twice"):
        replace(job, inputs=("-",), limit=3)
    with pytest.raises(DataError, match="no such file"):
        build_index(replace(job, inputs=("nowhere.txt",)), elmo)
    assert not job.out.exists()
    with pytest.raises(DataError, match="build an index with elmo index"):
        Index(job.out)


# --- Rebuilding -------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
from elmo.embed.elmo import Elmo
from elmo.lexicon.indexing import IndexJob, build_index
job = IndexJob(("-",), Path("usages"), shard_tokens=12, dtype="float32", restart=sys.argv[1:] == ["restart"])
build_index(job, Elmo.from_pretrained("model"))
"""
BANK_LINES = [f"the bank of river {k}\n" for k in range(40)]


@contextmanager
def limit_file_size(n_bytes: int) -> Iterator[None]:
    """Simulate a full disk: larger files cannot be written."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def long(job: IndexJob, tmp_path: Path) -> IndexJob:
    """A job that rebuilds the index of ``job`` from another text, with one shard of about 25 kB."""
    text = tmp_path / "long.txt"
    text.write_text("".join(BANK_LINES * 5))
    return replace(job, inputs=(str(text),), shard_tokens=None, restart=True)


@needs_posix
def test_a_restart_writes_the_bytes_of_a_new_index(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    build_index(job, elmo)
    assert len(contents(job.out)) > 4  # the new index has fewer shards
    built = build_index(long, elmo)
    elsewhere = replace(long, out=job.out.with_name("elsewhere"))
    assert built.words == build_index(elsewhere, elmo).words
    assert contents(long.out) == contents(elsewhere.out)
    again = build_index(replace(long, restart=False), elmo)
    assert len(again) == len(built)


@needs_posix
def test_a_full_disk_leaves_the_old_index_unchanged(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    with limit_file_size(8192), pytest.raises(OutputError, match="the old index is unchanged") as caught:
        build_index(long, elmo)
    assert os.strerror(errno.EFBIG) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(job.out) == before
    assert len(build_index(long, elmo).usages("bank")) == len(BANK_LINES) * 5


@needs_posix
def test_a_full_disk_keeps_complete_shards(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    text = Path(long.inputs[0])
    text.write_text("".join(BANK_LINES) + " ".join(f"w{k}" for k in range(300)) + "\n")
    first = replace(long, restart=False, shard_tokens=100)
    with limit_file_size(16384), pytest.raises(OutputError, match="cannot write"):
        build_index(first, elmo)
    shards = {path: path.stat().st_mtime_ns for path in first.out.glob("usages-*")}
    assert shards
    build_index(first, elmo)
    assert {path: path.stat().st_mtime_ns for path in shards} == shards


@needs_posix
def test_a_full_disk_keeps_the_old_approximate_index(job: IndexJob, elmo: Elmo, long: IndexJob) -> None:
    pytest.importorskip("usearch")
    index = build_index(replace(long, out=job.out.with_name("graph")), elmo)
    ApproximateIndex.build(index)
    before = contents(index.folder)
    with limit_file_size(8192), pytest.raises(OutputError, match=r"bytes left: free some space") as caught:
        ApproximateIndex.build(index)
    assert "\n" not in str(caught.value)
    assert contents(index.folder) == before
    opened = ApproximateIndex.open(index)
    assert opened._graph.expansion_search == 512  # not stored in the file
    assert len(opened.nearest(index.vectors([0]), 3)[0]) == 3


@needs_posix
def test_inputs_inside_the_old_index_are_rejected(job: IndexJob, elmo: Elmo) -> None:
    build_index(job, elmo)
    before = contents(job.out)
    with pytest.raises(OutputError, match="contains input files"):
        build_index(replace(job, inputs=(str(job.out / "words.tsv"),), restart=True), elmo)
    assert contents(job.out) == before


@needs_posix
def test_killed_while_files_are_moved_it_ends_with_one_complete_index(
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
    """Run the script in a process that has read some lines and waits for more."""
    native.write(tiny_model(softmax=True), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def start_it(*arguments: str, until: Callable[[], bool]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", SCRIPT, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdin
        process.stdin.write("".join(BANK_LINES[:30]))
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


@pytest.mark.slow
@needs_posix
def test_a_killed_run_resumes_and_a_killed_rebuild_keeps_the_old_index(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_started(folder: Path) -> bool:
        manifest = folder / "usages.safetensors.manifest.json"
        return manifest.exists() and len(read_manifest(manifest).shards) >= 2

    def build(job: IndexJob, lines: list[str]) -> None:
        (tmp_path / "stdin").write_text("".join(lines))
        with (tmp_path / "stdin").open() as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            build_index(job, elmo)

    out, elmo = tmp_path / "usages", Elmo.from_pretrained("model")
    job = IndexJob(("-",), out, shard_tokens=12, dtype="float32")
    build(replace(job, out=tmp_path / "whole"), BANK_LINES)
    expected = contents(tmp_path / "whole")

    process = start(until=lambda: is_started(out))
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in sorted(out.glob("usages-*.safetensors"))[:2]}
    build(job, BANK_LINES)
    assert contents(out) == expected
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    process = start("restart", until=lambda: is_started(out / REBUILD))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(Index(out)) == len(Index(tmp_path / "whole"))  # the old index
    shorter = BANK_LINES[:20]
    build(replace(job, restart=True), shorter)
    assert not (out / REBUILD).exists()
    assert len(Index(out).usages("bank")) == len(shorter)
