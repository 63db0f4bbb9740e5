"""A stranger's pickle in, plain values out: calls and references become records, and nothing is ever run.

Only the opcodes that ``torch.save`` writes are read (pickle protocol 2), and only the names it uses.

An open zip file in, the place of each entry's bytes out; only entries that are stored uncompressed.

``torch.save`` stores, and never compresses: an entry then cannot grow as it is read, and its numbers can be
read from the file where they lie.

A stranger's file of torch weights in; names and shapes out, then one tensor at a time, without unpickling.

Two layouts exist: the zip file of torch 1.6 and later, and the stream of pickles before it. Every size is
held against the file's own before memory is taken, and no two tensors may share their numbers, so that what
is read never exceeds what is stored.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from elmo.errors import FormatError
from elmo.storage.files import format_path, open_regular

if TYPE_CHECKING:
    from torch import Tensor


MAX_BYTES = 1 << 22  # of all pickles of a file; the largest published model takes some kilobytes
MAX_STEPS = 1 << 17  # opcodes of one pickle; some 35 describe a tensor

# What a state dict may name. Naming is all that happens: no module is ever imported.
ALLOWED = frozenset(
    {
        "collections.OrderedDict",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_parameter",
        *(f"torch.{kind}Storage" for kind in ("Float", "Half", "Double", "BFloat16", "Long", "Int")),
    }
)
_MAX_NAME = 256


# Records hold one another without end if a pickle wants them to: never compare or print them whole.
@dataclass(frozen=True, eq=False, repr=False)
class Global:
    """A name out of ``ALLOWED``."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Call:
    """A call that a plain unpickler would have made."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Reference:
    """A persistent id: torch's way to point at the numbers, which lie outside the pickle."""

    target: Any


def read_inert(data: bytes, start: int, *, subject: str) -> tuple[Any, int]:
    """The value of the pickle at ``start``, and where the pickle ends; ``FormatError`` for anything odd."""
    machine = _Machine(data, start)
    try:
        for _ in range(MAX_STEPS):
            code = machine.take(1)
            if code == b".":
                return machine.pop(), machine.position
            step = _STEPS.get(code)
            if step is None:
                raise ValueError(f"the opcode {code!r}, which no state dict needs")
            step(machine)
        raise ValueError(f"more than {MAX_STEPS} opcodes")
    except ValueError as error:
        raise FormatError(f"{subject}: expected a pickled state dict, found {error}") from error


