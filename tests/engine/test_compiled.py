from __future__ import annotations

import pkgutil
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.embed.elmo import Elmo
from elmo.engine import compiled
from elmo.engine.compiled import CompiledError, CompiledProduct, PackedWeight, load_library
from elmo.engine.lstm import CompiledLstm, FrozenLstm, TorchLstm, freeze_lstm
from elmo.engine.matmul import Kernels, choose_kernels
from elmo.engine.schedule import BatchSchedule
from elmo.engine.token_layer import _freeze_char_cnn
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.token_layer import CharCnn
from tests.engine.cases import BUILT_VARIANTS, FOLDER, is_compiled, no_onednn, random_sentences
from tests.formats.tiny import tiny_model

SENTENCES = random_sentences(40, longest=12)
# width of inputs, width of states, number of cells, clips
LAYERS: dict[str, tuple[int, int, int, float | None]] = {
    "as published": (32, 32, 160, 3.0),
    "sums in several chains": (36, 36, 1111, 0.2),
    "inputs wider than the cache": (1100, 5, 40, 3.0),
    "no projection, no clip": (37, 37, 37, None),
    "wider than a chain": (300, 300, 301, 3.0),
    "one cell": (1, 1, 1, 3.0),
    "one state of two cells": (3, 1, 2, None),
    "whole panels": (64, 64, 128, 0.3),
    "one number more than a panel": (65, 65, 81, 3.0),
}
PRECISIONS = ("float32", "bfloat16", "int8")
every_layer = pytest.mark.parametrize("name", LAYERS)
every_precision = pytest.mark.parametrize("precision", PRECISIONS)
needs_kernels = pytest.mark.skipif(not BUILT_VARIANTS, reason="no compiled kernels on this machine")


@pytest.fixture
def fresh_start() -> Iterator[None]:
    """Load the library again, before and after the test."""
    compiled._load_library.cache_clear()
    yield
    compiled._load_library.cache_clear()


def build_lstm(name: str) -> ProjectedLstm:
    input_width, state_width, n_cells, clip = LAYERS[name]
    torch.manual_seed(0)
    lstm = ProjectedLstm(
        input_width=input_width,
        state_width=state_width,
        cell_width=n_cells,
        cell_clip=clip,
        state_clip=clip,
        forget_bias=1.0,
    )
    torch.nn.init.normal_(lstm.bias, std=0.5)
    return lstm


def compiled_kernels(precision: str = "float32") -> Kernels:
    library = load_library()
    if precision not in library.precisions:
        pytest.skip(f"{library.variant} has no {precision} instructions")
    return Kernels("compiled", precision, "for a test", library)


def run(frozen: FrozenLstm, sentences: list[Tensor], start: LstmState) -> tuple[list[Tensor], LstmState]:
    max_slots = load_library().max_slots
    schedule = BatchSchedule.build([len(s) for s in sentences], max_slots=max_slots, device=torch.device("cpu"))
    rows = torch.from_numpy(schedule.token_rows)
    inputs = torch.zeros(schedule.n_tokens, sentences[0].size(1))
    inputs[rows] = torch.cat(sentences)
    outputs = torch.full((schedule.n_tokens, start.hidden.size(1)), torch.nan)
    last = LstmState(torch.full(start.hidden.shape, torch.nan), torch.full(start.cell.shape, torch.nan))
    frozen.run(inputs, schedule, start, outputs=outputs, last=last)
    return [*outputs[rows].split([len(sentence) for sentence in sentences])], last


def random_state(lstm: ProjectedLstm, n: int) -> LstmState:
    width, n_cells = lstm.state_weight.size(1), len(lstm.bias) // 4
    generator = torch.Generator().manual_seed(n)
    return LstmState(
        torch.randn(n, width, generator=generator) * 0.1, torch.randn(n, n_cells, generator=generator) * 0.1
    )


def random_inputs(lstm: ProjectedLstm, lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(length, lstm.input_weight.size(1), generator=generator) * 0.5 for length in lengths]


