"""Matrix products: which kernel multiplies on this machine, and weights packed for it.

The sum of floating-point numbers depends on the order of addition, and libraries choose this order by the
shape of the matrices. A sentence must get the same bits in any batch, so the engine uses only products in
which a row does not depend on the other rows:

- packed: oneDNN with weights packed beforehand gives a row the same bits among any number of rows from two
  on. This is the fastest kernel on a CPU, in float32 or bfloat16.
- int8: sums of whole numbers do not depend on the order. Part of the packed kernels.
- plain: torch's own products, always of the same shape and padded. Works everywhere.

Each shape of weight is tested at run time before the engine relies on it. ``choose_kernels`` selects the
kernels for a model; a ``Kernels`` object makes the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.engine.compiled import CompiledError, CompiledProduct, Library, load_library
from elmo.errors import ConfigError

PACKED_ROWS = 128  # number of rows that packed weights are laid out for
# Number of rows of every plain product. A multiple of 32, the floats that torch's vector loops process at
# once: a remainder would go through scalar code, whose sigmoid differs in the last bit.
FIXED_ROWS = 32
BLOCK_ROWS = 256  # number of rows of a product that can take many steps at once


@dataclass(frozen=True)
class Kernels:
    """The kind of matrix products that a model uses on this machine."""

    name: str  # "compiled", "packed" or "plain"
    precision: str  # of the products: the name of a torch type, or "int8"
    reason: str  # why these kernels were chosen
    library: Library | None = None  # the compiled kernels

    @property
    def is_packed(self) -> bool:
        """Whether products use oneDNN with packed weights."""
        return self.name == "packed"

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of one recurrent step."""
        if self.library is not None:
            return self.library.max_slots
        return PACKED_ROWS if self.is_packed else FIXED_ROWS

    def padded_rows(self, n: int) -> int:
        """Number of rows to multiply if ``n`` are needed."""
        if self.library is not None:
            return n
        if not self.is_packed:
            return FIXED_ROWS
        # One row alone may have other bits. oneDNN needs about 1 ms to prepare each new number of rows.
        return max(2, _round_up(n, 4) if n > 8 else n)

    def padded_block(self, n: int) -> int:
        """Number of rows to multiply if ``n``, at most ``BLOCK_ROWS``, are needed at once."""
        if self.library is not None:
            return n
        if not self.is_packed:
            return BLOCK_ROWS
        return _round_up(n, 16) if n > 32 else self.padded_rows(n)

    def product(self, weight: Tensor, bias: Tensor | None = None, *, with_tanh: bool = False) -> Product:
        """Prepare products with a copy of ``weight`` (out, in)."""
        if self.library is not None:
            return CompiledProduct(self.library, weight, bias, self.precision, with_tanh=with_tanh)
        if self.precision == "int8":
            return Int8Product(weight.float(), None if bias is None else bias.float(), with_tanh=with_tanh)
        if not self.is_packed:
            return PlainProduct(weight, bias, with_tanh=with_tanh)
        dtype = torch.bfloat16 if self.precision == "bfloat16" else torch.float32
        return PackedProduct(weight.to(dtype), None if bias is None else bias.to(dtype), with_tanh=with_tanh)

    def accurate_product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """Prepare products with smaller rounding errors: see ``SplitProduct``."""
        if self.is_packed and self.precision == "float32":
            return SplitProduct(weight.float(), None if bias is None else bias.float())
        return self.product(weight, bias)

    def unquantized_product(self, weight: Tensor) -> Product:
        """Prepare products that are never rounded to int8."""
        if self.precision == "int8":
            return PackedProduct(weight.float(), None, with_tanh=False)
        return self.product(weight)


