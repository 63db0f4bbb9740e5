"""Two factors in, their matrix product out, where there is a place for it.

The factors may be rounded to bfloat16 before; the product is then rounded too, but not what holds it.

A weight in, products with it out: packed for oneDNN, in whole numbers of eight bits, or torch's own.

Floating-point sums depend on the order in which a library adds them up, and libraries choose that order by
the shape of the matrices. oneDNN, with its weights packed beforehand, gives a row the same bits among any
number of rows from two on; whole numbers have no order to depend on. Neither is taken on trust: each shape of
weight is tried out before it is relied on.

A model's type and place in, the products that suit the machine out, with the reason.

Where weights cannot be packed (see ``products``), every product has one shape, whatever there is to multiply,
and the rest is padding: so no row depends on another there either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.errors import ConfigError


def add_product(to: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right to ``to``."""
    if left.dtype == to.dtype:
        to.addmm_(left, right)
    else:
        to += left @ right


def set_product(to: Tensor, left: Tensor, right: Tensor) -> None:
    """Write left · right to ``to``."""
    if left.dtype == to.dtype:
        torch.mm(left, right, out=to)
    else:
        to.copy_(left @ right)


PACKED_ROWS = 128  # that packed weights are laid out for
_TRIED_ROWS = (2, 3, 8, 17, 32, 64, 100, 128, 256)
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}  # beside torch's own products, for sums of about 1
_PART, _MOST_PARTS = 256, 8  # numbers of a row that are added up in one go at least, and how often at most
_LEVELS = 127  # of a number in eight bits, either side of zero
_ZERO = 128  # oneDNN's fast products take inputs without a sign
_ALIGNED = 8  # numbers of a row, a multiple of which a plain product adds up


