"""TensorFlow bundles, and the layers below them: LevelDB tables, protobuf messages and CRC-32C."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from elmo.errors import FormatError
from elmo.formats.containers import tf_checkpoint
from elmo.formats.containers.tf_checkpoint import (
    _DEGREE,
    _TARGETS,
    crc32c,
    mask_crc,
    read_index,
    read_table,
    slice_key,
    unpack_snappy,
)
from tests.formats import write_bundle as writer
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
    assert bundle.names == sorted(arrays())  # slices have no names
    for name in slices:
        assert bundle.read(name).tobytes() == arrays()[name].tobytes()


def test_the_keys_of_slices_sort_by_position() -> None:
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
    with pytest.raises(FormatError, match=r"'w': expected checksum .* is damaged: download it again"):
        read_index(tmp_path, PREFIX).read("w")


def test_missing_names_and_text_are_refused_when_read(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, {}, extra=[(b"text", writer.entry("string", [2], size=9))])
    bundle = read_index(tmp_path, PREFIX)
    assert {name: entry.dtype for name, entry in bundle.entries.items()} == {"text": "other"}
    with pytest.raises(FormatError, match="expected 'text' to contain numbers"):
        bundle.read("text")
    with pytest.raises(FormatError, match="expected a tensor 'w', found none among 1 tensors"):
        bundle.read("w")


def test_every_mismatch_is_reported_at_once(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, arrays())
    path = tmp_path / f"{PREFIX}.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(FormatError, match=r"'lm/a': expected bytes .*'wide': expected bytes .* found a file of 10"):
        read_index(tmp_path, PREFIX)


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, arrays(), n_shards=2)
    (tmp_path / f"{PREFIX}.data-00001-of-00002").unlink()
    with pytest.raises(FormatError, match=rf"expected a file {PREFIX}.data-00001-of-00002, found none"):
        read_index(tmp_path, PREFIX)


WRONG_ENTRIES = [
    ("more than its bytes", writer.entry("float32", [1 << 20, 1 << 20], size=8), "expected 4398046511104 "),
    ("a 65-bit product", writer.entry("float32", [1 << 33, 1 << 33]), "expected 29514790517935282585"),
    ("a negative axis", writer.entry("float32", [-1, -2], size=8), "expected axes with lengths"),
    ("an axis beyond all bounds", writer.entry("float32", [1 << 62], size=8), "expected axes with lengths"),
    ("too many axes", writer.entry("float32", [1] * 9, size=4), "at most 8 axes"),
    ("a different size", writer.entry("float32", [2], size=12), "expected 8 bytes for float32"),
    ("bytes beyond the file", writer.entry("float32", [2], offset=1 << 40, size=8), "expected bytes 1099511"),
    ("a negative offset", writer.entry("float32", [2], offset=-8, size=8), "valid byte range"),
    ("a negative size", writer.entry("float32", [2], size=-8), "valid byte range"),
    ("no such data file", writer.entry("float32", [2], shard=1, size=8), "expected a data file in 0..0"),
    ("a negative data file", writer.entry("float32", [2], shard=-1, size=8), "expected a data file in 0..0"),
    ("bytes of another tensor", writer.entry("float32", [2], offset=4, size=8), "overlap"),
    ("too many slices", writer.entry("float32", [2], slices=[[(0, 1)]] * 1025), "at most 2 slices"),
    ("no such slice", writer.entry("float32", [2], slices=[[(0, 1)]]), r"expected a slice at \(0"),
    ("a negative slice start", writer.entry("float32", [2], slices=[[(-1, 1)]]), "expected a slice in"),
    ("a slice of nothing", writer.entry("float32", [2], slices=[[(0, 0)]]), "expected a slice in"),
    ("a slice of too many axes", writer.entry("float32", [2], slices=[[(0, 1)] * 9]), "at most 8 axes"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "reason"), [case[1:] for case in WRONG_ENTRIES], ids=[c[0] for c in WRONG_ENTRIES])
def test_an_entry_that_lies_is_refused_before_memory_is_taken(tmp_path: Path, entry: bytes, reason: str) -> None:
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
def test_slices_must_fill_their_tensor_without_overlap(tmp_path: Path, boxes: list[writer.Box], reason: str) -> None:
    write_bundle(tmp_path, PREFIX, {"w": np.zeros((3, 5), dtype=np.float32)}, slices={"w": boxes})
    with pytest.raises(FormatError, match=reason):
        read_index(tmp_path, PREFIX)


def test_slices_must_lie_within_their_tensor(tmp_path: Path) -> None:
    box = [(0, None), (4, 2)]
    pairs = [
        (b"w", writer.entry("float32", (3, 5), slices=[box])),
        (writer.slice_key("w", box), writer.entry("float32", (3, 2))),
    ]
    write_bundle(tmp_path, PREFIX, {}, extra=pairs)
    with pytest.raises(FormatError, match=r"expected slices within \(3, 5\), found \(3, 2\) at \(0, 4\)"):
        read_index(tmp_path, PREFIX)


def test_a_slice_of_another_shape_or_type_is_refused(tmp_path: Path) -> None:
    whole = writer.entry("float32", (2, 2), slices=[[(0, None), (0, None)]])
    part = writer.entry("float64", (2, 2), size=32)
    write_bundle(tmp_path, PREFIX, {}, extra=[(b"w", whole), (writer.slice_key("w", [(0, None), (0, None)]), part)])
    (tmp_path / f"{PREFIX}.data-00000-of-00001").write_bytes(bytes(32))
    with pytest.raises(FormatError, match=r"expected a slice float32 \(2, 2\) at \(0, 0\), found float64 \(2, 2\)"):
        read_index(tmp_path, PREFIX)


def test_slices_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A small file could otherwise cause an array of gigabytes."""
    boxes = [[(i, 1), (0, None)] for i in range(60)]
    pairs = [(writer.slice_key("w", box), writer.entry("float32", (1, 1000), size=4000)) for box in boxes]
    write_bundle(tmp_path, PREFIX, {}, extra=[(b"w", writer.entry("float32", (60, 1000), slices=boxes)), *pairs])
    (tmp_path / f"{PREFIX}.data-00000-of-00001").write_bytes(bytes(4000))
    with pytest.raises(FormatError, match="overlap"):
        read_index(tmp_path, PREFIX)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (writer.header(0), "1..99999 data files, found 0"),
        (writer.header(1 << 40), "1..99999 data files"),
        (writer.header(endianness=1), "big-endian checkpoints are not supported"),
        (writer.header(min_consumer=2), "requires reader version 2, but only version 1 is supported"),
        (b"\x0a\x01a", "field 1 of wire type 0"),
    ],
)
def test_an_unsupported_header_is_refused(tmp_path: Path, header: bytes, reason: str) -> None:
    (tmp_path / f"{PREFIX}.index").write_bytes(writer.table([(b"", header)]))
    with pytest.raises(FormatError, match=reason):
        read_index(tmp_path, PREFIX)


