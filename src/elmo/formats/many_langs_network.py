"""EFML's architecture and state dicts in, our config and weights out.

EFML projects the token layer and every LSTM's cells, whatever their widths; our networks have no projection
where it would not change a width. In those rare shapes a dead filter or dead cells, of zero weights and so
of zero output, keep the widths apart: the vectors are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elmo.config import MAX_FILTERS, MAX_LAYERS, BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.errors import ConfigError, FormatError
from elmo.formats.containers.state_dict import StateDict
from elmo.text.alphabet import UnicodeAlphabet

if TYPE_CHECKING:
    from torch import Tensor

Shapes = Mapping[str, tuple[int, ...]]

WORD_TABLE = "word_emb_layer.embedding.weight"
CHAR_TABLE = "char_emb_layer.embedding.weight"
_STACKS = ("forward", "backward")


@dataclass(frozen=True)
class Architecture:
    """What EFML's architecture file says; the defaults are those of every published model."""

    word_width: int = 100  # 0: reads no words
    char_width: int = 50  # 0: reads no characters
    filters: tuple[tuple[int, int], ...] = CharCnnConfig.filters  # as in the English models
    n_highway: int = 2
    activation: str = "relu"
    max_characters: int = 50
    state_width: int = 512
    cell_width: int = 4096
    n_layers: int = 2
    cell_clip: float | None = 3.0
    state_clip: float | None = 3.0


def inferred(tokens: Shapes, encoder: Shapes) -> Architecture:
    """The architecture that shapes tell of; what they cannot tell is as published."""
    published = Architecture()

    def axis(shapes: Shapes, name: str, k: int, default: int) -> int:
        shape = shapes.get(name, ())
        return shape[k] if len(shape) > k else default

    n_filters = _count(tokens, "convolutions.{}.weight", MAX_FILTERS)
    filters = [f"convolutions.{i}.weight" for i in range(n_filters)]
    return Architecture(
        word_width=axis(tokens, WORD_TABLE, 1, 0),
        char_width=axis(tokens, CHAR_TABLE, 1, 0),
        filters=tuple((axis(tokens, name, 2, 1), axis(tokens, name, 0, 1)) for name in filters),
        n_highway=_count(tokens, "highways._layers.{}.weight", MAX_LAYERS),
        state_width=axis(tokens, "projection.weight", 0, published.state_width),
        cell_width=axis(encoder, "forward_layer_0.state_projection.weight", 1, published.cell_width),
        n_layers=_count(encoder, "forward_layer_{}.input_linearity.weight", MAX_LAYERS) or published.n_layers,
    )


def to_config(of: Architecture, *, n_words: int, n_characters: int) -> BiLmConfig:
    """Our config of a network; ``ConfigError`` when a size is out of range."""
    if of.cell_width < 1:
        raise ConfigError(f"cell_width must be at least 1, found {of.cell_width}")
    words = WordConfig(n_words, of.word_width) if of.word_width else None
    filters, n_highway = (of.filters, of.n_highway) if of.char_width else ((), 0)
    if not of.char_width or (words is None and sum(count for _, count in filters) == of.state_width):
        filters = (*filters, (1, 1))  # dead
    chars = CharCnnConfig(
        n_characters=n_characters if of.char_width else len(UnicodeAlphabet.SPECIAL),
        char_width=of.char_width or 1,
        filters=filters,
        n_highway=n_highway,
        activation=of.activation,  # type: ignore[arg-type]  checked by the config itself
        max_characters=of.max_characters,
    )
    lstm = LstmConfig(
        n_layers=of.n_layers,
        cell_width=max(of.cell_width, of.state_width + 1),  # the cells beyond its own are dead
        state_width=of.state_width,
        cell_clip=of.cell_clip,
        state_clip=of.state_clip,
        has_skip=True,
        forget_bias=0.0,
    )
    return BiLmConfig(chars=chars, words=words, lstm=lstm, alphabet="unicode")


def mismatches(of: Architecture, tokens: StateDict, encoder: StateDict) -> list[str]:
    """Everything in which two files differ from an architecture (of a size that ``to_config`` accepts)."""
    problems = []
    for file, expected in ((tokens, _token_shapes(of, tokens.shapes)), (encoder, _encoder_shapes(of))):
        name = file.path.name
        problems += [
            f"{name}: missing {key} {shape}" for key, shape in expected.items() if key not in file.tensors
        ]
        problems += [f"{name}: unexpected {key!r:.80}" for key in file.tensors if key not in expected]
        for key, tensor in file.tensors.items():
            if key in expected and tensor.shape != expected[key]:
                problems.append(f"{name}: {key}: expected {expected[key]}, found {tensor.shape}")
            if not tensor.kind.startswith(("float", "bfloat")):
                problems.append(f"{name}: {key!r:.80}: expected floats, found {tensor.kind}")
    return problems


def read_weights(
    of: Architecture,
    tokens: StateDict,
    encoder: StateDict,
    *,
    config: BiLmConfig,
    word_rows: Sequence[int] | None,
) -> dict[str, Tensor]:
    """All weights under our names; ``word_rows`` are the rows of the word table in vocabulary order."""
    weights: dict[str, Tensor] = {}
    if word_rows is not None:
        table = tokens.read(WORD_TABLE)
        if list(word_rows) != list(range(len(table))):
            table = table[list(word_rows)]
        weights["token_layer.word_embed.weight"] = _below_zeros(table)
    weights |= _read_cnn(of, tokens, config=config)
    for stack in _STACKS:
        for layer in range(of.n_layers):
            cell = _read_cell(
                encoder, f"{stack}_layer_{layer}", n_dead=config.lstm.cell_width - of.cell_width
            )
            weights |= {f"{stack}_stack.{layer}.{name}": weight for name, weight in cell.items()}
    return weights


