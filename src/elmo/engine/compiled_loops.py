"""Arrays of float32 in, LSTM gates and steps out: the loops that numba compiles, in one fixed order of sums.

Every multiply-and-add is written out as one fused operation, and nothing may be reordered, so a number gets
the same bits wherever it stands. Importing this file needs numba; ``compiled`` is its door.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numba  # pyright: ignore[reportMissingImports] -- an extra
import numpy as np
from numba import types  # pyright: ignore[reportMissingImports]
from numba.extending import intrinsic  # pyright: ignore[reportMissingImports]

PANEL = 128  # outputs summed up side by side: their weights lie together, and are read once, in order

# no such folder, full, cut short, or of another version
_CACHE_ERRORS = (
    RuntimeError, OSError, EOFError, pickle.UnpicklingError,
    ValueError, LookupError, AttributeError, ImportError,
)  # fmt: skip

_ZERO, _ONE, _TWO, _HALF = (np.float32(number) for number in (0, 1, 2, 0.5))
_SATURATED = np.float32(20)  # tanh is 1 from 9.02 on; beyond 43 the power of two below would be no float
_PER_LN2, _LN2 = np.float32(1 / np.log(2)), np.float32(np.log(2))
_ROUNDER = np.float32(3 << 22)  # a float this large has no room for fractions: adding it rounds
_ONE_BITS, _EXPONENT_BIT = 0x3F800000, 23  # 1 as a float's bits, and where its exponent begins

# expm1(r) = r + r² · S(r) for |r| ≤ ½ ln 2. S is of degree 4, its largest relative error, 1.3e-8, the
# least that was found by least squares on 2,001 Chebyshev nodes, reweighted 3,000 times by the error left.
# tanh then is within 1.5e-7, and within 1.9e-7 relative, of the true one over all floats.
_S0 = np.float32(0.49999997)
_S1 = np.float32(0.16666543)
_S2 = np.float32(0.0416672)
_S3 = np.float32(0.00836658)
_S4 = np.float32(0.001388251)


def _compiled(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile now, for one signature; kept on disk for the next process where a folder can be written."""

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)
        except _CACHE_ERRORS:
            return numba.njit(signature, nogil=True)(function)

    return compile_it


_part = numba.njit(error_model="numpy")  # a division looks for no zero, which would keep it from vectors


def _intrinsic(build: Callable[..., Any]) -> Callable[..., Any]:
    """An instruction of the compiler's own; numba passes ``build`` a context first, which callers do not."""
    return intrinsic(build)


@_intrinsic
def _fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """The sum a · b + c, rounded once."""
    float32 = types.float32
    if (a, b, c) != (float32,) * 3:
        return None
    return float32(float32, float32, float32), lambda _context, builder, _signature, args: builder.fma(*args)


@_intrinsic
def _power_of_two(_: Any, rounded: Any) -> Any:
    """2ⁿ for n + ``_ROUNDER``: the last bits of that are n, and move to the exponent of 1."""

    def build(context: Any, builder: Any, _: Any, args: Any) -> Any:
        number, real = (context.get_value_type(kind) for kind in (types.int32, types.float32))
        moved = builder.shl(builder.bitcast(args[0], number), number(_EXPONENT_BIT))
        return builder.bitcast(builder.add(moved, number(_ONE_BITS)), real)

    return (types.float32(types.float32), build) if rounded == types.float32 else None


@_part
def _tanh(x: Any) -> Any:
    """By tanh |x| = -m / (2 + m), where m = expm1(-2|x|) = 2ⁿ · expm1(r) + 2ⁿ - 1, and the sign of x."""
    size = abs(x)
    y = -_TWO * (_SATURATED if size > _SATURATED else size)  # a NaN stays one
    rounded = _fma(y, _PER_LN2, _ROUNDER)
    r = _fma(rounded - _ROUNDER, -_LN2, y)
    power = _power_of_two(rounded)
    s = _fma(_fma(_fma(_fma(_S4, r, _S3), r, _S2), r, _S1), r, _S0)
    m = _fma(power, _fma(r * r, s, r), power - _ONE)
    found = m / (_TWO + m)
    return found if x < _ZERO else -found


@_part
def _clipped(x: Any, limit: Any) -> Any:
    x = limit if x > limit else x
    return -limit if x < -limit else x


