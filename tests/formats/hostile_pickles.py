"""Build state dict files that the reader must refuse, in torch's old stream or its zip format."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

MAGIC = 0x1950A86A20F9469CFC6C
MARK_OF_A_RUN = "touched-by-a-pickle"  # created by a payload if it ever runs


def stream(values: bytes, *, keys: list[str] | None = None, storages: bytes = b"") -> bytes:
    """Return a file in the format of torch before 1.6 around any pickle."""
    machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = b"".join(pickle.dumps(value, 2) for value in (MAGIC, 1001, machine))
    return head + values + pickle.dumps(keys or [], 2) + storages


def zipped(values: bytes, *, entries: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a file in the format of torch since 1.6 around any pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", values)
        for name, data in (entries or {}).items():
            archive.writestr(name, data)
    return buffer.getvalue()


def text(value: str) -> bytes:
    """Return the opcode that pushes a string."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def whole(value: int) -> bytes:
    """Return the opcode that pushes an integer of any size."""
    data = value.to_bytes(9, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def reference(*, kind: str = "FloatStorage", key: str = "0", length: int = 4, more: bytes = b"") -> bytes:
    """Return the opcodes that push a storage."""
    parts = text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + whole(length) + more
    return b"(" + parts + b"tQ"


def tensor(
    *, storage: bytes | None = None, offset: int = 0, shape: tuple[int, ...] = (4,), stride: tuple[int, ...] = (1,)
) -> bytes:
    """Return the opcodes that push a tensor."""
    sizes, strides = (b"(" + b"".join(whole(n) for n in numbers) + b"t" for numbers in (shape, stride))
    parts = (storage or reference()) + whole(offset) + sizes + strides + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + parts + b"tR"


def state_dict(**values: bytes) -> bytes:
    """Return a pickled state dict with values as opcodes."""
    items = b"".join(text(name) + value for name, value in values.items())
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u."


def storage(length: int = 4, *, declared: int | None = None) -> bytes:
    """Return a storage of the stream: its length and its numbers."""
    return struct.pack("<Q", length if declared is None else declared) + bytes(4 * length)


def payloads(touch: Path) -> dict[str, bytes]:
    """Return pickles that would run code or exhaust memory or time in an ordinary unpickler."""
    command = text(f"touch {touch}")
    code = text(f"open({str(touch)!r}, 'w').close()")
    builtin = b"cbuiltins\neval\n"
    return {
        "system by name": b"\x80\x02cposix\nsystem\n" + command + b"\x85R.",
        "os.system by name": b"\x80\x02cos\nsystem\n" + command + b"\x85R.",
        "eval": b"\x80\x02" + builtin + code + b"\x85R.",
        "exec": b"\x80\x02cbuiltins\nexec\n" + code + b"\x85R.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\n" + builtin + text("__call__") + b"\x86R.",
        "a dotted name": b"\x80\x02ctorch\nserialization.os.system\n" + command + b"\x85R.",
        "torch.load": b"\x80\x02ctorch\nload\n" + command + b"\x85R.",
        "a stack global": b"\x80\x04" + text("os") + text("system") + b"\x93" + command + b"\x85R.",
        "a stack global under protocol 2": b"\x80\x02" + text("os") + text("system") + b"\x93" + command + b"\x85R.",
        "an instance": b"(" + command + b"ios\nsystem\n.",
        "an old object": b"\x80\x02(cos\nsystem\n" + command + b"o.",
        "a new object": b"\x80\x02cos\nsystem\n" + command + b"\x85\x81.",
        "a new object with names": b"\x80\x04cos\nsystem\n" + command + b"\x85}\x92.",
        "an extension": b"\x80\x02\x82\x01.",
        "build on a function": b"\x80\x02ccollections\nOrderedDict\n}" + text("__setstate__") + builtin + b"sb.",
        "build on a tensor": state_dict(a=tensor() + b"}" + text("__setstate__") + builtin + b"sb"),
        "eval as a value": state_dict(a=builtin + code + b"\x85R"),
        "a call of a text": b"\x80\x02" + text("os.system") + command + b"\x85R.",
        "an ordered dict from a list": b"\x80\x02ccollections\nOrderedDict\n]\x85R.",
        "a text persistent id": b"\x80\x02Pos.system\n.",
        "hooks that would run": state_dict(a=tensor().replace(b"ccollections\nOrderedDict\n)R", builtin, 1)),
        "a huge memo": b"\x80\x02}r\xff\xff\xff\x7f.",
        "a memo that was never set": b"\x80\x02h\x07.",
        "a huge text": b"\x80\x02X\xff\xff\xff\xffabc.",
        "huge bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        "a huge number": b"\x80\x02\x8b\xff\xff\xff\x7f1.",
        "digits without end": b"I" + b"9" * 1_000_000 + b"\n.",
        "marks without end": b"\x80\x02" + b"(" * 2_000_000 + b".",
        "tuples in tuples": b"\x80\x02)" + b"\x85" * 2_000_000 + b".",
        "doubled without end": b"\x80\x02)" + b"2\x86" * 1_000_000 + b".",
        "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
        "a dict that holds itself": b"\x80\x02}q\x00" + text("a") + b"h\x00s.",
        "an unhashable key": b"\x80\x02}]Ns.",
        "a name without end": b"\x80\x02c" + b"a" * 1_000_000,
        "nothing on the stack": b"\x80\x02.",
        "no pickle": b"",
    }


def places() -> dict[str, bytes]:
    """Return valid pickles of tensors that point outside their storage or would expand."""
    forms: dict[str, bytes] = {
        "a tensor behind its storage": tensor(offset=1),
        "a tensor before its storage": tensor(offset=-1),
        "a tensor larger than its storage": tensor(shape=(2**33, 2**33), stride=(2**33, 1)),
        "stride 0": tensor(shape=(2**30, 4), stride=(0, 1)),
        "windows that overlap": tensor(shape=(2, 3), stride=(1, 1)),
        "a stride that skips": tensor(shape=(2,), stride=(2,)),
        "negative strides": tensor(shape=(4,), stride=(-1,)),
        "negative sizes": tensor(shape=(-4, -1), stride=(1, 1)),
        "more strides than axes": tensor(shape=(4,), stride=(4, 1)),
        "axes without end": tensor(shape=(1,) * 5000, stride=(1,) * 5000),
        "a storage that says it is huge": tensor(storage=reference(length=2**39), shape=(2**39,)),
        "a storage of another kind": tensor(storage=reference(kind="ByteStorage")),
        "a storage that is not there": tensor(storage=reference(key="7")),
        "a storage on another path": tensor(storage=reference(key="../../../etc/passwd")),
        "a view of another storage": tensor(storage=reference(more=b"(" + text("1") + whole(0) + whole(4) + b"t")),
        "no storage": b"ctorch._utils\n_rebuild_tensor_v2\n)R",
        "a number": whole(7),
        "a dict": b"}",
    }
    return {name: state_dict(a=value) for name, value in forms.items()} | {
        "two tensors on the same numbers": state_dict(a=tensor(), b=tensor()),
        "two tensors that overlap": state_dict(a=tensor(shape=(3,)), b=tensor(shape=(2,), offset=2)),
        "a list": b"\x80\x02].",
        "a key twice": state_dict(a=tensor())[:-2] + text("a") + tensor() + b"u.",
    }
