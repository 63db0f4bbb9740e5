"""Read an ELMoForManyLangs folder (EFML for short; HIT-SCIR/ELMoForManyLangs on GitHub).

``config.json`` contains the training arguments and names an architecture file, which most published folders
lack; the shapes of the weights then determine the architecture. ``char.dic`` and ``word.dic`` are the
dictionaries, ``token_embedder.pkl`` and ``encoder.pkl`` the weights, and ``classifier.pkl`` the softmax, if
the author saved it.

EFML projects the token layer and the output of every LSTM even if the width stays the same; elmo only has
projections that change the width. For such rare models, the reader adds a dead filter or dead cells (all weights
are zero, so the output is zero) to make the widths differ. The vectors stay the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elmo.config import MAX_FILTERS, MAX_LAYERS, BiLmConfig, CharCnnConfig, LstmConfig, WordConfig, filters_from_json
from elmo.errors import ConfigError, FormatError, raise_all
from elmo.formats.containers.state_dict import StateDict, open_state_dict
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage.files import find_member, format_path, list_names, read_json, read_lines
from elmo.text.ids import UnicodeAlphabet, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


Shapes = Mapping[str, tuple[int, ...]]

NAME = "ELMoForManyLangs"
_SPECIAL_WORDS = ("<oov>", "<bos>", "<eos>", "<pad>")
_TOKENS, _ENCODER, _CLASSIFIER = "token_embedder.pkl", "encoder.pkl", "classifier.pkl"
_PUBLISHED = (
    "cnn_50_100_512_4096_sample.json"  # the sample config of EFML, with which the published models were trained
)
_WORD_TABLE = "word_emb_layer.embedding.weight"
_CHAR_TABLE = "char_emb_layer.embedding.weight"
_STACKS = ("forward", "backward")
_MAX_TOKENS = 1 << 19  # maximum number of tokens in a dictionary; EFML builds it from 20 million words of text
_SUPPORTED = "only the 'cnn' token embedder with the 'elmo' encoder is supported"


def can_read(folder: Path) -> bool:
    """Return whether the folder contains weights in the format of EFML."""
    return not {_TOKENS, _ENCODER}.isdisjoint(list_names(folder))


def read(folder: Path) -> Pretrained:
    """Read the model in a folder."""
    tokens = open_state_dict(find_member(folder, _TOKENS))
    encoder = open_state_dict(find_member(folder, _ENCODER))
    if "char_lstm.weight_ih_l0" in tokens.tensors or "encoder.weight_ih_l0" in encoder.tensors:
        raise FormatError(f"{format_path(folder)}: {_SUPPORTED}; found an LSTM")
    arch, origin = _read_architecture(folder, tokens, encoder)
    n_words, n_characters = _n_rows(tokens, _WORD_TABLE), _n_rows(tokens, _CHAR_TABLE)
    try:
        # a missing table is reported below, by its name
        config = _to_config(arch, n_words=n_words or 1, n_characters=n_characters or 1)
    except ConfigError as error:
        raise FormatError(f"{format_path(folder)}: {error}") from error
    raise_all(_find_mismatches(arch, tokens, encoder), subject=f"{format_path(folder)} ({format_path(origin)})")

    characters = {name: i for i, name in enumerate(UnicodeAlphabet.SPECIAL)}
    if arch.char_width:
        characters = _read_dictionary(folder, "char.dic", n_rows=n_characters, special=UnicodeAlphabet.SPECIAL)
    has_classifier = _CLASSIFIER in list_names(folder)
    classifier = open_state_dict(find_member(folder, _CLASSIFIER)) if has_classifier else None
    softmax_names = _softmax_names(classifier, arch)
    n_classes = classifier.shapes[softmax_names[0]][0] if classifier and softmax_names else 0
    ids: dict[str, int] = {}
    has_words = arch.word_width > 0
    if has_words or n_classes:
        n_rows = n_words if has_words else n_classes
        ids = _read_dictionary(folder, "word.dic", n_rows=n_rows, special=_SPECIAL_WORDS)
    words = sorted(ids, key=ids.__getitem__)
    rows = [ids[word] for word in words]
    softmax = None
    if classifier and softmax_names and rows == list(range(n_classes)):
        weight, bias = softmax_names
        softmax = SoftmaxWeights(classifier.read(weight), classifier.read(bias).flatten())
    return Pretrained(
        config=config,
        weights=_read_weights(arch, tokens, encoder, config=config, word_rows=rows if has_words else None),
        format=NAME,
        vocab=Vocabulary(tuple(words), bos="<bos>", eos="<eos>", unknown="<oov>") if has_words or softmax else None,
        characters=characters,
        softmax=softmax,
        metadata={"architecture": origin},
    )


def _read_architecture(folder: Path, tokens: StateDict, encoder: StateDict) -> tuple[EfmlArchitecture, str]:
    """Return the architecture and its origin: a file in the model's folder, or the shapes of the weights.

    The value ``config_path`` in ``config.json`` is the path of the architecture file, in nearly all published folders
    a path on the author's computer. This function opens only files inside the model's folder; it also looks for
    a file with the same name next to ``config.json`` and in ``configs``.
    """
    arguments = read_json(find_member(folder, "config.json"))
    if not isinstance(arguments, dict):
        raise FormatError(f"{format_path(folder / 'config.json')} must be a JSON object; found {arguments!r:.40}")
    path = arguments.get("config_path")
    path = path.replace("\\", "/") if isinstance(path, str) else ""
    name = path.rpartition("/")[2]
    candidates = [] if name in ("", ".", "..") else [name, f"configs/{name}"]
    is_inside = not path.startswith("/") and ":" not in path and ".." not in path.split("/")
    if candidates and is_inside:
        candidates.insert(0, path)
    for candidate in (*candidates, _PUBLISHED, f"configs/{_PUBLISHED}"):
        if candidate != "config.json" and os.path.lexists(folder / candidate):
            values = read_json(find_member(folder, candidate))
            return _parse_architecture(values, format_path(folder / candidate)), candidate
    return _infer_architecture(tokens.shapes, encoder.shapes), "inferred from the shapes of the weights"


def _parse_architecture(values: Any, subject: str) -> EfmlArchitecture:
    """Parse the values of an architecture file; report all problems at once."""
    problems: list[str] = []

    def section(name: str) -> Mapping[str, Any]:
        section = values.get(name) if isinstance(values, dict) else None
        if not isinstance(section, dict):
            problems.append(f"{name} must be a JSON object; found {section!r:.40}")
            return {}
        return section

    def get(section: Mapping[str, Any], key: str, *types: type) -> Any:
        value = section.get(key)
        if key not in section or type(value) not in types:
            actual = f"{value!r:.40}" if key in section else "none"
            names = " or ".join(kind.__name__ for kind in types)
            problems.append(f"expected {key} of type {names}, found {actual}")
            return types[0]()
        return value

    encoder, tokens = section("encoder"), section("token_embedder")
    for part, expected in ((tokens, "cnn"), (encoder, "elmo")):
        if part and str(part.get("name")).lower() != expected:
            problems.append(f"{_SUPPORTED}; found {str(part.get('name'))!r:.40} in place of {expected!r}")
    word_width, char_width = get(tokens, "word_dim", int), get(tokens, "char_dim", int)
    filters: tuple[tuple[int, int], ...] = ()
    n_highway, activation = 0, "relu"
    if char_width > 0:
        n_highway, activation = get(tokens, "n_highway", int), get(tokens, "activation", str)
        try:
            filters = filters_from_json(tokens.get("filters"))
        except ConfigError as error:
            problems.append(str(error))
    arch = EfmlArchitecture(
        word_width=max(word_width, 0),
        char_width=max(char_width, 0),
        filters=filters,
        n_highway=n_highway,
        activation=activation,
        max_characters=get(tokens, "max_characters_per_token", int),
        state_width=get(encoder, "projection_dim", int),
        cell_width=get(encoder, "dim", int),
        n_layers=get(encoder, "n_layers", int),
        # in EFML, 0 means no clipping
        cell_clip=get(encoder, "cell_clip", float, int, type(None)) or None,
        state_clip=get(encoder, "proj_clip", float, int, type(None)) or None,
    )
    if not arch.word_width and not arch.char_width:
        problems.append("char_dim or word_dim must be above 0; found neither")
    raise_all(problems, subject=subject)
    return arch


def _read_dictionary(folder: Path, name: str, *, n_rows: int, special: tuple[str, ...]) -> dict[str, int]:
    r"""Read a dictionary of tokens and their table rows: lines ``token\tid``.

    EFML strips each line and reads a line with a single field as the token U+3000, which stripping removes; this
    function reads such a line in the same way. It strips nothing else, so that a no-break space stays a token, as in
    training. As in EFML, the table has as many rows as there are tokens, in any order; if two tokens share a row,
    another row is unused.
    """
    path = find_member(folder, name)
    ids: dict[str, int] = {}
    problems: list[str] = []
    for number, line in enumerate(read_lines(path, max_lines=min(n_rows + 1, _MAX_TOKENS)), start=1):
        token, _, digits = line.removesuffix("\r").rpartition("\t")
        token = token or "\u3000"
        row = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else -1
        if not 0 <= row < n_rows:
            problems.append(f"line {number}: expected a token, a tab and an id below {n_rows}, found {line!r:.60}")
        elif token in ids:
            problems.append(f"line {number}: {token!r:.40} occurs twice")
        ids[token] = row
        if len(problems) > 20:
            break
    missing = [token for token in special if token not in ids]
    if missing and not problems:
        problems.append(f"missing {', '.join(missing)}")
    if len(ids) != n_rows and not problems:
        problems.append(f"expected {n_rows} tokens, one per row of the table, found {len(ids)}")
    raise_all(problems, subject=format_path(path))
    return ids


def _n_rows(tokens: StateDict, table: str) -> int:
    shape = tokens.shapes.get(table, ())
    return shape[0] if shape else 0


def _softmax_names(classifier: StateDict | None, arch: EfmlArchitecture) -> tuple[str, str] | None:
    """Return the names of weight and bias in EFML's full or sampled softmax; None for any other softmax.

    Also return None if the softmax does not read the top layer: EFML always trains it on the second LSTM layer.
    ``oov_column`` of the sampled softmax is not used, because unknown words have a row in the table.
    """
    shapes = classifier.shapes if classifier is not None and arch.n_layers == 2 else {}
    for weight, bias in (("hidden2tag.weight", "hidden2tag.bias"), ("column_emb.weight", "column_bias.weight")):
        match shapes.get(weight):
            case (n_rows, arch.state_width) if shapes.get(bias) in ((n_rows,), (n_rows, 1)):
                return weight, bias
    return None


# --- weights -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EfmlArchitecture:
    """The content of EFML's architecture file; the defaults are those of every published model."""

    word_width: int = 100  # 0: the model does not read words
    char_width: int = 50  # 0: the model does not read characters
    filters: tuple[tuple[int, int], ...] = CharCnnConfig.filters  # as in the English models
    n_highway: int = 2
    activation: str = "relu"
    max_characters: int = 50
    state_width: int = 512
    cell_width: int = 4096
    n_layers: int = 2
    cell_clip: float | None = 3.0
    state_clip: float | None = 3.0