@_part
def _cells_of_row(gates: Any, cell: Any, merged: Any, clip: Any) -> None:
    n = len(cell)
    i, f, o, j = gates[:n], gates[n : 2 * n], gates[2 * n : 3 * n], gates[3 * n : 4 * n]
    for k in range(n):
        admitted = _fma(_tanh(i[k]), _HALF, _HALF)
        kept = _fma(_tanh(f[k]), _HALF, _HALF)
        shown = _fma(_tanh(o[k]), _HALF, _HALF)
        new = _clipped(_fma(admitted, _tanh(j[k]), kept * cell[k]), clip)
        cell[k] = new
        merged[k] = _tanh(new) * shown


@_part
def _product_of_row(panels: Any, x: Any, chain: Any, start: Any, added: Any, out: Any) -> None:  # noqa: PLR0917
    """Into ``out``: start + W x + added, a new chain of sums each ``chain`` inputs, the first from start."""
    n_in, n_out = len(x), len(out)
    sums = np.empty(PANEL, np.float32)
    for p in range(len(panels)):
        panel, first = panels[p], p * PANEL
        n_here = min(PANEL, n_out - first)  # the last panel is filled up with weights of zero
        for c in range(PANEL):
            sums[c] = start[first + c] if c < n_here else _ZERO
        for begin in range(0, n_in, chain):
            end = min(begin + chain, n_in)
            whole = end - (end - begin) % 4
            for k in range(begin, whole, 4):  # four inputs per visit of a sum
                x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
                w0, w1, w2, w3 = panel[k], panel[k + 1], panel[k + 2], panel[k + 3]
                for c in range(PANEL):
                    sums[c] = _fma(x3, w3[c], _fma(x2, w2[c], _fma(x1, w1[c], _fma(x0, w0[c], sums[c]))))
            for k in range(whole, end):
                for c in range(PANEL):
                    sums[c] = _fma(x[k], panel[k, c], sums[c])
            for c in range(n_here):
                out[first + c] = sums[c] if begin == 0 else out[first + c] + sums[c]
                sums[c] = _ZERO
        for c in range(n_here):
            out[first + c] += added[first + c]


_ROW, _ROWS, _PANELS = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]


@_compiled(types.void(_ROWS, _ROWS, _ROWS, types.float32))
def cells(gates: Any, cell: Any, merged: Any, clip: Any) -> None:
    """Gates i, f, o, j (row, 4 · cell), the first three halved: c moves on, ``merged`` is o · tanh(c)."""
    for row in range(len(gates)):
        _cells_of_row(gates[row], cell[row], merged[row], clip)


@_compiled(types.void(_PANELS, _ROW, types.intp, _ROW, _ROW, _ROW))
def product(panels: Any, x: Any, chain: Any, start: Any, added: Any, out: Any) -> None:  # noqa: PLR0917
    """One row's product: out = start + W x + added."""
    _product_of_row(panels, x, chain, start, added, out)


@_compiled(
    types.void(
        _ROWS, _ROW, types.boolean, _PANELS, types.intp, _PANELS, types.intp,
        types.float32, types.float32, _ROW, _ROW, _ROWS,
    )
)  # fmt: skip
def read_lane(  # noqa: PLR0917
    input_gates: Any, bias: Any, is_continued: Any, states: Any, states_chain: Any, projection: Any,
    projection_chain: Any, cell_clip: Any, state_clip: Any, hidden: Any, cell: Any, outputs: Any,
) -> None:  # fmt: skip
    """One sentence's steps: ``outputs`` (time, width) are filled, ``hidden`` and ``cell`` move on.

    ``input_gates`` (time, 4 · cell) are where the sums over the state begin, with ``bias`` on top, if
    ``is_continued``; or else are added on top, and hold the bias already. A ``projection`` without panels is
    none.
    """
    gates, merged = np.empty(len(bias), np.float32), np.empty(len(cell), np.float32)
    nothing = np.zeros(len(bias), np.float32)
    for step in range(len(outputs)):
        given = input_gates[step]
        start, added = (given, bias) if is_continued else (nothing, given)
        _product_of_row(states, hidden, states_chain, start, added, gates)
        _cells_of_row(gates, cell, merged, cell_clip)
        if len(projection):
            _product_of_row(projection, merged, projection_chain, nothing, nothing, hidden)
            for k in range(len(hidden)):
                hidden[k] = _clipped(hidden[k], state_clip)
        else:
            for k in range(len(hidden)):
                hidden[k] = merged[k]
        for k in range(len(hidden)):
            outputs[step, k] = hidden[k]
