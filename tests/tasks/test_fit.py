"""Training a task: it learns, stops, is reproducible, and a killed run resumes to the same result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import ConfigError, DataError, Elmo, TrainingError
from elmo.tasks.data.examples import TaggedSentence
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import FeatureCache, FeatureStore
from elmo.tasks.fit import Epoch, FitOptions, shuffled_batches
from elmo.tasks.kinds.tagging import PredictedTags, Tagging, TaggingOptions
from elmo.tasks.model import TaskModel
from tests.formats.tiny import tiny_model

OPTIONS = FitOptions(epochs=4, batch_size=4, learning_rate=0.02)
HEAD = TaggingOptions(hidden_width=8, dropout=0.1)


def sentences(n: int, *, seed: int) -> list[TaggedSentence]:
    """Tag Q and the word after it as X: the tags need the previous word."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        words = [random.choice(["a", "b", "Q"]) for _ in range(random.integers(1, 9))]
        tags = ["X" if "Q" in words[max(k - 1, 0) : k + 1] else "y" for k in range(len(words))]
        found.append(TaggedSentence(tuple(map(str, words)), tuple(tags)))
    return found


TRAIN, DEV = sentences(60, seed=1), sentences(20, seed=2)


@pytest.fixture(scope="module")
def store() -> FeatureStore:
    return FeatureStore(Features(dropout=0.1, characters=8), Elmo(tiny_model()))


def trained(
    store: FeatureStore, *, options: FitOptions = OPTIONS, folder: Path | None = None, **given: object
) -> TaskModel:
    task = Tagging.from_examples(TRAIN, HEAD)
    return TaskModel.train(task, TRAIN, DEV, store=store, options=options, folder=folder, **given)  # pyright: ignore


def weights(model: TaskModel) -> dict[str, torch.Tensor]:
    return model.network.state_dict()


def assert_equal(one: TaskModel, two: TaskModel) -> None:
    assert one.epochs == two.epochs
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(two)[name]), name


@pytest.mark.slow
def test_a_tagger_learns_tags_that_need_context(store: FeatureStore) -> None:
    model = trained(store, options=replace(OPTIONS, epochs=15))
    scores = [epoch.scores["accuracy"] for epoch in model.epochs]
    assert max(scores) > 0.95  # always the commonest tag: 0.53
    assert model.evaluate(DEV)["accuracy"] == max(scores)  # the best epoch's weights are in place


@pytest.mark.slow
def test_the_seed_decides_everything(store: FeatureStore) -> None:
    assert_equal(trained(store), trained(store))
    other = trained(store, options=replace(OPTIONS, seed=2))
    assert not torch.equal(weights(other)["head.lstm.layers.0.ahead.weight_ih_l0"],
                           weights(trained(store))["head.lstm.layers.0.ahead.weight_ih_l0"])  # fmt: skip


def test_training_keeps_the_random_state_of_the_caller(store: FeatureStore) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    trained(store, options=replace(OPTIONS, epochs=1))
    assert torch.equal(torch.rand(2), expected)


class Killed(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 3])
def test_a_killed_run_resumes_to_the_same_result(store: FeatureStore, tmp_path: Path, after: int) -> None:
    whole = trained(store)

    def kill(epoch: Epoch) -> None:
        if epoch.epoch == after:
            raise Killed

    with pytest.raises(Killed):
        trained(store, folder=tmp_path / "run", on_epoch=kill)
    seen: list[int] = []
    again = trained(store, folder=tmp_path / "run", on_epoch=lambda epoch: seen.append(epoch.epoch))
    assert seen == list(range(after + 1, OPTIONS.epochs + 1))
    assert_equal(whole, again)


def test_a_run_resumes_only_with_the_same_data_and_options(store: FeatureStore, tmp_path: Path) -> None:
    trained(store, options=replace(OPTIONS, epochs=1), folder=tmp_path / "run")
    with pytest.raises(ConfigError, match="was started with other data or options"):
        trained(store, options=replace(OPTIONS, epochs=2), folder=tmp_path / "run")
    with pytest.raises(ConfigError, match="was started with other data or options"):
        TaskModel.train(
            Tagging.from_examples(TRAIN, HEAD), TRAIN[1:], DEV, store=store,
            options=replace(OPTIONS, epochs=1), folder=tmp_path / "run",
        )  # fmt: skip