def _infer_architecture(tokens: Shapes, encoder: Shapes) -> EfmlArchitecture:
    """Infer the architecture from the shapes of the weights; other values are those of the published models."""
    published = EfmlArchitecture()

    def axis(shapes: Shapes, name: str, k: int, default: int) -> int:
        shape = shapes.get(name, ())
        return shape[k] if len(shape) > k else default

    n_filters = _count(tokens, "convolutions.{}.weight", MAX_FILTERS)
    filters = [f"convolutions.{i}.weight" for i in range(n_filters)]
    return EfmlArchitecture(
        word_width=axis(tokens, _WORD_TABLE, 1, 0),
        char_width=axis(tokens, _CHAR_TABLE, 1, 0),
        filters=tuple((axis(tokens, name, 2, 1), axis(tokens, name, 0, 1)) for name in filters),
        n_highway=_count(tokens, "highways._layers.{}.weight", MAX_LAYERS),
        state_width=axis(tokens, "projection.weight", 0, published.state_width),
        cell_width=axis(encoder, "forward_layer_0.state_projection.weight", 1, published.cell_width),
        n_layers=_count(encoder, "forward_layer_{}.input_linearity.weight", MAX_LAYERS) or published.n_layers,
    )


def _to_config(arch: EfmlArchitecture, *, n_words: int, n_characters: int) -> BiLmConfig:
    """Return the config of the biLM; raise ``ConfigError`` if a size is out of range."""
    if arch.cell_width < 1:
        raise ConfigError(f"cell_width must be at least 1; found {arch.cell_width}")
    words = WordConfig(n_words, arch.word_width) if arch.word_width else None
    filters, n_highway = (arch.filters, arch.n_highway) if arch.char_width else ((), 0)
    if not arch.char_width or (words is None and sum(count for _, count in filters) == arch.state_width):
        filters = (*filters, (1, 1))  # the dead filter
    chars = CharCnnConfig(
        n_characters=n_characters if arch.char_width else len(UnicodeAlphabet.SPECIAL),
        char_width=arch.char_width or 1,
        filters=filters,
        n_highway=n_highway,
        activation=arch.activation,  # type: ignore[arg-type]  BiLmConfig checks it
        max_characters=arch.max_characters,
    )
    lstm = LstmConfig(
        n_layers=arch.n_layers,
        cell_width=max(arch.cell_width, arch.state_width + 1),  # additional cells are dead
        state_width=arch.state_width,
        cell_clip=arch.cell_clip,
        state_clip=arch.state_clip,
        has_skip=True,
        forget_bias=0.0,
    )
    return BiLmConfig(chars=chars, words=words, encoder=lstm, alphabet="unicode")


