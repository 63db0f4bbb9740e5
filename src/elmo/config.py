"""The shape of a biLM as frozen dataclasses: JSON in, JSON out, and the parameters it implies.

Published option names (bilm-tf's ``options.json`` and others) stop at ``formats/``; here every size
has one name, and every size is bounded, so that a damaged file cannot ask for absurd memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, cast

from elmo.errors import ConfigError, raise_all

MAX_LAYERS = 64
MAX_WIDTH = 1 << 16
MAX_FILTERS = 64
MAX_CHARACTERS = 1 << 10
MAX_ROWS = 1 << 26  # rows of an embedding table or a softmax


@dataclass(frozen=True)
class CharCnnConfig:
    """Convolutions over a token's characters, max-pooled, then highway layers."""

    n_characters: int = 261  # ids 1..n; 0 is the mask and not counted
    char_width: int = 16
    filters: tuple[tuple[int, int], ...] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    n_highway: int = 1
    activation: Literal["relu", "tanh"] = "relu"
    max_characters: int = 50  # per token, the two word boundaries included

    @property
    def n_filters(self) -> int:
        """Width of a token's vector after the convolutions."""
        return sum(count for _, count in self.filters)

    def problems(self) -> list[str]:
        """What is out of range, each in a few words."""
        found = [
            *_outside("n_characters", self.n_characters, 1, MAX_ROWS),
            *_outside("char_width", self.char_width, 1, MAX_WIDTH),
            *_outside("n_highway", self.n_highway, 0, MAX_LAYERS),
            *_outside("max_characters", self.max_characters, 3, MAX_CHARACTERS),
            *_outside("number of filter sizes", len(self.filters), 1, MAX_FILTERS),
        ]
        for width, count in self.filters[:MAX_FILTERS]:
            found += _outside("filter width", width, 1, self.max_characters)
            found += _outside("filters of one width", count, 1, MAX_WIDTH)
        if self.activation not in ("relu", "tanh"):
            found.append(f"activation must be 'relu' or 'tanh', not {self.activation!r:.40}")
        return found


@dataclass(frozen=True)
class WordConfig:
    """A table with one vector per known word."""

    n_words: int  # ids 1..n; 0 is padding and not counted
    word_width: int

    def problems(self) -> list[str]:
        """What is out of range, each in a few words."""
        return [
            *_outside("n_words", self.n_words, 1, MAX_ROWS),
            *_outside("word_width", self.word_width, 1, MAX_WIDTH),
        ]


@dataclass(frozen=True)
class LstmConfig:
    """Two stacks of LSTM layers, forward and backward, of equal shape."""

    n_layers: int = 2
    cell_width: int = 4096
    state_width: int = 512  # the projection's width; without a projection, the cell's
    cell_clip: float | None = 3.0
    state_clip: float | None = 3.0  # applied to projected states only
    has_skip: bool = True
    forget_bias: float = 1.0  # added to the forget gate as it runs: TensorFlow's habit. Kept apart from
    # the bias itself so that weights stay bit-equal through every conversion.

    @property
    def has_projection(self) -> bool:
        """Whether states are projected down from the cells."""
        return self.state_width < self.cell_width

    def problems(self) -> list[str]:
        """What is out of range, each in a few words."""
        found = [
            *_outside("n_layers", self.n_layers, 1, MAX_LAYERS),
            *_outside("cell_width", self.cell_width, 1, MAX_WIDTH),
            *_outside("state_width", self.state_width, 1, MAX_WIDTH),
        ]
        if self.state_width > self.cell_width:
            found.append(f"state_width {self.state_width} must not exceed cell_width {self.cell_width}")
        for name, clip in (("cell_clip", self.cell_clip), ("state_clip", self.state_clip)):
            if clip is not None and not 0 < clip <= 1e30:  # compares whole numbers of any length
                found.append(f"{name} must be a positive number or null, not {clip!r:.40}")
        if not abs(self.forget_bias) <= 1e30:
            found.append(f"forget_bias must lie in ±1e30, not {self.forget_bias!r:.40}")
        return found


