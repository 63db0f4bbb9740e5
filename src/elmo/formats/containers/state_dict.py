"""Read the state dict in a file written by ``torch.save`` without unpickling it.

``open_state_dict`` reads the names and shapes; ``StateDict.read`` reads one tensor. There are two layouts: the
zip file of torch 1.6 and later, and the older stream of pickles. Every size is checked against the file before
memory is allocated, and tensors must not share bytes, so a small file cannot fill the memory. The parts of this
module, in order: the state dict, its tensors, the zip directory, and a pickle interpreter that records calls
instead of making them. The interpreter supports the opcodes that ``torch.save`` writes (pickle protocol 2) and
only those classes and functions that a state dict uses.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

from elmo.errors import FormatError
from elmo.storage.files import BoundedReads, format_error, format_path, open_regular

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
    axes: tuple[int, ...]  # the axes in the order of storage, slowest-varying first


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
    """Find every tensor in a file written by ``torch.save(module.state_dict(), path)``, without reading it."""
    subject = format_path(path)
    values, storages = read_saved(path)
    if not isinstance(values, dict):
        raise FormatError(f"{subject}: expected a state dict, found another value")
    tensors = {name: find_tensor(value, storages, name=name, subject=subject) for name, value in values.items()}
    _refuse_overlaps(tensors, subject)
    return StateDict(path, tensors)


def find_tensor(value: Any, storages: Mapping[str, ByteRange], *, name: str, subject: str) -> StoredTensor:
    """Return the position of a tensor, from the record of the call that creates it."""
    call = _tensor_call(value)
    if call is None:
        raise FormatError(f"{subject}: {name!r:.80}: expected a tensor, found another value")
    try:
        return _tensor(call.arguments, storages)
    except ValueError as error:
        raise FormatError(f"{subject}: cannot read the tensor {name!r:.80}: {error}") from error


def read_saved(path: Path, limits: PickleLimits | None = None) -> tuple[Any, dict[str, ByteRange]]:
    """Return the value in a file written by ``torch.save``, with records of calls, and the position of each storage."""
    limits = limits or PickleLimits()
    subject = format_path(path)
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(limits.max_bytes)
        if head.startswith(b"PK\3\4"):
            return _read_zip(file, size, subject, limits)
        if head.startswith(_STREAM_START):
            return _read_stream(file, head, size, subject, limits)
    start = "an empty file" if not head else f"{head[:8]!r}"
    raise FormatError(f"{subject}: expected a file written by torch.save, found {start}")


def _read_zip(file: BinaryIO, size: int, subject: str, limits: PickleLimits) -> tuple[Any, dict[str, ByteRange]]:
    """Return the pickled value, and the position of each storage."""
    try:
        entries = read_zip_entries(file, size)
    except ValueError as error:
        raise FormatError(f"{subject}: not a valid zip file of torch.save: {error}") from error
    roots = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise FormatError(f"{subject}: expected one data.pkl in the zip file, found {len(roots)}")
    pickled = entries[f"{roots[0]}/data.pkl"]
    order = entries.get(f"{roots[0]}/byteorder", ByteRange(0, 0))
    if pickled.size > limits.max_bytes:
        raise FormatError(f"{subject}: expected a data.pkl of at most {limits.max_bytes} bytes, found {pickled.size}")
    file.seek(order.position)
    if order.size and file.read(min(order.size, 16)) != b"little":
        raise FormatError(f"{subject}: expected little-endian numbers, found another byte order")
    file.seek(pickled.position)
    values, _ = read_pickle(file.read(pickled.size), 0, subject=subject, allowed=limits.allowed)
    start = f"{roots[0]}/data/"
    storages = {name.removeprefix(start): entry for name, entry in entries.items() if name.startswith(start)}
    _check_values(values, subject)
    return values, storages


def _read_stream(
    file: BinaryIO, head: bytes, size: int, subject: str, limits: PickleLimits
) -> tuple[Any, dict[str, ByteRange]]:
    """Return the same as ``_read_zip``, for a file of torch before 1.6.

    Such a file has five pickles (magic number, version, system information, the value, the keys of the
    storages), followed by the storages. Each storage consists of its length in eight bytes and its numbers, always
    little-endian.
    """
    _, position = read_pickle(head, 0, subject=subject)
    version, position = read_pickle(head, position, subject=subject)
    if version != _STREAM_VERSION:
        raise FormatError(f"{subject}: the version of torch's old file layout must be {_STREAM_VERSION}; found another")
    _, position = read_pickle(head, position, subject=subject)
    values, position = read_pickle(head, position, subject=subject, allowed=limits.allowed)
    _check_values(values, subject)
    keys, position = read_pickle(head, position, subject=subject)
    sizes = _number_sizes(values.values() if isinstance(values, dict) else [values])
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys) or set(keys) - set(sizes):
        raise FormatError(
            f"{subject}: expected only the keys of the {len(sizes)} storages that tensors use, found others"
        )
    if len(set(keys)) != len(keys):
        raise FormatError(f"{subject}: expected unique storage keys, found a duplicate")
    storages: dict[str, ByteRange] = {}
    for key in keys:
        file.seek(position)
        length = int.from_bytes(file.read(8), "little") * sizes[key]
        if position + 8 + length > size:
            raise FormatError(
                f"{subject}: expected {length} bytes of numbers at byte {position + 8}, found a file of {size} bytes"
            )
        storages[key] = ByteRange(position + 8, length)
        position += 8 + length
    return values, storages


def _check_values(values: Any, subject: str) -> None:
    """Raise ``FormatError`` for values other than a dict of tensors or the record of a single value."""
    if isinstance(values, dict):
        for name, value in values.items():
            if _tensor_call(value) is None:
                raise FormatError(f"{subject}: {name!r:.80}: expected a tensor, found another value")
    elif not isinstance(values, CallRecord | StateRecord):
        raise FormatError(f"{subject}: expected a state dict or a tensor, found another value")


def _tensor_call(value: Any) -> CallRecord | None:
    """Return the call that creates a tensor, which a parameter wraps; None if the value is no tensor."""
    if isinstance(value, CallRecord) and value.function == "torch._utils._rebuild_parameter" and value.arguments:
        value = value.arguments[0]
    is_tensor = isinstance(value, CallRecord) and value.function.startswith("torch._utils._rebuild_tensor")
    return value if is_tensor else None


def _number_sizes(values: Iterable[Any]) -> dict[str, int]:
    """Return the bytes per number in each storage that the tensors use."""
    sizes: dict[str, int] = {}
    for call in filter(None, map(_tensor_call, values)):
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
            raise ValueError("unexpected arguments of the call that creates it")
    match target:
        # in the old layout, None at the end means that the storage is not a view
        case ("storage", GlobalName(name=name), str(key), str(), int(length), *more) if name in _DTYPES and (
            not more or (len(more) == 1 and more[0] is None)
        ):
            pass
        case _:
            raise ValueError("unknown type of storage")
    numbers = (length, offset, *shape, *stride)
    if len(shape) != len(stride) or len(shape) > _MAX_AXES:
        raise ValueError(
            f"expected at most {_MAX_AXES} axes with one stride each, found {len(shape)} axes, {len(stride)} strides"
        )
    if not all(type(number) is int and 0 <= number < _MAX_NUMBER for number in numbers):
        raise ValueError(f"sizes, strides and offset must be integers in 0..{_MAX_NUMBER - 1}")
    dtype, width = _DTYPES[name]
    storage = storages.get(key)
    if storage is None or storage.size != length * width:
        stored = "none" if storage is None else f"{storage.size} bytes"
        raise ValueError(f"expected a storage of {length} numbers of {width} bytes, found {stored}")
    count = math.prod(shape)
    if offset + count > length:
        raise ValueError(f"{count} numbers at offset {offset} do not fit into a storage of {length} numbers")
    stored_bytes = ByteRange(storage.position + offset * width, count * width)
    return StoredTensor(shape, dtype, stored_bytes, _axes(shape, stride))


def _axes(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes in the order of storage, slowest-varying first; reject strides that skip or repeat numbers."""
    # axes of length 1 may have any stride, so they come first
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis] > 1, -stride[axis]))
    step = 1
    for axis in reversed(axes):
        if shape[axis] > 1 and stride[axis] != step and 0 not in shape:
            raise ValueError(f"strides {stride} of shape {shape} skip or repeat numbers")
        step *= shape[axis]
    return tuple(axes)


