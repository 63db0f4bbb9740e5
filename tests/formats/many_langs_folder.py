"""Write tiny EFML folders with random weights, and compute their vectors slowly from EFML's equations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CHARACTERS = ("<oov>", "<bos>", "<eos>", "<bow>", "<eow>", "<pad>", *"abcdeknr", "é", "河", "\u3000")
WORDS = ("<oov>", "<bos>", "<eos>", "<pad>", "bank", "de", "河", "é", "a" * 48, "\u3000")
FILTERS = ((1, 2), (2, 3), (3, 4))

Weights = dict[str, dict[str, Tensor]]


def architecture(
    *, word: int = 5, char: int = 4, state: int = 6, cell: int = 8, n_layers: int = 2, n_highway: int = 2, **other: Any
) -> dict[str, Any]:
    """Return the content of EFML's architecture file; ``other`` overrides values by name."""
    encoder = {
        "name": "elmo", "projection_dim": state, "dim": cell, "n_layers": n_layers,
        "cell_clip": 3, "proj_clip": 3,
    }  # fmt: skip
    tokens = {
        "name": "cnn", "activation": "relu", "filters": [list(pair) for pair in FILTERS],
        "n_highway": n_highway, "word_dim": word, "char_dim": char, "max_characters_per_token": 50,
    }  # fmt: skip
    for part in (encoder, tokens):
        part.update({name: value for name, value in other.items() if name in part})
    return {"encoder": encoder, "token_embedder": tokens, "classifier": {"name": "sampled_softmax"}, "dropout": 0.1}


def random_weights(
    values: dict[str, Any], *, n_words: int = len(WORDS), n_characters: int = len(CHARACTERS), seed: int = 0
) -> Weights:
    """Return a state dict for each of EFML's files."""
    generator = torch.Generator().manual_seed(seed)
    tokens, encoder = values["token_embedder"], values["encoder"]
    state, cell = encoder["projection_dim"], encoder["dim"]
    token_shapes: dict[str, tuple[int, ...]] = {}
    width = tokens["word_dim"]
    if tokens["word_dim"]:
        token_shapes["word_emb_layer.embedding.weight"] = (n_words, width)
    if tokens["char_dim"]:
        token_shapes["char_emb_layer.embedding.weight"] = (n_characters, tokens["char_dim"])
        for i, (size, count) in enumerate(tokens["filters"]):
            token_shapes[f"convolutions.{i}.weight"] = (count, tokens["char_dim"], size)
            token_shapes[f"convolutions.{i}.bias"] = (count,)
        n_filters = sum(count for _, count in tokens["filters"])
        for i in range(tokens["n_highway"]):
            token_shapes[f"highways._layers.{i}.weight"] = (2 * n_filters, n_filters)
            token_shapes[f"highways._layers.{i}.bias"] = (2 * n_filters,)
        width += n_filters
    token_shapes |= {"projection.weight": (state, width), "projection.bias": (state,)}
    encoder_shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(encoder["n_layers"]):
        for stack in ("forward", "backward"):
            name = f"{stack}_layer_{layer}"
            encoder_shapes[f"{name}.input_linearity.weight"] = (4 * cell, state)
            encoder_shapes[f"{name}.state_linearity.weight"] = (4 * cell, state)
            encoder_shapes[f"{name}.state_linearity.bias"] = (4 * cell,)
            encoder_shapes[f"{name}.state_projection.weight"] = (state, cell)
    return {
        file: {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}
        for file, shapes in (("token_embedder.pkl", token_shapes), ("encoder.pkl", encoder_shapes))
    }


def write_folder(
    folder: Path,
    values: dict[str, Any] | None = None,
    *,
    weights: Weights | None = None,
    is_zipped: bool = False,
    is_architecture_there: bool = True,
    words: Sequence[str] = WORDS,
    characters: Sequence[str] = CHARACTERS,
) -> Path:
    """Write the files of EFML's training; published folders have no zip files and no architecture."""
    values = values or architecture()
    folder.mkdir(parents=True, exist_ok=True)
    for file, tensors in (weights or random_weights(values)).items():
        torch.save(tensors, folder / file, _use_new_zipfile_serialization=is_zipped)
    write_dictionary(folder / "word.dic", words)
    write_dictionary(folder / "char.dic", characters)
    (folder / "config.json").write_text(json.dumps({"config_path": "/home/author/efml/tiny.json", "seed": 1}))
    if is_architecture_there:
        (folder / "tiny.json").write_text(json.dumps(values))
    return folder


