"""Options of a training run: frozen dataclasses that check their values.

``CorpusOptions`` are the options of ``build_corpus``. ``TrainOptions`` are the options of the training loop and
contain ``DropoutOptions`` and ``OptimizerOptions``. ``ModelShape`` is a preset with optional changes to its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from elmo.config import BiLmConfig, CharCnnConfig, EncoderName, LstmConfig, TransformerConfig, WordConfig
from elmo.errors import ConfigError, raise_all
from elmo.storage.files import MAX_LINES
from elmo.text.lines import ERROR_POLICIES, ErrorPolicy
from elmo.text.reader import INPUT_FORMATS, InputFormat
from elmo.text.tokenizers import Tokenizer
from elmo.train.vocabulary import VocabularySource

Directions = Literal["both", "forward", "backward"]
Precision = Literal["float32", "bfloat16", "float64"]
PrecisionChoice = Literal["float32", "bfloat16", "float64", "auto"]
OptimizerName = Literal["adagrad", "adamw", "sgd"]
Decay = Literal["none", "linear", "cosine"]
Preset = Literal["tiny", "mini", "small", "medium", "original"]
ReadsWhat = Literal["characters", "words", "both"]
MAX_SENTENCE = 1000  # words
MAX_STEPS = 10**9  # the name of a checkpoint has nine digits
Rule = tuple[str, Callable[[Any], bool], str]  # names of options, whether a value is valid, description of valid values


def _find_problems(options: object, *rules: Rule) -> list[str]:
    """Return one message for each option that breaks a rule."""
    return [
        f"{name} must be {expected}; found {value!r:.40}"
        for names, is_valid, expected in rules
        for name in names.split()
        if not is_valid(value := getattr(options, name))
    ]


def _one_of(name: str, choices: Sequence[Any]) -> Rule:
    expected = ", ".join(str(choice) for choice in choices if choice is not None)
    return name, lambda value: value in choices, f"one of {expected}"


def _is_positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _is_share(value: float) -> bool:
    return 0 <= value <= 1


def _is_rate(value: float | None) -> bool:
    return value is None or 0 <= value < 1


def _is_count(value: int | None) -> bool:
    return value is None or value >= 1


@dataclass(frozen=True)
class CorpusOptions:
    """Options of ``build_corpus``.

    Attributes:
        input_format: ``text`` (raw text), ``tokens`` (separated by spaces, one sentence per line) or
            ``conllu``.
        tokenizer: Tokenizer for raw text, or its name. ``auto`` is ``zh`` for Chinese and ``en`` otherwise.
        split: Whether to split lines of raw text into sentences. By default, if they are paragraphs.
        heldout: Share (0.05) or number (500) of sentences to hold out. By default 1%, but at least 5 sentences
            if there are enough, and at most about 200,000 tokens.
        heldout_file: Files of held-out text, instead of ``heldout``.
        deduplicate: Whether to drop repeated sentences.
        keep_order: Whether to hold out groups of consecutive sentences, so that documents stay together.
        blank_lines: Whether to keep blank lines as sentences without words, as in WikiText.
        simplified: Whether to convert Chinese words to simplified characters.
        max_sentence: Largest number of words in a sentence. Longer sentences are split.
        errors: How to handle bytes that are not UTF-8.
        vocabulary: Words that get the first ids, in this order, including ``<S>``, ``</S>`` and ``<UNK>``: a
            file with one word per line, a ``Vocabulary`` or a list.
        seed: Seed for the choice of held-out sentences.
        processes: Number of processes that tokenize raw text. By default, one per CPU for a large text.

    Example:
        >>> options = CorpusOptions(tokenizer="whitespace", heldout=0.1)
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
        problems = _find_problems(
            self,
            _one_of("input_format", INPUT_FORMATS),
            _one_of("errors", ERROR_POLICIES),
            ("max_sentence processes", _is_count, "at least 1"),
        )
        if self.split and self.input_format != "text":
            problems.append(f"split is only possible for the input format text; found {self.input_format!r:.40}")
        is_share = isinstance(heldout, float) and 0 < heldout < 1
        if heldout is not None and not is_share and (not isinstance(heldout, int) or heldout < 0):
            problems.append(f"heldout must be a share between 0 and 1 or a number of sentences; found {heldout!r:.40}")
        contradictions = {
            "heldout and heldout_file": heldout is not None and self.heldout_file,
            "blank_lines and deduplicate": self.blank_lines and self.deduplicate,
            "blank_lines and the input format conllu": self.blank_lines and self.input_format == "conllu",
        }
        problems += [f"{names} cannot be combined" for names, are_set in contradictions.items() if are_set]
        raise_all(problems, subject="corpus", kind=ConfigError)

    @property
    def splitting(self) -> bool | None:
        """Whether lines of text are split into sentences; None if this is found from the text."""
        return self.split if self.input_format == "text" else False


