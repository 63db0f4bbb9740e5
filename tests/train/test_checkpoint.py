from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from elmo.errors import FormatError, OutputError
from elmo.train.checkpoint import Checkpoints, Snapshot
from tests.embed.test_job import small_files


def snapshot(step: int) -> Snapshot:
    generator = torch.Generator().manual_seed(step)
    weights = {"a": torch.randn(3, 4, generator=generator), "b": torch.randn(5, generator=generator).double()}
    return Snapshot(
        {"weights": weights, "random": {"torch": generator.get_state()}},
        {"step": step, "position": [0, step], "loss": 1 / (step + 1)},
    )


def assert_same(found: Snapshot, expected: Snapshot) -> None:
    assert found.progress == expected.progress
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensors in expected.tensors.items():
        assert found.tensors[name].keys() == tensors.keys()
        assert all(torch.equal(found.tensors[name][key], value) for key, value in tensors.items())
        assert all(found.tensors[name][key].dtype == value.dtype for key, value in tensors.items())


def test_a_snapshot_comes_back_to_the_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    assert checkpoints.latest() is None
    checkpoints.save(snapshot(7), step=7)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == 7
    assert_same(found[1], snapshot(7))


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(6):
        checkpoints.save(snapshot(step), step=step, is_best=step == 1)
    assert checkpoints.steps() == [1, 4, 5]
    assert checkpoints.best() == 1
    assert_same(checkpoints.load(1), snapshot(1))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    names = ["weights.safetensors", "random.safetensors", "progress.json", "SHA256SUMS"]
    for step in range(2):
        checkpoints.save(snapshot(step), step=step)
    for name in names:
        checkpoints.save(snapshot(9), step=9)
        path = tmp_path / "step-000000009" / name
        data = path.read_bytes()
        if damage == "remove":
            path.unlink()
        elif damage == "add":
            path.with_name("extra.safetensors").write_bytes(data)
        else:
            path.write_bytes(data[:-1] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
        with pytest.raises(FormatError):
            checkpoints.load(9)
        found = checkpoints.latest()
        assert found is not None
        assert found[0] == 1
        for file in path.parent.iterdir():
            file.unlink()
        path.parent.rmdir()
    assert "going back to the checkpoint before it" in caplog.text


SAVING = """
import sys
from pathlib import Path
from elmo.train.checkpoint import Checkpoints
from tests.train.test_checkpoint import snapshot
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
checkpoints.remove_strays()
found = checkpoints.latest()
step = found[0] + 1 if found else 0
print("ready", flush=True)
while True:
    checkpoints.save(snapshot(step), step=step, is_best=step % 5 == 0)
    step += 1
"""


def test_killed_at_any_instant_an_old_or_a_new_checkpoint_loads(tmp_path: Path) -> None:
    chance = random.Random(0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    reached = -1
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(tmp_path)], stdout=subprocess.PIPE, env=environment
        )
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0.01, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = Checkpoints(tmp_path).latest()
        if found is not None:
            assert found[0] >= reached
            assert_same(found[1], snapshot(found[0]))
            reached = found[0]
    assert reached > 0


def test_a_full_disk_is_one_line_and_the_checkpoint_before_stands(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1), step=1)
    with small_files(100), pytest.raises(OutputError, match=r"step-000000002: cannot be written"):
        checkpoints.save(snapshot(2), step=2)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == 1
    assert checkpoints.steps() == [1]
