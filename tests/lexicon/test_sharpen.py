from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from elmo import Elmo, perplexity
from elmo.errors import ConfigError, DataError
from elmo.lexicon.sharpen import Sharpened, sharpen
from elmo.text.tokens import Tokens
from tests.formats.tiny import tiny_model
from tests.lexicon.test_near_uses import COMMON, text

WORDS = ("<S>", "</S>", "<UNK>", *COMMON)
SENTENCES = [COMMON[k : k + 12] for k in range(0, 120, 12)]


def model(**options: Any) -> Elmo:
    made = tiny_model(
        words=WORDS, filters=((1, 4), (2, 16)), cell_width=48, state_width=24, char_width=4, **options
    )
    return Elmo(made)


@pytest.fixture(scope="module")
def long_text() -> list[Tokens]:
    return text()


@pytest.fixture(scope="module")
def found(long_text: list[Tokens]) -> Sharpened:
    return sharpen(model(softmax=True, warm=True), long_text)


def test_uses_near_each_other_come_to_lie_closer_together(found: Sharpened) -> None:
    assert found.n_words >= 50
    assert found.before > 0.5
    assert found.after > found.before + 0.02


def test_what_is_predicted_stays_as_it_was(found: Sharpened) -> None:
    both = (model(softmax=True, warm=True), Elmo(found.model))
    scores = [perplexity(elmo, SENTENCES)["zero"].geometric_mean for elmo in both]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)
    vectors = [elmo.encode(SENTENCES[:1])[0].vectors for elmo in both]
    assert not np.allclose(*vectors, atol=0.01)


def test_it_is_the_same_each_time_and_the_card_tells_of_it(found: Sharpened, long_text: list[Tokens]) -> None:
    again = sharpen(model(softmax=True, warm=True), long_text)
    for name, weight in found.model.weights.items():
        assert torch.equal(again.model.weights[name], weight), name
    assert again.model.metadata["sharpened"] == {"words": found.n_words, "seed": 0}


def test_a_model_without_a_softmax_learns_from_the_text_alone(
    found: Sharpened, long_text: list[Tokens]
) -> None:
    alone = sharpen(model(), long_text)
    assert alone.before == found.before
    assert alone.after > alone.before + 0.02
    assert alone.after != found.after


def test_too_little_text_is_refused_in_a_line(long_text: list[Tokens]) -> None:
    with pytest.raises(DataError, match=r"50 words or more that are used twice.* found 0: give more text"):
        sharpen(model(), long_text[:200])


def test_a_model_without_projections_is_refused_before_text_is_read() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    with pytest.raises(ConfigError, match="not projected"):
        sharpen(Elmo(tiny_model(cell_width=4, state_width=4)), never())
