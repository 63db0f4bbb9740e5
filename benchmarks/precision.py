"""Measure the accuracy of bfloat16 and int8: errors of the vectors, and the accuracy of a task.

usage: precision.py [MODEL TRAIN DEV] [--layer N] [--sentences N] [--seeds N]

TRAIN and DEV are CoNLL-U files (or .xz), on which a linear classifier learns part-of-speech tags from one
layer. The random order of the data is the same for every type; the change is the mean difference from float32
over seeds. Without arguments, a model with random weights is measured, without a task.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from embedding import random_model, random_text

from elmo import Elmo
from elmo.lexicon.probe import read_labels

TYPES = ("bfloat16", "int8")
MAX_CHANGE = 0.2  # points of accuracy; a type that changes the task more is experimental


def main() -> None:
    """Print a table of errors and a table of the task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("train", type=Path, nargs="?")
    parser.add_argument("dev", type=Path, nargs="?")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=4000, help="number of sentences of TRAIN")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        model = options.model or random_model(Path(folder) / "small", "small")
        dev = read(options.dev) if options.dev else [(row.split(), []) for row in random_text()[:200]]
        exact = Elmo.from_pretrained(model)
        models = {"float32": exact} | {kind: Elmo.from_pretrained(model, dtype=kind) for kind in TYPES}
        print(f"{'':10}{'layer':>6}{'relative L2':>13}{'worst cosine':>14}   products")
        for kind in TYPES:
            print_errors(kind, models[kind], exact, [words for words, _ in dev])
        if options.train:
            print_task(models, read(options.train)[: options.sentences], dev, options)


def print_errors(kind: str, model: Elmo, exact: Elmo, sentences: list[list[str]]) -> None:
    """Print one line per layer."""
    both = [
        np.concatenate([encoding.vectors for encoding in source.encode(sentences, layers="all")], axis=1)
        for source in (model, exact)
    ]
    for layer, (vectors, expected) in enumerate(zip(*both, strict=True)):
        error = np.linalg.norm(vectors - expected) / np.linalg.norm(expected)
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
        cosines = (vectors * expected).sum(axis=1) / norms
        kernels = model.kernels
        note = "" if layer else f"   {kernels.name} {kernels.precision}: {kernels.reason}"
        print(f"{kind if not layer else '':10}{layer:6}{error:13.3%}{cosines.min():14.6f}{note}")


def print_task(models: dict[str, Elmo], train: list, dev: list, options: argparse.Namespace) -> None:
    """Print the accuracy of the tags for each type, and its difference from float32."""
    tags = sorted({tag for _, row in train for tag in row})
    accuracies: dict[str, list[float]] = {}
    for kind, model in models.items():
        parts = [features(model, rows, tags, options.layer) for rows in (train, dev)]
        accuracies[kind] = [accuracy(*parts[0], *parts[1], seed=seed) for seed in range(options.seeds)]
    n_read = f"{len(train):,} sentences, {options.seeds} seeds"
    print(f"\npart-of-speech tags from layer {options.layer}: {n_read}")
    for kind, values in accuracies.items():
        changes = [value - base for value, base in zip(values, accuracies["float32"], strict=True)]
        change = statistics.mean(changes)
        verdict = "" if abs(change) <= MAX_CHANGE else "  experimental"
        print(f"{kind:10}{statistics.mean(values):8.2f}%{change:+8.2f} points{verdict}")


def features(model: Elmo, rows: list, tags: list[str], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode sentences: vectors (token, width) and tag ids (token,)."""
    vectors = [encoding.vectors for encoding in model.encode([words for words, _ in rows], layers=layer)]
    ids = {tag: number for number, tag in enumerate(tags)}
    targets = [ids.get(tag, -1) for _, row in rows for tag in row]
    return torch.from_numpy(np.concatenate(vectors)), torch.tensor(targets)


def accuracy(x: torch.Tensor, y: torch.Tensor, dev_x: torch.Tensor, dev_y: torch.Tensor, *, seed: int) -> float:
    """Train a linear classifier for ten epochs with Adam; return its accuracy in percent."""
    mean, deviation = x.mean(dim=0), x.std(dim=0) + 1e-6
    x, dev_x = (x - mean) / deviation, (dev_x - mean) / deviation
    torch.manual_seed(seed)
    classifier = torch.nn.Linear(x.size(1), int(y.max()) + 1)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=1e-3)
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(256):
            loss = torch.nn.functional.cross_entropy(classifier(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        return float((classifier(dev_x).argmax(dim=1) == dev_y).float().mean()) * 100


def read(path: Path) -> list[tuple[list[str], list[str]]]:
    """Read the words and UPOS tags of each sentence."""
    return [
        (list(sentence.tokens), [label or "_" for label in sentence.labels])
        for sentence in read_labels(path, "upos").sentences
    ]


if __name__ == "__main__":
    main()
