"""Measure the accuracy of bfloat16 and int8: errors of the vectors, and the accuracy of tasks.

usage: precision.py [MODEL TRAIN DEV] [--layer N] [--sentences N] [--seeds N] [--wic FOLDER] [--senses FILE]

TRAIN and DEV are CoNLL-U files (or .xz), on which a linear classifier learns part-of-speech tags from one
layer. The random order of the data is the same for every type; the change is the mean difference from float32
over seeds. Without arguments, a model with random weights is measured, without a task.

--wic     folder of Words in Context: accuracy on dev, with the threshold that is best on train for this type.
--senses  file with the columns word, sense and sentence: how often, of three sentences with a word, the two with
          the same sense have the closest vectors.

Both are measured with every layer and with their average. A decision is flipped if it differs from that of
float32; "wrong" and "right" count the flips in each direction.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedding import random_model, random_text

from elmo import Elmo, similarities
from elmo.lexicon import compare_pairs, find_wic_files, read_pairs
from elmo.lexicon.probe import read_labels

TYPES = ("bfloat16", "int8")
Vectors = np.ndarray[Any, Any]
MAX_CHANGE = 0.2  # points of accuracy; a type that changes the task more is experimental


def main() -> None:
    """Print a table of errors and a table for each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("train", type=Path, nargs="?")
    parser.add_argument("dev", type=Path, nargs="?")
    parser.add_argument("--layer", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=4000, help="number of sentences of TRAIN")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wic", type=Path, metavar="FOLDER")
    parser.add_argument("--senses", type=Path, metavar="FILE")
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
        if options.wic:
            print_decisions("words in context, dev", {kind: judge_pairs(m, options.wic) for kind, m in models.items()})
        if options.senses:
            title = f"triples of senses, {options.senses.name}"
            print_decisions(title, {kind: compare_senses(m, options.senses) for kind, m in models.items()})


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


def judge_pairs(model: Elmo, folder: Path) -> dict[str, Vectors]:
    """Judge the pairs of WiC; return whether each judgment is right, by layer."""
    files = find_wic_files(folder)
    if files.tune is None or files.gold is None:
        raise SystemExit(f"{folder}: expected the pairs and labels of train and dev")
    pairs = read_pairs(files.data, files.gold)
    compared = compare_pairs(model, pairs, tune=read_pairs(*files.tune), layers="all")
    return {layer: judged.is_same == pairs.is_same for layer, judged in compared.judgments.items()}


def compare_senses(model: Elmo, path: Path) -> dict[str, Vectors]:
    """Compare the sentences of each triple; return whether the same sense is closer, by layer.

    The token layer is left out: there, a word has the same vector in every sentence.
    """
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    sentences = [list(model.tokenizer(text).tokens) for _, _, text in rows]
    places = [words.index(row[0]) for words, row in zip(sentences, rows, strict=True)]
    results: dict[str, Vectors] = {}
    for layer in (*range(1, model.n_layers), "average"):
        encodings = model.encode(sentences, layers=layer)  # pyright: ignore[reportArgumentType]
        vectors = np.stack([encoding.vectors[k] for encoding, k in zip(encodings, places, strict=True)])
        cosines = similarities(vectors, vectors)
        results[str(layer)] = np.array([cosines[a, b] > cosines[a, c] for a, b, c in triples(rows)])
    return results


def triples(rows: Sequence[Sequence[str]]) -> Iterator[tuple[int, int, int]]:
    """Yield a sentence, another one with the same word and sense, and one with another sense of the word."""
    by_word: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_word[row[0]].append(number)
    for numbers in by_word.values():
        for a, b, c in permutations(numbers, 3):
            if rows[a][1] == rows[b][1] != rows[c][1]:
                yield a, b, c


def print_decisions(title: str, is_right: dict[str, dict[str, Vectors]]) -> None:
    """Print the accuracy of each type and layer, its difference from float32, and the decisions that are flipped."""
    exact = is_right["float32"]
    n = len(next(iter(exact.values())))
    print(f"\n{title}: {n:,} decisions, each {100 / n:.2f} points")
    print(f"{'':10}{'layer':>8}{'accuracy':>10}{'change':>9}{'wrong':>7}{'right':>7}")
    for kind, by_layer in is_right.items():
        for layer, right in by_layer.items():
            before = exact[layer]
            n_wrong, n_right = int((before & ~right).sum()), int((~before & right).sum())
            change = 100 * (n_right - n_wrong) / n
            verdict = "" if abs(change) <= MAX_CHANGE else f"  more than {MAX_CHANGE}"
            print(f"{kind:10}{layer:>8}{right.mean():10.2%}{change:+9.2f}{n_wrong:7}{n_right:7}{verdict}")


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