def test_names_must_be_utf8(tmp_path: Path) -> None:
    write_bundle(tmp_path, PREFIX, {}, extra=[(b"\xff\xfe", writer.entry("string", []))])
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


# --- tables and messages -------------------------------------------------------------------------

PAIRS = [(f"lm/some/shared/path/{i:04d}".encode(), b"v" * (i % 7) + bytes([i % 256])) for i in range(300)]


@pytest.mark.parametrize("per_block", [1, 20, 1000])
@pytest.mark.parametrize("snappy", [False, True])
def test_every_pair_comes_back_in_order(per_block: int, snappy: bool) -> None:
    found = read_table(writer.table(PAIRS, per_block=per_block, snappy=snappy))
    assert list(found.items()) == PAIRS


def test_a_table_without_pairs_is_empty() -> None:
    assert read_table(writer.table([])) == {}


@pytest.mark.parametrize("at", [0, 5, 100, -60, -80])
def test_a_flip_in_any_block_is_caught_by_its_checksum(at: int) -> None:
    data = bytearray(writer.table(PAIRS))
    data[at] ^= 1
    with pytest.raises(FormatError, match="checksum"):
        read_table(bytes(data))


def test_a_truncated_table_is_detected_at_its_end() -> None:
    with pytest.raises(FormatError, match="may be truncated"):
        read_table(writer.table(PAIRS)[:-1])