def choose_kernels(like: Tensor, *, is_int8: bool = False) -> Kernels:
    """Choose the kernels for weights with the type and device of ``like``.

    Raises a ``ConfigError`` if ``is_int8`` is set and this machine has no int8 products.
    """
    is_cpu = like.device.type == "cpu"
    library, missing = (None, "") if not is_cpu or like.dtype == torch.float64 else _load_compiled()
    if library is not None:
        wanted = "int8" if is_int8 else _dtype_name(like)
        if wanted in library.precisions:
            return Kernels("compiled", wanted, f"compiled for {library.variant}", library)
        if not is_int8:
            reason = f"this CPU has no {wanted} instructions; products use float32"
            return Kernels("compiled", "float32", reason, library)
        missing = f"the kernels for {library.variant} have no int8 products"
    if is_int8:
        problem = check_packed_support() or check_int8_support() if is_cpu else "int8 requires a CPU"
        if problem:
            raise ConfigError(f"{problem}; use float32")
        return Kernels("packed", "int8", f"oneDNN with int8 instructions (VNNI); {missing}")
    if not is_cpu:
        return plain_kernels(like, f"packed weights require a CPU; this model is on {like.device.type}")
    if like.dtype == torch.float64:
        return plain_kernels(like, "packed weights are float32 at most; this model is float64")
    problem = check_packed_support()
    if problem:
        return plain_kernels(like, problem)
    if like.dtype == torch.float32:
        return Kernels("packed", "float32", f"oneDNN; {missing}")
    if like.dtype == torch.bfloat16 and has_bfloat16():
        return Kernels("packed", "bfloat16", f"oneDNN with bfloat16 instructions; {missing}")
    reason = f"this CPU has no {_dtype_name(like)} instructions; products use float32"
    return Kernels("packed", "float32", reason)


def _load_compiled() -> tuple[Library | None, str]:
    """Load the compiled kernels; the second value says why they cannot be used."""
    try:
        return load_library(), ""
    except CompiledError as error:
        return None, f"no compiled kernels: {error}"


def plain_kernels(like: Tensor, reason: str) -> Kernels:
    """The kernels that work on every machine, for weights with the type of ``like``."""
    return Kernels("plain", _dtype_name(like), reason)


def check_packed_support() -> str | None:
    """Return why packed products cannot be used here, or None if they can."""
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    if not torch.backends.mkldnn.enabled:
        return "oneDNN is disabled in torch"
    try:  # torch's private functions may change, so call them as the products do
        PackedProduct(torch.ones(2, 2), None, with_tanh=False)
        PackedProduct(torch.ones(2, 2), torch.ones(2), with_tanh=True)
    except _MISSING_OPERATION as error:
        return f"this build of torch cannot pack weights for oneDNN ({_first_line(error)})"
    except InexactError:
        return "packed products of oneDNN are not exact on this machine"
    return None


def check_int8_support() -> str | None:
    """Return why int8 products cannot be used here, or None if they can."""
    if not torch.cpu._is_vnni_supported():
        return "this CPU has no int8 instructions (VNNI)"
    try:
        Int8Product(torch.ones(64, 64), None, with_tanh=False)
    except _MISSING_OPERATION as error:
        return f"this build of torch has no int8 products ({_first_line(error)})"
    except InexactError as error:
        return str(error)
    return None


_MISSING_OPERATION = (AttributeError, RuntimeError, TypeError, NotImplementedError)


def has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions; without them, such products are slower than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def state_dtype(weight: Tensor) -> torch.dtype:
    """The type of states and sums for ``weight``: half precision is used in products only."""
    return weight.dtype if weight.dtype == torch.float64 else torch.float32


# --- products with one weight -------------------------------------------------------------------------------


