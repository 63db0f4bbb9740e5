"""Lines of text: paths, compression, encodings, limits and escaped fields."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ConfigError, DataError, EncodingError
from elmo.text.lines import (
    Tally,
    TextLimits,
    escape_field,
    expand_paths,
    open_text,
    read_blocks,
    read_lines,
    unescape_field,
)


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


COMPRESS = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstd}


def lines_of(path: Path, **options: object) -> list[str]:
    return [line.text for line in read_lines(path, **options)]  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "text.txt"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\n\r\nc\r", ["a", "b", "", "c"]),
        (b"a\rb\n", ["a\rb"]),
        ("a\u2028b\x85c\x0bd\x0ce\x1cf\n\u3000\n".encode(), ["a\u2028b\x85c\x0bd\x0ce\x1cf", "\u3000"]),
        (b"\x00\x00\n\x00", ["\x00\x00", "\x00"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", [""]),
    ],
)
def test_only_a_line_feed_ends_a_line_and_no_line_is_dropped(file: Path, data: bytes, lines: list[str]) -> None:
    file.write_bytes(data)
    assert lines_of(file) == lines
    assert [line.number for line in read_lines(file)] == list(range(1, len(lines) + 1))


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"))))
def test_written_lines_are_read_back(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    file = tmp_path_factory.getbasetemp() / "lines.txt"
    file.write_bytes("".join(line + "\n" for line in lines).encode())
    assert lines_of(file) == lines


BAD = b"fine\nbad \xff\xfe here\n\xed\xa0\x80\nend\n"  # the third line is a lone surrogate, which UTF-8 forbids


def test_an_encoding_error_has_line_and_byte(file: Path) -> None:
    file.write_bytes(BAD)
    with pytest.raises(EncodingError, match=r"text\.txt:2: byte 5 of the line \(0xff\) is not UTF-8; use --errors"):
        lines_of(file, errors="strict")


def test_without_a_policy_the_error_does_not_suggest_one(file: Path) -> None:
    file.write_bytes(BAD)
    with pytest.raises(EncodingError, match=r"\(0xff\) is not UTF-8; convert the file to UTF-8$"):
        lines_of(file)


def test_a_byte_order_mark_counts_in_the_position_of_an_error(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfa\xff")
    with pytest.raises(EncodingError, match=r"text\.txt:1: byte 5 of the line \(0xff\)"):
        lines_of(file)


@pytest.mark.parametrize(
    ("policy", "lines", "repaired", "skipped"),
    [
        ("replace", ["fine", "bad \ufffd\ufffd here", "\ufffd\ufffd\ufffd", "end"], 2, 0),
        ("surrogateescape", ["fine", "bad \udcff\udcfe here", "\udced\udca0\udc80", "end"], 2, 0),
        ("skip", ["fine", "end"], 0, 2),
    ],
)
def test_a_policy_handles_bad_bytes_and_counts_the_lines(
    file: Path, policy: str, lines: list[str], repaired: int, skipped: int
) -> None:
    file.write_bytes(BAD)
    tally = Tally()
    assert lines_of(file, errors=policy, tally=tally) == lines
    assert tally == Tally(lines=4, repaired=repaired, skipped=skipped)


def test_a_skipped_line_does_not_change_other_line_numbers(file: Path) -> None:
    file.write_bytes(BAD)
    assert [line.number for line in read_lines(file, errors="skip")] == [1, 4]


def test_an_unknown_policy_is_an_error_before_reading(file: Path) -> None:
    with pytest.raises(ConfigError, match="must be one of strict, replace, skip, surrogateescape; found 'ignore'"):
        read_lines(file, errors="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("policy", ["strict", "replace"])
def test_the_error_for_another_encoding_names_it(file: Path, encoding: str, policy: str) -> None:
    file.write_bytes("\ufeffhello".encode(encoding))
    with pytest.raises(EncodingError, match=f"this file is {encoding[:6].upper()}; convert it first: iconv"):
        lines_of(file, errors=policy)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("named", [True, False])
def test_compression_is_detected_from_the_content(tmp_path: Path, suffix: str, named: bool) -> None:
    file = tmp_path / f"text{suffix if named else '.txt'}"
    text = "".join(f"line {k} 中文\n" for k in range(5000)).encode()
    half = text.index(b"line 2500")
    file.write_bytes(COMPRESS[suffix](text[:half]) + COMPRESS[suffix](text[half:]))  # two members, as after `cat`
    assert lines_of(file) == text.decode().split("\n")[:-1]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_empty_text_can_be_compressed(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"text{suffix}"
    file.write_bytes(COMPRESS[suffix](b""))
    assert lines_of(file) == []


@pytest.mark.parametrize("suffix", COMPRESS)
def test_every_truncated_compressed_file_is_rejected(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"text{suffix}"
    whole = COMPRESS[suffix]("".join(f"{k * k}\n" for k in range(300)).encode())
    for size in range(0, len(whole), 23):
        file.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"cannot read .*text\.\w+: |text\.\w+: expected \.\w+ data") as caught:
            lines_of(file, errors="replace")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_flipped_bytes_raise_only_elmo_errors(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"text{suffix}"
    whole = COMPRESS[suffix]("".join(f"{k * k}\n" for k in range(300)).encode())
    rejected = 0
    for position in range(0, len(whole), 17):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            lines_of(file, errors="replace")
        except DataError:
            rejected += 1
    assert rejected > 0


def test_a_line_over_the_limit_is_rejected(file: Path) -> None:
    file.write_bytes(b"ok\n" + b"x" * 101 + b"\n")
    with pytest.raises(DataError, match=r"text\.txt:2: a line must have at most 100 bytes; found a longer one"):
        lines_of(file, limits=TextLimits(line_bytes=100))
    file.write_bytes(b"x" * 99 + b"\n" + b"y" * 100)
    assert len(lines_of(file, limits=TextLimits(line_bytes=100))) == 2


@pytest.mark.slow
def test_an_endless_compressed_line_stops_at_the_limit(tmp_path: Path) -> None:
    for suffix, compress in COMPRESS.items():
        file = tmp_path / f"bomb{suffix}"
        file.write_bytes(compress(b"x" * (100_000_000 if suffix == ".zst" else 40_000_000)))
        tracemalloc.start()
        try:
            with pytest.raises(DataError, match="a line must have at most 1,000,000 bytes"):
                lines_of(file, limits=TextLimits(line_bytes=1_000_000))
            assert tracemalloc.get_traced_memory()[1] < 30_000_000, suffix
        finally:
            tracemalloc.stop()


def bomb(suffix: str, piece: bytes = b"a b\n", size: int = 20_000_000) -> bytes:
    return COMPRESS[suffix](piece * (size // len(piece)))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_that_expands_too_much_is_rejected(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"bomb{suffix}"
    file.write_bytes(bomb(suffix))
    message = r"bomb\.\w+: compressed text may expand to 20 times its size; found more; .*set ELMO_MAX_EXPANSION"
    with pytest.raises(DataError, match=message):
        sum(len(block.data) for block in read_blocks(file))
    with pytest.raises(DataError, match=message), open_text(file) as (_, stream):
        stream.read()


def test_the_limits_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(bomb(".gz", b"a" * 20_000_000 + b"\n", 20_000_001))
    with pytest.raises(DataError, match="ELMO_MAX_EXPANSION"):
        lines_of(file)
    monkeypatch.setenv("ELMO_MAX_EXPANSION", "2000")
    with pytest.raises(DataError, match="ELMO_MAX_LINE_BYTES"):
        lines_of(file)
    monkeypatch.setenv("ELMO_MAX_LINE_BYTES", "30000000")
    assert [len(text) for text in lines_of(file)] == [20_000_000]
    monkeypatch.setenv("ELMO_MAX_EXPANSION", "many")
    with pytest.raises(ConfigError, match="ELMO_MAX_EXPANSION must be a positive number; found 'many'"):
        lines_of(file)


@pytest.mark.slow
def test_compressed_text_may_expand_as_far_as_text_does(tmp_path: Path) -> None:
    file = tmp_path / "text.gz"
    rng = random.Random(5)
    words = [f"word{rng.getrandbits(40):x}" for _ in range(500)]
    text = b"".join(" ".join(rng.choices(words, k=20)).encode() + b"\n" for _ in range(90_000))
    file.write_bytes(gzip.compress(text))
    assert len(text) > 4 * file.stat().st_size
    assert len(text) > 20_000_000
    assert b"".join(block.data for block in read_blocks(file)) == text


def test_memory_does_not_grow_with_the_file(file: Path) -> None:
    with file.open("wb") as out:
        for _ in range(8):
            out.write(b"a" * 10_000_000 + b"\n")
        for _ in range(10_000):
            out.write(b"short line\n")
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(file)) == 10_008
        assert tracemalloc.get_traced_memory()[1] < 60_000_000  # a few copies of the longest line
    finally:
        tracemalloc.stop()


def test_a_path_that_cannot_be_opened_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Is a directory"):
        lines_of(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        lines_of(tmp_path / "absent")
    with pytest.raises(DataError) as caught:
        lines_of(tmp_path / "two\nlines\x1b[31m")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_without_permission_is_an_error(file: Path) -> None:
    file.write_text("secret")
    file.chmod(0)
    with pytest.raises(DataError, match="no permission"):
        lines_of(file)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_stdin_is_read_and_stays_open(monkeypatch: pytest.MonkeyPatch, compress: type[bytes]) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(compress(b"a\nb\n")))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert [(line.text, line.path) for line in read_lines("-")] == [("a", "<stdin>"), ("b", "<stdin>")]
    assert not stdin.closed


def test_a_closed_stdin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="stdin is closed"):
        list(read_lines("-"))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ["b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", ".hidden/x.txt", ".dot", "odd[1].txt"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ([], []),
        (["b.txt", "-", "a.txt"], ["b.txt", "-", "a.txt"]),
        (["a.txt", "a.txt"], ["a.txt", "a.txt"]),
        (["?.txt"], ["a.txt", "b.txt"]),
        (["**/*.txt"], ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt", "sub/deep/d.txt"]),
        (["sub"], ["sub/c.txt", "sub/deep/d.txt"]),
        (["s*"], ["sub/c.txt", "sub/deep/d.txt"]),
        (["sub/**"], ["sub/c.txt", "sub/deep/d.txt"]),
        (["."], ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt", "sub/deep/d.txt"]),
        (["odd[1].txt"], ["odd[1].txt"]),
        ([".dot"], [".dot"]),
    ],
)
@pytest.mark.usefixtures("tree")
def test_paths_expand_to_files_in_order(paths: list[str], found: list[str]) -> None:
    assert [str(path) for path in expand_paths(paths)] == found


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent.txt", "absent.txt: no such file or folder"),
        ("z*.txt", r"z\*\.txt: no file matches this pattern"),
        ("", "no such file or folder"),
        ("nul\x00", "no such file or folder"),
        ("new\nline", r"'new\\nline': no such file or folder"),
        ("x" * 5000, "File name too long"),
    ],
)
@pytest.mark.usefixtures("tree")
def test_a_path_that_matches_nothing_is_an_error(path: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        expand_paths(["a.txt", path])
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_an_error(tree: Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(DataError, match="empty: this folder has no files"):
        expand_paths(["empty"])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_detected_but_text_with_a_nul_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("Hello world\nSecond line\n".encode(encoding))
    with pytest.raises(EncodingError, match=f"seems to be UTF-16.*iconv -f {encoding.upper().replace('-16-', '-16')}"):
        list(read_lines(path))
    path.write_bytes(b"a NUL \0 is a character\n")
    assert [line.text for line in read_lines(path)] == ["a NUL \0 is a character"]


@pytest.mark.parametrize(
    ("start", "message"),
    [(b"PK\x03\x04", "Office document"), (b"%PDF-1.7", "a PDF"), (b"\x89PNG\r\n\x1a\n", "a picture")],
)
def test_the_error_for_a_file_that_is_not_text_names_its_type(tmp_path: Path, start: bytes, message: str) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(start + bytes(range(256)))
    with pytest.raises(DataError, match=message):
        list(read_lines(path))


@given(st.text(st.characters(codec=None)))
def test_escaping_and_unescaping_gives_the_same_string(text: str) -> None:
    field = escape_field(text)
    assert unescape_field(field) == text
    assert not set(field) & set("\t\n\r")
    field.encode("utf-8")


def test_an_invalid_escape_is_an_error() -> None:
    with pytest.raises(ValueError, match="escape"):
        unescape_field("\\")