def test_keys_that_fall_are_refused() -> None:
    with pytest.raises(FormatError, match="ascending order"):
        read_table(writer.table([(b"b", b""), (b"a", b"")]))


def test_blocks_beyond_the_file_are_refused() -> None:
    index = writer.block([(b"z", writer.varint(1 << 60) + writer.varint(1 << 60))])
    with pytest.raises(FormatError, match="expected a block in bytes"):
        read_table(writer.with_footer(b"", index))


def test_one_block_cannot_be_read_twice() -> None:
    block = writer.stored(writer.block([]))
    handle = writer.varint(0) + writer.varint(len(block) - 5)
    index = writer.block([(bytes([i]), handle) for i in range(2)])
    with pytest.raises(FormatError, match="next block at byte"):
        read_table(writer.with_footer(block, index))


def test_an_unknown_compression_is_named() -> None:
    content = writer.block(PAIRS[:1])
    index = writer.block([(b"z", writer.varint(0) + writer.varint(len(content)))])
    with pytest.raises(FormatError, match="found compression 4"):
        read_table(writer.with_footer(writer.stored(content, compression=4), index))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "restart points"),
        (b"\xff\xff\xff\x7f", "restart points"),
        (writer.varint(1) + writer.varint(0) + writer.varint(0) + bytes(4), "within the block"),  # shares with no key
        (writer.varint(0) + writer.varint(9) + writer.varint(0) + b"a" + bytes(4), "within the block"),
        (writer.varint(0) + writer.varint(0) + writer.varint(1 << 63) + bytes(4), "within the block"),
        (b"\xff" * 20 + bytes(4), "found a longer or truncated one"),
        (b"\0" + writer.varint(2000) + b"\0" + b"k" * 2000 + bytes(4), "keys of at most 1024"),
    ],
)
def test_a_block_that_lies_about_its_entries_is_refused(content: bytes, reason: str) -> None:
    index = writer.block([(b"z", writer.varint(0) + writer.varint(len(content)))])
    with pytest.raises(FormatError, match=reason):
        read_table(writer.with_footer(writer.stored(content), index))


def test_keys_that_grow_from_one_another_stay_bounded() -> None:
    """Three bytes of the file per key, each longer than the last."""
    content = b"\0\1\0k" + b"".join(writer.varint(i) + b"\1\0k" for i in range(1, 3000)) + bytes(4)
    index = writer.block([(b"z", writer.varint(0) + writer.varint(len(content)))])
    with pytest.raises(FormatError, match="keys of at most 1024"):
        read_table(writer.with_footer(writer.stored(content), index))


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_checkpoint, "MAX_KEYS", 299)
    with pytest.raises(FormatError, match="at most 299 keys"):
        read_table(writer.table(PAIRS))


def test_snappy_copies_and_literals_are_unpacked() -> None:
    assert unpack_snappy(writer.varint(0), limit=10) == b""
    # "abcd", a copy of 5 from 4 before (it repeats itself), then 3 from 9 before, with each form of offset
    stream = writer.varint(12) + bytes([3 << 2]) + b"abcd" + bytes([(5 - 4) << 2 | 1, 4])
    assert unpack_snappy(stream + bytes([2 << 2 | 2, 9, 0]), limit=12) == b"abcdabcdaabc"
    assert unpack_snappy(stream + bytes([2 << 2 | 3, 9, 0, 0, 0]), limit=12) == b"abcdabcdaabc"
    long = bytes(range(256)) * 300
    literal = bytes([62 << 2]) + (len(long) - 1).to_bytes(3, "little") + long
    assert unpack_snappy(writer.varint(len(long)) + literal, limit=len(long)) == long


