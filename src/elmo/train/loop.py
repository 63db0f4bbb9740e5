"""A corpus and options in, a trained biLM out: the loop, from the first window to the last, top to bottom."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.errors import ConfigError, OutputError, TrainingError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples, Softmax
from elmo.storage.atomic import hold_lock
from elmo.train.checkpoint import Checkpoints, Snapshot, optimiser_state, optimiser_tensors
from elmo.train.corpus import Corpus, TypeIds
from elmo.train.distributed import Ranks
from elmo.train.evaluate import perplexity
from elmo.train.gradients import Gradients
from elmo.train.log import RunLog
from elmo.train.objective import BiLmObjective, Chance
from elmo.train.options import TrainOptions
from elmo.train.randomness import generator_at
from elmo.train.start_from import StartingPoint
from elmo.train.vocabulary import EOS
from elmo.train.windows import Position, Window, Windows

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What a run says now and then, and writes to its log."""

    step: int
    n_windows: int  # of the whole run
    n_tokens: int  # of a window
    epoch: int
    loss: float | None = None  # mean of both directions since the last report, in nats
    learning_rate: float | None = None  # of this step
    gradient_norm: float | None = None  # of this step, before it was clipped
    heldout_forward: float | None = None  # perplexities
    heldout_backward: float | None = None


