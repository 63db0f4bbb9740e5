"""Replies: vectors as JSON numbers, base64 or NumPy archives, and offsets in code points or UTF-16 units.

A reply is a list of byte strings, which are sent one after the other, so that a large reply is not copied. Large ones
are built in another thread than the event loop, in pieces: orjson and base64 keep the interpreter until they return,
so that a single call for 100 MB would stop the event loop for half a second.
"""

from __future__ import annotations

import binascii
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from elmo.embed.encoding import Encoding
from elmo.errors import ElmoError
from elmo.serve.service import find_targets

JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
OffsetUnit = Literal["codepoints", "utf16"]
VectorEncoding = Literal["float", "base64", "npy"]
PIECE_VALUES = 1 << 15  # numbers and texts that are serialized at once
PIECE_BYTES = 3 << 18  # bytes of vectors that are copied or encoded at once; base64 needs a multiple of 3
_BYTES_PER_NUMBER = {"float": 12.5, "base64": 4 / 3, "npy": 1.0}  # of JSON; of one byte otherwise


def to_json(value: Any) -> bytes:
    """Serialize a value; NumPy arrays become nested lists."""
    return orjson.dumps(value, option=JSON_OPTIONS)


def to_pieces(value: Any) -> Iterator[bytes]:
    """Serialize a large value in pieces, whose concatenation is ``to_json(value)``; keys must be strings."""
    if isinstance(value, np.ndarray):
        yield from _array_pieces(value)
    elif isinstance(value, dict) and value:
        for k, (name, item) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if k else b"{", to_json(name))
            yield from to_pieces(item)
        yield b"}"
    elif isinstance(value, list | tuple) and value:
        yield from _list_pieces(value)
    else:
        yield to_json(value)


def _list_pieces(items: Sequence[Any]) -> Iterator[bytes]:
    """Serialize a list that is not empty: small items together, large ones in pieces."""
    mark, first, n_waiting = b"[", 0, 0
    for k, item in enumerate(items):
        n = _count_values(item)
        if n_waiting and n_waiting + n > PIECE_VALUES:
            yield mark + to_json(items[first:k])[1:-1]
            mark, first, n_waiting = b",", k, 0
        if n <= PIECE_VALUES:
            n_waiting += n
            continue
        yield mark
        yield from to_pieces(item)
        mark, first = b",", k + 1
    if n_waiting:
        yield mark + to_json(items[first:])[1:-1]
    yield b"]"


def _count_values(value: Any) -> int:
    """Estimate the number of values, at least 1; all items of a list are taken for as large as the first."""
    if isinstance(value, np.ndarray):
        return value.size + 1
    if isinstance(value, dict):
        return 1 + sum(map(_count_values, value.values()))
    if isinstance(value, list | tuple) and value:
        return len(value) * _count_values(value[0])
    return 1


