"""[x; ELMo]: what stands where, what is learned of it, and that padding changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from elmo import ConfigError, Elmo
from elmo.tasks.features.layer import MAX_BYTES, CharacterVectors, Features, character_ids
from elmo.tasks.features.static import StaticVectors
from elmo.tasks.features.store import FeatureStore
from tests.formats.tiny import tiny_model

STATIC = StaticVectors(("the", "bank"), np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
SENTENCES = [("the", "bank", "!"), ("bank",)]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


def vectors(model: Elmo, /, *, training: bool = False, **choice: Any) -> tuple[Any, Any]:
    store = FeatureStore(Features(**choice), model, STATIC)
    network = store.build_layer().train(training)
    return network, network(store.prepare(SENTENCES).batch(SENTENCES))


def layers(elmo: Elmo, words: tuple[str, ...]) -> torch.Tensor:
    return torch.from_numpy(elmo.encode([list(words)], layers="all")[0].vectors)


def test_static_vectors_then_the_mix_stand_side_by_side(elmo: Elmo) -> None:
    network, found = vectors(elmo)
    assert found.outputs is None
    assert (network.widths.inputs, network.widths.outputs) == (2 + elmo.width, 0)
    assert found.mask.tolist() == [[True, True, True], [True, False, False]]
    mean = [2.0, 4.0]  # of all words: for one that has no vector
    assert found.inputs[0, :, :2].tolist() == [[1.0, 2.0], [3.0, 6.0], mean]
    torch.testing.assert_close(found.inputs[0, :, 2:], layers(elmo, SENTENCES[0]).mean(dim=0))
    torch.testing.assert_close(found.inputs[1, 0, 2:], layers(elmo, SENTENCES[1]).mean(dim=0)[0])
    assert not found.inputs[1, 1:].any()


@pytest.mark.parametrize(("place", "has_input"), [("output", False), ("both", True)])
def test_each_place_has_a_mix_of_its_own(elmo: Elmo, place: str, has_input: bool) -> None:
    network, found = vectors(elmo, elmo=place, mix_penalty=0.5)
    assert set(network.mixes) == ({"input", "output"} if has_input else {"output"})
    assert found.inputs.shape[2] == 2 + elmo.width * has_input
    assert found.outputs.shape == (2, 3, elmo.width)
    network.output_mix.w.data = torch.tensor([50.0, 0.0, 0.0])  # the token layer alone
    again = network(FeatureStore(network.features, elmo, STATIC).prepare(SENTENCES).batch(SENTENCES))
    torch.testing.assert_close(again.outputs[0], layers(elmo, SENTENCES[0])[0])
    if has_input:
        torch.testing.assert_close(again.inputs, found.inputs)
    assert network.penalty().item() == pytest.approx(0.5 * 2500)


def test_only_what_a_task_learns_has_gradients(elmo: Elmo) -> None:
    for choice, learned in (
        ({}, {"input_mix.w", "input_mix.gamma"}),
        ({"top_only": True}, {"input_mix.gamma"}),
        ({"elmo": "none", "is_static_tuned": True}, {"static.weight"}),
        ({"elmo": "none", "characters": 3}, {"characters.embedding.weight", "characters.filters.weight",
                                             "characters.filters.bias"}),
    ):  # fmt: skip
        network, _ = vectors(elmo, **choice)
        assert {name for name, one in network.named_parameters() if one.requires_grad} == learned
    network, found = vectors(elmo, is_bilm_tuned=True, training=True, dropout=0.0)
    found.inputs.square().sum().backward()
    changed = {
        name for name, one in network.bilm.named_parameters() if one.grad is not None and one.grad.any()
    }
    assert any("char" in name for name in changed)
    assert all(one.grad is None for one in elmo.bilm.parameters())  # the user's own model is left alone


def test_a_bilm_that_is_tuned_starts_with_the_same_vectors(elmo: Elmo) -> None:
    _, frozen = vectors(elmo, elmo="both")
    _, tuned = vectors(elmo, elmo="both", is_bilm_tuned=True)
    torch.testing.assert_close(tuned.inputs, frozen.inputs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tuned.outputs, frozen.outputs, atol=1e-5, rtol=1e-5)


def test_choices_that_contradict_each_other_are_refused(elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="elmo: expected one of none, input, output, both, found 'middle'"):
        Features(elmo="middle")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="a biLM that is given no place cannot be fine-tuned"):
        Features(elmo="none", is_bilm_tuned=True)
    with pytest.raises(
        ConfigError, match="a biLM that is fine-tuned starts from zero, found the start 'warm'"
    ):
        FeatureStore(Features(is_bilm_tuned=True), elmo, start="warm")
    with pytest.raises(ConfigError, match="ELMo is wanted at input, but no model was given"):
        FeatureStore(Features()).build_layer()
    with pytest.raises(ConfigError, match="the top layer alone is wanted, but ELMo is at none"):
        Features(elmo="none", top_only=True)
    with pytest.raises(ConfigError, match="static vectors are to be fine-tuned, but none were given"):
        FeatureStore(Features(is_static_tuned=True), elmo).build_layer()
    for choice in (Features(elmo="none"), Features(elmo="output")):
        with pytest.raises(ConfigError, match="a task needs vectors of words"):
            FeatureStore(choice, elmo).build_layer()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dropout": 1.0}, "dropout of the ELMo vectors: expected 0 <= dropout < 1, found 1.0"),
        ({"mix_penalty": -0.5}, "mix penalty: expected a number from 0, found -0.5"),
        ({"mix_penalty": float("nan")}, "mix penalty: expected a number from 0, found nan"),
        ({"characters": -3}, "width of character vectors: expected 0 or more, found -3"),
    ],
)
def test_a_number_out_of_range_is_named(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Features(**choice)


def test_a_word_that_stands_often_is_read_once_with_the_same_vectors_and_gradients() -> None:
    torch.manual_seed(0)
    network = CharacterVectors(4)
    rows = [("the", "bank", "the"), ("the",), ()]
    ids = character_ids(rows, 3)
    assert (len(ids.words), ids.rows.tolist()) == (3, [[1, 2, 1], [1, 0, 0], [0, 0, 0]])
    together = network(ids)
    singly = [network(character_ids([(word,)], 1))[0, 0] for words in rows for word in words]
    is_word = ids.rows > 0
    torch.testing.assert_close(together[is_word], torch.stack(singly))
    assert not together[~is_word].any()
    found = torch.autograd.grad(together.square().sum(), list(network.parameters()))
    expected = torch.autograd.grad(torch.stack(singly).square().sum(), list(network.parameters()))
    torch.testing.assert_close(found, expected)
    assert network(character_ids([()], 1)).tolist() == [[[0.0] * 4]]


def test_characters_are_read_in_any_script_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    network = CharacterVectors(4)
    rows = [("苹果", "a"), ("a" * 100, "\ud800")]
    together = network(character_ids([*rows, ("b",)], 2))
    assert together.shape == (3, 2, 4)
    assert not together[2, 1].any()
    alone = network(character_ids([("a",)], 1))
    torch.testing.assert_close(together[0, 1], alone[0, 0])
    cut = network(character_ids([("a" * MAX_BYTES,)], 1))
    torch.testing.assert_close(together[1, 0], cut[0, 0])
    assert not torch.equal(together[0, 0], together[0, 1])
