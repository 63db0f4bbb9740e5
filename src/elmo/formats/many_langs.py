"""EFML's architecture and state dicts in, our config and weights out.

EFML projects the token layer and every LSTM's cells, whatever their widths; our networks have no projection
where it would not change a width. In those rare shapes a dead filter or dead cells, of zero weights and so
of zero output, keep the widths apart: the vectors are the same.

An ELMoForManyLangs folder in, config, weights and dictionaries out.

EFML (HIT-SCIR/ELMoForManyLangs) keeps its training arguments in ``config.json``, which names an architecture
file that most published folders lack, its dictionaries in ``char.dic`` and ``word.dic``, and its weights in
``token_embedder.pkl`` and ``encoder.pkl``, with the softmax in ``classifier.pkl`` where its author saved it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.config import (
    MAX_FILTERS,
    MAX_LAYERS,
    BiLmConfig,
    CharCnnConfig,
    LstmConfig,
    WordConfig,
    filters_from_json,
)
from elmo.errors import ConfigError, FormatError, raise_all
from elmo.formats.containers.state_dict import StateDict, open_state_dict
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage.files import find_member, format_path, list_names, read_json, read_lines
from elmo.text.ids import UnicodeAlphabet, Vocabulary

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


NAME = "ELMoForManyLangs"
SPECIAL_WORDS = ("<oov>", "<bos>", "<eos>", "<pad>")
_TOKENS, _ENCODER, _CLASSIFIER = "token_embedder.pkl", "encoder.pkl", "classifier.pkl"
_PUBLISHED = (
    "cnn_50_100_512_4096_sample.json"  # EFML's own sample, which its published models were trained with
)
_MAX_TOKENS = 1 << 19  # of a dictionary; EFML's were counted on 20 million words of text
_NEVER_PUBLISHED = "only the 'cnn' token embedder under the 'elmo' encoder was ever published"


def can_read(folder: Path) -> bool:
    """Whether a folder looks like EFML's."""
    return not {_TOKENS, _ENCODER}.isdisjoint(list_names(folder))


def read(folder: Path) -> Pretrained:
    """The model in an EFML folder."""
    tokens = open_state_dict(find_member(folder, _TOKENS))
    encoder = open_state_dict(find_member(folder, _ENCODER))
    if "char_lstm.weight_ih_l0" in tokens.tensors or "encoder.weight_ih_l0" in encoder.tensors:
        raise FormatError(f"{format_path(folder)}: {_NEVER_PUBLISHED}, found an LSTM in place of one")
    architecture, origin = _architecture(folder, tokens, encoder)
    n_words, n_characters = _n_rows(tokens, WORD_TABLE), _n_rows(tokens, CHAR_TABLE)
    try:
        # a table that is missing is reported below, by its name
        config = to_config(architecture, n_words=n_words or 1, n_characters=n_characters or 1)
    except ConfigError as error:
        raise FormatError(f"{format_path(folder)}: {error}") from error
    raise_all(mismatches(architecture, tokens, encoder), subject=f"{format_path(folder)} ({format_path(origin)})")

    characters = {name: i for i, name in enumerate(UnicodeAlphabet.SPECIAL)}
    if architecture.char_width:
        characters = _read_dictionary(
            folder, "char.dic", n_rows=n_characters, special=UnicodeAlphabet.SPECIAL
        )
    classifier = None
    if _CLASSIFIER in list_names(folder):
        classifier = open_state_dict(find_member(folder, _CLASSIFIER))
    softmax_names = _softmax_names(classifier, architecture)
    n_classes = classifier.shapes[softmax_names[0]][0] if classifier and softmax_names else 0
    ids: dict[str, int] = {}
    if architecture.word_width or n_classes:
        n_rows = n_words if architecture.word_width else n_classes
        ids = _read_dictionary(folder, "word.dic", n_rows=n_rows, special=SPECIAL_WORDS)
    words = sorted(ids, key=ids.__getitem__)
    rows = [ids[word] for word in words]
    softmax = None
    if classifier and softmax_names and rows == list(range(n_classes)):
        weight, bias = softmax_names
        softmax = SoftmaxWeights(classifier.read(weight), classifier.read(bias).flatten())
    return Pretrained(
        config=config,
        weights=read_weights(
            architecture, tokens, encoder, config=config, word_rows=rows if architecture.word_width else None
        ),
        format=NAME,
        vocab=(
            Vocabulary(tuple(words), bos="<bos>", eos="<eos>", unknown="<oov>")
            if architecture.word_width or softmax
            else None
        ),
        characters=characters,
        softmax=softmax,
        metadata={"architecture": origin},
    )


