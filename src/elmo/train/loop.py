"""A corpus and options in, a trained biLM out: the loop, from the first window to the last, top to bottom."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.embed.atomic import locked
from elmo.errors import ConfigError, OutputError, TrainingError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.softmax import Softmax
from elmo.model.word_sampler import LogUniformSampler
from elmo.train.checkpoint import Checkpoints, Snapshot
from elmo.train.corpus_folder import Corpus
from elmo.train.evaluate import perplexity
from elmo.train.objective import BiLmObjective
from elmo.train.schedule import Optimisation
from elmo.train.type_ids import TypeIds
from elmo.train.windows import Position, Windows

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainOptions:
    """One run; the defaults are bilm-tf's published ones."""

    n_windows: int  # steps of the optimiser, one a window
    n_vocab: int = 50_000
    n_rows: int = 128
    n_steps: int = 20  # tokens of a row in one window: how far gradients reach back
    n_samples: int | None = 8192  # of the softmax; None: all words
    dropout: float = 0.1
    loss_scale: float = 20.0  # bilm-tf multiplies the loss by the steps; it matters to Adagrad and the clip
    seed: int = 0
    keep_order: bool = False  # read the text in its own order instead of shuffled blocks
    log_every: int = 50
    evaluate_every: int = 1000
    checkpoint_every: int = 1000
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        for name in ("n_windows", "n_rows", "n_steps", "log_every", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, found {getattr(self, name)!r:.40}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in 0..1, found {self.dropout!r:.40}")


@dataclass(frozen=True)
class Report:
    """What a run says now and then, and writes to its log."""

    step: int
    n_windows: int  # of the whole run
    n_tokens: int  # of a window
    epoch: int
    loss: float | None = None  # mean of both directions since the last report, in nats
    heldout_forward: float | None = None  # perplexities
    heldout_backward: float | None = None


class Trainer:
    """A model in training: everything that changes from step to step, and what a checkpoint keeps of it."""

    def __init__(self, corpus: Corpus, config: BiLmConfig, options: TrainOptions, folder: Path) -> None:
        self.corpus, self.config, self.options, self.folder = corpus, config, options, folder
        self.n_vocab = n_vocab = min(options.n_vocab, len(corpus.types))
        torch.manual_seed(options.seed)
        softmax = Softmax(n_words=n_vocab, width=config.lstm.state_width)
        self.objective = BiLmObjective(BiLm.from_config(config), softmax, dropout=options.dropout)
        self.ids = TypeIds(corpus, config, n_vocab)
        seed = None if options.keep_order else options.seed
        self.windows = Windows(corpus.train, n_rows=options.n_rows, n_steps=options.n_steps, seed=seed)
        self.optimizer = options.optimisation.make(self.objective.parameters())
        self.sampler = None
        if options.n_samples is not None and options.n_samples < n_vocab:
            self.sampler = LogUniformSampler(n_vocab, options.n_samples)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.log = folder / "log.jsonl"
        self.step = 0
        self.position = Position(0, 0)
        self.state: BiLmState = self.objective.bilm.zero_state(options.n_rows)
        self.best = math.inf  # held-out perplexity
        self.loss_sum, self.loss_count = 0.0, 0  # since the last report

    def run(self, on_report: Callable[[Report], None] | None = None) -> None:
        """Train to the last window, from the newest checkpoint if there is one."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{self.folder}: cannot be made: {error.strerror}") from error
        with locked(self.folder / ".lock", subject=self.folder):  # two runs would mix their checkpoints
            self._begin()
            self._train(on_report)

    def _train(self, on_report: Callable[[Report], None] | None) -> None:
        options = self.options
        self.objective.train()
        while self.step < options.n_windows:
            self._train_one_window()
            is_last = self.step == options.n_windows
            if self.step % options.log_every == 0 or is_last:
                self._report(on_report, loss=self._mean_loss())
            is_best = False
            if self.step % options.evaluate_every == 0 or is_last:
                found = perplexity(self.objective, self.ids, self.corpus.heldout)
                is_best = found.geometric_mean < self.best
                self.best = min(self.best, found.geometric_mean)
                self._report(on_report, heldout_forward=found.forward, heldout_backward=found.backward)
            if self.step % options.checkpoint_every == 0 or is_last or is_best:
                self.checkpoints.save(self._snapshot(), step=self.step, is_best=is_best)

    def _train_one_window(self) -> None:
        options, optimisation = self.options, self.options.optimisation
        window = self.windows.at(self.position)
        losses = self.objective(window, self.ids, self.state, sampler=self.sampler, generator=self.generator)
        loss = float(losses.mean.detach())
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss became {loss} at step {self.step}; the last checkpoint stands, go on from it with "
                "a lower learning rate"
            )
        self.optimizer.zero_grad()
        (losses.mean * options.loss_scale).backward()
        torch.nn.utils.clip_grad_norm_(self.objective.parameters(), optimisation.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = optimisation.rate(self.step, options.n_windows)
        self.optimizer.step()
        self.state = losses.state
        self.position = self.windows.after(window.position)
        self.step += 1
        self.loss_sum += loss
        self.loss_count += 1

    def _mean_loss(self) -> float:
        mean = self.loss_sum / self.loss_count
        self.loss_sum, self.loss_count = 0.0, 0
        return mean

    def _report(self, on_report: Callable[[Report], None] | None, **found: float) -> None:
        options = self.options
        n_tokens = options.n_rows * options.n_steps
        report = Report(self.step, options.n_windows, n_tokens, self.position.epoch, **found)
        with self.log.open("a", encoding="ascii") as file:
            file.write(json.dumps({k: v for k, v in asdict(report).items() if v is not None}) + "\n")
        if on_report is not None:
            on_report(report)

    # --- checkpoints ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take up the newest checkpoint; what was logged after it is logged again."""
        self.checkpoints.remove_strays()
        found = self.checkpoints.latest()
        if found is None:
            self.log.write_bytes(b"")
            return
        _, snapshot = found
        self._restore(snapshot)
        kept = int(snapshot.progress["log_bytes"])
        with self.log.open("r+b") as file:
            file.truncate(kept)
        _log.info("%s: goes on after step %d", self.folder, self.step)

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            tensors={
                "weights": self.objective.state_dict(),
                "optimiser": _flat(self.optimizer.state_dict()["state"]),
                "state": {"hidden": self.state.hidden, "cell": self.state.cell},
                "random": {"torch": torch.get_rng_state(), "samples": self.generator.get_state()},
            },
            progress={
                "options": asdict(self.options),
                "config": self.config.to_json(),
                "corpus": dict(self.corpus.manifest.files),
                "step": self.step,
                "position": list(self.position),
                "best": None if math.isinf(self.best) else self.best,
                "loss": [self.loss_sum, self.loss_count],
                "log_bytes": self.log.stat().st_size,
            },
        )

    def _restore(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        now = {
            "options": asdict(self.options),
            "config": json.loads(json.dumps(self.config.to_json())),
            "corpus": dict(self.corpus.manifest.files),
        }
        for name, value in now.items():
            if progress.get(name) != value:
                raise ConfigError(f"{self.folder}: was begun with another {name}; name another folder")
        self.objective.load_state_dict(dict(snapshot.tensors["weights"]))
        state = _nested(snapshot.tensors["optimiser"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        self.state = BiLmState(snapshot.tensors["state"]["hidden"], snapshot.tensors["state"]["cell"])
        torch.set_rng_state(snapshot.tensors["random"]["torch"])
        self.generator.set_state(snapshot.tensors["random"]["samples"])
        self.step = progress["step"]
        self.position = Position(*progress["position"])
        self.best = math.inf if progress["best"] is None else progress["best"]
        self.loss_sum, self.loss_count = progress["loss"]


def _flat(state: Mapping[int, Mapping[str, Any]]) -> dict[str, Tensor]:
    """An optimiser's state as named tensors: ``3.exp_avg`` is that of the fourth weight."""
    return {
        f"{index}.{name}": torch.as_tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def _nested(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    return state