class Trainer:
    """A model in training: everything that changes from step to step, and what a checkpoint keeps of it."""

    def __init__(
        self,
        corpus: Corpus,
        config: BiLmConfig,
        options: TrainOptions,
        folder: Path,
        *,
        ranks: Ranks | None = None,
        start: StartingPoint | None = None,
    ) -> None:
        self.corpus, self.config, self.options, self.folder = corpus, config, options, folder
        self.ranks = ranks = ranks or Ranks()
        self.n_vocab = n_vocab = min(options.n_vocab, len(corpus.types))
        device = f"cuda:{ranks.local_rank}" if options.device == "cuda" else options.device
        self.started_from = None if start is None else start.identity  # None: random weights
        self.objective = new_objective(config, options, n_vocab).to(device)
        if start is not None:
            start.put_into(self.objective, config, n_vocab)  # a checkpoint will take its place
        self.gradients = Gradients(self.objective)
        self.ids = TypeIds(corpus, config, n_vocab, device=device)
        seed = None if options.keep_order else options.seed
        self.rows = ranks.rows(options.n_rows)
        if options.n_rows < ranks.world * options.n_turns:
            raise ConfigError(
                f"{options.n_rows} rows are too few for {ranks.world} processes and {options.n_turns} turns; "
                "give more rows, or start fewer processes"
            )
        self.windows = Windows(
            corpus.train, n_rows=options.n_rows, n_steps=options.n_steps, seed=seed, rows=self.rows
        )
        trained = [weight for weight in self.objective.parameters() if weight.grad is not None]
        self.optimizer = options.optimisation.make(trained)
        self.sampler = None
        if options.n_samples is not None and options.n_samples < n_vocab:
            self.sampler = LogUniformSampler(n_vocab, options.n_samples)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.log = RunLog(folder / "log.jsonl")
        self.step = 0
        self.position = Position(0, 0)
        self.state: BiLmState = self.objective.bilm.zero_state(self.rows.stop - self.rows.start)
        self.best = math.inf  # held-out perplexity
        self.loss_sum, self.loss_count = 0.0, 0  # since the last report
        self.gradient_norm = 0.0  # of the last step

    def close(self) -> None:
        """End the threads; what was trained can still be looked at."""
        self.gradients.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, on_report: Callable[[Report], None] | None = None) -> None:
        """Train to the last window, from the newest checkpoint if there is one."""
        with ExitStack() as stack:
            if self.ranks.is_first:
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise OutputError(f"{self.folder}: cannot be made: {error.strerror}") from error
                # two runs would mix their checkpoints
                stack.enter_context(hold_lock(self.folder / ".lock", subject=self.folder))
            self._begin()
            self._train(on_report)

    def _train(self, on_report: Callable[[Report], None] | None) -> None:
        options = self.options
        self.objective.train()
        while self.step < options.n_windows:
            self._train_one_window()
            is_last = self.step == options.n_windows
            if self.step % options.log_every == 0 or is_last:
                self._report(
                    on_report,
                    loss=self._mean_loss(),
                    learning_rate=self.optimizer.param_groups[0]["lr"],
                    gradient_norm=self.gradient_norm,
                )
            is_best, is_evaluated = False, self.step % options.evaluate_every == 0 or is_last
            is_kept = self.step % options.checkpoint_every == 0 or is_last
            if is_evaluated or is_kept:
                self._refuse_broken_weights()
            if is_evaluated:
                found = perplexity(self.objective, self.ids, self._heldout(), ranks=self.ranks)
                is_best = self.ranks.from_first(found.geometric_mean < self.best)  # all do as the first one
                self.best = min(self.best, found.geometric_mean)
                self._report(on_report, heldout_forward=found.forward, heldout_backward=found.backward)
            if is_kept or is_best:
                snapshot = self._snapshot()
                if self.ranks.is_first:
                    self.checkpoints.save(snapshot, step=self.step, is_best=is_best)

    def _train_one_window(self) -> None:
        options, optimisation = self.options, self.options.optimisation
        window = self._with_starts(self.windows.at(self.position))
        loss = self._add_gradients(window)
        weights = [weight for weight in self.objective.parameters() if weight.grad is not None]
        self.ranks.add_up([loss, *(cast("Tensor", weight.grad) for weight in weights)])
        found = float(loss)
        self._refuse_broken("loss", found)
        self.gradient_norm = float(torch.nn.utils.clip_grad_norm_(weights, optimisation.clip))
        self._refuse_broken("gradients' norm", self.gradient_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = optimisation.rate(self.step, options.n_windows)
        self.optimizer.step()
        self.position = self.windows.after(window.position)
        self.step += 1
        self.loss_sum += found
        self.loss_count += 1

    def _refuse_broken(self, what: str, value: float) -> None:
        """Stop before anything that is no number gets into weights, or into a checkpoint."""
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} became {value} at step {self.step}; the last checkpoint stands, go on from it "
                "with a lower learning rate"
            )

    def _refuse_broken_weights(self) -> None:
        for weight in self.objective.parameters():
            # a sum is no number, or infinite, as soon as one of its terms is, and takes no memory
            self._refuse_broken("weights", float(weight.detach().sum()))

    def _add_gradients(self, window: Window) -> Tensor:
        """Of the rows of this process: their share of the batch's loss. The state goes on."""
        options = self.options
        samples = self._samples()
        n_mine = self.rows.stop - self.rows.start
        state = self._start_of_window()
        loss = state.hidden.new_zeros(())
        after: list[BiLmState] = []
        self.gradients.clear()
        for turn in range(options.n_turns):
            rows = slice(n_mine * turn // options.n_turns, n_mine * (turn + 1) // options.n_turns)
            share = (rows.stop - rows.start) / options.n_rows
            losses = self.gradients.add_window(
                window.at_rows(rows),
                self.ids,
                BiLmState(state.hidden[:, :, rows], state.cell[:, :, rows]),
                samples=samples,
                chance=Chance(options.seed, self.step, self.rows.start + rows.start),
                scale=options.loss_scale * share,
            )
            loss += losses.mean * share
            after.append(losses.state)
        hidden, cell = (torch.cat([getattr(s, name) for s in after], dim=2) for name in ("hidden", "cell"))
        self.state = BiLmState(hidden, cell)
        return loss

    def _start_of_window(self) -> BiLmState:
        """Where each row stands; a few forget all that they have read."""
        options = self.options
        if not options.restarts:
            return self.state
        generator = generator_at("restarts", seed=options.seed, step=self.step)
        drawn = torch.rand(options.n_rows, generator=generator)  # for all rows, whichever process has them
        goes_on = (drawn[self.rows] >= options.restarts).to(self.state.hidden)[:, None]
        return BiLmState(self.state.hidden * goes_on, self.state.cell * goes_on)

    def _with_starts(self, window: Window) -> Window:
        """Choose the sentences that are read from a zero state."""
        options = self.options
        if not options.sentence_starts:
            return window
        generator = generator_at("starts", seed=options.seed, step=self.step)
        shape = (2, options.n_rows, options.n_steps)  # all rows, so that every process draws the same
        drawn = torch.rand(shape, generator=generator)[:, self.rows] < options.sentence_starts
        return window.with_starts(drawn.numpy())

    def _samples(self) -> tuple[Samples, ...] | None:
        """Words to predict against: others for each direction, the same for every row and process."""
        if self.sampler is None:
            return None
        seed, step, device = self.options.seed, self.step, self.state.hidden.device
        return tuple(
            self.sampler.draw(generator_at("samples", seed=seed, step=step, place=(number,))).to(device)
            for number in self.objective.directions
        )

    def _heldout(self) -> NDArray[np.uint32]:
        """The held-out text, as much of it as is looked at during training, in whole sentences."""
        stream, most = self.corpus.heldout, self.options.evaluate_tokens
        if most is None or len(stream) <= most:
            return stream
        ends = np.flatnonzero(stream[:most] == EOS)
        return stream[: int(ends[-1]) + 1] if len(ends) else stream

    def _mean_loss(self) -> float:
        mean = self.loss_sum / self.loss_count
        self.loss_sum, self.loss_count = 0.0, 0
        return mean

    def _report(self, on_report: Callable[[Report], None] | None, **found: float | None) -> None:
        options = self.options
        if not self.ranks.is_first:
            return
        n_tokens = options.n_rows * options.n_steps
        report = Report(self.step, options.n_windows, n_tokens, self.position.epoch, **found)
        self.log.add({name: value for name, value in asdict(report).items() if value is not None})
        if on_report is not None:
            on_report(report)

    # --- checkpoints ----------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take up the newest checkpoint; what was logged after it is logged again."""
        self.ranks.agree(self._identity())
        found = None
        if self.ranks.is_first:
            self.checkpoints.remove_strays()
            found = self.checkpoints.latest()
            if found is None:
                self.log.cut(0)
        found = self.ranks.from_first(found)
        if found is None:
            if self.ranks.world > 1:
                # the same seed need not give the same weights on machines of another kind
                weights = {name: value.cpu() for name, value in self.objective.state_dict().items()}
                self.objective.load_state_dict(self.ranks.from_first(weights))
            return
        _, snapshot = found
        self._restore(snapshot)
        if self.ranks.is_first:
            self.log.cut(int(snapshot.progress["log_bytes"]))
            _log.info("%s: goes on after step %d", self.folder, self.step)

    def _snapshot(self) -> Snapshot:
        hidden, cell = (
            self.ranks.joined(rows, dim=2) for rows in (self.state.hidden, self.state.cell)
        )  # all ranks' rows, so that any number of processes can go on
        return Snapshot(
            tensors={
                "weights": self.objective.state_dict(),
                "optimiser": optimiser_tensors(self.optimizer.state_dict()["state"]),
                "state": {"hidden": hidden, "cell": cell},
            },
            progress={
                **self._identity(),
                "step": self.step,
                "position": list(self.position),
                "best": None if math.isinf(self.best) else self.best,
                "loss": [self.loss_sum, self.loss_count],
                "log_bytes": self.log.kept_bytes() if self.ranks.is_first else 0,
            },
        )

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        found = {
            "options": asdict(self.options),
            "config": self.config.to_json(),
            "corpus": dict(self.corpus.manifest.files),
            "start": self.started_from,
        }
        return json.loads(json.dumps(found))  # as a checkpoint gives it back

    def _restore(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        for name, value in self._identity().items():
            if progress.get(name) != value:
                raise ConfigError(f"{self.folder}: was begun with another {name}; name another folder")
        self.objective.load_state_dict(dict(snapshot.tensors["weights"]))
        state = optimiser_state(snapshot.tensors["optimiser"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        kept = snapshot.tensors["state"]
        hidden, cell = (kept[name][:, :, self.rows].to(self.state.hidden) for name in ("hidden", "cell"))
        self.state = BiLmState(hidden, cell)
        self.step = progress["step"]
        self.position = Position(*progress["position"])
        self.best = math.inf if progress["best"] is None else progress["best"]
        self.loss_sum, self.loss_count = progress["loss"]


def new_objective(config: BiLmConfig, options: TrainOptions, n_vocab: int) -> BiLmObjective:
    """A model to train, with the weights that follow from the seed."""
    torch.manual_seed(options.seed)
    bilm = BiLm.from_config(config)
    width = config.lstm.state_width
    if options.cutoffs:
        softmax: Softmax | AdaptiveSoftmax = AdaptiveSoftmax(
            n_words=n_vocab, width=width, cutoffs=options.cutoffs
        )
    else:
        table = bilm.token_layer.word_embed if options.is_tied else None
        if options.is_tied and (table is None or config.chars is not None):
            raise ConfigError("only a model that reads words, and no characters, can be tied to its softmax")
        if table is not None:
            torch.nn.init.normal_(table.weight, std=width**-0.5)  # as a softmax of its own would begin
            table.weight.data[0] = 0
        softmax = Softmax(n_words=n_vocab, width=width, tied_to=table)
    objective = BiLmObjective(
        bilm,
        softmax,
        dropout=options.dropout,
        directions=options.directions,
        has_bf16_products=options.precision == "bfloat16",
        has_sparse_gradients=True,
    )
    return objective.double() if options.precision == "float64" else objective