def _array_pieces(array: NDArray[Any]) -> Iterator[bytes]:
    if array.size <= PIECE_VALUES:
        yield to_json(array)
    elif array.ndim > 2:
        yield from _list_pieces(list(array))
    else:
        n = max(1, PIECE_VALUES // array[0].size)
        yield from _join_lists(to_json(array[k : k + n]) for k in range(0, len(array), n))


def _join_lists(lists: Iterable[bytes]) -> Iterator[bytes]:
    """Join JSON lists that are not empty to one."""
    for k, part in enumerate(lists):
        yield (b"," if k else b"[") + part[1:-1]
    yield b"]"


def estimate_bytes(n_numbers: int, *, n_tokens: int, encoding: VectorEncoding, dtype: str) -> int:
    """Estimate the size of a reply with ``n_numbers`` numbers and ``n_tokens`` tokens."""
    size = 1 if encoding == "float" else 2 if dtype == "float16" else 4
    return int(n_numbers * size * _BYTES_PER_NUMBER[encoding]) + 40 * n_tokens + 1024


# --- Offsets ----------------------------------------------------------------------------------------


class OffsetConverter:
    """Converts offsets of a text between code points and UTF-16 units, which JavaScript counts."""

    def __init__(self, text: str, unit: OffsetUnit) -> None:
        # In most texts every character is one UTF-16 unit.
        self._units = None
        if unit == "utf16" and not text.isascii() and max(text) > "\uffff":
            is_wide = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4") > 0xFFFF
            self._units = np.concatenate([[0], np.cumsum(1 + is_wide)])

    def to_client(self, span: Sequence[int]) -> list[int]:
        """Convert a span from code points to the unit of the client."""
        if self._units is None:
            return [span[0], span[1]]
        return [int(self._units[position]) for position in span]

    def from_client(self, span: Sequence[int]) -> list[int]:
        """Convert a span from the unit of the client to code points."""
        if self._units is None:
            return [span[0], span[1]]
        return [int(np.searchsorted(self._units, position)) for position in span]


def offsets_json(
    text: str | None, offsets: Sequence[tuple[int, int]] | None, unit: OffsetUnit
) -> list[list[int]] | None:
    """Return the offsets of tokens in the unit of the client; None without a text."""
    if text is None or offsets is None:
        return None
    if unit == "codepoints":
        return cast("list[list[int]]", offsets)  # tuples are lists in JSON
    convert = OffsetConverter(text, unit).to_client
    return [convert(span) for span in offsets]


# --- Words ------------------------------------------------------------------------------------------


def error_json(error: Exception) -> dict[str, Any]:
    """Return the error of one input."""
    if not isinstance(error, ElmoError):
        return {"error": {"message": "internal error", "type": "server_error", "code": "internal", "param": None}}
    kind = type(error).__name__  # a client in Python raises the same class
    return {"error": {"message": str(error), "type": kind, "code": "invalid_input", "param": None}}


def words_reply(
    head: dict[str, Any], encodings: Sequence[Encoding | Exception], request: dict[str, Any]
) -> tuple[list[bytes], str]:
    """Build the reply of /v1/words and its content type.

    ``head`` has the fields of the reply before the results; ``encodings`` has an error for each input that failed.
    """
    targets = request["targets"] or [None] * len(encodings)
    n_tokens = sum(len(item) for item in encodings if isinstance(item, Encoding))
    tail = {"usage": {"inputs": len(encodings), "tokens": n_tokens}}
    encoding: VectorEncoding = request["encoding"]
    items = [_word_result(item, wanted, request) for item, wanted in zip(encodings, targets, strict=True)]
    if encoding == "npy":
        arrays = [vectors for _, vectors in items if vectors is not None]
        reply = to_json({**head, "results": [result for result, _ in items], **tail})
        return _npz(arrays, reply, request), "application/zip"
    parts = [to_json(head)[:-1], b',"results":[']
    for k, (result, vectors) in enumerate(items):
        if k:
            parts.append(b",")
        if vectors is not None and encoding == "base64":
            parts += [to_json(result)[:-1], b',"vectors":"', *_base64(vectors), b'"}']  # no characters to escape
        elif vectors is not None:
            parts += [to_json(result)[:-1], b',"vectors":', *_array_pieces(vectors), b"}"]
        else:
            parts.append(to_json(result))
    parts.append(b"]," + to_json(tail)[1:])
    return parts, "application/json"


def _word_result(
    encoding: Encoding | Exception, targets: Sequence[Any] | None, request: dict[str, Any]
) -> tuple[dict[str, Any], NDArray[Any] | None]:
    if isinstance(encoding, Exception):
        return error_json(encoding), None
    unit: OffsetUnit = request["offsets"]
    vectors = cast("NDArray[Any]", encoding.vectors)
    result: dict[str, Any] = {
        "tokens": encoding.tokens, "offsets": offsets_json(encoding.text, encoding.offsets, unit)
    }  # fmt: skip
    if targets is not None:
        convert = OffsetConverter(encoding.text or "", unit)
        try:
            wanted = [target if isinstance(target, str) else convert.from_client(target) for target in targets]
            spans = find_targets(encoding, wanted)
        except ElmoError as error:
            return error_json(error), None
        parts = [encoding.span(*span) for span in spans]
        axis = vectors.ndim - 2
        empty = np.empty((*vectors.shape[:-2], 0, vectors.shape[-1]), vectors.dtype)
        vectors = np.stack(parts, axis=axis) if parts else empty
        result["targets"] = [_target_json(encoding, span, convert) for span in spans]
    result["shape"] = vectors.shape
    return result, np.ascontiguousarray(vectors)


def _target_json(encoding: Encoding, span: tuple[int, int], convert: OffsetConverter) -> dict[str, Any]:
    begin, end = span
    if encoding.text is None or encoding.offsets is None:
        return {"text": " ".join(encoding.tokens[begin:end]), "tokens": [begin, end], "span": None}
    characters = encoding.offsets[begin][0], encoding.offsets[end - 1][1]
    return {"text": encoding.text[slice(*characters)], "tokens": [begin, end], "span": convert.to_client(characters)}


def _base64(vectors: NDArray[Any]) -> Iterator[bytes]:
    if sys.byteorder == "big":
        vectors = vectors.byteswap()
    for piece in _cut(vectors):
        yield binascii.b2a_base64(piece, newline=False)


def _cut(array: NDArray[Any]) -> Iterator[memoryview]:
    """Return the bytes of a contiguous array in pieces."""
    data = array.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), PIECE_BYTES):
        yield data[begin : begin + PIECE_BYTES]


def _npz(arrays: list[NDArray[Any]], reply: bytes, request: dict[str, Any]) -> list[bytes]:
    """Build an uncompressed zip archive with ``vectors.npy`` and ``reply.json``, which ``numpy.load`` opens."""
    dtype = np.dtype(request["dtype"]).newbyteorder("<")
    shape: tuple[int, ...] = (0, 0)
    if arrays:
        n_tokens = sum(array.shape[-2] for array in arrays)
        shape = (*arrays[0].shape[:-2], n_tokens, arrays[0].shape[-1])
    if len(shape) > 2:  # the time axis is not the first, so the parts are joined in memory
        arrays = [np.ascontiguousarray(np.concatenate(arrays, axis=-2))]
    sink = _ChunkSink()
    with zipfile.ZipFile(cast("Any", sink), "w", zipfile.ZIP_STORED) as archive:
        with archive.open("vectors.npy", "w") as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for array in arrays:
                for piece in _cut(array.astype(dtype, copy=False)):
                    file.write(bytes(piece))
        archive.writestr("reply.json", reply)
    return sink.chunks


class _ChunkSink:
    """A write-only file that keeps what is written as a list of byte strings."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Append data."""
        self.chunks.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing; all data are in memory."""