def _architecture(folder: Path, tokens: StateDict, encoder: StateDict) -> tuple[Architecture, str]:
    """The architecture, and where it is from: a file of this folder, or the shapes of its weights.

    EFML would follow ``config_path`` anywhere, and nearly all published folders name a file on their author's
    disk. We follow it inside the folder only, and look for its last part beside ``config.json`` and in
    ``configs``.
    """
    arguments = read_json(find_member(folder, "config.json"))
    if not isinstance(arguments, dict):
        raise FormatError(
            f"{format_path(folder / 'config.json')}: expected an object, found {type(arguments).__name__}"
        )
    path = arguments.get("config_path")
    path = path.replace("\\", "/") if isinstance(path, str) else ""
    name = path.rpartition("/")[2]
    candidates = [] if name in ("", ".", "..") else [name, f"configs/{name}"]
    is_inside = not path.startswith("/") and ":" not in path and ".." not in path.split("/")
    if candidates and is_inside:
        candidates.insert(0, path)
    for candidate in (*candidates, _PUBLISHED, f"configs/{_PUBLISHED}"):
        if candidate != "config.json" and os.path.lexists(folder / candidate):
            return _from_json(read_json(find_member(folder, candidate)), f"{format_path(folder / candidate)}"), candidate
    return inferred(tokens.shapes, encoder.shapes), "inferred from the shapes of the weights"


def _from_json(values: Any, subject: str) -> Architecture:
    """An architecture file's values, with every mistake in them reported at once."""
    problems: list[str] = []

    def section(name: str) -> Mapping[str, Any]:
        found = values.get(name) if isinstance(values, dict) else None
        if not isinstance(found, dict):
            problems.append(f"expected an object {name!r}, found none")
            return {}
        return found

    def get(part: Mapping[str, Any], key: str, *kinds: type) -> Any:
        found = part.get(key)
        if key not in part or type(found) not in kinds:
            what = f"{found!r:.40}" if key in part else "none"
            problems.append(f"expected {key} as {' or '.join(kind.__name__ for kind in kinds)}, found {what}")
            return kinds[0]()
        return found

    encoder, tokens = section("encoder"), section("token_embedder")
    for part, expected in ((tokens, "cnn"), (encoder, "elmo")):
        if part and str(part.get("name")).lower() != expected:
            problems.append(
                f"{_NEVER_PUBLISHED}, found {str(part.get('name'))!r:.40} in place of {expected!r}"
            )
    word_width, char_width = get(tokens, "word_dim", int), get(tokens, "char_dim", int)
    filters: tuple[tuple[int, int], ...] = ()
    n_highway, activation = 0, "relu"
    if char_width > 0:
        n_highway, activation = get(tokens, "n_highway", int), get(tokens, "activation", str)
        try:
            filters = filters_from_json(tokens.get("filters"))
        except ConfigError as error:
            problems.append(str(error))
    found = Architecture(
        word_width=max(word_width, 0),
        char_width=max(char_width, 0),
        filters=filters,
        n_highway=n_highway,
        activation=activation,
        max_characters=get(tokens, "max_characters_per_token", int),
        state_width=get(encoder, "projection_dim", int),
        cell_width=get(encoder, "dim", int),
        n_layers=get(encoder, "n_layers", int),
        # EFML does not clip at 0
        cell_clip=get(encoder, "cell_clip", float, int, type(None)) or None,
        state_clip=get(encoder, "proj_clip", float, int, type(None)) or None,
    )
    if not found.word_width and not found.char_width:
        problems.append("expected char_dim or word_dim above 0, found neither")
    raise_all(problems, subject=subject)
    return found


def _read_dictionary(folder: Path, name: str, *, n_rows: int, special: tuple[str, ...]) -> dict[str, int]:
    r"""Tokens and their rows in a table: lines ``token\tid``.

    EFML strips each line, so that U+3000 comes out as nothing and its line as a single field; a single field
    therefore means U+3000, here as there. We strip nothing else: a no-break space stays the token it was in
    training. As in EFML, the table has as many rows as there are tokens, in any order; two tokens may share a
    row, and then some other row is never used.
    """
    path = find_member(folder, name)
    ids: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(read_lines(path, max_lines=min(n_rows + 1, _MAX_TOKENS)), start=1):
        token, _, digits = line.removesuffix("\r").rpartition("\t")
        token = token or "\u3000"
        row = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1
        if not 0 <= row < n_rows:
            problems.append(
                f"line {number}: expected a token, a tab and an id below {n_rows}, found {line!r:.60}"
            )
        elif token in ids:
            problems.append(f"line {number}: {token!r:.40} stands twice")
        ids[token] = row
        if len(problems) > 20:
            break
    missing = [token for token in special if token not in ids]
    if missing and not problems:
        problems.append(f"expected {', '.join(missing)}, found none")
    if len(ids) != n_rows and not problems:
        problems.append(f"expected {n_rows} tokens, one for each row of its table, found {len(ids)}")
    raise_all(problems, subject=format_path(path))
    return ids


def _n_rows(tokens: StateDict, table: str) -> int:
    shape = tokens.shapes.get(table, ())
    return shape[0] if shape else 0


def _softmax_names(classifier: StateDict | None, of: Architecture) -> tuple[str, str] | None:
    """Names of weight and bias in EFML's full or sampled softmax; None for any other.

    None too where the softmax is not on the top: EFML's training feeds it from the second LSTM layer, however
    many there are. The sampled softmax's ``oov_column`` is never used: unknown words have a row of their own.
    """
    shapes = classifier.shapes if classifier is not None and of.n_layers == 2 else {}
    for weight, bias in (
        ("hidden2tag.weight", "hidden2tag.bias"),
        ("column_emb.weight", "column_bias.weight"),
    ):
        match shapes.get(weight):
            case (n_rows, of.state_width) if shapes.get(bias) in ((n_rows,), (n_rows, 1)):
                return weight, bias
    return None