class Product(Protocol):
    """Rows (row, in) to x · weightᵀ + bias (row, out), in the type that states are kept in."""

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The product, and ``added`` (row, out) on top. Rows are as many as ``Kernels`` says."""
        ...


class InexactError(Exception):
    """A product whose rows depend on each other, or are wrong; never seen outside this room."""


def state_dtype(weight: Tensor) -> torch.dtype:
    """In what states and sums are kept: half precision is for products only."""
    return weight.dtype if weight.dtype == torch.float64 else torch.float32


def aligned_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """``F.linear`` in which a row's bits do not depend on its place among the others; into ``out``, if given.

    MKL, on processors without AVX-512, adds up some rows of one product in another order than the rest, where
    their width is no multiple of four; zeros at the end of a row change no sum.
    """
    missing = -x.size(1) % _ALIGNED
    if missing:
        x, weight = F.pad(x, (0, missing)), F.pad(weight, (0, missing))
    if out is None:
        return F.linear(x, weight, bias)
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)


class PlainProduct:
    """torch's own, which any machine has."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, with_tanh: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._with_tanh = with_tanh
        self._dtype = state_dtype(weight)

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The product, of one number of rows: see ``Kernels``."""
        found = aligned_linear(x.to(self._weight.dtype), self._weight, self._bias).to(self._dtype)
        found = found if added is None else found.add_(added)
        return found.tanh_() if self._with_tanh else found


class PackedProduct:
    """oneDNN's, float32 or bfloat16, with weights laid out for it beforehand."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, with_tanh: bool, is_trusted: bool = False
    ) -> None:
        operations = torch.ops.mkldnn
        self._weight = operations._reorder_linear_weight(weight.contiguous(), PACKED_ROWS)
        self._linear = operations._linear_pointwise.default  # looked up once: that is slow
        self._linear_and_add = operations._linear_pointwise.binary
        self._dtype = weight.dtype
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._activation = "tanh" if with_tanh else "none"
        key = (weight.dtype, *weight.shape, bias is not None, with_tanh, torch.get_num_threads())
        if is_trusted:
            return
        if key not in _IS_EXACT:
            # With random numbers, for every model of that shape: one that is all NaN decides for no other.
            like = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)).to(weight.dtype)
            zero = None if bias is None else torch.zeros_like(bias)
            tried = PackedProduct(like, zero, with_tanh=with_tanh, is_trusted=True)
            _IS_EXACT[key] = tried._is_exact(like)
        if not _IS_EXACT[key]:
            raise InexactError(f"a row's numbers depend on other rows for weights of {tuple(weight.shape)}")

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The product, of two rows or more; nothing is added to a tanh."""
        if self._dtype != torch.float32:
            x = x.to(self._dtype)
            found = self._linear(x, self._weight, self._bias, self._activation, [], "").float()
            return found if added is None else found.add_(added)
        if added is None:
            return self._linear(x, self._weight, self._bias, self._activation, [], "")
        return self._linear_and_add(x, added, self._weight, self._bias, "add")

    def _is_exact(self, weight: Tensor) -> bool:
        """Whether rows get the same bits anywhere among any number of rows, and the right ones."""
        generator = torch.Generator().manual_seed(0)
        n, n_in = max(_TRIED_ROWS), weight.size(1)
        x = torch.randn(n, n_in, generator=generator)
        bias = None if self._bias is None else self._bias.float()
        reference = F.linear(x, weight.float(), bias)
        allowed = _TOLERANCE[weight.dtype] * max(1.0, float(reference.abs().max()))
        added = torch.randn(n, len(weight), generator=generator)
        tried: list[tuple[Tensor | None, Tensor]] = [(None, reference), (added, reference + added)]
        if self._activation == "tanh":
            tried = [(None, reference.tanh())]
        for more, right in tried:
            expected = self(x, more)
            if float((expected - right).abs().max()) > allowed:
                return False
            for size in _TRIED_ROWS:
                for rows in (slice(size), slice(n - size, n)):
                    if not torch.equal(self(x[rows], None if more is None else more[rows]), expected[rows]):
                        return False
        return True


def part_size(n_in: int) -> int:
    """How many of a row's numbers a ``PartedProduct`` adds up in one go."""
    return max(_PART, -(-n_in // _MOST_PARTS))


class PartedProduct:
    """Packed products of parts of a row, whose sums are added up in turn.

    oneDNN adds up 512 numbers or more in one go, and the error grows with their number. In parts it is as
    close to the truth as torch's own products, and takes a little longer.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._size = part_size(weight.size(1))
        first, *others = weight.split(self._size, dim=1)
        self._first = PackedProduct(first, bias, with_tanh=False)
        self._others = [PackedProduct(part, None, with_tanh=False) for part in others]

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The product, of two rows or more."""
        head, *tail = x.split(self._size, dim=1)
        found = self._first(head, added)
        for part, product in zip(tail, self._others, strict=True):
            found = product(part, found)
        return found


class Int8Product:
    """Weights in 255 levels, a scale for each output; inputs as well, a scale for each row as it comes."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, with_tanh: bool) -> None:
        scale = (weight.abs().amax(dim=1) / _LEVELS).clamp_min(torch.finfo(torch.float32).tiny)
        rounded = (weight / scale[:, None]).round().clamp(-_LEVELS, _LEVELS).to(torch.int8)
        self._scale = scale
        self._none = torch.zeros(len(weight), dtype=torch.int32)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._linear = torch.ops.onednn.qlinear_pointwise.default
        self._bias = bias
        self._with_tanh = with_tanh
        key = (torch.int8, *weight.shape, torch.get_num_threads())
        if key not in _IS_EXACT:
            _IS_EXACT[key] = self._is_exact(rounded)
        if not _IS_EXACT[key]:
            raise InexactError(f"products of eight bits are wrong here for weights of {tuple(weight.shape)}")

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The product, of any number of rows."""
        scale = (x.abs().amax(dim=1, keepdim=True) / _LEVELS).clamp_min_(torch.finfo(torch.float32).tiny)
        rounded = (x / scale).add_(_ZERO + 0.5).to(torch.uint8)  # which leaves out what is below one
        found = self._whole(rounded).mul_(scale)
        if self._bias is not None:
            found.add_(self._bias)
        if added is not None:
            found.add_(added)
        return found.tanh_() if self._with_tanh else found

    def _whole(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """Whole numbers, less ``_ZERO``, times the weights and ``scale``, that of the weights by itself."""
        factor = self._scale if scale is None else scale
        return self._linear(
            x, 1.0, _ZERO, self._weight, factor, self._none, None, 1.0, 0, torch.float32, "none", [], ""
        )

    def _is_exact(self, rounded: Tensor) -> bool:
        """Whether the sums are those of whole numbers: some processors cut theirs off at 16 bits."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (5, rounded.size(1)), generator=generator).to(torch.uint8)
        x[:2] = torch.tensor([[255], [0]])  # the farthest
        right = (x.double() - _ZERO) @ rounded.double().t()
        ones = torch.ones_like(self._scale)
        found = [self._whole(x[rows], ones) for rows in (slice(5), slice(1), slice(1, 3))]
        wanted = [right.float()[rows] for rows in (slice(5), slice(1), slice(1, 3))]
        return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


_IS_EXACT: dict[tuple[object, ...], bool] = {}  # by type, shape and number of threads, in this process


def missing_packed() -> str | None:
    """What this build of torch lacks for packed products, if anything."""
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    if not torch.backends.mkldnn.enabled:
        return "oneDNN is switched off in torch"
    try:  # names of torch's own, which it may change, as they are called here
        PackedProduct(torch.ones(2, 2), None, with_tanh=False)
        PackedProduct(torch.ones(2, 2), torch.ones(2), with_tanh=True)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError) as error:
        return f"this build of torch has no packed weights for oneDNN ({str(error).splitlines()[0]:.80})"
    except InexactError:
        return "oneDNN's packed products are not exact on this machine"
    return None


def missing_int8() -> str | None:
    """What this machine or build of torch lacks for products of eight bits, if anything."""
    if not torch.cpu._is_vnni_supported():
        return "this processor has no units for products of eight bits (VNNI)"
    try:
        Int8Product(torch.ones(64, 64), None, with_tanh=False)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError) as error:
        return f"this build of torch has no products of eight bits ({str(error).splitlines()[0]:.80})"
    except InexactError as error:
        return str(error)
    return None


def has_bfloat16() -> bool:
    """Whether this processor has units for bfloat16; without them such products are slower than float32."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


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
