"""Reading files from unknown sources: members of a folder, JSON, lines, limits."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from elmo.errors import FormatError
from elmo.storage.files import find_member, list_names, open_regular, read_json, read_lines


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
    assert find_member(folder, "file") == folder / "file"


def test_a_file_in_a_folder_below_is_a_member(folder: Path) -> None:
    (folder / "variables").mkdir()
    (folder / "variables" / "part").touch()
    assert find_member(folder, "variables/part").is_file()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "a\0b", "..\\secret"])
def test_a_name_that_leaves_the_folder_is_rejected(folder: Path, name: str) -> None:
    with pytest.raises(FormatError, match="expected the name of a file in this folder"):
        find_member(folder, name)


def test_a_link_that_leaves_the_folder_is_rejected(folder: Path) -> None:
    (folder / "link").symlink_to("../secret")
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        find_member(folder, "link")


def test_a_file_in_a_linked_folder_is_rejected(folder: Path) -> None:
    (folder / "sub").symlink_to("..")
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        find_member(folder, "sub/secret")


def test_a_link_inside_the_folder_is_followed(folder: Path) -> None:
    (folder / "link").symlink_to("file")
    assert find_member(folder, "link").read_bytes() == b"inside"


def test_a_folder_that_is_itself_a_link_is_a_model_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(folder)
    assert find_member(tmp_path / "latest", "file").read_bytes() == b"inside"


def test_a_loop_of_links_is_rejected(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(FormatError, match="cannot open"):
        find_member(folder, "a")


def test_links_of_a_hub_cache_may_only_point_to_its_blobs(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "models--org--name" / "blobs"
    blobs.mkdir()
    (blobs / "0123").write_bytes(b"weights")
    (tmp_path / "secret").touch()
    (snapshot / "weights.hdf5").symlink_to("../../blobs/0123")
    (snapshot / "options.json").symlink_to("../../../secret")
    assert find_member(snapshot, "weights.hdf5").read_bytes() == b"weights"
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        find_member(snapshot, "options.json")


def test_a_link_to_a_snapshot_of_a_hub_cache_is_a_model_folder(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--name" / "blobs").mkdir()
    (tmp_path / "models--org--name" / "blobs" / "0123").write_bytes(b"weights")
    (snapshot / "weights.hdf5").symlink_to("../../blobs/0123")
    (tmp_path / "mine").symlink_to(snapshot)
    assert find_member(tmp_path / "mine", "weights.hdf5").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["models--org--name", "backups"])
def test_blobs_that_are_a_link_or_outside_a_hub_cache_are_rejected(tmp_path: Path, name: str) -> None:
    snapshot = tmp_path / name / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").touch()
    if name == "backups":
        (tmp_path / "elsewhere").rename(tmp_path / name / "blobs")
    else:
        (tmp_path / name / "blobs").symlink_to(tmp_path / "elsewhere")
    (snapshot / "vocab.txt").symlink_to("../../blobs/secret")
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        find_member(snapshot, "vocab.txt")


def test_folders_pipes_and_missing_files_are_not_members(folder: Path) -> None:
    (folder / "weights.hdf5").mkdir()
    os.mkfifo(folder / "options.json")
    with pytest.raises(FormatError, match="expected a regular file"):
        find_member(folder, "weights.hdf5")
    with pytest.raises(FormatError, match="expected a regular file"):
        find_member(folder, "options.json")
    with pytest.raises(FormatError, match=r"expected a file vocab\.txt, found none"):
        find_member(folder, "vocab.txt")


def test_a_pipe_or_folder_is_rejected_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for path in (folder / "pipe", folder):
        with pytest.raises(FormatError, match="expected a regular file"):
            open_regular(path)


def test_a_large_sparse_file_is_rejected(folder: Path) -> None:
    path = written(folder, b"x" * 5000)
    os.truncate(path, 1 << 30)
    if path.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this file system has no sparse files")
    with pytest.raises(FormatError, match="most were never written; download it again"):
        open_regular(path)
    os.truncate(path, 1 << 20)
    with open_regular(path) as file:
        assert file.read(3) == b"xxx"


def test_list_names_skips_macos_metadata_and_missing_folders(folder: Path) -> None:
    (folder / "._file").touch()  # metadata of macOS
    assert list_names(folder) == ["file"]
    assert list_names(folder / "file") == list_names(folder / "nothing") == list_names(Path("a\0b")) == []


def test_json_is_read(folder: Path) -> None:
    assert read_json(written(folder, '\ufeff{"a": [1, 2.5, "é"]}'.encode())) == {"a": [1, 2.5, "é"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not valid JSON"),
        (b'{"a": ', "not valid JSON"),
        (b"[NaN]", "number NaN is not finite"),
        (b"[-Infinity]", "number -Infinity is not finite"),
        (b"[1e999]", "number 1e999 is not finite"),
        (b"[" + b"9" * 5000 + b"]", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "key 'a' occurs twice with different values"),
        (b"[" * 100_000, "too many nested brackets"),
        (b"[" * 100 + b"]" * 100, "at most 64 levels of nesting"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "at most 64 levels of nesting"),
        (b'{"a": "\xff"}', "expected UTF-8, found byte 0xff in line 1, at offset 7"),
        (b"\x00\x01", "not valid JSON"),
    ],
)
def test_ambiguous_or_damaged_json_is_rejected(folder: Path, data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_json(written(folder, data))
    assert "\n" not in str(caught.value)


def test_a_key_that_occurs_twice_with_one_value_is_accepted(folder: Path) -> None:
    assert read_json(written(folder, b'{"a": 1, "a": 1}')) == {"a": 1}


def test_a_file_over_the_limit_is_rejected_before_it_is_read(folder: Path) -> None:
    with pytest.raises(FormatError, match="expected at most 10 bytes, found 11"):
        read_json(written(folder, b'"123456789"'), limit=10)
    with pytest.raises(FormatError, match="expected at most 10 bytes, found 12"):
        read_lines(written(folder, b"a\n" * 6), limit=10)


def test_lines_end_only_at_newlines(folder: Path) -> None:
    text = "a\r\nb\u2028c\u0085d\u3000\v\f\n\n last"
    assert read_lines(written(folder, text.encode())) == ["a\r", "b\u2028c\u0085d\u3000\v\f", "", " last"]
    assert read_lines(written(folder, b"a\n\n")) == ["a", ""]
    assert read_lines(written(folder, b"")) == []


def test_an_error_for_lines_that_are_not_utf8_has_line_and_byte(folder: Path) -> None:
    with pytest.raises(FormatError, match="found byte 0xe9 in line 3, at offset 6"):
        read_lines(written(folder, b"ab\ncd\n\xe9"))


def test_one_emoji_does_not_make_all_lines_four_times_as_large(folder: Path) -> None:
    path = written(folder, (b"x" * 999 + b"\n") * 4000 + "😀".encode())
    tracemalloc.start()
    try:
        assert read_lines(path)[-1] == "😀"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * path.stat().st_size


def test_too_many_lines_are_rejected(folder: Path) -> None:
    with pytest.raises(FormatError, match="expected at most 5 lines, found 6"):
        read_lines(written(folder, b"\n" * 6), max_lines=5)
    with pytest.raises(FormatError, match="expected at most 5 lines, found 6"):
        read_lines(written(folder, b"\n" * 5 + b"x"), max_lines=5)


def test_a_name_with_a_newline_stays_on_one_line_of_the_message(folder: Path) -> None:
    path = folder / "a\nb"
    path.mkdir()
    with pytest.raises(FormatError) as caught:
        find_member(folder, "a\nb")
    assert "\n" not in str(caught.value)
