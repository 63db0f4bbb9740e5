from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from elmo.engine import compiled, matmul
from elmo.engine.matmul import InexactError, Kernels, PackedProduct, choose_kernels, plain_kernels
from elmo.errors import ConfigError
from tests.engine.cases import BUILT_VARIANTS, is_compiled

WEIGHT = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))
HAS_INT8 = matmul.check_packed_support() is None and matmul.check_int8_support() is None


def list_kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernels]:
    """All kinds of kernels of this machine, for float32 weights."""
    kernels = [plain_kernels(WEIGHT, "for a test")]
    for variant in (*BUILT_VARIANTS, "0"):
        monkeypatch.setenv(compiled.VARIABLE, variant)
        kernels.append(choose_kernels(WEIGHT))
        if HAS_INT8 or is_compiled(variant, "int8"):
            kernels.append(choose_kernels(WEIGHT, is_int8=True))
    return kernels


with pytest.MonkeyPatch.context() as patch:
    ALL_KERNELS = list_kernels(patch)
all_kernels = pytest.mark.parametrize(
    "kernels", ALL_KERNELS, ids=lambda kernels: f"{kernels.name} {kernels.precision}, {kernels.reason}"
)
needs_packed = pytest.mark.skipif(matmul.check_packed_support() is not None, reason="no packed weights on this machine")
needs_int8 = pytest.mark.skipif(not HAS_INT8, reason="no int8 products on this machine")


def rows(n: int, width: int) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n))


