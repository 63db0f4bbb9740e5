"""Read a transformer ELMo that was trained with AllenNLP: the folder or ``model.tar.gz`` of its ``language_model``.

``config.json`` is the configuration of the training, ``weights.th`` contains the weights of the network and of the
softmax, and ``vocabulary/tokens.txt`` the words of the softmax. Only bidirectional models that read ELMo's characters
with a ``bidirectional_language_model_transformer`` are supported.

In AllenNLP, the ids of words start with padding, which is never a target, and the softmax has a row for each id. Row k
predicts word k of the file, so the last row predicts nothing. It is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elmo.config import (
    MAX_LAYERS,
    MAX_WIDTH,
    BiLmConfig,
    CharCnnConfig,
    TransformerConfig,
    filters_from_json,
    parameter_shapes,
)
from elmo.errors import ConfigError, FormatError, raise_all
from elmo.formats.bilm_layout import OptionFields
from elmo.formats.containers.state_dict import StateDict, open_state_dict
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.storage.files import find_member, format_path, list_names, read_json, read_lines
from elmo.text.ids import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

NAME = "AllenNLP transformer"
N_CHARACTERS = 261  # of ELMo; a table has one more row, for the mask
N_HEADS = 8  # AllenNLP has no option for it
_CONFIG, _WEIGHTS, _VOCABULARY = "config.json", "weights.th", "vocabulary"
_UNKNOWN, _NEWLINE = "@@UNKNOWN@@", "@@NEWLINE@@"
_MODELS = ("language_model", "bidirectional_language_model", "bidirectional-language-model")
_PLACES = ("after_highway", "after_cnn", None)
_POSITIONS = "_contextualizer._position.positional_encoding"
_POSITION_TOLERANCE = 1e-3  # exponentials of other CPUs differ in the last bit, which the highest positions multiply
_SPARSE_SOFTMAX = ("_softmax_loss.softmax_w.weight", "_softmax_loss.softmax_b.weight")
_DENSE_SOFTMAX = ("_softmax_loss.softmax_w", "_softmax_loss.softmax_b")
_UNUSED = (_POSITIONS, "_last_average_loss", *_SPARSE_SOFTMAX, *_DENSE_SOFTMAX)  # checked elsewhere, or without use
_LAYER_PARTS = {
    "query": "self_attn.linears.0",
    "key": "self_attn.linears.1",
    "value": "self_attn.linears.2",
    "context": "self_attn.linears.3",
    "hidden": "feed_forward.w_1",
    "output": "feed_forward.w_2",
    "attention_norm": "sublayer.0.norm",
    "feed_forward_norm": "sublayer.1.norm",
}


def can_read(folder: Path) -> bool:
    """Return whether the folder contains the files of an AllenNLP archive."""
    return {_CONFIG, _WEIGHTS} <= set(list_names(folder))


def read(folder: Path) -> Pretrained:
    """Read the model in a folder."""
    path = find_member(folder, _CONFIG)
    values = read_json(path)
    options = _parse_options(values, subject=format_path(path))
    stored = open_state_dict(find_member(folder, _WEIGHTS))
    vocab = _read_vocabulary(folder)
    _check_shapes(stored, options, n_words=None if vocab is None else len(vocab))
    _check_positions(stored, options.config.encoder.state_width)
    return Pretrained(
        config=options.config,
        weights=_read_weights(stored, options),
        format=NAME,
        vocab=vocab,
        softmax=None if vocab is None else _read_softmax(stored, options, n_words=len(vocab)),
        metadata={"allennlp": {key: values[key] for key in ("dataset_reader", "trainer") if key in values}},
    )


def _read_vocabulary(folder: Path) -> Vocabulary | None:
    """Read the words of the softmax, in the order of its rows; None if there are none."""
    if _VOCABULARY not in list_names(folder) or "tokens.txt" not in list_names(folder / _VOCABULARY):
        return None
    lines = read_lines(find_member(folder, f"{_VOCABULARY}/tokens.txt"))
    return Vocabulary(tuple(line.replace(_NEWLINE, "\n") for line in lines), unknown=_UNKNOWN)


# --- config.json ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class AllenNlpOptions:
    """What ``config.json`` says about the network.

    Attributes:
        config: Sizes of the network.
        embedder: Name of the embedder of characters, which is part of the names of its weights.
        projection_width: Width of the projection of the character CNN, which has weights even if it is not used.
        is_sampled: Whether the softmax was trained with samples; without, its matrix is stored as (width, word).
    """

    config: BiLmConfig
    embedder: str
    projection_width: int
    is_sampled: bool

    @property
    def characters(self) -> CharCnnConfig:
        """The character CNN, which all supported models have."""
        return cast("CharCnnConfig", self.config.chars)

    @property
    def module(self) -> str:
        """Name of the module that embeds characters."""
        return f"_text_field_embedder.token_embedder_{self.embedder}"


def _parse_options(values: Any, *, subject: str) -> AllenNlpOptions:
    """Parse ``config.json``; one ``FormatError`` lists every problem in it."""
    problems: list[str] = []
    top = OptionFields(values, "", problems)
    raise_all(problems, subject=subject)
    model = top.section("model")
    if model.choice("type", _MODELS) == _MODELS[0] and not model.boolean("bidirectional"):
        problems.append("model.bidirectional: expected true, found another value; only biLMs are supported")
    contextualizer = model.section("contextualizer")
    contextualizer.choice("type", ("bidirectional_language_model_transformer",))
    transformer = TransformerConfig(
        n_layers=contextualizer.integer("num_layers", 1, MAX_LAYERS),
        state_width=contextualizer.integer("input_dim", 1, MAX_WIDTH),
        n_heads=N_HEADS,
        feed_forward_width=contextualizer.integer("hidden_dim", 1, MAX_WIDTH),
    )
    embedders = model.section("text_field_embedder").section("token_embedders")
    if len(embedders.values) != 1:
        embedder = "token_characters"
        problems.append(f"{embedders.prefix.rstrip('.')}: expected one embedder, found {len(embedders.values)}")
    else:
        embedder = next(iter(embedders.values))
    characters = embedders.section(embedder)
    characters.choice("type", ("character_encoding",))
    _check_indexer(top, embedder)
    encoder = characters.section("encoder")
    encoder.choice("type", ("cnn-highway",))
    embedding = characters.section("embedding")
    embedding.integer("num_embeddings", N_CHARACTERS + 1, N_CHARACTERS + 1)
    place = encoder.choice("projection_location", _PLACES, default="after_highway")
    projection_width = encoder.integer("projection_dim", 1, MAX_WIDTH)
    filters = ((1, 1),)
    try:
        filters = filters_from_json(encoder.values.get("filters"))
    except ConfigError as error:
        problems.append(f"{encoder.prefix}{error}")
    char_width = embedding.integer("embedding_dim", 1, MAX_WIDTH)
    chars = CharCnnConfig(
        n_characters=N_CHARACTERS,
        char_width=char_width,
        filters=filters,
        n_highway=encoder.integer("num_highway", 0, MAX_LAYERS),
        activation=cast("Any", encoder.choice("activation", ("relu", "tanh"), default="relu")),
        highway_width=projection_width if place == "after_cnn" else None,
        has_norm=encoder.boolean("do_layer_norm"),
    )
    width = chars.n_filters if place is None else projection_width
    if width != transformer.state_width:
        problems.append(
            f"{contextualizer.prefix}input_dim: expected {width}, the width of a token, found {transformer.state_width}"
        )
    if place == "after_highway" and projection_width == chars.n_filters:
        problems.append(f"{encoder.prefix}projection_dim: a projection must change the width; found {projection_width}")
    raise_all(problems, subject=subject)
    return AllenNlpOptions(
        BiLmConfig(chars=chars, words=None, encoder=transformer),
        embedder=embedder,
        projection_width=projection_width,
        is_sampled=model.values.get("num_samples") is not None,
    )


def _check_indexer(top: OptionFields, embedder: str) -> None:
    """Check that the characters are those of ELMo, if the reader of the training text is part of the config."""
    reader = top.values.get("dataset_reader")
    if isinstance(reader, dict) and reader.get("type") == "multiprocess":
        reader = reader.get("base_reader")
    indexers = reader.get("token_indexers") if isinstance(reader, dict) else None
    if not isinstance(indexers, dict):
        return
    indexer = indexers.get(embedder)
    if not isinstance(indexer, dict) or indexer.get("type") != "elmo_characters" or indexer.get("tokens_to_add"):
        top.problems.append(
            f"dataset_reader.token_indexers.{embedder:.40}: expected the type elmo_characters without tokens_to_add, "
            f"found {indexer!r:.80}"
        )


# --- weights.th ----------------------------------------------------------------------------------


def _stored_names(options: AllenNlpOptions) -> dict[str, str]:
    """Return AllenNLP's name of each weight, except the highway layers, whose two parts are one matrix."""
    encoder = f"{options.module}._encoder._module"
    modules = {
        "token_layer.cnn.char_embed": f"{options.module}._embedding._module",
        "token_layer.cnn.projection": f"{encoder}._projection",
        "token_layer.projection": f"{encoder}._projection",
        "token_layer.norm": f"{encoder}._layer_norm",
    }
    for i in range(len(options.characters.filters)):
        modules[f"token_layer.cnn.convolutions.{i}"] = f"{encoder}.char_conv_{i}"
    n_layers = options.config.encoder.n_layers
    for direction in ("forward", "backward"):
        stack = f"_contextualizer._{direction}_transformer"
        for i in range(n_layers):
            for part, stored in _LAYER_PARTS.items():
                modules[f"{direction}_stack.{i}.{part}"] = f"{stack}.layers.{i}.{stored}"
        modules[f"{direction}_stack.{n_layers - 1}.output_norm"] = f"{stack}.norm"
    parts = {name: name.rpartition(".") for name in parameter_shapes(options.config)}
    return {name: f"{modules[module]}.{part}" for name, (module, _, part) in parts.items() if module in modules}


