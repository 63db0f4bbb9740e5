"""Read the weights in a file of ``torch.save`` without unpickling: names and shapes first, then the tensors.

There are two layouts: the zip file of torch 1.6 and later, and the older stream of pickles. Every size is
checked against the file before memory is allocated, and no two tensors may share their numbers, so reading
never takes more memory than the file has bytes. The parts of this module, in order: the state dict, the
tensors in it, the zip directory, and a pickle interpreter that only builds records. It knows the opcodes that
``torch.save`` writes (pickle protocol 2) and the few names that a state dict uses.
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


_STREAM_MAGIC = 0x1950A86A20F9469CFC6C
_STREAM_START = b"\x80\x02\x8a\x0a" + _STREAM_MAGIC.to_bytes(10, "little")
_STREAM_VERSION = 1001
_MAX_AXES = 8
_MAX_NUMBER = 1 << 40
_DTYPES = {  # dtype and bytes per number of each torch storage
    "torch.FloatStorage": ("float32", 4),
    "torch.HalfStorage": ("float16", 2),
    "torch.DoubleStorage": ("float64", 8),
    "torch.BFloat16Storage": ("bfloat16", 2),
    "torch.LongStorage": ("int64", 8),
    "torch.IntStorage": ("int32", 4),
}


@dataclass(frozen=True)
class ByteRange:
    """A range of bytes in a file."""

    position: int
    size: int


@dataclass(frozen=True)
class StoredTensor:
    """Position and layout of a tensor in the file."""

    shape: tuple[int, ...]
    dtype: str  # float32, int64, …
    bytes: ByteRange
    axes: tuple[int, ...]  # the axes in stored order, slowest first


@dataclass(frozen=True)
class StateDict:
    """The named tensors of a file; ``read`` loads one of them."""

    path: Path
    tensors: Mapping[str, StoredTensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        """Read one tensor as float32."""
        import torch

        tensor = self.tensors[name]
        if not tensor.dtype.startswith(("float", "bfloat")):
            raise FormatError(f"{format_path(self.path)}: {name}: expected floats, found {tensor.dtype}")
        data = torch.empty(tensor.bytes.size, dtype=torch.uint8)
        with open_regular(self.path) as file:
            file.seek(tensor.bytes.position)
            n_read = file.readinto(data.numpy()) if tensor.bytes.size else 0  # type: ignore[attr-defined]
        if n_read != tensor.bytes.size:
            raise FormatError(f"{format_path(self.path)}: {name}: expected {tensor.bytes.size} bytes, found {n_read}")
        stored = data.view(getattr(torch, tensor.dtype)).reshape([tensor.shape[axis] for axis in tensor.axes])
        inverse = sorted(range(len(tensor.axes)), key=lambda k: tensor.axes[k])
        return stored.permute(inverse).to(torch.float32).contiguous()


def open_state_dict(path: Path) -> StateDict:
    """Find every tensor in a file of ``torch.save(module.state_dict(), path)``."""
    subject = format_path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(MAX_BYTES)
        if head.startswith(b"PK\3\4"):
            calls, storages = _read_zip(file, size, subject)
        elif head.startswith(_STREAM_START):
            calls, storages = _read_stream(file, head, size, subject)
        else:
            start = "an empty file" if not head else f"{head[:8]!r}"
            raise FormatError(f"{subject}: expected a file written by torch.save, found {start}")
    tensors: dict[str, StoredTensor] = {}
    for name, call in calls.items():
        try:
            tensors[name] = _tensor(call.arguments, storages)
        except ValueError as error:
            raise FormatError(f"{subject}: {name!r:.80}: expected a tensor, found {error}") from error
    _refuse_overlaps(tensors, subject)
    return StateDict(path, tensors)


def _read_zip(file: BinaryIO, size: int, subject: str) -> tuple[dict[str, CallRecord], dict[str, ByteRange]]:
    """Return the calls that create the tensors, by name, and the position of each storage."""
    try:
        entries = read_zip_entries(file, size)
    except ValueError as error:
        raise FormatError(f"{subject}: expected a zip file written by torch.save, found {error}") from error
    roots = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise FormatError(f"{subject}: expected one data.pkl in the zip file, found {len(roots)}")
    pickled = entries[f"{roots[0]}/data.pkl"]
    order = entries.get(f"{roots[0]}/byteorder", ByteRange(0, 0))
    if pickled.size > MAX_BYTES:
        raise FormatError(f"{subject}: expected a data.pkl of at most {MAX_BYTES} bytes, found {pickled.size}")
    file.seek(order.position)
    if order.size and file.read(min(order.size, 16)) != b"little":
        raise FormatError(f"{subject}: expected little-endian numbers, found another byte order")
    file.seek(pickled.position)
    values, _ = read_pickle(file.read(pickled.size), 0, subject=subject)
    start = f"{roots[0]}/data/"
    storages = {name.removeprefix(start): entry for name, entry in entries.items() if name.startswith(start)}
    return _calls(values, subject), storages


def _read_stream(
    file: BinaryIO, head: bytes, size: int, subject: str
) -> tuple[dict[str, CallRecord], dict[str, ByteRange]]:
    """Return the same from an old file.

    It has five pickles (magic, version, the writer's system, the values, the storages' keys) and then the
    storages: each has its length in eight bytes, followed by its numbers, always little-endian.
    """
    _, position = read_pickle(head, 0, subject=subject)
    version, position = read_pickle(head, position, subject=subject)
    if version != _STREAM_VERSION:
        raise FormatError(f"{subject}: expected version {_STREAM_VERSION} of torch's old layout, found another")
    _, position = read_pickle(head, position, subject=subject)
    values, position = read_pickle(head, position, subject=subject)
    calls = _calls(values, subject)
    keys, position = read_pickle(head, position, subject=subject)
    sizes = _number_sizes(calls)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) - set(sizes):
        raise FormatError(f"{subject}: expected the keys of its {len(sizes)} storages, found other keys")
    if len(set(keys)) != len(keys):
        raise FormatError(f"{subject}: expected unique storage keys, found one twice")
    storages: dict[str, ByteRange] = {}
    for key in keys:
        file.seek(position)
        length = int.from_bytes(file.read(8), "little") * sizes[key]
        if position + 8 + length > size:
            raise FormatError(
                f"{subject}: expected {length} bytes of numbers at {position + 8}, found a file of {size}"
            )
        storages[key] = ByteRange(position + 8, length)
        position += 8 + length
    return calls, storages


def _calls(values: Any, subject: str) -> dict[str, CallRecord]:
    """Return the calls that create a state dict's tensors, by name; a parameter wraps a tensor."""
    if not isinstance(values, dict):
        raise FormatError(f"{subject}: expected a state dict, found another value")
    calls: dict[str, CallRecord] = {}
    for name, value in values.items():
        call = value
        if isinstance(call, CallRecord) and call.function == "torch._utils._rebuild_parameter" and call.arguments:
            call = call.arguments[0]
        if not isinstance(call, CallRecord) or not call.function.startswith("torch._utils._rebuild_tensor"):
            raise FormatError(f"{subject}: {name!r:.80}: expected a tensor, found another value")
        calls[name] = call
    return calls


