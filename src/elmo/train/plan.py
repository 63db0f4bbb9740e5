"""Sizes and a time to train in, the size to train out: the one that a scaling law expects most of.

A few windows of real training on the real corpus tell how fast a size is; of a large one its arithmetic tells
first whether it comes into question at all. The law is L = E + A / N^α + B / D^β for N weights and D tokens,
with the constants that Hoffmann et al. 2022 fitted ("Training Compute-Optimal Large Language Models"); tokens
that are read again, and weights that a text cannot feed, count for less and less, as Muennighoff et al. 2023
found ("Scaling Data-Constrained Language Models"). These were Transformers: we do not believe the loss, and
use only the order in which it puts our sizes. What it chooses reads some 3 to 50 tokens a weight.

Hours to spend in, the size of a model, how much it reads and its schedule out, after a short measurement.

The plan is kept in the run's folder: a run that goes on does not measure again. It counts windows, not hours,
so that a run that was stopped ends with the same bytes as one that was not; on a machine that is busier than
it was at the start it takes longer. The hours begin when the corpus has been built.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from elmo.config import BiLmConfig, n_parameters
from elmo.errors import ConfigError, FormatError
from elmo.storage import files
from elmo.storage.atomic import atomic_file
from elmo.train.checkpoint import Checkpoints
from elmo.train.corpus import Corpus
from elmo.train.distributed import Ranks
from elmo.train.evaluate import perplexity
from elmo.train.loop import Trainer
from elmo.train.objective import Dropout
from elmo.train.options import PRESETS, Optimisation, Shape, TrainOptions, changed
from elmo.train.vocabulary import EOS

EVALUATION = 0.05  # of the time, for held-out perplexity
REST = 0.03  # of the time, for checkpoints and the model that is written in the end
MOST_EPOCHS = 40  # more of the same text teaches nothing (Muennighoff et al. 2023)
EVALUATED_TOKENS = 2048  # to measure evaluation by
_WINDOW_SECONDS = 3.0  # to measure a size for
_MOST_WINDOWS = 30
_SAME = 0.02  # nats: of sizes that are so near to each other, the smallest
_NEAR = 0.5  # nats: a size that may prove better when it is measured
_MEASURING = 0.05  # of the time: a size that would take longer to measure is out of reach
_A, _B, _E, _ALPHA, _BETA = 406.4, 410.7, 1.69, 0.34, 0.28  # Hoffmann et al. 2022


@dataclass(frozen=True)
class Speed:
    """Of a size on this machine and corpus."""

    train: float  # tokens a second
    evaluate: float | None  # tokens a second; None: there is no held-out text
    seconds: float = 0.0  # that measuring took


Measure = Callable[[BiLmConfig, TrainOptions], Speed]


class Choice:
    """Sizes against each other: the smallest is measured, and larger ones where they may be better."""

    def __init__(
        self,
        corpus: Corpus,
        seconds: float,
        *,
        sizes: Mapping[str, BiLmConfig],
        options: TrainOptions,
        measure: Measure,
    ) -> None:
        self.sizes, self.options, self.seconds, self.measure = sizes, options, seconds, measure
        self.n_unique = len(corpus.train)
        self.window_tokens = options.n_rows * options.n_steps
        self.measured: dict[str, Speed] = {}
        n_vocab = min(options.n_vocab, len(corpus.types))
        distinct = _distinct_share(corpus, options)
        self.work = {
            name: products(config, options, n_vocab=n_vocab, distinct=distinct)
            for name, config in sizes.items()
        }

    def best(self) -> str:
        """The size with the lowest expected loss; it and those next to it have been measured by then."""
        by_work = sorted(self.sizes, key=self.work.__getitem__)
        self._try(by_work[0])
        while True:
            reached = [name for name in by_work if self._is_within_reach(name)]
            least = min(map(self.expected_loss, reached))
            place = next(k for k, name in enumerate(reached) if self.expected_loss(name) < least + _SAME)
            # Estimated speeds are rough: large products run better than small ones.
            rivals = [
                name
                for name in reached[max(place - 1, 0) : place + 2]
                if name not in self.measured and self.expected_loss(name) < least + _NEAR
            ]
            if not rivals:
                return reached[place]
            self._try(rivals[0])

    def speed(self, name: str) -> float:
        """Tokens a second, measured or estimated from the next smaller size that was measured."""
        if name in self.measured:
            return self.measured[name].train
        nearest = min(self.measured, key=lambda other: abs(math.log(self.work[other] / self.work[name])))
        return self.measured[nearest].train * self.work[nearest] / self.work[name]

    def n_tokens(self, name: str) -> float:
        """That a size reads in the time that is left for training."""
        left = self.seconds * (1 - EVALUATION - REST) - sum(each.seconds for each in self.measured.values())
        return min(max(left, 0.1 * self.seconds) * self.speed(name), MOST_EPOCHS * self.n_unique)

    def expected_loss(self, name: str) -> float:
        """What the scaling law says of it."""
        return expected_loss(
            n_weights=n_parameters(self.sizes[name]), n_tokens=self.n_tokens(name), n_unique=self.n_unique
        )

    def reasons(self) -> list[str]:
        """A line for each size."""
        lines = []
        for name, config in self.sizes.items():
            how = "measured" if name in self.measured else "by its arithmetic"
            n_tokens = self.n_tokens(name)
            lines.append(
                f"{name}: {self.speed(name):,.0f} tokens/s {how}, {short(n_tokens)} tokens, "
                f"{n_tokens / n_parameters(config):.2g} a weight, "
                f"{self.expected_loss(name):.2f} by the law"
            )
        return lines

    def _try(self, name: str) -> None:
        self.measured[name] = self.measure(self.sizes[name], self.options)

    def _is_within_reach(self, name: str) -> bool:
        """Whether it can be measured in a small part of the time; it takes three windows at least."""
        return name in self.measured or 3 * self.window_tokens / self.speed(name) < _MEASURING * self.seconds


def expected_loss(*, n_weights: float, n_tokens: float, n_unique: float) -> float:
    """In nats a token, after ``n_tokens`` of a text that has ``n_unique``; to compare sizes by, no more."""
    tokens = _worth(n_tokens, n_unique, 15.4)
    # more weights than a text can feed are worth as little as reading it again: Muennighoff et al. 2023
    enough = (_A * _ALPHA / (_B * _BETA) * n_unique**_BETA) ** (1 / _ALPHA)
    weights = _worth(n_weights, enough, 5.3)
    return _E + _A / weights**_ALPHA + _B / tokens**_BETA


def _worth(number: float, enough: float, half_life: float) -> float:
    """What so many tokens or weights count for, when those beyond ``enough`` count for less and less."""
    beyond = max(0.0, number / enough - 1)
    return max(1.0, min(number, enough) + enough * half_life * (1 - math.exp(-beyond / half_life)))


def products(config: BiLmConfig, options: TrainOptions, *, n_vocab: int, distinct: float) -> float:
    """Multiplications of a forward pass, for a token; ``distinct`` is the share of tokens that differ."""
    lstm = config.lstm
    layer = 8 * lstm.cell_width * lstm.state_width + lstm.has_projection * lstm.cell_width * lstm.state_width
    compared = options.cutoffs[0] if options.cutoffs else min(options.n_samples or n_vocab, n_vocab)
    n_directions = 2 if options.directions == "both" else 1
    total = n_directions * (lstm.n_layers * layer + compared * lstm.state_width)
    if config.chars is not None:
        chars = config.chars
        weights = sum(width * count for width, count in chars.filters) * chars.char_width
        convolved = weights * chars.max_characters
        above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * lstm.state_width
        total += n_directions * distinct * (convolved + above)
    return float(total)


def short(number: float) -> str:
    """A large number for people: 41M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 10 * size else f"{number / size:,.0f}{letter}"
    return f"{number:.0f}"


