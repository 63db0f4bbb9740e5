"""Measure whether the vectors of a sentence depend on its batch, for 200 random sentences.

usage: batch_independence.py [MODEL …]     without MODEL, a random model of the published size small

Compares each sentence alone with the same sentence in batches of 1, 7, 32 and 256, in two orders, with and
without cached words, and in a new process. Prints the largest difference over all layers; 0 means equal bits.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from elmo import Elmo
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, parameter_shapes
from elmo.formats import native
from elmo.formats.pretrained import Pretrained

N_SENTENCES = 200
BATCH_SIZES = (1, 7, 32, 256)


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--vectors", help=argparse.SUPPRESS)  # used in the new process
    options = parser.parse_args()
    if options.vectors:
        np.savez(options.vectors, *encode_alone(Elmo.from_pretrained(options.models[0]), random_sentences()))
        return
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models or [random_model(Path(folder) / "small")]:
            difference, kernels = largest_difference(Path(model))
            print(f"{model}: largest difference {difference:.3g} ({N_SENTENCES} sentences, "
                  f"{torch.get_num_threads()} threads, {kernels} kernels)")  # fmt: skip


def random_sentences() -> list[list[str]]:
    """Draw sentences of 0 to 60 tokens of 1 to 14 characters, some of them Chinese."""
    generator = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxzETAOIN0123456789'-.éüß中文字河岸"
    return [
        ["".join(generator.choices(letters, k=generator.randint(1, 14))) for _ in range(generator.randint(0, 60))]
        for _ in range(N_SENTENCES)
    ]


def encode_alone(elmo: Elmo, sentences: list[list[str]]) -> list[np.ndarray]:
    """Encode each sentence in a separate call."""
    return [np.asarray(elmo.encode([sentence], layers="all")[0].vectors) for sentence in sentences]


def largest_difference(model: Path) -> tuple[float, str]:
    """Return the largest difference over all cases and layers, and the name of the kernels."""
    elmo, sentences = Elmo.from_pretrained(model), random_sentences()
    expected = encode_alone(elmo, sentences)
    order = list(range(len(sentences)))
    worst = 0.0

    def compare(indices: list[int], results: list[np.ndarray]) -> None:
        nonlocal worst
        for k, vectors in zip(indices, results, strict=True):
            if vectors.tobytes() != expected[k].tobytes():
                worst = max(worst, float(np.abs(vectors - expected[k]).max()))

    for round_number in range(2):
        for batch_size in BATCH_SIZES:
            random.Random(batch_size + round_number).shuffle(order)
            for indices in (list(range(len(sentences))), order):
                encodings = elmo.encode([sentences[k] for k in indices], layers="all", batch_size=batch_size)
                compare(indices, [np.asarray(encoding.vectors) for encoding in encodings])
        elmo._engine.reset()  # the second round starts without cached words
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        subprocess.run([sys.executable, __file__, str(model), "--vectors", file.name], check=True)
        with np.load(file.name) as arrays:
            compare(list(range(len(sentences))), [arrays[f"arr_{k}"] for k in range(len(sentences))])
    return worst, elmo._engine.kernels.name


def random_model(folder: Path) -> Path:
    """Save a model of the published size small with random weights."""
    config = BiLmConfig(CharCnnConfig(n_highway=1), None, LstmConfig(cell_width=1024, state_width=128))
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator) * (0.1 if len(shape) == 1 else 1.5 / shape[1] ** 0.5)
        for name, shape in parameter_shapes(config).items()
    }
    weights["token_layer.cnn.char_embed.weight"][0] = 0
    native.write(Pretrained(config, weights, "random"), folder)
    return folder


if __name__ == "__main__":
    main()