def _find_mismatches(arch: EfmlArchitecture, tokens: StateDict, encoder: StateDict) -> list[str]:
    """List the differences between both weight files and the architecture, which ``_to_config`` has accepted."""
    problems = []
    for file, expected in ((tokens, _token_shapes(arch, tokens.shapes)), (encoder, _encoder_shapes(arch))):
        name = file.path.name
        problems += [f"{name}: missing {key} {shape}" for key, shape in expected.items() if key not in file.tensors]
        problems += [f"{name}: unexpected {key!r:.80}" for key in file.tensors if key not in expected]
        for key, tensor in file.tensors.items():
            if key in expected and tensor.shape != expected[key]:
                problems.append(f"{name}: {key}: expected {expected[key]}, found {tensor.shape}")
            if not tensor.dtype.startswith(("float", "bfloat")):
                problems.append(f"{name}: {key!r:.80}: expected floats, found {tensor.dtype}")
    return problems


def _read_weights(
    arch: EfmlArchitecture,
    tokens: StateDict,
    encoder: StateDict,
    *,
    config: BiLmConfig,
    word_rows: Sequence[int] | None,
) -> dict[str, Tensor]:
    """Read all weights and return them under the names of ``config.parameter_shapes``.

    ``word_rows`` are the indices of the word table's rows, in vocabulary order.
    """
    weights: dict[str, Tensor] = {}
    if word_rows is not None:
        table = tokens.read(_WORD_TABLE)
        if list(word_rows) != list(range(len(table))):
            table = table[list(word_rows)]
        weights["token_layer.word_embed.weight"] = _with_padding(table)
    weights |= _read_cnn(arch, tokens, chars=cast("CharCnnConfig", config.chars))
    for stack in _STACKS:
        for layer in range(arch.n_layers):
            cell = _read_cell(encoder, f"{stack}_layer_{layer}", n_dead=config.lstm.cell_width - arch.cell_width)
            weights |= {f"{stack}_stack.{layer}.{name}": weight for name, weight in cell.items()}
    return weights


