from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from elmo import Elmo, StateError
from elmo.embed.start import Carry
from elmo.engine.transformer import FrozenNorm
from elmo.formats.pretrained import Pretrained
from elmo.model.transformer import LayerNorm
from elmo.predict import perplexity, predict_expectations
from tests.engine.cases import random_sentences
from tests.formats.tiny import tiny_model

N_SENTENCES = 200


def model(**changes: object) -> Pretrained:
    sizes = {"state_width": 16, "cell_width": 24, "is_transformer": True, "n_layers": 3, "softmax": True} | changes
    return tiny_model("chars", **sizes)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_sentence_gets_the_same_bits_alone_in_any_batch_and_in_any_order(dtype: str, kernels: str) -> None:
    if dtype == "int8" and kernels == "plain":
        pytest.skip("torch has no exact int8 products without oneDNN")
    assert_same_bits(Elmo(model(), dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_sentence_gets_the_same_bits_at_the_published_width(dtype: str) -> None:
    wide = model(state_width=512, cell_width=2048, n_layers=2, softmax=False)
    encoder = replace(wide.config.encoder, n_heads=8)
    assert_same_bits(Elmo(replace(wide, config=replace(wide.config, encoder=encoder)), dtype=dtype))


def assert_same_bits(elmo: Elmo) -> None:
    """Check that a sentence has the same vectors alone, in a batch, and in a shuffled one with other sizes."""
    sentences = [sentence for sentence in random_sentences(2 * N_SENTENCES) if sentence][:N_SENTENCES]
    sentences[7] = sentences[7] * 100  # longer than a chunk
    together = [encoding.vectors for encoding in elmo.encode(sentences, layers="all")]
    order = random.Random(0).sample(range(len(sentences)), len(sentences))
    shuffled = elmo.encode([sentences[k] for k in order], layers="all", batch_size=13)
    for k, encoding in zip(order, shuffled, strict=True):
        np.testing.assert_array_equal(encoding.vectors, together[k])
    for sentence, vectors in zip(sentences, together, strict=True):
        np.testing.assert_array_equal(elmo.encode([sentence], layers="all")[0].vectors, vectors)
    assert len(together) == N_SENTENCES


def test_one_thread_and_two_give_the_same_bits() -> None:
    sentences = random_sentences(20)
    n_threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append([e.vectors for e in Elmo(model()).encode(sentences, layers="all")])
    finally:
        torch.set_num_threads(n_threads)
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
def test_memory_grows_with_the_length_of_a_sentence_and_not_with_its_square() -> None:
    import resource

    elmo = Elmo(model())
    elmo.encode(["w"] * 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (encoding,) = elmo.encode([["w"] * 12_000])  # one matrix of attention would take more than a gigabyte
    assert encoding.vectors.shape == (12_000, 32)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kilobytes


def test_scores_do_not_depend_on_other_sentences_and_are_those_of_the_reference_network() -> None:
    elmo = Elmo(model())
    assert elmo.vocab is not None
    assert elmo.softmax is not None
    generator = random.Random(3)
    sentences = [generator.choices(elmo.vocab.words[3:], k=generator.randint(1, 90)) for _ in range(40)]
    together = predict_expectations(elmo, sentences, n=2)
    for sentence, found in zip(sentences[:10], together, strict=False):
        (alone,) = predict_expectations(elmo, [sentence], n=2)
        np.testing.assert_array_equal(found.forward_log_probability, alone.forward_log_probability)
        np.testing.assert_array_equal(found.backward_log_probability, alone.backward_log_probability)
        ids = torch.from_numpy(elmo.batch([sentence]).char_ids)
        with torch.no_grad():
            top = elmo.bilm(ids).layers.states[0, -1]
            logits = [half @ elmo.softmax.weight.T + elmo.softmax.bias for half in top.chunk(2, dim=1)]
        words = torch.tensor(elmo.vocab.ids(sentence))[:, None]
        for log_p, states in (
            (found.forward_log_probability, logits[0][:-2]),
            (found.backward_log_probability, logits[1][2:]),
        ):
            expected = states.log_softmax(dim=1).gather(1, words)[:, 0]
            np.testing.assert_allclose(log_p, expected, rtol=0, atol=1e-5)


def test_start_states_are_refused() -> None:
    elmo = Elmo(model())
    with pytest.raises(StateError, match="cannot use start='warm': a transformer keeps no state between sentences"):
        elmo.encode("a b", start="warm")
    with pytest.raises(StateError, match="cannot use a carried state: a transformer keeps no state"):
        elmo.encode("a b", start=Carry())
    with pytest.raises(StateError, match="cannot use a warm state: a transformer keeps no state"):
        elmo.warm_up(["a b"])
    with pytest.raises(StateError, match="cannot use a carried state: a transformer keeps no state"):
        perplexity(elmo, [["the", "bank"]], start="carry")


def test_a_constant_vector_is_normalized_to_beta() -> None:
    norm = LayerNorm(8)
    torch.nn.init.constant_(norm.beta, 0.5)
    x = torch.full((2, 8), 3.0)
    assert torch.equal(FrozenNorm(norm)(x), torch.full((2, 8), 0.5))
    assert torch.equal(norm(x), torch.full((2, 8), 0.5))
