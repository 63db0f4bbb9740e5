"""A model's type and place in, the products that suit the machine out, with the reason.

Where weights cannot be packed (see ``products``), every product has one shape, whatever there is to multiply,
and the rest is padding: so no row depends on another there either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elmo.embed.products import (
    PACKED_ROWS,
    Int8Product,
    PackedProduct,
    PartedProduct,
    PlainProduct,
    Product,
    has_bfloat16,
    missing_int8,
    missing_packed,
)
from elmo.errors import ConfigError

PLAIN_ROWS = 32  # the one number of rows of a plain product
PACKED_BLOCK = 256  # rows of a product that is free to take many
PLAIN_BLOCK = 256  # the one number for that elsewhere


@dataclass(frozen=True)
class Kernels:
    """Which products this machine computes with, and why."""

    name: str  # "packed" or "plain"
    precision: str  # of the products: a type of torch's, or "int8"
    reason: str

    @property
    def is_packed(self) -> bool:
        """Whether the number of rows is free."""
        return self.name == "packed"

    @property
    def max_rows(self) -> int:
        """Rows that go together at most."""
        return PACKED_ROWS if self.is_packed else PLAIN_ROWS

    @property
    def max_block(self) -> int:
        """Rows of a product that may take many at once."""
        return PACKED_BLOCK if self.is_packed else PLAIN_BLOCK

    def rows(self, n: int) -> int:
        """How many rows a product takes that needs the first ``n``: never one alone, and few sizes."""
        if not self.is_packed:
            return PLAIN_ROWS
        # each new number of rows costs oneDNN a millisecond of preparation, once
        return max(2, _rounded_up(n, 4) if n > 8 else n)

    def block(self, n: int) -> int:
        """The same for a product of up to ``max_block`` rows."""
        if not self.is_packed:
            return PLAIN_BLOCK
        return _rounded_up(n, 16) if n > 32 else self.rows(n)

    def product(self, weight: Tensor, bias: Tensor | None = None, *, with_tanh: bool = False) -> Product:
        """Products with ``weight`` (out, in) as it is now; tanh of them, if asked."""
        if self.precision == "int8":
            return Int8Product(weight.float(), None if bias is None else bias.float(), with_tanh=with_tanh)
        if not self.is_packed:
            return PlainProduct(weight, bias, with_tanh=with_tanh)
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        return PackedProduct(weight.to(dtype), None if bias is None else bias.to(dtype), with_tanh=with_tanh)

    def fine_product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """The same with smaller errors, for what everything else is made of: see ``PartedProduct``."""
        if self.is_packed and self.precision == "float32":
            return PartedProduct(weight.float(), None if bias is None else bias.float())
        return self.product(weight, bias)

    def exact_product(self, weight: Tensor) -> Product:
        """The same without rounding to eight bits."""
        if self.precision == "int8":
            return PackedProduct(weight.float(), None, with_tanh=False)
        return self.product(weight)


def choose(like: Tensor, *, is_int8: bool = False) -> Kernels:
    """The kernels for weights of the type and device of ``like``; ``ConfigError``: there is no int8 here."""
    dtype = str(like.dtype).removeprefix("torch.")
    is_cpu = like.device.type == "cpu"
    if is_int8:
        missing = missing_packed() or missing_int8() if is_cpu else "int8 is for processors"
        if missing:
            raise ConfigError(f"{missing}; use float32")
        return Kernels("packed", "int8", "oneDNN and units for products of eight bits are here")
    if not is_cpu:
        return plain(like, f"packed weights are for processors, and this model is on {like.device.type}")
    if like.dtype == torch.float64:
        return plain(like, "packed weights are float32 at most, and this model's are float64")
    missing = missing_packed()
    if missing:
        return plain(like, missing)
    if like.dtype == torch.float32:
        return Kernels("packed", "float32", "oneDNN is here, and a row's numbers do not depend on others")
    if like.dtype == torch.bfloat16 and has_bfloat16():
        return Kernels("packed", "bfloat16", "oneDNN and units for bfloat16 are here")
    return Kernels(
        "packed", "float32", f"weights are {dtype}, products are not: this processor has no units for them"
    )


def plain(like: Tensor, reason: str) -> Kernels:
    """Products of one shape, which any machine has."""
    return Kernels("plain", str(like.dtype).removeprefix("torch."), reason)


def _rounded_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
