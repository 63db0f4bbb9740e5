from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import Elmo, perplexity
from elmo.errors import ConfigError, ShapeError
from elmo.formats import native
from elmo.lexicon.sharpen import turned
from tests.formats.tiny import tiny_model

SENTENCES = [["the", "river", "bank"], ["the", "bank"], ["café", "the", "the", "river", "of", "the", "bank"]]
OPTIONS = [
    {},
    {"has_skip": False, "state_clip": None},
    {"n_layers": 3, "cell_clip": None},
    {"n_layers": 1},
    {"token": "words"},
    {"token": "both", "alphabet": "unicode", "forget_bias": 0.0},
]


def matrix(width: int = 4) -> torch.Tensor:
    drawn = torch.randn(width, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.eye(width, dtype=torch.float64) + 0.4 * drawn


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("start", ["zero", "warm"])
def test_states_are_turned_and_probabilities_stay(options: dict[str, Any], start: Any) -> None:
    model = tiny_model(softmax=True, warm=True, **options)
    before, after = Elmo(model), Elmo(turned(model, matrix()))
    for old, new in zip(
        before.encode(SENTENCES, layers="all", start=start),
        after.encode(SENTENCES, layers="all", start=start),
        strict=True,
    ):
        assert np.array_equal(new.vectors[0], old.vectors[0]), "tokens stay as they are"
        halves = np.split(old.vectors[1:], 2, axis=2)
        expected = np.concatenate([half @ matrix().numpy().T for half in halves], axis=2)
        assert np.allclose(new.vectors[1:], expected, atol=2e-6)
    scores = [perplexity(elmo, SENTENCES, start=start)[start] for elmo in (before, after)]
    assert scores[1].forward == pytest.approx(scores[0].forward, rel=1e-5)
    assert scores[1].backward == pytest.approx(scores[0].backward, rel=1e-5)


def test_a_turned_model_is_written_and_read_as_any_other(tmp_path: Path) -> None:
    model = turned(tiny_model(softmax=True, warm=True), matrix())
    native.write(model, tmp_path / "model")
    found = Elmo.from_pretrained(tmp_path / "model")
    assert found.config.lstm.state_clip is None
    assert np.array_equal(*(elmo.encode(SENTENCES[:1])[0].vectors for elmo in (found, Elmo(model))))


def test_there_and_back_is_where_it_was() -> None:
    model = tiny_model(softmax=True, warm=True)
    again = turned(turned(model, matrix()), torch.linalg.inv(matrix()))
    for name, weight in model.weights.items():
        assert torch.allclose(again.weights[name], weight, atol=1e-6), name
    assert model.softmax is not None
    assert again.softmax is not None
    assert torch.allclose(again.softmax.weight, model.softmax.weight, atol=1e-6)


def test_states_that_come_out_of_cells_cannot_be_turned() -> None:
    with pytest.raises(ConfigError, match="not projected"):
        turned(tiny_model(cell_width=4, state_width=4), matrix())


def test_a_matrix_of_another_size_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected a matrix of 4 x 4"):
        turned(tiny_model(), matrix(5))


def test_a_published_mix_stays_and_a_tied_table_still_reads() -> None:
    model = tiny_model("words", softmax=True, mix=True)
    after = turned(model, matrix())
    assert after.mix == model.mix
    assert torch.equal(
        after.weights["token_layer.word_embed.weight"], model.weights["token_layer.word_embed.weight"]
    )
