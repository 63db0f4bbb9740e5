"""LSTM loops in float32, compiled by numba, with a fixed order of additions.

Every multiply-add is one explicit fused operation, and the compiler may not reorder any, so a number gets
the same bits at every position. Importing this module requires numba; ``elmo.engine.lstm`` imports it on
demand.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numba  # pyright: ignore[reportMissingImports] -- an extra
import numpy as np
from numba import types  # pyright: ignore[reportMissingImports]
from numba.extending import intrinsic  # pyright: ignore[reportMissingImports]

PANEL = 128  # outputs that are summed together: their weights are adjacent and read once, in order

# The cache folder is missing, full, damaged, or from another version.
_CACHE_ERRORS = (
    RuntimeError, OSError, EOFError, pickle.UnpicklingError,
    ValueError, LookupError, AttributeError, ImportError,
)  # fmt: skip

_ZERO, _ONE, _TWO, _HALF = (np.float32(number) for number in (0, 1, 2, 0.5))
_SATURATED = np.float32(20)  # tanh is 1 from 9.02 on; from 43 on, the power of two below would underflow
_PER_LN2, _LN2 = np.float32(1 / np.log(2)), np.float32(np.log(2))
_ROUNDER = np.float32(3 << 22)  # a float of this size has no fraction bits: adding it rounds
_ONE_BITS, _EXPONENT_BIT = 0x3F800000, 23  # the bits of 1.0, and the first bit of the exponent

# expm1(r) = r + r² · S(r) for |r| ≤ ½ ln 2. S has degree 4 and a maximum relative error of 1.3e-8, from a
# least-squares fit on 2,001 Chebyshev nodes, reweighted by the remaining error 3,000 times. The resulting
# tanh has an absolute error below 1.5e-7 and a relative error below 1.9e-7 for all floats.
_S0 = np.float32(0.49999997)
_S1 = np.float32(0.16666543)
_S2 = np.float32(0.0416672)
_S3 = np.float32(0.00836658)
_S4 = np.float32(0.001388251)


def _compiled(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile now, for one signature; cached on disk if possible."""

    def compile_it(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(signature, nogil=True, cache=True)(function)
        except _CACHE_ERRORS:
            return numba.njit(signature, nogil=True)(function)

    return compile_it


_inlined = numba.njit(error_model="numpy")  # without checks for division by zero, which prevent vectors


def _intrinsic(build: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a compiler intrinsic; numba passes ``build`` a context that callers do not pass."""
    return intrinsic(build)


@_intrinsic
def _fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """Compute a · b + c, rounded once."""
    float32 = types.float32
    if (a, b, c) != (float32,) * 3:
        return None
    return float32(float32, float32, float32), lambda _context, builder, _signature, args: builder.fma(*args)


@_intrinsic
def _power_of_two(_: Any, rounded: Any) -> Any:
    """Compute 2ⁿ from n + ``_ROUNDER``: its last bits are n and are moved to the exponent of 1.0."""

    def build(context: Any, builder: Any, _: Any, args: Any) -> Any:
        number, real = (context.get_value_type(kind) for kind in (types.int32, types.float32))
        moved = builder.shl(builder.bitcast(args[0], number), number(_EXPONENT_BIT))
        return builder.bitcast(builder.add(moved, number(_ONE_BITS)), real)

    return (types.float32(types.float32), build) if rounded == types.float32 else None


@_inlined
def _tanh(x: Any) -> Any:
    """Use tanh |x| = -m / (2 + m), where m = expm1(-2|x|) = 2ⁿ · expm1(r) + 2ⁿ - 1; the sign is that of x."""
    size = abs(x)
    y = -_TWO * (_SATURATED if size > _SATURATED else size)  # NaN stays NaN
    rounded = _fma(y, _PER_LN2, _ROUNDER)
    r = _fma(rounded - _ROUNDER, -_LN2, y)
    power = _power_of_two(rounded)
    s = _fma(_fma(_fma(_fma(_S4, r, _S3), r, _S2), r, _S1), r, _S0)
    m = _fma(power, _fma(r * r, s, r), power - _ONE)
    result = m / (_TWO + m)
    return result if x < _ZERO else -result


@_inlined
def _clip(x: Any, limit: Any) -> Any:
    x = limit if x > limit else x
    return -limit if x < -limit else x


@_inlined
def _update_row(gates: Any, cell: Any, output: Any, clip: Any) -> None:
    """Update one row of cells; see ``update_cells``."""
    n = len(cell)
    i, f, o, j = gates[:n], gates[n : 2 * n], gates[2 * n : 3 * n], gates[3 * n : 4 * n]
    for k in range(n):
        input_gate = _fma(_tanh(i[k]), _HALF, _HALF)
        forget_gate = _fma(_tanh(f[k]), _HALF, _HALF)
        output_gate = _fma(_tanh(o[k]), _HALF, _HALF)
        new = _clip(_fma(input_gate, _tanh(j[k]), forget_gate * cell[k]), clip)
        cell[k] = new
        output[k] = _tanh(new) * output_gate


@_inlined
def _multiply_row(panels: Any, x: Any, chain: Any, start: Any, added: Any, out: Any) -> None:  # noqa: PLR0917
    """Write start + W x + added to ``out``, with a new chain of sums every ``chain`` inputs."""
    n_in, n_out = len(x), len(out)
    sums = np.empty(PANEL, np.float32)
    for p in range(len(panels)):
        panel, first = panels[p], p * PANEL
        n_here = min(PANEL, n_out - first)  # the last panel is filled with zeros
        for c in range(PANEL):
            sums[c] = start[first + c] if c < n_here else _ZERO
        for begin in range(0, n_in, chain):
            end = min(begin + chain, n_in)
            whole = end - (end - begin) % 4
            for k in range(begin, whole, 4):  # four inputs per access to a sum
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
def update_cells(gates: Any, cell: Any, output: Any, clip: Any) -> None:
    """Update ``cell`` with gates i, f, o, j (row, 4 · cell), the first three halved; write o · tanh(c)."""
    for row in range(len(gates)):
        _update_row(gates[row], cell[row], output[row], clip)


@_compiled(types.void(_PANELS, _ROW, types.intp, _ROW, _ROW, _ROW))
def multiply(panels: Any, x: Any, chain: Any, start: Any, added: Any, out: Any) -> None:  # noqa: PLR0917
    """Compute the product of one row: out = start + W x + added."""
    _multiply_row(panels, x, chain, start, added, out)


@_compiled(
    types.void(
        _ROWS, _ROW, types.boolean, _PANELS, types.intp, _PANELS, types.intp,
        types.float32, types.float32, _ROW, _ROW, _ROWS,
    )
)  # fmt: skip
def run_sentence(  # noqa: PLR0917
    input_gates: Any, bias: Any, is_joined: Any, states: Any, states_chain: Any, projection: Any,
    projection_chain: Any, cell_clip: Any, state_clip: Any, hidden: Any, cell: Any, outputs: Any,
) -> None:  # fmt: skip
    """Read one sentence: write ``outputs`` (time, width) and update ``hidden`` and ``cell``.

    If ``is_joined``, the sums over the state start from ``input_gates`` (time, 4 · cell), and ``bias`` is
    added at the end. Otherwise ``input_gates``, which include the bias, are added at the end. There is no
    projection if ``projection`` has no panels.
    """
    gates, cell_output = np.empty(len(bias), np.float32), np.empty(len(cell), np.float32)
    zeros = np.zeros(len(bias), np.float32)
    for step in range(len(outputs)):
        of_input = input_gates[step]
        start, added = (of_input, bias) if is_joined else (zeros, of_input)
        _multiply_row(states, hidden, states_chain, start, added, gates)
        _update_row(gates, cell, cell_output, cell_clip)
        if len(projection):
            _multiply_row(projection, cell_output, projection_chain, zeros, zeros, hidden)
            for k in range(len(hidden)):
                hidden[k] = _clip(hidden[k], state_clip)
        else:
            for k in range(len(hidden)):
                hidden[k] = cell_output[k]
        for k in range(len(hidden)):
            outputs[step, k] = hidden[k]