def _check_shapes(stored: StateDict, options: AllenNlpOptions, *, n_words: int | None) -> None:
    """Compare the tensors of the file with those of the network; one ``FormatError`` lists every mismatch."""
    shapes, width = parameter_shapes(options.config), options.characters.width
    expected = {name: shapes[ours] for ours, name in _stored_names(options).items()}
    encoder = f"{options.module}._encoder._module"
    for i in range(options.characters.n_highway):
        expected[f"{encoder}._highways._layers.{i}.weight"] = (2 * width, width)
        expected[f"{encoder}._highways._layers.{i}.bias"] = (2 * width,)
    expected[f"{encoder}._projection.weight"] = (options.projection_width, options.characters.n_filters)
    expected[f"{encoder}._projection.bias"] = (options.projection_width,)
    if n_words is not None:
        n_rows, state = n_words + 1, options.config.encoder.state_width
        if _SPARSE_SOFTMAX[0] in stored.tensors:
            expected |= dict(zip(_SPARSE_SOFTMAX, ((n_rows, state), (n_rows, 1)), strict=True))
        elif _DENSE_SOFTMAX[0] in stored.tensors:
            weight_shape = (n_rows, state) if options.is_sampled else (state, n_rows)
            expected |= dict(zip(_DENSE_SOFTMAX, (weight_shape, (n_rows,)), strict=True))
    problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in stored.tensors]
    problems += [f"unexpected {name!r:.80}" for name in stored.tensors if name not in expected and name not in _UNUSED]
    for name, shape in expected.items():
        if name in stored.tensors and stored.shapes[name] != shape:
            problems.append(f"{name}: expected {shape}, found {stored.shapes[name]}")
    raise_all(problems, subject=format_path(stored.path))


