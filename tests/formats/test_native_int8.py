"""Models that are stored as int8 matrices with a scale for each row."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo import Elmo
from elmo.errors import ChecksumError, FormatError, OutputError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, SoftmaxWeights, convert, describe, fingerprint, load
from elmo.storage import tensors
from tests.formats.test_native import content, read_with_softmax, rewrite_sums
from tests.formats.tiny import WORDS, assert_same_model, assert_same_tensor, tiny_model

PARTS: dict[str, Any] = {"softmax": True, "warm": True, "mix": True, "alphabet": "unicode", "token": "both"}
MATRIX = "forward_stack.0.input_weight"


@pytest.fixture
def model() -> Pretrained:
    return tiny_model(**PARTS)


@pytest.fixture
def folder(model: Pretrained, tmp_path: Path) -> Path:
    native.write(model, tmp_path / "int8", dtype="int8")
    return tmp_path / "int8"


def stored(folder: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / name)


def replace_tensors(folder: Path, changes: dict[str, torch.Tensor], name: str = "model.safetensors") -> None:
    """Replace some tensors of a file; a hostile publisher updates the checksums, too."""
    safetensors.torch.save_file(stored(folder, name) | changes, folder / name, metadata={"format": "pt"})
    rewrite_sums(folder)


# --- values --------------------------------------------------------------------------------------


def test_a_weight_is_exactly_its_number_times_the_scale_of_its_row(model: Pretrained, folder: Path) -> None:
    found = native.read(folder)
    assert found.softmax is not None
    files = {"model.safetensors": found.weights, "softmax.safetensors": vars(found.softmax)}
    assert found.softmax.weight is not None  # reads the file
    n_matrices = 0
    for name, weights in files.items():
        raw = stored(folder, name)
        for key in [key for key in raw if f"{key}.scale" in raw]:
            exact = raw[key].double() * raw[f"{key}.scale"].double()[:, None]
            assert raw[key].dtype == torch.int8
            assert torch.equal(weights[key].double(), exact)
            n_matrices += 1
    assert n_matrices == 2 + 2 + 12 + 1  # words and projection, highway, LSTMs, softmax


def test_every_value_is_within_half_a_step_unless_it_is_clipped(model: Pretrained, folder: Path) -> None:
    raw = stored(folder)
    for name, weight in native.read(folder).weights.items():
        if f"{name}.scale" in raw:
            step = raw[f"{name}.scale"][:, None]
            is_clipped = raw[name].abs() == 127
            assert ((weight - model.weights[name]).abs() <= step * 0.5001)[~is_clipped].all()
            assert (raw[name].abs().amax(dim=1)[step[:, 0] > 0] == 127).all()


def test_biases_characters_and_the_warm_state_keep_every_bit(model: Pretrained, folder: Path) -> None:
    found = native.read(folder)
    kept = [name for name in model.weights if "bias" in name or "char_embed" in name or "convolutions" in name]
    assert len(kept) == 1 + 2 + 2 + 2 + 1 + 4
    for name in kept:
        assert_same_tensor(found.weights[name], model.weights[name])
    assert found.softmax is not None
    assert model.softmax is not None
    assert_same_tensor(found.softmax.bias, model.softmax.bias)
    assert found.warm is not None
    assert model.warm is not None
    assert_same_tensor(found.warm.cell, model.warm.cell)


def test_a_row_with_an_outlier_is_clipped_where_that_lowers_the_squared_error() -> None:
    row = torch.cat([torch.linspace(-1, 1, 2001), torch.tensor([1.3])])[None]
    numbers, scales = tensors.quantize(row)
    error = float((numbers * scales[:, None] - row).square().sum())
    plain = float(((row / (1.3 / 127)).round() * (1.3 / 127) - row).square().sum())
    assert float(scales) * 127 < 1.3
    assert error < plain


def test_rows_of_zeros_and_of_tiny_numbers_are_zero() -> None:
    numbers, scales = tensors.quantize(torch.tensor([[0.0, -0.0], [1e-44, -1e-40], [2.0, 0.0]]))
    assert scales[:2].tolist() == [0, 0]
    assert numbers[:2].tolist() == [[0, 0], [0, 0]]
    assert numbers[2].tolist() == [127, 0]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(-28, 35))
def test_quantizing_twice_changes_nothing(seed: int, width: int, exponent: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(6, width, generator=generator) * 10.0**exponent
    numbers, scales = tensors.quantize(rows)
    product = numbers.float() * scales[:, None]
    assert torch.equal(product.double(), numbers.double() * scales.double()[:, None])
    again, same = tensors.quantize(product)
    assert torch.equal(again, numbers)
    assert torch.equal(same, scales)
    assert float((product - rows).norm()) <= 0.01 * float(rows.norm())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
def test_weights_that_int8_cannot_store_are_named_and_nothing_is_left_behind(tmp_path: Path, value: float) -> None:
    model = tiny_model()
    weights = {name: weight.clone() for name, weight in model.weights.items()}
    weights[MATRIX][2, 1] = value
    if value == value and abs(value) < float("inf"):
        model = Pretrained(config=model.config, weights=weights, format="tiny")
    else:  # the model itself would be rejected
        vars(model)["weights"] = weights
    with pytest.raises(OutputError, match=rf"as int8: {re.escape(MATRIX)} has values that are out of range"):
        native.write(model, tmp_path / "model", dtype="int8")
    assert list(tmp_path.iterdir()) == []


def test_large_finite_weights_are_stored(tmp_path: Path) -> None:
    model = tiny_model()
    model.weights[MATRIX].fill_(3e38)
    native.write(model, tmp_path / "model", dtype="int8")
    found = native.read(tmp_path / "model").weights[MATRIX]
    assert torch.allclose(found, model.weights[MATRIX], rtol=1e-4)


# --- files ---------------------------------------------------------------------------------------


def test_the_config_states_the_type_and_older_readers_are_told_to_update(model: Pretrained, folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    assert (values["dtype"], values["format_version"]) == ("int8", 2)
    assert "| Precision | int8, with a scale for each row |" in (folder / "README.md").read_text()
    native.write(model, folder.parent / "half", dtype="float16")
    assert json.loads((folder.parent / "half" / "config.json").read_text())["format_version"] == 1


def test_int8_takes_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    words = (*WORDS, *(f"w{k}" for k in range(991)))
    model = tiny_model(softmax=True, words=words, state_width=64, cell_width=96, filters=((1, 32), (2, 64)))
    for dtype in ("float32", "float16", "int8"):
        native.write(model, tmp_path / dtype, dtype=dtype)  # pyright: ignore[reportArgumentType]
    sizes = {
        dtype: sum((tmp_path / dtype / name).stat().st_size for name in (native.WEIGHTS, native.SOFTMAX))
        for dtype in ("float32", "float16", "int8")
    }
    assert sizes["int8"] < 0.32 * sizes["float32"]  # with biases and characters in float32, and headers
    assert sizes["int8"] < 0.62 * sizes["float16"]


def test_converting_again_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "again", dtype="int8")
    assert content(tmp_path / "again") == content(folder)


def test_converting_to_float32_and_back_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "float32")
    assert_same_model(load(tmp_path / "float32"), load(folder))
    convert(tmp_path / "float32", tmp_path / "back", dtype="int8")
    assert content(tmp_path / "back") == content(folder)


def test_the_fingerprint_is_that_of_the_rounded_weights_in_any_format(folder: Path, tmp_path: Path) -> None:
    native.write(tiny_model(softmax=True), tmp_path / "a", dtype="int8")
    convert(tmp_path / "a", tmp_path / "b")
    convert(tmp_path / "a", tmp_path / "c", to="hdf5")
    same = describe(tmp_path / "a").fingerprint
    assert describe(tmp_path / "b").fingerprint == describe(tmp_path / "c").fingerprint == same
    assert same != fingerprint(tiny_model(softmax=True))


def test_vectors_are_those_of_the_same_weights_in_float32(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "float32")
    sentence = ["the", "river", "bank"]
    found, expected = (
        Elmo.from_pretrained(path).encode([sentence], layers="all") for path in (folder, tmp_path / "float32")
    )
    assert np.array_equal(found[0].vectors, expected[0].vectors)


def test_a_loaded_model_is_saved_to_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    Elmo.from_pretrained(folder).save_pretrained(tmp_path / "saved", dtype="int8")
    assert content(tmp_path / "saved") == content(folder)


def test_a_warm_state_is_added(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "model", dtype="int8")
    warm = tiny_model(warm=True).warm
    assert warm is not None
    native.add_warm(tmp_path / "model", warm)
    found = native.read(tmp_path / "model").warm
    assert found is not None
    assert_same_tensor(found.hidden, warm.hidden)


def test_weights_read_into_memory_outlive_their_file(folder: Path) -> None:
    expected, found = native.read(folder), native.read(folder, is_mapped=False)
    assert expected.softmax is not None
    assert expected.softmax.weight is not None  # reads the file
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"\x7f" * path.stat().st_size)  # in place: a mapped tensor would change
    for name, weight in expected.weights.items():
        if f"{name}.scale" in {*found.weights}:
            pytest.fail("scales are not weights")
        if weight.dim() == 2 and "char_embed" not in name:
            assert_same_tensor(found.weights[name], weight)
    assert found.softmax is not None
    assert_same_tensor(found.softmax.weight, expected.softmax.weight)


# --- the softmax on first use --------------------------------------------------------------------


def test_loading_does_not_read_the_softmax(folder: Path) -> None:
    path = folder / "softmax.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1  # a number, which the checks of the header do not see
    path.write_bytes(damaged)
    softmax = native.read(folder).softmax
    assert softmax is not None
    assert softmax.n_words == len(WORDS)
    for _ in range(2):  # the error does not disappear
        with pytest.raises(ChecksumError, match=r"softmax\.safetensors: expected SHA-256"):
            _ = softmax.weight
    with pytest.raises(ChecksumError, match=r"softmax\.safetensors: expected SHA-256"):
        describe(folder)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the memory of a process")
def test_the_softmax_takes_no_memory_before_it_is_used(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from elmo import Elmo
def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])  # kB
Elmo.from_pretrained(sys.argv[1]).pretrained.softmax.weight  # imports what loading needs
before = resident()
softmax = Elmo.from_pretrained(sys.argv[2]).pretrained.softmax
print(resident() - before, len(softmax.weight) and resident() - before)
"""
    native.write(tiny_model(softmax=True), tmp_path / "tiny", dtype="int8")
    small = tiny_model(state_width=64, cell_width=64, n_layers=1)
    softmax = SoftmaxWeights(torch.full((160_000, 64), 127 / 128), torch.zeros(160_000))  # exact, so quick to write
    large = Pretrained(config=small.config, weights=small.weights, format="tiny", softmax=softmax)
    native.write(large, tmp_path / "large", dtype="int8")
    arguments = [sys.executable, "-c", code, tmp_path / "tiny", tmp_path / "large"]
    unused, used = map(int, subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.split())
    assert unused < 8_000  # kB; the numbers alone take 10,000, and float32 40,000
    assert used > 40_000


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-3, -float("inf"), 3e36])
def test_hostile_scales_are_refused_with_their_row(folder: Path, value: float) -> None:
    scales = stored(folder)[f"{MATRIX}.scale"]
    scales[5] = value
    replace_tensors(folder, {f"{MATRIX}.scale": scales})
    expected = rf"{re.escape(MATRIX)}\.scale: scales must be in 0\.\.2\.66e\+36; found .* in row 5"
    with pytest.raises(FormatError, match=expected):
        native.read(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_hostile_scales_of_the_softmax_are_refused_on_first_use(folder: Path, value: float) -> None:
    scales = stored(folder, "softmax.safetensors")["weight.scale"]
    scales[2] = value
    replace_tensors(folder, {"weight.scale": scales}, "softmax.safetensors")
    native.read(folder)
    with pytest.raises(FormatError, match=r"softmax\.safetensors: weight\.scale: scales must be in .* in row 2"):
        read_with_softmax(folder)
    with pytest.raises(FormatError, match=r"weight\.scale: scales must be in"):
        native.read(folder, is_mapped=False)


def test_the_largest_scale_gives_finite_weights_with_every_number(folder: Path) -> None:
    raw = stored(folder)
    numbers, scales = raw[MATRIX], raw[f"{MATRIX}.scale"]
    numbers[0], scales[0] = -128, torch.finfo(torch.float32).max / 128
    replace_tensors(folder, {MATRIX: numbers, f"{MATRIX}.scale": scales})
    assert native.read(folder).weights[MATRIX][0].tolist() == [-torch.finfo(torch.float32).max] * 4


def test_a_bias_that_is_not_finite_is_named(folder: Path) -> None:
    replace_tensors(folder, {"forward_stack.0.bias": torch.full((24,), torch.nan)})
    with pytest.raises(FormatError, match=r"model: forward_stack\.0\.bias contains values that are not finite$"):
        native.read(folder)


def test_every_mismatch_is_reported_at_once(folder: Path) -> None:
    raw = stored(folder)
    del raw["backward_stack.1.projection.scale"]
    raw[f"{MATRIX}.scale"] = torch.ones(6)  # one scale for each cell
    raw["forward_stack.0.state_weight.scale"] = torch.ones(24).half()
    raw["forward_stack.0.projection"] = raw["forward_stack.0.projection"].float()
    raw["forward_stack.1.bias"] = torch.zeros(24, dtype=torch.int8)
    raw["forward_stack.1.bias.scale"] = torch.ones(24)
    safetensors.torch.save_file(raw, folder / "model.safetensors", metadata={"format": "pt"})
    rewrite_sums(folder)
    with pytest.raises(FormatError) as caught:
        native.read(folder)
    for problem in (
        "missing backward_stack.1.projection.scale (4,)",
        "unexpected 'forward_stack.1.bias.scale'",
        f"{MATRIX}.scale: expected (24,), found (6,)",
        "forward_stack.0.state_weight.scale: dtype must be F32; found F16",
        "forward_stack.0.projection: dtype must be I8; found F32",
        "forward_stack.1.bias: dtype must be one of F64, F32, F16, BF16; found I8",
    ):
        assert problem in str(caught.value)


@pytest.mark.parametrize(("dtype", "version"), [("float16", 2), (None, 2), ("int8", 1), (["int8"], 2)])
def test_a_type_that_does_not_fit_the_version_is_refused(folder: Path, dtype: Any, version: int) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": dtype, "format_version": version}))
    rewrite_sums(folder)
    with pytest.raises(FormatError, match=r"format_version must be [12] for these parts and this dtype; found [12]"):
        native.read(folder)


@pytest.mark.parametrize("to", ["hdf5", "onnx"])
def test_other_formats_refuse_int8(folder: Path, tmp_path: Path, to: Any) -> None:
    from elmo.errors import ConfigError

    with pytest.raises(ConfigError, match="dtype must be float32"):
        convert(folder, tmp_path / "out", to=to, dtype="int8")
