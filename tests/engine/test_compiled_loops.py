from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from elmo.embed.elmo import Elmo
from elmo.engine import lstm as engine_lstm
from elmo.engine.lstm import FrozenLstm
from elmo.engine.matmul import Kernels, choose_kernels, plain_kernels
from elmo.engine.schedule import BatchSchedule
from elmo.model.lstm import LstmState, ProjectedLstm
from tests.formats.tiny import tiny_model

KERNELS = choose_kernels(torch.ones(1))
SENTENCES = [[random.Random(k).choice(["the", "river", "bank", "café"]) for _ in range(k % 9)] for k in range(24)]
# width of inputs and states, number of cells, clips, and whether inputs and states share one product
LAYERS: dict[str, tuple[int, int, float | None, bool]] = {
    "as published, joined": (32, 160, 3.0, True),
    "as published, separate": (32, 160, 3.0, False),
    "sums in several chains": (36, 1111, 0.2, False),
    "no projection, no clip": (37, 37, None, True),
    "no projection, no clip, separate": (37, 37, None, False),
    "wider than a chain": (300, 301, 3.0, True),
}


@pytest.fixture
def numba() -> None:
    pytest.importorskip("numba")
    reason = engine_lstm.check_compiled_support(KERNELS)
    if reason is not None:
        pytest.skip(reason)


needs_numba = pytest.mark.usefixtures("numba")


@pytest.fixture
def fresh_start() -> Iterator[None]:
    """Import numba again, before and after the test."""
    engine_lstm._load_loops.cache_clear()
    yield
    engine_lstm._load_loops.cache_clear()


def build_lstm(name: str, monkeypatch: pytest.MonkeyPatch) -> ProjectedLstm:
    width, n_cells, clip, is_joined = LAYERS[name]
    monkeypatch.setattr(engine_lstm, "JOINED_BYTES", 1 << 30 if is_joined else 0)
    torch.manual_seed(0)
    lstm = ProjectedLstm(
        input_width=width, state_width=width, cell_width=n_cells, cell_clip=clip, state_clip=clip, forget_bias=1.0
    )
    torch.nn.init.normal_(lstm.bias, std=0.5)
    return lstm


def run(frozen: FrozenLstm, sentences: list[torch.Tensor], start: LstmState) -> tuple[list[torch.Tensor], LstmState]:
    schedule = BatchSchedule.build(
        [len(sentence) for sentence in sentences], max_slots=KERNELS.max_rows, device=torch.device("cpu")
    )
    inputs = torch.zeros(schedule.n_rows(KERNELS), sentences[0].size(1))
    token_rows = [torch.from_numpy(rows) for rows in schedule.token_rows(is_reversed=False)]
    for rows, sentence in zip(token_rows, sentences, strict=True):
        inputs[rows] = sentence
    outputs = torch.zeros_like(inputs)
    last = frozen.run(inputs, schedule, start, outputs=outputs)
    return [outputs[rows] for rows in token_rows], last


def random_state(lstm: ProjectedLstm, n: int) -> LstmState:
    width, n_cells = lstm.state_weight.size(1), len(lstm.bias) // 4
    generator = torch.Generator().manual_seed(n)
    return LstmState(
        torch.randn(n, width, generator=generator) * 0.1, torch.randn(n, n_cells, generator=generator) * 0.1
    )