def _distinct_share(corpus: Corpus, options: TrainOptions) -> float:
    """The share of a window's tokens that are other words: those go through the character network."""
    last = max(1, len(corpus.train) - options.n_steps)
    starts = np.random.default_rng(0).integers(last, size=options.n_rows)
    window = [corpus.train[start : start + options.n_steps] for start in starts]
    return len(np.unique(np.concatenate(window))) / sum(map(len, window))


def measure_on(corpus: Corpus, ranks: Ranks) -> Measure:
    """Measures by training: what it learns is thrown away."""

    def measure(config: BiLmConfig, options: TrainOptions) -> Speed:
        begin = time.perf_counter()
        trainer = Trainer(corpus, config, options, corpus.folder, ranks=ranks)  # writes nothing until it runs
        try:
            trainer.objective.train()
            trainer._train_one_window()  # buffers are made, caches filled
            first, n_windows, seconds = time.perf_counter(), 0, 0.0
            while n_windows < 2 or (seconds < _WINDOW_SECONDS and n_windows < _MOST_WINDOWS):
                trainer._train_one_window()
                n_windows += 1
                seconds = ranks.from_first(time.perf_counter() - first)  # all stop at the same window
            train = n_windows * options.n_rows * options.n_steps / seconds
            evaluate = None
            ends = np.flatnonzero(corpus.heldout[:EVALUATED_TOKENS] == EOS)
            if len(ends):
                stream = corpus.heldout[: int(ends[-1]) + 1]
                first = time.perf_counter()
                perplexity(trainer.objective, trainer.ids, stream, ranks=ranks)
                evaluate = len(stream) / ranks.from_first(time.perf_counter() - first)
        finally:
            trainer.gradients.close()
        return Speed(train, evaluate, ranks.from_first(time.perf_counter() - begin))

    return measure