@pytest.mark.slow
def test_training_stops_when_the_score_no_longer_rises(store: FeatureStore) -> None:
    still = replace(OPTIONS, epochs=50, patience=2, learning_rate=1e-12, decay_patience=1, decay=0.5)
    epochs = trained(store, options=still).epochs
    assert [epoch.is_best for epoch in epochs] == [True, False, False]
    assert [epoch.learning_rate for epoch in epochs] == [1e-12, 1e-12, 0.5e-12]


@dataclass(frozen=True)
class Scripted(Tagging):
    """Tagging with predefined held-out scores."""

    def score(self, examples: Sequence[TaggedSentence], predictions: Sequence[PredictedTags]) -> dict[str, float]:
        return {"accuracy": SCRIPT.pop(0)}


SCRIPT: list[float] = []


@pytest.mark.parametrize(
    ("script", "best", "n_epochs"),
    [
        ([-0.4, -0.2, -0.3, -0.25, -0.1], 2, 4),  # correlations may be negative
        ([0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.5], 5, 7),  # nothing right yet is no reason to stop
        ([0.5, 0.5, 0.5, 0.9], 1, 3),
    ],
)
def test_the_best_epoch_is_the_first_with_the_highest_score(
    store: FeatureStore, script: list[float], best: int, n_epochs: int
) -> None:
    SCRIPT[:] = script
    plain = Tagging.from_examples(TRAIN, HEAD)
    task = Scripted(plain.scheme, plain.labels, plain.options)
    options = replace(OPTIONS, epochs=len(script), patience=2)
    epochs = TaskModel.train(task, TRAIN[:8], DEV[:2], store=store, options=options).epochs
    assert (max(epoch.epoch for epoch in epochs if epoch.is_best), len(epochs)) == (best, n_epochs)


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(store: FeatureStore) -> None:
    with pytest.raises(TrainingError, match=r"loss must be finite; found .* in epoch 1; .*smaller learning rate"):
        trained(store, options=replace(OPTIONS, learning_rate=1e30, clip=1e30, epochs=20))


def test_an_empty_list_of_examples_is_refused(store: FeatureStore) -> None:
    task = Tagging.from_examples(TRAIN, HEAD)
    for parts in (([], DEV), (TRAIN, [])):
        with pytest.raises(DataError, match=r"there are no .* examples"):
            TaskModel.train(task, *parts, store=store, options=OPTIONS)


def test_every_example_is_in_one_batch_and_batches_keep_their_limits() -> None:
    examples: Sequence[TaggedSentence] = sentences(300, seed=5)
    options = FitOptions(batch_size=7, max_tokens=30)
    batches = list(shuffled_batches(examples, options, np.random.default_rng(1)))
    seen = sorted(id(example) for batch in batches for example in batch)
    assert seen == sorted(map(id, examples))
    for batch in batches:
        assert len(batch) <= 7
        assert len(batch) == 1 or len(batch) * max(len(example.words) for example in batch) <= 30  # padded
    again = list(shuffled_batches(examples, options, np.random.default_rng(2)))
    assert batches != again


@pytest.mark.slow
def test_cached_and_computed_layers_give_the_same_score(store: FeatureStore, tmp_path: Path) -> None:
    cached = replace(store, cache=FeatureCache(tmp_path))
    one, two = (trained(each, options=replace(OPTIONS, epochs=2)) for each in (store, cached))
    for a, b in zip(one.epochs, two.epochs, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-2)  # half precision
        assert a.scores == pytest.approx(b.scores, abs=0.02)


def test_a_kind_of_task_has_its_own_default_learning_rate() -> None:
    assert FitOptions.for_kind("tagging").learning_rate > FitOptions.for_kind("roles").learning_rate
    assert FitOptions.for_kind("roles") == FitOptions()
    assert FitOptions.for_kind("tagging", learning_rate=0.5, seed=3) == FitOptions(learning_rate=0.5, seed=3)