@dataclass(frozen=True)
class BiLmConfig:
    """A whole biLM: a token layer from characters, words or both, under two LSTM stacks."""

    chars: CharCnnConfig | None
    words: WordConfig | None
    lstm: LstmConfig
    # What a character is: a byte of UTF-8, of the word as it stands or in simplified Chinese; or a character
    # of Unicode. None without chars.
    alphabet: Literal["bytes", "simplified", "unicode"] | None = "bytes"

    def __post_init__(self) -> None:
        problems = [
            *(self.chars.problems() if self.chars else []),
            *(self.words.problems() if self.words else []),
            *self.lstm.problems(),
        ]
        if self.chars is None and self.words is None:
            problems.append("a token layer needs characters, words or both")
        if (self.chars is None) != (self.alphabet is None):
            problems.append("an alphabet goes with characters, and only with them")
        if self.alphabet not in (None, "bytes", "simplified", "unicode"):
            problems.append(f"alphabet must be 'bytes', 'simplified' or 'unicode', not {self.alphabet!r:.40}")
        if self.words and not self.chars and self.words.word_width != self.lstm.state_width:
            problems.append(
                f"word_width {self.words.word_width} must equal state_width {self.lstm.state_width}: "
                "word vectors feed the LSTMs directly"
            )
        raise_all(problems, subject="biLM config", kind=ConfigError)

    @property
    def n_layers(self) -> int:
        """Layers a biLM gives: the token layer and each LSTM layer."""
        return self.lstm.n_layers + 1

    @property
    def width(self) -> int:
        """Width of one layer's vector: both directions side by side."""
        return 2 * self.lstm.state_width

    @property
    def has_token_projection(self) -> bool:
        """Whether the token layer ends in a projection to the LSTMs' width."""
        if self.chars is None:
            return False
        return self.words is not None or self.chars.n_filters != self.lstm.state_width

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """From what ``to_json`` gave; a wrong key or type is a ``ConfigError``."""
        values = _checked(values, cls)
        chars, words = values.get("chars"), values.get("words")
        return cls(
            chars=None if chars is None else _char_cnn_from_json(chars),
            words=None if words is None else WordConfig(**_checked(words, WordConfig)),
            lstm=LstmConfig(**_checked(values.get("lstm"), LstmConfig)),
            alphabet=values.get("alphabet", "bytes" if chars is not None else None),
        )


def parameter_shapes(config: BiLmConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of ``BiLm.from_config(config)``, without building it.

    Readers check a file's header against this before they take memory.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    token_width = 0
    if config.words:
        shapes["token_layer.word_embed.weight"] = (config.words.n_words + 1, config.words.word_width)
        token_width += config.words.word_width
    if config.chars:
        chars, n_filters = config.chars, config.chars.n_filters
        shapes["token_layer.cnn.char_embed.weight"] = (chars.n_characters + 1, chars.char_width)
        for i, (width, count) in enumerate(chars.filters):
            shapes[f"token_layer.cnn.convolutions.{i}.weight"] = (count, chars.char_width, width)
            shapes[f"token_layer.cnn.convolutions.{i}.bias"] = (count,)
        for i in range(chars.n_highway):
            for part in ("transform", "gate"):
                shapes[f"token_layer.cnn.highways.{i}.{part}.weight"] = (n_filters, n_filters)
                shapes[f"token_layer.cnn.highways.{i}.{part}.bias"] = (n_filters,)
        token_width += n_filters
    state, cell = config.lstm.state_width, config.lstm.cell_width
    if config.has_token_projection:
        shapes["token_layer.projection.weight"] = (state, token_width)
        shapes["token_layer.projection.bias"] = (state,)
    for stack in ("forward_stack", "backward_stack"):
        for i in range(config.lstm.n_layers):
            shapes[f"{stack}.{i}.input_weight"] = (4 * cell, state)
            shapes[f"{stack}.{i}.state_weight"] = (4 * cell, state)
            shapes[f"{stack}.{i}.bias"] = (4 * cell,)
            if config.lstm.has_projection:
                shapes[f"{stack}.{i}.projection"] = (state, cell)
    return shapes


def n_parameters(config: BiLmConfig) -> int:
    """Number of weights, the rows that stand for padding left out."""
    total = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    padding = (config.chars.char_width if config.chars else 0) + (
        config.words.word_width if config.words else 0
    )
    return total - padding


def _outside(name: str, value: int, low: int, high: int) -> list[str]:
    return [] if low <= value <= high else [f"{name} must lie in {low}..{high}, found {value!r:.40}"]


def _char_cnn_from_json(values: Any) -> CharCnnConfig:
    checked = _checked(values, CharCnnConfig)
    filters = checked.get("filters")
    if filters is not None:
        checked["filters"] = filters_from_json(filters)
    return CharCnnConfig(**checked)


def filters_from_json(values: Any) -> tuple[tuple[int, int], ...]:
    """``[[width, count], …]`` as tuples; anything else is a ``ConfigError``."""
    is_pairs = isinstance(values, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(type(n) is int for n in pair)
        for pair in cast("list[Any]", values)
    )
    if not is_pairs:
        raise ConfigError(f"filters must be a list of [width, count] pairs, found {str(values)[:80]}")
    return tuple((width, count) for width, count in values)


# A JSON value may stand for a field only if its type is one of these.
_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
}


def _checked(values: Any, kind: type) -> dict[str, Any]:
    """The values as keyword arguments of dataclass ``kind``, unknown keys and wrong types refused."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{kind.__name__}: expected an object, found {type(values).__name__}")
    known = {field.name: str(field.type) for field in fields(kind)}
    problems = [f"unknown key {key!r}" for key in values if key not in known]
    for key, value in values.items():
        allowed = _FIELD_TYPES.get(known.get(key, ""))
        # bool is an int in Python, but "n_layers": true is a mistake
        if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
            problems.append(f"{key} must be {known[key]}, found {value!r:.40}")
    required = [field.name for field in fields(kind) if field.default is field.default_factory]
    problems += [f"missing key {name!r}" for name in required if name not in values]
    raise_all(problems, subject=kind.__name__, kind=ConfigError)
    return dict(values)