def _number_sizes(calls: Mapping[str, CallRecord]) -> dict[str, int]:
    """Return the bytes per number in each storage that the tensors use."""
    sizes: dict[str, int] = {}
    for call in calls.values():
        match call.arguments:
            case (PersistentId(target=("storage", GlobalName(name=name), str(key), *_)), *_) if name in _DTYPES:
                sizes[key] = _DTYPES[name][1]
    return sizes


def _tensor(arguments: tuple[Any, ...], storages: Mapping[str, ByteRange]) -> StoredTensor:
    """Return a tensor's position, checked against its storage; raise ``ValueError`` if it does not fit."""
    match arguments:
        case (PersistentId(target=tuple(target)), int(offset), tuple(shape), tuple(stride), *_):
            pass
        case _:
            raise ValueError("other arguments")
    match target:
        case ("storage", GlobalName(name=name), str(key), str(), int(length)) if name in _DTYPES:
            pass
        case ("storage", GlobalName(name=name), str(key), str(), int(length), None) if name in _DTYPES:
            pass  # in the old layout, None means that the storage is not a view
        case _:
            raise ValueError("an unknown kind of storage")
    numbers = (length, offset, *shape, *stride)
    if len(shape) != len(stride) or len(shape) > _MAX_AXES:
        raise ValueError(f"{len(shape)} axes and {len(stride)} strides")
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers):
        raise ValueError("invalid sizes")
    dtype, width = _DTYPES[name]
    storage = storages.get(key)
    if storage is None or storage.size != length * width:
        stored = "none" if storage is None else f"{storage.size} bytes"
        raise ValueError(f"a declared storage of {length} numbers of {width} bytes, but {stored} stored")
    count = math.prod(shape)
    if offset + count > length:
        raise ValueError(f"{count} numbers at offset {offset} of a storage of {length}")
    stored_bytes = ByteRange(storage.position + offset * width, count * width)
    return StoredTensor(shape, dtype, stored_bytes, _axes(shape, stride))


