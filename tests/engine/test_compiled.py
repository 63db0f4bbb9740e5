from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from elmo.embed.elmo import Elmo
from elmo.engine import lstm as compiled
from elmo.engine import lstm as lstm_rows
from elmo.engine.batches import BatchSchedule
from elmo.engine.lstm import FrozenLstm
from elmo.engine.matmul import Kernels, choose_kernels, plain_kernels
from elmo.model.lstm import LstmState, ProjectedLstm
from tests.formats.tiny import tiny_model

KERNELS = choose_kernels(torch.ones(1))
SENTENCES = [
    [random.Random(k).choice(["the", "river", "bank", "café"]) for _ in range(k % 9)] for k in range(24)
]
# by name: width of inputs and states, cells, the clips, and whether inputs and states are in one product
LAYERS: dict[str, tuple[int, int, float | None, bool]] = {
    "as published, in one product": (32, 160, 3.0, True),
    "as published, in two": (32, 160, 3.0, False),
    "sums in several chains": (36, 1111, 0.2, False),
    "no projection, no clip": (37, 37, None, True),
    "no projection, no clip, in two": (37, 37, None, False),
    "wider than a chain": (300, 301, 3.0, True),
}


@pytest.fixture
def numba() -> None:
    pytest.importorskip("numba")
    reason = compiled.missing(KERNELS)
    if reason is not None:
        pytest.skip(reason)


needs_numba = pytest.mark.usefixtures("numba")


@pytest.fixture
def fresh_start() -> Iterator[None]:
    """What is known of numba is looked up again, before and after."""
    compiled._loops.cache_clear()
    yield
    compiled._loops.cache_clear()


def layer(name: str, monkeypatch: pytest.MonkeyPatch) -> ProjectedLstm:
    width, n_cells, clip, is_joined = LAYERS[name]
    monkeypatch.setattr(lstm_rows, "JOINED_BYTES", 1 << 30 if is_joined else 0)
    torch.manual_seed(0)
    lstm = ProjectedLstm(
        input_width=width,
        state_width=width,
        cell_width=n_cells,
        cell_clip=clip,
        state_clip=clip,
        forget_bias=1.0,
    )
    torch.nn.init.normal_(lstm.bias, std=0.5)
    return lstm


def read(
    rows: FrozenLstm, sentences: list[torch.Tensor], start: LstmState
) -> tuple[list[torch.Tensor], LstmState]:
    lanes = BatchSchedule.of([len(one) for one in sentences], max_lanes=KERNELS.max_rows, device=torch.device("cpu"))
    inputs = torch.zeros(lanes.n_rows(KERNELS), sentences[0].size(1))
    places = [torch.from_numpy(place) for place in lanes.places(is_mirrored=False)]
    for place, one in zip(places, sentences, strict=True):
        inputs[place] = one
    outputs = torch.zeros_like(inputs)
    last = rows.read(inputs, lanes, start, outputs=outputs)
    return [outputs[place] for place in places], last


def start_of(lstm: ProjectedLstm, n: int) -> LstmState:
    width, n_cells = lstm.state_weight.size(1), len(lstm.bias) // 4
    generator = torch.Generator().manual_seed(n)
    return LstmState(
        torch.randn(n, width, generator=generator) * 0.1, torch.randn(n, n_cells, generator=generator) * 0.1
    )


@needs_numba
@torch.inference_mode()
@pytest.mark.parametrize("name", LAYERS)
def test_a_sentence_alone_gets_the_bits_it_gets_among_others_and_those_of_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstm = layer(name, monkeypatch)
    sentences = [torch.randn(length, lstm.input_weight.size(1)) * 0.5 for length in (14, 3, 1, 30, 300, 2)]
    start = start_of(lstm, len(sentences))
    rows = FrozenLstm(lstm, KERNELS)
    together, last = read(rows, sentences, start)
    for k in (0, 1, 2, 3, 4, 5, 0):  # the first few are read as others are
        alone, left = read(rows, [sentences[k]], LstmState(start.hidden[k : k + 1], start.cell[k : k + 1]))
        assert torch.equal(alone[0], together[k])
        assert torch.equal(left.hidden[0], last.hidden[k])
        assert torch.equal(left.cell[0], last.cell[k])
        is_true = torch.ones(1, len(sentences[k]), dtype=torch.bool)
        expected, _ = lstm(
            sentences[k][None], is_true, LstmState(start.hidden[k : k + 1], start.cell[k : k + 1])
        )
        torch.testing.assert_close(alone[0], expected[0], rtol=0, atol=2e-6)
    if name != "wider than a chain":
        assert (rows.not_alone, rows._alone is not None) == (None, True)


@needs_numba
def test_a_whole_model_gives_the_same_bits_alone_in_any_batch_and_order() -> None:
    elmo = Elmo(tiny_model("chars", cell_width=40, state_width=20, filters=((1, 8), (2, 12))))
    order = list(range(len(SENTENCES)))
    random.Random(1).shuffle(order)
    together = elmo.encode(SENTENCES, layers="all")
    shuffled = elmo.encode([SENTENCES[k] for k in order], layers="all", batch_size=5)
    for place, k in enumerate(order):
        alone = elmo.encode([SENTENCES[k]], layers="all")[0].vectors
        assert alone.tobytes() == together[k].vectors.tobytes() == shuffled[place].vectors.tobytes()
    ready = elmo._engine._ready
    assert ready is not None
    assert ready.stacks is not None
    assert all(rows._alone is not None for stack in ready.stacks for rows in stack)