def _token_shapes(of: Architecture, found: Shapes) -> dict[str, tuple[int, ...]]:
    """EFML's names and shapes of the token layer; how many rows a table has is the file's to say."""
    shapes: dict[str, tuple[int, ...]] = {}
    n_filters = 0
    if of.word_width:
        shapes[WORD_TABLE] = (*found.get(WORD_TABLE, ())[:1], of.word_width)
    if of.char_width:
        n_filters = sum(count for _, count in of.filters)
        shapes[CHAR_TABLE] = (*found.get(CHAR_TABLE, ())[:1], of.char_width)
        for i, (width, count) in enumerate(of.filters):
            shapes[f"convolutions.{i}.weight"] = (count, of.char_width, width)
            shapes[f"convolutions.{i}.bias"] = (count,)
        for i in range(of.n_highway):
            shapes[f"highways._layers.{i}.weight"] = (2 * n_filters, n_filters)
            shapes[f"highways._layers.{i}.bias"] = (2 * n_filters,)
    shapes["projection.weight"] = (of.state_width, of.word_width + n_filters)
    shapes["projection.bias"] = (of.state_width,)
    return shapes


def _encoder_shapes(of: Architecture) -> dict[str, tuple[int, ...]]:
    """EFML's names and shapes of the LSTMs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(of.n_layers):
        for stack in _STACKS:
            name = f"{stack}_layer_{layer}"
            shapes[f"{name}.input_linearity.weight"] = (4 * of.cell_width, of.state_width)
            shapes[f"{name}.state_linearity.weight"] = (4 * of.cell_width, of.state_width)
            shapes[f"{name}.state_linearity.bias"] = (4 * of.cell_width,)
            shapes[f"{name}.state_projection.weight"] = (of.state_width, of.cell_width)
    return shapes


def _read_cnn(of: Architecture, tokens: StateDict, *, config: BiLmConfig) -> dict[str, Tensor]:
    """The character network and the projection behind it.

    A highway of EFML is one linear layer of [transform; gate], and its gate keeps the input; ours lets the
    transform through. σ(−x) = 1 − σ(x), so the gate changes its sign.
    """
    import torch
    from torch.nn.functional import pad

    if config.chars is None:
        raise FormatError("an EFML network always has characters, dead ones if need be")
    chars, cnn = config.chars, "token_layer.cnn"
    n_filters = sum(count for _, count in of.filters) if of.char_width else 0
    n_dead = chars.n_filters - n_filters
    weights: dict[str, Tensor] = {}
    for i, (width, count) in enumerate(chars.filters):
        weights[f"{cnn}.convolutions.{i}.weight"] = torch.zeros(count, chars.char_width, width)
        weights[f"{cnn}.convolutions.{i}.bias"] = torch.zeros(count)
    if of.char_width:
        weights[f"{cnn}.char_embed.weight"] = _below_zeros(tokens.read(CHAR_TABLE))
        for i in range(len(of.filters)):
            for part in ("weight", "bias"):
                weights[f"{cnn}.convolutions.{i}.{part}"] = tokens.read(f"convolutions.{i}.{part}")
        for i in range(of.n_highway):
            weight, bias = (tokens.read(f"highways._layers.{i}.{part}") for part in ("weight", "bias"))
            for part, sign, rows in (
                ("transform", 1, slice(n_filters)),
                ("gate", -1, slice(n_filters, None)),
            ):
                weights[f"{cnn}.highways.{i}.{part}.weight"] = sign * pad(
                    weight[rows], (0, n_dead, 0, n_dead)
                )
                weights[f"{cnn}.highways.{i}.{part}.bias"] = sign * pad(bias[rows], (0, n_dead))
    else:
        weights[f"{cnn}.char_embed.weight"] = torch.zeros(chars.n_characters + 1, chars.char_width)
    weights["token_layer.projection.weight"] = pad(tokens.read("projection.weight"), (0, n_dead))
    weights["token_layer.projection.bias"] = tokens.read("projection.bias")
    return weights


def _read_cell(encoder: StateDict, name: str, *, n_dead: int) -> dict[str, Tensor]:
    """One LSTM layer; its gates are ordered as ours, i, f, j, o, and only the state's part has a bias."""
    from torch.nn.functional import pad

    def by_gate(part: str) -> Tensor:
        weight = encoder.read(f"{name}.{part}")
        if not n_dead:
            return weight
        gates = weight.unflatten(0, (4, -1))  # (gate, cell, …)
        return pad(gates, (*(0, 0) * (gates.dim() - 2), 0, n_dead)).flatten(0, 1)

    return {
        "input_weight": by_gate("input_linearity.weight"),
        "state_weight": by_gate("state_linearity.weight"),
        "bias": by_gate("state_linearity.bias"),
        "projection": pad(encoder.read(f"{name}.state_projection.weight"), (0, n_dead)),
    }


def _below_zeros(table: Tensor) -> Tensor:
    """A table with a row of zeros in front, for padding."""
    from torch.nn.functional import pad

    return pad(table, (0, 0, 1, 0))


def _count(shapes: Shapes, pattern: str, limit: int) -> int:
    """How many of the numbered names there are, counted from 0 until one is missing."""
    return next((i for i in range(limit) if pattern.format(i) not in shapes), limit)
