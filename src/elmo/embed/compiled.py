"""An LSTM layer's weights in; its gates, and whole lone sentences, by compiled loops out, where numba is.

A lone sentence is bound by reading weights, and by what Python costs per step. Here a step reads them once
and in order, and a layer is one call. Sums are added up in the order of packed products, which is found by
trying: a sentence gets the same bits alone as among others, or else it is read as others are.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import platform
import time
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.gate_weights import GateWeights
from elmo.embed.kernels import Kernels
from elmo.embed.products import InexactError, Product, part_size

SWITCH = "ELMO_COMPILED"  # this environment variable as 0 keeps to torch
MAX_THREADS = 4  # of one direction: compiled loops have one thread, and torch's own gates catch up with more
_CHAINS = (512, 1024, 256, 384, 2048)  # inputs that a library may add up in one go, likely ones first
_PARTS = (1, 4, 2, 3)  # or in how many parts, see ``PartedProduct``
_SLOW_SECONDS = 1.0

_log = logging.getLogger(__name__)


def missing(kernels: Kernels) -> str | None:
    """Why compiled loops are not used with ``kernels`` by this thread; None if they are."""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    if not kernels.is_packed:
        return f"compiled loops go with packed weights: {kernels.reason}"
    if kernels.precision == "bfloat16":  # which would be rounded to before the tanh, not after
        return "products of bfloat16 have their own tanh"
    n_threads = torch.get_num_threads()
    if n_threads > MAX_THREADS:
        return f"compiled loops have one thread, and torch may use {n_threads}"
    found = _loops()
    return found if isinstance(found, str) else None


def cells(gates: Tensor, cell: Tensor, *, merged: Tensor, clip: float | None) -> None:
    """Gates (row, 4 · cell) as ``GateWeights`` has them, before any tanh: ``merged`` is o · tanh(c).

    ``cell`` (row, cell) moves on, within ``clip``.
    """
    _ready().cells(gates.numpy(), cell.numpy(), merged.numpy(), _limit(clip))


class LoneLstm:
    """One layer, one sentence at a time, to the bits of packed products. Its weights are a second copy."""

    def __init__(
        self,
        weights: GateWeights,
        kernels: Kernels,
        *,
        inputs: Product | None,
        states: Product,
        projection: Product | None,
    ) -> None:
        """Products are those that others go through: ``states`` adds what ``inputs`` give, or without them
        is over inputs and states in one row. ``InexactError``: the order of their sums was not found.
        """
        if kernels.precision != "float32":
            raise InexactError(f"compiled products are of float32, and these of {kernels.precision}")
        self._clips = _limit(weights.cell_clip), _limit(weights.state_clip)
        self._bias = weights.bias.float().numpy()
        n_in, n_states = weights.inputs.size(1), weights.states.size(1)
        self._is_continued = inputs is None
        if inputs is None:  # sums begin with the inputs: that part of all steps is one product
            inputs = kernels.product(weights.inputs)
            x, state = _random_rows(n_in), _random_rows(n_states)
            self._states = _Chained.like(
                states(torch.cat([x, state], dim=1)),
                weights.states, state, start=inputs(x), added=weights.bias.float().expand(2, -1),
            )  # fmt: skip
        else:
            state, added = _random_rows(n_states), _random_rows(len(weights.bias))
            self._states = _Chained.like(states(state, added), weights.states, state, added=added)
        self._inputs = inputs
        self._projection = _Chained(np.empty((0, 0, _ready().PANEL), np.float32), 1)  # none
        if weights.projection is not None and projection is not None:
            x = _random_rows(weights.projection.size(1))
            self._projection = _Chained.like(projection(x), weights.projection, x)

    def read(self, inputs: Tensor, *, hidden: Tensor, cell: Tensor, outputs: Tensor) -> None:
        """Fill ``outputs`` (time, width); ``hidden`` (width,) and ``cell`` (cell,) move on.

        ``inputs`` (row, width) are as many as a product takes, those of ``outputs`` first.
        """
        gates = self._inputs(inputs)
        _ready().read_lane(
            gates.numpy(), self._bias, self._is_continued, self._states.panels, self._states.length,
            self._projection.panels, self._projection.length, *self._clips,
            hidden.numpy(), cell.numpy(), outputs.numpy(),
        )  # fmt: skip


@dataclass(frozen=True)
class _Chained:
    """A weight (out, in) in panels, and how many inputs are added up in one chain of sums."""

    panels: NDArray[np.float32]
    length: int

    @classmethod
    def like(
        cls,
        expected: Tensor,
        weight: Tensor,
        x: Tensor,
        *,
        start: Tensor | None = None,
        added: Tensor | None = None,
    ) -> _Chained:
        """The length of chains with which start + weight · x + added has every bit of ``expected``."""
        panels = _panels(weight)
        nothing = torch.zeros_like(expected)
        rows = [x, nothing if start is None else start, nothing if added is None else added, expected]
        row, first, last, wanted = (part[0].numpy() for part in rows)
        found = np.empty_like(wanted)
        n_in = len(row)
        for length in dict.fromkeys(min(length, n_in) for length in (n_in, part_size(n_in), *_CHAINS)):
            _ready().product(panels, row, length, first, last, found)
            if np.array_equal(found, wanted):
                return cls(panels, length)
        raise InexactError(f"the order of sums is unknown for weights of {tuple(weight.shape)}")


def _panels(weight: Tensor) -> NDArray[np.float32]:
    """(out, in) to (panel, in, out of the panel), the last one filled up with zeros."""
    size = _ready().PANEL
    n_out, n_in = weight.shape
    n_whole = n_out // size
    panels = np.zeros((-(-n_out // size), n_in, size), np.float32)  # numpy asks for large pages
    into = torch.from_numpy(panels)
    into[:n_whole] = weight[: n_whole * size].view(n_whole, size, n_in).transpose(1, 2)
    if n_out > n_whole * size:
        into[n_whole, :, : n_out - n_whole * size] = weight[n_whole * size :].T
    return panels


def _limit(clip: float | None) -> float:
    return math.inf if clip is None else clip


def _random_rows(width: int) -> Tensor:
    """Two of them, as packed products are never of one."""
    return torch.randn(2, width, generator=torch.Generator().manual_seed(width))


def _ready() -> ModuleType:
    found = _loops()
    if isinstance(found, str):
        raise RuntimeError(f"compiled loops are not to be used here: {found}")
    return found


@functools.cache
def _loops() -> ModuleType | str:
    """The loops, compiled or read from numba's cache, or why there are none."""
    is_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    if is_x86 and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return "this processor has no fused multiply-and-add"
    begin = time.perf_counter()
    try:
        import numba.core.errors  # pyright: ignore[reportMissingImports] -- an extra
    except ModuleNotFoundError:
        return "numba is not installed; to install it: pip install 'pyelmo[fast]'"
    except (ImportError, SystemError) as error:  # made for another version of NumPy, for instance
        return f"numba does not load here: {str(error).splitlines()[0]:.100}"
    try:
        from elmo.embed import compiled_loops
    except numba.core.errors.NumbaError as error:
        return f"numba does not compile here: {str(error).splitlines()[0]:.100}"
    seconds = time.perf_counter() - begin
    if seconds > _SLOW_SECONDS:
        _log.info("compiled loops for LSTM layers in %.1f s; numba keeps them for other processes", seconds)
    return compiled_loops
