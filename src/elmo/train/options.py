"""What can be chosen about a training run, in; a clear word about what makes no sense, out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args

import torch

from elmo.errors import ConfigError, raise_all
from elmo.formats.files import MAX_LINES
from elmo.train.dropout import Dropout
from elmo.train.objective import Directions
from elmo.train.schedule import USUAL_RATES, Optimisation

Precision = Literal["float32", "bfloat16", "float64"]
MOST = 10**9  # steps: what the name of a checkpoint has room for
_COUNTS = ("n_windows", "n_rows", "n_steps", "n_turns", "log_every", "evaluate_every", "checkpoint_every")


@dataclass(frozen=True)
class TrainOptions:
    """One run; the defaults are bilm-tf's published ones, but for ``restarts``."""

    n_windows: int  # steps of the optimiser, one a window
    n_vocab: int = 50_000
    n_rows: int = 128
    n_steps: int = 20  # tokens of a row in one window: how far gradients reach back
    n_samples: int | None = 8192  # of the softmax; None: all words
    cutoffs: tuple[int, ...] = ()  # of an adaptive softmax, which then stands in for the others
    is_tied: bool = False  # a model that reads words predicts them with the same vectors
    directions: Directions = "both"
    dropout: Dropout = field(default_factory=Dropout)
    precision: Precision = "float32"  # bfloat16: of matrix products only
    n_turns: int = 1  # rows are read in so many turns and their gradients added up, where memory is short
    loss_scale: float = 20.0  # bilm-tf multiplies the loss by the steps; it matters to Adagrad and the clip
    # Of all windows of a row so many start from zero, as a sentence does that is embedded. bilm-tf carries on
    # for ever: what its models make of a state that they never saw again is chance.
    restarts: float = 0.01
    # Share of the sentences that are read from a zero state, wherever they stand in a window. Sentences that
    # are embedded one by one start like this.
    sentence_starts: float = 0.0
    seed: int = 0
    keep_order: bool = False  # read the text in its own order instead of shuffled blocks
    log_every: int = 50
    evaluate_every: int = 1000
    evaluate_tokens: int | None = None  # of the held-out text, from its beginning; None: all
    checkpoint_every: int = 1000
    device: str = "cpu"
    optimisation: Optimisation = field(default_factory=Optimisation)

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1 and below {MOST:,}, found {getattr(self, name)!r:.40}"
            for name in _COUNTS
            if not 1 <= getattr(self, name) < MOST
        ]
        if not 4 <= self.n_vocab <= MAX_LINES:
            problems.append(f"n_vocab must lie in 4..{MAX_LINES:,}, found {self.n_vocab!r:.40}")
        if self.n_samples is not None and self.n_samples < 1:
            problems.append(f"n_samples must be at least 1, or None for all, not {self.n_samples!r:.40}")
        if not 0 <= self.seed < 1 << 63:
            problems.append(f"seed must lie in 0..2^63-1, found {self.seed!r:.40}")
        if not (math.isfinite(self.loss_scale) and self.loss_scale > 0):
            problems.append(f"loss_scale must be a positive number, not {self.loss_scale!r:.40}")
        if not 0 <= self.restarts <= 1:
            problems.append(f"restarts must lie in 0..1, not {self.restarts!r:.40}")
        if not 0 <= self.sentence_starts <= 1:
            problems.append(f"sentence_starts must lie in 0..1, not {self.sentence_starts!r:.40}")
        if self.directions not in get_args(Directions):
            problems.append(f"directions must be both, forward or backward, not {self.directions!r:.40}")
        if self.precision not in get_args(Precision):
            problems.append(f"precision must be float32, bfloat16 or float64, not {self.precision!r:.40}")
        if not problems and self.n_turns > self.n_rows:
            problems.append(f"{self.n_rows} rows cannot be read in {self.n_turns} turns: each needs a row")
        problems += self._cutoff_problems() + _device_problems(self.device)
        raise_all(problems, subject="training", kind=ConfigError)

    def _cutoff_problems(self) -> list[str]:
        found = []
        if any(a >= b for a, b in pairwise((0, *self.cutoffs))):
            found.append(f"cutoffs must rise from 1 on, found {list(self.cutoffs)!r:.40}")
        if self.cutoffs and self.n_samples is not None:
            found.append("an adaptive softmax is not sampled: n_samples must be None")
        if self.cutoffs and self.is_tied:
            found.append("an adaptive softmax cannot be tied to word vectors")
        return found


Part = TypeVar("Part", Dropout, Optimisation)


def changed(base: Part, asked: Mapping[str, Any]) -> Part:
    """``base`` with only what was asked for changed; another optimiser brings its usual rate."""
    known = [each.name for each in fields(base)]
    strange = [name for name in asked if name not in known]
    if strange:
        kind = type(base).__name__.lower()
        raise ConfigError(f"{kind}: expected some of {', '.join(known)}, found {strange[0]!r:.40}")
    if isinstance(base, Optimisation):
        optimiser = asked.get("optimiser", base.optimiser)
        if optimiser != base.optimiser:
            asked = {"learning_rate": USUAL_RATES.get(optimiser, base.learning_rate), **asked}
    return replace(base, **asked)


def _device_problems(name: str) -> list[str]:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in has:
        return [f"device must be cpu, cuda or mps, not {name!r:.40}"]
    return [] if has[kind] else [f"this machine has no {kind}: use device cpu"]
