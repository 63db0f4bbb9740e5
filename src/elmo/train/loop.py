"""The training loop, with log, evaluation and checkpoints.

``Trainer.run`` is the loop. ``Trainer.train_step`` is one step: read a window, compute the gradients, clip them and
update the weights.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.engine.optimizer import OptimizerStep
from elmo.errors import ConfigError, TrainingError
from elmo.model.bilm import BiLm, BiLmState
from elmo.model.softmax import AdaptiveSoftmax, LogUniformSampler, Samples, Softmax
from elmo.storage.atomic import hold_lock, make_folder
from elmo.storage.files import format_path
from elmo.train.checkpoint import Checkpoints, Snapshot, checking_content, optimizer_state, optimizer_tensors
from elmo.train.corpus import Corpus, TypeIds, whole_sentences
from elmo.train.distributed import Ranks
from elmo.train.evaluation import evaluate
from elmo.train.gradients import Gradients
from elmo.train.initial_weights import InitialWeights
from elmo.train.log import LOG, LogFile
from elmo.train.objective import BiLmObjective, StepRandom
from elmo.train.options import TrainOptions
from elmo.train.windows import Position, Window, Windows

CHECKPOINT_VERSION = 2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepReport:
    """A report on the progress of a run, which is also written to its log. Values that are not reported are None.

    Attributes:
        step: Number of optimizer steps so far.
        n_steps: Number of steps of the whole run.
        n_tokens: Number of tokens in a step.
        epoch: Number of passes over the text so far, such as 0.82.
        loss: Mean loss of both directions since the last report, in nats per token.
        learning_rate: Learning rate of this step.
        gradient_norm: Norm of the gradients of this step, before clipping.
        heldout_forward: Held-out perplexity of the forward direction.
        heldout_backward: Held-out perplexity of the backward direction.
    """

    step: int
    n_steps: int
    n_tokens: int
    epoch: float
    loss: float | None = None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    heldout_forward: float | None = None
    heldout_backward: float | None = None


OnReport = Callable[[StepReport], None]


@dataclass(frozen=True)
class TrainingProgress:
    """What a run is doing; it is reported when a stage begins and after each optimizer step.

    Attributes:
        stage: Reading the text, planning (measuring the speed of several sizes), training, or writing the model.
        step: Number of optimizer steps so far.
        n_steps: Number of steps of the whole run; 0 before they are known.
        n_tokens: Number of tokens in a step.

    Example:
        >>> stages = []
        >>> folder = train_bilm(
        ...     "corpus.txt", "staged", preset="tiny", layers=1, cells=32, width=16, epochs=1,
        ...     on_stage=lambda progress: stages.append(progress.stage),
        ... )
        >>> len(stages) > 0
        True
    """

    stage: Literal["read", "plan", "train", "write"]
    step: int = 0
    n_steps: int = 0
    n_tokens: int = 0


OnStage = Callable[[TrainingProgress], None]


class Trainer:
    """Trains a model: holds its weights, optimizer and state, and the position in the text.

    Args:
        corpus: Text to train on.
        config: Configuration of the model.
        options: Options of the training loop.
        folder: Folder for the checkpoints and the log. If it contains a run, ``run`` resumes it.
        ranks: Processes that share the work. By default, there is only this process.
        initial: Weights to start from. By default, they are random.

    Example:
        >>> corpus = build_corpus("corpus.txt", "trainer-corpus")
        >>> options = TrainOptions(n_steps=2, n_vocab=50, batch_size=2, window=5, n_samples=None)
        >>> trainer = Trainer(corpus, PRESETS["tiny"], options, Path("trainer"))
        >>> for _ in range(2):
        ...     trainer.train_step()
        >>> trainer.close()
    """

    def __init__(
        self,
        corpus: Corpus,
        config: BiLmConfig,
        options: TrainOptions,
        folder: Path,
        *,
        ranks: Ranks | None = None,
        initial: InitialWeights | None = None,
    ) -> None:
        self.corpus, self.config, self.options, self.folder = corpus, config, options, folder
        self.ranks = ranks = ranks or Ranks()
        self.n_vocab = n_vocab = min(options.n_vocab, len(corpus.types))
        device = f"cuda:{ranks.local_rank}" if options.device == "cuda" else options.device
        self.initial_id = None if initial is None else initial.identity
        self.objective = build_objective(config, options, n_vocab).to(device)
        if initial is not None:
            initial.load_into(self.objective, config, n_vocab)
        self.gradients = Gradients(self.objective)
        self.ids = TypeIds(corpus, config, n_vocab, device=device)
        self.rows = ranks.rows(options.batch_size)
        if options.batch_size < ranks.world * options.accumulation_steps:
            least = f"{ranks.world} × {options.accumulation_steps} (processes × accumulation steps)"
            raise ConfigError(f"batch_size must be at least {least}; found {options.batch_size}")
        self.windows = Windows(
            corpus.train,
            batch_size=options.batch_size,
            window=options.window,
            seed=None if options.keep_order else options.seed,
            rows=self.rows,
            has_positions=self.objective.bilm.has_positions,
        )
        self.weights = [weight for weight in self.objective.parameters() if weight.grad is not None]
        self.optimizer = options.optimizer.build(self.weights)
        self._optimizer_step = OptimizerStep(self.optimizer)
        self.sampler = None
        if options.n_samples is not None and options.n_samples < n_vocab:
            self.sampler = LogUniformSampler(n_vocab, options.n_samples)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.log = LogFile(folder / LOG)
        self.step = 0
        self.position = Position(0, 0)
        self.state: BiLmState = self.objective.bilm.zero_state(self.rows.stop - self.rows.start)
        self.best = math.inf  # lowest held-out perplexity so far
        self.loss_sum, self.loss_count = 0.0, 0  # losses since the last report
        self.gradient_norm = 0.0  # norm of the last step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads. Weights and counters stay available."""
        self.gradients.close()
        self._optimizer_step.close()

    # --- the loop ---------------------------------------------------------------------------------------

    def run(self, on_report: OnReport | None = None, on_stage: OnStage | None = None) -> None:
        """Train to the last step. Start from the newest checkpoint if there is one."""
        options = self.options

        def report_step() -> None:
            if on_stage is not None:
                n_tokens = options.batch_size * options.window
                on_stage(TrainingProgress("train", self.step, options.n_steps, n_tokens))

        with ExitStack() as stack:
            if self.ranks.is_first:
                make_folder(self.folder)
                # two runs in one folder would mix their checkpoints
                stack.enter_context(hold_lock(self.folder / ".lock", subject=self.folder))
            self._resume()
            self.objective.train()
            report_step()
            while self.step < options.n_steps:
                self.train_step()
                report_step()
                is_last = self.step == options.n_steps
                if self.step % options.log_every == 0 or is_last:
                    self._report_loss(on_report)
                is_best, is_evaluated = False, self.step % options.evaluate_every == 0 or is_last
                is_kept = self.step % options.checkpoint_every == 0 or is_last
                if is_evaluated or is_kept:
                    for weight in self.objective.parameters():  # the sum is not finite if one weight is not
                        self._check_finite("weights", float(weight.detach().sum()))
                if is_evaluated:
                    is_best = self._evaluate(on_report)
                if is_kept or is_best:
                    snapshot = self._snapshot()
                    if self.ranks.is_first:
                        self.checkpoints.save(snapshot, step=self.step, is_best=is_best)

    def train_step(self) -> None:
        """Make one optimizer step, which trains on one window."""
        optimizer = self.options.optimizer
        random = StepRandom(self.options.seed, self.step, self.rows.start)
        window = self._reset_sentences(self.windows.at(self.position), random)
        loss = self._add_gradients(window, self._reset_rows(random), random)
        if self.ranks.world > 1:
            self.ranks.add_up([loss, *(cast("Tensor", weight.grad) for weight in self.weights)])
        value = float(loss)
        self._check_finite("loss", value)
        rows = self.gradients.take_rows() if self.ranks.world == 1 else {}
        self.gradient_norm = self._optimizer_step.compute_norm(rows)
        self._check_finite("gradient norm", self.gradient_norm)
        rate = optimizer.rate(self.step, self.options.n_steps)
        self._optimizer_step.update(rows, rate=rate, norm=self.gradient_norm, clip=optimizer.clip)
        self.position = self.windows.after(window.position)
        self.step += 1
        self.loss_sum += value
        self.loss_count += 1

    def _reset_sentences(self, window: Window, random: StepRandom) -> Window:
        """Choose the sentences of a window that start from a zero state."""
        options = self.options
        if not options.sentence_resets:
            return window
        shape = (2, options.batch_size, options.window)  # all rows, so that all processes draw the same numbers
        drawn = torch.rand(shape, generator=random.generator("sentence_resets"))[:, self.rows]
        return window.with_resets((drawn < options.sentence_resets).numpy())

    def _reset_rows(self, random: StepRandom) -> BiLmState:
        """Return the state before the window, with a random choice of rows set to zero."""
        options = self.options
        if not options.window_resets:
            return self.state
        drawn = torch.rand(options.batch_size, generator=random.generator("window_resets"))  # all rows
        keep = (drawn[self.rows] >= options.window_resets).to(self.state.hidden)[:, None]
        return BiLmState(self.state.hidden * keep, self.state.cell * keep)

    def _add_gradients(self, window: Window, state: BiLmState, random: StepRandom) -> Tensor:
        """Compute the gradients for the rows of this process. Return the share of these rows in the loss of the batch.

        ``Gradients.add_window`` computes each part of the batch. It computes the same losses as
        ``BiLmObjective.forward``, in parallel threads.
        """
        options = self.options
        samples = self._draw_samples(random)
        n_rows = self.rows.stop - self.rows.start
        loss = state.hidden.new_zeros(())
        states: list[BiLmState] = []
        for k in range(options.accumulation_steps):
            begin, end = (n_rows * part // options.accumulation_steps for part in (k, k + 1))
            rows, share = slice(begin, end), (end - begin) / options.batch_size
            losses = self.gradients.add_window(
                window.select_rows(rows),
                self.ids,
                BiLmState(state.hidden[:, :, rows], state.cell[:, :, rows]),
                samples=samples,
                random=StepRandom(options.seed, self.step, self.rows.start + begin),
                scale=options.loss_scale * share,
            )
            loss += losses.mean * share
            states.append(losses.state)
        hidden, cell = (torch.cat([getattr(s, name) for s in states], dim=2) for name in ("hidden", "cell"))
        self.state = BiLmState(hidden, cell)
        return loss

    def _draw_samples(self, random: StepRandom) -> tuple[Samples, ...] | None:
        """Draw the sampled words of the softmax: one set per direction, the same for all rows and processes."""
        if self.sampler is None:
            return None
        device = self.state.hidden.device
        return tuple(
            self.sampler.draw(random.generator("samples", number)).to(device) for number in self.objective.directions
        )

    def _check_finite(self, name: str, value: float) -> None:
        """Raise ``TrainingError`` if a value is not finite, before it reaches the weights or a checkpoint."""
        if not math.isfinite(value):
            problem = f"the {name} became {value} at step {self.step}; the last checkpoint is kept"
            raise TrainingError(f"{problem}; start a new run with a lower learning rate")

    # --- reports ----------------------------------------------------------------------------------------

    def _report_loss(self, on_report: OnReport | None) -> None:
        self._report(
            on_report,
            loss=self.loss_sum / self.loss_count,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            gradient_norm=self.gradient_norm,
        )
        self.loss_sum, self.loss_count = 0.0, 0

    def _evaluate(self, on_report: OnReport | None) -> bool:
        """Report the held-out perplexity. Return whether it is the lowest so far."""
        stream, n_tokens = self.corpus.heldout, self.options.evaluate_tokens
        if n_tokens is not None and len(stream) > n_tokens and len(part := whole_sentences(stream, n_tokens)):
            stream = part
        perplexity = evaluate(self.objective, self.ids, stream, ranks=self.ranks)
        is_best = self.ranks.from_first(perplexity.geometric_mean < self.best)  # rank 0 decides
        self.best = min(self.best, perplexity.geometric_mean)
        self._report(on_report, heldout_forward=perplexity.forward, heldout_backward=perplexity.backward)
        return is_best

    def _report(self, on_report: OnReport | None, **values: float | None) -> None:
        if not self.ranks.is_first:
            return
        n_tokens = self.options.batch_size * self.options.window
        position = self.position
        epoch = round(position.epoch + position.window / self.windows.n_windows(position.epoch), 4)
        report = StepReport(self.step, self.options.n_steps, n_tokens, epoch, **values)
        self.log.add({name: value for name, value in asdict(report).items() if value is not None})
        if on_report is not None:
            on_report(report)

    # --- checkpoints ------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Restore the newest checkpoint, and remove later log entries, which the run will write again."""
        self.ranks.check_equal(self._identity())
        latest = None
        if self.ranks.is_first:
            self.checkpoints.remove_temporary()
            latest = self.checkpoints.latest()
            if latest is None:
                self.log.cut(0)
        latest = self.ranks.from_first(latest)
        if latest is None:
            if self.ranks.world > 1:
                # the same seed may give different weights on different machines
                weights = {name: value.cpu() for name, value in self.objective.state_dict().items()}
                self.objective.load_state_dict(self.ranks.from_first(weights))
            return
        _, snapshot = latest
        with checking_content(self.checkpoints.folder):
            self._restore(snapshot)
            log_bytes = int(snapshot.progress["log_bytes"])
        if self.ranks.is_first:
            self.log.cut(log_bytes)
            _log.info("%s: resuming after step %d", format_path(self.folder), self.step)

    def _snapshot(self) -> Snapshot:
        hidden, cell = (
            self.ranks.concatenate(rows, dim=2) for rows in (self.state.hidden, self.state.cell)
        )  # the rows of all ranks, so that any number of processes can resume
        return Snapshot(
            tensors={
                "weights": self.objective.state_dict(),
                "optimizer": optimizer_tensors(self.optimizer.state_dict()["state"]),
                "state": {"hidden": hidden, "cell": cell},
            },
            progress={
                **self._identity(),
                "version": CHECKPOINT_VERSION,
                "step": self.step,
                "position": list(self.position),
                "best": None if math.isinf(self.best) else self.best,
                "loss": [self.loss_sum, self.loss_count],
                "log_bytes": self.log.synced_size() if self.ranks.is_first else 0,
            },
        )

    def _identity(self) -> dict[str, Any]:
        """Return the values that must be the same when a run is resumed."""
        values = {
            "options": asdict(self.options),
            "config": self.config.to_json(),
            "corpus": dict(self.corpus.manifest.files),
            "init_from": self.initial_id,
        }
        return json.loads(json.dumps(values))  # in the form in which a checkpoint stores them

    def _restore(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        check_version(progress, self.folder)
        for name, value in self._identity().items():
            if progress.get(name) != value:
                folder = format_path(self.folder)
                raise ConfigError(f"cannot resume {folder}: {name} must be the same as before; use another folder")
        self.objective.load_state_dict(dict(snapshot.tensors["weights"]))
        state = optimizer_state(snapshot.tensors["optimizer"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        kept = snapshot.tensors["state"]
        hidden, cell = (kept[name][:, :, self.rows].to(self.state.hidden) for name in ("hidden", "cell"))
        self.state = BiLmState(hidden, cell)
        self.step = int(progress["step"])
        self.position = Position(*map(int, progress["position"]))
        self.best = math.inf if progress["best"] is None else float(progress["best"])
        loss_sum, loss_count = progress["loss"]
        self.loss_sum, self.loss_count = float(loss_sum), int(loss_count)


def check_version(progress: Any, folder: Path) -> None:
    """Raise ``ConfigError`` if a checkpoint was written by an incompatible version of elmo."""
    version = progress.get("version", 1)
    if version != CHECKPOINT_VERSION:
        raise ConfigError(
            f"the checkpoints in {format_path(folder)} must have version {CHECKPOINT_VERSION}; found {version!r:.20}; "
            "finish the run with the version of elmo that started it, or use another output folder"
        )


def build_objective(config: BiLmConfig, options: TrainOptions, n_vocab: int) -> BiLmObjective:
    """Build the model and its softmax, with random weights that depend only on the seed."""
    torch.manual_seed(options.seed)
    bilm = BiLm.from_config(config)
    width = config.encoder.state_width
    softmax: Softmax | AdaptiveSoftmax
    if options.cutoffs:
        softmax = AdaptiveSoftmax(n_words=n_vocab, width=width, cutoffs=options.cutoffs)
    else:
        table = bilm.token_layer.word_embed if options.is_tied else None
        if options.is_tied and (table is None or config.chars is not None):
            raise ConfigError("tied is only possible for a model that reads words but not characters")
        if table is not None:
            torch.nn.init.normal_(table.weight, std=width**-0.5)  # like the weights of an untied softmax
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
