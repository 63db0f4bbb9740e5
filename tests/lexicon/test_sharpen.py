from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import Elmo, perplexity
from elmo.errors import ConfigError, DataError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained
from elmo.lexicon.sharpen import Sharpened, sharpen
from elmo.text.tokenizers import Tokens
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
    return sharpen(model(softmax=True, warm=True), [long_text])


def test_uses_near_each_other_come_to_lie_closer_together(long_text: list[Tokens]) -> None:
    bundled = Elmo.from_pretrained()  # which knows that money is not like a river
    with_softmax = sharpen(bundled, [long_text])
    alone = sharpen(Elmo(replace(bundled.pretrained, softmax=None)), [long_text])
    for found in (with_softmax, alone):
        assert found.n_words >= 50
        assert found.before > 0.55
        assert found.after > found.before + 0.02
    assert with_softmax.before == alone.before
    assert with_softmax.after != alone.after, "it has two teachers"


def test_what_is_predicted_stays_as_it_was(found: Sharpened) -> None:
    both = (model(softmax=True, warm=True), Elmo(found.model))
    scores = [perplexity(elmo, SENTENCES)["zero"].geometric_mean for elmo in both]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)
    vectors = [elmo.encode(SENTENCES[:1])[0].vectors for elmo in both]
    assert not np.allclose(*vectors, atol=0.01)


def test_it_is_the_same_each_time_and_the_card_tells_of_it(
    found: Sharpened, long_text: list[Tokens], tmp_path: Path
) -> None:
    again = sharpen(model(softmax=True, warm=True), [long_text])
    for name, weight in found.model.weights.items():
        assert torch.equal(again.model.weights[name], weight), name
    assert again.model.metadata["sharpened"] == {"words": found.n_words, "seed": 0}
    native.write(found.model, tmp_path / "model")
    assert "turned by `elmo sharpen`" in (tmp_path / "model" / "README.md").read_text()
    native.write(model().as_pretrained(), tmp_path / "other")
    assert "sharpen" not in (tmp_path / "other" / "README.md").read_text()


def test_weights_as_they_are_now_are_turned_and_a_named_tokenizer_is_kept(long_text: list[Tokens]) -> None:
    elmo = Elmo(model(softmax=True).pretrained, tokenizer="whitespace").to(dtype="float64")
    with torch.no_grad():
        for weight in elmo.bilm.token_layer.parameters():
            weight.mul_(0.5)
    after = sharpen(elmo, [long_text]).model
    assert after.metadata["tokenizer"] == "whitespace"
    tokens = [each.encode(SENTENCES[:1], layers=0)[0].vectors for each in (elmo, Elmo(after))]
    assert np.allclose(*tokens, atol=1e-5)


def test_a_model_of_one_direction_keeps_its_empty_half(long_text: list[Tokens]) -> None:
    whole = model(softmax=True).pretrained
    weights = {
        name: torch.zeros_like(weight) if name.startswith("backward") else weight
        for name, weight in whole.weights.items()
    }
    found = sharpen(Elmo(replace(whole, weights=weights)), [long_text])
    vectors = Elmo(found.model).encode(SENTENCES[:1], layers=2)[0].vectors
    assert not vectors[:, 24:].any()
    assert vectors[:, :24].any()


def test_states_that_were_clipped_are_counted(found: Sharpened, long_text: list[Tokens]) -> None:
    assert found.clipped < 0.001
    clipped = sharpen(model(softmax=True, state_clip=0.2), [long_text]).clipped
    free = Elmo(replace_clip(model(softmax=True).pretrained))
    states = np.concatenate([each.vectors[1] for each in free.encode(SENTENCES, layers="all")])
    assert clipped == pytest.approx((np.abs(states) >= 0.2).mean(), abs=0.15)
    assert clipped > 0.01


def replace_clip(model: Pretrained) -> Pretrained:
    return replace(model, config=replace(model.config, lstm=replace(model.config.lstm, state_clip=None)))


def test_too_little_text_is_refused_in_a_line(long_text: list[Tokens]) -> None:
    with pytest.raises(
        DataError,
        match=r"50 words or more .* found 0: .*split longer lines .*give more text",
    ):
        sharpen(model(), [long_text[:200]])


def test_a_model_without_projections_is_refused_before_text_is_read() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    with pytest.raises(ConfigError, match="not projected"):
        sharpen(Elmo(tiny_model(cell_width=4, state_width=4)), never())