@every_layer
@every_precision
@pytest.mark.usefixtures("compiled_variant")
@torch.inference_mode()
def test_a_sentence_has_the_same_bits_alone_and_in_any_batch_and_agrees_with_the_reference(
    name: str, precision: str
) -> None:
    lstm = build_lstm(name)
    # More than 126 sentences: some wait for a slot. The batch shrinks to one slot, step by step.
    lengths = [14, 3, 1, 30, 300, 2] + [k % 7 + 1 for k in range(140)]
    sentences, start = random_inputs(lstm, lengths), random_state(lstm, len(lengths))
    frozen = freeze_lstm(lstm, compiled_kernels(precision))
    assert isinstance(frozen, CompiledLstm)
    together, last = run(frozen, sentences, start)

    for batch in ([0], [1], [2], [3], [4], [5], [0, 1], [5, 4, 3], [*range(20, 33)], [*range(145, -1, -1)]):
        some_start = LstmState(start.hidden[batch], start.cell[batch])
        some, some_last = run(frozen, [sentences[k] for k in batch], some_start)
        for position, k in enumerate(batch):
            assert torch.equal(some[position], together[k])
            assert torch.equal(some_last.hidden[position], last.hidden[k])
            assert torch.equal(some_last.cell[position], last.cell[k])

    for k in (0, 1, 2, 3, 4, 50):
        mask = torch.ones(1, lengths[k], dtype=torch.bool)
        expected, expected_last = lstm(sentences[k][None], mask, LstmState(start.hidden[k, None], start.cell[k, None]))
        if precision == "float32":
            torch.testing.assert_close(together[k], expected[0], rtol=0, atol=2e-6)
            torch.testing.assert_close(last.hidden[k], expected_last.hidden[0], rtol=0, atol=2e-6)
            torch.testing.assert_close(last.cell[k], expected_last.cell[0], rtol=0, atol=2e-6)
        else:
            tolerance = 0.02 if precision == "bfloat16" else 0.05
            assert (together[k] - expected[0]).norm() < tolerance * max(1.0, float(expected.norm()))


@pytest.mark.usefixtures("compiled_variant")
@torch.inference_mode()
def test_one_start_state_may_be_shared_by_all_sentences() -> None:
    lstm = build_lstm("one number more than a panel")
    sentences, shared = random_inputs(lstm, [5, 2, 9, 1, 3]), random_state(lstm, 1)
    frozen = freeze_lstm(lstm, compiled_kernels())
    copies = LstmState(shared.hidden.repeat(5, 1), shared.cell.repeat(5, 1))
    expected, expected_last = run(frozen, sentences, copies)
    result, last = run(frozen, sentences, LstmState(shared.hidden.expand(5, -1), shared.cell.expand(5, -1)))
    torch.testing.assert_close(
        (result, last.hidden, last.cell), (expected, expected_last.hidden, expected_last.cell), rtol=0, atol=0
    )
    columns = LstmState(copies.hidden.t().contiguous().t(), copies.cell.t().contiguous().t())
    assert torch.equal(torch.cat(run(frozen, sentences, columns)[0]), torch.cat(expected))


def compiled_model(**options) -> Elmo:
    return Elmo(tiny_model("chars", cell_width=40, state_width=20, filters=((1, 8), (2, 13), (5, 70))), **options)


@every_precision
@pytest.mark.usefixtures("compiled_variant")
def test_a_whole_model_gives_the_same_bits_alone_and_in_any_batch_and_order(precision: str) -> None:
    if precision == "int8":
        compiled_kernels(precision)
    elmo = compiled_model(dtype=precision)
    assert elmo.kernels.name == "compiled"
    order = list(range(len(SENTENCES)))
    random.Random(1).shuffle(order)
    together = elmo.encode(SENTENCES, layers="all")
    shuffled = elmo.encode([SENTENCES[k] for k in order], layers="all", batch_size=5)
    for position, k in enumerate(order):
        alone = elmo.encode([SENTENCES[k]], layers="all")[0].vectors
        assert alone.tobytes() == together[k].vectors.tobytes() == shuffled[position].vectors.tobytes()