@pytest.mark.parametrize(
    "stream",
    [
        writer.varint(1 << 40),  # a bomb
        writer.varint(5) + b"\0a",  # too little output
        writer.varint(1) + bytes([1 << 2]) + b"ab",  # too much
        writer.varint(4) + bytes([2 << 2 | 2, 1, 0]),  # a copy from before the start
        writer.varint(4) + b"\0a" + bytes([2 << 2 | 2, 0, 0]),  # a copy without an offset
        writer.varint(9) + bytes([60 << 2]),  # a literal without its length
        writer.varint(9) + bytes([8 << 2]) + b"abc",  # a truncated literal
        b"\xff" * 12,
    ],
)
def test_a_wrong_snappy_stream_is_refused(stream: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_snappy(stream, limit=1000)


def test_a_snappy_block_may_not_outgrow_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_checkpoint, "MAX_BYTES", 8192)
    pairs = [(bytes([i]), bytes(3000)) for i in range(4)]
    with pytest.raises(FormatError, match="in a Snappy block"):
        read_table(writer.table(pairs, per_block=1, snappy=True))


def test_protobuf_fields_are_read_and_unknown_ones_skipped() -> None:
    data = writer.number(1, 300) + writer.message(9, b"unknown") + writer.number(1, -1) + writer.message(2, b"x")
    assert tf_checkpoint.read_message(data, {1: tf_checkpoint.VARINT, 2: tf_checkpoint.BYTES}) == {
        1: [300, (1 << 64) - 1],
        2: [b"x"],
    }
    assert tf_checkpoint.as_signed((1 << 64) - 1) == -1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "found a longer or truncated one"),
        (b"\x08" + b"\x80" * 30, "found a longer or truncated one"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "at most 64 bits"),
        (b"\x12\x05ab", "a field of 5 bytes"),
        (b"\x35\0\0", "a field of 4 bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x01a", "expected field 1 of wire type 0"),
    ],
)
def test_a_message_that_lies_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        tf_checkpoint.read_message(data, {1: tf_checkpoint.VARINT, 2: tf_checkpoint.BYTES})


# --- CRC-32C -------------------------------------------------------------------------------------

POLYNOMIAL = 0x11EDC6F41


def test_the_check_values_of_rfc_3720_are_reproduced() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


def test_masking_is_that_of_leveldb() -> None:
    assert mask_crc(0) == 0xA282EAD8
    assert mask_crc(crc32c(b"123456789")) == writer.mask_crc(0xE3069283) == 0xC78AB0E5


def test_the_sparse_polynomial_is_a_multiple_of_the_checksums_own() -> None:
    remainder = sum(1 << (_DEGREE - target) for target in _TARGETS) | 1 << _DEGREE
    while remainder.bit_length() > 32:
        remainder ^= POLYNOMIAL << (remainder.bit_length() - 33)
    assert remainder == 0


@pytest.mark.parametrize("size", [1, 3, 4, 289, 290, 580, 581, 583, 871, 4096, 30_011])
def test_every_length_agrees_with_the_plain_loop(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32c(data) == writer.crc32c(data.tobytes())


def test_a_checksum_continues_from_the_previous_part() -> None:
    data = np.random.default_rng(0).integers(0, 256, 5_000_000, dtype=np.uint8)  # several chunks
    whole = crc32c(data)
    for cut in (0, 1, 290, 1_234_567, (1 << 21) - 1, 5_000_000):
        assert crc32c(data[cut:], crc32c(data[:cut])) == whole


def test_one_flipped_bit_anywhere_is_detected() -> None:
    data = np.random.default_rng(0).integers(0, 256, 3_000_000, dtype=np.uint8)
    whole = crc32c(data)
    for at in (0, 1, 2_097_151, 2_097_152, 2_999_999):
        data[at] ^= 16
        assert crc32c(data) != whole
        data[at] ^= 16


def test_a_checkpoint_of_400_megabytes_takes_seconds_not_minutes() -> None:
    data = np.zeros(40_000_000, dtype=np.uint8)
    begin = time.process_time()
    crc32c(data)
    assert 40 / (time.process_time() - begin) > 100  # MB/s; about 2000 on an idle core
