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
NORM_EPSILON = 1e-6  # of all layer norms, as in AllenNLP
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
        highway_width: Width of the highway layers, to which the features of the convolutions are projected; None
            means that highway layers read these features as they are.
        has_norm: Whether the token vector is normalized at the end.
    """

    n_characters: int = 261
    char_width: int = 16
    filters: tuple[tuple[int, int], ...] = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    n_highway: int = 1
    activation: Literal["relu", "tanh"] = "relu"
    max_characters: int = 50
    highway_width: int | None = None
    has_norm: bool = False

    @property
    def n_filters(self) -> int:
        """Width of a token vector after the convolutions."""
        return sum(count for _, count in self.filters)

    @property
    def width(self) -> int:
        """Width of a token vector after the highway layers."""
        return self.n_filters if self.highway_width is None else self.highway_width

    def problems(self) -> list[str]:
        """List the values that are out of range."""
        problems = [
            *_outside("n_characters", self.n_characters, 1, MAX_ROWS),
            *_outside("char_width", self.char_width, 1, MAX_WIDTH),
            *_outside("n_highway", self.n_highway, 0, MAX_LAYERS),
            *_outside("max_characters", self.max_characters, 3, MAX_CHARACTERS),
            *_outside("number of filter sizes", len(self.filters), 1, MAX_FILTERS),
        ]
        if self.highway_width is not None:
            problems += _outside("highway_width", self.highway_width, 1, MAX_WIDTH)
        for width, count in self.filters[:MAX_FILTERS]:
            problems += _outside("filter width", width, 1, self.max_characters)
            problems += _outside("number of filters of one width", count, 1, MAX_WIDTH)
        if self.activation not in ("relu", "tanh"):
            problems.append(f"activation must be 'relu' or 'tanh'; found {self.activation!r:.40}")
        return problems

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values, without options that no model had before version 3 of the native format."""
        values = asdict(self)
        if self.highway_width is None:
            del values["highway_width"]
        if not self.has_norm:
            del values["has_norm"]
        return values


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
class TransformerConfig:
    """A forward and a backward stack of transformer layers, all of the same shape (Peters et al. 2018b).

    Attributes:
        n_layers: Number of layers in each stack.
        state_width: Width of the state of each token.
        n_heads: Number of attention heads, which must divide ``state_width``.
        feed_forward_width: Width of the hidden layer of each feed-forward network.
    """

    n_layers: int = 6
    state_width: int = 512
    n_heads: int = 8
    feed_forward_width: int = 2048

    def problems(self) -> list[str]:
        """List the values that are out of range."""
        problems = [
            *_outside("n_layers", self.n_layers, 1, MAX_LAYERS),
            *_outside("state_width", self.state_width, 1, MAX_WIDTH),
            *_outside("n_heads", self.n_heads, 1, MAX_WIDTH),
            *_outside("feed_forward_width", self.feed_forward_width, 1, MAX_WIDTH),
        ]
        if self.state_width % 2:
            problems.append(f"state_width must be even, for sines and cosines of positions; found {self.state_width}")
        if not problems and self.state_width % self.n_heads:
            problems.append(f"n_heads {self.n_heads} must divide state_width {self.state_width}")
        return problems


EncoderConfig = LstmConfig | TransformerConfig
EncoderName = Literal["lstm", "transformer"]
_ENCODERS: dict[EncoderName, type[EncoderConfig]] = {"lstm": LstmConfig, "transformer": TransformerConfig}


