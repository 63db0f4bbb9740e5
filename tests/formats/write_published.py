"""Write model folders as published by bilm-tf, with h5py and from the description of the format alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def options(
    *,
    dim: int = 6,
    projection_dim: int = 4,
    n_layers: int | None = 2,
    filters: tuple[tuple[int, int], ...] = ((1, 2), (2, 3)),
    n_highway: int | None = 1,
    n_characters: int = 262,
    skip: bool = True,
    activation: str = "relu",
    clips: bool = True,
    chars: bool = True,
    **more: Any,
) -> dict[str, Any]:
    lstm: dict[str, Any] = {"dim": dim, "projection_dim": projection_dim, "use_skip_connections": skip}
    if n_layers is not None:
        lstm["n_layers"] = n_layers
    if clips:
        lstm |= {"cell_clip": 3, "proj_clip": 3}
    values: dict[str, Any] = {"lstm": lstm, **more}
    if chars:
        values["char_cnn"] = {
            "activation": activation,
            "embedding": {"dim": 3},
            "filters": [list(pair) for pair in filters],
            "n_highway": n_highway,
            "n_characters": n_characters,
            "max_characters_per_token": 50,
        }
    return values


def shapes(values: dict[str, Any], *, n_words: int = 9) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every dataset for these options."""
    lstm, cnn = values["lstm"], values.get("char_cnn")
    dim, width = lstm["dim"], lstm["projection_dim"]
    found: dict[str, tuple[int, ...]] = {}
    if cnn is None:
        found["embedding"] = (n_words, width)
    else:
        n_filters = sum(n for _, n in cnn["filters"])
        found["char_embed"] = (261, cnn["embedding"]["dim"])
        for i, (length, n) in enumerate(cnn["filters"]):
            found[f"CNN/W_cnn_{i}"], found[f"CNN/b_cnn_{i}"] = (1, length, cnn["embedding"]["dim"], n), (n,)
        for k in range(cnn["n_highway"]):
            for part in ("carry", "transform"):
                found[f"CNN_high_{k}/W_{part}"] = (n_filters, n_filters)
                found[f"CNN_high_{k}/b_{part}"] = (n_filters,)
        if n_filters != width:
            found["CNN_proj/W_proj"], found["CNN_proj/b_proj"] = (n_filters, width), (width,)
    for direction in (0, 1):
        for layer in range(lstm.get("n_layers", 1)):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            found[f"{cell}/W_0"], found[f"{cell}/B"] = (2 * width, 4 * dim), (4 * dim,)
            if width < dim:
                found[f"{cell}/W_P_0"] = (dim, width)
    return found


def arrays(values: dict[str, Any], *, dtype: str = "f4", seed: int = 0) -> dict[str, np.ndarray]:
    """Return random numbers for every dataset."""
    random = np.random.default_rng(seed)
    return {name: (0.3 * random.normal(size=shape)).astype(dtype) for name, shape in shapes(values).items()}


def publish(
    folder: Path,
    values: dict[str, Any] | None = None,
    *,
    datasets: dict[str, np.ndarray] | None = None,
    weights: str = "weights.hdf5",
    options_name: str = "options.json",
    words: tuple[str, ...] | None = None,
    **storage: Any,
) -> Path:
    """Write a model; ``storage`` is passed to h5py's ``create_dataset``."""
    values = options() if values is None else values
    folder.mkdir(parents=True, exist_ok=True)
    (folder / options_name).write_text(json.dumps(values), encoding="utf-8")
    with h5py.File(folder / weights, "w") as file:
        for name, array in (arrays(values) if datasets is None else datasets).items():
            file.create_dataset(name, data=array, **storage)
    if words is not None:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return folder


def stored(path: Path) -> dict[str, np.ndarray]:
    """Return every dataset of an HDF5 file, as read by h5py."""
    found: dict[str, np.ndarray] = {}

    def keep(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item[...]

    with h5py.File(path, "r") as file:
        file.visititems(keep)
    return found
