"""Convert the option names, weight names and shapes in bilm-tf's files to those of elmo, and back.

The readers of HDF5 files, of training checkpoints and of TF-Hub modules share this module. It has two parts:

- ``options.json``. Published option names are used only here: ``lstm.dim`` is ``cell_width`` in elmo,
  ``lstm.projection_dim`` is ``state_width``, and ``lstm.proj_clip`` is ``state_clip``.
- Arrays. TensorFlow stores matrices as (in, out), the input and state weights of a cell in one matrix, and
  gates in the order i, j, f, o. elmo stores (out, in), two matrices, and i, f, j, o. No value is changed, so a
  round trip preserves every number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmo.config import (
    MAX_CHARACTERS,
    MAX_FILTERS,
    MAX_LAYERS,
    MAX_WIDTH,
    BiLmConfig,
    CharCnnConfig,
    LstmConfig,
    WordConfig,
    filters_from_json,
)
from elmo.errors import ConfigError, OutputError, raise_all
from elmo.storage.files import format_path, read_json
from elmo.text.ids import N_BYTE_CHARACTERS as N_CHARACTERS  # rows of char_embed, without the mask

Array = NDArray[np.float32]
Shape = tuple[int, ...]


# --- options.json --------------------------------------------------------------------------------

_MAX_CLIP = 3e38


@dataclass(frozen=True)
class BilmOptions:
    """The content of an options file: the parts of the network, and all other top-level keys."""

    chars: CharCnnConfig | None
    lstm: LstmConfig
    training: Mapping[str, Any] = field(default_factory=dict)  # training options and unknown keys

    def config(self, *, n_words: int | None = None) -> BiLmConfig:
        """Return the config of the network; with ``n_words``, the network reads words instead of characters."""
        if n_words is None:
            alphabet = "bytes" if self.chars else None
            return BiLmConfig(chars=self.chars, words=None, encoder=self.lstm, alphabet=alphabet)
        words = WordConfig(n_words, self.lstm.state_width)
        return BiLmConfig(chars=None, words=words, encoder=self.lstm, alphabet=None)


def read_options(path: Path) -> BilmOptions:
    """Read an options file; one ``FormatError`` lists every problem in it."""
    return parse_options(read_json(path), subject=format_path(path))


def parse_options(values: Any, *, subject: str) -> BilmOptions:
    """Parse the JSON values of an options file; unknown keys are kept in ``training``."""
    problems: list[str] = []
    top = OptionFields(values, "", problems)
    if top.values.get("bidirectional") is False:
        problems.append("bidirectional is false, but only bidirectional models are supported")
    lstm = _parse_lstm(top.section("lstm"))
    chars = _parse_char_cnn(top.section("char_cnn")) if top.values.get("char_cnn") is not None else None
    raise_all(problems, subject=subject)
    training = {key: value for key, value in top.values.items() if key not in ("lstm", "char_cnn")}
    return BilmOptions(chars, lstm, training)


def format_options(options: BilmOptions) -> dict[str, Any]:
    """Return the JSON values of an options file for AllenNLP 0.9, bilm-tf and simple_elmo.

    These programs expect ``n_characters`` to be 262, which includes the mask.
    """
    chars, lstm = options.chars, options.lstm
    if chars is not None and chars.n_characters != N_CHARACTERS:
        raise OutputError(f"options.json: expected {N_CHARACTERS} characters, found {chars.n_characters}")
    values = {key: value for key, value in options.training.items() if key not in ("lstm", "char_cnn")}
    values["lstm"] = {
        "dim": lstm.cell_width,
        "projection_dim": lstm.state_width,
        "n_layers": lstm.n_layers,
        "cell_clip": lstm.cell_clip,
        "proj_clip": lstm.state_clip,
        "use_skip_connections": lstm.has_skip,
    }
    if chars is not None:
        values["char_cnn"] = {
            "activation": chars.activation,
            "embedding": {"dim": chars.char_width},
            "filters": [list(pair) for pair in chars.filters],
            "n_highway": chars.n_highway,
            "n_characters": N_CHARACTERS + 1,
            "max_characters_per_token": chars.max_characters,
        }
    return values


def _parse_lstm(lstm: OptionFields) -> LstmConfig:
    n_problems = len(lstm.problems)
    dim = lstm.integer("dim", 1, MAX_WIDTH)
    projection_dim = lstm.integer("projection_dim", 1, MAX_WIDTH)
    if projection_dim > dim and len(lstm.problems) == n_problems:
        lstm.problems.append(f"lstm.projection_dim {projection_dim} must not exceed lstm.dim {dim}")
    return LstmConfig(
        n_layers=lstm.integer("n_layers", 1, MAX_LAYERS, default=1),
        cell_width=dim,
        state_width=projection_dim,
        cell_clip=lstm.clip("cell_clip"),
        state_clip=lstm.clip("proj_clip"),
        has_skip=lstm.boolean("use_skip_connections"),
        forget_bias=1.0,  # TensorFlow's LSTMCell adds it at run time, and AllenNLP when it loads the weights
    )


def _parse_char_cnn(cnn: OptionFields) -> CharCnnConfig:
    # 261 in options for training; 262 in options for inference, where it includes the mask
    cnn.integer("n_characters", N_CHARACTERS, N_CHARACTERS + 1, default=N_CHARACTERS + 1)
    max_characters = cnn.integer("max_characters_per_token", 3, MAX_CHARACTERS, default=50)
    activation: Literal["relu", "tanh"] = "tanh" if cnn.values.get("activation") == "tanh" else "relu"
    if cnn.values.get("activation") != activation:
        cnn.problems.append(
            f"char_cnn.activation: expected 'relu' or 'tanh', found {cnn.values.get('activation')!r:.40}"
        )
    return CharCnnConfig(
        n_characters=N_CHARACTERS,
        char_width=cnn.section("embedding").integer("dim", 1, MAX_WIDTH),
        filters=_parse_filters(cnn, max_characters),
        n_highway=cnn.integer("n_highway", 0, MAX_LAYERS, default=0),
        activation=activation,
        max_characters=max_characters,
    )


def _parse_filters(cnn: OptionFields, max_characters: int) -> tuple[tuple[int, int], ...]:
    values = cnn.values.get("filters")
    try:
        filters = filters_from_json(values)
    except ConfigError:
        filters = ()
    is_valid = all(1 <= width <= max_characters and count >= 1 for width, count in filters)
    if not is_valid or not 0 < len(filters) <= MAX_FILTERS or sum(count for _, count in filters) > MAX_WIDTH:
        cnn.problems.append(
            f"char_cnn.filters: expected 1..{MAX_FILTERS} pairs [width, count], with widths up to "
            f"{max_characters} and at most {MAX_WIDTH} filters in total, found {values!r:.80}"
        )
    return filters


class OptionFields:
    """A JSON object of the options file; each lookup returns a value of the right type or adds a problem."""

    def __init__(self, values: Any, prefix: str, problems: list[str]) -> None:
        self.prefix = prefix
        self.problems = problems
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        if not isinstance(values, dict):
            problems.append(f"{prefix.rstrip('.') or 'the file'}: expected a JSON object, found {values!r:.40}")
            self.problems = []  # do not also report its keys as missing

    def section(self, key: str) -> OptionFields:
        """Return a nested object."""
        return OptionFields(self.values.get(key), f"{self.prefix}{key}.", self.problems)

    def integer(self, key: str, low: int, high: int, *, default: int | None = None) -> int:
        """Return an integer in a range; a missing key or null gives the default, if there is one."""
        value = default if self.values.get(key) is None else self.values[key]
        if type(value) is int and low <= value <= high:
            return value
        actual = f"{value!r:.40}" if key in self.values else "none"
        self.problems.append(f"{self.prefix}{key}: expected an integer in {low}..{high}, found {actual}")
        return low

    def clip(self, key: str) -> float | None:
        """Return a clipping bound, which must be positive; a missing key or null means no clipping."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MAX_CLIP:
            return float(value)
        self.problems.append(f"{self.prefix}{key}: expected a positive number or null, found {value!r:.40}")
        return None

    def boolean(self, key: str) -> bool:
        """Return true or false; a missing key or null means false."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problems.append(f"{self.prefix}{key}: expected true or false, found {value!r:.40}")
        return False

    def choice(self, key: str, choices: tuple[str | None, ...], *, default: str | None = None) -> str | None:
        """Return one of some values; a missing key gives the default, which may be left out of ``choices``."""
        value = self.values.get(key, default)
        if value in choices and type(value) in (str, type(None)):
            return value
        self.problems.append(f"{self.prefix}{key}: expected {' or '.join(map(repr, choices))}, found {value!r:.80}")
        return choices[0]


# --- arrays --------------------------------------------------------------------------------------

_GATES = [0, 2, 1, 3]  # converts i, j, f, o to i, f, j, o, and back
_STACKS = ("forward_stack", "backward_stack")  # RNN_0, RNN_1
_CNN = "token_layer.cnn"


def dataset_shapes(config: BiLmConfig) -> dict[str, Shape]:
    """Return the name and shape of every dataset in a bilm-tf weights file for this config."""
    shapes: dict[str, Shape] = {}
    state, cell = config.lstm.state_width, config.lstm.cell_width
    if config.words:
        shapes["embedding"] = (config.words.n_words, state)
    if config.chars:
        width, n_filters = config.chars.char_width, config.chars.n_filters
        shapes["char_embed"] = (config.chars.n_characters, width)
        for i, (length, count) in enumerate(config.chars.filters):
            shapes[f"CNN/W_cnn_{i}"] = (1, length, width, count)
            shapes[f"CNN/b_cnn_{i}"] = (count,)
        for i in range(config.chars.n_highway):
            for part in ("carry", "transform"):
                shapes[f"CNN_high_{i}/W_{part}"] = (n_filters, n_filters)
                shapes[f"CNN_high_{i}/b_{part}"] = (n_filters,)
        if config.has_token_projection:
            shapes["CNN_proj/W_proj"] = (n_filters, state)
            shapes["CNN_proj/b_proj"] = (state,)
    for group in _cell_groups(config):
        shapes[f"{group}/W_0"] = (2 * state, 4 * cell)
        shapes[f"{group}/B"] = (4 * cell,)
        if config.lstm.has_projection:
            shapes[f"{group}/W_P_0"] = (cell, state)
    return shapes


def identity_shapes(config: BiLmConfig) -> dict[str, Shape]:
    """Return the name and shape of projections that keep the width, which bilm-tf omits and AllenNLP requires.

    They are written as identity matrices with zero bias, which have no effect, so that both can read the file.
    """
    shapes: dict[str, Shape] = {}
    state = config.lstm.state_width
    if config.chars and not config.has_token_projection:
        shapes["CNN_proj/W_proj"] = (state, state)
        shapes["CNN_proj/b_proj"] = (state,)
    if not config.lstm.has_projection:
        shapes |= {f"{group}/W_P_0": (state, state) for group in _cell_groups(config)}
    return shapes


def identity(shape: Shape) -> Array:
    """Return the content of a dataset in ``identity_shapes``."""
    return np.eye(shape[0], dtype=np.float32) if len(shape) == 2 else np.zeros(shape, np.float32)


def cell_group(direction: int, layer: int) -> str:
    """Return the HDF5 group of one LSTM layer."""
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def _cell_groups(config: BiLmConfig) -> list[str]:
    return [cell_group(direction, layer) for direction in range(2) for layer in range(config.lstm.n_layers)]


def to_parameters(name: str, array: Array) -> dict[str, Array]:
    """Convert one bilm-tf dataset to parameters with the names and shapes of ``config.parameter_shapes``."""
    part, target = name.rpartition("/")[2], _parameter_name(name)
    if part in ("embedding", "char_embed"):
        # a row of zeros in front for the padding id 0, which training did not have
        return {target: np.concatenate([np.zeros_like(array[:1]), array])}
    if part.startswith("W_cnn"):  # (1, width, char, count) -> (count, char, width)
        return {target: np.ascontiguousarray(array[0].transpose(2, 1, 0))}
    if part == "B":
        return {target: _swap_gates(array)}
    if part == "W_0":  # rows of the input, then of the state; both have the width of a state
        inputs, states = np.split(array, 2)
        return {f"{target}.input_weight": _gates_first(inputs), f"{target}.state_weight": _gates_first(states)}
    return {target: np.ascontiguousarray(array.T)}


def from_parameters(name: str, parameters: Mapping[str, Array]) -> Array:
    """Convert parameters to the bilm-tf dataset ``name``: the inverse of ``to_parameters``."""
    part, source = name.rpartition("/")[2], _parameter_name(name)
    if part in ("embedding", "char_embed"):
        return parameters[source][1:]
    if part.startswith("W_cnn"):
        return parameters[source].transpose(2, 1, 0)[None]
    if part == "B":
        return _swap_gates(parameters[source])
    if part == "W_0":
        both = [parameters[f"{source}.input_weight"], parameters[f"{source}.state_weight"]]
        return _swap_gates(np.concatenate(both, axis=1)).T
    return parameters[source].T


def _parameter_name(name: str) -> str:
    """Return the parameter name for a bilm-tf dataset; for ``W_0``, which has two parameters, the LSTM layer's name."""
    group, _, part = name.rpartition("/")
    kind = "weight" if part.startswith("W") else "bias"
    match part.rsplit("_", 1):
        case ["embedding"]:
            return "token_layer.word_embed.weight"
        case ["char", "embed"]:
            return f"{_CNN}.char_embed.weight"
        case ["W_cnn" | "b_cnn", i]:
            return f"{_CNN}.convolutions.{i}.{kind}"
        case ["W" | "b", "carry" | "transform" as gate]:
            # bilm-tf's "carry" is the share of the transformed input, usually called the transform gate
            layer = "gate" if gate == "carry" else "transform"
            return f"{_CNN}.highways.{group.removeprefix('CNN_high_')}.{layer}.{kind}"
        case ["W" | "b", "proj"]:
            return f"token_layer.projection.{kind}"
    pieces = group.split("/")  # RNN_d, RNN, MultiRNNCell, Cell{l}, LSTMCell
    cell = f"{_STACKS[int(pieces[0].removeprefix('RNN_'))]}.{pieces[3].removeprefix('Cell')}"
    return cell + {"B": ".bias", "W_P_0": ".projection", "W_0": ""}[part]


def _swap_gates(array: Array) -> Array:
    return array.reshape(4, -1)[_GATES].reshape(array.shape)


def _gates_first(weight: Array) -> Array:
    """Transpose (width, 4 * cell) to (4 * cell, width) in the gate order i, f, j, o; gate by gate is 3 times faster."""
    width, cell = len(weight), weight.shape[1] // 4
    result = np.empty((4, cell, width), np.float32)
    for ours, theirs in enumerate(_GATES):
        result[ours] = weight[:, theirs * cell : (theirs + 1) * cell].T
    return result.reshape(4 * cell, width)