@dataclass(frozen=True)
class DropoutOptions:
    """Dropout rates. The defaults are those of bilm-tf; small corpora need higher rates.

    Attributes:
        layers: Rate for the input of each LSTM layer and of the softmax. In a transformer, also for hidden units and
            for the output of each sublayer.
        inputs: Rate for the input of the first layer. By default, the same as ``layers``.
        outputs: Rate for the input of the softmax. By default, the same as ``layers``.
        words: Rate for whole words, with all their occurrences in a window (Gal & Ghahramani 2016).
        weights: Rate for the state-to-state weights (weight drop, Merity et al. 2018), or for the attention of a
            transformer.
        is_variational: Whether all tokens of a row in a window have the same mask.

    Example:
        >>> DropoutOptions(layers=0.0).is_off
        True
    """

    layers: float = 0.1
    inputs: float | None = None
    outputs: float | None = None
    words: float = 0.0
    weights: float = 0.0
    is_variational: bool = False

    def __post_init__(self) -> None:
        problems = _find_problems(self, ("layers inputs outputs words weights", _is_rate, "at least 0 and below 1"))
        raise_all(problems, subject="dropout", kind=ConfigError)

    @property
    def is_off(self) -> bool:
        """Whether all rates are zero."""
        return not any((self.layers, self.inputs, self.outputs, self.words, self.weights))

    def layer_rate(self, index: int) -> float:
        """Return the dropout rate for the input of an LSTM layer, counted from 0."""
        return self.inputs if index == 0 and self.inputs is not None else self.layers

    @property
    def softmax_rate(self) -> float:
        """Dropout rate for the input of the softmax."""
        return self.layers if self.outputs is None else self.outputs


USUAL_RATES: dict[OptimizerName, float] = {"adagrad": 0.2, "adamw": 0.001, "sgd": 1.0}


