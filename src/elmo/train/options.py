"""Options of a training run: frozen dataclasses that check their values.

``CorpusOptions`` are those of ``build_corpus``. ``TrainOptions`` are those of the loop, with
``DropoutOptions`` and ``OptimizerOptions`` inside. ``ModelShape`` is a preset and changes to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.errors import ConfigError, raise_all
from elmo.storage.files import MAX_LINES
from elmo.text.lines import ERROR_POLICIES, ErrorPolicy
from elmo.text.reader import INPUT_FORMATS, InputFormat
from elmo.text.tokenizers import Tokenizer
from elmo.train.vocabulary import VocabularySource

Directions = Literal["both", "forward", "backward"]
Precision = Literal["float32", "bfloat16", "float64"]
OptimizerName = Literal["adagrad", "adamw", "sgd"]
Decay = Literal["none", "linear", "cosine"]
Preset = Literal["tiny", "mini", "small", "medium", "original"]
ReadsWhat = Literal["characters", "words", "both"]
MAX_SENTENCE = 1000  # words
MAX_STEPS = 10**9  # the name of a checkpoint has nine digits


@dataclass(frozen=True)
class CorpusOptions:
    """Options of ``build_corpus``.

    Attributes:
        input_format: ``text`` (raw text), ``tokens`` (separated by spaces, one sentence per line) or
            ``conllu``.
        tokenizer: Tokenizer of raw text, or its name. ``auto``: ``zh`` for Chinese, ``en`` otherwise.
        split: Whether to split lines of raw text into sentences. None: yes.
        heldout: Share of the sentences to hold out (0.05), or their number (500). None: 1%, at least 5
            sentences if there are enough, and at most about 200,000 tokens.
        heldout_file: Files of held-out text. They replace ``heldout``.
        deduplicate: Drop repeated sentences.
        keep_order: Hold out runs of sentences, so that documents stay together.
        blank_lines: Keep blank lines as sentences without words, as in WikiText.
        simplified: Convert Chinese words to simplified characters.
        max_sentence: Largest number of words in a sentence; longer ones are cut.
        errors: What to do with bytes that are not UTF-8.
        vocabulary: Words that get the first ids, in this order: a file with one word per line, a
            ``Vocabulary`` or a list, with ``<S>``, ``</S>`` and ``<UNK>``.
        seed: Seed for the choice of held-out sentences.
        processes: Number of processes that tokenize raw text. None: one per CPU for a large text.
    """

    input_format: InputFormat = "text"
    tokenizer: str | Tokenizer = "auto"
    split: bool | None = None
    heldout: float | int | None = None
    heldout_file: str | Path | Sequence[str | Path] = ()
    deduplicate: bool = False
    keep_order: bool = False
    blank_lines: bool = False
    simplified: bool = False
    max_sentence: int = MAX_SENTENCE
    errors: ErrorPolicy = "strict"
    vocabulary: VocabularySource | None = None
    seed: int = 0
    processes: int | None = None

    def __post_init__(self) -> None:
        heldout = self.heldout
        if isinstance(heldout, float) and heldout.is_integer() and heldout >= 1:
            heldout = int(heldout)  # the command line reads all numbers as floats
            object.__setattr__(self, "heldout", heldout)
        for name, choices in (("input_format", INPUT_FORMATS), ("errors", ERROR_POLICIES)):
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, found {str(value)[:40]!r}")
        if self.split and self.input_format != "text":
            raise ConfigError(
                f"split: only raw text can be split into sentences, found the input format {self.input_format}"
            )
        is_share = isinstance(heldout, float) and 0 < heldout < 1
        if heldout is not None and not is_share and (not isinstance(heldout, int) or heldout < 0):
            raise ConfigError(f"heldout must be a share between 0 and 1 or a number of sentences, found {heldout}")
        for name in ("max_sentence", "processes"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}")
        contradictions = {
            "heldout and heldout_file": heldout is not None and bool(self.heldout_file),
            "blank_lines and deduplicate": self.blank_lines and self.deduplicate,
            "blank_lines and the input format conllu": self.blank_lines and self.input_format == "conllu",
        }
        for names, is_contradiction in contradictions.items():
            if is_contradiction:
                raise ConfigError(f"corpus: {names} cannot be combined; use one of them")

    @property
    def has_splitting(self) -> bool:
        """Whether lines are split into sentences."""
        return self.input_format == "text" and self.split is not False


@dataclass(frozen=True)
class DropoutOptions:
    """Dropout rates. The defaults are those published with bilm-tf; small corpora need more.

    Attributes:
        layers: Rate for the input of each LSTM layer and of the softmax.
        inputs: Rate for the input of the first layer. None: same as ``layers``.
        outputs: Rate for the input of the softmax. None: same as ``layers``.
        words: Rate for whole words: all their occurrences in a window (Gal & Ghahramani 2016).
        weights: Rate for the state-to-state weights (weight drop, Merity et al. 2018).
        is_variational: Use one mask for all tokens of a row in a window.
    """

    layers: float = 0.1
    inputs: float | None = None
    outputs: float | None = None
    words: float = 0.0
    weights: float = 0.0
    is_variational: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 0 and below 1, found {rate!r:.40}"
            for name in ("layers", "inputs", "outputs", "words", "weights")
            if (rate := getattr(self, name)) is not None and not 0 <= rate < 1
        ]
        raise_all(problems, subject="dropout", kind=ConfigError)

    @property
    def is_off(self) -> bool:
        """Whether all rates are zero."""
        return not any((self.layers, self.inputs, self.outputs, self.words, self.weights))

    def layer_rate(self, index: int) -> float:
        """Return the rate for the input of an LSTM layer."""
        return self.inputs if index == 0 and self.inputs is not None else self.layers

    @property
    def softmax_rate(self) -> float:
        """Rate for the input of the softmax."""
        return self.layers if self.outputs is None else self.outputs


USUAL_RATES: dict[OptimizerName, float] = {"adagrad": 0.2, "adamw": 0.001, "sgd": 1.0}


@dataclass(frozen=True)
class OptimizerOptions:
    """Optimizer, learning-rate schedule and gradient clipping. The defaults are those of bilm-tf.

    Attributes:
        name: Name of the optimizer.
        learning_rate: Highest learning rate.
        warmup_steps: Number of steps in which the rate rises from zero.
        decay: How the rate falls after the warmup.
        final_rate: Where the decay ends, as a share of ``learning_rate``.
        weight_decay: Weight decay (AdamW and SGD).
        momentum: Momentum (SGD).
        clip: Largest norm of the gradients of all weights together.
    """

    name: OptimizerName = "adagrad"
    learning_rate: float = 0.2
    warmup_steps: int = 0
    decay: Decay = "none"
    final_rate: float = 0.0
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float = 10.0

    def __post_init__(self) -> None:
        problems = []
        for option, choices in (("name", get_args(OptimizerName)), ("decay", get_args(Decay))):
            if (value := getattr(self, option)) not in choices:
                problems.append(f"{option} must be one of {', '.join(choices)}, found {value!r:.40}")
        for option in ("learning_rate", "clip"):
            value = getattr(self, option)
            if not (math.isfinite(value) and value > 0):
                problems.append(f"{option} must be a positive number, found {value!r:.40}")
        for option in ("warmup_steps", "weight_decay"):
            value = getattr(self, option)
            if not (math.isfinite(value) and value >= 0):
                problems.append(f"{option} must be a number of at least 0, found {value!r:.40}")
        if not 0 <= self.momentum < 1:
            problems.append(f"momentum must be at least 0 and below 1, found {self.momentum!r:.40}")
        if not 0 <= self.final_rate <= 1:
            problems.append(f"final_rate must be between 0 and 1, found {self.final_rate!r:.40}")
        if self.weight_decay and self.name == "adagrad":
            problems.append("weight_decay is not supported with adagrad; use adamw or sgd")
        if self.momentum and self.name != "sgd":
            problems.append(f"momentum is not supported with {self.name}; use sgd")
        raise_all(problems, subject="optimizer", kind=ConfigError)

    def rate(self, step: int, n_steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = min(1.0, (step - self.warmup_steps) / max(1, n_steps - self.warmup_steps))
        left = {"none": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.decay]
        return self.learning_rate * (self.final_rate + (1 - self.final_rate) * left)

    def build(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Build the optimizer. It is fused, so that each weight is read and written once a step."""
        rate, decay = self.learning_rate, self.weight_decay
        weights = list(weights)
        if self.name == "adagrad":
            # bilm-tf's accumulator starts at 1
            is_cpu = all(weight.device.type == "cpu" for weight in weights)
            return torch.optim.Adagrad(weights, lr=rate, initial_accumulator_value=1.0, fused=is_cpu)
        if self.name == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay, fused=True)
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)

    def changed(self, changes: Mapping[str, Any]) -> OptimizerOptions:
        """Return a copy with some fields changed. Another optimizer brings its usual learning rate."""
        name = changes.get("name", self.name)
        if name != self.name:
            changes = {"learning_rate": USUAL_RATES.get(name, self.learning_rate), **changes}
        return replace(self, **changes)