@dataclass(frozen=True)
class BiLmConfig:
    """A biLM: a token layer that reads characters, words or both, and two stacks of LSTM or transformer layers.

    Attributes:
        chars: Character CNN; None if the model does not read characters.
        words: Table of word vectors; None if the model does not read words.
        encoder: The two stacks above the token layer. In JSON, its key is its kind: ``lstm`` or ``transformer``.
        alphabet: What counts as a character: a UTF-8 byte of the word (``bytes``) or of its simplified Chinese form
            (``simplified``), or a Unicode character (``unicode``). None if ``chars`` is None.

    Example:
        >>> config = elmo.config
        >>> config.n_layers == elmo.n_layers
        True
        >>> BiLmConfig.from_json(config.to_json()) == config
        True
    """

    chars: CharCnnConfig | None
    words: WordConfig | None
    encoder: EncoderConfig
    alphabet: Literal["bytes", "simplified", "unicode"] | None = "bytes"

    def __post_init__(self) -> None:
        problems = [
            *(self.chars.problems() if self.chars else []),
            *(self.words.problems() if self.words else []),
            *self.encoder.problems(),
        ]
        if self.chars is None and self.words is None:
            problems.append("chars and words are both null; a token layer needs at least one of them")
        if (self.chars is None) != (self.alphabet is None):
            problems.append("alphabet and chars must both be set or both be null")
        if self.alphabet not in (None, "bytes", "simplified", "unicode"):
            problems.append(f"alphabet must be 'bytes', 'simplified' or 'unicode'; found {self.alphabet!r:.40}")
        if self.words and not self.chars and self.words.word_width != self.encoder.state_width:
            problems.append(
                f"word_width {self.words.word_width} must equal state_width {self.encoder.state_width}: "
                f"without a character CNN, word vectors are the direct input of the {self.encoder_title} layers"
            )
        if problems:
            raise_all(problems, subject="biLM config", kind=ConfigError)

    @property
    def n_layers(self) -> int:
        """Number of layers that the biLM outputs: the token layer and those of the encoder."""
        return self.encoder.n_layers + 1

    @property
    def width(self) -> int:
        """Width of the vector of one layer: both directions concatenated."""
        return 2 * self.encoder.state_width

    @property
    def encoder_name(self) -> EncoderName:
        """The kind of the encoder."""
        return "transformer" if isinstance(self.encoder, TransformerConfig) else "lstm"

    @property
    def encoder_title(self) -> str:
        """The kind of the encoder, as it is written in text: LSTM or transformer."""
        return "LSTM" if self.encoder_name == "lstm" else self.encoder_name

    @property
    def lstm(self) -> LstmConfig:
        """The LSTM stacks; raises ``ConfigError`` for a transformer."""
        if isinstance(self.encoder, TransformerConfig):
            raise ConfigError("this needs an LSTM; the model has transformer layers")
        return self.encoder

    @property
    def has_token_projection(self) -> bool:
        """Whether the token layer ends with a projection to the width of the encoder's state."""
        if self.chars is None:
            return False
        return self.words is not None or self.chars.width != self.encoder.state_width

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "chars": None if self.chars is None else self.chars.to_json(),
            "words": None if self.words is None else asdict(self.words),
            self.encoder_name: asdict(self.encoder),
            "alphabet": self.alphabet,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build a config from the result of ``to_json``; wrong keys or types raise ``ConfigError``."""
        name: EncoderName = "transformer" if isinstance(values, Mapping) and "transformer" in values else "lstm"
        values = _check_values(values, cls, keys={"encoder": name})
        kind = _ENCODERS[name]
        chars, words = values.get("chars"), values.get("words")
        if chars is not None:
            chars = _check_values(chars, CharCnnConfig)
            if "filters" in chars:
                chars["filters"] = filters_from_json(chars["filters"])
        return cls(
            chars=None if chars is None else CharCnnConfig(**chars),
            words=None if words is None else WordConfig(**_check_values(words, WordConfig)),
            encoder=kind(**_check_values(values.get(name), kind)),
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
                shapes[f"token_layer.cnn.highways.{i}.{part}.weight"] = (chars.width, chars.width)
                shapes[f"token_layer.cnn.highways.{i}.{part}.bias"] = (chars.width,)
        if chars.highway_width is not None:
            shapes["token_layer.cnn.projection.weight"] = (chars.highway_width, n_filters)
            shapes["token_layer.cnn.projection.bias"] = (chars.highway_width,)
        token_width += chars.width
    encoder = config.encoder
    state = encoder.state_width
    if config.has_token_projection:
        shapes["token_layer.projection.weight"] = (state, token_width)
        shapes["token_layer.projection.bias"] = (state,)
    if config.chars and config.chars.has_norm:
        shapes |= {f"token_layer.norm.{part}": (state,) for part in ("gamma", "beta")}
    for stack in ("forward_stack", "backward_stack"):
        for i in range(encoder.n_layers):
            if isinstance(encoder, TransformerConfig):
                layer = _transformer_shapes(encoder, is_last=i == encoder.n_layers - 1)
            else:
                layer = _lstm_shapes(encoder)
            shapes |= {f"{stack}.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _lstm_shapes(lstm: LstmConfig) -> dict[str, tuple[int, ...]]:
    state, cell = lstm.state_width, lstm.cell_width
    shapes: dict[str, tuple[int, ...]] = {
        "input_weight": (4 * cell, state),
        "state_weight": (4 * cell, state),
        "bias": (4 * cell,),
    }
    return shapes | ({"projection": (state, cell)} if lstm.has_projection else {})


def _transformer_shapes(transformer: TransformerConfig, *, is_last: bool) -> dict[str, tuple[int, ...]]:
    state, hidden = transformer.state_width, transformer.feed_forward_width
    shapes: dict[str, tuple[int, ...]] = {}
    for norm in ("attention_norm", "feed_forward_norm", *(("output_norm",) if is_last else ())):
        shapes |= {f"{norm}.{part}": (state,) for part in ("gamma", "beta")}
    for name, n_out, n_in in (
        *((name, state, state) for name in ("query", "key", "value", "context")),
        ("hidden", hidden, state),
        ("output", state, hidden),
    ):
        shapes |= {f"{name}.weight": (n_out, n_in), f"{name}.bias": (n_out,)}
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
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": (bool,),
}


def _check_values(values: Any, kind: type, *, keys: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the values as keyword arguments for dataclass ``kind``; reject unknown keys and wrong types.

    ``keys`` are the keys of fields that have another name in JSON; the result has these keys.
    """
    keys = keys or {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{kind.__name__} must be a JSON object; found {values!r:.40}")
    known = {keys.get(field.name, field.name): str(field.type) for field in fields(kind)}
    problems = [f"unknown key {key!r}" for key in values if key not in known]
    for key, value in values.items():
        allowed = _FIELD_TYPES.get(known.get(key, ""))
        # bool is a subclass of int, but "n_layers": true is an error
        if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
            problems.append(f"{key} must be {known[key]}; found {value!r:.40}")
    required = [keys.get(f.name, f.name) for f in fields(kind) if f.default is f.default_factory]
    problems += [f"missing key {name!r}" for name in required if name not in values]
    if problems:
        raise_all(problems, subject=kind.__name__, kind=ConfigError)
    return dict(values)
