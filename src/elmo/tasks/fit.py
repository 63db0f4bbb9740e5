"""The training loop of task models, with early stopping.

Each epoch trains on shuffled batches of examples of similar size, then scores the held-out examples. Training stops
when the score no longer improves, and the weights of the best epoch are kept. Random numbers depend only on the seed
and the epoch, and each epoch ends with a checkpoint, so an interrupted and resumed run gives the same result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, DataError, TrainingError
from elmo.storage.files import format_path
from elmo.tasks.data.examples import Example
from elmo.tasks.features.layer import Lookup, TaskNetwork
from elmo.tasks.kinds.task import Task, count_tokens
from elmo.train.checkpoint import Checkpoints, Snapshot, optimizer_state, optimizer_tensors

E = TypeVar("E", bound=Example)
P = TypeVar("P")
_NETWORK_VERSION = 4  # increased when heads or random numbers change: older checkpoints cannot be resumed
_LEARNING_RATES = {"tagging": 0.005}  # a CRF learns too slowly on small data with the default
_POOL_BATCHES = 50  # number of batches whose examples are sorted by size together


@dataclass(frozen=True)
class FitOptions:
    """Training options of a task model.

    Args:
        epochs: Maximum number of epochs.
        patience: Stop after this many epochs without a better score.
        batch_size: Number of examples per batch.
        max_tokens: Maximum number of tokens per batch, with padding; a longer example is a separate batch.
        learning_rate: Learning rate of AdamW.
        decay: Factor by which the learning rate is multiplied after ``decay_patience`` epochs without a better score.
        decay_patience: Number of epochs without a better score before the learning rate decays.
        weight_decay: Weight decay of AdamW.
        clip: Maximum norm of the gradients.
        seed: Random seed.

    Example:
        >>> options = FitOptions(epochs=5, learning_rate=0.01)
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
        """Return the default options for a kind of task, with some of them replaced by ``values``."""
        return cls(**{"learning_rate": _LEARNING_RATES.get(kind, cls.learning_rate), **values})

    def __post_init__(self) -> None:
        checks = [
            (name, getattr(self, name) >= 1, "at least 1")
            for name in ("epochs", "patience", "batch_size", "max_tokens", "decay_patience")
        ]
        checks += [
            ("learning_rate", 0 < self.learning_rate < math.inf, "a number above 0"),
            ("clip", self.clip > 0, "a number above 0"),
            ("decay", 0 < self.decay <= 1, "a number above 0 and at most 1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "a number of at least 0"),
            ("seed", 0 <= self.seed < 1 << 63, "an integer of at least 0 and below 2^63"),
        ]
        problems = [
            f"{name} must be {rule}; found {getattr(self, name)}" for name, is_valid, rule in checks if not is_valid
        ]
        if problems:
            raise ConfigError(f"training options: {'; '.join(problems)}")


@dataclass(frozen=True)
class Epoch:
    """Result of one training epoch.

    Attributes:
        epoch: Number of the epoch, from 1.
        loss: Mean training loss per example.
        learning_rate: Learning rate in this epoch.
        scores: Scores on the held-out examples, by name.
        is_best: Whether the main score is better than in all earlier epochs.
        mixes: Learned mix at each position (``input``, ``output``): the softmax-normalized weights of the layers
            (``shares``) and the scale ``gamma``.
    """

    epoch: int
    loss: float
    learning_rate: float
    scores: Mapping[str, float]
    is_best: bool
    mixes: Mapping[str, Mapping[str, Any]]


def fit(
    task: Task[E, P],
    train: Sequence[E],
    dev: Sequence[E],
    *,
    network: TaskNetwork,
    lookup: Lookup,
    options: FitOptions,
    folder: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    show_progress: bool = False,
) -> list[Epoch]:
    """Train ``network`` in place, restore the weights of the best epoch, and return the results of all epochs.

    Args:
        task: The task.
        train: Training examples.
        dev: Held-out examples.
        network: The network to train.
        lookup: Function that looks up the features of a batch of sentences.
        options: Training options.
        folder: Folder for checkpoints; None writes no checkpoints.
        identity: Everything besides the options that the result depends on; a run resumes only if it is unchanged.
        on_epoch: Function to call with the result of each epoch.
        show_progress: Show progress bars.
    """
    for name, examples in (("training", train), ("held-out", dev)):
        if not examples:
            raise DataError(f"cannot train: there are no {name} examples")
    checkpoints = None if folder is None else Checkpoints(folder, keep=1)
    run = _FitRun(task, network, lookup, options, checkpoints, run_identity(options, identity))
    with torch.random.fork_rng(devices=[]):
        run.restore()
        while not run.is_finished:
            run.run_epoch(train, dev, show_progress=show_progress)
            run.save_checkpoint()
            if on_epoch is not None:
                on_epoch(run.epochs[-1])
    network.load_state_dict(run.best, strict=False)
    network.eval()
    return run.epochs


def run_identity(options: FitOptions, identity: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return everything that must be unchanged for a run to resume, as JSON values, which checkpoints store."""
    values = {"options": asdict(options), "networks": _NETWORK_VERSION, **(identity or {})}
    return json.loads(json.dumps(values))


def check_resumable(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if ``folder`` has checkpoints of a run with other data or options."""
    latest = Checkpoints(folder).latest() if folder.is_dir() else None
    saved = latest[1].progress.get("identity") if latest else identity
    if saved == identity:
        return
    is_older = isinstance(saved, dict) and saved.get("networks") != _NETWORK_VERSION
    reason = "by another version of elmo" if is_older else "with other data or options"
    raise ConfigError(
        f"cannot resume {format_path(folder)}: the run was started {reason}; remove the folder or choose another output"
    )


@dataclass(eq=False)
class _FitRun:
    """A training run: the network, its optimizer and the epochs so far."""

    task: Task[Any, Any]
    network: TaskNetwork
    lookup: Lookup
    options: FitOptions
    checkpoints: Checkpoints | None
    identity: Mapping[str, Any]
    epochs: list[Epoch] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        learned = [weight for weight in self.network.parameters() if weight.requires_grad]
        rate, decay = self.options.learning_rate, self.options.weight_decay
        self.optimizer = torch.optim.AdamW(learned, lr=rate, weight_decay=decay, fused=True)

    @property
    def is_finished(self) -> bool:
        """Whether the maximum number of epochs is reached, or the score has not improved for ``patience`` epochs."""
        waited = self._epochs_since_best()
        is_stopped = bool(waited) and waited[-1] >= self.options.patience
        return is_stopped or len(self.epochs) >= self.options.epochs

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next epoch."""
        n_decays = sum(n > 0 and n % self.options.decay_patience == 0 for n in self._epochs_since_best())
        return self.options.learning_rate * self.options.decay**n_decays

    def _epochs_since_best(self) -> list[int]:
        """Return, for each epoch, the number of epochs since the best one so far.

        As long as the best score is 0, which is common for F1 in the first epochs, the number stays 0.
        """
        waited: list[int] = []
        best = 0.0
        for epoch in self.epochs:
            best = epoch.scores[self.task.main_score] if epoch.is_best else best
            waited.append(0 if epoch.is_best or best == 0.0 else waited[-1] + 1)
        return waited

    def run_epoch(self, train: Sequence[E], dev: Sequence[E], *, show_progress: bool) -> None:
        """Train one epoch on ``train``, then score ``dev``."""
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
            raise TrainingError(
                f"loss must be finite; found {loss} in epoch {len(self.epochs) + 1}; try a smaller learning rate"
            )
        if loss.requires_grad:  # false if the loss is constant, for example without any located answer
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
            self.optimizer.step()
        return float(task_loss.detach())

    def _learned_state(self) -> dict[str, Tensor]:
        """Return the tensors that training changes: weights with gradients, and buffers."""
        frozen = {name for name, weight in self.network.named_parameters() if not weight.requires_grad}
        return {name: value for name, value in self.network.state_dict().items() if name not in frozen}

    def save_checkpoint(self) -> None:
        """Write a checkpoint, unless the run has no folder."""
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
        """Continue from the last checkpoint, if there is one."""
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
    lookup: Lookup,
    batch_size: int = 64,
    show_progress: bool = False,
) -> list[P]:
    """Return the predictions for all examples, in the same order."""
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
    """Yield batches of examples of similar size, in random order; each example occurs once."""
    order = random.permutation(len(examples))
    batches: list[list[E]] = []
    pool = _POOL_BATCHES * options.batch_size
    for begin in range(0, len(order), pool):
        pooled = sorted((examples[k] for k in order[begin : begin + pool]), key=count_tokens)
        batches += _split_batches(pooled, options)
    for index in random.permutation(len(batches)):
        yield batches[index]


def _split_batches(examples: Sequence[E], options: FitOptions) -> Iterator[list[E]]:
    """Split examples, sorted by size, into batches; the last example of a batch determines the padding."""
    batch: list[E] = []
    for example in examples:
        is_full = len(batch) == options.batch_size
        if batch and (is_full or (len(batch) + 1) * count_tokens(example) > options.max_tokens):
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch
