"""What do bfloat16 and int8 cost? Vectors beside those of float32, and a task that is learned from them.

usage: precision.py [MODEL TRAIN DEV] [--layer N] [--sentences N] [--seeds N]

TRAIN and DEV are CoNLL-U files (.xz is fine), on which a linear classifier learns part-of-speech tags from
one layer. Its chance part (order of the data) is the same for every type; the change is the mean over seeds
of the difference to float32. Without arguments a model with random weights is compared, and no task.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from embedding import made_up_model, made_up_text

from elmo import Elmo
from elmo.lexicon.probe import read_labelled

TYPES = ("bfloat16", "int8")
ALLOWED = 0.2  # points that a type may move the task before it is called experimental


def main() -> None:
    """Print a table of errors, then one of the task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("train", type=Path, nargs="?")
    parser.add_argument("dev", type=Path, nargs="?")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=4000, help="of TRAIN")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        model = options.model or made_up_model(Path(place) / "small", "small")
        dev = read(options.dev) if options.dev else [(row.split(), []) for row in made_up_text()[:200]]
        exact = Elmo.from_pretrained(model)
        models = {"float32": exact} | {kind: Elmo.from_pretrained(model, dtype=kind) for kind in TYPES}
        print(f"{'':10}{'layer':>6}{'relative L2':>13}{'worst cosine':>14}   products")
        for kind in TYPES:
            compare(kind, models[kind], exact, [words for words, _ in dev])
        if options.train:
            task(models, read(options.train)[: options.sentences], dev, options)


def compare(kind: str, rough: Elmo, exact: Elmo, sentences: list[list[str]]) -> None:
    """A line for each layer."""
    both = [
        np.concatenate([found.vectors for found in model.encode(sentences, layers="all")], axis=1)
        for model in (rough, exact)
    ]
    for layer, (found, right) in enumerate(zip(*both, strict=True)):
        error = np.linalg.norm(found - right) / np.linalg.norm(right)
        cosines = (found * right).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(right, axis=1)
        kernels = rough.kernels
        note = "" if layer else f"   {kernels.name} {kernels.precision}: {kernels.reason}"
        print(f"{kind if not layer else '':10}{layer:6}{error:13.3%}{cosines.min():14.6f}{note}")


def task(models: dict[str, Elmo], train: list, dev: list, options: argparse.Namespace) -> None:
    """Accuracy of the tags, and how far each type moves it."""
    tags = sorted({tag for _, row in train for tag in row})
    accuracies: dict[str, list[float]] = {}
    for kind, model in models.items():
        parts = [features(model, rows, tags, options.layer) for rows in (train, dev)]
        accuracies[kind] = [accuracy(*parts[0], *parts[1], seed=seed) for seed in range(options.seeds)]
    n_read = f"{len(train):,} sentences, {options.seeds} seeds"
    print(f"\npart-of-speech tags from layer {options.layer}: {n_read}")
    for kind, found in accuracies.items():
        changes = [mine - other for mine, other in zip(found, accuracies["float32"], strict=True)]
        change = statistics.mean(changes)
        verdict = "" if abs(change) <= ALLOWED else "  experimental"
        print(f"{kind:10}{statistics.mean(found):8.2f}%{change:+8.2f} points{verdict}")


def features(model: Elmo, rows: list, tags: list[str], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors (token, width) and numbers of tags (token,)."""
    vectors = [found.vectors for found in model.encode([words for words, _ in rows], layers=layer)]
    place = {tag: number for number, tag in enumerate(tags)}
    numbers = [place.get(tag, -1) for _, row in rows for tag in row]
    return torch.from_numpy(np.concatenate(vectors)), torch.tensor(numbers)


def accuracy(
    x: torch.Tensor, y: torch.Tensor, dev_x: torch.Tensor, dev_y: torch.Tensor, *, seed: int
) -> float:
    """Percent right after ten rounds of Adam on a linear classifier."""
    mean, spread = x.mean(dim=0), x.std(dim=0) + 1e-6
    x, dev_x = (x - mean) / spread, (dev_x - mean) / spread
    torch.manual_seed(seed)
    classifier = torch.nn.Linear(x.size(1), int(y.max()) + 1)
    optimiser = torch.optim.Adam(classifier.parameters(), lr=1e-3)
    for _ in range(10):
        for batch in torch.randperm(len(x)).split(256):
            loss = torch.nn.functional.cross_entropy(classifier(x[batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.inference_mode():
        return float((classifier(dev_x).argmax(dim=1) == dev_y).float().mean()) * 100


def read(path: Path) -> list[tuple[list[str], list[str]]]:
    """Words and UPOS tags of each sentence."""
    return [
        (list(sentence.tokens), [label or "_" for label in sentence.labels])
        for sentence in read_labelled(path, "upos").sentences
    ]


if __name__ == "__main__":
    main()