@all_kernels
def test_a_product_equals_linear_plus_the_added_rows(kernels: Kernels) -> None:
    bias = rows(1, 40)[0]
    n = kernels.padded_rows(9)
    x, added = rows(n, 24), rows(n, 40)
    product = kernels.product(WEIGHT, bias)
    expected = F.linear(x, WEIGHT, bias)
    tolerance = 0.2 if kernels.precision == "int8" else 1e-5  # 24 products, each within 1/127 of about 1
    torch.testing.assert_close(product(x), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(product(x, added), expected + added, rtol=0, atol=tolerance)
    with_tanh = kernels.product(WEIGHT, bias, with_tanh=True)
    torch.testing.assert_close(with_tanh(x), expected.tanh(), rtol=0, atol=tolerance)


@all_kernels
def test_a_row_has_the_same_bits_among_any_number_of_rows(kernels: Kernels) -> None:
    row = rows(1, 24)
    for product in (kernels.product(WEIGHT), kernels.product(WEIGHT, with_tanh=True)):
        results = set()
        for n in range(1, kernels.max_rows + 1):
            x = rows(kernels.padded_rows(n), 24)
            x[n - 1] = row
            results.add(product(x)[n - 1].numpy().tobytes())
        assert len(results) == 1


@pytest.mark.parametrize("width", [5, 6, 7, 9, 15, 24, 37])
@pytest.mark.parametrize("n_out", [4, 8, 11, 21, 40])
def test_a_row_of_any_width_has_the_same_bits_at_any_position(width: int, n_out: int) -> None:
    weight, bias, x = rows(n_out, width), rows(1, n_out)[0], rows(matmul.FIXED_ROWS, width)
    product = plain_kernels(weight, "for a test").product(weight, bias)
    expected = product(x)
    torch.testing.assert_close(expected, F.linear(x, weight, bias))
    for order in (torch.arange(len(x)).flip(0), torch.arange(len(x)).roll(1)):
        assert product(x[order]).equal(expected[order])


@all_kernels
def test_padded_rows_are_enough_and_never_one_for_torch(kernels: Kernels) -> None:
    for n in range(1, kernels.max_rows + 1):
        assert n <= kernels.padded_rows(n) <= kernels.max_rows
        assert kernels.padded_rows(n) >= (2 if kernels.library is None else 1)
    for n in range(1, matmul.BLOCK_ROWS + 1):
        assert n <= kernels.padded_block(n) <= matmul.BLOCK_ROWS


@pytest.mark.usefixtures("torch_only")
@needs_packed
def test_a_split_product_is_more_accurate_for_long_sums() -> None:
    weight, x = rows(64, 2048), rows(32, 2048)
    truth = F.linear(x.double(), weight.double())
    whole, parts = (choose_kernels(weight).product(weight)(x), choose_kernels(weight).accurate_product(weight)(x))
    errors = [float((result - truth).square().mean().sqrt()) for result in (whole, parts)]
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.usefixtures("torch_only")
def test_half_precision_products_return_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = WEIGHT.bfloat16()
    x = rows(32, 24)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    kernels = choose_kernels(weight)
    result = kernels.product(weight)(x)
    assert (kernels.name, kernels.precision, result.dtype) == ("plain", "bfloat16", torch.float32)
    torch.testing.assert_close(result, F.linear(x, weight.float()), rtol=0, atol=0.1)


@needs_packed
@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize("has_units", [False, True])
def test_bfloat16_products_are_used_if_the_cpu_has_instructions_for_them(
    has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_units and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN cannot even emulate bfloat16 on this processor")
    monkeypatch.setattr(matmul, "has_bfloat16", lambda: has_units)
    weight = WEIGHT.bfloat16()
    kernels = choose_kernels(weight)
    assert (kernels.name, kernels.precision) == ("packed", "bfloat16" if has_units else "float32")
    x = rows(6, 24)
    result = kernels.product(weight)(x)  # emulated if necessary
    assert result.dtype == torch.float32
    tolerance = 0.1 if has_units else 1e-5  # with instructions, inputs are rounded too
    torch.testing.assert_close(result, F.linear(x, weight.float()), rtol=0, atol=tolerance)


@pytest.mark.usefixtures("torch_only")
@needs_packed
def test_rows_that_depend_on_each_other_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = rows(33, 21)
    whole = PackedProduct.__call__

    def depends(self, x, added=None):
        return whole(self, x, added) + 1e-6 * len(x)

    monkeypatch.setattr(matmul, "_is_exact", {})
    kernels = choose_kernels(WEIGHT)
    monkeypatch.setattr(PackedProduct, "__call__", depends)
    with pytest.raises(InexactError, match=r"rows depend on each other in products of shape \(33, 21\)"):
        kernels.product(weight)


@needs_int8
def test_saturated_int8_sums_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = matmul.Int8Product._multiply
    monkeypatch.setattr(matmul, "_is_exact", {})
    monkeypatch.setattr(matmul.Int8Product, "_multiply", lambda self, x, scale: whole(self, x, scale).clamp(max=32767))
    with pytest.raises(InexactError, match=r"int8 products of shape \(40, 2400\) are wrong"):
        int8_product(rows(40, 2400))


def int8_product(weight: torch.Tensor) -> matmul.Int8Product:
    return matmul.Int8Product(weight, None, with_tanh=False)


@needs_int8
def test_rows_of_zeros_stay_finite_in_int8() -> None:
    product = int8_product(torch.zeros(16, 8))
    assert (product(torch.zeros(3, 8)) == 0).all()


@pytest.mark.usefixtures("torch_only")
def test_int8_is_refused_if_the_machine_does_not_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ConfigError, match=r"no int8 instructions .*; use float32"):
        choose_kernels(WEIGHT, is_int8=True)
    with pytest.raises(ConfigError, match="int8 requires a CPU; use float32"):
        choose_kernels(torch.empty(2, device="meta"), is_int8=True)


@needs_int8
def test_compiled_kernels_without_int8_instructions_leave_int8_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [variant for variant in BUILT_VARIANTS if not is_compiled(variant, "int8")]
    for variant in variants:
        monkeypatch.setenv(compiled.VARIABLE, variant)
        kernels = choose_kernels(WEIGHT, is_int8=True)
        assert (kernels.name, kernels.precision, kernels.library) == ("packed", "int8", None)
        assert kernels.reason.endswith(f"; the kernels for {variant} have no int8 products")


def test_a_device_other_than_the_cpu_uses_plain_products() -> None:
    kernels = choose_kernels(torch.empty(2, device="meta"))
    assert (kernels.name, kernels.library) == ("plain", None)