def write_dictionary(path: Path, tokens: Sequence[str]) -> None:
    """Write the tokens in reverse order of ids: the order of lines has no meaning."""
    lines = [f"{token}\t{i}\n" for i, token in enumerate(tokens)]
    path.write_bytes("".join(reversed(lines)).encode())


def slow_vectors(values: dict[str, Any], weights: Weights, tokens: Sequence[str]) -> Tensor:
    """Compute the layers of a sentence (layer, time, width), one token, gate and layer at a time."""
    options = values["token_embedder"]
    word_ids = {word: i for i, word in enumerate(WORDS)}
    char_ids = {character: i for i, character in enumerate(CHARACTERS)}
    named = weights["token_embedder.pkl"]
    inputs = []
    for token in ("<bos>", *tokens, "<eos>"):
        cut = token[: options["max_characters_per_token"] - 2]
        parts = []
        if options["word_dim"]:
            parts.append(named["word_emb_layer.embedding.weight"][word_ids.get(cut, word_ids["<oov>"])])
        if options["char_dim"]:
            inner = [cut] if cut in ("<bos>", "<eos>") else list(cut)
            row = [char_ids["<eow>"], *(char_ids.get(c, char_ids["<oov>"]) for c in inner), char_ids["<bow>"]]
            row += [char_ids["<pad>"]] * (options["max_characters_per_token"] - len(row))
            parts.append(_slow_cnn(options, named, named["char_emb_layer.embedding.weight"][row].T))
        inputs.append(named["projection.weight"] @ torch.cat(parts) + named["projection.bias"])
    layers = [torch.cat([torch.stack(inputs)] * 2, dim=1)]
    forward, backward = inputs, inputs
    for layer in range(values["encoder"]["n_layers"]):
        new_forward = _slow_lstm(values, weights, f"forward_layer_{layer}", forward)
        new_backward = _slow_lstm(values, weights, f"backward_layer_{layer}", backward[::-1])[::-1]
        if layer:
            new_forward = [new + old for new, old in zip(new_forward, forward, strict=True)]
            new_backward = [new + old for new, old in zip(new_backward, backward, strict=True)]
        forward, backward = new_forward, new_backward
        layers.append(torch.cat([torch.stack(forward), torch.stack(backward)], dim=1))
    return torch.stack(layers)[:, 1:-1]


def _slow_cnn(options: dict[str, Any], named: dict[str, Tensor], characters: Tensor) -> Tensor:
    """Compute the features of a token from its characters (width, char)."""
    features = []
    for i, (size, _) in enumerate(options["filters"]):
        weight, bias = named[f"convolutions.{i}.weight"], named[f"convolutions.{i}.bias"]
        windows = characters.unfold(1, size, 1)  # (width, position, char)
        pooled = torch.einsum("nwc,wpc->np", weight, windows).amax(1) + bias
        features.append(pooled.relu() if options["activation"] == "relu" else pooled.tanh())
    x = torch.cat(features)
    for i in range(options["n_highway"]):
        both = named[f"highways._layers.{i}.weight"] @ x + named[f"highways._layers.{i}.bias"]
        transform, keep = both.chunk(2)
        x = keep.sigmoid() * x + (1 - keep.sigmoid()) * transform.relu()
    return x


def _slow_lstm(values: dict[str, Any], weights: Weights, name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
    named, encoder = weights["encoder.pkl"], values["encoder"]
    h, c = torch.zeros(encoder["projection_dim"]), torch.zeros(encoder["dim"])
    states = []
    for x in inputs:
        gates = named[f"{name}.input_linearity.weight"] @ x + named[f"{name}.state_linearity.weight"] @ h
        i, f, j, o = (gates + named[f"{name}.state_linearity.bias"]).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * j.tanh()
        if encoder["cell_clip"]:
            c = c.clamp(-encoder["cell_clip"], encoder["cell_clip"])
        h = named[f"{name}.state_projection.weight"] @ (o.sigmoid() * c.tanh())
        if encoder["proj_clip"]:
            h = h.clamp(-encoder["proj_clip"], encoder["proj_clip"])
        states.append(h)
    return states