def _refuse_overlaps(tensors: Mapping[str, StoredTensor], subject: str) -> None:
    """Reject tensors that share bytes: they could take far more memory than the file has bytes."""
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
_LOCAL = struct.Struct("<4s5H3I2H")
_UTF8 = 0x800  # flag of an entry whose name is UTF-8
_ZIP64_BYTES = 76  # size of the 64-bit end record and its locator, which may precede the end record
_IN_ZIP64 = (
    0xFFFF,
    0xFFFFFFFF,
    0xFFFFFFFF,
)  # a count, size or position with this value is in the 64-bit record instead


def read_zip_entries(file: BinaryIO, file_size: int) -> dict[str, ByteRange]:
    """Return the position of each entry's bytes; raise ``ValueError`` for a damaged file."""
    magic, _, _, _, *stored, comment = _END.unpack(_read_exactly(file, file_size - _END.size, _END.size))
    if magic != b"PK\5\6" or comment:
        raise ValueError("the file is truncated or has trailing data")
    try:
        with zipfile.ZipFile(cast("IO[bytes]", BoundedReads(file, _MAX_DIRECTORY))) as archive:
            infos, end = archive.infolist(), archive.start_dir
    except (FormatError, zipfile.BadZipFile, NotImplementedError, OSError, OverflowError, struct.error) as error:
        raise ValueError(f"the zip directory is damaged: {format_error(error)}") from error
    has_zip64 = _read_exactly(file, file_size - _END.size - 20, 4) == b"PK\6\7"
    actual = [len(infos), file_size - _END.size - _ZIP64_BYTES * has_zip64 - end, end]
    if has_zip64:
        stored = [b if a == limit else a for a, b, limit in zip(stored, actual, _IN_ZIP64, strict=True)]
    if stored != actual or len(infos) > MAX_ENTRIES:
        raise ValueError("the zip directory does not match its end record or has too many entries")
    entries: dict[str, ByteRange] = {}
    for info in infos:
        name, size = info.orig_filename, info.file_size
        if info.flag_bits & 1 or info.compress_type != zipfile.ZIP_STORED or info.compress_size != size:
            raise ValueError(f"the zip entry {name!r:.80} is compressed or encrypted")
        if name in entries:
            raise ValueError(f"two zip entries have the name {name!r:.80}")
        if not 0 <= info.header_offset <= end - _LOCAL.size:
            raise ValueError(f"the zip entry {name!r:.80} is outside the file")
        header = _read_exactly(file, info.header_offset, _LOCAL.size)
        magic, _, flags, method, *_, name_size, extra_size = _LOCAL.unpack(header)
        stored_name = file.read(name_size).decode("utf-8" if flags & _UTF8 else "cp437")
        if magic != b"PK\3\4" or method != zipfile.ZIP_STORED or stored_name != name:
            raise ValueError(f"the local header of the zip entry {name!r:.80} does not match the zip directory")
        position = info.header_offset + _LOCAL.size + name_size + extra_size
        if position + size > end:
            raise ValueError(f"the zip entry {name!r:.80} of {size} bytes extends beyond the end of the data")
        entries[name] = ByteRange(position, size)
    return entries


