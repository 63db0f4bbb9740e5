"""``elmo embed`` as a process, stopped by Ctrl-C and ``kill -9``: a one-line message, and the same bytes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.jobs.sharded import ShardedRun
from tests.cli.conftest import Outcome, Run, assert_fails
from tests.jobs.jobs import contents
from tests.jobs.processes import children, wait_until_gone

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals")

Start = Callable[..., subprocess.Popen[str]]
LINES = [f"the bank of river {k}\n" for k in range(60)]
COMMAND = ("embed", "-", "--model", "model", "--shard-tokens", "20", "--tokenizer", "whitespace", "--quiet")
SHARED = (*COMMAND, "--workers", "2", "--out", "out/v.npz")


@pytest.fixture
def expected(run: Run, here: Path) -> dict[str, bytes]:
    """The output of an uninterrupted job."""
    assert run(*COMMAND, "--out", "whole/v.npz", stdin="".join(LINES)).code == 0
    return contents(here / "whole")


def start_job(start: Start, here: Path) -> subprocess.Popen[str]:
    """Start a job and wait until two shards are recorded; its input is still open."""
    process = start(*SHARED, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin
    process.stdin.write("".join(LINES[:50]))
    process.stdin.flush()
    deadline = time.monotonic() + 120
    manifest = here / "out" / "v.npz.manifest.json"
    while not manifest.exists() or len(json.loads(manifest.read_text())["shards"]) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def assert_resumes(run: Run, here: Path, expected: dict[str, bytes]) -> None:
    """The same command resumes and ends with the same bytes."""
    whole = here / "out" / "v-00000.npz"
    before = whole.stat().st_mtime_ns
    again = run(*SHARED, stdin="".join(LINES))
    assert (again.code, again.err) == (0, "")
    assert contents(here / "out") == expected
    assert whole.stat().st_mtime_ns == before


@pytest.mark.slow
def test_ctrl_c_ends_all_workers_and_the_same_command_resumes(
    run: Run, start: Start, here: Path, expected: dict[str, bytes]
) -> None:
    process = start_job(start, here)
    workers = children(process.pid)
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
    out, err = process.communicate(timeout=120)
    said = "interrupted; run the same command again to resume after the last complete shard"
    assert_fails(Outcome(process.returncode, out, err), said, code=130)
    wait_until_gone(workers)
    assert not list(here.glob("out/.*"))
    assert_resumes(run, here, expected)


@pytest.mark.slow
def test_workers_of_a_killed_parent_end_and_the_same_command_resumes(
    run: Run, start: Start, here: Path, expected: dict[str, bytes]
) -> None:
    process = start_job(start, here)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_until_gone(workers)
    assert_resumes(run, here, expected)


@pytest.mark.slow
def test_ctrl_c_works_while_stdin_is_empty(start: Start, here: Path) -> None:
    process = start("embed", "-", "--model", "model", "--out", "v.npz", "--quiet", stdin=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (here / "v.npz.manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)  # it waits for the first line now
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr
    said = "elmo: interrupted; nothing was saved, so the same command starts from the beginning\n"
    assert process.stderr.read() == said


@pytest.mark.slow
def test_after_ctrl_c_of_a_restarted_job_the_message_says_to_drop_restart(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (*COMMAND, "--out", "v.npz", "--restart")
    monkeypatch.setattr(ShardedRun, "_finish", _ctrl_c)
    stopped = run(*command, stdin="".join(LINES))
    said = "elmo: interrupted; run the command without --restart to resume after the last complete shard\n"
    assert (stopped.code, stopped.err) == (130, said)


def _ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def test_workers_without_an_output_file_are_errors(run: Run) -> None:
    refused = run("embed", "corpus.txt", "--model", "model", "--workers", "2")
    assert_fails(refused, "cannot use 2 workers without an output file", "--out")
    refused = run("embed", "corpus.txt", "--model", "model", "--out", "v.npz", "--device", "cuda:0,cuda:1")
    assert_fails(refused, "--workers must be at least 2, one per device; found 1")


def test_the_help_explains_workers_and_batches(run: Run) -> None:
    shown = " ".join(run("embed", "--help").out.split())
    assert "--workers N" in shown
    assert "Number of processes; affects the speed, not the vectors" in shown
    assert "as many as fit into 16,384 tokens" in shown