@pytest.mark.slow
@needs_numba
@torch.inference_mode()
@pytest.mark.parametrize("name", LAYERS)
def test_a_single_sentence_has_the_bits_it_has_in_a_batch_and_agrees_with_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstm = build_lstm(name, monkeypatch)
    sentences = [torch.randn(length, lstm.input_weight.size(1)) * 0.5 for length in (14, 3, 1, 30, 300, 2)]
    start = random_state(lstm, len(sentences))
    frozen = FrozenLstm(lstm, KERNELS)
    together, last = run(frozen, sentences, start)
    for k in (0, 1, 2, 3, 4, 5, 0):  # the first few use packed products
        alone, alone_last = run(frozen, [sentences[k]], LstmState(start.hidden[k : k + 1], start.cell[k : k + 1]))
        assert torch.equal(alone[0], together[k])
        assert torch.equal(alone_last.hidden[0], last.hidden[k])
        assert torch.equal(alone_last.cell[0], last.cell[k])
        mask = torch.ones(1, len(sentences[k]), dtype=torch.bool)
        expected, _ = lstm(sentences[k][None], mask, LstmState(start.hidden[k : k + 1], start.cell[k : k + 1]))
        torch.testing.assert_close(alone[0], expected[0], rtol=0, atol=2e-6)
    if name != "wider than a chain":
        assert (frozen.single_sentence_problem, frozen._single is not None) == (None, True)


@needs_numba
def test_a_whole_model_gives_the_same_bits_alone_and_in_any_batch_and_order() -> None:
    elmo = Elmo(tiny_model("chars", cell_width=40, state_width=20, filters=((1, 8), (2, 12))))
    order = list(range(len(SENTENCES)))
    random.Random(1).shuffle(order)
    together = elmo.encode(SENTENCES, layers="all")
    shuffled = elmo.encode([SENTENCES[k] for k in order], layers="all", batch_size=5)
    for position, k in enumerate(order):
        alone = elmo.encode([SENTENCES[k]], layers="all")[0].vectors
        assert alone.tobytes() == together[k].vectors.tobytes() == shuffled[position].vectors.tobytes()
    prepared = elmo._engine._prepared
    assert prepared is not None
    assert prepared.stacks is not None
    assert all(frozen._single is not None for stack in prepared.stacks for frozen in stack)


def tanh(x: np.ndarray) -> np.ndarray:
    """Compute tanh with a cell whose input gate is 1 and whose forget gate is 0."""
    n = len(x)
    gates = np.concatenate([np.full(n, 50), np.full(n, -50), np.zeros(n), x]).astype(np.float32)
    cell = torch.zeros(1, n)
    engine_lstm.update_cells(torch.from_numpy(gates)[None], cell, output=torch.empty(1, n), clip=None)
    return cell[0].numpy()


@needs_numba
def test_tanh_is_accurate_odd_and_saturates_at_one() -> None:
    bits = np.arange(np.float32(1e-7).view(np.int32), np.float32(100).view(np.int32), 211, dtype=np.int32)
    x = bits.view(np.float32)
    result, exact = tanh(x), np.tanh(x.astype(np.float64))
    assert np.abs(result - exact).max() < 1.6e-7
    assert np.abs(result / exact - 1).max() < 2e-7
    assert (tanh(-x) == -result).all()
    assert (tanh(np.array([9.1, 20, 1e30, np.inf, -9.1, -np.inf, 0])) == [1, 1, 1, 1, -1, -1, 0]).all()
    assert np.isnan(tanh(np.array([np.nan]))).all()


@needs_numba
def test_a_cell_has_the_same_bits_at_every_position_of_a_vector_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    gates, cell = torch.randn(4, 75, generator=generator) * 2, torch.randn(75, generator=generator)
    expected_cell, expected = cell.clone(), torch.empty(75)
    for k in range(75):
        single, out = expected_cell[k : k + 1][None], expected[k : k + 1][None]
        engine_lstm.update_cells(gates[:, k].contiguous()[None], single, output=out, clip=1.0)
    assert expected_cell.abs().max() == 1
    for n in range(1, 76):
        for first in (0, 75 - n):
            part = slice(first, first + n)
            new, output = cell[part].clone()[None], torch.empty(1, n)
            engine_lstm.update_cells(gates[:, part].contiguous().view(1, -1), new, output=output, clip=1.0)
            assert torch.equal(new[0], expected_cell[part])
            assert torch.equal(output[0], expected[part])


