"""Checks of outputs, and files and folders that are written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elmo.errors import OutputError
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
