"""bilm-tf's arrays in, our parameters out, and back: names, shapes, transpositions and the order of gates.

TensorFlow keeps matrices as (in, out), input and state weights of a cell in one matrix, and its gates in the
order i, j, f, o. We keep (out, in), two matrices, and i, f, j, o. Nothing is computed on the way, so that
every number comes back as it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elmo.config import BiLmConfig

Array = NDArray[np.float32]
Shape = tuple[int, ...]

_GATES = [0, 2, 1, 3]  # i, j, f, o <-> i, f, j, o: its own inverse
_STACKS = ("forward_stack", "backward_stack")  # RNN_0, RNN_1
_CNN = "token_layer.cnn"


def shapes(config: BiLmConfig) -> dict[str, Shape]:
    """Name and shape of every dataset that a model of this config has in a published weights file."""
    found: dict[str, Shape] = {}
    state, cell = config.lstm.state_width, config.lstm.cell_width
    if config.words:
        found["embedding"] = (config.words.n_words, state)
    if config.chars:
        width, n_filters = config.chars.char_width, config.chars.n_filters
        found["char_embed"] = (config.chars.n_characters, width)
        for i, (length, count) in enumerate(config.chars.filters):
            found[f"CNN/W_cnn_{i}"] = (1, length, width, count)
            found[f"CNN/b_cnn_{i}"] = (count,)
        for i in range(config.chars.n_highway):
            for part in ("carry", "transform"):
                found[f"CNN_high_{i}/W_{part}"] = (n_filters, n_filters)
                found[f"CNN_high_{i}/b_{part}"] = (n_filters,)
        if config.has_token_projection:
            found["CNN_proj/W_proj"] = (n_filters, state)
            found["CNN_proj/b_proj"] = (state,)
    for direction in range(2):
        for layer in range(config.lstm.n_layers):
            group = cell_group(direction, layer)
            found[f"{group}/W_0"] = (2 * state, 4 * cell)
            found[f"{group}/B"] = (4 * cell,)
            if config.lstm.has_projection:
                found[f"{group}/W_P_0"] = (cell, state)
    return found


def identities(config: BiLmConfig) -> dict[str, Shape]:
    """Projections to the same width: bilm-tf leaves them out and never reads them, AllenNLP needs them.

    As identity matrices with a bias of zero they change nothing, and both systems can read the file.
    """
    found: dict[str, Shape] = {}
    state = config.lstm.state_width
    if config.chars and not config.has_token_projection:
        found["CNN_proj/W_proj"] = (state, state)
        found["CNN_proj/b_proj"] = (state,)
    if not config.lstm.has_projection:
        for direction in range(2):
            for layer in range(config.lstm.n_layers):
                found[f"{cell_group(direction, layer)}/W_P_0"] = (state, state)
    return found


def identity(shape: Shape) -> Array:
    """What a dataset of ``identities`` holds."""
    return np.eye(shape[0], dtype=np.float32) if len(shape) == 2 else np.zeros(shape, np.float32)


def cell_group(direction: int, layer: int) -> str:
    """The group of one LSTM cell; with one layer too, unlike in a checkpoint."""
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def to_parameters(name: str, array: Array) -> dict[str, Array]:
    """The parameters that one published dataset gives."""
    group, _, part = name.rpartition("/")
    match part.rsplit("_", 1):
        case ["embedding"]:
            return {"token_layer.word_embed.weight": _with_padding(array)}
        case ["char", "embed"]:
            return {f"{_CNN}.char_embed.weight": _with_padding(array)}
        case ["W_cnn", i]:  # (1, width, char width, count) -> (count, char width, width)
            return {f"{_CNN}.convolutions.{i}.weight": np.ascontiguousarray(array[0].transpose(2, 1, 0))}
        case ["b_cnn", i]:
            return {f"{_CNN}.convolutions.{i}.bias": array}
        case ["W" | "b", "carry" | "transform"]:
            target = f"{_CNN}.highways.{group.removeprefix('CNN_high_')}.{_highway_part(part)}"
            return {target: np.ascontiguousarray(array.T)}
        case ["W" | "b", "proj"]:
            kind = "weight" if part == "W_proj" else "bias"
            return {f"token_layer.projection.{kind}": np.ascontiguousarray(array.T)}
    pieces = group.split("/")  # RNN_d, RNN, MultiRNNCell, Cell{l}, LSTMCell
    target = f"{_STACKS[int(pieces[0].removeprefix('RNN_'))]}.{pieces[3].removeprefix('Cell')}"
    if part == "B":
        return {f"{target}.bias": _swap_gates(array)}
    if part == "W_P_0":
        return {f"{target}.projection": np.ascontiguousarray(array.T)}
    half = len(array) // 2  # rows of the input, then of the state, both as wide as a state
    return {
        f"{target}.input_weight": _gates_first(array[:half]),
        f"{target}.state_weight": _gates_first(array[half:]),
    }


def from_parameters(name: str, parameters: Mapping[str, Array]) -> Array:
    """One published dataset from our parameters: what ``to_parameters`` undoes."""
    group, _, part = name.rpartition("/")
    match part.rsplit("_", 1):
        case ["embedding"]:
            return parameters["token_layer.word_embed.weight"][1:]
        case ["char", "embed"]:
            return parameters[f"{_CNN}.char_embed.weight"][1:]
        case ["W_cnn", i]:
            return parameters[f"{_CNN}.convolutions.{i}.weight"].transpose(2, 1, 0)[None]
        case ["b_cnn", i]:
            return parameters[f"{_CNN}.convolutions.{i}.bias"]
        case ["W" | "b", "carry" | "transform"]:
            return parameters[f"{_CNN}.highways.{group.removeprefix('CNN_high_')}.{_highway_part(part)}"].T
        case ["W" | "b", "proj"]:
            return parameters[f"token_layer.projection.{'weight' if part == 'W_proj' else 'bias'}"].T
    pieces = group.split("/")
    source = f"{_STACKS[int(pieces[0].removeprefix('RNN_'))]}.{pieces[3].removeprefix('Cell')}"
    if part == "B":
        return _swap_gates(parameters[f"{source}.bias"])
    if part == "W_P_0":
        return parameters[f"{source}.projection"].T
    both = np.concatenate(
        [parameters[f"{source}.input_weight"], parameters[f"{source}.state_weight"]], axis=1
    )
    return _swap_gates(both).T


def _highway_part(part: str) -> str:
    kind, name = part.split("_")
    # bilm-tf's "carry" is the share of the transformed input: what others call the transform gate
    return f"{'gate' if name == 'carry' else 'transform'}.{'weight' if kind == 'W' else 'bias'}"


def _swap_gates(bias: Array) -> Array:
    return bias.reshape(4, -1)[_GATES].reshape(bias.shape)


def _gates_first(weight: Array) -> Array:
    """(width, 4 * cell) as (4 * cell, width), the gates in our order; by quarters: 3 times as fast."""
    width, cell = len(weight), weight.shape[1] // 4
    result = np.empty((4, cell, width), np.float32)
    for ours, theirs in enumerate(_GATES):
        result[ours] = weight[:, theirs * cell : (theirs + 1) * cell].T
    return result.reshape(4 * cell, width)


def _with_padding(table: Array) -> Array:
    """A row of zeros in front, for the padding id 0 that training did not have."""
    return np.concatenate([np.zeros_like(table[:1]), table])