@dataclass(frozen=True)
class OptimizerOptions:
    """Optimizer, learning-rate schedule and gradient clipping. The defaults are those of bilm-tf.

    Attributes:
        name: Name of the optimizer.
        learning_rate: Maximum learning rate.
        warmup_steps: Number of steps over which the learning rate rises from zero to ``learning_rate``.
        decay: How the learning rate falls after the warmup.
        final_rate: Learning rate at the end of the decay, as a share of ``learning_rate``.
        weight_decay: Weight decay, for AdamW and SGD.
        momentum: Momentum, for SGD.
        clip: Largest norm of the gradients of all weights together. Larger gradients are scaled down.

    Example:
        >>> options = OptimizerOptions(name="adamw", learning_rate=0.001, decay="cosine")
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
        problems = _find_problems(
            self,
            _one_of("name", get_args(OptimizerName)),
            _one_of("decay", get_args(Decay)),
            ("learning_rate clip", _is_positive, "a positive number"),
            ("warmup_steps weight_decay", lambda value: 0 <= value < math.inf, "a finite number of at least 0"),
            ("momentum", _is_rate, "at least 0 and below 1"),
            ("final_rate", _is_share, "between 0 and 1"),
        )
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
        """Build the optimizer, fused if torch supports it, so that a step reads and writes each weight only once."""
        rate, decay = self.learning_rate, self.weight_decay
        weights = list(weights)
        if self.name == "adagrad":
            # the accumulator starts at 1, as in bilm-tf
            is_cpu = all(weight.device.type == "cpu" for weight in weights)
            return torch.optim.Adagrad(weights, lr=rate, initial_accumulator_value=1.0, fused=is_cpu)
        if self.name == "sgd":
            return torch.optim.SGD(weights, lr=rate, momentum=self.momentum, weight_decay=decay, fused=True)
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)

    def changed(self, changes: Mapping[str, Any]) -> OptimizerOptions:
        """Return a copy with some fields changed. A new optimizer starts with its default learning rate."""
        name = changes.get("name", self.name)
        if name != self.name:
            changes = {"learning_rate": USUAL_RATES.get(name, self.learning_rate), **changes}
        return replace(self, **changes)


# For a model that is already trained: the first steps of Adagrad would change its weights too much.
GENTLE = OptimizerOptions("adamw", USUAL_RATES["adamw"], warmup_steps=100)


# Transformers are not trained with Adagrad, and their first steps must be small.
FOR_TRANSFORMERS = OptimizerOptions("adamw", USUAL_RATES["adamw"], warmup_steps=500)


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training loop. The defaults are those of bilm-tf, except ``window_resets``.

    Attributes:
        n_steps: Number of optimizer steps. A step reads one window.
        n_vocab: Number of words to predict.
        batch_size: Number of rows: parts of the text that are read in parallel.
        window: Number of tokens that each row reads in a step. Gradients are propagated only within a window.
        n_samples: Number of words to sample for the softmax in each step. None uses all words.
        cutoffs: Word ids at which the clusters of an adaptive softmax end, exclusive. Empty for a normal softmax.
        is_tied: Whether the softmax shares its weights with the input word vectors of a model that reads words.
        directions: Whether to train both language models or only one.
        dropout: Dropout rates.
        precision: Number type of weights and results. With ``bfloat16``, only matrix products are computed in
            bfloat16; the weights are float32.
        accumulation_steps: Number of parts into which the batch is split, to save memory. Their gradients are
            added up.
        loss_scale: Factor by which the loss, and thus every gradient, is multiplied. It affects Adagrad and ``clip``.
        window_resets: Share of the windows before which the state of a row is set to zero, as for a sentence
            that is encoded alone. bilm-tf never resets the state, so its models do not learn to start from zero.
        sentence_resets: Share of the sentences before which the state is set to zero, anywhere in a window.
        seed: Seed for all random numbers.
        keep_order: Whether to read the text in order instead of in shuffled blocks.
        log_every: Number of steps between log entries.
        evaluate_every: Number of steps between evaluations on the held-out text.
        evaluate_tokens: Number of tokens at the start of the held-out text to evaluate on. None uses all tokens.
        checkpoint_every: Number of steps between checkpoints.
        device: Device to train on: cpu, cuda or mps.
        optimizer: Optimizer, learning-rate schedule and gradient clipping.

    Example:
        >>> options = TrainOptions(n_steps=100, batch_size=8)
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
        counts = "n_steps batch_size window accumulation_steps log_every evaluate_every checkpoint_every"
        problems = _find_problems(
            self,
            (counts, lambda value: 1 <= value < MAX_STEPS, f"at least 1 and below {MAX_STEPS:,}"),
            ("n_vocab", lambda value: 4 <= value <= MAX_LINES, f"between 4 and {MAX_LINES:,}"),
            ("n_samples", _is_count, "at least 1, or None for all words"),
            ("seed", lambda value: 0 <= value < 1 << 63, "at least 0 and below 2^63"),
            ("loss_scale", _is_positive, "a positive number"),
            ("window_resets sentence_resets", _is_share, "between 0 and 1"),
            ("cutoffs", lambda ends: all(a < b for a, b in pairwise((0, *ends))), "positive and increasing"),
            _one_of("directions", get_args(Directions)),
            _one_of("precision", get_args(Precision)),
        )
        if not problems and self.accumulation_steps > self.batch_size:
            problems.append(f"a batch of {self.batch_size} rows cannot be split into {self.accumulation_steps} parts")
        if self.cutoffs and self.n_samples is not None:
            problems.append("n_samples must be None for an adaptive softmax, which is not sampled")
        if self.cutoffs and self.is_tied:
            problems.append("an adaptive softmax cannot be tied to word vectors")
        raise_all(problems + _device_problems(self.device), subject="training", kind=ConfigError)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainOptions:
        """Rebuild the options from the JSON form of ``dataclasses.asdict``."""
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
        return [f"device must be cpu, cuda or mps; found {name!r:.40}"]
    return [] if has[kind] else [f"device {kind} is not available on this machine; use cpu"]


_FILTERS = CharCnnConfig.filters
PRESETS: dict[str, BiLmConfig] = {
    "tiny": BiLmConfig(CharCnnConfig(filters=_FILTERS[:3]), None, LstmConfig(cell_width=256, state_width=64)),
    "mini": BiLmConfig(CharCnnConfig(filters=_FILTERS[:5]), None, LstmConfig(cell_width=512, state_width=128)),
    "small": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=1024, state_width=128)),
    "medium": BiLmConfig(CharCnnConfig(), None, LstmConfig(cell_width=2048, state_width=256)),
    "original": BiLmConfig(CharCnnConfig(n_highway=2), None, LstmConfig(cell_width=4096, state_width=512)),
}
TRANSFORMERS: dict[str, BiLmConfig] = {
    "tiny": replace(PRESETS["tiny"], encoder=TransformerConfig(2, 64, n_heads=4, feed_forward_width=256)),
    "mini": replace(PRESETS["mini"], encoder=TransformerConfig(3, 128, n_heads=4, feed_forward_width=512)),
    "small": replace(PRESETS["small"], encoder=TransformerConfig(4, 192, n_heads=6, feed_forward_width=768)),
    "medium": replace(PRESETS["medium"], encoder=TransformerConfig(6, 256, n_heads=8, feed_forward_width=1024)),
    "original": BiLmConfig(CharCnnConfig(n_highway=2, has_norm=True), None, TransformerConfig()),
}
# Largest corpus, in tokens, for which each preset is the default. Larger models would mostly memorize such a text.
_MAX_TOKENS = {"tiny": 1_000_000, "mini": 10_000_000, "small": 100_000_000, "medium": 400_000_000}


@dataclass(frozen=True)
class ModelShape:
    """Shape of the model to train: a preset, and values that replace those of the preset.

    Attributes:
        preset: Name of a preset, or a complete configuration. By default, it depends on the size of the corpus.
        reads: Whether the model reads characters, words or both. By default, as in the preset.
        n_layers: Number of LSTM or transformer layers. By default, as in the preset.
        cell_width: Number of LSTM cells or of hidden units in each layer. By default, as in the preset.
        state_width: Width of the vectors of each direction. By default, as in the preset.
        encoder: Kind of the layers. By default, LSTM, or as in a preset that is a configuration.

    Example:
        >>> shape = ModelShape(preset="tiny", n_layers=1)
    """

    preset: str | BiLmConfig | None = None
    reads: ReadsWhat | None = None
    n_layers: int | None = None
    cell_width: int | None = None
    state_width: int | None = None
    encoder: EncoderName | None = None

    def __post_init__(self) -> None:
        problems = _find_problems(
            self,
            (
                "preset",
                lambda value: value is None or isinstance(value, BiLmConfig) or value in PRESETS,
                f"one of {', '.join(PRESETS)} or a BiLmConfig",
            ),
            _one_of("reads", (None, *get_args(ReadsWhat))),
            _one_of("encoder", (None, *get_args(EncoderName))),
        )
        if isinstance(self.preset, BiLmConfig) and self.encoder not in (None, self.preset.encoder_name):
            problems.append(f"encoder must be that of the preset, {self.preset.encoder_name}; found {self.encoder}")
        if not problems and self.state_width is not None and self.is_transformer:
            heads = self._possible_heads()
            if all(self.state_width % n_heads for n_heads in heads):
                which = "this preset" if self.preset is not None else "a transformer"
                multiples = " or ".join(map(str, heads))
                problems.append(f"width must be a multiple of {multiples} for {which}; found {self.state_width}")
        raise_all(problems, subject="model", kind=ConfigError)

    def _possible_heads(self) -> list[int]:
        """List the numbers of attention heads of the transformers that this shape may become."""
        if isinstance(self.preset, BiLmConfig):
            encoders = [self.preset.encoder]
        else:
            encoders = [TRANSFORMERS[name].encoder for name in TRANSFORMERS if self.preset in (None, name)]
        return sorted({encoder.n_heads for encoder in encoders if isinstance(encoder, TransformerConfig)})

    def fits(self, preset: str) -> bool:
        """Return whether a preset can have this width: the attention heads of a transformer must divide it."""
        if self.state_width is None or not self.is_transformer:
            return True
        encoder = TRANSFORMERS[preset].encoder
        return isinstance(encoder, TransformerConfig) and self.state_width % encoder.n_heads == 0

    @property
    def is_transformer(self) -> bool:
        """Whether the model has transformer layers."""
        if isinstance(self.preset, BiLmConfig):
            return self.preset.encoder_name == "transformer"
        return self.encoder == "transformer"

    @property
    def reads_words_only(self) -> bool:
        """Whether the model reads only words and no characters."""
        if self.reads is not None:
            return self.reads == "words"
        return isinstance(self.preset, BiLmConfig) and self.preset.chars is None

    def config(self, *, n_tokens: int, n_vocab: int) -> BiLmConfig:
        """Return the configuration for a corpus with ``n_tokens`` and a softmax over ``n_vocab`` words."""
        preset = preset_for(n_tokens) if self.preset is None else self.preset
        presets = TRANSFORMERS if self.is_transformer else PRESETS
        base = presets[preset] if isinstance(preset, str) else preset
        fields = {
            "n_layers": "n_layers",
            "cell_width": "feed_forward_width" if self.is_transformer else "cell_width",
            "state_width": "state_width",
        }
        changes = {field: value for name, field in fields.items() if (value := getattr(self, name)) is not None}
        encoder = replace(base.encoder, **changes)
        if self.reads is None:
            words = base.words and replace(base.words, n_words=n_vocab)
            return replace(base, encoder=encoder, words=words)
        has_chars = self.reads != "words"
        return BiLmConfig(
            chars=(base.chars or CharCnnConfig()) if has_chars else None,
            words=None if self.reads == "characters" else WordConfig(n_vocab, encoder.state_width),
            encoder=encoder,
            alphabet="bytes" if has_chars else None,
        )


def preset_for(n_tokens: int) -> str:
    """Return the name of the default preset for a corpus with ``n_tokens``."""
    return next((name for name, most in _MAX_TOKENS.items() if n_tokens <= most), "original")
