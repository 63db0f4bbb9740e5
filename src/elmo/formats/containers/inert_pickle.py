"""A stranger's pickle in, plain values out: calls and references become records, and nothing is ever run.

Only the opcodes that ``torch.save`` writes are read (pickle protocol 2), and only the names it uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elmo.errors import FormatError

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
