"""Plan a run for a given number of hours: choose the size of the model, the number of steps and the schedule.

The speed of a size is measured with a few training steps on the corpus. Sizes that are clearly too large for the
time are not measured. ``SizeChoice`` compares sizes by the scaling law L = E + A / N^α + B / D^β for N weights and
D tokens, with the constants of Hoffmann et al. 2022 ("Training Compute-Optimal Large Language Models"). Repeated
tokens count less, and so do weights beyond the number that the text can train, as in Muennighoff et al. 2023 ("Scaling
Data-Constrained Language Models"). The constants were measured on Transformers, so the law is only used to rank
the sizes, not to predict the loss. With the chosen size, a run reads about 3 to 50 tokens per weight.

The plan is stored in the folder of the run, so that a resumed run uses the same plan. It fixes the number of
steps, so that a run ends with the same bytes even if it was interrupted; if the machine becomes busier, the run takes
longer. The hours do not include the time to build the corpus.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from elmo.config import BiLmConfig, TransformerConfig, n_parameters
from elmo.errors import ConfigError, FormatError
from elmo.storage.atomic import atomic_file, make_folder
from elmo.storage.files import format_path, read_json
from elmo.train.checkpoint import Checkpoints
from elmo.train.corpus import Corpus, whole_sentences
from elmo.train.distributed import Ranks
from elmo.train.evaluation import evaluate
from elmo.train.loop import Trainer
from elmo.train.options import PRESETS, DropoutOptions, ModelShape, OptimizerOptions, TrainOptions

FILE_NAME = "plan.json"
VERSION = 2
EVALUATION_SHARE = 0.05  # share of the time for held-out perplexity
OTHER_SHARE = 0.03  # share of the time for checkpoints and for writing the model
MAX_EPOCHS = 40  # more passes over the same text do not help (Muennighoff et al. 2023)
EVALUATED_TOKENS = 2048  # number of tokens on which the speed of evaluation is measured
_MIN_EVALUATIONS, _MAX_EVALUATIONS = 5, 25
_CHECKPOINT_SECONDS = 600
_MIN_STEPS = 100
_MEASURE_SECONDS = 3.0  # time to measure one size
_MEASURE_STEPS = 30  # largest number of steps to measure one size
_EQUAL_LOSS = 0.02  # nats; if the expected losses are this close, the smallest size is used
_CLOSE_LOSS = 0.5  # nats; a size this close to the best is measured too, because it may be better than estimated
_MEASURE_SHARE = 0.05  # share of the time; a size that takes longer to measure is not considered
_A, _B, _ALPHA, _BETA = 406.4, 410.7, 0.34, 0.28  # Hoffmann et al. 2022
IRREDUCIBLE_LOSS = 1.69  # of the same law, in nats per token
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Speed:
    """Measured speed of one size of a model.

    Attributes:
        train: Training speed in tokens per second.
        evaluate: Evaluation speed in tokens per second, or None if there is no held-out text.
        seconds: Duration of the measurement.
    """

    train: float
    evaluate: float | None
    seconds: float = 0.0


MeasureSpeed = Callable[[BiLmConfig, TrainOptions], Speed]


@dataclass(frozen=True)
class PlanRequest:
    """The input of a plan, apart from the corpus and the speed of the machine.

    Attributes:
        hours: Training time.
        sizes: Configurations to choose from, by name.
        options: Options of the training loop.
        changes: Fields of ``TrainOptions`` that the user set and that the plan must not change. For optimizer and
            dropout, a dict of the fields that the user set: ``{"optimizer": {"clip": 1.0}}``.
        max_rate: Largest learning rate that the plan may choose.
    """

    hours: float
    sizes: Mapping[str, BiLmConfig]
    options: TrainOptions
    changes: Mapping[str, Any] = field(default_factory=dict)
    max_rate: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the request as JSON values."""
        sizes = {name: config.to_json() for name, config in self.sizes.items()}
        return json.loads(json.dumps({**asdict(replace(self, sizes={})), "sizes": sizes}))