class _Machine:
    """The stack of an unpickler that builds tuples, lists, dicts and records, and knows nothing else."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # one stack for every open mark
        self.memo: dict[int, Any] = {}

    def take(self, size: int) -> bytes:
        """The next bytes of the pickle."""
        end = self.position + size
        if end > len(self.data):
            raise ValueError("no end of it")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        """The next bytes as an integer."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> str:
        """The next bytes as a line of text."""
        end = self.data.find(b"\n", self.position, self.position + _MAX_NAME)
        if end < 0:
            raise ValueError("a name that does not end")
        text = self.take(end - self.position).decode("ascii", "replace")
        self.position += 1
        return text

    def text(self) -> str:
        """The next bytes as UTF-8 behind their length."""
        try:
            return self.take(self.number(4)).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ValueError(f"text that is not UTF-8 before byte {self.position}") from error

    def push(self, value: Any) -> None:
        """Onto the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Off the stack."""
        if not self.stack:
            raise ValueError("an opcode that takes more than there is")
        return self.stack.pop()

    def pops(self, count: int) -> list[Any]:
        """The uppermost values, in the order in which they were pushed."""
        return [self.pop() for _ in range(count)][::-1]

    def mark(self) -> None:
        """Open a new stack, to be closed by ``since_mark``."""
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        """All values since the last mark."""
        if not self.below:
            raise ValueError("an opcode that takes more than there is")
        items, self.stack = self.stack, self.below.pop()
        return items

    def protocol(self) -> None:
        """Accept the one protocol that ``torch.save`` has ever written by itself."""
        version = self.number(1)
        if version != 2:
            raise ValueError(f"pickle protocol {version}; save it again with torch.save's default, 2")

    def put(self, index: int) -> None:
        """Remember the uppermost value."""
        if index >= MAX_STEPS:
            raise ValueError(f"memo index {index}")
        value = self.pop()
        self.memo[index] = value
        self.push(value)

    def get(self, index: int) -> None:
        """Push a remembered value."""
        if index not in self.memo:
            raise ValueError(f"memo index {index}, which was never set")
        self.push(self.memo[index])

    def name(self) -> None:
        """Push a name that is allowed."""
        name = f"{self.line()}.{self.line()}"
        if name not in ALLOWED:
            raise ValueError(f"the name {name!r:.80}, which no state dict needs")
        self.push(Global(name))

    def call(self) -> None:
        """Push the record of a call."""
        function, arguments = self.pops(2)
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise ValueError("a call of something that is no function")
        if function.name != "collections.OrderedDict":
            self.push(Call(function.name, arguments))
        elif arguments:
            raise ValueError("an OrderedDict made from a value")
        else:
            self.push({})

    def build(self) -> None:
        """Drop attributes: a state dict's are its modules' versions, and no weight depends on them."""
        target, attributes = self.pops(2)
        if not isinstance(attributes, dict) or not isinstance(target, dict):
            raise ValueError("attributes of something that has none")
        self.push(target)

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top."""
        if not self.stack or not isinstance(self.stack[-1], list):
            raise ValueError("items of something that is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        """Put keys and values, in turn, into the dict on top."""
        if not self.stack or not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise ValueError("items of something that is no dict")
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise ValueError("a key that is no text")
            if key in target:
                raise ValueError(f"the key {key!r:.80} twice")
            target[key] = value


_STEPS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(m.number(4, signed=True)),
    b"K": lambda m: m.push(m.number(1)),
    b"M": lambda m: m.push(m.number(2)),
    b"\x8a": lambda m: m.push(m.number(m.number(1), signed=True)),
    b"X": lambda m: m.push(m.text()),
    b")": lambda m: m.push(()),
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b"(": _Machine.mark,
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.push(tuple(m.pops(1))),
    b"\x86": lambda m: m.push(tuple(m.pops(2))),
    b"\x87": lambda m: m.push(tuple(m.pops(3))),
    b"q": lambda m: m.put(m.number(1)),
    b"r": lambda m: m.put(m.number(4)),
    b"h": lambda m: m.get(m.number(1)),
    b"j": lambda m: m.get(m.number(4)),
    b"c": _Machine.name,
    b"R": _Machine.call,
    b"b": _Machine.build,
    b"Q": lambda m: m.push(Reference(m.pop())),
    b"a": lambda m: m.extend(m.pops(1)),
    b"e": lambda m: m.extend(m.since_mark()),
    b"s": lambda m: m.update(m.pops(2)),
    b"u": lambda m: m.update(m.since_mark()),
}

MAX_ENTRIES = 1 << 14
_MAX_DIRECTORY = 1 << 21  # bytes
_END = struct.Struct("<4s4HIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_FULL32 = 0xFFFFFFFF  # the number stands in a 64-bit field elsewhere


@dataclass(frozen=True)
class Span:
    """Bytes of a file."""

    position: int
    size: int


def read_spans(file: BinaryIO, file_size: int) -> dict[str, Span]:
    """Where each entry's bytes lie; ``ValueError`` says what is wrong."""
    start, size, count = _directory(file, file_size)
    if size > _MAX_DIRECTORY or count > MAX_ENTRIES or start + size > file_size:
        raise ValueError(f"a zip directory of {count} entries, {size} bytes at {start}")
    directory = _exactly(file, start, size)
    spans: dict[str, Span] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > size:
            raise ValueError("a zip directory that is cut off")
        values = _ENTRY.unpack_from(directory, position)
        magic, flags, method, packed, unpacked = values[0], values[3], values[4], values[8], values[9]
        name_size, extra_size, comment_size, offset = values[10], values[11], values[12], values[16]
        if magic != b"PK\1\2":
            raise ValueError("a damaged zip directory")
        position += _ENTRY.size
        raw_name = directory[position : position + name_size]
        extra = directory[position + name_size : position + name_size + extra_size]
        position += name_size + extra_size + comment_size
        name = raw_name.decode("utf-8")  # its error is a ValueError too
        unpacked, packed, offset = _wide(extra, (unpacked, packed, offset))
        if flags & 1 or method != 0 or packed != unpacked:
            raise ValueError(f"zip entry {name!r:.80}, which is compressed or encrypted")
        if name in spans:
            raise ValueError(f"zip entry {name!r:.80} twice")
        spans[name] = _local(file, raw_name=raw_name, offset=offset, size=unpacked, end=start)
    return spans


