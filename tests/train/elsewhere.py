"""A processor in, a device that no machine has out: its tensors refuse the company of those on the processor.

What is computed is what the processor computes. So a test can hold a run on another device against one on the
processor, and hears of every tensor that was forgotten on the way, without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"  # the only other kind that torch knows everywhere; nothing of it is used but the name
_MOVES = ("_to_copy", "copy_")


class Elsewhere(torch.Tensor):
    """A tensor on that device; the processor holds its numbers."""

    numbers: torch.Tensor
    is_meta = False

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> Elsewhere:
        """Of the same shape and layout."""
        shape: dict[str, Any] = {"dtype": numbers.dtype, "layout": numbers.layout, "device": NAME}
        if numbers.layout == torch.strided:
            shape |= {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, numbers.size(), **shape)  # pyright: ignore
        made.numbers = numbers
        return made

    def tolist(self) -> list[Any]:
        """As a GPU's are fetched."""
        return self.numbers.tolist()

    @classmethod
    def __torch_dispatch__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever is asked of it."""
        return _called(call, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Hears of every operation of torch, those that begin or end on the processor too."""

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(call, args, kwargs or {})


class _Values(TorchFunctionMode):
    """Hears of values that become tensors, which are no operation."""

    def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if call is torch.tensor and str(kwargs.get("device")) == NAME:
            return Elsewhere(call(*args, **{**kwargs, "device": "cpu"}))
        return call(*args, **kwargs)


@contextmanager
def elsewhere() -> Iterator[str]:
    """The name of the device, which is there for the time of a ``with``."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # its weights are of another class
    try:
        with _Device(), _Values():
            yield NAME
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def _called(call: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = call.overloadpacket.__name__
    found = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    away = [x for x in found if isinstance(x, Elsewhere)]
    forgotten = [x for x in found if not isinstance(x, Elsewhere) and x.dim()]  # one number may be anywhere
    if away and forgotten and name not in _MOVES:
        raise RuntimeError(f"{call}: a tensor of shape {tuple(forgotten[0].shape)} is on the processor")
    is_away = bool(away)
    if name == "copy_":
        is_away = isinstance(args[0], Elsewhere)
    elif kwargs.get("device") is not None:
        is_away = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(x.numbers): x for x in away}  # what is changed in place stays the same tensor

    def held(x: Any) -> Any:
        return x.numbers if isinstance(x, Elsewhere) else x

    def given(x: Any) -> Any:
        if not is_away or not isinstance(x, torch.Tensor):
            return x
        return known[id(x)] if id(x) in known else Elsewhere(x)

    return tree_map(given, call(*tree_map(held, args), **tree_map(held, kwargs)))
