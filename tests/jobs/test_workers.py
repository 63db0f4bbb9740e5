"""Jobs with several workers: the same bytes, the same errors, and recovery after a kill."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, EncodingError, OutputError
from elmo.jobs.plan import EmbedJob, Progress
from elmo.jobs.run import embed_corpus
from tests.embed.sentences import tiny_elmo
from tests.jobs.jobs import begin, contents
from tests.jobs.processes import children

pytestmark = pytest.mark.slow


@pytest.fixture
def long_job(text: Path, job: EmbedJob) -> EmbedJob:
    """A job of forty shards and two workers."""
    text.write_text("".join(f"the river bank {k}\n\n" for k in range(40)))
    return replace(job, shard_tokens=4, workers=2)


@pytest.fixture(autouse=True)
def nothing_stays(out: Path) -> Iterator[None]:
    before = set(children(os.getpid())) | set(threading.enumerate())
    yield
    mine = set(children(os.getpid())) | {one for one in threading.enumerate() if "elmo-" in one.name}
    assert not mine - before
    assert not list(out.parent.glob(".*"))  # such as the model of the workers


def test_two_workers_write_the_same_bytes_as_one_process(long_job: EmbedJob, out: Path) -> None:
    elmo = tiny_elmo(warm=True)
    elmo.bilm.token_layer.projection.bias.fill_(0.5)  # type: ignore[union-attr, operator]  not as it was read
    job = replace(long_job, out=out.with_suffix(".hdf5"), layers="all", start="warm")
    reported: list[Progress] = []
    summary = embed_corpus(job, elmo, on_progress=reported.append)
    assert (summary.sentences, summary.tokens) == (80, 160)
    assert [one.sentences for one in reported] == sorted(one.sentences for one in reported)
    assert (reported[-1].sentences, reported[-1].shards) == (80, 40)
    result = contents(out.parent)
    embed_corpus(replace(job, workers=1, restart=True), elmo)
    assert contents(out.parent) == result
    assert embed_corpus(job, elmo).was_complete


def test_workers_have_the_softmax_if_the_layers_need_it(long_job: EmbedJob, out: Path) -> None:
    elmo = tiny_elmo(softmax=True)
    embed_corpus(replace(long_job, layers="sense"), elmo)
    result = contents(out.parent)
    embed_corpus(replace(long_job, layers="sense", workers=1, restart=True), elmo)
    assert contents(out.parent) == result


def test_workers_set_the_same_sentences_aside(
    long_job: EmbedJob, text: Path, out: Path, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.jobs.groups.MAX_TOKENS", 6)
    text.write_text("".join(f"{'x ' * (k % 9)}\n" for k in range(60)))
    job = replace(long_job, set_aside=out.parent / "bad.jsonl")
    assert embed_corpus(replace(job, workers=1), elmo).set_aside == 12
    expected = contents(out.parent)
    begin(replace(job, restart=True), elmo, reports=6)
    embed_corpus(job, elmo)
    assert contents(out.parent) == expected


def test_a_job_can_be_resumed_with_another_number_of_workers(long_job: EmbedJob, out: Path, elmo: Elmo) -> None:
    embed_corpus(replace(long_job, workers=1), elmo)
    expected = contents(out.parent)
    for first, then in ((1, 2), (2, 1)):
        begin(replace(long_job, workers=first, restart=True), elmo, reports=6)
        assert not [name for name in contents(out.parent) if name.endswith((".part", ".lock"))]
        summary = embed_corpus(replace(long_job, workers=then), elmo)
        assert 0 < summary.kept < 80
        assert contents(out.parent) == expected


def test_an_error_in_a_worker_is_raised_unchanged(long_job: EmbedJob) -> None:
    elmo = tiny_elmo()
    elmo.bilm.token_layer.projection.bias.fill_(1e6)  # type: ignore[union-attr, operator]
    with pytest.raises(OutputError, match=r"text\.txt:1: cannot store the vectors as float16"):
        embed_corpus(replace(long_job, dtype="float16", layers=0), elmo)


def test_with_workers_an_encoding_error_is_raised_after_the_shards_before_it(
    long_job: EmbedJob, text: Path, elmo: Elmo
) -> None:
    good = b"one two three\n" * 9
    text.write_bytes(good + b"\xff\n")
    with pytest.raises(EncodingError, match=r"text\.txt:10: byte 1"):
        embed_corpus(long_job, elmo)
    text.write_bytes(good + b"four\n")
    assert embed_corpus(replace(long_job, workers=1), elmo).kept == 8


@pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
def test_a_killed_worker_is_a_one_line_error_and_complete_shards_are_kept(
    long_job: EmbedJob, out: Path, elmo: Elmo
) -> None:
    embed_corpus(replace(long_job, workers=1), elmo)
    expected = contents(out.parent)
    before = set(children(os.getpid()))

    def kill_one(progress: Progress) -> None:
        if progress.shards == 3:
            worker = max(set(children(os.getpid())) - before)
            os.kill(worker, signal.SIGKILL)

    match = r"v\.npz: a worker was killed \(signal 9\); run the job again to resume it"
    with pytest.raises(OutputError, match=match):
        embed_corpus(replace(long_job, restart=True), elmo, on_progress=kill_one)
    assert not [name for name in contents(out.parent) if name.endswith((".part", ".lock"))]
    summary = embed_corpus(replace(long_job, workers=1), elmo)
    assert 3 * 2 <= summary.kept < 80
    assert contents(out.parent) == expected


def test_a_finished_job_starts_no_worker(long_job: EmbedJob, elmo: Elmo) -> None:
    embed_corpus(replace(long_job, workers=1), elmo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.executable", "nothing")
        assert embed_corpus(long_job, elmo).was_complete


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"workers": 0}, "workers must be at least 1; found 0"),
        ({"out": None}, "cannot use 2 workers without an output file"),
        ({"devices": ("cpu", "cpu", "cpu")}, "--workers must be at least 3, one per device; found 2"),
        ({"devices": ("cuda:0", "cpu")}, "devices must be of one type; found cuda:0, cpu"),
    ],
)
def test_contradictory_options_are_errors(long_job: EmbedJob, change: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        replace(long_job, **change)  # type: ignore[arg-type]


def test_a_missing_device_of_a_worker_is_an_error(long_job: EmbedJob, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="cannot use device cuda:98"):
        embed_corpus(replace(long_job, devices=("cuda:98", "cuda:99")), elmo)
