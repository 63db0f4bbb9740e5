r"""Find text files, decompress and decode them, and read their lines.

Input can be files, globs, folders and stdin, plain or compressed, in UTF-8. ``read_lines`` reads one line at
a time; ``read_blocks`` reads blocks of many lines, which is faster. ``TextLimits`` protects the memory from files that
are not text, and from small files that unpack to huge ones. ``escape_field`` escapes a string for one field of a
tab-separated line.
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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

from elmo.errors import ConfigError, DataError, EncodingError, importing_extra
from elmo.storage import remote
from elmo.storage.files import format_error, format_path

ErrorPolicy = Literal["strict", "replace", "skip", "surrogateescape"]
ERROR_POLICIES: tuple[ErrorPolicy, ...] = get_args(ErrorPolicy)
Source = Path | Literal["-"]  # "-" is stdin


class Digest(Protocol):
    """A hash function such as ``hashlib.sha256()``."""

    def update(self, data: Any, /) -> None:
        """Add bytes."""
        ...


_SAMPLE_BYTES = 512  # bytes examined to detect UTF-16 without a byte order mark
_FREE_BYTES = 1 << 24  # a file that unpacks to less may have any ratio

_MAGIC = {  # UTF-8 text cannot start with these bytes; bzip2's start is ASCII, so more of it is compared
    ".gz": (b"\x1f\x8b",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".bz2": tuple(b"BZh%d" % k + block for k in range(1, 10) for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")),
    ".zst": (b"\x28\xb5\x2f\xfd",),
}
_OTHER_ENCODINGS = {  # longest first: the mark of UTF-32 starts with that of UTF-16
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NOT_TEXT = {  # frequent mistakes
    b"PK\x03\x04": "a zip archive or an Office document; save it as plain text in UTF-8",
    b"%PDF-": "a PDF; extract its text first, for example with pdftotext",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, not text",
    b"\x89PNG\r\n\x1a\n": "a picture, not text",
    b"\xff\xd8\xff": "a picture, not text",
}
_READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)  # raised by damaged files and devices


@dataclass(frozen=True)
class TextLimits:
    """What a text file may contain. Environment variables with the names of ``VARIABLES`` raise a limit.

    Attributes:
        line_bytes: Maximum length of a line.
        token_bytes: Maximum length of a token.
        expansion: Maximum ratio of unpacked to compressed bytes, in files that unpack to more than 16 MB.
    """

    line_bytes: int = 1 << 24
    token_bytes: int = 1 << 16
    expansion: int = 20  # text reaches 4 to 10

    VARIABLES: ClassVar[Mapping[str, str]] = {
        "line_bytes": "ELMO_MAX_LINE_BYTES", "token_bytes": "ELMO_MAX_TOKEN_BYTES", "expansion": "ELMO_MAX_EXPANSION",
    }  # fmt: skip

    @classmethod
    def read(cls) -> TextLimits:
        """Return the limits of this process: those of the environment variables, or the defaults."""
        values: dict[str, int] = {}
        for field, variable in cls.VARIABLES.items():
            if (text := os.environ.get(variable)) is not None:
                if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < 1 << 62):
                    raise ConfigError(f"{variable} must be a positive number; found {text[:40]!r}")
                values[field] = int(text)
        return cls(**values)

    def check_tokens(self, tokens: Iterable[str], place: str) -> None:
        """Raise ``DataError`` if a token of the line at ``place`` is too long."""
        for token in tokens:
            # a character has up to four bytes
            if 4 * len(token) > self.token_bytes < len(token.encode("utf-8", "surrogatepass")):
                message = f"{place}: a token must have at most {self.token_bytes:,} bytes"
                raise self.error("token_bytes", message, found=f"a longer one: {token[:20]!r}…")

    def error(self, field: str, message: str, *, found: str = "more") -> DataError:
        """Return the error for a limit that was exceeded, with the variable that raises it."""
        return DataError(
            f"{message}; found {found}; if this is intended, set {self.VARIABLES[field]} to a larger number"
        )


@dataclass(frozen=True)
class Line:
    r"""A line without its end (``\n`` or ``\r\n``).

    Attributes:
        text: The text of the line.
        number: Number of the line in the file, from 1; skipped lines are counted too.
        path: The file, formatted for messages.
    """

    text: str
    number: int
    path: str


@dataclass
class Tally:
    """Counts the lines that were read, repaired and skipped.

    Attributes:
        lines: Lines that were read.
        repaired: Lines in which invalid bytes were replaced or escaped.
        skipped: Lines that were left out because of invalid bytes.
    """

    lines: int = 0
    repaired: int = 0
    skipped: int = 0


def format_source(path: Source | str) -> str:
    """Format a path or stdin (``-``) for a one-line message."""
    return "<stdin>" if path == "-" else format_path(path)


def expand_paths(paths: Sequence[str], *, is_remote_allowed: bool = False) -> list[Source]:
    """Return the files that ``paths`` refer to, in the order of ``paths``.

    A path is a file, a folder (with all files below it, except hidden ones), a glob (also with ``**``), or
    ``-`` for stdin. The files of a glob or folder are sorted. With ``is_remote_allowed``, a file, folder or glob can be
    in an object store, such as ``s3://bucket/corpus/*.txt``.
    """
    sources: list[Source] = []
    for path in paths:
        if path == "-":
            sources.append("-")
        elif "://" in path and remote.is_url(path):
            sources += _list_remote(path, is_allowed=is_remote_allowed)
        elif _exists(path):
            sources += _list_files(Path(path))
        elif glob.has_magic(path):
            matches = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 -- takes absolute patterns too
            if not matches:
                raise DataError(f"{format_source(path)}: no file matches this pattern")
            # `**` matches a folder and its files; each file is read once
            sources += dict.fromkeys(file for match in matches for file in _list_files(Path(match), may_be_empty=True))
        else:
            raise DataError(f"{format_source(path)}: no such file or folder")
    return sources


def _list_remote(path: str, *, is_allowed: bool) -> list[Path]:
    if not is_allowed:
        raise DataError(f"{format_source(path)}: only the text of elmo embed and elmo index can be in an object store")
    try:
        files = remote.list_files(path)
    except OSError as error:
        raise DataError(f"cannot read {format_source(path)}: {format_error(error)}") from error
    if files is None:
        raise DataError(f"{format_source(path)}: no such file or folder, or no file matches this pattern")
    return files


def _exists(path: str) -> bool:
    try:
        return path != "" and Path(path).exists()  # Path("") is the working folder
    except OSError as error:
        raise DataError(f"{format_source(path)[:200]}: {error.strerror}") from error
    except ValueError:  # a NUL in the name
        return False


def _list_files(path: Path, *, may_be_empty: bool = False) -> list[Path]:
    """Return the file itself, or the files below a folder."""
    if not path.is_dir():
        return [path]
    files: list[Path] = []

    def fail(error: OSError) -> None:
        raise DataError(f"{format_source(error.filename)}: {error.strerror}") from error

    for folder, folders, names in os.walk(path, onerror=fail):
        folders[:] = (name for name in folders if not name.startswith("."))
        files += (Path(folder, name) for name in names if not name.startswith("."))
    files = sorted(file for file in files if file.is_file())
    if not files and not may_be_empty:
        raise DataError(f"{format_source(path)}: this folder has no files")
    return files


def read_lines(
    path: Source,
    *,
    errors: ErrorPolicy | None = None,
    tally: Tally | None = None,
    limits: TextLimits | None = None,
    digest: Digest | None = None,
) -> Generator[Line]:
    r"""Read the lines of a file one at a time; only ``\n`` ends a line, and empty lines are kept.

    Compression is detected from the content. A byte order mark at the start is dropped.

    Args:
        path: The file, or ``-`` for stdin.
        errors: What to do with bytes that are not UTF-8: raise an ``EncodingError`` with their position
            (``strict``), replace them by U+FFFD (``replace``) or by lone surrogates (``surrogateescape``), or
            leave out the line (``skip``). None is ``strict`` with an error message that does not mention the
            other policies.
        tally: Counts the lines that were repaired or skipped.
        limits: A longer line raises ``DataError``. Default: the limits of this process.
        digest: Receives all bytes of the file as they are stored, once the last line was read. Not for stdin.
    """
    if errors is not None and errors not in ERROR_POLICIES:
        raise ConfigError(f"errors must be one of {', '.join(ERROR_POLICIES)}; found {str(errors)[:40]!r}")
    return _lines(path, errors=errors, tally=tally or Tally(), limits=limits or TextLimits.read(), digest=digest)


def _lines(
    path: Source, *, errors: ErrorPolicy | None, tally: Tally, limits: TextLimits, digest: Digest | None
) -> Generator[Line]:
    name = format_source(path)
    with open_text(path, limits, digest) as (raw, stream):
        for number in itertools.count(1):
            line = stream.readline(limits.line_bytes + 1)
            if not line:
                _read_rest(raw, digest)
                return
            if len(line) > limits.line_bytes:
                raise _line_too_long(f"{name}:{number}", limits)
            tally.lines += 1
            before = len(codecs.BOM_UTF8) if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
            place = f"{name}:{number}"
            text = decode_line(line[before:], before=before, errors=errors, place=place, tally=tally)
            if text is not None:
                yield Line(text, number, name)


def _line_too_long(place: str, limits: TextLimits) -> DataError:
    message = f"{place}: a line must have at most {limits.line_bytes:,} bytes"
    return limits.error("line_bytes", message, found="a longer one")


def _read_rest(raw: io.BufferedReader, digest: Digest | None) -> None:
    """Read the bytes after the compressed data, which a decompressor ignores, into the digest."""
    while digest is not None and raw.read(BLOCK_BYTES):
        pass


@contextmanager
def open_text(
    path: Source, limits: TextLimits | None = None, digest: Digest | None = None
) -> Iterator[tuple[io.BufferedReader, io.BufferedIOBase]]:
    """Open a file and yield two streams, the stored and the decompressed bytes; read errors raise ``DataError``."""
    name = format_source(path)
    try:
        with _open_raw(path, digest) as raw, _decompress(raw, path, limits or TextLimits.read()) as stream:
            yield raw, stream
    except PermissionError as error:
        raise DataError(f"{name}: no permission to read this file") from error
    except _READ_ERRORS as error:
        raise DataError(f"cannot read {name}: {format_error(error)}") from error


def decode_line(line: bytes, *, before: int = 0, errors: ErrorPolicy | None, place: str, tally: Tally) -> str | None:
    """Decode a line or the rest of one, after its first ``before`` bytes; return None if the policy skips it."""
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        if errors is None or errors == "strict":
            hint = "use --errors replace, skip or surrogateescape, or " if errors else ""
            position = before + error.start + 1
            raise EncodingError(
                f"{place}: byte {position} of the line (0x{body[error.start]:02x}) is not UTF-8; "
                f"{hint}convert the file to UTF-8"
            ) from error
    if errors == "skip":
        tally.skipped += 1
        return None
    tally.repaired += 1
    return body.decode("utf-8", errors)


@contextmanager
def _open_raw(path: Source, digest: Digest | None) -> Iterator[io.BufferedReader]:
    """Open the stored bytes of a file; stdin stays open at the end."""
    if path != "-":
        with path.open("rb") if isinstance(path, Path) else remote.open_file(path) as raw:
            yield raw if digest is None else io.BufferedReader(_HashedStream(raw, digest), BLOCK_BYTES)
        return
    stdin = getattr(sys.stdin, "buffer", None)
    if stdin is None:
        raise DataError("stdin is closed; pass a file instead of -")
    if hasattr(stdin, "peek"):
        yield stdin
        return
    wrapped = io.BufferedReader(stdin)  # the caller may have replaced stdin by a BytesIO
    try:
        yield wrapped
    finally:
        wrapped.detach()


@contextmanager
def _decompress(raw: io.BufferedReader, path: Source, limits: TextLimits) -> Iterator[io.BufferedIOBase]:
    """Decompress a stream; raise an error if its first bytes show that it is not UTF-8 text."""
    name = format_source(path)
    start = raw.peek(16)[:16]
    kind = next((suffix for suffix, magics in _MAGIC.items() if start.startswith(magics)), None)
    suffix = "" if path == "-" else path.suffix.lower()
    if kind is None and suffix in _MAGIC:
        raise DataError(
            f"{name}: expected {suffix} data, as its name says; found {start[:4].hex(' ') or 'an empty file'}"
        )
    for magic, description in _NOT_TEXT.items():
        if start.startswith(magic):
            raise DataError(f"{name}: this is {description}")
    for mark, encoding in _OTHER_ENCODINGS.items():
        if start.startswith(mark):
            raise EncodingError(f"{name}: this file is {encoding}; convert it first: iconv -f {encoding} -t UTF-8")
    if kind is None:
        _check_not_utf16(raw.peek(_SAMPLE_BYTES)[:_SAMPLE_BYTES], name)
        yield raw
        return
    compressed = _CountedStream(raw)
    with _DECOMPRESSORS[kind](io.BufferedReader(compressed)) as plain:
        yield io.BufferedReader(_ExpandedStream(plain, compressed, limits, name), io.DEFAULT_BUFFER_SIZE * 8)


def _check_not_utf16(sample: bytes, name: str) -> None:
    """Raise an error if most bytes at even or at odd positions are NUL, as in UTF-16 without a byte order mark."""
    for offset, order in enumerate(("BE", "LE")):
        half = sample[offset::2]
        if len(half) >= 8 and half.count(0) > 0.75 * len(half):
            raise EncodingError(
                f"{name}: every other byte is NUL, so this file seems to be UTF-16; convert it first: "
                f"iconv -f UTF-16{order} -t UTF-8"
            )


class _CountedStream(io.RawIOBase):
    """Counts the bytes that are read from a stream."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        super().__init__()
        self._stream = stream
        self.n_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        n = self._stream.readinto1(buffer)
        self.n_bytes += n
        return n