@dataclass(frozen=True)
class TrainingPlan:
    """The size and the schedule of a run that was started with ``hours``.

    Attributes:
        hours: Training time.
        preset: Name of the chosen size.
        config: Configuration of the model.
        options: Options of the training loop.
        n_tokens: Number of tokens to read.
        epochs: Number of passes over the text.
        tokens_per_second: Measured training speed.
        reasons: Explanations of the plan, one line each.
    """

    hours: float
    preset: str
    config: BiLmConfig
    options: TrainOptions
    n_tokens: int
    epochs: float
    tokens_per_second: float
    reasons: tuple[str, ...]

    @property
    def line(self) -> str:
        """A summary of the plan in one line."""
        hours = f"{self.hours:g} hour{'' if self.hours == 1 else 's'}"
        speed = f"{self.tokens_per_second:,.0f} tokens/s measured"
        epochs = f"{self.epochs:.2g}" if self.epochs < 10 else f"{self.epochs:.0f}"
        size = f"{'preset' if self.preset in PRESETS else 'the size'} {self.preset}"
        return f"{hours}: {size}, {format_count(self.n_tokens)} tokens ({epochs} epochs), {speed}"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {**asdict(self), "config": self.config.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild a plan from the result of ``to_json``."""
        parts = {
            "config": BiLmConfig.from_json(values["config"]),
            "options": TrainOptions.from_json(values["options"]),
            "reasons": tuple(values["reasons"]),
        }
        return cls(**{**values, **parts})


def list_sizes(shape: ModelShape, *, n_tokens: int, n_vocab: int) -> dict[str, BiLmConfig]:
    """Return the configurations to choose from, by name: all presets that fit, or only the one that the user set."""
    if shape.preset is None:
        shapes = {name: replace(shape, preset=name) for name in PRESETS if shape.fits(name)}
    else:
        shapes = {shape.preset if isinstance(shape.preset, str) else "custom": shape}
    return {name: size.config(n_tokens=n_tokens, n_vocab=n_vocab) for name, size in shapes.items()}


def load_or_make_plan(
    folder: Path,
    corpus: Corpus,
    request: PlanRequest,
    *,
    ranks: Ranks | None = None,
    measure: MeasureSpeed | None = None,
) -> TrainingPlan:
    """Load the plan from the folder of a run, or call ``make_plan`` and store the plan there."""
    ranks = ranks or Ranks()
    stored_request = {**request.to_json(), "corpus": dict(corpus.manifest.files)}
    plan = ranks.from_first(_read_plan(folder, stored_request) if ranks.is_first else None)
    if plan is not None:
        return plan
    plan = make_plan(corpus, request, ranks=ranks, measure=measure)
    if ranks.is_first:
        make_folder(folder)
        values = {"kind": "elmo plan", "version": VERSION, "line": plan.line}
        values |= {"request": stored_request, "plan": plan.to_json()}
        with atomic_file(folder / FILE_NAME) as temporary:
            temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return plan


def _read_plan(folder: Path, request: Mapping[str, Any]) -> TrainingPlan | None:
    """Read the plan of a run, or return None if there is none for this request.

    Raises ``ConfigError`` if a run with another request has already written a checkpoint.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        version = values.get("version", 1)
        if version == VERSION and values["request"] == request:
            return TrainingPlan.from_json(values["plan"])
        before = values["request"]["hours"] if version == VERSION else None
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise FormatError(f"{format_path(path)} is not a valid training plan: {error}") from error
    if Checkpoints(folder / "checkpoints").steps():
        other = "other options or another text"
        if before is None:
            other = f"another version of elmo (plan version {version!r:.20}, expected {VERSION})"
        elif before != request["hours"]:
            other = f"hours={before:g}"
        raise ConfigError(f"{format_path(folder)}: this run was started with {other}; use another folder")
    return None


def make_plan(
    corpus: Corpus, request: PlanRequest, *, ranks: Ranks | None = None, measure: MeasureSpeed | None = None
) -> TrainingPlan:
    """Choose the size of the model, and plan to train it for the requested number of hours.

    The plan sets the number of steps, the optimizer (AdamW) and its schedule (warmup and cosine decay), the dropout
    (higher if a large model reads a small text many times), and the intervals of evaluation and checkpoints.

    Args:
        corpus: Text to train on.
        request: Training time, sizes and options.
        ranks: Processes that share the work. By default, there is only this process.
        measure: Function that measures the speed of a size. By default, it trains the size for a few seconds.
    """
    options, changes = request.options, request.changes
    choice = SizeChoice(corpus, request, measure or build_measure(corpus, ranks or Ranks()))
    name = choice.find_best()
    config, speed = request.sizes[name], choice.measured[name]
    n_steps = max(1, int(choice.n_tokens(name) // choice.step_tokens))
    n_tokens = n_steps * choice.step_tokens
    epochs = n_tokens / len(corpus.train)
    rate = _choose_dropout(config, epochs, len(corpus.train))
    planned = {
        "n_steps": n_steps,
        "optimizer": _choose_optimizer(config, n_steps, request.max_rate).changed(changes.get("optimizer", {})),
        "dropout": replace(DropoutOptions(rate), **changes.get("dropout", {})),
    }
    intervals = _choose_intervals(speed, n_steps, n_tokens, len(corpus.heldout), options)
    planned |= {option: value for option, value in intervals.items() if option not in changes}
    fitted = replace(options, **planned)
    sizes_compared, reasons = choice.explain(), list[str]()
    if epochs > 0.99 * MAX_EPOCHS:
        reasons.append(f"the text is small: more than {MAX_EPOCHS} epochs are not worth the time")
    if n_steps < _MIN_STEPS:
        _log.warning("%d steps are too few to learn much; use more hours", n_steps)
    if fitted.dropout.layers == rate > DropoutOptions().layers:
        reasons.append(f"dropout {rate:g}: the text is read {epochs:.0f} times")
    for line in sizes_compared:
        _log.debug("%s", line)
    for line in reasons:
        _log.info("%s", line)
    lines = (*sizes_compared, *reasons)
    return TrainingPlan(request.hours, name, config, fitted, n_tokens, epochs, speed.train, reasons=lines)


def _choose_optimizer(config: BiLmConfig, n_steps: int, max_rate: float | None) -> OptimizerOptions:
    """Return AdamW with a lower learning rate for a wider model and a longer warmup for a longer run."""
    encoder = config.encoder
    # a transformer as wide as the published one gets the rate of an LSTM as wide as the published one
    cells = 8 * encoder.state_width if isinstance(encoder, TransformerConfig) else encoder.cell_width
    rate = 0.001 * math.sqrt(4096 / cells)
    rate = round(min(max(rate, 0.0005), 0.004), 4)
    rate = rate if max_rate is None else min(rate, max_rate)
    warmup = min(2000, n_steps // 20)
    return OptimizerOptions("adamw", rate, warmup_steps=warmup, decay="cosine", final_rate=0.01)


def _choose_dropout(config: BiLmConfig, epochs: float, n_unique: int) -> float:
    """Return a dropout rate of 0.1, as for the original ELMo, or more if the model could memorize the text."""
    pressure = epochs * n_parameters(config) / n_unique
    rate = 0.1 + 0.08 * math.log2(max(pressure, 1.0))
    return min(0.5, round(0.05 * round(rate / 0.05), 2))


def _choose_intervals(
    speed: Speed, n_steps: int, n_tokens: int, n_heldout: int, options: TrainOptions
) -> dict[str, int | None]:
    """Choose the intervals of evaluation, checkpoints and log, and the number of held-out tokens to evaluate on."""
    training_seconds = n_tokens / speed.train
    n_evaluated = n_heldout if options.evaluate_tokens is None else min(options.evaluate_tokens, n_heldout)
    n_evaluations = _MIN_EVALUATIONS
    if speed.evaluate:
        affordable = training_seconds * EVALUATION_SHARE * speed.evaluate  # tokens in all evaluations
        n_evaluations = int(min(max(affordable / max(n_evaluated, 1), _MIN_EVALUATIONS), _MAX_EVALUATIONS))
        least = min(n_evaluated, EVALUATED_TOKENS)
        n_evaluated = max(min(n_evaluated, int(affordable / n_evaluations)), least)
    every = max(1, n_steps // n_evaluations)
    between = max(1, int(n_steps * _CHECKPOINT_SECONDS / max(training_seconds, _CHECKPOINT_SECONDS)))
    return {
        "evaluate_every": every,
        "evaluate_tokens": options.evaluate_tokens if n_evaluated >= n_heldout else n_evaluated,
        "checkpoint_every": min(every, between),
        "log_every": max(1, min(50, every)),
    }


class SizeChoice:
    """Chooses a size. It measures the smallest size, then larger sizes as long as they may be better."""

    def __init__(self, corpus: Corpus, request: PlanRequest, measure: MeasureSpeed) -> None:
        self.sizes, self.options, self.measure = request.sizes, request.options, measure
        self.seconds = 3600 * request.hours
        self.n_unique = len(corpus.train)
        self.step_tokens = self.options.batch_size * self.options.window
        self.measured: dict[str, Speed] = {}
        n_vocab = min(self.options.n_vocab, len(corpus.types))
        distinct = _distinct_share(corpus, self.options)
        self.work = {
            name: count_products(config, self.options, n_vocab=n_vocab, distinct=distinct)
            for name, config in self.sizes.items()
        }

    def find_best(self) -> str:
        """Return the name of the size with the lowest expected loss. It and its close rivals are measured first."""
        by_work = sorted(self.sizes, key=self.work.__getitem__)
        self._measure(by_work[0])
        while True:
            feasible = [name for name in by_work if self._is_feasible(name)]
            lowest = min(map(self.expected_loss, feasible))
            best = next(k for k, name in enumerate(feasible) if self.expected_loss(name) < lowest + _EQUAL_LOSS)
            # Estimated speeds are inaccurate, because large matrix products are more efficient than small ones.
            rivals = [
                name
                for name in feasible[max(best - 1, 0) : best + 2]
                if name not in self.measured and self.expected_loss(name) < lowest + _CLOSE_LOSS
            ]
            if not rivals:
                return feasible[best]
            self._measure(rivals[0])

    def speed(self, name: str) -> float:
        """Return the training speed of a size in tokens per second, measured or estimated from the closest size."""
        if name in self.measured:
            return self.measured[name].train
        closest = min(self.measured, key=lambda other: abs(math.log(self.work[other] / self.work[name])))
        return self.measured[closest].train * self.work[closest] / self.work[name]

    def n_tokens(self, name: str) -> float:
        """Return the number of tokens that a size can read in the remaining time."""
        spent = sum(speed.seconds for speed in self.measured.values())
        left = self.seconds * (1 - EVALUATION_SHARE - OTHER_SHARE) - spent
        return min(max(left, 0.1 * self.seconds) * self.speed(name), MAX_EPOCHS * self.n_unique)

    def expected_loss(self, name: str) -> float:
        """Return the loss of a size according to the scaling law."""
        return expected_loss(
            n_weights=n_parameters(self.sizes[name]), n_tokens=self.n_tokens(name), n_unique=self.n_unique
        )

    def explain(self) -> list[str]:
        """Return one line about each size, with its speed, tokens and expected loss."""
        lines = []
        for name, config in self.sizes.items():
            how = "measured" if name in self.measured else "estimated"
            n_tokens = self.n_tokens(name)
            lines.append(
                f"{name}: {self.speed(name):,.0f} tokens/s {how}, {format_count(n_tokens)} tokens, "
                f"{n_tokens / n_parameters(config):.2g} per weight, "
                f"expected loss {self.expected_loss(name):.2f}"
            )
        return lines

    def _measure(self, name: str) -> None:
        self.measured[name] = self.measure(self.sizes[name], self.options)

    def _is_feasible(self, name: str) -> bool:
        """Whether three training steps of a size take only a small share of the time."""
        return name in self.measured or 3 * self.step_tokens / self.speed(name) < _MEASURE_SHARE * self.seconds


def expected_loss(*, n_weights: float, n_tokens: float, n_unique: float) -> float:
    """Return the expected loss in nats per token, for comparing sizes.

    Args:
        n_weights: Number of weights of the model.
        n_tokens: Number of tokens that are read.
        n_unique: Number of tokens in the text.
    """
    tokens = _effective(n_tokens, n_unique, 15.4)
    # additional weights lose their value like repeated tokens (Muennighoff et al. 2023)
    enough = (_A * _ALPHA / (_B * _BETA) * n_unique**_BETA) ** (1 / _ALPHA)
    weights = _effective(n_weights, enough, 5.3)
    return IRREDUCIBLE_LOSS + _A / weights**_ALPHA + _B / tokens**_BETA


def _effective(number: float, enough: float, half_life: float) -> float:
    """Return the effective number of tokens or weights, which grows more slowly beyond ``enough``."""
    beyond = max(0.0, number / enough - 1)
    return max(1.0, min(number, enough) + enough * half_life * (1 - math.exp(-beyond / half_life)))


def count_products(config: BiLmConfig, options: TrainOptions, *, n_vocab: int, distinct: float) -> float:
    """Count the multiplications per token in a forward pass; ``distinct`` is the share of distinct tokens."""
    encoder, state = config.encoder, config.encoder.state_width
    if isinstance(encoder, TransformerConfig):
        # four projections, the feed-forward network, and attention to every token of the window
        layer = 4 * state**2 + 2 * state * encoder.feed_forward_width + 2 * state * options.window
    else:
        layer = (8 + encoder.has_projection) * encoder.cell_width * state
    n_compared = options.cutoffs[0] if options.cutoffs else min(options.n_samples or n_vocab, n_vocab)
    n_directions = 2 if options.directions == "both" else 1
    total = n_directions * (encoder.n_layers * layer + n_compared * state)
    if config.chars is not None:
        chars = config.chars
        weights = sum(width * count for width, count in chars.filters) * chars.char_width
        convolution = weights * chars.max_characters
        above = 2 * chars.n_highway * chars.width**2 + chars.n_filters * state
        total += n_directions * distinct * (convolution + above)
    return float(total)


def format_count(number: float) -> str:
    """Format a number with a suffix, such as 4.63M or 25k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 10 * size else f"{number / size:,.0f}{letter}"
    return f"{number:.0f}"


def _distinct_share(corpus: Corpus, options: TrainOptions) -> float:
    """Estimate the share of distinct tokens in a batch. The character CNN computes each of them once."""
    last = max(1, len(corpus.train) - options.window)
    starts = np.random.default_rng(0).integers(last, size=options.batch_size)
    rows = [corpus.train[start : start + options.window] for start in starts]
    return len(np.unique(np.concatenate(rows))) / sum(map(len, rows))


def build_measure(corpus: Corpus, ranks: Ranks) -> MeasureSpeed:
    """Return a function that measures the speed of a size by training it for a few seconds."""

    def measure(config: BiLmConfig, options: TrainOptions) -> Speed:
        begin = time.perf_counter()
        # a trainer writes to its folder only in run()
        with Trainer(corpus, config, options, corpus.folder, ranks=ranks) as trainer:
            trainer.objective.train()
            trainer.train_step()  # not measured, because it allocates memory
            first, n_steps, seconds = time.perf_counter(), 0, 0.0
            while n_steps < 2 or (seconds < _MEASURE_SECONDS and n_steps < _MEASURE_STEPS):
                trainer.train_step()
                n_steps += 1
                seconds = ranks.from_first(time.perf_counter() - first)  # all ranks stop at the same step
            train = n_steps * options.batch_size * options.window / seconds
            evaluate_speed = None
            if len(stream := whole_sentences(corpus.heldout, EVALUATED_TOKENS)):
                first = time.perf_counter()
                evaluate(trainer.objective, trainer.ids, stream, ranks=ranks)
                evaluate_speed = len(stream) / ranks.from_first(time.perf_counter() - first)
        return Speed(train, evaluate_speed, ranks.from_first(time.perf_counter() - begin))

    return measure
