"""Estimates of jobs: counts, bytes, machines and cost, and that they write nothing."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.cli import main
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, OutputError
from elmo.formats import native
from elmo.jobs import EmbedJob, embed_corpus, estimate, estimate_job, read_embeddings
from tests.embed.sentences import tiny_elmo
from tests.formats.tiny import tiny_model
from tests.jobs.jobs import SUFFIXES, contents
from tests.jobs.processes import children


@pytest.fixture(autouse=True)
def nothing_stays(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The estimate may use the folder of the output and that for temporary files; both are empty afterwards."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert not list(temporary.iterdir())
    assert not [path for path in folder.rglob("*") if "estimate" in path.name]


@pytest.fixture
def long_job(text: Path, job: EmbedJob) -> EmbedJob:
    """A job of several shards."""
    text.write_text("".join(f"the river bank {k} is long\n\nA/b c\n" for k in range(60)))
    return replace(job, shard_tokens=60, batch_size=None)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_counts_are_exact_and_bytes_are_close(long_job: EmbedJob, out: Path, elmo: Elmo, suffix: str) -> None:
    job = replace(long_job, out=out.with_suffix(suffix), layers="all")
    result = estimate_job(job, elmo)
    summary = embed_corpus(job, elmo)
    assert (result.sentences, result.tokens) == (summary.sentences, summary.tokens)
    assert suffix == ".hdf5" or result.shards == len(summary.files) > 3
    assert result.output_bytes == pytest.approx(sum(path.stat().st_size for path in summary.files), rel=0.2)


def test_the_sample_is_spread_over_the_text(
    text: Path, job: EmbedJob, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "_PASSAGE_TOKENS", 20)
    monkeypatch.setattr(estimate, "_MAX_PASSAGES", 8)
    monkeypatch.setattr(estimate, "MEASURE_SECONDS", 0.1)
    text.write_text("a b c d\n" * 400 + f"{'long' * 30} {'word' * 30}\n" * 800)
    long_job = replace(job, shard_tokens=1000, batch_size=None)
    result = estimate_job(long_job, elmo)
    files = embed_corpus(long_job, elmo).files
    assert result.output_bytes == pytest.approx(sum(path.stat().st_size for path in files), rel=0.2)


def test_nothing_is_written(long_job: EmbedJob, folder: Path, out: Path, elmo: Elmo) -> None:
    before = contents(folder)
    estimate_job(long_job, elmo)
    assert contents(folder) == before
    assert not out.parent.exists()
    embed_corpus(replace(long_job, layers="top"), elmo)
    before = contents(folder)
    estimate_job(long_job, elmo)  # the output of another job is neither changed nor an error
    assert contents(folder) == before


@pytest.mark.parametrize("has_folder", [False, True])
def test_nothing_is_written_after_an_error(long_job: EmbedJob, folder: Path, out: Path, has_folder: bool) -> None:
    broken = tiny_elmo()
    broken.bilm.token_layer.projection.bias.fill_(1e6)  # type: ignore[union-attr, operator]
    if has_folder:
        out.parent.mkdir()
    before = sorted(folder.rglob("*"))
    with pytest.raises(OutputError, match="cannot store the vectors as float16"):
        estimate_job(replace(long_job, dtype="float16", layers=0), broken)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("price", [-0.01, float("nan"), float("inf")])
def test_a_price_must_be_a_number_of_at_least_0(job: EmbedJob, elmo: Elmo, price: float) -> None:
    with pytest.raises(ConfigError, match="price must be a number of at least 0; found"):
        estimate_job(job, elmo, price=price)


@pytest.mark.parametrize("machines", [(0,), (1, -1), ()])
def test_there_must_be_at_least_one_machine(job: EmbedJob, elmo: Elmo, machines: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="machines must be numbers of at least 1; found"):
        estimate_job(job, elmo, machines=machines)


def test_only_jobs_of_this_machine_with_an_output_are_estimated(job: EmbedJob, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="without an output file"):
        estimate_job(replace(job, out=None), elmo)
    with pytest.raises(ConfigError, match="runner ray: only this machine is measured"):
        estimate_job(replace(job, runner="ray"), elmo)


def test_more_machines_take_less_time_down_to_one_shard_or_to_reading(long_job: EmbedJob, elmo: Elmo) -> None:
    result = estimate_job(long_job, elmo, machines=(1, 2, 1000), price=2.5)
    hours = [column.hours for column in result.machines]
    assert [column.machines for column in result.machines] == [1, 2, 1000]
    assert hours == sorted(hours, reverse=True)
    computing, reading = (
        result.tokens / rate / 3600 for rate in (result.tokens_per_second, result.tokens_read_per_second)
    )
    startup = result.startup_seconds / 3600
    assert hours[0] == pytest.approx(startup + max(computing, reading))
    shard = hours[2] - startup
    assert max(computing / result.shards, reading) <= shard * 1.001
    assert shard <= 1.001 * max(computing / (result.shards - 1), reading)
    for column in result.machines:
        assert column.core_hours == pytest.approx(column.hours * column.machines * result.threads)
        assert column.cost == pytest.approx(2.5 * column.core_hours)


@pytest.mark.parametrize("lines", ["", "\n\n"])
def test_a_text_without_words_takes_no_bytes_per_token(text: Path, job: EmbedJob, elmo: Elmo, lines: str) -> None:
    text.write_text(lines)
    result = estimate_job(job, elmo)
    (file,) = embed_corpus(job, elmo).files
    assert (result.sentences, result.tokens) == (len(lines), 0)
    assert result.output_bytes == pytest.approx(file.stat().st_size, rel=0.2)


@pytest.mark.slow
def test_workers_are_measured_at_the_same_time(long_job: EmbedJob, folder: Path, elmo: Elmo) -> None:
    before, is_done, most = set(children(os.getpid())), threading.Event(), 0

    def watch() -> None:
        nonlocal most
        while not is_done.wait(0.02):
            most = max(most, len(set(children(os.getpid())) - before))

    watcher = threading.Thread(target=watch)
    watcher.start()
    files = contents(folder)
    try:
        two = estimate_job(replace(long_job, workers=2), elmo)
    finally:
        is_done.set()
        watcher.join()
    assert most == 2
    assert not set(children(os.getpid())) - before
    assert contents(folder) == files
    assert (two.workers, two.sentences) == (2, 180)
    assert two.memory_bytes > estimate_job(long_job, elmo).memory_bytes


# --- the command --------------------------------------------------------------------------------------


@pytest.fixture
def command(folder: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of ``elmo embed`` in a folder with a model and a text."""
    native.write(tiny_model(), folder / "model")
    monkeypatch.chdir(folder)
    return ["embed", text.name, "--model", "model"]


