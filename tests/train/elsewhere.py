"""A fake device for tests without a GPU: its tensors cannot be combined with tensors on the CPU.

The CPU computes the values. So a test can compare a run on this device with one on the CPU, and every tensor
that was left on the CPU raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"  # a device type that every torch has; only its name is used
_MOVES = ("_to_copy", "copy_")


class Elsewhere(torch.Tensor):
    """A tensor on the fake device; its values are on the CPU."""

    numbers: torch.Tensor
    is_meta = False

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> Elsewhere:
        """Wrap a CPU tensor."""
        shape: dict[str, Any] = {"dtype": numbers.dtype, "layout": numbers.layout, "device": NAME}
        if numbers.layout == torch.strided:
            shape |= {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, numbers.size(), **shape)  # pyright: ignore
        made.numbers = numbers
        return made

    def tolist(self) -> list[Any]:
        """Return the values."""
        return self.numbers.tolist()

    @classmethod
    def __torch_dispatch__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run any operation."""
        return _called(call, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Intercepts every operation of torch."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(call, args, kwargs or {})


class _Values(TorchFunctionMode):
    """Intercepts ``torch.tensor``, which is not an operation."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if call is torch.tensor and str(kwargs.get("device")) == NAME:
            return Elsewhere(call(*args, **{**kwargs, "device": "cpu"}))
        return call(*args, **kwargs)


@contextmanager
def elsewhere() -> Iterator[str]:
    """Install the device for the duration of a ``with``; yields its name."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # its weights have another class
    try:
        with _Device(), _Values():
            yield NAME
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def _called(call: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = call.overloadpacket.__name__
    found = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    away = [x for x in found if isinstance(x, Elsewhere)]
    forgotten = [x for x in found if not isinstance(x, Elsewhere) and x.dim()]  # scalars may be on the CPU
    if away and forgotten and name not in _MOVES:
        raise RuntimeError(f"{call}: a tensor of shape {tuple(forgotten[0].shape)} is on the CPU")
    is_away = bool(away)
    if name == "copy_":
        is_away = isinstance(args[0], Elsewhere)
    elif kwargs.get("device") is not None:
        is_away = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(x.numbers): x for x in away}  # in-place operations return the same tensor

    def unwrap(x: Any) -> Any:
        return x.numbers if isinstance(x, Elsewhere) else x

    def wrap(x: Any) -> Any:
        if not is_away or not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Elsewhere(x)

    return tree_map(wrap, call(*tree_map(unwrap, args), **tree_map(unwrap, kwargs)))
