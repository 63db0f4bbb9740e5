"""Write models with random weights in the format of bilm-tf and AllenNLP: DIR/small and DIR/original.

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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    write_model(root / "small", n_highway=1, cell=1024, projection=128)
    write_model(root / "original", n_highway=2, cell=4096, projection=512)