class Product(Protocol):
    """Computes x · weightᵀ + bias for rows x (row, in), in the type of ``state_dtype``."""

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the product (row, out) plus ``added`` (row, out), for ``Kernels.padded_rows`` rows."""
        ...


class InexactError(Exception):
    """A product is wrong, or its rows depend on each other. Handled inside the engine."""


class PlainProduct:
    """torch's own product, available on every machine."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, with_tanh: bool) -> None:
        self._weight = weight.clone()  # a copy, like packed weights: changes in place must not affect a running call
        self._bias = None if bias is None else bias.clone()
        self._with_tanh = with_tanh
        self._dtype = state_dtype(weight)

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the product; always call it with the same number of rows."""
        result = aligned_linear(x.to(self._weight.dtype), self._weight, self._bias).to(self._dtype)
        result = result if added is None else result.add_(added)
        return result.tanh_() if self._with_tanh else result


_ALIGNMENT = 8  # float32 values of an AVX2 register; a multiple of four, see aligned_linear


def aligned_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    """Compute ``F.linear`` so that the bits of a row do not depend on its position.

    On CPUs without AVX-512, MKL sums the terms of some rows in a different order if the width is not a
    multiple of four. Rows are padded with zeros, which do not change a sum, to a multiple of eight.
    """
    n_missing = -x.size(1) % _ALIGNMENT
    if n_missing:
        x, weight = F.pad(x, (0, n_missing)), F.pad(weight, (0, n_missing))
    if out is None:
        return F.linear(x, weight, bias)
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)


_is_exact: dict[tuple[object, ...], bool] = {}  # test results by type, shape and number of threads
_TESTED_ROWS = (2, 3, 8, 17, 32, 64, 100, 128, 256)
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}  # relative to torch's own products


class PackedProduct:
    """oneDNN's product in float32 or bfloat16, with packed weights."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, with_tanh: bool, is_tested: bool = True) -> None:
        """Pack ``weight``; with ``is_tested``, raise ``InexactError`` if its shape fails the test."""
        operations = torch.ops.mkldnn
        self._weight = operations._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
        self._linear = operations._linear_pointwise.default  # this lookup is slow
        self._linear_and_add = operations._linear_pointwise.binary
        self._dtype = weight.dtype
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._activation = "tanh" if with_tanh else "none"
        if not is_tested:
            return
        key = (weight.dtype, *weight.shape, bias is not None, with_tanh, torch.get_num_threads())
        if key not in _is_exact:
            # Random weights, so that a model full of NaN does not decide for other models of this shape.
            like = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).to(weight.dtype)
            zero = None if bias is None else torch.zeros_like(bias)
            trial = PackedProduct(like, zero, with_tanh=with_tanh, is_tested=False)
            _is_exact[key] = trial._passes_test(like)
        if not _is_exact[key]:
            raise InexactError(f"rows depend on each other in products of shape {tuple(weight.shape)}")

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the product of at least two rows; ``added`` and tanh exclude each other."""
        if self._dtype != torch.float32:
            x = x.to(self._dtype)
            result = self._linear(x, self._weight, self._bias, self._activation, [], "").float()
            return result if added is None else result.add_(added)
        if added is None:
            return self._linear(x, self._weight, self._bias, self._activation, [], "")
        return self._linear_and_add(x, added, self._weight, self._bias, "add")

    def _passes_test(self, weight: Tensor) -> bool:
        """Whether results are right and a row has the same bits among any number of rows."""
        generator = torch.Generator().manual_seed(0)
        n, n_in = max(_TESTED_ROWS), weight.size(1)
        x = torch.randn(n, n_in, generator=generator)
        bias = None if self._bias is None else self._bias.float()
        reference = F.linear(x, weight.float(), bias)
        tolerance = _TOLERANCE[weight.dtype] * max(1.0, float(reference.abs().max()))
        added = torch.randn(n, len(weight), generator=generator)
        cases: list[tuple[Tensor | None, Tensor]] = [(None, reference), (added, reference + added)]
        if self._activation == "tanh":
            cases = [(None, reference.tanh())]
        for extra, expected in cases:
            whole = self(x, extra)
            if float((whole - expected).abs().max()) > tolerance:
                return False
            for size in _TESTED_ROWS:
                for rows in (slice(size), slice(n - size, n)):
                    if not torch.equal(self(x[rows], None if extra is None else extra[rows]), whole[rows]):
                        return False
        return True


class SplitProduct:
    """Packed products of parts of each row, added up.

    oneDNN adds 512 numbers or more in one sum, and the rounding error grows with their number. Split, the
    error is as small as that of torch's own products, at a small cost in time.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._size = split_size(weight.size(1))
        first, *others = weight.split(self._size, dim=1)
        self._first = PackedProduct(first, bias, with_tanh=False)
        self._others = [PackedProduct(part, None, with_tanh=False) for part in others]

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the product of at least two rows."""
        head, *tail = x.split(self._size, dim=1)
        result = self._first(head, added)
        for part, product in zip(tail, self._others, strict=True):
            result = product(part, result)
        return result


def split_size(n_in: int) -> int:
    """Number of inputs per part of a ``SplitProduct``: at least 256, in at most eight parts."""
    return max(256, -(-n_in // 8))


_INT8_MAX = 127
_UINT8_ZERO = 128  # oneDNN's fast int8 products take unsigned inputs


class Int8Product:
    """Weights rounded to int8 with one scale per output; inputs with one scale per row, computed per call."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, with_tanh: bool) -> None:
        scale = (weight.abs().amax(dim=1) / _INT8_MAX).clamp_min(torch.finfo(torch.float32).tiny)
        rounded = (weight / scale[:, None]).round().clamp(-_INT8_MAX, _INT8_MAX).to(torch.int8)
        self._scale = scale
        self._zero_points = torch.zeros(len(weight), dtype=torch.int32)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._linear = torch.ops.onednn.qlinear_pointwise.default
        self._bias = bias
        self._with_tanh = with_tanh
        key = (torch.int8, *weight.shape, torch.get_num_threads())
        if key not in _is_exact:
            _is_exact[key] = self._passes_test(rounded)
        if not _is_exact[key]:
            raise InexactError(f"int8 products of shape {tuple(weight.shape)} are wrong on this machine")

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Compute the product of any number of rows."""
        scale = (x.abs().amax(dim=1, keepdim=True) / _INT8_MAX).clamp_min_(torch.finfo(torch.float32).tiny)
        rounded = (x / scale).add_(_UINT8_ZERO + 0.5).to(torch.uint8)  # the conversion truncates
        result = self._multiply(rounded, self._scale).mul_(scale)
        if self._bias is not None:
            result.add_(self._bias)
        if added is not None:
            result.add_(added)
        return result.tanh_() if self._with_tanh else result

    def _multiply(self, x: Tensor, scale: Tensor) -> Tensor:
        """Multiply (x − ``_UINT8_ZERO``) by the whole-number weights and by ``scale`` (out,)."""
        return self._linear(
            x, 1.0, _UINT8_ZERO, self._weight, scale, self._zero_points, None, 1.0, 0, torch.float32,
            "none", [], "",
        )  # fmt: skip

    def _passes_test(self, rounded: Tensor) -> bool:
        """Whether sums are exact; some CPUs saturate them at 16 bits."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (5, rounded.size(1)), generator=generator).to(torch.uint8)
        x[:2] = torch.tensor([[255], [0]])  # the extremes
        expected = ((x.double() - _UINT8_ZERO) @ rounded.double().t()).float()
        ones = torch.ones_like(self._scale)
        return all(
            torch.equal(self._multiply(x[rows], ones), expected[rows]) for rows in (slice(5), slice(1), slice(1, 3))
        )


# --- products for training ----------------------------------------------------------------------------------


def write_matmul(out: Tensor, left: Tensor, right: Tensor) -> None:
    """Write left · right to ``out``; factors in bfloat16 give a product that is rounded to bfloat16."""
    if left.dtype == out.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left @ right)


def add_matmul(out: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right to ``out``."""
    if left.dtype == out.dtype:
        out.addmm_(left, right)
    else:
        out += left @ right


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return f"{str(error).splitlines()[0]:.80}"


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
