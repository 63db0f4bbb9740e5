r"""Paths in, lines of text out: files, globs, folders and stdin; plain or compressed; UTF-8, checked.

A path in, its text in blocks of many lines out: what ``read_lines`` gives, for work that wants speed.

A string in, a field of a line parted by tabs out, and back: ``\``, tab and line ends are escaped.
"""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import itertools
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmo.errors import ConfigError, DataError, EncodingError, MissingExtraError

ErrorPolicy = Literal["strict", "replace", "skip", "surrogateescape"]
ERROR_POLICIES = ("strict", "replace", "skip", "surrogateescape")
Source = Path | Literal["-"]  # "-" is stdin

_SAMPLE = 512  # bytes, by which a file without a mark is judged
MAX_LINE_BYTES = 1 << 30  # a longer line is no sentence, and would only fill memory

_MAGIC = {  # none of these can open a UTF-8 text, but for bzip2's, which is therefore told in full
    ".gz": (b"\x1f\x8b",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".bz2": tuple(
        b"BZh%d" % k + block for k in range(1, 10) for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
    ),
    ".zst": (b"\x28\xb5\x2f\xfd",),
}
_OTHER_ENCODINGS = {  # longest first: the mark of UTF-16 opens that of UTF-32
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NO_TEXT = {  # what people give by mistake
    b"PK\x03\x04": "a zip archive or an Office document; save it as plain text in UTF-8",
    b"%PDF-": "a PDF; extract its text first, with pdftotext for instance",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, not text",
    b"\x89PNG\r\n\x1a\n": "a picture, not text",
    b"\xff\xd8\xff": "a picture, not text",
}
_READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what damage and devices make of a read


@dataclass(frozen=True)
class Line:
    r"""One line without its end: ``\n``, and a ``\r`` before it."""

    text: str
    number: int  # in its file, from 1; skipped lines are counted
    path: str  # as messages show it


@dataclass
class Tally:
    """What an error policy did, for the caller to report."""

    lines: int = 0
    repaired: int = 0  # lines with bytes that were replaced or escaped
    skipped: int = 0  # lines left out


def shown(path: Source | str) -> str:
    """A path as a message of one line can hold it."""
    if path == "-":
        return "<stdin>"
    name = str(path)
    return name if name.isprintable() else ascii(name)[1:-1]


def expand(paths: Sequence[str]) -> list[Source]:
    """The files that ``paths`` name, in their order.

    A path may be a file, a folder (every file below it, hidden ones aside), a glob (``**`` too), or ``-``
    for stdin. What a glob or a folder holds comes in sorted order.
    """
    found: list[Source] = []
    for path in paths:
        if path == "-":
            found.append("-")
        elif _exists(path):
            found += _files_of(Path(path))
        elif glob.has_magic(path):
            matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 -- takes absolute patterns too
            if not matches:
                raise DataError(f"{shown(path)}: no file matches this pattern")
            # `**` gives a folder and what it holds; a file is read once
            found += dict.fromkeys(
                file for match in matches for file in _files_of(Path(match), may_be_empty=True)
            )
        else:
            raise DataError(f"{shown(path)}: no such file or folder")
    return found


def _exists(path: str) -> bool:
    try:
        return path != "" and Path(path).exists()  # Path("") would be the working folder
    except OSError as error:
        raise DataError(f"{shown(path)[:200]}: {error.strerror}") from error
    except ValueError:  # a NUL in the name
        return False


def _files_of(path: Path, *, may_be_empty: bool = False) -> list[Path]:
    """The file itself, or the files below a folder."""
    if not path.is_dir():
        return [path]
    files: list[Path] = []

    def refuse(error: OSError) -> None:
        raise DataError(f"{shown(error.filename)}: {error.strerror}") from error

    for folder, folders, names in os.walk(path, onerror=refuse):
        folders[:] = (name for name in folders if not name.startswith("."))
        files += (Path(folder, name) for name in names if not name.startswith("."))
    files = sorted(file for file in files if file.is_file())
    if not files and not may_be_empty:
        raise DataError(f"{shown(path)}: this folder holds no files")
    return files


def read_lines(
    path: Source,
    *,
    errors: ErrorPolicy | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
    tally: Tally | None = None,
) -> Iterator[Line]:
    r"""The lines of a file, one at a time; only ``\n`` ends a line, and an empty line is a line.

    Bytes that are not UTF-8 raise an ``EncodingError`` that names them (``strict``), become U+FFFD
    (``replace``) or lone surrogates (``surrogateescape``), or their line is left out (``skip``). None is
    ``strict`` where the user has no choice of policies, and hears of none. A byte order mark at the very
    start is dropped. Compression is told by content.
    """
    if errors is not None and errors not in ERROR_POLICIES:
        raise ConfigError(f"errors: expected one of {', '.join(ERROR_POLICIES)}, found {str(errors)[:40]!r}")
    return _lines(path, errors=errors, max_line_bytes=max_line_bytes, tally=tally or Tally())


def _lines(path: Source, *, errors: ErrorPolicy | None, max_line_bytes: int, tally: Tally) -> Iterator[Line]:
    name = shown(path)
    with open_text(path) as (_, stream):
        for number in itertools.count(1):
            line = stream.readline(max_line_bytes + 1)
            if not line:
                return
            if len(line) > max_line_bytes:
                raise endless_line(f"{name}:{number}", max_line_bytes)
            tally.lines += 1
            before = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
            place = f"{name}:{number}"
            text = decode_line(line[before:], before=before, errors=errors, place=place, tally=tally)
            if text is not None:
                yield Line(text, number, name)


def endless_line(place: str, max_line_bytes: int) -> DataError:
    """The error for what is hardly a line of text."""
    found = f"more than {max_line_bytes:,} bytes without an end"
    return DataError(f"{place}: expected a line, found {found}; is it text?")


@contextmanager
def open_text(path: Source) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
    """The file's bytes as they are stored, and those of its text; failing reads become a ``DataError``."""
    name = shown(path)
    try:
        with _opened(path) as raw, _decompressed(raw, path) as stream:
            yield raw, stream
    except PermissionError as error:
        raise DataError(f"{name}: no permission to read it") from error
    except _READ_ERRORS as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name}: cannot be read: {reason[:200]}") from error


def decode_line(
    line: bytes, *, before: int = 0, errors: ErrorPolicy | None, place: str, tally: Tally
) -> str | None:
    """The text of a line; None when the policy leaves it out. ``before`` it stand bytes of the same line."""
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        if errors is None or errors == "strict":
            choice = "use --errors replace, skip or surrogateescape, or " if errors else ""
            position = before + error.start + 1
            raise EncodingError(
                f"{place}: byte {position} of the line (0x{body[error.start]:02x}) is not UTF-8; "
                f"{choice}convert the file to UTF-8"
            ) from error
    if errors == "skip":
        tally.skipped += 1
        return None
    tally.repaired += 1
    return body.decode("utf-8", errors)


@contextmanager
def _opened(path: Source) -> Iterator[io.BufferedReader]:
    """The file's bytes; stdin is left open for its owner."""
    if path != "-":
        with path.open("rb") as raw:
            yield raw
        return
    stdin = getattr(sys.stdin, "buffer", None)
    if stdin is None:
        raise DataError("<stdin>: it is closed; give a file instead of -")
    if hasattr(stdin, "peek"):
        yield stdin
        return
    wrapped = io.BufferedReader(stdin)  # a caller that runs the program inside itself may set a BytesIO
    try:
        yield wrapped
    finally:
        wrapped.detach()


@contextmanager
def _decompressed(raw: io.BufferedReader, path: Source) -> Iterator[io.BufferedIOBase]:
    """The bytes of the text; what is no UTF-8 text by its first bytes is refused."""
    name = shown(path)
    start = raw.peek(16)[:16]
    kind = next((suffix for suffix, magics in _MAGIC.items() if start.startswith(magics)), None)
    suffix = "" if path == "-" else path.suffix.lower()
    if kind is None and suffix in _MAGIC:
        raise DataError(
            f"{name}: expected {suffix} data, as its name says, found {start[:4].hex(' ') or 'nothing'}"
        )
    for magic, what in _NO_TEXT.items():
        if start.startswith(magic):
            raise DataError(f"{name}: this is {what}")
    for mark, encoding in _OTHER_ENCODINGS.items():
        if start.startswith(mark):
            raise EncodingError(
                f"{name}: this file is {encoding}; convert it first: iconv -f {encoding} -t UTF-8"
            )
    if kind is None:
        _refuse_unmarked_utf16(raw.peek(_SAMPLE)[:_SAMPLE], name)
        yield raw
        return
    with _DECOMPRESSORS[kind](raw) as stream:
        yield stream


def _refuse_unmarked_utf16(sample: bytes, name: str) -> None:
    """A NUL may stand in a text, but where every other byte is one, the text is UTF-16 or no text."""
    for which in (0, 1):
        half = sample[which::2]
        if len(half) >= 8 and half.count(0) > 0.75 * len(half):
            raise EncodingError(
                f"{name}: every other byte is NUL: this file seems to be UTF-16; convert it first: "
                f"iconv -f UTF-16{'BE' if which == 0 else 'LE'} -t UTF-8"
            )


class _ZstdStream(io.RawIOBase):
    """A Zstandard file's content; unlike the library's own reader, it notices that a file was cut short."""

    # Four bytes can stand for 128 KB of one character: small bites keep a hostile file's output small.
    _BITE = 1 << 9

    def __init__(self, raw: io.BufferedReader) -> None:
        super().__init__()
        try:
            import zstandard  # pyright: ignore[reportMissingImports] -- an extra
        except ImportError as error:
            raise MissingExtraError("reading .zst files", extra="zstd") from error
        self._raw = raw
        self._library = zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._is_inside = False  # of a frame
        self._compressed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._plain:
            self._compressed = self._compressed or self._raw.read(self._BITE)
            if not self._compressed:
                if self._is_inside:
                    raise EOFError("the compressed data ends in the middle")
                return 0
            if self._frame.eof:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._plain = memoryview(self._frame.decompress(self._compressed))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from error
            self._is_inside = not self._frame.eof
            self._compressed = self._frame.unused_data if self._frame.eof else b""
        n = min(len(buffer), len(self._plain))
        buffer[:n] = self._plain[:n]
        self._plain = self._plain[n:]
        return n


_DECOMPRESSORS: dict[str, Callable[[io.BufferedReader], io.BufferedIOBase]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lzma.LZMAFile,
    ".bz2": bz2.BZ2File,
    ".zst": lambda raw: io.BufferedReader(_ZstdStream(raw)),
}

BLOCK_BYTES = 1 << 20
LONG_LINE_BYTES = 1 << 22  # a whole corpus on one line is cut at a space after so many


@dataclass(frozen=True)
class Block:
    r"""Lines, each with its ``\n``; a ``\r`` before it may be left. Only an open block ends inside a line."""

    data: bytes  # UTF-8; lone surrogates, which a policy may make, as "surrogatepass" writes them
    path: str  # as messages show it
    line: int  # number of the first line, from 1
    is_open: bool  # the last line goes on in the next block
    position: int  # bytes of the file read so far, as they are stored

    @property
    def place(self) -> str:
        """``file:line``, for messages."""
        return f"{self.path}:{self.line}"


def read_blocks(
    path: Source,
    *,
    errors: ErrorPolicy = "strict",
    n_bytes: int = BLOCK_BYTES,
    cut_after: int | None = LONG_LINE_BYTES,
    tally: Tally | None = None,
) -> Iterator[Block]:
    """The text of a file in blocks of about ``n_bytes``, by the rules of ``read_lines``.

    A line that is longer than ``cut_after`` bytes is cut after a space, if it has one, and goes on in the
    next block; None keeps all lines whole. Under ``skip`` such a piece is left out alone.
    """
    tally = tally or Tally()
    name = shown(path)
    line, before = 1, 0  # the next block's first line, and how many of its bytes came earlier
    pending: list[bytes] = []  # the begun line
    n_pending = 0
    is_open = is_begun = False
    with open_text(path) as (raw, stream):
        while piece := stream.read(n_bytes):
            while not is_begun and len(piece) < len(codecs.BOM_UTF8) and (more := stream.read(n_bytes)):
                piece += more  # the mark may come in pieces
            if not is_begun and piece.startswith(codecs.BOM_UTF8):
                piece = piece.removeprefix(codecs.BOM_UTF8)
                before = len(codecs.BOM_UTF8)
                is_open = True  # even alone, the mark makes a line
            is_begun = True
            cut = piece.rfind(b"\n") + 1
            if not cut and cut_after is not None and n_pending + len(piece) > cut_after:
                cut = piece.rfind(b" ") + 1
            if not cut:
                pending.append(piece)
                n_pending += len(piece)
                if n_pending > MAX_LINE_BYTES:
                    raise endless_line(f"{name}:{line}", MAX_LINE_BYTES)
                continue
            data = b"".join((*pending, piece[:cut]))
            is_open = not data.endswith(b"\n")
            yield _block(
                data, line=line, before=before, errors=errors, tally=tally, path=name, position=raw.tell()
            )
            line += data.count(b"\n")
            before = before + len(data) if is_open else 0
            pending, n_pending = [piece[cut:]], len(piece) - cut
        if n_pending or is_open:
            data = b"".join((*pending, b"\n"))
            yield _block(
                data, line=line, before=before, errors=errors, tally=tally, path=name, position=raw.tell()
            )


def _block(
    data: bytes, *, line: int, before: int, errors: ErrorPolicy, tally: Tally, path: str, position: int
) -> Block:
    n_lines = data.count(b"\n")
    tally.lines += n_lines
    is_open = not data.endswith(b"\n")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        data = _by_line(data, line=line, before=before, errors=errors, tally=tally, path=path)
    return Block(data, path, line, is_open, position)


def _by_line(data: bytes, *, line: int, before: int, errors: ErrorPolicy, tally: Tally, path: str) -> bytes:
    """The block again, each line as the policy wants it."""
    *whole, last = data.split(b"\n")
    texts = []
    for number, body in enumerate(whole, start=line):
        place = f"{path}:{number}"
        text = decode_line(
            body, before=before if number == line else 0, errors=errors, place=place, tally=tally
        )
        texts += [] if text is None else [text, "\n"]
    place = f"{path}:{line + len(whole)}"
    text = decode_line(last, before=0 if whole else before, errors=errors, place=place, tally=tally)
    return "".join((*texts, text or "")).encode("utf-8", "surrogatepass")


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def escaped(text: str) -> str:
    r"""As Python does; a lone surrogate, which no UTF-8 has, becomes ``\ud800``."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def unescaped(field: str) -> str:
    """What ``escaped`` was given; ``ValueError`` for a field that it does not give."""
    if "\\" not in field:
        return field
    return field.encode("latin-1", "backslashreplace").decode("unicode_escape")