class _HashedStream(_CountedStream):
    """Passes all bytes that are read to a digest."""

    def __init__(self, stream: io.BufferedIOBase, digest: Digest) -> None:
        super().__init__(stream)
        self._digest = digest

    def tell(self) -> int:
        return self.n_bytes

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        n = super().readinto(buffer)
        self._digest.update(buffer[:n])
        return n


class _ExpandedStream(_CountedStream):
    """Reads decompressed bytes; raises ``DataError`` if they are too many for the compressed bytes that were read."""

    def __init__(self, plain: io.BufferedIOBase, compressed: _CountedStream, limits: TextLimits, name: str) -> None:
        super().__init__(plain)
        self._compressed, self._limits, self._name = compressed, limits, name

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        n = super().readinto(buffer)
        if self.n_bytes > max(_FREE_BYTES, self._limits.expansion * self._compressed.n_bytes):
            subject = f"{self._name}: compressed text may expand to {self._limits.expansion} times its size"
            raise self._limits.error("expansion", subject)
        return n


class _ZstdStream(io.RawIOBase):
    """Decompresses a Zstandard file; unlike the stream reader of ``zstandard``, it detects truncated files."""

    # Four bytes can expand to 128 KB: small reads keep the output of a hostile file small.
    _READ_BYTES = 1 << 9

    def __init__(self, raw: io.BufferedReader) -> None:
        super().__init__()
        with importing_extra("reading .zst files", extra="zstd"):
            import zstandard  # pyright: ignore[reportMissingImports] -- an extra
        self._raw = raw
        self._library = zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._is_in_frame = False
        self._compressed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._plain:
            self._compressed = self._compressed or self._raw.read(self._READ_BYTES)
            if not self._compressed:
                if self._is_in_frame:
                    raise EOFError("the compressed data is truncated")
                return 0
            if self._frame.eof:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._plain = memoryview(self._frame.decompress(self._compressed))
            except self._library.ZstdError as error:
                raise OSError(str(error)) from error
            self._is_in_frame = not self._frame.eof
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
LONG_LINE_BYTES = 1 << 19  # a longer line, such as a corpus on one line, is cut at a space


