from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from elmo.errors import FormatError
from elmo.formats.containers.tf_checkpoint import read_index, slice_key
from tests.formats import write_bundle as made
from tests.formats.write_bundle import write_bundle

PREFIX = "model.ckpt-7"


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "lm/a": rng.normal(size=(3, 5)).astype(np.float32),
        "lm/half": rng.normal(size=(4,)).astype(np.float16),
        "lm/double": rng.normal(size=(2, 2)),
        "global_step": np.array(7, dtype=np.int64),
        "small": np.array([-1, 2], dtype=np.int32),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "wide": rng.normal(size=(6, 200)).astype(np.float32),
    }


@pytest.mark.parametrize("n_shards", [1, 3])
def test_every_tensor_comes_back_bit_by_bit(tmp_path: Path, n_shards: int) -> None:
    write_bundle(tmp_path, PREFIX, arrays(), n_shards=n_shards)
    bundle = read_index(tmp_path, PREFIX)
    assert bundle.names == sorted(arrays())
    for name, array in arrays().items():
        found = bundle.read(name)
        assert bundle.shapes[name] == found.shape == array.shape
        assert bundle.entries[name].dtype == found.dtype == array.dtype
        assert found.tobytes() == array.tobytes()


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    array = np.array([1.0, -2.5, 3.140625], dtype=np.float32)  # all fit into 16 bits
    write_bundle(tmp_path, PREFIX, {"w": array}, bfloat16=["w"])
    bundle = read_index(tmp_path, PREFIX)
    assert bundle.entries["w"].dtype == "bfloat16"
    assert bundle.read("w").tolist() == array.tolist()


def test_a_tensor_in_slices_is_joined(tmp_path: Path) -> None:
    slices = {
        "wide": [[(0, None), (0, 63)], [(0, None), (63, 137)]],
        "lm/a": [[(0, 1), (0, None)], [(1, 2), (0, 2)], [(1, 2), (2, 3)]],
    }
    write_bundle(tmp_path, PREFIX, arrays(), slices=slices, n_shards=2)
    bundle = read_index(tmp_path, PREFIX)
    assert bundle.names == sorted(arrays())  # slices have no names of their own
    for name in slices:
        assert bundle.read(name).tobytes() == arrays()[name].tobytes()


def test_the_keys_of_slices_sort_as_their_places() -> None:
    values = [-1, 0, 1, 63, 64, 65, 8191, 8192, 1 << 20, (1 << 20) + 1, 1 << 27, (1 << 40) - 1]
    keys = [slice_key("w", [(0, value)]) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert slice_key("lm/a", [(0, None), (64, 3)]) == b"\0lm/a\0\1\1\2\x80\x7f\xc0\x40\x83"


def test_reading_opens_one_range_of_one_file(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, arrays(), n_shards=2)
    bundle = read_index(tmp_path, PREFIX)
    used = {entry.shard for name, entry in bundle.entries.items() if name == "wide"}
    (tmp_path / f"{PREFIX}.data-{1 - used.pop():05d}-of-00002").unlink()
    assert bundle.read("wide").tobytes() == arrays()["wide"].tobytes()


@pytest.mark.parametrize("at", [0, 7, 400, -1])
def test_a_flipped_byte_of_a_tensor_is_caught(tmp_path: Path, at: int) -> None:
    write_bundle(tmp_path, PREFIX, {"w": np.ones((30, 9), dtype=np.float32)})
    path = tmp_path / f"{PREFIX}.data-00000-of-00001"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"'w': expected checksum .* is damaged, download it again"):
        read_index(tmp_path, PREFIX).read("w")


def test_a_name_that_is_not_there_and_text_are_refused_when_read(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, {}, extra=[(b"text", made.entry("string", [2], size=9))])
    bundle = read_index(tmp_path, PREFIX)
    assert {name: entry.dtype for name, entry in bundle.entries.items()} == {"text": "other"}
    with pytest.raises(FormatError, match="expected 'text' to contain numbers"):
        bundle.read("text")
    with pytest.raises(FormatError, match="expected tensor 'w', found none among 1"):
        bundle.read("w")


def test_every_mismatch_is_reported_at_once(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, arrays())
    path = tmp_path / f"{PREFIX}.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(
        FormatError, match=r"'lm/a': expected bytes .*'wide': expected bytes .* found a file of 10"
    ):
        read_index(tmp_path, PREFIX)


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, arrays(), n_shards=2)
    (tmp_path / f"{PREFIX}.data-00001-of-00002").unlink()
    with pytest.raises(FormatError, match=rf"expected a file {PREFIX}.data-00001-of-00002, found none"):
        read_index(tmp_path, PREFIX)


