"""Examples in, runs of them out that can be held at a time, in their order.

A task, its examples and a network in, the network at its best on held-out examples out.

Epochs over shuffled batches of examples of like size; after each the held-out score, which stops the run when
it no longer rises. Everything random follows from the seed and the epoch, and each epoch ends with a
checkpoint: a run that is killed goes on to the same result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, DataError, TrainingError, raise_all
from elmo.storage.files import format_path
from elmo.tasks.data.examples import Document, Example
from elmo.tasks.features.layer import TaskNetwork, FeatureLookup
from elmo.tasks.kinds.task import Task, size
from elmo.train.checkpoint import Checkpoints, Snapshot, optimiser_state, optimiser_tensors

E = TypeVar("E", bound=Example)
EXAMPLES = 512  # enough to find some of like size, which are padded little
TOKENS = 50_000


def pieces(examples: Iterable[E]) -> Iterator[list[E]]:
    """Some hundred examples, fewer where they are long; a document is a piece of its own."""
    piece: list[E] = []
    n_tokens = 0
    for example in examples:
        piece.append(example)
        n_tokens += size(example)
        if len(piece) >= EXAMPLES or n_tokens >= TOKENS or isinstance(example, Document):
            yield piece
            piece, n_tokens = [], 0
    if piece:
        yield piece


P = TypeVar("P")
_NETWORKS = 3  # the version of heads and draws: a checkpoint of another one is not gone on with
_RATES = {"tagging": 0.005}  # learning rates by kind: a CRF of few sentences learns little by the others'
_POOL = 50  # batches whose examples are sorted by size together


@dataclass(frozen=True)
class FitOptions:
    """How a task is learned."""

    epochs: int = 50
    patience: int = 6  # epochs without a better score after which the run ends
    batch_size: int = 32  # examples
    max_tokens: int = 4096  # of a batch, padding counted; an example that has more goes alone
    learning_rate: float = 0.001
    decay: float = 0.5  # of the learning rate, after ``decay_patience`` epochs without a better score
    decay_patience: int = 2
    weight_decay: float = 0.0
    clip: float = 5.0
    seed: int = 1

    @classmethod
    def for_kind(cls, kind: str, **given: Any) -> FitOptions:
        """What tasks of a kind learn well with, but for what is ``given``."""
        return cls(**{"learning_rate": _RATES.get(kind, cls.learning_rate), **given})

    def __post_init__(self) -> None:
        counts = ("epochs", "patience", "batch_size", "max_tokens", "decay_patience")
        problems = [f"{name} must be at least 1, found {getattr(self, name)}" for name in counts
                    if getattr(self, name) < 1]  # fmt: skip
        for name, is_right, wanted in (
            ("learning_rate", 0 < self.learning_rate < math.inf, "positive"),
            ("clip", self.clip > 0, "positive"),
            ("decay", 0 < self.decay <= 1, "in 0..1"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "not negative"),
            ("seed", 0 <= self.seed < 1 << 63, "in 0..2^63, below"),
        ):
            if not is_right:
                problems.append(f"{name} must be {wanted}, found {getattr(self, name)}")
        raise_all(problems, subject="how a task is learned", kind=ConfigError)


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    epoch: int  # from 1
    loss: float
    learning_rate: float
    scores: Mapping[str, float]  # held-out
    is_best: bool
    mixes: Mapping[str, Mapping[str, Any]]  # by place: shares of the layers, and gamma


def fit(
    task: Task[E, P],
    train: Sequence[E],
    dev: Sequence[E],
    *,
    network: TaskNetwork,
    source: FeatureLookup,
    options: FitOptions,
    folder: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    show_progress: bool = False,
) -> list[Epoch]:
    """Train ``network`` in place and leave it with the weights of its best epoch; what each epoch came to.

    ``folder`` keeps checkpoints, from which a run with the same ``identity`` goes on.
    """
    for name, examples in (("training", train), ("held-out", dev)):
        if not examples:
            raise DataError(f"expected {name} examples, found none")
    begun = run_identity(options, identity)
    run = _Run(task, network, source, options=options, folder=folder, identity=begun)
    with torch.random.fork_rng(devices=[]):
        run.restore()
        while not run.is_over:
            run.epoch(train, dev, show_progress=show_progress)
            run.keep()
            on_epoch(run.epochs[-1])
    run.take_best()
    return run.epochs


def check_begun(folder: Path, identity: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with something else; cheap, and so done first."""
    found = Checkpoints(folder).latest() if folder.is_dir() else None
    begun = None if found is None else found[1].progress.get("identity")
    if found is None or begun == _plain(identity):
        return
    is_older = isinstance(begun, dict) and begun.get("networks") != _NETWORKS
    how = "by another version of elmo" if is_older else "with other data or options"
    raise ConfigError(f"{format_path(folder)}: was begun {how}; remove it, or name another place")