def _read_exactly(file: BinaryIO, position: int, size: int) -> bytes:
    if position < 0:
        raise ValueError("the file is truncated")
    file.seek(position)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("the file is truncated")
    return data


# --- pickles -------------------------------------------------------------------------------------

MAX_BYTES = 1 << 22  # maximum total size of the pickles in a file; published models need a few kilobytes
MAX_STEPS = 1 << 17  # maximum number of opcodes in one pickle; a tensor takes about 35

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


@dataclass(frozen=True)
class PickleLimits:
    """What a pickle may contain: the total size of the pickles in a file, and the names that they may refer to."""

    max_bytes: int = MAX_BYTES
    allowed: frozenset[str] = ALLOWED


# A pickle can nest records to any depth, so records are never compared or printed.
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
class StateRecord:
    """A call whose result is then given a state that is a tuple, such as a NumPy array."""

    call: CallRecord
    state: tuple[Any, ...]


@dataclass(frozen=True, eq=False, repr=False)
class PersistentId:
    """A persistent id: torch's reference to a storage outside the pickle."""

    target: Any


def read_pickle(data: bytes, start: int, *, subject: str, allowed: frozenset[str] = ALLOWED) -> tuple[Any, int]:
    """Return the value of the pickle at ``start`` and the position of its end; ``allowed`` are the names it may use."""
    file = io.BytesIO(data)
    file.seek(start)
    try:
        return _interpret(file, allowed), file.tell()
    # a name with an invalid escape makes pickletools warn; the warning may be turned into an error
    except (ValueError, DeprecationWarning) as error:
        raise FormatError(f"{subject}: not a valid pickled state dict: {format_error(error)}") from error


