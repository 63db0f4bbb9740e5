"""Compare measures of change, and vectors, on synthetic change: samples of usages with different senses.

usage: synthetic_change.py MODEL SEMCOR [--words N] [--draws N] [--json FILE]

SEMCOR is a corpus tagged with WordNet senses (JSON lines, .xz is possible). For each frequent word with at
least two senses, usages of two "periods" are drawn in which the senses have random, different shares. The
Jensen-Shannon divergence of the drawn senses is the true change. The first table shows the Spearman
correlation with it over words, as a mean over draws, for each measure and each kind of vector: layers of the
word as written, layers with the lemma in place of the word, and expected words. The second table shows how
well clusters of each kind of vector agree with the senses of the same words (adjusted Rand index). These
periods differ only in their senses; ``change.py`` uses real periods, which also differ in other ways.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from elmo import Elmo
from elmo.lexicon.change import build_measure, rank_correlation
from elmo.lexicon.clustering import cluster
from elmo.lexicon.sense_corpora import read_sense_corpus
from elmo.lexicon.substitutes import embed_substitutes
from elmo.lexicon.usages import Usage, embed_usages, respell

Vectors = np.ndarray[Any, Any]
N_PERIOD = 30  # usages of a word per period
MIN_USAGES, MIN_SENSE = 60, 10  # of a word, and of each of two senses


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("semcor", type=Path)
    parser.add_argument("--words", type=int, default=120, help="number of words")
    parser.add_argument("--draws", type=int, default=10, help="number of draws per word")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    elmo = Elmo.from_pretrained(options.model)
    generator = np.random.default_rng(0)
    words = {name: items for name, items in usages_by_word(options.semcor).items() if is_fit(items)}
    selected = sorted(words, key=lambda name: -len(words[name]))[: options.words]
    values: dict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(options.draws)])
    gold: list[list[float]] = [[] for _ in range(options.draws)]
    agreements: dict[str, list[float]] = defaultdict(list)
    begin = time.perf_counter()
    for name in selected:
        usages, senses = zip(*words[name][:200], strict=True)
        labels = np.unique(senses, return_inverse=True)[1]
        views = vectors(elmo, usages, name[0])
        for view, table in views.items():
            agreements[view].append(float(adjusted_rand_score(labels, cluster(table).labels)))
        for draw in range(options.draws):
            rows, later = draw_periods(labels, generator)
            gold[draw].append(divergence(labels[rows][later < 1], labels[rows][later > 0]))
            for view, table in views.items():
                for measure in ("apd", "prt", "mmd", "jsd"):
                    if measure == "jsd" and draw:
                        continue  # clustering is slow; one draw is enough
                    own = cluster(table[rows]).labels if measure == "jsd" else None
                    value = build_measure(measure, table[rows], own)(1 - later[None], later[None])[0]
                    values[f"{measure}, {view}"][draw].append(float(value))
    print(f"{len(selected)} words, {options.draws} draws, {time.perf_counter() - begin:.0f} s\n")
    results = {}
    for name, by_draw in values.items():
        correlations = [
            rank_correlation(np.array(x), np.array(y)) or 0.0 for x, y in zip(by_draw, gold, strict=True) if x
        ]
        results[name] = float(np.mean(correlations)), float(np.std(correlations))
    for name, (mean, spread) in sorted(results.items(), key=lambda item: -item[1][0]):
        print(f"{name:28}{mean:7.3f} ± {spread:.3f}")
    print(f"\n{'senses':28}{'ARI':>7}")
    for view, scores in sorted(agreements.items(), key=lambda item: -np.mean(item[1])):
        results[f"senses, {view}"] = float(np.mean(scores)), float(np.std(scores) / np.sqrt(len(scores)))
        print(f"{view:28}{np.mean(scores):7.3f} ± {results[f'senses, {view}'][1]:.3f} (standard error)")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def usages_by_word(path: Path) -> dict[tuple[str, str], list[tuple[Usage, str]]]:
    """Return usages with their sense, by lemma and part of speech."""
    results: dict[tuple[str, str], list[tuple[Usage, str]]] = defaultdict(list)
    for sentence in read_sense_corpus(path):
        for usage, instance in zip(sentence.usages(), sentence.instances, strict=True):
            if len(instance.keys) == 1 and instance.end - instance.begin == 1 and instance.pos in ("noun", "verb"):
                results[instance.lemma, str(instance.pos)].append((usage, instance.keys[0]))
    return results


def is_fit(usages: list[tuple[Usage, str]]) -> bool:
    """Whether a word is frequent and has two frequent senses."""
    counts = Counter(sense for _, sense in usages).most_common(2)
    return len(usages) >= MIN_USAGES and len(counts) == 2 and counts[1][1] >= MIN_SENSE


def vectors(elmo: Elmo, usages: tuple[Usage, ...], lemma: str) -> dict[str, Vectors]:
    """Return vectors (usage, width) by name."""
    views: dict[str, Vectors] = {}
    for name, items in (("as written", usages), ("lemma", [respell(usage, lemma) for usage in usages])):
        flat = embed_usages(elmo, list(items), layers="concat").vectors
        layers = flat.reshape(len(flat), elmo.n_layers, -1)
        views[f"{name}, average"] = layers.mean(axis=1)
        for k in range(1 if name == "lemma" else 0, elmo.n_layers):
            views[f"{name}, {k}"] = layers[:, k]
        views[f"{name}, sense"] = embed_usages(elmo, list(items), layers="sense").vectors
    views["expected words"] = embed_substitutes(elmo, list(usages)).vectors
    return views


def draw_periods(labels: Vectors, generator: np.random.Generator) -> tuple[Vectors, Vectors]:
    """Draw usages of two periods with random shares of the senses; return rows, and 1 for the later."""
    n_senses = int(labels.max()) + 1
    own = np.bincount(labels) / len(labels)
    amount = generator.random()  # 0: the shares of the corpus in both
    shares = [(1 - amount) * own + amount * generator.dirichlet(np.full(n_senses, 0.3)) for _ in range(2)]
    left = generator.permutation(len(labels))
    rows: list[int] = []
    sizes: list[int] = []
    for k, share in enumerate(shares):
        weights = share[labels[left]] / np.maximum(own[labels[left]], 1e-9)
        size = min(N_PERIOD, len(left) // (2 - k), int((weights > 0).sum()))
        picked = generator.choice(len(left), size=size, replace=False, p=weights / weights.sum())
        rows += left[picked].tolist()
        sizes.append(size)
        left = np.delete(left, picked)
    return np.array(rows), np.repeat([0.0, 1.0], sizes)


def divergence(earlier: Vectors, later: Vectors) -> float:
    """Compute the Jensen-Shannon divergence of two samples of senses, in bits."""
    size = int(max(earlier.max(), later.max())) + 1
    p, q = (np.bincount(senses, minlength=size) / len(senses) for senses in (earlier, later))
    m = (p + q) / 2
    terms = [np.where(x > 0, x * np.log2(np.maximum(x, 1e-12) / np.maximum(m, 1e-12)), 0) for x in (p, q)]
    return float(np.sum(terms) / 2)


if __name__ == "__main__":
    main()