def _check_positions(stored: StateDict, width: int) -> None:
    """Check that a stored table of positions contains the sines and cosines that the network computes."""
    import torch

    from elmo.model.transformer import encode_positions

    if _POSITIONS not in stored.tensors:
        return
    subject, shape = f"{format_path(stored.path)}: {_POSITIONS}", stored.shapes[_POSITIONS]
    if len(shape) != 3 or shape[0] != 1 or shape[2] != width:
        raise FormatError(f"{subject}: expected shape (1, any, {width}), found {shape}")
    table = stored.read(_POSITIONS)[0]
    if not torch.allclose(table, encode_positions(len(table), like=table), rtol=0, atol=_POSITION_TOLERANCE):
        raise FormatError(f"{subject}: expected sines and cosines of positions, found other values")


def _read_weights(stored: StateDict, options: AllenNlpOptions) -> dict[str, Tensor]:
    """Read all weights; return them under the names of ``config.parameter_shapes``.

    As in ELMoForManyLangs, the matrix of a highway layer has the rows [transform; gate], and its gate is the weight of
    the input. The gate of elmo is the weight of the transform, so the stored one is negated: σ(−x) = 1 − σ(x).
    """
    weights = {ours: stored.read(name) for ours, name in _stored_names(options).items()}
    weights["token_layer.cnn.char_embed.weight"][0] = 0  # the mask
    for i in range(options.characters.n_highway):
        for part in ("weight", "bias"):
            joined = stored.read(f"{options.module}._encoder._module._highways._layers.{i}.{part}")
            transform, gate = joined.chunk(2)
            weights[f"token_layer.cnn.highways.{i}.transform.{part}"] = transform.contiguous()
            weights[f"token_layer.cnn.highways.{i}.gate.{part}"] = -gate
    return weights


def _read_softmax(stored: StateDict, options: AllenNlpOptions, *, n_words: int) -> SoftmaxWeights | None:
    """Read the rows of the softmax that predict words, if the file has a softmax."""
    for weight_name, bias_name in (_SPARSE_SOFTMAX, _DENSE_SOFTMAX):
        if weight_name in stored.tensors:
            weight, bias = stored.read(weight_name), stored.read(bias_name)
            if weight_name == _DENSE_SOFTMAX[0] and not options.is_sampled:
                weight = weight.t().contiguous()
            return SoftmaxWeights(weight[:n_words], bias.flatten()[:n_words])
    return None