NAME = "plan.json"  # in the run's folder
_FEWEST_EVALUATIONS, _MOST_EVALUATIONS = 5, 25
_CHECKPOINT_SECONDS = 600
_FEWEST_STEPS = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """What the hours are spent on."""

    hours: float
    preset: str
    config: BiLmConfig
    options: TrainOptions
    n_tokens: int  # to read
    epochs: float
    tokens_per_second: float
    reasons: tuple[str, ...]  # a line each

    @property
    def line(self) -> str:
        """For people."""
        hours = f"{self.hours:g} hour{'' if self.hours == 1 else 's'}"
        speed = f"{self.tokens_per_second:,.0f} tokens/s measured"
        epochs = f"{self.epochs:.2g}" if self.epochs < 10 else f"{self.epochs:.0f}"
        size = f"{'preset' if self.preset in PRESETS else 'the size'} {self.preset}"
        return f"{hours}: {size}, {short(self.n_tokens)} tokens ({epochs} epochs), {speed}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "config": self.config.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        options = dict(values["options"])
        options |= {
            "cutoffs": tuple(options["cutoffs"]),
            "dropout": Dropout(**options["dropout"]),
            "optimisation": Optimisation(**options["optimisation"]),
        }
        parts = {
            "config": BiLmConfig.from_json(values["config"]),
            "options": TrainOptions(**options),
            "reasons": tuple(values["reasons"]),
        }
        return cls(**{**values, **parts})


def sizes_of(shape: Shape, *, n_tokens: int, n_vocab: int) -> dict[str, BiLmConfig]:
    """The sizes to choose from: all presets, or the one that was asked for."""
    if shape.preset is None:
        shapes = {name: replace(shape, preset=name) for name in PRESETS}
    else:
        shapes = {shape.preset if isinstance(shape.preset, str) else "of your own": shape}
    return {name: each.config(n_tokens=n_tokens, n_vocab=n_vocab) for name, each in shapes.items()}


def kept_plan(
    folder: Path,
    corpus: Corpus,
    hours: float,
    *,
    sizes: Mapping[str, BiLmConfig],
    options: TrainOptions,
    given: Collection[str] = (),
    parts: Mapping[str, Mapping[str, Any]] | None = None,
    highest_rate: float | None = None,
    ranks: Ranks | None = None,
    measure: Measure | None = None,
) -> Plan:
    """The plan that the run in ``folder`` has; one that has none yet gets it, see ``plan``."""
    ranks = ranks or Ranks()
    asked = {
        "hours": hours,
        "sizes": {name: config.to_json() for name, config in sizes.items()},
        "options": asdict(options),
        "given": sorted(given),
        "corpus": dict(corpus.manifest.files),
    }
    asked |= {"parts": parts} if parts else {}
    asked |= {"highest_rate": highest_rate} if highest_rate else {}
    asked = json.loads(json.dumps(asked))  # as a file gives it back
    found = ranks.from_first(_read(folder, asked) if ranks.is_first else None)
    if found is not None:
        return found
    made = plan(
        corpus,
        hours,
        sizes=sizes,
        options=options,
        given=given,
        parts=parts,
        highest_rate=highest_rate,
        ranks=ranks,
        measure=measure,
    )
    if ranks.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        values = {"kind": "elmo plan", "asked": asked, "plan": made.to_json(), "line": made.line}
        with atomic_file(folder / NAME) as temporary:
            temporary.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return made


