"""The configuration of a biLM: frozen dataclasses, their JSON form, and the parameter shapes.

The option names of published formats (such as bilm-tf's ``options.json``) are only used in ``formats/``; here
every size has one name. Every size has a limit, so that a damaged file cannot request too much memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from elmo.errors import ConfigError, raise_all

MAX_LAYERS = 64
MAX_WIDTH = 1 << 16
MAX_FILTERS = 64
MAX_CHARACTERS = 1 << 10
MAX_ROWS = 1 << 26  # rows of an embedding table or a softmax


@dataclass(frozen=True)
class CharCnnConfig:
    """A character CNN: convolutions over the characters of a token, max-pooling and highway layers.

    Attributes:
        n_characters: Number of distinct characters; their ids are 1..n, and 0 is padding.
        char_width: Width of a character vector.
        filters: Pairs of a filter width and the number of filters of that width.
        n_highway: Number of highway layers.
        activation: Activation function after the convolutions.
        max_characters: Number of character ids per token, including the two word boundaries; longer tokens are cut.
    """

    n_characters: int = 261
    char_width: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    n_highway: int = 1
    activation: Literal["relu", "tanh"] = "relu"
    max_characters: int = 50

    @property
    def n_filters(self) -> int:
        """Width of a token vector after the convolutions."""
        return sum(count for _, count in self.filters)

    def problems(self) -> list[str]:
        """List the values that are out of range."""
        problems = [
            *_outside("n_characters", self.n_characters, 1, MAX_ROWS),
            *_outside("char_width", self.char_width, 1, MAX_WIDTH),
            *_outside("n_highway", self.n_highway, 0, MAX_LAYERS),
            *_outside("max_characters", self.max_characters, 3, MAX_CHARACTERS),
            *_outside("number of filter sizes", len(self.filters), 1, MAX_FILTERS),
        ]
        for width, count in self.filters[:MAX_FILTERS]:
            problems += _outside("filter width", width, 1, self.max_characters)
            problems += _outside("number of filters of one width", count, 1, MAX_WIDTH)
        if self.activation not in ("relu", "tanh"):
            problems.append(f"activation must be 'relu' or 'tanh'; found {self.activation!r:.40}")
        return problems


@dataclass(frozen=True)
class WordConfig:
    """A table with one vector per known word.

    Attributes:
        n_words: Number of words; their ids are 1..n, and 0 is padding.
        word_width: Width of a word vector.
    """

    n_words: int
    word_width: int

    def problems(self) -> list[str]:
        """List the values that are out of range."""
        return [*_outside("n_words", self.n_words, 1, MAX_ROWS), *_outside("word_width", self.word_width, 1, MAX_WIDTH)]


@dataclass(frozen=True)
class LstmConfig:
    """A forward and a backward stack of LSTM layers, all of the same shape.

    Attributes:
        n_layers: Number of layers in each stack.
        cell_width: Width of the cell of each layer.
        state_width: Width of the projected state; if it equals ``cell_width``, there is no projection.
        cell_clip: Largest absolute value of the cell, to which it is clipped; None means no clipping.
        state_clip: Largest absolute value of the projected state, to which it is clipped; None means no clipping.
        has_skip: Whether the layers after the first add their input to their output.
        forget_bias: Number that is added to the forget gate at run time, as in TensorFlow. It is not added to
            the stored bias, so that a conversion keeps the weights bit for bit.
    """

    n_layers: int = 2
    cell_width: int = 4096
    state_width: int = 512
    cell_clip: float | None = 3.0
    state_clip: float | None = 3.0
    has_skip: bool = True
    forget_bias: float = 1.0

    @property
    def has_projection(self) -> bool:
        """Whether the state is a projection of the LSTM output."""
        return self.state_width < self.cell_width

    def problems(self) -> list[str]:
        """List the values that are out of range."""
        problems = [
            *_outside("n_layers", self.n_layers, 1, MAX_LAYERS),
            *_outside("cell_width", self.cell_width, 1, MAX_WIDTH),
            *_outside("state_width", self.state_width, 1, MAX_WIDTH),
        ]
        if self.state_width > self.cell_width:
            problems.append(f"state_width {self.state_width} must not exceed cell_width {self.cell_width}")
        for name, clip in (("cell_clip", self.cell_clip), ("state_clip", self.state_clip)):
            if (
                clip is not None and not 0 < clip <= 1e30
            ):  # unlike math.isfinite, this does not overflow for huge integers
                problems.append(f"{name} must be null or a positive number up to 1e30; found {clip!r:.40}")
        if not abs(self.forget_bias) <= 1e30:
            problems.append(f"forget_bias must be between -1e30 and 1e30; found {self.forget_bias!r:.40}")
        return problems


@dataclass(frozen=True)
class BiLmConfig:
    """A biLM: a token layer that reads characters, words or both, and two LSTM stacks.

    Attributes:
        chars: Character CNN; None if the model does not read characters.
        words: Table of word vectors; None if the model does not read words.
        lstm: The LSTM stacks.
        alphabet: What counts as a character: a UTF-8 byte of the word (``bytes``) or of its simplified Chinese form
            (``simplified``), or a Unicode character (``unicode``). None if ``chars`` is None.
    """

    chars: CharCnnConfig | None
    words: WordConfig | None
    lstm: LstmConfig
    alphabet: Literal["bytes", "simplified", "unicode"] | None = "bytes"

    def __post_init__(self) -> None:
        problems = [
            *(self.chars.problems() if self.chars else []),
            *(self.words.problems() if self.words else []),
            *self.lstm.problems(),
        ]
        if self.chars is None and self.words is None:
            problems.append("chars and words are both null; a token layer needs at least one of them")
        if (self.chars is None) != (self.alphabet is None):
            problems.append("alphabet and chars must both be set or both be null")
        if self.alphabet not in (None, "bytes", "simplified", "unicode"):
            problems.append(f"alphabet must be 'bytes', 'simplified' or 'unicode'; found {self.alphabet!r:.40}")
        if self.words and not self.chars and self.words.word_width != self.lstm.state_width:
            problems.append(
                f"word_width {self.words.word_width} must equal state_width {self.lstm.state_width}: "
                "without a character CNN, word vectors are the direct input of the LSTMs"
            )
        if problems:
            raise_all(problems, subject="biLM config", kind=ConfigError)

    @property
    def n_layers(self) -> int:
        """Number of layers that the biLM outputs: the token layer and the LSTM layers."""
        return self.lstm.n_layers + 1

    @property
    def width(self) -> int:
        """Width of the vector of one layer: both directions concatenated."""
        return 2 * self.lstm.state_width

    @property
    def has_token_projection(self) -> bool:
        """Whether the token layer ends with a projection to the width of the LSTM state."""
        if self.chars is None:
            return False
        return self.words is not None or self.chars.n_filters != self.lstm.state_width

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from the result of ``to_json``; wrong keys or types raise ``ConfigError``."""
        values = _check_values(values, cls)
        chars, words = values.get("chars"), values.get("words")
        if chars is not None:
            chars = _check_values(chars, CharCnnConfig)
            if "filters" in chars:
                chars["filters"] = filters_from_json(chars["filters"])
        return cls(
            chars=None if chars is None else CharCnnConfig(**chars),
            words=None if words is None else WordConfig(**_check_values(words, WordConfig)),
            lstm=LstmConfig(**_check_values(values.get("lstm"), LstmConfig)),
            alphabet=values.get("alphabet", "bytes" if chars is not None else None),
        )


