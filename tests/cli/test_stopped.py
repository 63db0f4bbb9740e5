"""A signal that ends a command: its temporary files are removed, and the caller sees the signal."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Start = Callable[..., subprocess.Popen[str]]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_unpacking_leaves_no_temporary_folder(
    here: Path, start: Start, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("nohup makes all processes ignore SIGHUP")
    with tarfile.open(here / "model.tar.gz", "w:gz", compresslevel=1) as archive:
        info = tarfile.TarInfo("weights.hdf5")
        info.size = 60_000_000
        archive.addfile(info, io.BytesIO(os.urandom(info.size)))
    temporary = here / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = start("info", "model.tar.gz")
    end = time.monotonic() + 60
    while not any(temporary.rglob("*.hdf5")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number), err
    assert "Traceback" not in err
    assert list(temporary.iterdir()) == []