@needs_kernels
def test_all_x86_variants_have_the_same_bits_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    results = set()
    for variant in BUILT_VARIANTS:
        monkeypatch.setenv(compiled.VARIABLE, variant)
        elmo = compiled_model()
        assert elmo.kernels.reason == f"compiled for {variant}"
        results.add(b"".join(encoding.vectors.tobytes() for encoding in elmo.encode(SENTENCES, layers="all")))
    assert len(results) == 1


@pytest.mark.usefixtures("compiled_variant")
def test_low_precision_depends_on_the_instructions_of_a_variant(compiled_variant: str) -> None:
    kernels = choose_kernels(torch.ones(1, dtype=torch.bfloat16))
    if is_compiled(compiled_variant, "bfloat16"):
        assert (kernels.name, kernels.precision) == ("compiled", "bfloat16")
    else:
        assert (kernels.name, kernels.precision) == ("compiled", "float32")
        assert kernels.reason == "this CPU has no bfloat16 instructions; products use float32"


# --- functions of one number --------------------------------------------------------------------------------


def tanh(x: np.ndarray) -> np.ndarray:
    """Compute tanh with a character CNN whose filters are zero."""
    cnn = CharCnn(n_characters=2, char_width=1, filters=[(1, len(x))], n_highway=0, activation="tanh")
    with torch.no_grad():
        cnn.convolutions[0].weight.zero_()  # pyright: ignore
        cnn.convolutions[0].bias.copy_(torch.from_numpy(x))  # pyright: ignore
        return _freeze_char_cnn(cnn, compiled_kernels())(torch.ones(1, 3, dtype=torch.int64))[0].numpy()


@pytest.mark.usefixtures("compiled_variant")
def test_tanh_is_accurate_odd_and_saturates_at_one() -> None:
    bits = np.arange(np.float32(1e-7).view(np.int32), np.float32(100).view(np.int32), 1011, dtype=np.int32)
    x = bits.view(np.float32)
    result, exact = tanh(x), np.tanh(x.astype(np.float64))
    assert np.abs(result - exact).max() < 1.6e-7
    assert np.abs(result / exact - 1).max() < 2e-7
    assert (tanh(-x) == -result).all()
    special = np.array([9.1, 20, 1e30, np.inf, -9.1, -np.inf, 0], dtype=np.float32)
    assert (tanh(special) == [1, 1, 1, 1, -1, -1, 0]).all()
    assert np.isnan(tanh(np.array([np.nan], dtype=np.float32))).all()


@pytest.mark.usefixtures("compiled_variant")
def test_a_number_has_the_same_bits_at_every_position_of_a_vector() -> None:
    x = np.linspace(-3, 3, 150, dtype=np.float32)
    whole = tanh(x)
    for n in range(1, 76):
        for first in (0, 75 - n, 1):
            assert (tanh(x[first : first + n]) == whole[first : first + n]).all()


# --- products -----------------------------------------------------------------------------------------------


