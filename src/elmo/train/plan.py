"""Hours to spend in, the size of a model, how much it reads and its schedule out, after a short measurement.

The plan is kept in the run's folder: a run that goes on does not measure again. It counts windows, not hours,
so that a run that was stopped ends with the same bytes as one that was not; on a machine that is busier than
it was at the start it takes longer. The hours begin when the corpus has been built.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from elmo.config import BiLmConfig, n_parameters
from elmo.embed.atomic import replacing
from elmo.errors import ConfigError, FormatError
from elmo.formats import files
from elmo.train.checkpoint import Checkpoints
from elmo.train.choose_size import (
    EVALUATED_TOKENS,
    EVALUATION,
    MOST_EPOCHS,
    Choice,
    Measure,
    Speed,
    measure_on,
    short,
)
from elmo.train.corpus_folder import Corpus
from elmo.train.dropout import Dropout
from elmo.train.options import TrainOptions, changed
from elmo.train.presets import PRESETS, Shape
from elmo.train.ranks import Ranks
from elmo.train.schedule import Optimisation

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
        with replacing(folder / NAME) as temporary:
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
        raise FormatError(f"{files.shown(path)}: is not the plan of a run: {error}") from error
    if has_begun:
        found = f"{before:g} hours" if before != asked["hours"] else "other options or another text"
        raise ConfigError(f"{files.shown(folder)}: was begun with {found}; name another folder")
    return None
