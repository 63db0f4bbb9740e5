"""Options in, an optimiser and the learning rate of every step out.

The name of a size in, the shape of a model out; and changes to it, for those who want another.

What can be chosen about a training run, in; a clear word about what makes no sense, out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import nn

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.errors import ConfigError, raise_all
from elmo.storage.files import MAX_LINES
from elmo.train.objective import Directions, Dropout

Optimiser = Literal["adagrad", "adamw", "sgd"]
OPTIMISERS: tuple[Optimiser, ...] = get_args(Optimiser)
USUAL_RATES: dict[Optimiser, float] = {"adagrad": 0.2, "adamw": 0.001, "sgd": 1.0}


@dataclass(frozen=True)
class Optimisation:
    """How weights follow their gradients; the defaults are bilm-tf's published ones."""

    optimiser: Optimiser = "adagrad"
    learning_rate: float = 0.2
    warm_up_steps: int = 0  # the rate rises from zero over so many steps
    decay: Literal["none", "linear", "cosine"] = "none"  # from then on to ``final_rate``
    final_rate: float = 0.0  # where decay ends, as a share of the learning rate
    weight_decay: float = 0.0
    momentum: float = 0.0  # sgd's
    clip: float = 10.0  # of the gradients' norm, all weights together

    def __post_init__(self) -> None:
        problems = []
        if self.optimiser not in OPTIMISERS:
            problems.append(f"optimiser must be one of {', '.join(OPTIMISERS)}, not {self.optimiser!r:.40}")
        if self.decay not in ("none", "linear", "cosine"):
            problems.append(f"decay must be 'none', 'linear' or 'cosine', not {self.decay!r:.40}")
        for name in ("learning_rate", "clip"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                problems.append(f"{name} must be a positive number, not {value!r:.40}")
        for name in ("warm_up_steps", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                problems.append(f"{name} must be zero or a positive number, not {value!r:.40}")
        if not 0 <= self.momentum < 1:
            problems.append(f"momentum must lie in 0..1, not {self.momentum!r:.40}")
        if not 0 <= self.final_rate <= 1:
            problems.append(f"final_rate must lie in 0..1, not {self.final_rate!r:.40}")
        if self.weight_decay and self.optimiser == "adagrad":
            problems.append("weight_decay goes with adamw and sgd, not with adagrad")
        if self.momentum and self.optimiser != "sgd":
            problems.append("momentum goes with sgd only")
        raise_all(problems, subject="optimisation", kind=ConfigError)

    def rate(self, step: int, n_steps: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warm_up_steps:
            return self.learning_rate * (step + 1) / self.warm_up_steps
        done = min(1.0, (step - self.warm_up_steps) / max(1, n_steps - self.warm_up_steps))
        left = {"none": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.decay]
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * left)

    def make(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of these weights; fused, so that each is read and written once."""
        rate, decay = self.learning_rate, self.weight_decay
        weights = list(weights)
        if self.optimiser == "adagrad":
            # bilm-tf's accumulator starts at 1
            is_cpu = all(weight.device.type == "cpu" for weight in weights)
            return torch.optim.Adagrad(weights, lr=rate, initial_accumulator_value=1.0, fused=is_cpu)
        if self.optimiser == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay, fused=True)
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)


_FILTERS = CharCnnConfig.filters
PRESETS: dict[str, BiLmConfig] = {
    "tiny": BiLmConfig(CharCnnConfig(filters=_FILTERS[:3]), None, LstmConfig(cell_width=256, state_width=64)),
    "mini": BiLmConfig(
        CharCnnConfig(filters=_FILTERS[:5]), None, LstmConfig(cell_width=512, state_width=128)
    ),
    "small": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=1024, state_width=128)),
    "medium": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=2048, state_width=256)),
    "original": BiLmConfig(CharCnnConfig(n_highway=2), None, LstmConfig(cell_width=4096, state_width=512)),
}
# Up to how many tokens of text each is worth its time; a larger one would mostly learn the text by heart.
_UP_TO_TOKENS = {"tiny": 1_000_000, "mini": 10_000_000, "small": 100_000_000, "medium": 400_000_000}
Reads = Literal["characters", "words", "both"]


@dataclass(frozen=True)
class Shape:
    """A preset, and what of it should be otherwise; what is None stays."""

    preset: str | BiLmConfig | None = None  # None: by the size of the corpus
    reads: Reads | None = None
    n_layers: int | None = None
    cell_width: int | None = None
    state_width: int | None = None
    has_skip: bool | None = None

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.preset, str) and self.preset not in PRESETS:
            problems.append(
                f"preset must be one of {', '.join(PRESETS)} or a BiLmConfig, not {self.preset!r:.40}"
            )
        if self.reads is not None and self.reads not in get_args(Reads):
            problems.append(f"reads must be one of {', '.join(get_args(Reads))}, not {self.reads!r:.40}")
        raise_all(problems, subject="shape", kind=ConfigError)

    @property
    def reads_words_only(self) -> bool:
        """Whether no characters are read."""
        if self.reads is not None:
            return self.reads == "words"
        return isinstance(self.preset, BiLmConfig) and self.preset.chars is None

    def config(self, *, n_tokens: int, n_vocab: int) -> BiLmConfig:
        """The model's shape for a corpus of so many tokens and words to predict."""
        preset = preset_for(n_tokens) if self.preset is None else self.preset
        base = PRESETS[preset] if isinstance(preset, str) else preset
        changes = {
            name: value
            for name in ("n_layers", "cell_width", "state_width", "has_skip")
            if (value := getattr(self, name)) is not None
        }
        lstm = replace(base.lstm, **changes)
        if self.reads is None:
            words = base.words and replace(base.words, n_words=n_vocab)
            return replace(base, lstm=lstm, words=words)
        has_chars = self.reads != "words"
        return BiLmConfig(
            chars=(base.chars or CharCnnConfig()) if has_chars else None,
            words=None if self.reads == "characters" else WordConfig(n_vocab, lstm.state_width),
            lstm=lstm,
            alphabet="bytes" if has_chars else None,
        )


def preset_for(n_tokens: int) -> str:
    """The largest preset that a text of so many tokens can feed."""
    return next((name for name, most in _UP_TO_TOKENS.items() if n_tokens <= most), "original")


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
