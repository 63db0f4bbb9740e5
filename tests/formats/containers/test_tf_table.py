from __future__ import annotations

import pytest

from elmo.errors import FormatError
from elmo.formats.containers import tf_checkpoint as tf_table
from elmo.formats.containers import tf_checkpoint as wire
from elmo.formats.containers.tf_checkpoint import read_table, unpack_snappy
from tests.formats import write_bundle as made

PAIRS = [(f"lm/some/shared/path/{i:04d}".encode(), b"v" * (i % 7) + bytes([i % 256])) for i in range(300)]


@pytest.mark.parametrize("per_block", [1, 20, 1000])
@pytest.mark.parametrize("snappy", [False, True])
def test_every_pair_comes_back_in_order(per_block: int, snappy: bool) -> None:
    found = read_table(made.table(PAIRS, per_block=per_block, snappy=snappy))
    assert list(found.items()) == PAIRS


def test_a_table_without_pairs_is_empty() -> None:
    assert read_table(made.table([])) == {}


@pytest.mark.parametrize("at", [0, 5, 100, -60, -80])
def test_a_flip_in_any_block_is_caught_by_its_checksum(at: int) -> None:
    data = bytearray(made.table(PAIRS))
    data[at] ^= 1
    with pytest.raises(FormatError, match="checksum"):
        read_table(bytes(data))


def test_a_cut_table_is_told_by_its_end() -> None:
    with pytest.raises(FormatError, match="may be truncated"):
        read_table(made.table(PAIRS)[:-1])


def test_keys_that_fall_are_refused() -> None:
    with pytest.raises(FormatError, match="rising order"):
        read_table(made.table([(b"b", b""), (b"a", b"")]))


def test_blocks_beyond_the_file_are_refused() -> None:
    index = made.block([(b"z", made.varint(1 << 60) + made.varint(1 << 60))])
    with pytest.raises(FormatError, match="expected a block in bytes"):
        read_table(made.with_footer(b"", index))


def test_one_block_cannot_be_read_twice() -> None:
    block = made.stored(made.block([]))
    handle = made.varint(0) + made.varint(len(block) - 5)
    index = made.block([(bytes([i]), handle) for i in range(2)])
    with pytest.raises(FormatError, match="next block at byte"):
        read_table(made.with_footer(block, index))


def test_an_unknown_compression_is_named() -> None:
    content = made.block(PAIRS[:1])
    index = made.block([(b"z", made.varint(0) + made.varint(len(content)))])
    with pytest.raises(FormatError, match="found compression 4"):
        read_table(made.with_footer(made.stored(content, compression=4), index))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "restart points"),
        (b"\xff\xff\xff\x7f", "restart points"),
        (
            made.varint(1) + made.varint(0) + made.varint(0) + bytes(4),
            "within the block",
        ),  # shares with no key
        (made.varint(0) + made.varint(9) + made.varint(0) + b"a" + bytes(4), "within the block"),
        (made.varint(0) + made.varint(0) + made.varint(1 << 63) + bytes(4), "within the block"),
        (b"\xff" * 20 + bytes(4), "found a longer one"),
        (b"\0" + made.varint(2000) + b"\0" + b"k" * 2000 + bytes(4), "keys of at most 1024"),
    ],
)
def test_a_block_that_lies_about_its_entries_is_refused(content: bytes, reason: str) -> None:
    index = made.block([(b"z", made.varint(0) + made.varint(len(content)))])
    with pytest.raises(FormatError, match=reason):
        read_table(made.with_footer(made.stored(content), index))


def test_keys_that_grow_from_one_another_stay_bounded() -> None:
    """Three bytes of file per key, each one longer than the last."""
    content = b"\0\1\0k" + b"".join(made.varint(i) + b"\1\0k" for i in range(1, 3000)) + bytes(4)
    index = made.block([(b"z", made.varint(0) + made.varint(len(content)))])
    with pytest.raises(FormatError, match="keys of at most 1024"):
        read_table(made.with_footer(made.stored(content), index))


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_table, "MAX_KEYS", 299)
    with pytest.raises(FormatError, match="at most 299 keys"):
        read_table(made.table(PAIRS))


def test_snappy_copies_and_literals_are_unpacked() -> None:
    assert unpack_snappy(made.varint(0), limit=10) == b""
    # "abcd", a copy of 5 from 4 before (it repeats itself), then 3 from 9 before, with each form of offset
    stream = made.varint(12) + bytes([3 << 2]) + b"abcd" + bytes([(5 - 4) << 2 | 1, 4])
    assert unpack_snappy(stream + bytes([2 << 2 | 2, 9, 0]), limit=12) == b"abcdabcdaabc"
    assert unpack_snappy(stream + bytes([2 << 2 | 3, 9, 0, 0, 0]), limit=12) == b"abcdabcdaabc"
    long = bytes(range(256)) * 300
    literal = bytes([62 << 2]) + (len(long) - 1).to_bytes(3, "little") + long
    assert unpack_snappy(made.varint(len(long)) + literal, limit=len(long)) == long


@pytest.mark.parametrize(
    "stream",
    [
        made.varint(1 << 40),  # a bomb
        made.varint(5) + b"\0a",  # too little comes out
        made.varint(1) + bytes([1 << 2]) + b"ab",  # too much
        made.varint(4) + bytes([2 << 2 | 2, 1, 0]),  # a copy from before the start
        made.varint(4) + b"\0a" + bytes([2 << 2 | 2, 0, 0]),  # a copy from nowhere
        made.varint(9) + bytes([60 << 2]),  # a literal without its length
        made.varint(9) + bytes([8 << 2]) + b"abc",  # a literal that is cut
        b"\xff" * 12,
    ],
)
def test_a_wrong_snappy_stream_is_refused(stream: bytes) -> None:
    with pytest.raises(FormatError):
        unpack_snappy(stream, limit=1000)


def test_a_snappy_block_may_not_outgrow_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_table, "MAX_BYTES", 8192)
    pairs = [(bytes([i]), bytes(3000)) for i in range(4)]
    with pytest.raises(FormatError, match="in a Snappy block"):
        read_table(made.table(pairs, per_block=1, snappy=True))


def test_protobuf_fields_are_found_and_unknown_ones_skipped() -> None:
    data = made.number(1, 300) + made.message(9, b"unknown") + made.number(1, -1) + made.message(2, b"x")
    assert wire.read_message(data, {1: wire.VARINT, 2: wire.BYTES}) == {1: [300, (1 << 64) - 1], 2: [b"x"]}
    assert wire.as_signed((1 << 64) - 1) == -1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "found a longer one"),
        (b"\x08" + b"\x80" * 30, "found a longer one"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "at most 64 bits"),
        (b"\x12\x05ab", "a field of 5 bytes"),
        (b"\x35\0\0", "a field of 4 bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x0a\x01a", "expected field 1 of wire type 0"),
    ],
)
def test_a_message_that_lies_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        wire.read_message(data, {1: wire.VARINT, 2: wire.BYTES})
