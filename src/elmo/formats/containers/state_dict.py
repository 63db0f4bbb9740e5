"""A stranger's file of torch weights in; names and shapes out, then one tensor at a time, without unpickling.

Two layouts exist: the zip file of torch 1.6 and later, and the stream of pickles before it. Every size is
held against the file's own before memory is taken, and no two tensors may share their numbers, so that what
is read never exceeds what is stored.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from elmo.errors import FormatError
from elmo.formats.containers.inert_pickle import MAX_BYTES, Call, Global, Reference, read_inert
from elmo.formats.containers.stored_zip import Span, read_spans
from elmo.formats.files import open_regular, shown

if TYPE_CHECKING:
    from torch import Tensor

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
            raise FormatError(f"{shown(self.path)}: {name}: expected floats, found {tensor.kind}")
        data = torch.empty(tensor.span.size, dtype=torch.uint8)
        with open_regular(self.path) as file:
            file.seek(tensor.span.position)
            n_read = file.readinto(data.numpy()) if tensor.span.size else 0  # type: ignore[attr-defined]
        if n_read != tensor.span.size:
            raise FormatError(
                f"{shown(self.path)}: {name}: expected {tensor.span.size} bytes, found {n_read}"
            )
        stored = data.view(getattr(torch, tensor.kind)).reshape([tensor.shape[axis] for axis in tensor.axes])
        # axes[k] is the axis that is stored as the k-th: undo that
        back = sorted(range(len(tensor.axes)), key=lambda k: tensor.axes[k])
        return stored.permute(back).to(torch.float32).contiguous()


def open_state_dict(path: Path) -> StateDict:
    """Find every tensor of a ``torch.save(module.state_dict(), path)``; ``FormatError`` for anything else."""
    subject = shown(path)
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