def _directory(file: BinaryIO, file_size: int) -> tuple[int, int, int]:
    """Position and size of the central directory, and its number of entries."""
    if file_size < _END.size:
        raise ValueError("a zip file that is cut off")
    magic, _, _, _, count, size, start, comment = _END.unpack(
        _exactly(file, file_size - _END.size, _END.size)
    )
    if magic != b"PK\5\6" or comment:
        raise ValueError("a zip file that is cut off, or followed by something else")
    if count != 0xFFFF and _FULL32 not in (size, start):
        return start, size, count
    place = file_size - _END.size - _END64_LOCATOR.size
    magic, _, place64, _ = _END64_LOCATOR.unpack(_exactly(file, place, _END64_LOCATOR.size))
    if magic != b"PK\6\7" or place64 + _END64.size > place:
        raise ValueError("a zip file without the end that its size needs")
    values = _END64.unpack(_exactly(file, place64, _END64.size))
    if values[0] != b"PK\6\6":
        raise ValueError("a zip file without the end that its size needs")
    return values[9], values[8], values[7]


def _wide(extra: bytes, numbers: tuple[int, int, int]) -> list[int]:
    """The numbers, those that did not fit 32 bits taken from the entry's extra fields."""
    position, wide = 0, b""
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == 1:
            wide = extra[position + 4 : position + 4 + size]
        position += 4 + size
    n_wide = numbers.count(_FULL32)
    if len(wide) < 8 * n_wide:
        raise ValueError("a zip entry without its 64-bit size")
    replaced = iter(struct.unpack_from(f"<{n_wide}Q", wide))
    return [next(replaced) if number == _FULL32 else number for number in numbers]


def _local(file: BinaryIO, *, raw_name: bytes, offset: int, size: int, end: int) -> Span:
    """The bytes behind an entry's own header, which must lie before the directory."""
    if offset + _LOCAL.size > end:
        raise ValueError(f"zip entry {raw_name!r:.80} outside the file")
    values = _LOCAL.unpack(_exactly(file, offset, _LOCAL.size))
    position = offset + _LOCAL.size + values[9] + values[10]
    if values[0] != b"PK\3\4" or values[3] != 0 or values[9] != len(raw_name):
        raise ValueError(f"zip entry {raw_name!r:.80} with two different headers")
    if position + size > end:
        raise ValueError(f"zip entry {raw_name!r:.80} of {size} bytes, more than the file has")
    if _exactly(file, offset + _LOCAL.size, len(raw_name)) != raw_name:
        raise ValueError(f"zip entry {raw_name!r:.80} under two names")
    return Span(position, size)


def _exactly(file: BinaryIO, position: int, size: int) -> bytes:
    if position < 0:
        raise ValueError("a zip file that is cut off")
    file.seek(position)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("a zip file that is cut off")
    return data