def _token_shapes(arch: EfmlArchitecture, stored: Shapes) -> dict[str, tuple[int, ...]]:
    """Return EFML's names and shapes of the token layer; the number of rows of its tables is taken from the file."""
    shapes: dict[str, tuple[int, ...]] = {}
    n_filters = 0
    if arch.word_width:
        shapes[_WORD_TABLE] = (*stored.get(_WORD_TABLE, ())[:1], arch.word_width)
    if arch.char_width:
        n_filters = sum(count for _, count in arch.filters)
        shapes[_CHAR_TABLE] = (*stored.get(_CHAR_TABLE, ())[:1], arch.char_width)
        for i, (width, count) in enumerate(arch.filters):
            shapes[f"convolutions.{i}.weight"] = (count, arch.char_width, width)
            shapes[f"convolutions.{i}.bias"] = (count,)
        for i in range(arch.n_highway):
            shapes[f"highways._layers.{i}.weight"] = (2 * n_filters, n_filters)
            shapes[f"highways._layers.{i}.bias"] = (2 * n_filters,)
    shapes["projection.weight"] = (arch.state_width, arch.word_width + n_filters)
    shapes["projection.bias"] = (arch.state_width,)
    return shapes


def _encoder_shapes(arch: EfmlArchitecture) -> dict[str, tuple[int, ...]]:
    """Return EFML's names and shapes of the LSTMs."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(arch.n_layers):
        for stack in _STACKS:
            name = f"{stack}_layer_{layer}"
            shapes[f"{name}.input_linearity.weight"] = (4 * arch.cell_width, arch.state_width)
            shapes[f"{name}.state_linearity.weight"] = (4 * arch.cell_width, arch.state_width)
            shapes[f"{name}.state_linearity.bias"] = (4 * arch.cell_width,)
            shapes[f"{name}.state_projection.weight"] = (arch.state_width, arch.cell_width)
    return shapes


def _read_cnn(arch: EfmlArchitecture, tokens: StateDict, *, chars: CharCnnConfig) -> dict[str, Tensor]:
    """Read the character CNN and the projection of the token layer.

    A highway layer of EFML is one linear layer with the rows [transform; gate]. Its gate is the weight of the input,
    while the gate of elmo is the weight of the transform. Because σ(−x) = 1 − σ(x), the gate is negated.
    """
    import torch
    from torch.nn.functional import pad

    cnn = "token_layer.cnn"
    n_filters = sum(count for _, count in arch.filters) if arch.char_width else 0
    n_dead = chars.n_filters - n_filters
    weights: dict[str, Tensor] = {}
    for i, (width, count) in enumerate(chars.filters):
        weights[f"{cnn}.convolutions.{i}.weight"] = torch.zeros(count, chars.char_width, width)
        weights[f"{cnn}.convolutions.{i}.bias"] = torch.zeros(count)
    if arch.char_width:
        weights[f"{cnn}.char_embed.weight"] = _with_padding(tokens.read(_CHAR_TABLE))
        for i in range(len(arch.filters)):
            for part in ("weight", "bias"):
                weights[f"{cnn}.convolutions.{i}.{part}"] = tokens.read(f"convolutions.{i}.{part}")
        for i in range(arch.n_highway):
            weight, bias = (tokens.read(f"highways._layers.{i}.{part}") for part in ("weight", "bias"))
            for part, sign, rows in (("transform", 1, slice(n_filters)), ("gate", -1, slice(n_filters, None))):
                weights[f"{cnn}.highways.{i}.{part}.weight"] = sign * pad(weight[rows], (0, n_dead, 0, n_dead))
                weights[f"{cnn}.highways.{i}.{part}.bias"] = sign * pad(bias[rows], (0, n_dead))
    else:
        weights[f"{cnn}.char_embed.weight"] = torch.zeros(chars.n_characters + 1, chars.char_width)
    weights["token_layer.projection.weight"] = pad(tokens.read("projection.weight"), (0, n_dead))
    weights["token_layer.projection.bias"] = tokens.read("projection.bias")
    return weights


def _read_cell(encoder: StateDict, name: str, *, n_dead: int) -> dict[str, Tensor]:
    """Read one LSTM layer; EFML and elmo have the same gate order, and only ``state_linearity`` has a bias."""
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


def _with_padding(table: Tensor) -> Tensor:
    """Add a row of zeros in front of a table, for padding."""
    from torch.nn.functional import pad

    return pad(table, (0, 0, 1, 0))


def _count(shapes: Shapes, pattern: str, limit: int) -> int:
    """Count the names of the form ``pattern`` with numbers 0, 1, …, up to the first that is missing."""
    return next((i for i in range(limit) if pattern.format(i) not in shapes), limit)