# For a model that is already trained: the first steps of Adagrad would destroy too much of it.
GENTLE = OptimizerOptions("adamw", USUAL_RATES["adamw"], warmup_steps=100)


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training loop. The defaults are those of bilm-tf, except ``window_resets``.

    Attributes:
        n_steps: Number of optimizer steps. A step reads one window.
        n_vocab: Number of words to predict.
        batch_size: Number of rows: texts that are read in parallel.
        window: Number of tokens that each row reads in a step. Gradients do not reach further back.
        n_samples: Number of words sampled for the softmax in each step. None: all words.
        cutoffs: Sizes of the clusters of an adaptive softmax. Empty: no adaptive softmax.
        is_tied: Predict words with the vectors that read them. Only for a model that reads words.
        directions: Train both language models or one.
        dropout: Dropout rates.
        precision: Number type of the weights. bfloat16: float32 weights, matrix products in bfloat16.
        accumulation_steps: Split the batch into this many parts and add up their gradients. Saves memory.
        loss_scale: Factor of the loss. bilm-tf multiplies by 20; it matters to Adagrad and to ``clip``.
        window_resets: Share of the windows that each row starts from a zero state. Sentences that are
            embedded start that way; bilm-tf never resets the state, so its models do not learn it.
        sentence_resets: Share of the sentences that start from a zero state, anywhere in a window.
        seed: Seed of everything random.
        keep_order: Read the text in order, not in shuffled blocks.
        log_every: Number of steps between log entries.
        evaluate_every: Number of steps between evaluations on the held-out text.
        evaluate_tokens: Number of held-out tokens to evaluate on, from the start. None: all.
        checkpoint_every: Number of steps between checkpoints.
        device: Device to train on: cpu, cuda or mps.
        optimizer: Optimizer and schedule.
    """

    n_steps: int
    n_vocab: int = 50_000
    batch_size: int = 128
    window: int = 20
    n_samples: int | None = 8192
    cutoffs: tuple[int, ...] = ()
    is_tied: bool = False
    directions: Directions = "both"
    dropout: DropoutOptions = field(default_factory=DropoutOptions)
    precision: Precision = "float32"
    accumulation_steps: int = 1
    loss_scale: float = 20.0
    window_resets: float = 0.01
    sentence_resets: float = 0.0
    seed: int = 0
    keep_order: bool = False
    log_every: int = 50
    evaluate_every: int = 1000
    evaluate_tokens: int | None = None
    checkpoint_every: int = 1000
    device: str = "cpu"
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)

    def __post_init__(self) -> None:
        counts = ("n_steps", "batch_size", "window", "accumulation_steps")
        intervals = ("log_every", "evaluate_every", "checkpoint_every")
        problems = [
            f"{name} must be at least 1 and below {MAX_STEPS:,}, found {value!r:.40}"
            for name in (*counts, *intervals)
            if not 1 <= (value := getattr(self, name)) < MAX_STEPS
        ]
        if not 4 <= self.n_vocab <= MAX_LINES:
            problems.append(f"n_vocab must be between 4 and {MAX_LINES:,}, found {self.n_vocab!r:.40}")
        if self.n_samples is not None and self.n_samples < 1:
            problems.append(f"n_samples must be at least 1, or None for all, found {self.n_samples!r:.40}")
        if not 0 <= self.seed < 1 << 63:
            problems.append(f"seed must be at least 0 and below 2^63, found {self.seed!r:.40}")
        if not (math.isfinite(self.loss_scale) and self.loss_scale > 0):
            problems.append(f"loss_scale must be a positive number, found {self.loss_scale!r:.40}")
        for name in ("window_resets", "sentence_resets"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                problems.append(f"{name} must be between 0 and 1, found {value!r:.40}")
        for name, choices in (("directions", get_args(Directions)), ("precision", get_args(Precision))):
            if (value := getattr(self, name)) not in choices:
                problems.append(f"{name} must be one of {', '.join(choices)}, found {value!r:.40}")
        if not problems and self.accumulation_steps > self.batch_size:
            problems.append(
                f"batch_size {self.batch_size} cannot be split into {self.accumulation_steps} parts with "
                "at least one row each"
            )
        problems += self._cutoff_problems() + _device_problems(self.device)
        raise_all(problems, subject="training", kind=ConfigError)

    def _cutoff_problems(self) -> list[str]:
        problems = []
        if any(a >= b for a, b in pairwise((0, *self.cutoffs))):
            problems.append(f"cutoffs must be positive and increasing, found {list(self.cutoffs)!r:.40}")
        if self.cutoffs and self.n_samples is not None:
            problems.append("n_samples must be None for an adaptive softmax, which is not sampled")
        if self.cutoffs and self.is_tied:
            problems.append("an adaptive softmax cannot be tied to word vectors")
        return problems

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainOptions:
        """Rebuild the options from ``dataclasses.asdict`` after a round trip through JSON."""
        parts = {
            "cutoffs": tuple(values["cutoffs"]),
            "dropout": DropoutOptions(**values["dropout"]),
            "optimizer": OptimizerOptions(**values["optimizer"]),
        }
        return cls(**{**values, **parts})


def _device_problems(name: str) -> list[str]:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    has = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in has:
        return [f"device must be cpu, cuda or mps, found {name!r:.40}"]
    return [] if has[kind] else [f"this machine has no {kind} device; use device cpu"]


_FILTERS = CharCnnConfig.filters
PRESETS: dict[str, BiLmConfig] = {
    "tiny": BiLmConfig(CharCnnConfig(filters=_FILTERS[:3]), None, LstmConfig(cell_width=256, state_width=64)),
    "mini": BiLmConfig(CharCnnConfig(filters=_FILTERS[:5]), None, LstmConfig(cell_width=512, state_width=128)),
    "small": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=1024, state_width=128)),
    "medium": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=2048, state_width=256)),
    "original": BiLmConfig(CharCnnConfig(n_highway=2), None, LstmConfig(cell_width=4096, state_width=512)),
}
# Largest corpus, in tokens, for each size. A larger model would mostly memorize the text.
_MAX_TOKENS = {"tiny": 1_000_000, "mini": 10_000_000, "small": 100_000_000, "medium": 400_000_000}


@dataclass(frozen=True)
class ModelShape:
    """A preset and changes to it.

    Attributes:
        preset: Name of a preset, or a complete configuration. None: chosen by the size of the corpus.
        reads: What the model reads of a word. None: as in the preset.
        n_layers: Number of LSTM layers. None: as in the preset.
        cell_width: Number of LSTM cells in each layer. None: as in the preset.
        state_width: Width of the vectors of each direction. None: as in the preset.
    """

    preset: str | BiLmConfig | None = None
    reads: ReadsWhat | None = None
    n_layers: int | None = None
    cell_width: int | None = None
    state_width: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if isinstance(self.preset, str) and self.preset not in PRESETS:
            problems.append(f"preset must be one of {', '.join(PRESETS)} or a BiLmConfig, found {self.preset!r:.40}")
        if self.reads is not None and self.reads not in get_args(ReadsWhat):
            problems.append(f"reads must be one of {', '.join(get_args(ReadsWhat))}, found {self.reads!r:.40}")
        raise_all(problems, subject="model", kind=ConfigError)

    @property
    def reads_words_only(self) -> bool:
        """Whether the model reads no characters."""
        if self.reads is not None:
            return self.reads == "words"
        return isinstance(self.preset, BiLmConfig) and self.preset.chars is None

    def config(self, *, n_tokens: int, n_vocab: int) -> BiLmConfig:
        """Return the configuration for a corpus of ``n_tokens`` and ``n_vocab`` words to predict."""
        preset = preset_for(n_tokens) if self.preset is None else self.preset
        base = PRESETS[preset] if isinstance(preset, str) else preset
        widths = (field.name for field in fields(self) if field.name not in ("preset", "reads"))
        changes = {name: value for name in widths if (value := getattr(self, name)) is not None}
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
    """Return the largest preset for which a text of ``n_tokens`` is large enough."""
    return next((name for name, most in _MAX_TOKENS.items() if n_tokens <= most), "original")
