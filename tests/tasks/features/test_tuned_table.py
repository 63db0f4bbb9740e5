"""Tuned static vectors: rows that the data meets are learned, and nothing else of the table is touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.tasks.data.examples import TaggedSentence
from elmo.tasks.features.layer import Features
from elmo.tasks.features.layer import TunedTable
from elmo.tasks.features.static import StaticVectors, read_static
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.fit import FitOptions
from elmo.tasks.kinds.tagging import Tagging, TaggingOptions
from elmo.tasks.model import TaskModel

CHOICE = Features(elmo="none", is_static_tuned=True)
TRAIN = [
    TaggedSentence(("the", "bank", "!"), ("D", "N", "P")),
    TaggedSentence(("bank", "the"), ("N", "D")),
]


@pytest.fixture
def static(tmp_path: Path) -> StaticVectors:
    rows = {f"w{k}": k for k in range(50)} | {"bank": 51, "the": 52, "The": 53}
    (tmp_path / "v").write_text("".join(f"{word} {k} {k / 7} -1\n" for word, k in rows.items()))
    return read_static(tmp_path / "v", words={"the", "bank", "!"})


def trained(static: StaticVectors) -> TaskModel:
    task = Tagging.from_examples(TRAIN, TaggingOptions(hidden_width=4))
    options = FitOptions(epochs=3, learning_rate=0.05)
    return TaskModel.train(task, TRAIN, TRAIN, store=FeatureStore(CHOICE, None, static), options=options)


def test_what_is_learned_is_what_the_whole_table_would_have_learned(static: StaticVectors) -> None:
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


def test_a_table_takes_back_what_it_gave_and_misses_what_is_not_there() -> None:
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


def test_a_file_read_for_no_words_or_for_all_of_its_words_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "v").write_text("a 1 2\nb 3 4\n")
    assert read_static(tmp_path / "v").is_used is None
    assert read_static(tmp_path / "v", words={"a", "b"}).is_used is None
    assert read_static(tmp_path / "v", words={"a"}, max_words=0).words == ("a",)