def test_the_command_prints_a_column_for_each_number_of_machines(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    assert main([*command, "--out", "v.npz", "--estimate", "--machines", "1,10,100", "--price", "0.04"]) == 0
    assert contents(folder) == before
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert main([*command, "--out", "v.npz"]) == 0
    encodings = list(read_embeddings("v.npz"))
    assert rows["sentences"] == [str(len(encodings))]
    assert rows["tokens"] == [str(sum(map(len, encodings)))]
    assert rows["machines"] == ["1", "10", "100"]
    assert [len(rows[name]) for name in ("hours", "core-hours", "cost")] == [3, 3, 3]
    assert all(float(value) >= 0 for name in ("hours", "core-hours", "cost") for value in rows[name])
    assert rows["speed"][1] == "tokens/s:"
    assert rows["output"][0] == rows["memory"][0] == "about"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--estimate"], "--estimate needs an output file; set --out"),
        (["--estimate", "--column", "text", "--out", "v.parquet"], "cannot use --estimate with --column"),
        (["--estimate", "--dry-run", "--out", "v.npz"], "cannot use --estimate with --dry-run"),
        (["--estimate", "--machines", "0", "--out", "v.npz"], "machines must be numbers of at least 1; found 0"),
        (["--estimate", "--machines", "two", "--out", "v.npz"], "--machines must be numbers separated by commas"),
        (["--estimate", "--price", "nan", "--out", "v.npz"], "price must be a number of at least 0; found nan"),
        (["--estimate", "--price", "-1", "--out", "v.npz"], "price must be a number of at least 0; found -1.0"),
        (["--price", "1", "--out", "v.npz"], "--price needs --estimate"),
        (["--machines", "2", "--out", "v.npz"], "--machines needs --estimate"),
    ],
)
def test_wrong_options_give_one_line_and_no_files(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    before = contents(folder)
    assert main([*command, *options]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert message in printed.err
    assert contents(folder) == before