_STREAM_MAGIC = 0x1950A86A20F9469CFC6C
_STREAM_START = b"\x80\x02\x8a\x0a" + _STREAM_MAGIC.to_bytes(10, "little")
_STREAM_VERSION = 1001
_MAX_AXES = 8
_MAX_NUMBER = 1 << 40
_KINDS = {  # torch's name of a storage: the name of its numbers, and their size in bytes
    "torch.FloatStorage": ("float32", 4),
    "torch.HalfStorage": ("float16", 2),
    "torch.DoubleStorage": ("float64", 8),
    "torch.BFloat16Storage": ("bfloat16", 2),
    "torch.LongStorage": ("int64", 8),
    "torch.IntStorage": ("int32", 4),
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's numbers lie, and how."""

    shape: tuple[int, ...]
    kind: str  # of number: float32, int64, …
    span: Span
    axes: tuple[int, ...]  # the order in which the axes are stored, the slowest first


@dataclass(frozen=True)
class StateDict:
    """A file of named tensors, none of them read yet."""

    path: Path
    tensors: Mapping[str, StoredTensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, as float32 in memory of its own."""
        import torch

        tensor = self.tensors[name]
        if not tensor.kind.startswith(("float", "bfloat")):
            raise FormatError(f"{format_path(self.path)}: {name}: expected floats, found {tensor.kind}")
        data = torch.empty(tensor.span.size, dtype=torch.uint8)
        with open_regular(self.path) as file:
            file.seek(tensor.span.position)
            n_read = file.readinto(data.numpy()) if tensor.span.size else 0  # type: ignore[attr-defined]
        if n_read != tensor.span.size:
            raise FormatError(
                f"{format_path(self.path)}: {name}: expected {tensor.span.size} bytes, found {n_read}"
            )
        stored = data.view(getattr(torch, tensor.kind)).reshape([tensor.shape[axis] for axis in tensor.axes])
        # axes[k] is the axis that is stored as the k-th: undo that
        back = sorted(range(len(tensor.axes)), key=lambda k: tensor.axes[k])
        return stored.permute(back).to(torch.float32).contiguous()


def open_state_dict(path: Path) -> StateDict:
    """Find every tensor of a ``torch.save(module.state_dict(), path)``; ``FormatError`` for anything else."""
    subject = format_path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(MAX_BYTES)
        if head.startswith(b"PK\3\4"):
            calls, storages = _read_zip(file, size, subject)
        elif head.startswith(_STREAM_START):
            calls, storages = _read_stream(file, head, size, subject)
        else:
            found = "an empty file" if not head else f"{head[:8]!r}"
            raise FormatError(f"{subject}: expected weights as torch.save writes them, found {found}")
    tensors: dict[str, StoredTensor] = {}
    for name, call in calls.items():
        try:
            tensors[name] = _tensor(call.arguments, storages)
        except ValueError as error:
            raise FormatError(f"{subject}: {name!r:.80}: expected a tensor, found {error}") from error
    _refuse_overlaps(tensors, subject)
    return StateDict(path, tensors)


def _read_zip(file: BinaryIO, size: int, subject: str) -> tuple[dict[str, Call], dict[str, Span]]:
    """The calls that make its tensors, by name, and where each storage lies."""
    try:
        spans = read_spans(file, size)
    except ValueError as error:
        raise FormatError(f"{subject}: expected a zip file as torch.save writes it, found {error}") from error
    roots = [name.removesuffix("/data.pkl") for name in spans if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise FormatError(f"{subject}: expected one data.pkl in the zip file, found {len(roots)}")
    pickled = spans[f"{roots[0]}/data.pkl"]
    order = spans.get(f"{roots[0]}/byteorder", Span(0, 0))
    if pickled.size > MAX_BYTES:
        raise FormatError(
            f"{subject}: expected a data.pkl of at most {MAX_BYTES} bytes, found {pickled.size}"
        )
    file.seek(order.position)
    if order.size and file.read(min(order.size, 16)) != b"little":
        raise FormatError(f"{subject}: expected numbers in little-endian order, found another")
    file.seek(pickled.position)
    values, _ = read_inert(file.read(pickled.size), 0, subject=subject)
    start = f"{roots[0]}/data/"
    storages = {name.removeprefix(start): span for name, span in spans.items() if name.startswith(start)}
    return _calls(values, subject), storages


def _read_stream(
    file: BinaryIO, head: bytes, size: int, subject: str
) -> tuple[dict[str, Call], dict[str, Span]]:
    """The same from an old file.

    Five pickles (magic, version, the writer's machine, the values, the storages' keys), then each storage:
    its length as eight bytes, and its numbers, little-endian whatever the machine.
    """
    _, position = read_inert(head, 0, subject=subject)
    version, position = read_inert(head, position, subject=subject)
    if version != _STREAM_VERSION:
        raise FormatError(f"{subject}: expected version {_STREAM_VERSION} of torch's stream, found another")
    _, position = read_inert(head, position, subject=subject)
    values, position = read_inert(head, position, subject=subject)
    calls = _calls(values, subject)
    keys, position = read_inert(head, position, subject=subject)
    sizes = _number_sizes(calls)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) - set(sizes):
        raise FormatError(f"{subject}: expected the keys of its {len(sizes)} storages, found others")
    if len(set(keys)) != len(keys):
        raise FormatError(f"{subject}: expected each storage once, found one twice")
    storages: dict[str, Span] = {}
    for key in keys:
        file.seek(position)
        length = int.from_bytes(file.read(8), "little") * sizes[key]
        if position + 8 + length > size:
            raise FormatError(
                f"{subject}: expected {length} bytes of numbers at {position + 8}, found its end at {size}"
            )
        storages[key] = Span(position + 8, length)
        position += 8 + length
    return calls, storages


def _calls(values: Any, subject: str) -> dict[str, Call]:
    """The calls that make a state dict's tensors, by name; a parameter is a tensor inside."""
    if not isinstance(values, dict):
        raise FormatError(f"{subject}: expected a state dict, found another kind of value")
    calls: dict[str, Call] = {}
    for name, value in values.items():
        call = value
        if isinstance(call, Call) and call.function == "torch._utils._rebuild_parameter" and call.arguments:
            call = call.arguments[0]
        if not isinstance(call, Call) or not call.function.startswith("torch._utils._rebuild_tensor"):
            raise FormatError(f"{subject}: {name!r:.80}: expected a tensor, found another kind of value")
        calls[name] = call
    return calls


def _number_sizes(calls: Mapping[str, Call]) -> dict[str, int]:
    """Bytes of a number in each storage that the tensors refer to."""
    sizes: dict[str, int] = {}
    for call in calls.values():
        match call.arguments:
            case (Reference(target=("storage", Global(name=name), str(key), *_)), *_) if name in _KINDS:
                sizes[key] = _KINDS[name][1]
    return sizes


def _tensor(arguments: tuple[Any, ...], storages: Mapping[str, Span]) -> StoredTensor:
    """A tensor's place, checked against its storage; ``ValueError`` says what is wrong."""
    match arguments:
        case (Reference(target=tuple(target)), int(offset), tuple(shape), tuple(stride), *_):
            pass
        case _:
            raise ValueError("a tensor of another make")
    match target:
        case ("storage", Global(name=name), str(key), str(), int(length)) if name in _KINDS:
            pass
        case ("storage", Global(name=name), str(key), str(), int(length), None) if name in _KINDS:
            pass  # of the old stream: the storage is no view of another
        case _:
            raise ValueError("a storage of another make")
    numbers = (length, offset, *shape, *stride)
    if len(shape) != len(stride) or len(shape) > _MAX_AXES:
        raise ValueError(f"{len(shape)} axes and {len(stride)} strides")
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers):
        raise ValueError("sizes that are no sizes")
    kind, width = _KINDS[name]
    storage = storages.get(key)
    if storage is None or storage.size != length * width:
        found = "none" if storage is None else f"{storage.size} bytes"
        raise ValueError(f"a storage of {length} numbers of {width} bytes declared, and {found} stored")
    count = math.prod(shape)
    if offset + count > length:
        raise ValueError(f"{count} numbers from {offset} on, in a storage of {length}")
    span = Span(storage.position + offset * width, count * width)
    return StoredTensor(shape, kind, span, _axes(shape, stride))


def _axes(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The axes in stored order, the slowest first; strides that skip or repeat numbers are refused."""
    # an axis of length 1 may have any stride: such axes go first
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -stride[axis]))
    step = 1
    for axis in reversed(axes):
        if shape[axis] > 1 and stride[axis] != step and 0 not in shape:
            raise ValueError(f"strides {stride} for the shape {shape}, which skip or repeat numbers")
        step *= shape[axis]
    return tuple(axes)


def _refuse_overlaps(tensors: Mapping[str, StoredTensor], subject: str) -> None:
    """Tensors that share numbers would take more memory than their file."""
    placed = sorted((tensor.span.position, tensor.span.size, name) for name, tensor in tensors.items())
    placed = [place for place in placed if place[1]]
    for (start, size, name), (following, _, other) in pairwise(placed):
        if start + size > following:
            raise FormatError(
                f"{subject}: expected each tensor to have its own numbers, found {name!r:.80} and "
                f"{other!r:.80} on the same; clone them before torch.save"
            )