@every_precision
@pytest.mark.parametrize(("n_out", "n_in"), [(1, 1), (3, 5), (64, 64), (65, 255), (130, 2100)])
@pytest.mark.usefixtures("compiled_variant")
def test_a_product_equals_linear_and_a_row_has_the_same_bits_among_any_rows(
    precision: str, n_out: int, n_in: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(n_out, n_in, generator=generator), torch.randn(n_out, generator=generator)
    x = torch.randn(260, n_in, generator=generator)
    library = compiled_kernels(precision).library
    assert library is not None
    product = CompiledProduct(library, weight, bias, precision)
    result, exact = product(x), torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    relative = {"float32": 1e-6, "bfloat16": 5e-3, "int8": 2e-2}[precision]
    assert (result - exact).norm() < relative * exact.norm()
    for rows in ([0], [259], [3, 2, 1], [*range(200, 13, -1)]):
        assert torch.equal(product(x[rows]), result[rows])
    assert product(x[:0]).shape == (0, n_out)


@pytest.mark.usefixtures("compiled_variant")
def test_int8_rows_of_zeros_and_of_tiny_numbers_stay_finite() -> None:
    library = compiled_kernels("int8").library
    assert library is not None
    product = CompiledProduct(library, torch.randn(16, 8), None, "int8")
    x = torch.tensor([0.0, 1e-44, 1e-31, 1e-25])[:, None].expand(4, 8)
    assert (product(x)[:3].abs() < 1e-30).all()
    assert product(x).isfinite().all()
    zero = CompiledProduct(library, torch.zeros(16, 8), None, "int8")
    assert (zero(torch.randn(3, 8)) == 0).all()


@pytest.mark.parametrize("width", [1, 8, 23, 64, 65])
@pytest.mark.usefixtures("compiled_variant")
def test_nan_weights_give_nan_and_do_not_hang(width: int) -> None:
    lstm = build_lstm("as published")
    with torch.no_grad():
        for weight in lstm.parameters():
            weight.fill_(torch.nan)
    for precision in load_library().precisions:
        frozen = freeze_lstm(lstm, compiled_kernels(precision))
        outputs, last = run(frozen, random_inputs(lstm, [3, 40]), random_state(lstm, 2))
        assert all(output.isnan().all() for output in outputs)
        assert last.cell.isnan().all()
    for activation in ("relu", "tanh"):
        cnn = CharCnn(n_characters=5, char_width=3, filters=[(1, width)], n_highway=2, activation=activation)
        for weight in cnn.parameters():
            torch.nn.init.constant_(weight, torch.nan)
        with torch.no_grad():
            assert _freeze_char_cnn(cnn, compiled_kernels())(torch.ones(4, 6, dtype=torch.int64)).isnan().all()


@pytest.mark.usefixtures("compiled_variant")
def test_missing_memory_is_reported() -> None:
    library, weight = load_library(), PackedWeight(load_library(), torch.ones(1, 1), "float32")
    x = torch.ones(1)
    with pytest.raises(MemoryError, match="not enough memory"):
        library.call(
            "elmo_linear", weight.struct, x.data_ptr(), 1, x.data_ptr(), 1, 1 << 50, 1.0, x.data_ptr(), 1
        )  # fmt: skip


# --- which library is used ----------------------------------------------------------------------------------


def check_torch_only(reason: str) -> None:
    """Check that the engine computes with torch, and why."""
    with pytest.raises(CompiledError) as error:
        load_library()
    assert str(error.value) == reason
    elmo = compiled_model()
    assert elmo.kernels.name == "packed"
    assert elmo.kernels.reason == f"oneDNN; no compiled kernels: {reason}"
    prepared = elmo._engine._prepared
    assert prepared is not None
    assert prepared.stacks is not None
    assert all(isinstance(frozen, TorchLstm) for stack in prepared.stacks for frozen in stack)
    with no_onednn():
        assert compiled_model().kernels.name == "plain"


@needs_kernels
def test_an_environment_variable_disables_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    model = compiled_model()
    assert model.kernels.reason == f"compiled for {BUILT_VARIANTS[0]}"
    by_kernels = model.encode(SENTENCES, layers="all")
    monkeypatch.setenv("ELMO_KERNELS", "0")
    check_torch_only("disabled by ELMO_KERNELS=0")
    for torch_only, by_kernel in zip(compiled_model().encode(SENTENCES, layers="all"), by_kernels, strict=True):
        # these random weights give vectors much larger than 1
        np.testing.assert_allclose(torch_only.vectors, by_kernel.vectors, rtol=5e-7, atol=2e-6)


def test_an_unknown_variant_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMO_KERNELS", "avx9")
    supported = compiled._supported_variants()
    if supported:
        check_torch_only(f"ELMO_KERNELS=avx9: this CPU supports {', '.join(supported)}")


@needs_kernels
@pytest.mark.usefixtures("fresh_start")
def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "VERSION", 999)
    name = f"kernels.{BUILT_VARIANTS[0]}.so"
    check_torch_only(f"{name} cannot be used: {name} was built for another version of elmo; install elmo again")


@needs_kernels
@pytest.mark.usefixtures("fresh_start")
def test_a_broken_library_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    (tmp_path / f"kernels.{BUILT_VARIANTS[0]}.so").write_text("not a library")
    with pytest.raises(CompiledError, match=rf"kernels\.{BUILT_VARIANTS[0]}.so cannot be used: "):
        load_library()
    assert choose_kernels(torch.ones(1)).library is None


