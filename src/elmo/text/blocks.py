"""A path in, its text in blocks of many lines out: what ``read_lines`` gives, for work that wants speed."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from elmo.text.lines import (
    MAX_LINE_BYTES,
    ErrorPolicy,
    Source,
    Tally,
    decode_line,
    endless_line,
    open_text,
    shown,
)

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
