"""Write models with random weights in the format of bilm-tf and AllenNLP: DIR/small, DIR/original, DIR/transformer.

usage: make_models.py DIR     (with the Python of the allennlp peer)

Neither speed nor the agreement between systems depends on the values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np

FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
N_FILTERS = sum(count for _, count in FILTERS)
CHAR_WIDTH = 16


def write_model(folder: Path, *, n_highway: int, cell: int, projection: int) -> None:
    """Write ``options.json`` and ``weights.hdf5``; the same arguments give the same numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "lstm": {
            "use_skip_connections": True,
            "projection_dim": projection,
            "cell_clip": 3,
            "proj_clip": 3,
            "dim": cell,
            "n_layers": 2,
        },
        "char_cnn": {
            "activation": "relu",
            "filters": FILTERS,
            "n_highway": n_highway,
            "embedding": {"dim": CHAR_WIDTH},
            "n_characters": 262,
            "max_characters_per_token": 50,
        },
    }
    (folder / "options.json").write_text(json.dumps(options))
    random = np.random.default_rng(0)

    def normal(*shape: int, scale: float) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    with h5py.File(folder / "weights.hdf5", "w") as file:
        file["char_embed"] = random.uniform(-1, 1, (261, CHAR_WIDTH)).astype(np.float32)
        for i, (width, count) in enumerate(FILTERS):
            scale = (width * CHAR_WIDTH) ** -0.5
            file[f"CNN/W_cnn_{i}"] = normal(1, width, CHAR_WIDTH, count, scale=scale)
            file[f"CNN/b_cnn_{i}"] = normal(count, scale=0.1)
        for i in range(n_highway):
            for gate, bias in (("carry", -2.0), ("transform", 0.0)):
                file[f"CNN_high_{i}/W_{gate}"] = normal(N_FILTERS, N_FILTERS, scale=N_FILTERS**-0.5)
                file[f"CNN_high_{i}/b_{gate}"] = normal(N_FILTERS, scale=0.1) + np.float32(bias)
        file["CNN_proj/W_proj"] = normal(N_FILTERS, projection, scale=N_FILTERS**-0.5)
        file["CNN_proj/b_proj"] = normal(projection, scale=0.1)
        for direction in range(2):
            for layer in range(2):
                group = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                input_scale = 1.6 * (2 * projection) ** -0.5
                file[f"{group}/W_0"] = normal(2 * projection, 4 * cell, scale=input_scale)
                file[f"{group}/B"] = normal(4 * cell, scale=0.1)
                file[f"{group}/W_P_0"] = normal(cell, projection, scale=1.6 * cell**-0.5)


def write_transformer(folder: Path, *, width: int, n_layers: int, hidden: int, n_highway: int = 2) -> None:
    """Write ``config.json`` and ``weights.th`` as AllenNLP does for its transformer, without a softmax."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    encoder = {
        "type": "cnn-highway",
        "activation": "relu",
        "embedding_dim": CHAR_WIDTH,
        "filters": FILTERS,
        "num_highway": n_highway,
        "projection_dim": width,
        "projection_location": "after_highway",
        "do_layer_norm": True,
    }
    embedding = {"num_embeddings": 262, "embedding_dim": CHAR_WIDTH}
    embedder = {"type": "character_encoding", "embedding": embedding, "encoder": encoder}
    contextualizer = {
        "type": "bidirectional_language_model_transformer",
        "input_dim": width,
        "hidden_dim": hidden,
        "num_layers": n_layers,
    }
    model = {
        "type": "language_model",
        "bidirectional": True,
        "contextualizer": contextualizer,
        "text_field_embedder": {"token_embedders": {"token_characters": embedder}},
    }
    (folder / "config.json").write_text(json.dumps({"model": model}))
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}

    def add(name: str, *shape: int, mean: float = 0.0, scale: float = 0.1) -> None:
        weights[name] = torch.randn(shape, generator=generator) * scale + mean

    def add_linear(name: str, n_out: int, n_in: int) -> None:
        add(f"{name}.weight", n_out, n_in, scale=n_in**-0.5)
        add(f"{name}.bias", n_out)

    def add_norm(name: str) -> None:
        add(f"{name}.gamma", width, mean=1.0)
        add(f"{name}.beta", width)

    prefix = "_text_field_embedder.token_embedder_token_characters"
    add(f"{prefix}._embedding._module.weight", 262, CHAR_WIDTH, scale=1.0)
    cnn = f"{prefix}._encoder._module"
    for i, (length, count) in enumerate(FILTERS):
        add(f"{cnn}.char_conv_{i}.weight", count, CHAR_WIDTH, length, scale=(length * CHAR_WIDTH) ** -0.5)
        add(f"{cnn}.char_conv_{i}.bias", count)
    for i in range(n_highway):
        add_linear(f"{cnn}._highways._layers.{i}", 2 * N_FILTERS, N_FILTERS)
    add_linear(f"{cnn}._projection", width, N_FILTERS)
    add_norm(f"{cnn}._layer_norm")
    for direction in ("forward", "backward"):
        stack = f"_contextualizer._{direction}_transformer"
        for i in range(n_layers):
            for k in range(4):
                add_linear(f"{stack}.layers.{i}.self_attn.linears.{k}", width, width)
            add_linear(f"{stack}.layers.{i}.feed_forward.w_1", hidden, width)
            add_linear(f"{stack}.layers.{i}.feed_forward.w_2", width, hidden)
            for k in range(2):
                add_norm(f"{stack}.layers.{i}.sublayer.{k}.norm")
        add_norm(f"{stack}.norm")
    angles = torch.arange(5000)[:, None].float() * torch.exp(
        torch.arange(0, width, 2).float() * -(np.log(10000.0) / width)
    )
    table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
    weights["_contextualizer._position.positional_encoding"] = table[None]
    torch.save(weights, folder / "weights.th")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    write_model(root / "small", n_highway=1, cell=1024, projection=128)
    write_model(root / "original", n_highway=2, cell=4096, projection=512)
    write_transformer(root / "transformer", width=512, n_layers=6, hidden=2048)  # the published shape
