from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.embed.elmo import Elmo
from elmo.errors import SentenceTooLongError
from elmo.model.bilm import BiLmState
from tests.formats.tiny import tiny_model

SHAPES = {
    "characters": tiny_model("chars"),
    "words": tiny_model("words"),
    "both": tiny_model("both", alphabet="unicode", forget_bias=0.0),
    "three layers, no skip": tiny_model("chars", n_layers=3, has_skip=False, cell_clip=0.3, state_clip=0.2),
    "one layer, no projection": tiny_model("chars", n_layers=1, cell_width=4),
}
every_shape = pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES.keys())


def random_sentences(n: int, seed: int = 0, longest: int = 40) -> list[list[str]]:
    chance = random.Random(seed)
    letters = "abcdefgh éß中文字😀'-"
    return [
        ["".join(chance.choices(letters, k=chance.randint(1, 12))) for _ in range(chance.randint(0, longest))]
        for _ in range(n)
    ]


@every_shape
def test_the_engine_agrees_with_the_reference_on_every_layer_and_state(model) -> None:
    elmo = Elmo(model)
    sentences = random_sentences(37)
    batch = elmo.batch(sentences)
    ids = [None if part is None else torch.from_numpy(part) for part in (batch.char_ids, batch.word_ids)]
    zero = elmo.bilm.zero_state(len(sentences))
    start = BiLmState(torch.rand_like(zero.hidden) - 0.5, torch.rand_like(zero.cell) - 0.5)
    with torch.no_grad():
        expected = elmo.bilm(*ids, lengths=torch.from_numpy(batch.lengths), state=start)
    found = elmo._engine.run(sentences, start=start)
    inner = expected.layers.without_boundaries()
    for k, sentence in enumerate(sentences):
        torch.testing.assert_close(found.layers[k], inner.states[k, :, : len(sentence)], rtol=0, atol=2e-6)
    torch.testing.assert_close(found.state.hidden, expected.state.hidden, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.state.cell, expected.state.cell, rtol=0, atol=2e-6)


@every_shape
def test_a_sentence_gets_the_same_bits_alone_in_any_batch_in_any_order_and_twice(model) -> None:
    elmo = Elmo(model)
    sentences = random_sentences(60)
    alone = [elmo.encode([sentence], layers="all")[0].vectors for sentence in sentences]
    order = list(range(len(sentences)))
    random.Random(1).shuffle(order)
    for batch_size in (1, 7, 32, 256, 7):
        together = elmo.encode(sentences, layers="all", batch_size=batch_size)
        shuffled = elmo.encode([sentences[k] for k in order], layers="all", batch_size=batch_size)
        for k, encoding in enumerate(together):
            assert encoding.vectors.tobytes() == alone[k].tobytes()
        for place, k in enumerate(order):
            assert shuffled[place].vectors.tobytes() == alone[k].tobytes()


def test_a_sentence_over_the_limit_is_refused_with_the_limit_named() -> None:
    elmo = Elmo(tiny_model())
    with pytest.raises(
        SentenceTooLongError, match=r"sentence 1 has 11 tokens, but the limit is 10; split it"
    ):
        elmo.encode([["a"], ["a"] * 11], max_tokens=10)
    with pytest.raises(SentenceTooLongError, match="sentence 5 has"):  # counted in the call, not in a batch
        elmo.encode([["a"]] * 5 + [["a"] * 11], max_tokens=10, batch_size=2)
    assert len(elmo.encode([["a"] * 10], max_tokens=10)[0].tokens) == 10


def test_a_sentence_of_thousands_of_tokens_and_a_token_of_megabytes_are_ordinary() -> None:
    elmo = Elmo(tiny_model())
    long, wide = elmo.encode([["word"] * 5_000, ["x" * 10_000_000, "y"]])
    assert long.vectors.shape == (5_000, 8)
    assert wide.vectors.shape == (2, 8)
    cut = elmo.encode([["x" * 48, "y"]])[0]  # what the published alphabet keeps of it
    assert (cut.vectors == wide.vectors).all()


hostile = st.text(st.characters(categories=("L", "M", "N", "P", "S", "Z", "C", "Cs")), max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(hostile, max_size=6), max_size=5))
def test_vectors_out_are_tokens_in_for_any_tokens(sentences: list[list[str]]) -> None:
    found = ELMO.encode(sentences)
    assert [list(encoding.tokens) for encoding in found] == sentences
    assert [encoding.vectors.shape for encoding in found] == [(len(sentence), 8) for sentence in sentences]


@settings(deadline=None, max_examples=60)
@given(hostile)
def test_vectors_out_are_tokens_in_for_any_text(text: str) -> None:
    found = ELMO.encode(text)
    assert found.vectors.shape == (len(found.tokens), 8)
    assert found.offsets is not None
    assert [text[begin:end] for begin, end in found.offsets] == list(found.tokens)


@pytest.mark.parametrize("boundary", ["<S>", "</S>", "<bos>", "<eos>"])
def test_a_literal_boundary_in_the_text_is_a_word(boundary: str) -> None:
    found = ELMO.encode([[boundary]], layers=0)[0].vectors
    begin, end = (ELMO._engine._token_layer(ELMO.indexer.boundaries())[k].numpy() for k in (0, 1))
    half = found[0, :4]
    assert not (half == begin).all()
    assert not (half == end).all()


ELMO = Elmo(tiny_model())
