"""Write a transformer ELMo as AllenNLP 0.9 does, for tests of the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch

from elmo.config import CharCnnConfig, TransformerConfig
from elmo.formats.pretrained import Pretrained
from elmo.model.transformer import encode_positions

SoftmaxForm = Literal["sparse", "dense", "transposed", "none"]


def options(model: Pretrained, *, softmax: SoftmaxForm = "sparse") -> dict[str, Any]:
    """Return the values of ``config.json``."""
    chars, transformer = model.config.chars, model.config.encoder
    assert isinstance(chars, CharCnnConfig)
    assert isinstance(transformer, TransformerConfig)
    encoder = {
        "type": "cnn-highway",
        "activation": chars.activation,
        "embedding_dim": chars.char_width,
        "filters": [list(pair) for pair in chars.filters],
        "num_highway": chars.n_highway,
        "projection_dim": transformer.state_width,
        "projection_location": "after_highway" if chars.highway_width is None else "after_cnn",
        "do_layer_norm": chars.has_norm,
    }
    if not model.config.has_token_projection and chars.highway_width is None:
        encoder["projection_location"] = None
    characters = {
        "type": "character_encoding",
        "embedding": {"embedding_dim": chars.char_width, "num_embeddings": 262},
        "encoder": encoder,
    }
    return {
        "dataset_reader": {
            "type": "multiprocess",
            "base_reader": {
                "type": "simple_language_modeling",
                "token_indexers": {"characters": {"type": "elmo_characters"}, "tokens": {"type": "single_id"}},
            },
        },
        "model": {
            "type": "language_model",
            "bidirectional": True,
            "contextualizer": {
                "type": "bidirectional_language_model_transformer",
                "hidden_dim": transformer.feed_forward_width,
                "input_dim": transformer.state_width,
                "num_layers": transformer.n_layers,
            },
            "num_samples": None if softmax == "transposed" else 8,
            "sparse_embeddings": softmax == "sparse",
            "text_field_embedder": {"allow_unmatched_keys": True, "token_embedders": {"characters": characters}},
        },
        "trainer": {"num_epochs": 10},
    }


def state_dict(model: Pretrained, *, softmax: SoftmaxForm = "sparse") -> dict[str, torch.Tensor]:
    """Return the tensors of ``weights.th`` under AllenNLP's names."""
    width = model.config.encoder.state_width
    embedder = "_text_field_embedder.token_embedder_characters"
    encoder = f"{embedder}._encoder._module"
    renamed = {
        "token_layer.cnn.char_embed": f"{embedder}._embedding._module",
        "token_layer.cnn.projection": f"{encoder}._projection",
        "token_layer.projection": f"{encoder}._projection",
        "token_layer.norm": f"{encoder}._layer_norm",
        "token_layer.cnn.convolutions.": f"{encoder}.char_conv_",
        "forward_stack": "_contextualizer._forward_transformer.layers",
        "backward_stack": "_contextualizer._backward_transformer.layers",
        "attention_norm": "sublayer.0.norm",
        "feed_forward_norm": "sublayer.1.norm",
        ".query": ".self_attn.linears.0",
        ".key": ".self_attn.linears.1",
        ".value": ".self_attn.linears.2",
        ".context": ".self_attn.linears.3",
        ".hidden": ".feed_forward.w_1",
        ".output.": ".feed_forward.w_2.",
        f"layers.{model.config.encoder.n_layers - 1}.output_norm": "norm",
    }
    stored: dict[str, torch.Tensor] = {"_last_average_loss": torch.zeros(1)}
    n_filters = model.config.chars.n_filters if model.config.chars else 0
    stored[f"{encoder}._projection.weight"] = torch.zeros(width, n_filters)
    stored[f"{encoder}._projection.bias"] = torch.zeros(width)
    for name, weight in model.weights.items():
        if "highways" in name:
            continue
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)  # noqa: PLW2901
        stored[name] = weight
    for i in range(model.config.chars.n_highway if model.config.chars else 0):
        for part in ("weight", "bias"):
            highway = f"token_layer.cnn.highways.{i}"
            transform, gate = (model.weights[f"{highway}.{half}.{part}"] for half in ("transform", "gate"))
            stored[f"{encoder}._highways._layers.{i}.{part}"] = torch.cat([transform, -gate])
    stored["_contextualizer._position.positional_encoding"] = encode_positions(50, like=torch.zeros(width))[None]
    if model.softmax is not None and softmax != "none":
        unused = torch.ones(1, width)
        weight = torch.cat([model.softmax.weight, unused])
        bias = torch.cat([model.softmax.bias, torch.ones(1)])
        if softmax == "sparse":
            stored |= {"_softmax_loss.softmax_w.weight": weight, "_softmax_loss.softmax_b.weight": bias[:, None]}
        else:
            weight = weight.t().contiguous() if softmax == "transposed" else weight
            stored |= {"_softmax_loss.softmax_w": weight, "_softmax_loss.softmax_b": bias}
    return stored


def write_folder(folder: Path, model: Pretrained, *, is_zipped: bool = True, softmax: SoftmaxForm = "sparse") -> Path:
    """Write ``config.json``, ``weights.th`` and ``vocabulary``."""
    (folder / "vocabulary").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(options(model, softmax=softmax)))
    torch.save(state_dict(model, softmax=softmax), folder / "weights.th", _use_new_zipfile_serialization=is_zipped)
    (folder / "vocabulary" / "non_padded_namespaces.txt").write_text("*tags\n*labels\n")
    if model.vocab is not None:
        lines = [word.replace("\n", "@@NEWLINE@@") for word in model.vocab.words]
        (folder / "vocabulary" / "tokens.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder
