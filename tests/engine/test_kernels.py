from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elmo.engine import matmul as kernels
from elmo.engine import matmul as products
from elmo.engine.matmul import InexactError, Kernels, PackedProduct, choose_kernels, plain
from elmo.errors import ConfigError

WEIGHT = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
HAS_INT8 = products.check_packed_support() is None and products.check_int8_support() is None
CHOICES = [plain_kernels(WEIGHT, "asked for"), choose_kernels(WEIGHT)]
if HAS_INT8:
    CHOICES.append(choose_kernels(WEIGHT, is_int8=True))
each = pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: f"{chosen.name} {chosen.precision}")
needs_packed = pytest.mark.skipif(products.check_packed_support() is not None, reason="no packed weights here")
needs_int8 = pytest.mark.skipif(not HAS_INT8, reason="no products of eight bits here")


def rows(n: int, width: int) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n))


@each
def test_a_product_is_that_of_linear_with_what_is_added_on_top(chosen: Kernels) -> None:
    bias = rows(1, 40)[0]
    n = chosen.rows(9)
    x, added = rows(n, 24), rows(n, 40)
    product = chosen.product(WEIGHT, bias)
    right = F.linear(x, WEIGHT, bias)
    allowed = 0.2 if chosen.precision == "int8" else 1e-5  # 24 products, each within 1/127 of about 1
    torch.testing.assert_close(product(x), right, rtol=0, atol=allowed)
    torch.testing.assert_close(product(x, added), right + added, rtol=0, atol=allowed)
    with_tanh = chosen.product(WEIGHT, bias, with_tanh=True)
    torch.testing.assert_close(with_tanh(x), right.tanh(), rtol=0, atol=allowed)


@each
def test_a_row_has_the_same_bits_among_any_rows(chosen: Kernels) -> None:
    one = rows(1, 24)
    for product in (chosen.product(WEIGHT), chosen.product(WEIGHT, with_tanh=True)):
        found = set()
        for n in range(1, chosen.max_rows + 1):
            x = rows(chosen.rows(n), 24)
            x[n - 1] = one
            found.add(product(x)[n - 1].numpy().tobytes())
        assert len(found) == 1


@pytest.mark.parametrize("width", [5, 6, 7, 9, 15, 24, 37])
@pytest.mark.parametrize("n_out", [4, 8, 11, 21, 40])
def test_a_row_of_any_width_has_the_same_bits_at_any_place(width: int, n_out: int) -> None:
    weight, bias, x = rows(n_out, width), rows(1, n_out)[0], rows(kernels.PLAIN_ROWS, width)
    product = plain_kernels(weight, "asked for").product(weight, bias)
    right = product(x)
    torch.testing.assert_close(right, F.linear(x, weight, bias))
    for moved in (torch.arange(len(x)).flip(0), torch.arange(len(x)).roll(1)):
        assert product(x[moved]).equal(right[moved])


@each
def test_rows_cover_what_is_asked_for_and_are_never_one(chosen: Kernels) -> None:
    for n in range(1, chosen.max_rows + 1):
        assert n <= chosen.rows(n) <= chosen.max_rows
        assert chosen.rows(n) >= 2
    for n in range(1, chosen.max_block + 1):
        assert n <= chosen.block(n) <= chosen.max_block


@needs_packed
def test_a_long_sum_in_parts_is_closer_to_the_truth() -> None:
    weight, x = rows(64, 2048), rows(32, 2048)
    truth = F.linear(x.double(), weight.double())
    whole, parts = choose_kernels(weight).product(weight)(x), choose_kernels(weight).fine_product(weight)(x)
    errors = [float((found - truth).square().mean().sqrt()) for found in (whole, parts)]
    assert errors[1] < 0.8 * errors[0]


def test_half_precision_multiplies_in_half_and_adds_up_in_float(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = WEIGHT.bfloat16()
    x = rows(32, 24)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    chosen = choose_kernels(weight)
    found = chosen.product(weight)(x)
    assert (chosen.name, chosen.precision, found.dtype) == ("plain", "bfloat16", torch.float32)
    torch.testing.assert_close(found, F.linear(x, weight.float()), rtol=0, atol=0.1)


@needs_packed
@pytest.mark.parametrize("has_units", [False, True])
def test_bfloat16_has_products_of_its_own_where_the_processor_has_units(
    has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_units and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN cannot even emulate bfloat16 on this processor")
    monkeypatch.setattr(kernels, "has_bfloat16", lambda: has_units)
    weight = WEIGHT.bfloat16()
    chosen = choose_kernels(weight)
    assert (chosen.name, chosen.precision) == ("packed", "bfloat16" if has_units else "float32")
    x = rows(6, 24)
    found = chosen.product(weight)(x)  # emulated here, if need be
    assert found.dtype == torch.float32
    allowed = 0.1 if has_units else 1e-5  # weights are what they are; inputs are rounded too with units
    torch.testing.assert_close(found, F.linear(x, weight.float()), rtol=0, atol=allowed)


@needs_packed
def test_rows_that_depend_on_others_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = rows(33, 21)
    whole = PackedProduct.__call__

    def depends(self, x, added=None):
        return whole(self, x, added) + 1e-6 * len(x)

    monkeypatch.setattr(products, "_IS_EXACT", {})
    chosen = choose_kernels(WEIGHT)
    monkeypatch.setattr(PackedProduct, "__call__", depends)
    with pytest.raises(InexactError, match=r"depend on other rows for weights of \(33, 21\)"):
        chosen.product(weight)


@needs_int8
def test_sums_of_eight_bits_that_are_cut_off_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = products.Int8Product._whole
    monkeypatch.setattr(products, "_IS_EXACT", {})
    monkeypatch.setattr(
        products.Int8Product, "_whole", lambda self, x, scale=None: whole(self, x, scale).clamp(max=32767)
    )
    with pytest.raises(InexactError, match=r"eight bits are wrong here for weights of \(40, 2400\)"):
        choose_int8_product(rows(40, 2400))


def choose_int8_product(weight: torch.Tensor) -> products.Int8Product:
    return products.Int8Product(weight, None, with_tanh=False)


@needs_int8
def test_rows_of_zeros_stay_finite_in_eight_bits() -> None:
    product = choose_int8_product(torch.zeros(16, 8))
    assert (product(torch.zeros(3, 8)) == 0).all()


def test_int8_is_refused_where_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ConfigError, match=r"no units for products of eight bits .*; use float32"):
        choose_kernels(WEIGHT, is_int8=True)
    with pytest.raises(ConfigError, match="int8 is for processors; use float32"):
        choose_kernels(torch.empty(2, device="meta"), is_int8=True)