def _axes(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes in stored order, slowest first; refuse strides that skip or repeat numbers."""
    # axes of length 1 may have any stride, so they come first
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -stride[axis]))
    step = 1
    for axis in reversed(axes):
        if shape[axis] > 1 and stride[axis] != step and 0 not in shape:
            raise ValueError(f"strides {stride} that skip or repeat numbers of shape {shape}")
        step *= shape[axis]
    return tuple(axes)


def _refuse_overlaps(tensors: Mapping[str, StoredTensor], subject: str) -> None:
    """Refuse tensors that share numbers: they would take more memory than the file has bytes."""
    ranges = sorted(
        (tensor.bytes.position, tensor.bytes.size, name) for name, tensor in tensors.items() if tensor.bytes.size
    )
    for (start, size, name), (next_start, _, other) in pairwise(ranges):
        if start + size > next_start:
            raise FormatError(f"{subject}: {name!r:.80} and {other!r:.80} share memory; clone them before torch.save")


# --- zip directory -------------------------------------------------------------------------------
# torch.save stores entries uncompressed, so an entry cannot expand, and its numbers can be read in place.

MAX_ENTRIES = 1 << 14
_MAX_DIRECTORY = 1 << 21  # bytes
_END = struct.Struct("<4s4HIIH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_FULL32 = 0xFFFFFFFF  # the number is in a 64-bit field elsewhere


def read_zip_entries(file: BinaryIO, file_size: int) -> dict[str, ByteRange]:
    """Return the position of each entry's bytes; raise ``ValueError`` for a damaged file."""
    start, size, count = _directory(file, file_size)
    if size > _MAX_DIRECTORY or count > MAX_ENTRIES or start + size > file_size:
        raise ValueError(f"a zip directory of {count} entries, {size} bytes at {start}")
    directory = _read_exactly(file, start, size)
    entries: dict[str, ByteRange] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > size:
            raise ValueError("a truncated zip directory")
        values = _ENTRY.unpack_from(directory, position)
        magic, flags, method, packed, unpacked = values[0], values[3], values[4], values[8], values[9]
        name_size, extra_size, comment_size, offset = values[10], values[11], values[12], values[16]
        if magic != b"PK\1\2":
            raise ValueError("a damaged zip directory")
        position += _ENTRY.size
        raw_name = directory[position : position + name_size]
        extra = directory[position + name_size : position + name_size + extra_size]
        position += name_size + extra_size + comment_size
        name = raw_name.decode("utf-8")  # UnicodeDecodeError is a ValueError
        unpacked, packed, offset = _wide(extra, (unpacked, packed, offset))
        if flags & 1 or method != 0 or packed != unpacked:
            raise ValueError(f"the compressed or encrypted zip entry {name!r:.80}")
        if name in entries:
            raise ValueError(f"the zip entry {name!r:.80} twice")
        entries[name] = _local(file, raw_name=raw_name, offset=offset, size=unpacked, end=start)
    return entries


def _directory(file: BinaryIO, file_size: int) -> tuple[int, int, int]:
    """Return position, size and number of entries of the central directory."""
    if file_size < _END.size:
        raise ValueError("a truncated zip file")
    magic, _, _, _, count, size, start, comment = _END.unpack(_read_exactly(file, file_size - _END.size, _END.size))
    if magic != b"PK\5\6" or comment:
        raise ValueError("a zip file that is truncated or has trailing data")
    if count != 0xFFFF and _FULL32 not in (size, start):
        return start, size, count
    locator = file_size - _END.size - _END64_LOCATOR.size
    magic, _, end64, _ = _END64_LOCATOR.unpack(_read_exactly(file, locator, _END64_LOCATOR.size))
    if magic != b"PK\6\7" or end64 + _END64.size > locator:
        raise ValueError("a zip file without its 64-bit end record")
    values = _END64.unpack(_read_exactly(file, end64, _END64.size))
    if values[0] != b"PK\6\6":
        raise ValueError("a zip file without its 64-bit end record")
    return values[9], values[8], values[7]


def _wide(extra: bytes, numbers: tuple[int, int, int]) -> list[int]:
    """Replace the numbers that do not fit 32 bits by those in the entry's extra fields."""
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


def _local(file: BinaryIO, *, raw_name: bytes, offset: int, size: int, end: int) -> ByteRange:
    """Return the bytes after an entry's local header, which must be before the directory."""
    if offset + _LOCAL.size > end:
        raise ValueError(f"the zip entry {raw_name!r:.80} outside the file")
    values = _LOCAL.unpack(_read_exactly(file, offset, _LOCAL.size))
    position = offset + _LOCAL.size + values[9] + values[10]
    if values[0] != b"PK\3\4" or values[3] != 0 or values[9] != len(raw_name):
        raise ValueError(f"a header of the zip entry {raw_name!r:.80} that does not match the directory")
    if position + size > end:
        raise ValueError(f"the zip entry {raw_name!r:.80} of {size} bytes, more than the file has")
    if _read_exactly(file, offset + _LOCAL.size, len(raw_name)) != raw_name:
        raise ValueError(f"different names for the zip entry {raw_name!r:.80} in its header and the directory")
    return ByteRange(position, size)


def _read_exactly(file: BinaryIO, position: int, size: int) -> bytes:
    if position < 0:
        raise ValueError("a truncated zip file")
    file.seek(position)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("a truncated zip file")
    return data


# --- pickles -------------------------------------------------------------------------------------

MAX_BYTES = 1 << 22  # of all pickles in a file; published models need a few kilobytes
MAX_STEPS = 1 << 17  # opcodes of one pickle; a tensor takes about 35

# The names that a state dict may contain. They are only recorded: no module is ever imported.
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


# A pickle can nest records in each other without end: never compare or print them.
@dataclass(frozen=True, eq=False, repr=False)
class GlobalName:
    """A name from ``ALLOWED``."""

    name: str


@dataclass(frozen=True, eq=False, repr=False)
class CallRecord:
    """A call that an ordinary unpickler would make."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class PersistentId:
    """A persistent id, by which torch refers to the numbers outside the pickle."""

    target: Any


def read_pickle(data: bytes, start: int, *, subject: str) -> tuple[Any, int]:
    """Return the value of the pickle at ``start`` and the position of its end."""
    machine = _PickleMachine(data, start)
    try:
        for _ in range(MAX_STEPS):
            code = machine.take(1)
            if code == b".":
                return machine.pop(), machine.position
            step = _STEPS.get(code)
            if step is None:
                raise ValueError(f"the unsupported opcode {code!r}")
            step(machine)
        raise ValueError(f"more than {MAX_STEPS} opcodes")
    except ValueError as error:
        raise FormatError(f"{subject}: expected a pickled state dict, found {error}") from error


class _PickleMachine:
    """The stack of an unpickler that can only build tuples, lists, dicts and records."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # one stack per open mark
        self.memo: dict[int, Any] = {}

    def take(self, size: int) -> bytes:
        """Return the next bytes of the pickle."""
        end = self.position + size
        if end > len(self.data):
            raise ValueError("a truncated pickle")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        """Read an integer."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> str:
        """Read a line of text."""
        end = self.data.find(b"\n", self.position, self.position + _MAX_NAME)
        if end < 0:
            raise ValueError("a name without an end")
        text = self.take(end - self.position).decode("ascii", "replace")
        self.position += 1
        return text

    def text(self) -> str:
        """Read a length and UTF-8 text."""
        try:
            return self.take(self.number(4)).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ValueError(f"text that is not UTF-8 before byte {self.position}") from error

    def push(self, value: Any) -> None:
        """Push a value onto the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Pop a value from the stack."""
        if not self.stack:
            raise ValueError("an opcode that pops an empty stack")
        return self.stack.pop()

    def pops(self, count: int) -> list[Any]:
        """Pop several values; return them in the order in which they were pushed."""
        return [self.pop() for _ in range(count)][::-1]

    def mark(self) -> None:
        """Start a new stack, which ``since_mark`` ends."""
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        """Return all values since the last mark."""
        if not self.below:
            raise ValueError("an opcode that pops an empty stack")
        items, self.stack = self.stack, self.below.pop()
        return items

    def protocol(self) -> None:
        """Accept only protocol 2, the default of ``torch.save`` in every version."""
        version = self.number(1)
        if version != 2:
            raise ValueError(f"pickle protocol {version}; save it again with torch.save's default protocol 2")

    def put(self, index: int) -> None:
        """Store the top value in the memo."""
        if index >= MAX_STEPS:
            raise ValueError(f"memo index {index}")
        value = self.pop()
        self.memo[index] = value
        self.push(value)

    def get(self, index: int) -> None:
        """Push a value from the memo."""
        if index not in self.memo:
            raise ValueError(f"memo index {index}, which was never set")
        self.push(self.memo[index])

    def name(self) -> None:
        """Push an allowed name."""
        name = f"{self.line()}.{self.line()}"
        if name not in ALLOWED:
            raise ValueError(f"the name {name!r:.80}, which is not allowed in a state dict")
        self.push(GlobalName(name))

    def call(self) -> None:
        """Push the record of a call."""
        function, arguments = self.pops(2)
        if not isinstance(function, GlobalName) or not isinstance(arguments, tuple):
            raise ValueError("a call without a function")
        if function.name != "collections.OrderedDict":
            self.push(CallRecord(function.name, arguments))
        elif arguments:
            raise ValueError("an OrderedDict with arguments")
        else:
            self.push({})

    def build(self) -> None:
        """Discard attributes: those of a state dict are module versions, which no weight depends on."""
        target, attributes = self.pops(2)
        if not isinstance(attributes, dict) or not isinstance(target, dict):
            raise ValueError("attributes of another type than dict")
        self.push(target)

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top of the stack."""
        if not self.stack or not isinstance(self.stack[-1], list):
            raise ValueError("items appended to another type than list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        """Add alternating keys and values to the dict on top of the stack."""
        if not self.stack or not isinstance(self.stack[-1], dict) or len(items) % 2:
            raise ValueError("items added to another type than dict")
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise ValueError("a key that is not a string")
            if key in target:
                raise ValueError(f"the key {key!r:.80} twice")
            target[key] = value


_STEPS: dict[bytes, Callable[[_PickleMachine], None]] = {
    b"\x80": _PickleMachine.protocol,
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
    b"(": _PickleMachine.mark,
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.push(tuple(m.pops(1))),
    b"\x86": lambda m: m.push(tuple(m.pops(2))),
    b"\x87": lambda m: m.push(tuple(m.pops(3))),
    b"q": lambda m: m.put(m.number(1)),
    b"r": lambda m: m.put(m.number(4)),
    b"h": lambda m: m.get(m.number(1)),
    b"j": lambda m: m.get(m.number(4)),
    b"c": _PickleMachine.name,
    b"R": _PickleMachine.call,
    b"b": _PickleMachine.build,
    b"Q": lambda m: m.push(PersistentId(m.pop())),
    b"a": lambda m: m.extend(m.pops(1)),
    b"e": lambda m: m.extend(m.since_mark()),
    b"s": lambda m: m.update(m.pops(2)),
    b"u": lambda m: m.update(m.since_mark()),
}
