"""Safe opening: what may be a member of a model's folder, and what JSON and lines may hold."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from elmo.errors import FormatError, OutputError
from elmo.storage.files import (
    check_parents,
    make_parents,
    member,
    names,
    new_folder,
    open_regular,
    read_json,
    read_lines,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    return path


def written(folder: Path, data: bytes) -> Path:
    path = folder / "data"
    path.write_bytes(data)
    return path


def test_a_regular_file_of_the_folder_is_a_member(folder: Path) -> None:
    assert member(folder, "file") == folder / "file"


def test_a_file_in_a_folder_below_is_a_member(folder: Path) -> None:
    (folder / "variables").mkdir()
    (folder / "variables" / "part").touch()
    assert member(folder, "variables/part").is_file()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "a\0b", "..\\secret"])
def test_a_name_that_leads_out_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(FormatError, match="expected the name of a file in this folder"):
        member(folder, name)


def test_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "link").symlink_to("../secret")
    with pytest.raises(FormatError, match="is a link out of the model's folder"):
        member(folder, "link")


def test_a_file_below_a_linked_folder_is_refused(folder: Path) -> None:
    (folder / "sub").symlink_to("..")
    with pytest.raises(FormatError, match="is a link out of the model's folder"):
        member(folder, "sub/secret")


def test_a_link_within_the_folder_is_followed(folder: Path) -> None:
    (folder / "link").symlink_to("file")
    assert member(folder, "link").read_bytes() == b"inside"


def test_a_folder_that_is_itself_a_link_is_a_model_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder)
    assert member(tmp_path / "latest", "file").read_bytes() == b"inside"


def test_a_loop_of_links_is_refused(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(FormatError, match="cannot be opened"):
        member(folder, "a")


def test_links_of_a_hub_cache_lead_to_its_blobs_and_nowhere_else(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir()
    (blobs / "0123").write_bytes(b"weights")
    (tmp_path / "secret").touch()
    (snapshot / "weights.hdf5").symlink_to("../../blobs/0123")
    (snapshot / "options.json").symlink_to("../../../secret")
    assert member(snapshot, "weights.hdf5").read_bytes() == b"weights"
    with pytest.raises(FormatError, match="is a link out of the model's folder"):
        member(snapshot, "options.json")


def test_a_link_to_a_snapshot_of_a_hub_cache_is_a_model_folder(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--name" / "blobs").mkdir()
    (tmp_path / "models--org--name" / "blobs" / "0123").write_bytes(b"weights")
    (snapshot / "weights.hdf5").symlink_to("../../blobs/0123")
    (tmp_path / "mine").symlink_to(snapshot)
    assert member(tmp_path / "mine", "weights.hdf5").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["models--org--name", "backups"])
def test_blobs_that_are_a_link_or_no_part_of_a_hub_cache_are_out_of_the_folder(
    tmp_path: Path, name: str
) -> None:
    snapshot = tmp_path / name / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").touch()
    if name == "backups":
        (tmp_path / "elsewhere").rename(tmp_path / name / "blobs")
    else:
        (tmp_path / name / "blobs").symlink_to(tmp_path / "elsewhere")
    (snapshot / "vocab.txt").symlink_to("../../blobs/secret")
    with pytest.raises(FormatError, match="is a link out of the model's folder"):
        member(snapshot, "vocab.txt")


def test_folders_pipes_and_missing_files_are_no_members(folder: Path) -> None:
    (folder / "weights.hdf5").mkdir()
    os.mkfifo(folder / "options.json")
    with pytest.raises(FormatError, match="expected a regular file"):
        member(folder, "weights.hdf5")
    with pytest.raises(FormatError, match="expected a regular file"):
        member(folder, "options.json")
    with pytest.raises(FormatError, match=r"expected a file vocab\.txt, found none"):
        member(folder, "vocab.txt")


def test_a_pipe_or_folder_is_refused_at_once_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for path in (folder / "pipe", folder):
        with pytest.raises(FormatError, match="expected a regular file"):
            open_regular(path)


def test_a_large_file_that_is_mostly_a_hole_is_refused(folder: Path) -> None:
    path = written(folder, b"x" * 5000)
    os.truncate(path, 1 << 30)
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this file system has no holes")
    with pytest.raises(FormatError, match="most were never written: download it again"):
        open_regular(path)
    os.truncate(path, 1 << 20)
    with open_regular(path) as file:
        assert file.read(3) == b"xxx"


def test_names_are_those_of_a_folders_own_files_and_of_nothing_else(folder: Path) -> None:
    (folder / "._file").touch()  # of macOS
    assert names(folder) == ["file"]
    assert names(folder / "file") == names(folder / "nothing") == names(Path("a\0b")) == []


def test_json_is_read(folder: Path) -> None:
    assert read_json(written(folder, '\ufeff{"a": [1, 2.5, "é"]}'.encode())) == {"a": [1, 2.5, "é"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected JSON"),
        (b'{"a": ', "expected JSON"),
        (b"[NaN]", "NaN is no JSON number"),
        (b"[-Infinity]", "-Infinity is no JSON number"),
        (b"[1e999]", "number 1e999 is too large"),
        (b"[" + b"9" * 5000 + b"]", "expected JSON"),
        (b'{"a": 1, "a": 2}', "key 'a' stands twice with different values"),
        (b"[" * 100_000, "nested too deep"),
        (b"[" * 100 + b"]" * 100, "nested deeper than 64"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nested deeper than 64"),
        (b'{"a": "\xff"}', "expected UTF-8, found byte 0xff in line 1, at offset 7"),
        (b"\x00\x01", "expected JSON"),
    ],
)
def test_json_that_cannot_be_relied_on_is_refused(folder: Path, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_json(written(folder, data))
    assert "\n" not in str(caught.value)


def test_a_key_that_stands_twice_with_one_value_is_accepted(folder: Path) -> None:
    assert read_json(written(folder, b'{"a": 1, "a": 1}')) == {"a": 1}


def test_a_file_over_the_limit_is_refused_before_it_is_read(folder: Path) -> None:
    with pytest.raises(FormatError, match="expected at most 10 bytes, found 11"):
        read_json(written(folder, b'"123456789"'), limit=10)
    with pytest.raises(FormatError, match="expected at most 10 bytes, found 12"):
        read_lines(written(folder, b"a\n" * 6), limit=10)


def test_lines_end_at_newlines_and_at_nothing_else(folder: Path) -> None:
    text = "a\r\nb\u2028c\u0085d\u3000\v\f\n\n last"
    assert read_lines(written(folder, text.encode())) == ["a\r", "b\u2028c\u0085d\u3000\v\f", "", " last"]
    assert read_lines(written(folder, b"a\n\n")) == ["a", ""]
    assert read_lines(written(folder, b"")) == []


def test_lines_that_are_not_utf8_are_refused_with_line_and_byte(folder: Path) -> None:
    with pytest.raises(FormatError, match="found byte 0xe9 in line 3, at offset 6"):
        read_lines(written(folder, b"ab\ncd\n\xe9"))


def test_one_emoji_does_not_have_every_line_take_four_times_its_size(folder: Path) -> None:
    path = written(folder, (b"x" * 999 + b"\n") * 4000 + "😀".encode())
    tracemalloc.start()
    try:
        assert read_lines(path)[-1] == "😀"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * path.stat().st_size


def test_too_many_lines_are_refused(folder: Path) -> None:
    with pytest.raises(FormatError, match="expected at most 5 lines, found 6"):
        read_lines(written(folder, b"\n" * 6), max_lines=5)
    with pytest.raises(FormatError, match="expected at most 5 lines, found 6"):
        read_lines(written(folder, b"\n" * 5 + b"x"), max_lines=5)


def test_a_name_with_a_newline_stays_on_one_line_of_the_message(folder: Path) -> None:
    path = folder / "a\nb"
    path.mkdir()
    with pytest.raises(FormatError) as caught:
        member(folder, "a\nb")
    assert "\n" not in str(caught.value)


def test_a_new_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with new_folder(target) as inside:
        (inside / "a").write_text("1")
        (inside / "sub").mkdir()
        assert not target.exists()
    assert names(target) == ["a", "sub"]
    assert names(target.parent) == ["model"]


@pytest.mark.skipif(os.name == "nt", reason="Windows locks no folders")
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_is_not(tmp_path: Path) -> None:
    left, other = tmp_path / ".model.0123abcd.part", tmp_path / ".model.notes.part"
    for folder in (left, other):
        folder.mkdir()
        (folder / "half").touch()
    with new_folder(tmp_path / "model") as living:
        assert not left.exists()
        with new_folder(tmp_path / "model") as faster:
            assert living.is_dir()
            (faster / "a").touch()
        (tmp_path / "model" / "a").unlink()
    assert names(tmp_path) == [other.name, "model"]


def test_a_failure_leaves_no_folder_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with new_folder(tmp_path / "model") as inside:
            (inside / "a").write_text("1")
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        fail()
    assert names(tmp_path) == []


def test_a_failure_of_the_system_is_an_output_error(tmp_path: Path) -> None:
    said = "model: cannot be written: No space left on device; free some space and run it again$"
    with pytest.raises(OutputError, match=said), new_folder(tmp_path / "model"):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []


def test_what_stands_already_is_never_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (folder, folder / "file", tmp_path / "link"):
        with pytest.raises(OutputError, match="exists already"), new_folder(taken):
            pytest.fail("it was handed out")
    assert (folder / "file").read_bytes() == b"inside"


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with new_folder(tmp_path / "model") as inside:
        (inside / "a").touch()
    assert names(tmp_path / "model") == ["a"]


def test_the_folders_of_an_output_are_made_unless_a_file_is_in_the_way(tmp_path: Path) -> None:
    for _ in range(2):  # they may be there already
        check_parents(tmp_path / "a" / "b" / "x.tsv")
        make_parents(tmp_path / "a" / "b" / "x.tsv")
    assert names(tmp_path / "a") == ["b"]
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"x\.tsv: expected a folder, but .*file is a file$"):
        check_parents(tmp_path / "file" / "b" / "x.tsv")
    with pytest.raises(OutputError, match=r"x\.tsv: cannot be written: Not a directory$"):
        make_parents(tmp_path / "file" / "b" / "x.tsv")


def test_looking_at_the_folders_of_an_output_makes_none(tmp_path: Path) -> None:
    check_parents(tmp_path / "a" / "x.tsv")
    assert names(tmp_path) == []