@dataclass(frozen=True)
class Block:
    r"""A block of lines, each with its ``\n`` (or ``\r\n``).

    Attributes:
        data: UTF-8; lone surrogates, from an error policy, are encoded with ``surrogatepass``.
        path: The file, formatted for messages.
        line: Number of the first line, from 1.
        is_open: Whether the last line continues in the next block.
        position: Number of bytes read from the file so far, before decompression.
    """

    data: bytes
    path: str
    line: int
    is_open: bool
    position: int

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
    limits: TextLimits | None = None,
    digest: Digest | None = None,
) -> Iterator[Block]:
    """Read a file in blocks of about ``n_bytes``; lines are split and decoded as in ``read_lines``.

    A line longer than ``cut_after`` bytes is cut after a space, if it has one, and continues in the next
    block; None keeps all lines whole. If such a line has invalid bytes, the policy ``skip`` skips only the piece with
    these bytes.
    """
    tally, limits = tally or Tally(), limits or TextLimits.read()
    name = format_source(path)
    build = partial(_build_block, path=name, errors=errors, tally=tally)
    line, before = 1, 0  # number of the next block's first line, and how many of its bytes were in earlier blocks
    pending: list[bytes] = []  # start of an incomplete line
    n_pending = 0
    is_open = is_started = False
    with open_text(path, limits, digest) as (raw, stream):
        while piece := stream.read(n_bytes):
            while not is_started and len(piece) < len(codecs.BOM_UTF8) and (more := stream.read(n_bytes)):
                piece += more  # the byte order mark may come in pieces
            if not is_started and piece.startswith(codecs.BOM_UTF8):
                piece = piece.removeprefix(codecs.BOM_UTF8)
                before = len(codecs.BOM_UTF8)
                is_open = True  # a byte order mark alone is a line
            is_started = True
            cut = piece.rfind(b"\n") + 1
            if not cut and cut_after is not None and n_pending + len(piece) > cut_after:
                cut = piece.rfind(b" ") + 1
            if not cut:
                pending.append(piece)
                n_pending += len(piece)
                if n_pending > limits.line_bytes:
                    raise _line_too_long(f"{name}:{line}", limits)
                continue
            data = b"".join((*pending, piece[:cut]))
            is_open = not data.endswith(b"\n")
            yield build(data, line=line, before=before, position=raw.tell())
            line += data.count(b"\n")
            before = before + len(data) if is_open else 0
            pending, n_pending = [piece[cut:]], len(piece) - cut
        _read_rest(raw, digest)
        if n_pending or is_open:
            yield build(b"".join((*pending, b"\n")), line=line, before=before, position=raw.tell())