def tanh(x: np.ndarray) -> np.ndarray:
    """By way of a cell that takes its candidate whole and keeps nothing."""
    n = len(x)
    gates = np.concatenate([np.full(n, 50), np.full(n, -50), np.zeros(n), x]).astype(np.float32)
    cell = torch.zeros(1, n)
    compiled.cells(torch.from_numpy(gates)[None], cell, merged=torch.empty(1, n), clip=None)
    return cell[0].numpy()


@needs_numba
def test_tanh_is_close_odd_and_one_at_last() -> None:
    bits = np.arange(np.float32(1e-7).view(np.int32), np.float32(100).view(np.int32), 211, dtype=np.int32)
    x = bits.view(np.float32)
    found, right = tanh(x), np.tanh(x.astype(np.float64))
    assert np.abs(found - right).max() < 1.6e-7
    assert np.abs(found / right - 1).max() < 2e-7
    assert (tanh(-x) == -found).all()
    assert (tanh(np.array([9.1, 20, 1e30, np.inf, -9.1, -np.inf, 0])) == [1, 1, 1, 1, -1, -1, 0]).all()
    assert np.isnan(tanh(np.array([np.nan]))).all()


@needs_numba
def test_a_cell_has_the_same_bits_in_the_body_and_at_the_end_of_a_vector_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    gates, cell = torch.randn(4, 75, generator=generator) * 2, torch.randn(75, generator=generator)
    wanted_cell, wanted = cell.clone(), torch.empty(75)
    for k in range(75):
        one, out = wanted_cell[k : k + 1][None], wanted[k : k + 1][None]
        compiled.cells(gates[:, k].contiguous()[None], one, merged=out, clip=1.0)
    assert wanted_cell.abs().max() == 1
    for n in range(1, 76):
        for first in (0, 75 - n):
            part = slice(first, first + n)
            new, merged = cell[part].clone()[None], torch.empty(1, n)
            compiled.cells(gates[:, part].contiguous().view(1, -1), new, merged=merged, clip=1.0)
            assert torch.equal(new[0], wanted_cell[part])
            assert torch.equal(merged[0], wanted[part])


@needs_numba
def test_weights_are_copied_for_lone_sentences_only_when_some_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lstm = layer("as published, in one product", monkeypatch)
    rows, start = FrozenLstm(lstm, KERNELS), start_of(lstm, 1)
    sentence = torch.randn(4, 32)
    with torch.inference_mode():
        read(rows, [sentence] * 9, start_of(lstm, 9))
        for _ in range(lstm_rows.FEW_ALONE):
            assert rows._alone is None
            read(rows, [sentence], start)
        read(rows, [sentence], start)
    assert rows._alone is not None


@needs_numba
@torch.inference_mode()
def test_sums_in_an_unknown_order_are_found_out_and_sentences_read_as_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lstm = layer("sums in several chains", monkeypatch)
    monkeypatch.setattr(compiled, "_CHAINS", (100,))
    monkeypatch.setattr(compiled, "_PARTS", (7,))
    monkeypatch.setattr(compiled, "part_size", lambda n_in: 100)
    rows, start = FrozenLstm(lstm, KERNELS), start_of(lstm, 3)
    sentences = [torch.randn(4, 36), torch.randn(3, 36), torch.randn(4, 36)]
    among = read(rows, sentences, start)[0][0]
    alone = LstmState(start.hidden[:1], start.cell[:1])
    for _ in range(lstm_rows.FEW_ALONE + 2):
        assert torch.equal(read(rows, sentences[:1], alone)[0][0], among)
    assert rows.not_compiled is None
    assert rows.not_alone == "the order of sums is unknown for weights of (36, 1111)"


def gates_of(elmo: Elmo) -> set[str | None]:
    elmo.encode(SENTENCES)
    ready = elmo._engine._ready
    assert ready is not None
    assert ready.stacks is not None
    return {rows.not_compiled for stack in ready.stacks for rows in stack}


@pytest.mark.usefixtures("fresh_start")
def test_without_numba_everything_is_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    elmo = Elmo(tiny_model())
    reason = "numba is not installed; to install it: pip install 'pyelmo[fast]'"
    assert gates_of(elmo) == {reason}
    assert compiled.missing(KERNELS) == reason
    alone = [elmo.encode([SENTENCES[8]], layers="all")[0].vectors for _ in range(lstm_rows.FEW_ALONE + 2)]
    among = elmo.encode(SENTENCES, layers="all")[8].vectors
    assert all((one == among).all() for one in alone)


@needs_numba
def test_an_environment_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    by_loops = Elmo(tiny_model()).encode(SENTENCES, layers="all")
    monkeypatch.setenv("ELMO_COMPILED", "0")
    elmo = Elmo(tiny_model())
    assert gates_of(elmo) == {"switched off by ELMO_COMPILED=0"}
    for one, other in zip(elmo.encode(SENTENCES, layers="all"), by_loops, strict=True):
        np.testing.assert_allclose(one.vectors, other.vectors, rtol=0, atol=2e-6)


def test_other_products_and_many_threads_keep_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = compiled.missing(plain_kernels(torch.ones(1), "asked for"))
    assert reason == "compiled loops go with packed weights: asked for"
    half = Kernels("packed", "bfloat16", "asked for")
    assert compiled.missing(half) == "products of bfloat16 have their own tanh"
    if KERNELS.is_packed:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
        assert compiled.missing(KERNELS) == "compiled loops have one thread, and torch may use 64"


@needs_numba
def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_importing_the_engine_does_not_import_numba() -> None:
    code = "import sys, elmo.engine.bilm; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