def plan(
    corpus: Corpus,
    hours: float,
    *,
    sizes: Mapping[str, BiLmConfig],
    options: TrainOptions,
    given: Collection[str] = (),
    parts: Mapping[str, Mapping[str, Any]] | None = None,
    highest_rate: float | None = None,
    ranks: Ranks | None = None,
    measure: Measure | None = None,
) -> Plan:
    """Choose one of ``sizes``, and how long to train it so that it is done in ``hours``.

    ``options`` are those of the run; of those whose names are not ``given`` the plan sets the number of
    windows, optimiser and schedule (AdamW, warm-up, a cosine down to the end), dropout (more of it, the more
    often a small text is read by a large model), and when to evaluate and to keep checkpoints. ``parts`` are
    changes to two of these, ``optimisation`` and ``dropout``: ``{"optimisation": {"clip": 1.0}}``.
    ``highest_rate`` bounds the learning rate that the plan chooses.
    """
    if not (math.isfinite(hours) and hours > 0):
        raise ConfigError(f"hours must be a positive number, not {hours!r:.40}")
    if "n_windows" in given:
        raise ConfigError("hours and n_windows both say how long to train: give one of them")
    measure = measure or measure_on(corpus, ranks or Ranks())
    chosen = Choice(corpus, 3600 * hours, sizes=sizes, options=options, measure=measure)
    name = chosen.best()
    config, speed = sizes[name], chosen.measured[name]
    n_windows = max(1, int(chosen.n_tokens(name) // chosen.window_tokens))
    n_tokens = n_windows * chosen.window_tokens
    epochs = n_tokens / len(corpus.train)
    sizes_told, reasons = chosen.reasons(), list[str]()
    if epochs > 0.99 * MOST_EPOCHS:
        reasons.append(f"the text is small: {MOST_EPOCHS} epochs are all that is worth it")
    if n_windows < _FEWEST_STEPS:
        _log.warning("%d steps are too few to learn much: give it more time", n_windows)
    parts = parts or {}
    optimisation = _optimisation(config, n_windows, highest_rate)
    dropout = Dropout(_dropout(config, epochs, len(corpus.train)))
    usual = {
        "n_windows": n_windows,
        "optimisation": changed(optimisation, parts.get("optimisation", {})),
        "dropout": changed(dropout, parts.get("dropout", {})),
        **_intervals(speed, n_windows, n_tokens, len(corpus.heldout), options),
    }
    changes = {option: value for option, value in usual.items() if option not in given}
    fitted = replace(options, **changes)
    if "dropout" in changes and fitted.dropout.layers == dropout.layers > Dropout().layers:
        reasons.append(f"dropout {fitted.dropout.layers:g}: the text is read {epochs:.0f} times")
    for told, level in ((sizes_told, logging.DEBUG), (reasons, logging.INFO)):
        for reason in told:
            _log.log(level, "%s", reason)
    return Plan(hours, name, config, fitted, n_tokens, epochs, speed.train, reasons=(*sizes_told, *reasons))


def _optimisation(config: BiLmConfig, n_windows: int, highest_rate: float | None) -> Optimisation:
    """AdamW; a wider model wants a lower rate, and a longer run a longer warm-up."""
    rate = 0.001 * math.sqrt(4096 / config.lstm.cell_width)
    rate = round(min(max(rate, 0.0005), 0.004), 4)
    rate = rate if highest_rate is None else min(rate, highest_rate)
    warm_up = min(2000, n_windows // 20)
    return Optimisation("adamw", rate, warm_up_steps=warm_up, decay="cosine", final_rate=0.01)


def _dropout(config: BiLmConfig, epochs: float, n_unique: int) -> float:
    """0.1 as published, where 94M weights read 800M tokens ten times; more where heart-learning is easier."""
    pressure = epochs * n_parameters(config) / n_unique
    rate = 0.1 + 0.08 * math.log2(max(pressure, 1.0))
    return min(0.5, round(0.05 * round(rate / 0.05), 2))


def _intervals(
    speed: Speed, n_windows: int, n_tokens: int, n_heldout: int, options: TrainOptions
) -> dict[str, int | None]:
    """How often to look at the held-out text, and at how much of it, for its share of the time."""
    training_seconds = n_tokens / speed.train
    most = n_heldout if options.evaluate_tokens is None else min(options.evaluate_tokens, n_heldout)
    n_evaluations = _FEWEST_EVALUATIONS
    if speed.evaluate:
        affordable = training_seconds * EVALUATION * speed.evaluate  # tokens, all evaluations together
        n_evaluations = int(min(max(affordable / max(most, 1), _FEWEST_EVALUATIONS), _MOST_EVALUATIONS))
        most = max(min(most, int(affordable / n_evaluations)), min(most, EVALUATED_TOKENS))
    every = max(1, n_windows // n_evaluations)
    between = max(1, int(n_windows * _CHECKPOINT_SECONDS / max(training_seconds, _CHECKPOINT_SECONDS)))
    return {
        "evaluate_every": every,
        "evaluate_tokens": options.evaluate_tokens if most >= n_heldout else most,
        "checkpoint_every": min(every, between),
        "log_every": max(1, min(50, every)),
    }


def _read(folder: Path, asked: Mapping[str, Any]) -> Plan | None:
    """The plan in a run's folder; ``ConfigError`` when a run that has begun was asked for something else."""
    path = folder / NAME
    has_begun = bool(Checkpoints(folder / "checkpoints").steps())
    if not path.is_file():
        return None
    values = files.read_json(path)
    try:
        if values["asked"] == asked:
            return Plan.from_json(values["plan"])
        before = values["asked"]["hours"]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise FormatError(f"{files.format_path(path)}: is not the plan of a run: {error}") from error
    if has_begun:
        found = f"{before:g} hours" if before != asked["hours"] else "other options or another text"
        raise ConfigError(f"{files.format_path(folder)}: was begun with {found}; name another folder")
    return None
