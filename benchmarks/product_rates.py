"""Measure how fast this machine multiplies large matrices in float32, bfloat16 and int8.

usage: product_rates.py [--threads N] [--rows N]

Other benchmarks use these rates as the limit of the hardware: no program can encode or train faster than its
matrix products, all of them at this rate. The rate of a type is that of the fastest product among several shapes,
by oneDNN with weights packed beforehand or by torch, and of the fastest of 20 repetitions. A type without
instructions on this CPU has no rate; the engine then multiplies in float32.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

ROWS = 128
SHAPES = ((512, 4096), (512, 16384), (2048, 4096))  # (in, out) of the weights
TYPES = ("float32", "bfloat16", "int8")
REPEATS = 20
MAX_LOAD = 0.5


def main() -> None:
    """Print one line per type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    warn_if_busy()
    rates = measure_rates(n_threads=options.threads, n_rows=options.rows)
    print(f"{options.threads} threads, {options.rows} rows")
    for precision in TYPES:
        rate = rates.get(precision)
        text = f"{2e-9 * rate:8,.0f} billion operations/s" if rate else "     not supported by this CPU"
        print(f"{precision:10}{text}")


def measure_rates(
    *, n_threads: int, n_rows: int = ROWS, shapes: Sequence[tuple[int, int]] = SHAPES, types: Sequence[str] = TYPES
) -> dict[str, float]:
    """Measure the multiplications per second of each supported type."""
    import torch

    n_before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    rates: dict[str, float] = {}
    try:
        for n_in, n_out in shapes:
            for precision in types:
                for product in build_products(precision, n_rows, n_in, n_out):
                    rate = n_rows * n_in * n_out / measure_seconds(product)
                    rates[precision] = max(rate, rates.get(precision, 0.0))
    finally:
        torch.set_num_threads(n_before)
    return rates


def build_products(precision: str, n_rows: int, n_in: int, n_out: int) -> list[Callable[[], Any]]:
    """Return the products of one type to time; none if this machine does not support it."""
    import torch

    x, weight = torch.randn(n_rows, n_in), torch.randn(n_out, n_in)
    try:
        if precision == "int8":
            if not torch.cpu._is_vnni_supported():
                return []
            rounded = torch.randint(-127, 128, (n_out, n_in), dtype=torch.int8)
            packed = torch.ops.onednn.qlinear_prepack(rounded, None)
            bytes_ = torch.randint(0, 256, (n_rows, n_in), dtype=torch.uint8)
            scale, zero = torch.ones(n_out), torch.zeros(n_out, dtype=torch.int32)
            quantized = torch.ops.onednn.qlinear_pointwise.default
            last = (packed, scale, zero, None, 1.0, 0, torch.float32, "none", [], "")
            products: list[Callable[[], Any]] = [lambda: quantized(bytes_, 1.0, 128, *last)]
        else:
            if precision == "bfloat16":
                if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
                    return []
                x, weight = x.bfloat16(), weight.bfloat16()
            reordered = torch.ops.mkldnn._reorder_linear_weight(weight, n_rows)
            linear = torch.ops.mkldnn._linear_pointwise.default
            products = [lambda: torch.mm(x, weight.t()), lambda: linear(x, reordered, None, "none", [], "")]
        for product in products:
            product()
    except (AttributeError, RuntimeError, TypeError):  # torch's private operations may change
        return [lambda: torch.mm(x, weight.t())] if precision != "int8" else []
    return products


def measure_seconds(product: Callable[[], Any]) -> float:
    """Measure one product: the fastest repetition, which other processes disturb least.

    If another process uses a core, the threads wait for each other, and most repetitions take whole time slices.
    """
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        product()
        times.append(time.perf_counter() - begin)
    return min(times)


def warn_if_busy() -> None:
    """Warn if other processes use the CPU: shares and ratios are then unreliable."""
    load = os.getloadavg()[0]
    if load > MAX_LOAD:
        print(f"warning: the load of this machine is {load:.1f}; measure when it is idle", file=sys.stderr)


if __name__ == "__main__":
    main()