def parameter_shapes(config: BiLmConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every parameter of ``BiLm.from_config(config)`` without building the model.

    Readers compare these shapes with the header of a file before they allocate memory.
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
    """Return the number of weights, not counting the padding rows of embedding tables."""
    shapes = parameter_shapes(config)
    n_padding = sum(shape[1] for name, shape in shapes.items() if name.endswith("_embed.weight"))
    return sum(map(math.prod, shapes.values())) - n_padding


def _outside(name: str, value: int, low: int, high: int) -> list[str]:
    return [] if low <= value <= high else [f"{name} must be in {low}..{high}; found {value!r:.40}"]


def filters_from_json(values: Any) -> tuple[tuple[int, int], ...]:
    """Convert ``[[width, count], …]`` to tuples; raise ``ConfigError`` for anything else."""
    match values:
        case [*pairs] if all(isinstance(pair, list | tuple) and [*map(type, pair)] == [int, int] for pair in pairs):
            return tuple((width, count) for width, count in pairs)
    raise ConfigError(f"filters must be a list of [width, count] pairs; found {str(values)[:80]}")


# The types of JSON values that are accepted for each field annotation.
_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
}


def _check_values(values: Any, kind: type) -> dict[str, Any]:
    """Return the values as keyword arguments for dataclass ``kind``; reject unknown keys and wrong types."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{kind.__name__} must be a JSON object; found {values!r:.40}")
    known = {field.name: str(field.type) for field in fields(kind)}
    problems = [f"unknown key {key!r}" for key in values if key not in known]
    for key, value in values.items():
        allowed = _FIELD_TYPES.get(known.get(key, ""))
        # bool is a subclass of int, but "n_layers": true is an error
        if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
            problems.append(f"{key} must be {known[key]}; found {value!r:.40}")
    required = [field.name for field in fields(kind) if field.default is field.default_factory]
    problems += [f"missing key {name!r}" for name in required if name not in values]
    if problems:
        raise_all(problems, subject=kind.__name__, kind=ConfigError)
    return dict(values)