def _interpret(file: io.BytesIO, allowed: frozenset[str]) -> Any:
    """Return the value of a pickle; it consists of plain Python values and the records defined above."""
    stack: list[Any] = []
    below: list[list[Any]] = []  # one stack per open mark
    memo: dict[int, Any] = {}

    def pop(count: int) -> list[Any]:
        if len(stack) < count:
            raise ValueError("an opcode pops an empty stack")
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return values

    operations = cast("Iterable[tuple[pickletools.OpcodeInfo, Any, int]]", pickletools.genops(file))
    for step, (opcode, argument, position) in enumerate(operations):
        name = opcode.name
        if step == MAX_STEPS:
            raise ValueError(f"it has more than {MAX_STEPS} opcodes")
        if name in ("TUPLE", "APPENDS", "SETITEMS"):
            if not below:
                raise ValueError("an opcode pops an empty stack")
            items, stack = stack, below.pop()
        else:
            items = pop(_N_OPERANDS.get(name, 0))
        match name:
            case "STOP":
                return items[0]
            case "PROTO":  # protocol 2 is the default of torch.save in every version
                if argument != 2:
                    raise ValueError(f"the pickle protocol must be 2, the default of torch.save; found {argument}")
            case "MARK":
                below.append(stack)
                stack = []
            case "BINPUT" | "LONG_BINPUT":
                if argument >= MAX_STEPS:
                    raise ValueError(f"memo index {argument} is out of range")
                memo[argument] = items[0]
                stack += items
            case "BINGET" | "LONG_BINGET":
                if argument not in memo:
                    raise ValueError(f"memo index {argument} was never set")
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_parse_global(file.getbuffer()[position + 1 : file.tell()], allowed))
            case "APPEND" | "APPENDS":
                if not stack or not isinstance(stack[-1], list):
                    raise ValueError("items are appended to a value that is not a list")
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                if not stack or not isinstance(stack[-1], dict) or len(items) % 2:
                    raise ValueError("items are added to a value that is not a dict")
                _add_items(stack[-1], items)
            case _:
                stack.append(_build_value(name, argument, items))
    raise ValueError("the pickle is truncated")


def _build_value(name: str, argument: Any, operands: list[Any]) -> Any:
    """Return the value that an opcode pushes onto the stack."""
    match name:
        case "NONE" | "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINUNICODE":
            return argument
        case "NEWTRUE" | "NEWFALSE":
            return name == "NEWTRUE"
        case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE":
            return tuple(operands)
        case "EMPTY_LIST":
            return []
        case "EMPTY_DICT":
            return {}
        case "REDUCE":
            return _record_call(*operands)
        case "BUILD" if isinstance(operands[0], CallRecord) and isinstance(operands[1], tuple):
            return StateRecord(operands[0], operands[1])
        case "BUILD":  # the attributes of a state dict are module versions, which do not affect the weights
            if not all(isinstance(operand, dict) for operand in operands):
                raise ValueError("attributes are set on a value that is not a dict")
            return operands[0]
        case "BINPERSID":
            return PersistentId(operands[0])
    raise ValueError(f"opcode {name} is not supported")


# Opcodes that take operands from the stack, and the number of operands.
_N_OPERANDS = {"STOP": 1, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "BINPUT": 1, "LONG_BINPUT": 1, "REDUCE": 2,
               "BUILD": 2, "BINPERSID": 1, "APPEND": 1, "SETITEM": 2}  # fmt: skip


def _parse_global(raw: memoryview, allowed: frozenset[str]) -> GlobalName:
    """Return the name in the argument of a GLOBAL opcode: a line with the module and a line with the name."""
    name = str(raw[:-1], "ascii", "replace").replace("\n", ".")
    if name not in allowed:
        raise ValueError(f"the name {name!r:.80} is not allowed in a state dict")
    return GlobalName(name)


def _record_call(function: Any, arguments: Any) -> CallRecord | dict[str, Any]:
    """Return the record of a call; a call of ``OrderedDict`` gives an empty dict."""
    if not isinstance(function, GlobalName) or not isinstance(arguments, tuple):
        raise ValueError("a call must have a function and a tuple of arguments")
    if function.name != "collections.OrderedDict":
        return CallRecord(function.name, arguments)
    if arguments:
        raise ValueError("OrderedDict must be called without arguments")
    return {}


def _add_items(target: dict[str, Any], items: list[Any]) -> None:
    """Add alternating keys and values to a dict."""
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str):
            raise ValueError("a key is not a string")
        if key in target:
            raise ValueError(f"the key {key!r:.80} occurs twice")
        target[key] = value
