"""Fit a task network: train on examples and keep the weights of the best epoch on held-out examples.

Each epoch trains on shuffled batches of examples of similar size, then scores the held-out examples; training
stops when the score no longer rises. All random numbers depend only on the seed and the epoch, and each epoch
ends with a checkpoint, so that a run that is killed and resumed gives the same result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, DataError, TrainingError
from elmo.storage.files import format_path
from elmo.tasks.data.examples import Example
from elmo.tasks.features.layer import TaskNetwork
from elmo.tasks.features.store import FeatureLookup
from elmo.tasks.kinds.task import Task, count_tokens
from elmo.train.checkpoint import Checkpoints, Snapshot, optimizer_state, optimizer_tensors

E = TypeVar("E", bound=Example)
P = TypeVar("P")
_NETWORK_VERSION = 4  # version of heads and random numbers: checkpoints of another version are refused
_LEARNING_RATES = {"tagging": 0.005}  # by kind: a CRF learns too slowly at the default on small data
_POOL_BATCHES = 50  # examples of this many batches are sorted by size together


@dataclass(frozen=True)
class FitOptions:
    """How a task is trained.

    Args:
        epochs: Maximum number of epochs.
        patience: Stop after this many epochs without a better score.
        batch_size: Examples per batch.
        max_tokens: Maximum tokens of a batch with padding; a longer example is a batch by itself.
        learning_rate: Learning rate of AdamW.
        decay: Factor for the learning rate after ``decay_patience`` epochs without a better score.
        decay_patience: Epochs without a better score before the learning rate decays.
        weight_decay: Weight decay of AdamW.
        clip: Maximum norm of the gradients.
        seed: Random seed.
    """

    epochs: int = 50
    patience: int = 6
    batch_size: int = 32
    max_tokens: int = 4096
    learning_rate: float = 0.001
    decay: float = 0.5
    decay_patience: int = 2
    weight_decay: float = 0.0
    clip: float = 5.0
    seed: int = 1

    @classmethod
    def for_kind(cls, kind: str, **values: Any) -> FitOptions:
        """Return the defaults of a kind of task, with some ``values`` replaced."""
        return cls(**{"learning_rate": _LEARNING_RATES.get(kind, cls.learning_rate), **values})

    def __post_init__(self) -> None:
        counts = ("epochs", "patience", "batch_size", "max_tokens", "decay_patience")
        problems = [
            f"{name} must be at least 1, found {getattr(self, name)}" for name in counts if getattr(self, name) < 1
        ]
        for name, is_valid, expected in (
            ("learning_rate", 0 < self.learning_rate < math.inf, "a number above 0"),
            ("clip", self.clip > 0, "a number above 0"),
            ("decay", 0 < self.decay <= 1, "a number above 0 and at most 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "a number of at least 0"),
            ("seed", 0 <= self.seed < 1 << 63, "an integer of at least 0 and below 2^63"),
        ):
            if not is_valid:
                problems.append(f"{name} must be {expected}, found {getattr(self, name)}")
        if problems:
            raise ConfigError(f"training options: {'; '.join(problems)}")


@dataclass(frozen=True)
class Epoch:
    """Result of one epoch."""

    epoch: int  # from 1
    loss: float
    learning_rate: float
    scores: Mapping[str, float]  # held-out
    is_best: bool  # best so far
    mixes: Mapping[str, Mapping[str, Any]]  # by position (input, output): shares of the layers, and gamma


def fit(
    task: Task[E, P],
    train: Sequence[E],
    dev: Sequence[E],
    *,
    network: TaskNetwork,
    lookup: FeatureLookup,
    options: FitOptions,
    folder: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    show_progress: bool = False,
) -> list[Epoch]:
    """Train ``network`` in place, load the weights of its best epoch, and return all epochs.

    ``folder`` keeps checkpoints; a run with the same ``identity`` resumes from them.
    """
    for name, examples in (("training", train), ("held-out", dev)):
        if not examples:
            raise DataError(f"expected {name} examples, found none")
    run = _FitRun(task, network, lookup, options=options, folder=folder, identity=run_identity(options, identity))
    with torch.random.fork_rng(devices=[]):
        run.restore()
        while not run.is_finished:
            run.run_epoch(train, dev, show_progress=show_progress)
            run.save_checkpoint()
            on_epoch(run.epochs[-1])
    network.load_state_dict(run.best, strict=False)
    network.eval()
    return run.epochs


def run_identity(options: FitOptions, identity: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return everything that must be equal for a run to resume, as read from a checkpoint."""
    values = {"options": asdict(options), "networks": _NETWORK_VERSION, **(identity or {})}
    return json.loads(json.dumps(values))


