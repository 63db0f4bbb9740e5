"""The outputs of TF-Hub's elmo module."""

from __future__ import annotations

import numpy as np
import pytest

from elmo import DataError, Elmo
from tests.formats.tiny import tiny_model

TEXT = "I sat by the bank of the river ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True, mix=True))


def test_outputs_have_the_names_and_shapes_of_the_hub_module(elmo: Elmo) -> None:
    values = elmo.outputs(["the cat is on the mat", "dogs are in  the fog .", ""])
    every = elmo.encode([["the", "cat", "is", "on", "the", "mat"]], layers="all")[0].vectors
    assert {name: value.shape for name, value in values.items()} == {
        "word_emb": (3, 6, 4),
        "lstm_outputs1": (3, 6, 8),
        "lstm_outputs2": (3, 6, 8),
        "elmo": (3, 6, 8),
        "default": (3, 8),
    }
    np.testing.assert_array_equal(values["word_emb"][0], every[0, :, :4])
    np.testing.assert_array_equal(values["lstm_outputs2"][0], every[2])
    shares = np.exp([0.0, 0.5, 1.0]) / np.exp([0.0, 0.5, 1.0]).sum()  # the mix of the tiny model, γ 1.25
    np.testing.assert_allclose(values["elmo"][0], 1.25 * np.einsum("l,ltw->tw", shares, every), atol=1e-6)
    np.testing.assert_allclose(values["default"][0], values["elmo"][0].mean(axis=0), atol=1e-6)
    assert not values["default"][2].any()


def test_outputs_for_tokens_use_the_lengths_and_ignore_padding(elmo: Elmo) -> None:
    rows = [["the", "cat", "is", "on", "the", "mat"], ["dogs", "are", "in", "the", "fog", ""]]
    values = elmo.outputs(tokens=rows, lengths=[6, 5])
    again = elmo.outputs([" ".join(rows[0]), "dogs are in the fog"])
    for name, value in values.items():
        np.testing.assert_array_equal(value, again[name])
    assert not values["elmo"][1, 5].any()
    with pytest.raises(DataError, match=r"length of row 1 must be in 0\.\.6; found 7"):
        elmo.outputs(tokens=rows, lengths=[6, 7])
    with pytest.raises(DataError, match="lengths must have 2 values"):
        elmo.outputs(tokens=rows, lengths=[6])
    with pytest.raises(DataError, match="row 0 must be a list of tokens; found one string"):
        elmo.outputs(tokens=["the cat"], lengths=[2])
    with pytest.raises(DataError, match="either sentences or tokens"):
        elmo.outputs()