class _Run:
    """The state of a run, between epochs."""

    def __init__(
        self,
        task: Task[Any, Any],
        network: TaskNetwork,
        source: FeatureLookup,
        *,
        options: FitOptions,
        folder: Path | None,
        identity: Mapping[str, Any],
    ) -> None:
        self.task, self.network, self.source, self.options = task, network, source, options
        self.identity = identity
        self.checkpoints = None if folder is None else Checkpoints(folder, keep=1)
        learned = [weight for weight in network.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            learned, lr=options.learning_rate, weight_decay=options.weight_decay, fused=True
        )
        self.epochs: list[Epoch] = []
        self.best: dict[str, Tensor] = {}

    @property
    def is_over(self) -> bool:
        waited = self._waited()
        is_tired = bool(waited) and waited[-1] >= self.options.patience
        return is_tired or len(self.epochs) >= self.options.epochs

    @property
    def rate(self) -> float:
        """The learning rate of the next epoch."""
        steps = sum(n > 0 and n % self.options.decay_patience == 0 for n in self._waited())
        return self.options.learning_rate * self.options.decay**steps

    def _waited(self) -> list[int]:
        """After each epoch, how many there were since the best one.

        While nothing at all is right (F1 in the first epochs of little data), waiting has not begun.
        """
        found: list[int] = []
        best = 0.0
        for epoch in self.epochs:
            best = epoch.scores[self.task.main_score] if epoch.is_best else best
            found.append(0 if epoch.is_best or best == 0.0 else found[-1] + 1)
        return found

    def epoch(self, train: Sequence[E], dev: Sequence[E], *, show_progress: bool) -> None:
        """One pass over ``train``, then the scores of ``dev``."""
        number = len(self.epochs) + 1
        seed = np.random.SeedSequence((self.options.seed, number))
        torch.manual_seed(int(seed.generate_state(1, np.uint32)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        rate = self.rate
        batches = list(shuffled_batches(train, self.options, np.random.default_rng(seed)))
        self.network.train()
        total = 0.0
        for batch in track_progress(batches, f"Epoch {number}", is_shown=show_progress):
            total += self._step(batch) * len(batch)
        scores = self.task.scores(dev, predict(self.task, dev, network=self.network, source=self.source))
        main = self.task.main_score
        is_best = all(scores[main] > epoch.scores[main] for epoch in self.epochs)
        self.epochs.append(Epoch(number, total / len(train), rate, scores, is_best, self._mixes()))
        if is_best:
            self.best = {name: weight.detach().clone() for name, weight in self._learned().items()}

    def _step(self, batch: Sequence[E]) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        task_loss = self.task.loss(
            self.network.head, lambda sentences: self.network.vectors(self.source, sentences), batch
        )
        loss = task_loss + self.network.words.penalty()
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss is no number any more (epoch {len(self.epochs) + 1}); try a smaller learning rate"
            )
        if loss.requires_grad:  # a document without mentions has nothing to learn from
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
            self.optimizer.step()
        return float(task_loss.detach())

    def _mixes(self) -> dict[str, dict[str, Any]]:
        return {
            place: {"shares": mix.shares.tolist(), "gamma": mix.gamma.item()}
            for place, mix in self.network.words.mixes.items()
        }

    def _learned(self) -> dict[str, Tensor]:
        """What training changes: weights with gradients, and buffers (running means)."""
        frozen = {name for name, weight in self.network.named_parameters() if not weight.requires_grad}
        return {name: value for name, value in self.network.state_dict().items() if name not in frozen}

    def keep(self) -> None:
        """Write a checkpoint."""
        if self.checkpoints is None:
            return
        tensors = {
            "weights": self._learned(),
            "optimiser": optimiser_tensors(self.optimizer.state_dict()["state"]),
            "best": self.best,
        }
        progress = {"identity": self.identity, "epochs": [asdict(epoch) for epoch in self.epochs]}
        self.checkpoints.save(Snapshot(tensors, progress), step=len(self.epochs))

    def restore(self) -> None:
        """Go on from the last checkpoint, where there is one."""
        found = self.checkpoints.latest() if self.checkpoints else None
        if found is None or self.checkpoints is None:
            return
        _, snapshot = found
        check_begun(self.checkpoints.folder, self.identity)
        self.network.load_state_dict(dict(snapshot.tensors["weights"]), strict=False)
        state = optimiser_state(snapshot.tensors["optimiser"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.best = dict(snapshot.tensors["best"])
        self.epochs = [Epoch(**epoch) for epoch in snapshot.progress["epochs"]]

    def take_best(self) -> None:
        """Put the weights of the best epoch in place."""
        self.network.load_state_dict(self.best, strict=False)
        self.network.eval()


def predict(
    task: Task[E, P],
    examples: Sequence[E],
    *,
    network: TaskNetwork,
    source: FeatureLookup,
    batch_size: int = 64,
    show_progress: bool = False,
) -> list[P]:
    """What the network says of each example, in their order."""
    order = sorted(range(len(examples)), key=lambda k: size(examples[k]))  # little padding
    options = FitOptions(batch_size=batch_size)
    batches = list(_cut([examples[k] for k in order], options))
    was_training = network.training
    network.eval()
    found: list[P] = []
    with torch.inference_mode():
        for batch in track_progress(batches, "Predicting", is_shown=show_progress):
            found += task.predict(network.head, lambda sentences: network.vectors(source, sentences), batch)
    network.train(was_training)
    by_place = dict(zip(order, found, strict=True))
    return [by_place[k] for k in range(len(examples))]


def shuffled_batches(
    examples: Sequence[E], options: FitOptions, random: np.random.Generator
) -> Iterator[list[E]]:
    """Every example once, in batches of like size, in random order."""
    order = random.permutation(len(examples))
    batches: list[list[E]] = []
    pool = _POOL * options.batch_size
    for begin in range(0, len(order), pool):
        together = sorted((examples[k] for k in order[begin : begin + pool]), key=size)
        batches += _cut(together, options)
    for place in random.permutation(len(batches)):
        yield batches[place]


def _cut(examples: Sequence[E], options: FitOptions) -> Iterator[list[E]]:
    """Batches of examples that come in order of size: the last one is what the others are padded to."""
    batch: list[E] = []
    for example in examples:
        is_full = len(batch) == options.batch_size
        if batch and (is_full or (len(batch) + 1) * size(example) > options.max_tokens):
            yield batch
            batch = []
        batch.append(example)
    if batch:
        yield batch


def run_identity(options: FitOptions, identity: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that must be the same for a run to go on."""
    return _plain({"options": asdict(options), "networks": _NETWORKS, **(identity or {})})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As a checkpoint gives it back."""
    return json.loads(json.dumps(values))
