from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from elmo.errors import FormatError, OutputError
from elmo.storage import files
from elmo.train.checkpoint import Checkpoints, Snapshot
from tests.jobs.test_run import small_files


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


def test_weights_that_share_memory_come_back_each_by_itself(tmp_path: Path) -> None:
    table = torch.arange(12.0).view(4, 3)
    tied = {"words": table, "softmax": table, "rows": table[1:], "none": table[:0]}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Snapshot({"weights": tied}, {}), step=1)
    assert_same(checkpoints.load(1), Snapshot({"weights": tied}, {}))


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(6):
        checkpoints.save(snapshot(step), step=step, is_best=step == 1)
    assert checkpoints.steps() == [1, 4, 5]
    assert checkpoints.best() == 1
    assert_same(checkpoints.load(1), snapshot(1))
    assert Checkpoints(tmp_path).best() == 1  # every later one records it
    checkpoints.save(snapshot(6), step=6, is_best=True)
    assert checkpoints.steps() == [5, 6]
    assert checkpoints.best() == 6


def test_each_checkpoint_records_which_one_is_the_best(tmp_path: Path) -> None:
    """A crash right after the renaming finds the new checkpoint and its rank, or neither."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1), step=1, is_best=True)
    place = checkpoints.save(snapshot(2), step=2, is_best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000002"]
    shutil.move(place, tmp_path / "elsewhere")
    assert checkpoints.best() == 1


def test_a_run_that_resumed_before_a_damaged_checkpoint_replaces_it(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        place = checkpoints.save(snapshot(step), step=step, is_best=True)
    (place / "weights.safetensors").write_bytes(b"torn")
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == 2
    checkpoints.save(snapshot(3), step=3)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == 3
    assert_same(found[1], snapshot(3))
    assert checkpoints.best() == 2


def test_a_whole_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1), step=1)
    with pytest.raises(OutputError, match="step-000000001 already exists"):
        checkpoints.save(snapshot(2), step=1)
    assert_same(checkpoints.load(1), snapshot(1))


def test_strays_of_a_killed_run_go_and_checkpoints_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    place = checkpoints.save(snapshot(1), step=1)
    for name in (".step-000000002.12345678.part", ".step-000000000.part"):  # half-written, half-removed
        shutil.copytree(place, tmp_path / name)
    checkpoints.remove_temporary()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
    assert_same(checkpoints.load(1), snapshot(1))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    names = ["weights.safetensors", "random.safetensors", "progress.json", "best.json", "SHA256SUMS"]
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
    assert "using the previous checkpoint" in caplog.text


def save_for_ever(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep=2)
    checkpoints.remove_temporary()
    found = checkpoints.latest()
    step = found[0] + 1 if found else 0
    while True:
        checkpoints.save(snapshot(step), step=step, is_best=step % 5 == 0)
        step += 1


def kill_again_and_again(folder: Path) -> None:
    """Runs in a process of its own, which has one thread and may be forked."""
    chance = random.Random(0)
    checkpoints = Checkpoints(folder)
    reached = -1
    for _ in range(12):
        child = os.fork()
        if child == 0:
            save_for_ever(folder)
        while checkpoints.steps()[-1:] <= [reached]:
            time.sleep(0.001)  # until it has come on, however slow the machine
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        found = checkpoints.latest()
        assert found is not None
        assert found[0] == checkpoints.steps()[-1] > reached
        assert_same(found[1], snapshot(found[0]))
        assert checkpoints.best() == found[0] // 5 * 5
        reached = found[0]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_killed_at_any_instant_an_old_or_a_new_checkpoint_loads_and_the_best_is_known(tmp_path: Path) -> None:
    script = f"from {__name__} import *; kill_again_and_again(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=300)


def test_a_full_disk_has_the_same_message_as_in_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    said = "cannot write .*step-000000001: No space left on device; free some disk space and try again$"
    with pytest.raises(OutputError, match=said):
        Checkpoints(tmp_path).save(snapshot(1), step=1)


def test_a_full_disk_is_one_line_and_the_checkpoint_before_stands(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1), step=1)
    with small_files(100), pytest.raises(OutputError, match=r"cannot write .*step-000000002"):
        checkpoints.save(snapshot(2), step=2)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == 1
    assert checkpoints.steps() == [1]


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"step": "x"}', '{"step": [2]}', "not JSON"])
def test_a_record_of_the_best_with_other_content_names_none(tmp_path: Path, content: str) -> None:
    """Its checksum is correct, as a stranger would write it."""
    checkpoints = Checkpoints(tmp_path)
    folder = checkpoints.save(snapshot(2), step=2, is_best=True)
    rewrite(folder, "best.json", content)
    assert checkpoints.best() is None
    assert_same(checkpoints.load(2), snapshot(2))


@pytest.mark.parametrize("content", ["[]", "3", "null", "not JSON"])
def test_progress_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    rewrite(checkpoints.save(snapshot(2), step=2), "progress.json", content)
    with pytest.raises(FormatError, match=r"progress\.json"):
        checkpoints.load(2)


def rewrite(folder: Path, name: str, content: str) -> None:
    """Replace a file of a checkpoint, with the correct checksum."""
    sums = files.read_checksums(folder, sorted(path.name for path in folder.iterdir()))
    (folder / name).write_text(content)
    sums[name] = files.compute_sha256(folder / name)
    (folder / files.CHECKSUMS_NAME).write_text(files.format_checksums(sums, sorted(sums)), encoding="ascii")