def _build_block(
    data: bytes, *, line: int, before: int, errors: ErrorPolicy, tally: Tally, path: str, position: int
) -> Block:
    tally.lines += data.count(b"\n")
    is_open = not data.endswith(b"\n")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        data = _decode_lines(data, line=line, before=before, errors=errors, tally=tally, path=path)
    return Block(data, path, line, is_open, position)


def _decode_lines(data: bytes, *, line: int, before: int, errors: ErrorPolicy, tally: Tally, path: str) -> bytes:
    """Apply the error policy to each line of a block."""
    bodies = data.split(b"\n")
    texts = []
    for k, body in enumerate(bodies):
        place = f"{path}:{line + k}"
        text = decode_line(body, before=0 if k else before, errors=errors, place=place, tally=tally)
        if text is not None:
            texts += [text, "\n" if k < len(bodies) - 1 else ""]
    return "".join(texts).encode("utf-8", "surrogatepass")


_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def escape_field(text: str) -> str:
    r"""Escape ``\``, tab, line breaks and lone surrogates as in Python string literals."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


def unescape_field(field: str) -> str:
    """Undo ``escape_field``; raise ``ValueError`` for invalid escapes."""
    if "\\" not in field:
        return field
    return field.encode("latin-1", "backslashreplace").decode("unicode_escape")
