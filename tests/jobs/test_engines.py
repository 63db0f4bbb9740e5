"""Jobs on real clusters of Ray and Spark on this machine: the same bytes, recovery after kills, errors in one line.

``make engines`` installs both engines into their own environment and runs these tests. They are skipped where an engine
is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from elmo import __version__
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, MissingExtraError
from elmo.jobs.plan import EmbedJob, Progress
from elmo.jobs.run import embed_corpus
from elmo.lexicon.indexing import IndexJob, build_index
from tests.embed.sentences import tiny_elmo
from tests.jobs.jobs import begin, contents, stop_after

pytestmark = pytest.mark.slow

LIBRARIES = {"ray": "ray", "spark": "pyspark"}
RUNNERS = ["ray", "spark"]


def need(runner: str) -> None:
    if importlib.util.find_spec(LIBRARIES[runner]) is None:
        pytest.skip(f"{LIBRARIES[runner]} is not installed: make engines")


@pytest.fixture(params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    need(request.param)
    yield request.param
    stop_engine(request.param)


def stop_engine(runner: str) -> None:
    if runner == "ray":
        import ray

        ray.shutdown()
    else:
        from pyspark.sql import SparkSession

        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()


@pytest.fixture
def many(text: Path, job: EmbedJob) -> EmbedJob:
    """A job of sixty shards."""
    text.write_text("".join(f"the river bank {k}\n\n" for k in range(60)))
    return replace(job, shard_tokens=4, workers=2)


@pytest.fixture
def expected(many: EmbedJob, out: Path, elmo: Elmo) -> dict[str, bytes]:
    """The output of one process."""
    embed_corpus(replace(many, workers=1), elmo)
    before = contents(out.parent)
    for path in out.parent.iterdir():
        path.unlink()
    return before


def find_workers(runner: str) -> list[int]:
    """Return the processes of the engine that make shards."""
    mark = b"ray::_Actor" if runner == "ray" else b"pyspark.daemon"
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            is_fork = runner == "ray" or mark in read_line(parent)  # the daemon of Spark forks its workers
            if mark in line and is_fork:
                found.append(int(folder.name))
    return found


def read_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_an_engine_writes_the_same_bytes_as_one_process(
    runner: str, many: EmbedJob, out: Path, elmo: Elmo, expected: dict[str, bytes]
) -> None:
    summary = embed_corpus(replace(many, runner=runner), elmo)  # type: ignore[arg-type]
    assert (summary.sentences, len(summary.files)) == (120, 60)
    assert contents(out.parent) == expected
    assert embed_corpus(replace(many, runner=runner, workers=1), elmo).was_complete  # type: ignore[arg-type]


def test_a_job_moves_between_engines_and_processes(
    runner: str, many: EmbedJob, out: Path, elmo: Elmo, expected: dict[str, bytes]
) -> None:
    begin(many, elmo, reports=10)
    begin(replace(many, runner=runner, workers=1), elmo, reports=20)  # type: ignore[arg-type]
    summary = embed_corpus(replace(many, runner=runner, workers=2), elmo)  # type: ignore[arg-type]
    assert summary.kept > 0
    assert contents(out.parent) == expected


def test_killed_workers_change_no_byte(
    runner: str, many: EmbedJob, out: Path, elmo: Elmo, expected: dict[str, bytes]
) -> None:
    is_over, killed = threading.Event(), []

    def kill() -> None:
        while not is_over.wait(0.4):
            for pid in find_workers(runner)[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            if len(killed) >= 3:
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        embed_corpus(replace(many, runner=runner), elmo)  # type: ignore[arg-type]
    finally:
        is_over.set()
        thread.join()
    assert killed
    assert contents(out.parent) == expected


def test_a_killed_driver_is_resumed(
    runner: str, many: EmbedJob, out: Path, elmo: Elmo, expected: dict[str, bytes], tmp_path: Path
) -> None:
    elmo.save_pretrained(tmp_path / "model")
    program = (
        "import sys; from pathlib import Path; from elmo.jobs import EmbedJob, embed_corpus\n"
        "from elmo import Elmo\n"
        f"job = EmbedJob(({many.inputs[0]!r},), Path({str(out)!r}), shard_tokens=4, batch_size=2, workers=2, "
        f"runner={runner!r})\n"
        f"embed_corpus(job, Elmo.from_pretrained({str(tmp_path / 'model')!r}))\n"
    )
    manifest = out.with_name(f"{out.name}.manifest.json")
    for n_shards in (3, 25):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if manifest.exists() and manifest.read_text().count('"sha256"') > n_shards:
                break
            time.sleep(0.02)
        process.kill()
        process.wait()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240, capture_output=True)
    found = contents(out.parent)
    assert {name: data for name, data in found.items() if name.endswith(".npz")} == {
        name: data for name, data in expected.items() if name.endswith(".npz")
    }


def test_an_engine_builds_the_same_index_as_one_process(runner: str, many: EmbedJob, folder: Path) -> None:
    elmo = tiny_elmo(softmax=True)
    one = IndexJob(many.inputs, folder / "one", shard_tokens=12)
    build_index(one, elmo)
    other = replace(one, out=folder / "other", workers=2, runner=runner)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        build_index(other, elmo, on_progress=stop_after(5))
    seen: list[Progress] = []
    build_index(other, elmo, on_progress=seen.append)
    assert seen[-1].kept > 0
    assert len(contents(one.out)) > 15
    assert contents(other.out) == contents(one.out)


def test_an_engine_sets_the_same_sentences_aside(
    runner: str, many: EmbedJob, text: Path, out: Path, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.jobs.groups.MAX_TOKENS", 6)
    text.write_text("".join(f"{'x ' * (k % 9)}\n" for k in range(60)))
    job = replace(many, set_aside=out.parent / "bad.jsonl")
    assert embed_corpus(replace(job, workers=1), elmo).set_aside == 12
    expected = contents(out.parent)
    assert embed_corpus(replace(job, runner=runner, restart=True), elmo).set_aside == 12  # type: ignore[arg-type]
    assert contents(out.parent) == expected


def test_errors_of_a_worker_are_those_of_one_process(runner: str, many: EmbedJob, out: Path, elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match=r"must have torch 0\.1, as the driver has; found"):
        run_with_other_versions(replace(many, runner=runner), elmo)  # type: ignore[arg-type]
    assert not list(out.parent.glob(".*model*"))


def run_with_other_versions(job: EmbedJob, elmo: Elmo) -> None:
    from elmo.jobs import engines

    here = engines.Versions.here
    engines.Versions.here = classmethod(lambda cls: cls(__version__, "0.1"))  # type: ignore[method-assign, assignment]
    try:
        embed_corpus(job, elmo)
    finally:
        engines.Versions.here = here  # type: ignore[method-assign]


def test_a_missing_cluster_is_an_error_in_one_line(runner: str, many: EmbedJob, out: Path, elmo: Elmo) -> None:
    address = "127.0.0.1:1" if runner == "ray" else "spark://127.0.0.1:1"
    with pytest.raises(ConfigError, match=rf"cannot connect to {runner.title()} at {address}: .*refused") as caught:
        embed_corpus(replace(many, runner=runner, cluster=address), elmo)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not list(out.parent.glob("*.npz"))


def test_the_error_of_a_cluster_with_tokens_says_what_to_set(
    many: EmbedJob, elmo: Elmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ray")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    cluster = subprocess.Popen(
        command,
        env={**os.environ, **token},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.2)
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        with pytest.raises(ConfigError, match=r"cannot connect to Ray at .*: the cluster needs its token: .*RAY_AUTH"):
            embed_corpus(replace(many, runner="ray", cluster=f"127.0.0.1:{port}"), elmo)
    finally:
        os.killpg(cluster.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            cluster.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(cluster.pid, signal.SIGKILL)
        cluster.wait(10)
        stop_engine("ray")


def test_an_engine_that_is_not_installed_is_named(many: EmbedJob, elmo: Elmo) -> None:
    for runner, library in LIBRARIES.items():
        if importlib.util.find_spec(library) is None:
            with pytest.raises(MissingExtraError, match=rf"pip install 'pyelmo\[{runner}\]'"):
                embed_corpus(replace(many, runner=runner), elmo)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner": "dask"}, "runner must be local, ray or spark; found 'dask'"),
        ({"cluster": "auto"}, "cluster needs a runner"),
        ({"runner": "ray", "out": None, "workers": 1}, "cannot use the runner ray without an output file"),
        ({"runner": "ray", "devices": ("cpu",)}, "devices are not supported by the runner ray"),
    ],
)
def test_options_that_do_not_fit_are_refused(job: EmbedJob, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(job, **options)  # type: ignore[arg-type]
