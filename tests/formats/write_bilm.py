"""Write a model as the folder of a bilm-tf training run or of a TF-Hub module."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elmo.formats.pretrained import Pretrained
from tests.formats.write_bundle import write_bundle

CellName = Callable[[int, int, str], str]  # direction, layer, "kernel" | "bias" | "projection" -> name


def bilm_cell(direction: int, layer: int, part: str) -> str:
    """Return the name in TensorFlow 1.2 and later, for several layers."""
    ending = "projection/kernel" if part == "projection" else part
    return f"RNN_{direction}/rnn/multi_rnn_cell/cell_{layer}/lstm_cell/{ending}"


def hub_cell(direction: int, layer: int, part: str) -> str:
    """Return a likely name in a TF-Hub module."""
    ending = "projection/kernel" if part == "projection" else part
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/rnn/lstm_cell/{ending}"


def variables(model: Pretrained, *, scope: str, cell_name: CellName) -> dict[str, np.ndarray]:
    """Return the model's weights as TensorFlow variables."""
    ours = {name: weight.numpy() for name, weight in model.weights.items()}
    found: dict[str, np.ndarray] = {}
    if model.config.words:
        found["embedding"] = ours["token_layer.word_embed.weight"][1:]
    if model.config.chars:
        cnn = "token_layer.cnn"
        found["char_embed"] = ours[f"{cnn}.char_embed.weight"][1:]
        for i in range(len(model.config.chars.filters)):
            found[f"CNN/W_cnn_{i}"] = ours[f"{cnn}.convolutions.{i}.weight"].transpose(2, 1, 0)[None]
            found[f"CNN/b_cnn_{i}"] = ours[f"{cnn}.convolutions.{i}.bias"]
        for i in range(model.config.chars.n_highway):
            for part, name in (("transform", "transform"), ("gate", "carry")):
                found[f"CNN_high_{i}/W_{name}"] = ours[f"{cnn}.highways.{i}.{part}.weight"].T
                found[f"CNN_high_{i}/b_{name}"] = ours[f"{cnn}.highways.{i}.{part}.bias"]
        if model.config.has_token_projection:
            found["CNN_proj/W_proj"] = ours["token_layer.projection.weight"].T
            found["CNN_proj/b_proj"] = ours["token_layer.projection.bias"]
    for direction, stack in enumerate(("forward_stack", "backward_stack")):
        for i in range(model.config.lstm.n_layers):
            both = np.concatenate([ours[f"{stack}.{i}.input_weight"], ours[f"{stack}.{i}.state_weight"]], axis=1)
            in_i, in_f, in_j, in_o = np.split(both, 4)
            found[cell_name(direction, i, "kernel")] = np.concatenate([in_i, in_j, in_f, in_o]).T
            b_i, b_f, b_j, b_o = np.split(ours[f"{stack}.{i}.bias"], 4)
            found[cell_name(direction, i, "bias")] = np.concatenate([b_i, b_j, b_f, b_o])
            if model.config.lstm.has_projection:
                found[cell_name(direction, i, "projection")] = ours[f"{stack}.{i}.projection"].T
    if model.softmax:
        found["softmax/W"] = model.softmax.weight.numpy()
        found["softmax/b"] = model.softmax.bias.numpy()
    return {scope + name: np.ascontiguousarray(array) for name, array in found.items()}


def options(model: Pretrained) -> dict[str, Any]:
    """Return the options of its training run."""
    chars, lstm = model.config.chars, model.config.lstm
    values: dict[str, Any] = {
        "bidirectional": True,
        "lstm": {
            "dim": lstm.cell_width,
            "projection_dim": lstm.state_width,
            "n_layers": lstm.n_layers,
            "cell_clip": lstm.cell_clip,
            "proj_clip": lstm.state_clip,
            "use_skip_connections": lstm.has_skip,
        },
        "n_tokens_vocab": len(model.vocab.words) if model.vocab else 0,
        "dropout": 0.1,
    }
    if chars:
        values["char_cnn"] = {
            "activation": chars.activation,
            "embedding": {"dim": chars.char_width},
            "filters": [list(pair) for pair in chars.filters],
            "n_highway": chars.n_highway,
            "n_characters": 261,
            "max_characters_per_token": chars.max_characters,
        }
    return values


def write_training_folder(
    folder: Path,
    model: Pretrained,
    *,
    step: int = 7,
    cell_name: CellName = bilm_cell,
    without: tuple[str, ...] = (),
    more: dict[str, np.ndarray] | None = None,
    **how: Any,  # of write_bundle
) -> None:
    """Write options, vocabulary, TensorFlow's record and the checkpoint with its Adagrad slots."""
    tensors = variables(model, scope="lm/", cell_name=cell_name)
    tensors |= {f"{name}/Adagrad": np.ones_like(array) for name, array in tensors.items()}
    tensors["global_step"] = np.array(step, dtype=np.int64)
    tensors["train_perplexity"] = np.array(41.5, dtype=np.float32)
    tensors |= more or {}
    tensors = {name: array for name, array in tensors.items() if name not in without}
    write_bundle(folder, f"model.ckpt-{step}", tensors, **how)
    (folder / "options.json").write_text(json.dumps(options(model)))
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "/home/author/run/model.ckpt-{step}"\n')
    if model.vocab:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in model.vocab.words), encoding="utf-8")


def write_hub_folder(
    folder: Path,
    model: Pretrained,
    *,
    scope: str = "bilm/",
    cell_name: CellName = hub_cell,
    without: tuple[str, ...] = (),
    more: dict[str, np.ndarray] | None = None,
    **how: Any,
) -> None:
    """Write variables and a graph that is never read."""
    tensors = variables(model, scope=scope, cell_name=cell_name)
    if model.mix:
        tensors["aggregation/weights"] = np.array(model.mix.weights, dtype=np.float32)
        tensors["aggregation/scaling"] = np.array(model.mix.gamma, dtype=np.float32)
    tensors |= more or {}
    tensors = {name: array for name, array in tensors.items() if name not in without}
    write_bundle(folder, "variables/variables", tensors, **how)
    (folder / "saved_model.pb").write_bytes(b"\x08\x01")
