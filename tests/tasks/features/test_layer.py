"""The feature layer: vectors for input and output, tuned tables, characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import ConfigError, Elmo
from elmo.tasks.data.examples import TaggedSentence
from elmo.tasks.features.layer import MAX_BYTES, CharacterVectors, Features, TunedTable, character_ids
from elmo.tasks.features.static import StaticVectors, read_static
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.fit import FitOptions
from elmo.tasks.kinds.tagging import Tagging, TaggingOptions
from elmo.tasks.model import TaskModel
from tests.formats.tiny import tiny_model

STATIC = StaticVectors(("the", "bank"), np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
SENTENCES = [("the", "bank", "!"), ("bank",)]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


def vectors(model: Elmo, /, *, training: bool = False, **choice: Any) -> tuple[Any, Any]:
    store = FeatureStore(Features(**choice), model, STATIC)
    network = store.build_layer().train(training)
    return network, network(store.prepare(SENTENCES)(SENTENCES))


def layers(elmo: Elmo, words: tuple[str, ...]) -> torch.Tensor:
    return torch.from_numpy(elmo.encode([list(words)], layers="all")[0].vectors)


def test_static_vectors_and_the_mix_are_concatenated(elmo: Elmo) -> None:
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
def test_each_position_has_its_own_mix(elmo: Elmo, place: str, has_input: bool) -> None:
    network, found = vectors(elmo, elmo=place, mix_penalty=0.5)
    assert set(network.mixes) == ({"input", "output"} if has_input else {"output"})
    assert found.inputs.shape[2] == 2 + elmo.width * has_input
    assert found.outputs.shape == (2, 3, elmo.width)
    network.output_mix.w.data = torch.tensor([50.0, 0.0, 0.0])  # the token layer alone
    again = network(FeatureStore(network.features, elmo, STATIC).prepare(SENTENCES)(SENTENCES))
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
    changed = {name for name, one in network.bilm.named_parameters() if one.grad is not None and one.grad.any()}
    assert any("char" in name for name in changed)
    assert all(one.grad is None for one in elmo.bilm.parameters())  # the user's own model is left alone


def test_a_tuned_bilm_starts_with_the_same_vectors(elmo: Elmo) -> None:
    _, frozen = vectors(elmo, elmo="both")
    _, tuned = vectors(elmo, elmo="both", is_bilm_tuned=True)
    torch.testing.assert_close(tuned.inputs, frozen.inputs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tuned.outputs, frozen.outputs, atol=1e-5, rtol=1e-5)


def test_contradictory_features_are_refused(elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="elmo must be one of none, input, output, both; found 'middle'"):
        Features(elmo="middle")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="cannot use is_bilm_tuned: elmo is 'none'"):
        Features(elmo="none", is_bilm_tuned=True)
    with pytest.raises(ConfigError, match="start must be 'zero' if the biLM is tuned; found 'warm'"):
        FeatureStore(Features(is_bilm_tuned=True), elmo, start="warm")
    with pytest.raises(ConfigError, match="cannot set elmo to 'input': there is no biLM"):
        FeatureStore(Features()).build_layer()
    with pytest.raises(ConfigError, match="cannot use top_only: elmo is 'none'"):
        Features(elmo="none", top_only=True)
    with pytest.raises(ConfigError, match="cannot tune static vectors: there are none"):
        FeatureStore(Features(is_static_tuned=True), elmo).build_layer()
    for choice in (Features(elmo="none"), Features(elmo="output")):
        with pytest.raises(ConfigError, match="a task needs word vectors"):
            FeatureStore(choice, elmo).build_layer()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dropout": 1.0}, "dropout of the ELMo vectors must be at least 0 and below 1; found 1.0"),
        ({"mix_penalty": -0.5}, "mix_penalty must be a number of at least 0; found -0.5"),
        ({"mix_penalty": float("nan")}, "mix_penalty must be a number of at least 0; found nan"),
        ({"characters": -3}, "characters must be at least 0; found -3"),
    ],
)
def test_a_number_out_of_range_is_named(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Features(**choice)


def test_a_repeated_word_is_computed_once_with_the_same_vectors_and_gradients() -> None:
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


CHOICE = Features(elmo="none", is_static_tuned=True)
TRAIN = [TaggedSentence(("the", "bank", "!"), ("D", "N", "P")), TaggedSentence(("bank", "the"), ("N", "D"))]


@pytest.fixture
def static(tmp_path: Path) -> StaticVectors:
    rows = {f"w{k}": k for k in range(50)} | {"bank": 51, "the": 52, "The": 53}
    (tmp_path / "v").write_text("".join(f"{word} {k} {k / 7} -1\n" for word, k in rows.items()))
    return read_static(tmp_path / "v", words={"the", "bank", "!"})


def trained(static: StaticVectors) -> TaskModel:
    task = Tagging.from_examples(TRAIN, TaggingOptions(hidden_width=4))
    options = FitOptions(epochs=3, learning_rate=0.05)
    return TaskModel.train(task, TRAIN, TRAIN, store=FeatureStore(CHOICE, None, static), options=options)


def test_tuned_rows_learn_the_same_as_the_whole_table(static: StaticVectors) -> None:
    assert static.is_used is not None
    assert [static.words[k] for k in static.is_used.nonzero()[0]] == ["bank", "the"]
    some, every = trained(static), trained(StaticVectors(static.words, static.vectors))
    learned = some.network.words.static
    assert isinstance(learned, TunedTable)
    assert {name for name, _ in learned.named_parameters()} == {"tuned"}
    assert learned.tuned.shape == (3, 3)  # words without a vector share one
    one, other = (model.network.state_dict() for model in (some, every))
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)
    table = one["words.static.weight"].numpy()
    assert not table[0].any()
    is_same = (table[2:] == static.vectors).all(axis=1)
    np.testing.assert_array_equal(is_same, ~static.is_used)


def test_a_model_with_tuned_rows_is_saved_as_one_table(static: StaticVectors, tmp_path: Path) -> None:
    model = trained(static)
    model.save(tmp_path / "m.safetensors")
    again = TaskModel.load(tmp_path / "m.safetensors")
    assert [one.to_json() for one in again.predict(TRAIN)] == [one.to_json() for one in model.predict(TRAIN)]
    assert torch.equal(
        again.network.state_dict()["words.static.weight"], model.network.state_dict()["words.static.weight"]
    )


def test_a_table_loads_its_own_state_and_reports_a_missing_weight() -> None:
    table = TunedTable(torch.arange(8.0).reshape(4, 2), torch.tensor([1, 3]))
    with torch.no_grad():
        table.tuned.add_(10)
    kept = table.state_dict()
    assert kept["weight"].tolist() == [[0, 1], [12, 13], [4, 5], [16, 17]]
    other = TunedTable(torch.zeros(4, 2), torch.tensor([3]))
    other.load_state_dict(kept)
    assert other(torch.tensor([[0, 1, 2, 3]]))[0].tolist() == kept["weight"].tolist()
    with pytest.raises(RuntimeError, match="weight"):
        other.load_state_dict({})


def test_a_file_read_without_words_or_with_all_its_words_has_no_used_mask(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("a 1 2\nb 3 4\n")
    assert read_static(tmp_path / "v").is_used is None
    assert read_static(tmp_path / "v", words={"a", "b"}).is_used is None
    assert read_static(tmp_path / "v", words={"a"}, max_words=0).words == ("a",)