WRONG_ENTRIES = [
    ("more than its bytes", made.entry("float32", [1 << 20, 1 << 20], size=8), "expected 4398046511104 "),
    ("a product beyond 64 bits", made.entry("float32", [1 << 33, 1 << 33]), "expected 295147905179352825856"),
    ("a negative axis", made.entry("float32", [-1, -2], size=8), "expected a shape of sizes"),
    ("an axis beyond all bounds", made.entry("float32", [1 << 62], size=8), "expected a shape of sizes"),
    ("too many axes", made.entry("float32", [1] * 9, size=4), "at most 8 axes"),
    ("a size of its own", made.entry("float32", [2], size=12), "expected 8 bytes for float32"),
    ("bytes beyond the file", made.entry("float32", [2], offset=1 << 40, size=8), "expected bytes 109951162"),
    ("a negative offset", made.entry("float32", [2], offset=-8, size=8), "bytes in it"),
    ("a negative size", made.entry("float32", [2], size=-8), "bytes in it"),
    ("no such data file", made.entry("float32", [2], shard=1, size=8), "a data file of 1"),
    ("a negative data file", made.entry("float32", [2], shard=-1, size=8), "a data file of 1"),
    ("bytes of another tensor", made.entry("float32", [2], offset=4, size=8), "overlap"),
    ("too many slices", made.entry("float32", [2], slices=[[(0, 1)]] * 1025), "at most 2 slices"),
    ("no such slice", made.entry("float32", [2], slices=[[(0, 1)]]), r"expected its slice at \(0"),
    ("a slice with a negative start", made.entry("float32", [2], slices=[[(-1, 1)]]), "expected a slice in"),
    ("a slice of nothing", made.entry("float32", [2], slices=[[(0, 0)]]), "expected a slice in"),
    ("a slice of too many axes", made.entry("float32", [2], slices=[[(0, 1)] * 9]), "at most 8 axes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "reason"), [case[1:] for case in WRONG_ENTRIES], ids=[c[0] for c in WRONG_ENTRIES]
)
def test_an_entry_that_lies_is_refused_before_memory_is_taken(
    tmp_path: Path, entry: bytes, reason: str
) -> None:
    write_bundle(tmp_path, PREFIX, {"w": np.ones(4, dtype=np.float32)}, extra=[(b"wrong", entry)])
    with pytest.raises(FormatError, match=reason):
        read_index(tmp_path, PREFIX)


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        ([[(0, 2), (0, None)], [(1, 2), (0, None)]], r"\(0, 0\) and \(1, 0\) overlap"),
        ([[(0, 1), (0, None)], [(2, 1), (0, None)]], "found 10 of 15 numbers"),
        ([[(0, 1)], [(1, 2)]], "expected slices of 2 axes, found 1"),
    ],
)
def test_slices_must_fill_their_tensor_without_overlap(
    tmp_path: Path, boxes: list[made.Box], reason: str
) -> None:
    write_bundle(tmp_path, PREFIX, {"w": np.zeros((3, 5), dtype=np.float32)}, slices={"w": boxes})
    with pytest.raises(FormatError, match=reason):
        read_index(tmp_path, PREFIX)


def test_slices_must_lie_within_their_tensor(tmp_path: Path) -> None:
    box = [(0, None), (4, 2)]
    pairs = [
        (b"w", made.entry("float32", (3, 5), slices=[box])),
        (made.slice_key("w", box), made.entry("float32", (3, 2))),
    ]
    write_bundle(tmp_path, PREFIX, {}, extra=pairs)
    with pytest.raises(FormatError, match=r"expected slices within \(3, 5\), found \(3, 2\) at \(0, 4\)"):
        read_index(tmp_path, PREFIX)


def test_a_slice_of_another_shape_or_type_is_refused(tmp_path: Path) -> None:
    whole = made.entry("float32", (2, 2), slices=[[(0, None), (0, None)]])
    part = made.entry("float64", (2, 2), size=32)
    write_bundle(
        tmp_path, PREFIX, {}, extra=[(b"w", whole), (made.slice_key("w", [(0, None), (0, None)]), part)]
    )
    (tmp_path / f"{PREFIX}.data-00000-of-00001").write_bytes(bytes(32))
    with pytest.raises(
        FormatError, match=r"expected a slice float32 \(2, 2\) at \(0, 0\), found float64 \(2, 2\)"
    ):
        read_index(tmp_path, PREFIX)


def test_slices_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A file of kilobytes could otherwise ask for an array of gigabytes."""
    boxes = [[(i, 1), (0, None)] for i in range(60)]
    pairs = [(made.slice_key("w", box), made.entry("float32", (1, 1000), size=4000)) for box in boxes]
    write_bundle(
        tmp_path, PREFIX, {}, extra=[(b"w", made.entry("float32", (60, 1000), slices=boxes)), *pairs]
    )
    (tmp_path / f"{PREFIX}.data-00000-of-00001").write_bytes(bytes(4000))
    with pytest.raises(FormatError, match="overlap"):
        read_index(tmp_path, PREFIX)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (made.header(0), "1..99999 data files, found 0"),
        (made.header(1 << 40), "1..99999 data files"),
        (made.header(endianness=1), "big-endian checkpoints are not supported"),
        (made.header(min_consumer=2), "found one that needs version 2"),
        (b"\x0a\x01a", "field 1 of wire type 0"),
    ],
)
def test_a_header_that_cannot_be_kept_is_refused(tmp_path: Path, header: bytes, reason: str) -> None:
    (tmp_path / f"{PREFIX}.index").write_bytes(made.table([(b"", header)]))
    with pytest.raises(FormatError, match=reason):
        read_index(tmp_path, PREFIX)


def test_names_must_be_utf8(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, {}, extra=[(b"\xff\xfe", made.entry("string", []))])
    with pytest.raises(FormatError, match="names in UTF-8"):
        read_index(tmp_path, PREFIX)


def test_links_out_of_the_folder_and_pipes_are_not_followed(tmp_path: Path) -> None:
    model, outside = tmp_path / "model", tmp_path / "outside"
    write_bundle(outside, PREFIX, arrays())
    write_bundle(model, PREFIX, arrays())
    data = model / f"{PREFIX}.data-00000-of-00001"
    data.unlink()
    data.symlink_to(outside / data.name)
    with pytest.raises(FormatError, match="links to a file outside its folder"):
        read_index(model, PREFIX)
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(FormatError, match="expected a regular file"):
        read_index(model, PREFIX)
    for prefix in ("../outside/" + PREFIX, str(outside / PREFIX)):
        with pytest.raises(FormatError, match="the name of a file in this folder"):
            read_index(model, prefix)


def test_an_index_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / f"{PREFIX}.index").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match="at most 1048576 bytes"):
        read_index(tmp_path, PREFIX)
