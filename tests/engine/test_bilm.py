from __future__ import annotations

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.embed.elmo import Elmo
from elmo.engine import bilm as engine_bilm
from elmo.engine import compiled
from elmo.engine.bilm import Engine
from elmo.engine.matmul import check_int8_support, check_packed_support
from elmo.errors import ConfigError, SentenceTooLongError
from tests.engine.cases import BUILT_VARIANTS, every_shape, is_compiled, no_onednn, random_sentences
from tests.formats.tiny import tiny_model

needs_int8 = pytest.mark.skipif(
    (check_packed_support() or check_int8_support()) is not None, reason="no int8 products on this machine"
)


@pytest.mark.slow
@every_shape
def test_a_sentence_has_the_same_bits_alone_and_in_any_batch_and_order(model, kernels: str) -> None:
    elmo = Elmo(model)
    assert elmo.kernels.name == kernels
    sentences = random_sentences(60)
    alone = [elmo.encode([sentence], layers="all")[0].vectors for sentence in sentences]
    order = list(range(len(sentences)))
    random.Random(1).shuffle(order)
    for batch_size in (1, 7, 32, 256, 7):
        together = elmo.encode(sentences, layers="all", batch_size=batch_size)
        shuffled = elmo.encode([sentences[k] for k in order], layers="all", batch_size=batch_size)
        for k, encoding in enumerate(together):
            assert encoding.vectors.tobytes() == alone[k].tobytes()
        for position, k in enumerate(order):
            assert shuffled[position].vectors.tobytes() == alone[k].tobytes()


few_words = st.lists(st.text("abé中", min_size=1, max_size=9), max_size=30)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.lists(few_words, min_size=1, max_size=12), st.integers(1, 12), st.booleans(), st.randoms(use_true_random=False)
)
def test_other_sentences_order_batch_size_and_cache_do_not_change_a_bit(
    sentences, batch_size, is_fresh, generator
) -> None:
    alone = [ELMO.encode([sentence], layers="all")[0].vectors for sentence in sentences]
    order = list(range(len(sentences)))
    generator.shuffle(order)
    if is_fresh:
        ELMO._engine.reset()
    encodings = ELMO.encode([sentences[k] for k in order], layers="all", batch_size=batch_size)
    for k, encoding in zip(order, encodings, strict=True):
        assert encoding.vectors.tobytes() == alone[k].tobytes()


def test_small_batches_have_the_same_bits_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = random_sentences(30)
    expected = ELMO._engine.run(sentences)
    monkeypatch.setattr(engine_bilm, "BATCH_TOKENS", 50)
    output = ELMO._engine.run(sentences)
    assert all(torch.equal(x, y) for x, y in zip(output.layers, expected.layers, strict=True))
    assert torch.equal(output.state.cell, expected.state.cell)


@pytest.mark.slow
def test_directions_in_parallel_and_in_turn_have_the_same_bits() -> None:
    sentences = random_sentences(50)
    n_threads = torch.get_num_threads()
    runs = []
    try:
        for n in (1, 2, 1):
            torch.set_num_threads(n)
            runs.append(ELMO._engine.run(sentences).layers)
            assert torch.get_num_threads() == n
    finally:
        torch.set_num_threads(n_threads)
    for in_turn, in_parallel, again in zip(*runs, strict=True):
        assert torch.equal(in_turn, in_parallel)
        assert torch.equal(in_turn, again)


def change_by_optimizer(elmo: Elmo) -> None:
    elmo.bilm.requires_grad_(True)
    optimizer = torch.optim.SGD(elmo.bilm.parameters(), lr=0.1)
    batch = elmo.batch([["a", "b"]])
    elmo.bilm(torch.from_numpy(batch.char_ids)).layers.states.square().sum().backward()
    optimizer.step()


def change_in_place(elmo: Elmo) -> None:
    with torch.no_grad():
        elmo.bilm.backward_stack[0].bias[1] += 0.5


def change_behind_torch(elmo: Elmo) -> None:
    elmo.bilm.forward_stack[1].state_weight.data.mul_(1.5)


def change_state_dict(elmo: Elmo) -> None:
    elmo.bilm.load_state_dict({name: weight * 0.9 for name, weight in elmo.bilm.state_dict().items()})


def assign_state_dict(elmo: Elmo) -> None:
    weights = {name: weight * 0.9 for name, weight in elmo.bilm.state_dict().items()}
    elmo.bilm.load_state_dict(weights, assign=True)


