from __future__ import annotations

import numpy as np
import pytest

from elmo import ConfigError
from elmo.embed.elmo import Elmo
from elmo.lexicon.substitutes import ContextPredictor, embed_substitutes
from elmo.lexicon.usages import Usage
from elmo.text.tokenizers import Tokens
from tests.embed.sentences import tiny_elmo


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return tiny_elmo(softmax=True)


def usage(*tokens: str, at: int = 1) -> Usage:
    return Usage(Tokens.given(tokens), at, at + 1)


def test_a_vector_is_the_mean_of_the_words_expected_there(elmo: Elmo) -> None:
    usages = [usage("the", "bank", "river"), usage("x", "y", "z", at=0)]
    found = embed_substitutes(elmo, usages)
    assert elmo.softmax is not None
    weight = elmo.softmax.weight.numpy()
    units = weight / np.linalg.norm(weight, axis=1, keepdims=True)
    for vector, one in zip(found.vectors, ContextPredictor(elmo)(usages), strict=True):
        assert one.forward is not None and one.backward is not None  # noqa: PT018
        odds = np.exp((one.forward + one.backward) / 2) * np.arange(1, len(weight) + 1)
        odds[:3] = 0  # boundaries and the unknown word
        assert np.allclose(vector, odds @ units / odds.sum(), atol=1e-6)


def test_only_the_place_counts_not_the_word(elmo: Elmo) -> None:
    a, b = embed_substitutes(elmo, [usage("the", "bank", "river"), usage("the", "Café", "river")]).vectors
    assert np.array_equal(a, b)


def test_many_usages_give_what_each_gives_alone(elmo: Elmo) -> None:
    usages = [usage("a" * k, "bank", "river") for k in range(1, 140)]
    heard: list[int] = []
    together = embed_substitutes(elmo, usages, on_progress=heard.append).vectors
    assert heard[-1] == len(usages)
    for k in (0, 70, 138):
        assert np.allclose(embed_substitutes(elmo, [usages[k]]).vectors[0], together[k], atol=1e-6)
    assert embed_substitutes(elmo, []).vectors.shape == (0, together.shape[1])


def test_a_model_without_softmax_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no softmax"):
        embed_substitutes(tiny_elmo(), [usage("a", "b")])
