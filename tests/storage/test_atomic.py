"""Checks of outputs, and files and folders that are written completely or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from elmo.errors import OutputError
from elmo.storage import atomic
from elmo.storage.atomic import atomic_file, atomic_folder, check_output_file, hold_lock, make_parents
from elmo.storage.files import list_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    return path


def test_a_new_folder_appears_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with atomic_folder(target) as inside:
        (inside / "a").write_text("1")
        (inside / "sub").mkdir()
        assert not target.exists()
    assert list_names(target) == ["a", "sub"]
    assert list_names(target.parent) == ["model"]


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no folders")
def test_folders_of_killed_processes_are_removed_but_not_those_of_running_ones(tmp_path: Path) -> None:
    left, other = tmp_path / ".model.0123abcd.part", tmp_path / ".model.notes.part"
    for folder in (left, other):
        folder.mkdir()
        (folder / "half").touch()
    with atomic_folder(tmp_path / "model") as living:
        assert not left.exists()
        with atomic_folder(tmp_path / "model") as faster:
            assert living.is_dir()
            (faster / "a").touch()
        (tmp_path / "model" / "a").unlink()
    assert list_names(tmp_path) == [other.name, "model"]


def test_a_failure_leaves_no_folder_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "model") as inside:
            (inside / "a").write_text("1")
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        fail()
    assert list_names(tmp_path) == []


def test_a_failure_of_the_system_is_an_output_error(tmp_path: Path) -> None:
    said = "cannot write .*model: No space left on device; free some disk space and try again$"
    with pytest.raises(OutputError, match=said), atomic_folder(tmp_path / "model"):
        raise OSError(28, "No space left on device")
    assert list_names(tmp_path) == []


def test_existing_outputs_are_never_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (folder, folder / "file", tmp_path / "link"):
        with pytest.raises(OutputError, match="already exists"), atomic_folder(taken):
            pytest.fail("the folder was created")
    assert (folder / "file").read_bytes() == b"inside"


def test_an_empty_folder_can_be_the_output(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with atomic_folder(tmp_path / "model") as inside:
        (inside / "a").touch()
    assert list_names(tmp_path / "model") == ["a"]


def test_parent_folders_are_created_unless_a_file_is_in_the_way(tmp_path: Path) -> None:
    for _ in range(2):  # they may exist
        check_output_file(tmp_path / "a" / "b" / "x.tsv")
        make_parents(tmp_path / "a" / "b" / "x.tsv")
    assert list_names(tmp_path / "a") == ["b"]
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*x\.tsv: .*file is a file, not a folder$"):
        check_output_file(tmp_path / "file" / "b" / "x.tsv")
    with pytest.raises(OutputError, match=r"cannot write .*x\.tsv: Not a directory$"):
        make_parents(tmp_path / "file" / "b" / "x.tsv")


def test_checking_an_output_creates_no_folders(tmp_path: Path) -> None:
    check_output_file(tmp_path / "a" / "x.tsv")
    assert list_names(tmp_path) == []


def test_an_output_file_needs_the_right_suffix_and_must_not_be_a_folder_or_an_input(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    check_output_file(path, suffixes=(".tsv", ".json"), inputs=["-", tmp_path / "y.tsv"])
    check_output_file(tmp_path / "x.TSV", suffixes=(".tsv",))
    with pytest.raises(OutputError, match=r"the output name must end in \.tsv or \.json; found .*x\.doc$"):
        check_output_file(tmp_path / "x.doc", suffixes=(".tsv", ".json"))
    with pytest.raises(OutputError, match="expected a file name, found a folder"):
        check_output_file(tmp_path)
    with pytest.raises(OutputError, match=r"x\.tsv is one of the inputs"):
        check_output_file(path, inputs=[tmp_path / "." / "x.tsv"])
    path.touch()
    check_output_file(path)
    with pytest.raises(OutputError, match=r"x\.tsv already exists; pass --overwrite"):
        check_output_file(path, overwrite=False)


def test_a_file_is_replaced_only_when_all_of_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def fail() -> None:
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert path.read_text() == "old"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list_names(tmp_path) == ["x"]


def test_a_lock_is_held_once_and_leaves_no_file(tmp_path: Path) -> None:
    lock, subject = tmp_path / ".x.lock", tmp_path / "x"
    with (
        hold_lock(lock, subject=subject),
        pytest.raises(OutputError, match="x: another process is writing"),
        hold_lock(lock, subject=subject),
    ):
        pytest.fail("the lock was taken twice")
    with hold_lock(lock, subject=subject):
        pass
    assert list_names(tmp_path) == []


def test_a_lock_can_wait_for_another_holder(tmp_path: Path) -> None:
    lock, subject, order = tmp_path / ".x.lock", tmp_path / "x", []

    def wait() -> None:
        with hold_lock(lock, subject=subject, is_waiting=True):
            order.append("second")

    with hold_lock(lock, subject=subject):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list_names(tmp_path) == []


# --- links and files of other users ----------------------------------------------------------------------


def plant(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """Return the victim, and a link to it in the place of an output."""
    victim, path = tmp_path / "victim", tmp_path / name
    victim.write_text("keep me")
    path.symlink_to(victim)
    return victim, path


@pytest.mark.parametrize("name", ["out.txt", ".out.txt.part"])
def test_a_file_is_never_written_through_a_link(tmp_path: Path, name: str) -> None:
    victim, _ = plant(tmp_path, name)
    with atomic.atomic_file(tmp_path / "out.txt") as temporary:
        temporary.write_text("new")
    assert victim.read_text() == "keep me"
    assert not (tmp_path / "out.txt").is_symlink()
    assert (tmp_path / "out.txt").read_text() == "new"


def test_a_file_that_another_process_replaces_by_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("secret")
    with pytest.raises(OutputError, match="another process has replaced it"), atomic.atomic_file(tmp_path / "o") as new:
        new.symlink_to(tmp_path / "victim")
    assert not (tmp_path / "o").exists()


def test_a_log_a_lock_and_a_folder_are_never_opened_through_a_link(tmp_path: Path) -> None:
    victim, path = plant(tmp_path, "log")
    with pytest.raises(OutputError, match="log: it is a link"):
        atomic.open_for_append(path)
    with pytest.raises(OutputError, match="log: it is a link"), atomic.hold_lock(path, subject=path):
        pass
    path.unlink()
    path.symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(OutputError, match="log: it is a link"):
        atomic.make_folder(path)
    path.unlink()
    path.hardlink_to(victim)
    with pytest.raises(OutputError, match="second name"):
        atomic.open_for_append(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OutputError, match="not a regular file"):  # and does not wait for a reader
        atomic.open_for_append(path)
    assert victim.read_text() == "keep me"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_files_of_other_users_are_not_changed_unless_the_folder_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("theirs")
    os.chown(path, 12345, 12345)
    for write in (atomic.open_for_append, lambda path: atomic.atomic_file(path).__enter__(), _hold, _make):
        with pytest.raises(OutputError, match="belongs to another user"):
            write(path)
    os.chown(tmp_path, 12345, 12345)  # a shared folder, or a folder of the host in a container
    atomic.open_for_append(path).close()
    with atomic.atomic_file(path) as temporary:
        temporary.write_text("ours")
    assert path.read_text() == "ours"


def _hold(path: Path) -> None:
    with atomic.hold_lock(path, subject=path):
        pass


def _make(path: Path) -> None:
    folder = path.with_name("folder")
    folder.mkdir(exist_ok=True)
    os.chown(folder, 12345, 12345)
    atomic.make_folder(folder)


def test_a_library_that_restricts_permissions_does_not_restrict_those_of_the_output(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        with atomic.atomic_file(tmp_path / "a") as temporary:
            temporary.touch(mode=0o600)
        with atomic.atomic_folder(tmp_path / "folder") as new:
            (new / "inner").mkdir()
            (new / "inner" / "b").touch(mode=0o600)
    finally:
        os.umask(umask)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "folder/inner/b")] == [0o644, 0o644]


# --- temporary folders ---------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_temporary_folder_is_removed_also_after_an_error(temporary: Path) -> None:
    def fail() -> None:
        with atomic.temporary_folder("elmo-t-", subject="test") as folder:
            assert folder.parent == temporary
            (folder / "file").touch()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list_names(temporary) == []


def test_the_temporary_folder_of_a_killed_process_is_removed_by_the_next_one(temporary: Path) -> None:
    code = """
import os, sys
from elmo.storage.atomic import temporary_folder
with temporary_folder("elmo-t-", subject="test") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read(1)
    os.kill(os.getpid(), 9)
"""
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        os.utime(folder, (1, 1))
        with atomic.temporary_folder("elmo-t-", subject="test"):
            assert (folder / "file").exists()  # its process lives
        process.communicate("x")
    assert (folder / "file").exists()
    other = temporary / "elmo-other"
    other.mkdir()
    os.utime(other, (1, 1))
    with atomic.temporary_folder("elmo-t-", subject="test"):
        assert not folder.exists()
    assert list_names(temporary) == ["elmo-other"]


def test_a_missing_folder_for_temporary_files_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match="cannot unpack x: cannot create a temporary folder"):
        atomic.temporary_folder("elmo-t-", subject="unpack x").__enter__()