@needs_numba
def test_weights_are_copied_only_after_a_few_single_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    lstm = build_lstm("as published, joined", monkeypatch)
    frozen, start = FrozenLstm(lstm, KERNELS), random_state(lstm, 1)
    sentence = torch.randn(4, 32)
    with torch.inference_mode():
        run(frozen, [sentence] * 9, random_state(lstm, 9))
        for _ in range(engine_lstm.MIN_SINGLE_SENTENCES):
            assert frozen._single is None
            run(frozen, [sentence], start)
        run(frozen, [sentence], start)
    assert frozen._single is not None


@needs_numba
@torch.inference_mode()
def test_an_unknown_order_of_sums_is_detected_and_single_sentences_use_packed_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lstm = build_lstm("sums in several chains", monkeypatch)
    monkeypatch.setattr(engine_lstm, "_CHAIN_LENGTHS", (100,))
    monkeypatch.setattr(engine_lstm, "split_size", lambda n_in: 100)
    frozen, start = FrozenLstm(lstm, KERNELS), random_state(lstm, 3)
    sentences = [torch.randn(4, 36), torch.randn(3, 36), torch.randn(4, 36)]
    among = run(frozen, sentences, start)[0][0]
    alone = LstmState(start.hidden[:1], start.cell[:1])
    for _ in range(engine_lstm.MIN_SINGLE_SENTENCES + 2):
        assert torch.equal(run(frozen, sentences[:1], alone)[0][0], among)
    assert frozen.compiled_gates_problem is None
    assert frozen.single_sentence_problem == "the order of sums is unknown for weights of shape (36, 1111)"


def gate_problems(elmo: Elmo) -> set[str | None]:
    elmo.encode(SENTENCES)
    prepared = elmo._engine._prepared
    assert prepared is not None
    assert prepared.stacks is not None
    return {frozen.compiled_gates_problem for stack in prepared.stacks for frozen in stack}


@pytest.mark.usefixtures("fresh_start")
def test_without_numba_torch_computes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    elmo = Elmo(tiny_model())
    reason = "numba is not installed; to install it: pip install 'pyelmo[fast]'"
    assert gate_problems(elmo) == {reason}
    assert engine_lstm.check_compiled_support(KERNELS) == reason
    alone = [elmo.encode([SENTENCES[8]], layers="all")[0].vectors for _ in range(engine_lstm.MIN_SINGLE_SENTENCES + 2)]
    among = elmo.encode(SENTENCES, layers="all")[8].vectors
    assert all((vectors == among).all() for vectors in alone)


@needs_numba
def test_an_environment_variable_disables_compiled_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = Elmo(tiny_model()).encode(SENTENCES, layers="all")
    monkeypatch.setenv("ELMO_COMPILED", "0")
    elmo = Elmo(tiny_model())
    assert gate_problems(elmo) == {"disabled by ELMO_COMPILED=0"}
    for torch_only, by_loops in zip(elmo.encode(SENTENCES, layers="all"), compiled, strict=True):
        np.testing.assert_allclose(torch_only.vectors, by_loops.vectors, rtol=0, atol=2e-6)


def test_other_products_and_many_threads_use_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = engine_lstm.check_compiled_support(plain_kernels(torch.ones(1), "for a test"))
    assert reason == "compiled loops require packed weights: for a test"
    half = Kernels("packed", "bfloat16", "for a test")
    assert engine_lstm.check_compiled_support(half) == "bfloat16 products include tanh"
    if KERNELS.is_packed:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
        assert engine_lstm.check_compiled_support(KERNELS) == "compiled loops use one thread, but torch may use 64"


@needs_numba
def test_an_unwritable_cache_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    from elmo.engine import compiled_loops

    whole = numba.njit

    def njit(signature, *, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return whole(signature, **options)

    monkeypatch.setattr(numba, "njit", njit)
    twice = compiled_loops._compiled("float32(float32)")(lambda x: x + x)
    assert twice(1.5) == 3


@pytest.mark.slow
def test_importing_the_engine_does_not_import_numba() -> None:
    code = "import sys, elmo.engine.bilm; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