@pytest.mark.parametrize(
    "change", [change_by_optimizer, change_in_place, change_behind_torch, change_state_dict, assign_state_dict]
)
def test_changed_weights_are_detected(change) -> None:
    elmo = Elmo(tiny_model())
    sentences = random_sentences(5)
    before = elmo.encode(sentences, layers="all")
    change(elmo)
    after = elmo.encode(sentences, layers="all")
    fresh = Engine(elmo.bilm, elmo.indexer).run(sentences).layers
    assert any(not (old.vectors == new.vectors).all() for old, new in zip(before, after, strict=True))
    for encoding, layers in zip(after, fresh, strict=True):
        assert encoding.vectors.tobytes() == layers.numpy().tobytes()


def test_unchanged_weights_are_not_packed_again() -> None:
    elmo = Elmo(tiny_model())
    elmo.encode([["a"]])
    prepared = elmo._engine._prepared
    elmo.encode([["b"]], device="cpu")
    assert elmo._engine._prepared is prepared
    elmo.to(dtype="float64")
    assert elmo._engine._prepared is None


def test_a_model_in_use_can_be_copied_and_pickled() -> None:
    elmo = Elmo(tiny_model())
    sentence = ["the", "river", "bank"]
    expected = elmo.encode([sentence])[0].vectors
    for copied in (copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
        assert copied.encode([sentence])[0].vectors.tobytes() == expected.tobytes()


def test_kernels_have_a_name_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    if BUILT_VARIANTS:
        monkeypatch.setenv(compiled.VARIABLE, BUILT_VARIANTS[-1])
        elmo = Elmo(tiny_model())
        assert (elmo.kernels.name, elmo.kernels.precision) == ("compiled", "float32")
        assert elmo.kernels.reason == f"compiled for {BUILT_VARIANTS[-1]}"
        assert elmo._engine.describe()["products"] == f"compiled, float32: compiled for {BUILT_VARIANTS[-1]}"
    monkeypatch.setenv(compiled.VARIABLE, "0")
    kernels = Elmo(tiny_model(), dtype="float64").kernels
    assert (kernels.name, kernels.precision) == ("plain", "float64")
    assert kernels.reason == "packed weights are float32 at most; this model is float64"
    with no_onednn():
        assert Elmo(tiny_model()).kernels.reason == "oneDNN is disabled in torch"


@pytest.mark.slow
@needs_int8
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_low_precision_is_close_and_has_the_same_bits_in_any_batch(dtype: str, variant: str) -> None:
    low = Elmo(tiny_model(), dtype=dtype)
    name = "compiled" if is_compiled(variant, "float32" if dtype == "bfloat16" else "int8") else "packed"
    assert low.kernels.name == name
    sentences = random_sentences(60)
    together = low.encode(sentences, layers="all")
    alone = [low.encode([sentence], layers="all")[0] for sentence in sentences]
    shuffled = low.encode(sentences[::-1], layers="all", batch_size=7)[::-1]
    for x, y, z in zip(together, alone, shuffled, strict=True):
        assert x.vectors.tobytes() == y.vectors.tobytes() == z.vectors.tobytes()
    pairs = list(zip(together, ELMO.encode(sentences, layers="all"), strict=True))
    for rounded, exact in pairs:
        assert rounded.vectors.dtype == exact.vectors.dtype
        assert abs(rounded.vectors - exact.vectors).max(initial=0) < 0.05
    assert any((rounded.vectors != exact.vectors).any() for rounded, exact in pairs)


@needs_int8
@pytest.mark.usefixtures("variant")
def test_int8_can_be_switched_off_again() -> None:
    elmo = Elmo(tiny_model(), dtype="int8")
    expected = Elmo(tiny_model()).encode([["a", "b"]])[0].vectors
    assert elmo.kernels.precision == "int8"
    assert next(elmo.bilm.parameters()).dtype == torch.float32  # saving writes the loaded weights
    copied = copy.deepcopy(elmo)
    assert copied.kernels.precision == "int8"
    exact = elmo.to(dtype="float32").encode([["a", "b"]])[0].vectors
    assert elmo.kernels.precision == "float32"
    assert exact.tobytes() == expected.tobytes()


def test_another_thread_uses_the_packed_weights() -> None:
    elmo = Elmo(tiny_model())
    expected = elmo.encode([["a", "b"]])[0].vectors
    prepared = elmo._engine._prepared
    with ThreadPoolExecutor(1) as pool:  # in which torch may have another number of threads
        result = pool.submit(elmo.encode, [["a", "b"]]).result()[0].vectors
    assert elmo._engine._prepared is prepared
    assert result.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("torch_only")
def test_a_refused_precision_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    elmo = Elmo(tiny_model(), dtype="float64")
    expected = elmo.encode([["a", "b"]])[0].vectors
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    with pytest.raises(ConfigError, match="use float32"):
        elmo.to(dtype="int8")
    assert elmo.precision == "float64"
    assert elmo.encode([["a", "b"]])[0].vectors.tobytes() == expected.tobytes()


def test_words_have_the_same_bits_after_the_cache_is_cleared() -> None:
    elmo = Elmo(tiny_model())
    first = elmo.encode([["a", "b"]])[0].vectors
    assert len(elmo._engine.prepare().tokens) == 2
    elmo.clear_cache()
    assert len(elmo._engine.prepare().tokens) == 0
    assert elmo.encode([["a", "b"]])[0].vectors.tobytes() == first.tobytes()


def test_max_tokens_limits_the_size_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    elmo = Elmo(tiny_model())
    sizes: list[int] = []
    run = Engine.run
    monkeypatch.setattr(
        Engine,
        "run",
        lambda self, rows, **more: sizes.append(sum(len(row) + 2 for row in rows)) or run(self, rows, **more),
    )
    sentences = random_sentences(40)
    encodings = elmo.encode(sentences, max_tokens=60)
    assert len(sizes) > 5
    assert max(sizes) <= 60
    for limited, unlimited in zip(encodings, elmo.encode(sentences), strict=True):
        assert limited.vectors.tobytes() == unlimited.vectors.tobytes()


def test_a_sentence_over_the_limit_is_refused_and_the_message_has_the_limit() -> None:
    elmo = Elmo(tiny_model())
    with pytest.raises(SentenceTooLongError, match=r"sentence 1 must have at most 10 tokens; found 11; split it"):
        elmo.encode([["a"], ["a"] * 11], max_tokens=10)
    with pytest.raises(SentenceTooLongError, match="sentence 5 must have"):  # counted over the call, not within a batch
        elmo.encode([["a"]] * 5 + [["a"] * 11], max_tokens=10, batch_size=2)
    assert len(elmo.encode([["a"] * 10], max_tokens=10)[0].tokens) == 10


@pytest.mark.slow
def test_a_sentence_of_thousands_of_tokens_and_a_token_of_megabytes_are_encoded() -> None:
    elmo = Elmo(tiny_model())
    long, wide = elmo.encode([["word"] * 5_000, ["x" * 10_000_000, "y"]])
    assert long.vectors.shape == (5_000, 8)
    assert wide.vectors.shape == (2, 8)
    cut = elmo.encode([["x" * 48, "y"]])[0]  # the part that the published alphabet keeps
    assert (cut.vectors == wide.vectors).all()


hostile = st.text(st.characters(categories=("L", "M", "N", "P", "S", "Z", "C", "Cs")), max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(hostile, max_size=6), max_size=5))
def test_any_tokens_give_one_vector_each(sentences: list[list[str]]) -> None:
    encodings = ELMO.encode(sentences)
    assert [list(encoding.tokens) for encoding in encodings] == sentences
    assert [encoding.vectors.shape for encoding in encodings] == [(len(sentence), 8) for sentence in sentences]


@settings(deadline=None, max_examples=60)
@given(hostile)
def test_any_text_gives_one_vector_per_token(text: str) -> None:
    encoding = ELMO.encode(text)
    assert encoding.vectors.shape == (len(encoding.tokens), 8)
    assert encoding.offsets is not None
    assert [text[begin:end] for begin, end in encoding.offsets] == list(encoding.tokens)


@pytest.mark.parametrize("boundary", ["<S>", "</S>", "<bos>", "<eos>"])
def test_a_literal_boundary_in_the_text_is_a_word(boundary: str) -> None:
    vectors = ELMO.encode([[boundary]], layers=0)[0].vectors
    begin, end = ELMO._engine.boundary_vectors().numpy()
    half = vectors[0, :4]
    assert not (half == begin).all()
    assert not (half == end).all()


ELMO = Elmo(tiny_model())