@needs_kernels
@pytest.mark.usefixtures("fresh_start")
@pytest.mark.parametrize("damage", ["truncated", "empty", "header only", "text", "folder", "no functions"])
def test_a_damaged_library_gives_one_warning_and_the_same_vectors(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    path = tmp_path / f"kernels.{BUILT_VARIANTS[0]}.so"
    library = (Path(compiled.__file__).parent / path.name).read_bytes()
    other = next(Path(torch.__file__).parent.glob("lib/libc10.so"), None)
    if damage == "folder" or (damage == "no functions" and other is None):
        path.mkdir()
    else:
        no_functions = b"" if other is None else other.read_bytes()
        path.write_bytes({"truncated": library[: len(library) // 2], "empty": b"", "header only": library[:64],
                          "text": b"not a library", "no functions": no_functions}[damage])  # fmt: skip
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    model = compiled_model()
    vectors = [encoding.vectors for _ in range(2) for encoding in model.encode(SENTENCES, layers="all")]
    assert all(np.isfinite(array).all() for array in vectors)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (0 if damage == "folder" else 1)
    assert all("cannot be used" in text and "computing without it" in text for text in warnings)


@pytest.mark.skipif(len(BUILT_VARIANTS) < 2, reason="this CPU has only one variant")
@pytest.mark.usefixtures("fresh_start")
def test_the_next_variant_is_used_if_the_best_one_is_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    best, next_best = (f"kernels.{variant}.so" for variant in BUILT_VARIANTS[:2])
    (tmp_path / best).write_bytes(b"")
    (tmp_path / next_best).write_bytes((Path(compiled.__file__).parent / next_best).read_bytes())
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert load_library().variant == BUILT_VARIANTS[1]


@pytest.mark.usefixtures("fresh_start")
def test_a_cpu_that_torch_cannot_describe_is_not_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> str:
        raise AttributeError("torch has no such function")

    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", fail)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert choose_kernels(torch.ones(1)).library is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.usefixtures("fresh_start")
def test_an_installation_without_libraries_computes_with_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    if compiled._supported_variants():
        check_torch_only(
            "this installation has no compiled kernels; a C compiler is needed when elmo is installed from source"
        )


@needs_kernels
@pytest.mark.usefixtures("fresh_start")
def test_the_best_variant_that_was_built_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    last = BUILT_VARIANTS[-1]
    built = Path(compiled.__file__).with_name(f"kernels.{last}.so")
    (tmp_path / built.name).write_bytes(built.read_bytes())
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert load_library().variant == last


@pytest.mark.usefixtures("fresh_start")
@pytest.mark.parametrize(
    ("machine", "capability", "variants"),
    [
        ("x86_64", "AVX512", ["avx512", "avx2"]),
        ("AMD64", "AVX2", ["avx2"]),
        ("x86_64", "DEFAULT", []),
        ("arm64", "DEFAULT", ["neon"]),
        ("riscv64", "DEFAULT", []),
    ],
)
def test_a_cpu_without_vector_instructions_has_no_variant(
    machine: str, capability: str, variants: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(compiled.VARIABLE, raising=False)
    monkeypatch.setattr(compiled.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert compiled._supported_variants() == variants
    if not variants:
        with pytest.raises(CompiledError, match=rf"there are no compiled kernels for this CPU \({machine}\)"):
            load_library()


def test_float64_is_computed_with_torch() -> None:
    kernels = choose_kernels(torch.ones(1, dtype=torch.float64))
    assert (kernels.name, kernels.library) == ("plain", None)


def test_libraries_are_not_taken_for_python_modules() -> None:
    assert not [module.name for module in pkgutil.iter_modules([str(FOLDER)]) if "kernels" in module.name]


@pytest.mark.slow
def test_importing_the_engine_does_not_load_the_library() -> None:
    code = (
        "import elmo.engine, elmo.engine.bilm, elmo.engine.compiled as compiled; from pathlib import Path;"
        "assert compiled._load_library.cache_info().currsize == 0;"
        "maps = Path('/proc/self/maps'); assert not maps.exists() or 'kernels.' not in maps.read_text()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