def check_resumable(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if ``folder`` has checkpoints of a run with another identity."""
    latest = Checkpoints(folder).latest() if folder.is_dir() else None
    if latest is None:
        return
    saved = latest[1].progress.get("identity")
    if saved == identity:
        return
    is_older = isinstance(saved, dict) and saved.get("networks") != _NETWORK_VERSION
    reason = "by another version of elmo" if is_older else "with other data or options"
    raise ConfigError(
        f"{format_path(folder)}: this run was started {reason}; remove the folder, or choose another output"
    )


class _FitRun:
    """The state of a run between epochs."""

    def __init__(
        self,
        task: Task[Any, Any],
        network: TaskNetwork,
        lookup: FeatureLookup,
        *,
        options: FitOptions,
        folder: Path | None,
        identity: Mapping[str, Any],
    ) -> None:
        self.task, self.network, self.lookup, self.options = task, network, lookup, options
        self.identity = identity
        self.checkpoints = None if folder is None else Checkpoints(folder, keep=1)
        learned = [weight for weight in network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            learned, lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
        )
        self.epochs: list[Epoch] = []
        self.best: dict[str, Tensor] = {}

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done, or the score has not risen for too long."""
        waited = self._epochs_since_best()
        is_stopped = bool(waited) and waited[-1] >= self.options.patience
        return is_stopped or len(self.epochs) >= self.options.epochs

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next epoch."""
        n_decays = sum(n > 0 and n % self.options.decay_patience == 0 for n in self._epochs_since_best())
        return self.options.learning_rate * self.options.decay**n_decays

    def _epochs_since_best(self) -> list[int]:
        """Return for each epoch the number of epochs since the best one.

        While the best score is 0 (F1 in the first epochs on small data), the count does not start.
        """
        waited: list[int] = []
        best = 0.0
        for epoch in self.epochs:
            best = epoch.scores[self.task.main_score] if epoch.is_best else best
            waited.append(0 if epoch.is_best or best == 0.0 else waited[-1] + 1)
        return waited

    def run_epoch(self, train: Sequence[E], dev: Sequence[E], *, show_progress: bool) -> None:
        """Train on all batches of ``train``, then score ``dev``."""
        number, learning_rate = len(self.epochs) + 1, self.learning_rate
        seed = np.random.SeedSequence((self.options.seed, number))
        torch.manual_seed(int(seed.generate_state(1, np.uint32)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        batches = list(shuffled_batches(train, self.options, np.random.default_rng(seed)))
        self.network.train()
        total = 0.0
        for batch in track_progress(batches, f"Epoch {number}", is_shown=show_progress):
            total += self._step(batch) * len(batch)
        predictions = predict(self.task, dev, network=self.network, lookup=self.lookup)
        scores = self.task.score(dev, predictions)
        main = self.task.main_score
        is_best = all(scores[main] > epoch.scores[main] for epoch in self.epochs)
        mixes = {
            position: {"shares": mix.shares.tolist(), "gamma": mix.gamma.item()}
            for position, mix in self.network.words.mixes.items()
        }
        self.epochs.append(Epoch(number, total / len(train), learning_rate, scores, is_best, mixes))
        if is_best:
            self.best = {name: weight.detach().clone() for name, weight in self._learned_state().items()}

    def _step(self, batch: Sequence[E]) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        task_loss = self.task.loss(
            self.network.head, lambda sentences: self.network.embed(self.lookup, sentences), batch
        )
        loss = task_loss + self.network.words.penalty()
        if not torch.isfinite(loss):
            raise TrainingError(f"the loss is not finite in epoch {len(self.epochs) + 1}; try a smaller learning rate")
        if loss.requires_grad:  # false for a document without mentions
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
            self.optimizer.step()
        return float(task_loss.detach())

    def _learned_state(self) -> dict[str, Tensor]:
        """Return what training changes: weights with gradients, and buffers (running means)."""
        frozen = {name for name, weight in self.network.named_parameters() if not weight.requires_grad}
        return {name: value for name, value in self.network.state_dict().items() if name not in frozen}

    def save_checkpoint(self) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.checkpoints is None:
            return
        tensors = {
            "weights": self._learned_state(),
            "optimizer": optimizer_tensors(self.optimizer.state_dict()["state"]),
            "best": self.best,
        }
        progress = {"identity": self.identity, "epochs": [asdict(epoch) for epoch in self.epochs]}
        self.checkpoints.save(Snapshot(tensors, progress), step=len(self.epochs))

    def restore(self) -> None:
        """Restore the last checkpoint, if there is one."""
        latest = self.checkpoints.latest() if self.checkpoints else None
        if latest is None or self.checkpoints is None:
            return
        check_resumable(self.checkpoints.folder, self.identity)
        snapshot = latest[1]
        self.network.load_state_dict(dict(snapshot.tensors["weights"]), strict=False)
        state = optimizer_state(snapshot.tensors["optimizer"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.best = dict(snapshot.tensors["best"])
        self.epochs = [Epoch(**epoch) for epoch in snapshot.progress["epochs"]]


def predict(
    task: Task[E, P],
    examples: Sequence[E],
    *,
    network: TaskNetwork,
    lookup: FeatureLookup,
    batch_size: int = 64,
    show_progress: bool = False,
) -> list[P]:
    """Predict all examples; the predictions are in the order of the examples."""
    order = sorted(range(len(examples)), key=lambda k: count_tokens(examples[k]))  # less padding
    batches = list(_split_batches([examples[k] for k in order], FitOptions(batch_size=batch_size)))
    was_training = network.training
    network.eval()
    predictions: list[P] = []
    with torch.inference_mode():
        for batch in track_progress(batches, "Predicting", is_shown=show_progress):
            predictions += task.predict(network.head, lambda sentences: network.embed(lookup, sentences), batch)
    network.train(was_training)
    by_index = dict(zip(order, predictions, strict=True))
    return [by_index[k] for k in range(len(examples))]


def shuffled_batches(examples: Sequence[E], options: FitOptions, random: np.random.Generator) -> Iterator[list[E]]:
    """Yield batches of examples of similar size in random order; each example occurs once."""
    order = random.permutation(len(examples))
    batches: list[list[E]] = []
    pool = _POOL_BATCHES * options.batch_size
    for begin in range(0, len(order), pool):
        pooled = sorted((examples[k] for k in order[begin : begin + pool]), key=count_tokens)
        batches += _split_batches(pooled, options)
    for index in random.permutation(len(batches)):
        yield batches[index]


def _split_batches(examples: Sequence[E], options: FitOptions) -> Iterator[list[E]]:
    """Split examples that are sorted by size: the last one of a batch determines its padding."""
    batch: list[E] = []
    for example in examples:
        is_full = len(batch) == options.batch_size
        if batch and (is_full or (len(batch) + 1) * count_tokens(example) > options.max_tokens):
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
