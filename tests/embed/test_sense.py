"""``layers="sense"``: vectors for comparing usages of words."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from elmo import Carry, ConfigError, Elmo, LayerMix, similarity
from elmo.embed.encoding import layer_selector
from elmo.embed.sense import NEARBY_WEIGHT, STATES_WEIGHT, TOKEN_WEIGHT, compute_log_priors, sum_nearby
from tests.formats.tiny import tiny_model

WORDS = ("<S>", "</S>", "<UNK>", "the", "of", "bank", "river", "money", "house", "I", "by", "sat")
SENTENCES = [
    ["I", "sat", "by", "the", "bank", "of", "the", "river"],
    ["The", "bank", "has", "money"],
    ["bank"],
    [],
    ["the"] * 300 + ["bank"],
]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(softmax=True, words=WORDS))


def unit(rows: Any) -> Any:
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def reference(elmo: Elmo, tokens: list[str]) -> Any:
    """Compute the vectors from the definition in the module, one token and one word at a time."""
    ids = elmo.batch([tokens])
    chars = torch.as_tensor(ids.char_ids)
    states = elmo.bilm(chars, lengths=torch.as_tensor(ids.lengths)).layers.states[0].double().numpy()
    half = states.shape[-1] // 2
    assert elmo.softmax is not None
    rows, bias = (part.double().numpy() for part in (elmo.softmax.weight, elmo.softmax.bias))
    prior = np.exp(compute_log_priors(len(rows)).astype(float))
    candidates = [k for k, word in enumerate(WORDS) if word not in ("<S>", "</S>", "<UNK>")]
    vectors = []
    for k in range(len(tokens)):  # position k + 1 with boundaries
        forward, backward = states[-1, k, :half], states[-1, k + 2, half:]
        if len(tokens) > 1:  # a state that has read only a boundary is replaced by the other one
            forward, backward = (backward if k == 0 else forward), (forward if k == len(tokens) - 1 else backward)
        logits = [rows @ state + bias for state in (forward, backward)]
        p_f, p_b = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in logits)
        p = (p_f * p_b / prior**2)[candidates]
        expected = (p / p.sum()) @ unit(rows)[candidates]
        nearby = np.zeros(half)
        for s, token in enumerate(tokens):
            word = token if token in WORDS else token.lower()
            if s != k and word in WORDS and abs(s - k) <= 40:
                row = WORDS.index(word)
                weight = math.exp(-abs(s - k) / 8) * 1e-4 / (1e-4 + prior[row])
                nearby += weight * unit(rows[row])
        context = unit(expected) + STATES_WEIGHT * unit(forward + backward) + NEARBY_WEIGHT * unit(nearby)
        own = TOKEN_WEIGHT * unit(states[0, k + 1, :half])
        vectors.append(np.concatenate([unit(context), own]) / math.sqrt(1 + TOKEN_WEIGHT**2))
    return np.stack(vectors)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_vectors_are_those_of_the_definition(elmo: Elmo, number: int) -> None:
    found = elmo.encode([SENTENCES[number]], layers="sense")[0].vectors
    np.testing.assert_allclose(found, reference(elmo, SENTENCES[number]), atol=2e-5)


def test_the_width_is_that_of_a_layer_and_the_length_is_1(elmo: Elmo) -> None:
    for tokens, encoding in zip(SENTENCES, elmo.encode(SENTENCES, layers="sense"), strict=True):
        assert encoding.vectors.shape == (len(tokens), elmo.width)
        np.testing.assert_allclose(np.linalg.norm(encoding.vectors, axis=1), 1, atol=1e-5)


def test_a_sentence_has_the_same_bits_alone_and_in_any_batch(elmo: Elmo) -> None:
    together = elmo.encode(SENTENCES[::-1] * 30, layers="sense")[-len(SENTENCES) :][::-1]
    for tokens, encoding in zip(SENTENCES, together, strict=True):
        alone = elmo.encode([tokens], layers="sense")[0].vectors
        assert np.array_equal(np.asarray(alone), np.asarray(encoding.vectors))


def test_a_usage_depends_on_its_context_but_hardly_on_the_word_itself(elmo: Elmo) -> None:
    half = elmo.width // 2
    bank, house = (elmo.encode([["by", "the", word, "of"]], layers="sense")[0].vectors[2] for word in ("bank", "house"))
    np.testing.assert_allclose(bank[:half], house[:half], atol=1e-6)
    assert similarity(bank[half:], house[half:]) < 0.999


def test_words_far_away_have_no_weight_and_blocks_have_no_edges() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    expected = [
        sum(math.exp(-abs(i - j) / 8) * rows[j].astype(float) for j in range(300) if 0 < abs(i - j) <= 40)
        for i in range(300)
    ]
    np.testing.assert_allclose(sum_nearby(rows), expected, atol=1e-5)


@pytest.mark.parametrize(("options", "missing"), [({}, "softmax"), ({"softmax": True, "vocab": False}, "vocabulary")])
def test_without_a_softmax_or_a_vocabulary_the_states_are_used_and_one_line_is_logged(
    options: dict[str, bool], missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    bare = Elmo(tiny_model(**options))
    with caplog.at_level(logging.WARNING):
        found = [bare.encode(["I", "sat"], layers="sense")[0].vectors for _ in range(2)]
    assert found[0].shape == (1, bare.width)
    (record,) = caplog.records
    assert record.getMessage() == f"this model has no {missing}: layers='sense' uses only the states around each word"


def test_tensors_other_types_and_start_states_work(elmo: Elmo) -> None:
    (plain,) = elmo.encode(SENTENCES[:1], layers="sense")
    (half,) = elmo.encode(SENTENCES[:1], layers="sense", as_tensor=True, dtype="float16")
    assert half.vectors.dtype == torch.float16
    np.testing.assert_allclose(half.vectors.float(), plain.vectors, atol=1e-3)
    carry = Carry()
    first, second = (elmo.encode(SENTENCES[:1], layers="sense", start=carry)[0].vectors for _ in range(2))
    assert np.array_equal(first, plain.vectors)
    assert not np.array_equal(second[0], first[0])  # the first word is predicted from the carried state


def test_other_layers_are_unchanged_and_sense_needs_a_whole_sentence(elmo: Elmo) -> None:
    mix = LayerMix(elmo.n_layers)
    assert elmo.encode(SENTENCES[:1], layers=mix)[0].vectors.shape == (8, elmo.width)
    with pytest.raises(ConfigError, match=r"layers='sense' cannot be computed from the layers of a token"):
        layer_selector("sense", 3)
    with pytest.raises(ConfigError, match=r"concat, sense, 0\.\.2 or a LayerMix; found 'senses'"):
        elmo.encode(SENTENCES[:1], layers="senses")  # pyright: ignore[reportArgumentType, reportCallIssue]
