"""Compare measures of change, and clusters of usages, with the human judgments of DWUG.

usage: change.py MODEL FOLDER [--glove FOLDER] [--transformer FOLDER] [--json FILE] [--no-senses]

FOLDER has WORD.uses.csv, WORD.clusters.csv and gold.tsv of DWUG (columns lemma, change_graded), or .xz files.

Change: Spearman correlation of each measure, for each layer, with the graded change that people judged, and
its 95% interval over words. Baselines are frequency (the rank of the word in the vocabulary of the model),
PPMI counts of the context words, with --glove the mean of their GloVe vectors, and with --transformer the
vectors of a transformers model, with the pieces of a word averaged.

Senses: adjusted Rand index and V-measure of each clustering method (average of the layers) with the clusters
of DWUG, for words with two or more of them. Baselines are one cluster, random clusters with the sizes of
DWUG's, and the spellings (bag, bags). The last column is the agreement with the spellings: it shows clusters
that only separate word forms.

All usages are read with the lemma in place of the word, like ``elmo change`` does by default (Laicher et al.
2021); the first table is also printed for words as written. The default measure is apd (Kutuzov and
Giulianelli 2020) of the top layer; the token layer is left out, because it is the same for one spelling.
``synthetic_change.py`` measures the same on change made from senses, where prt is better.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from quality import Glove, System, _lines, transformer

from elmo import Elmo, similarity
from elmo.lexicon.change import build_measure, rank_correlation
from elmo.lexicon.clustering import METHODS, cluster
from elmo.lexicon.usages import Usage, embed_usages, read_uses, respell, strip_part_of_speech

Vectors = np.ndarray[Any, Any]
WINDOW = 10
DEFAULT = "apd", "2"
GOAL = 0.35


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--glove", type=Path)
    parser.add_argument("--transformer", type=Path)
    parser.add_argument("--no-senses", action="store_true")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    uses = read_uses(options.folder)
    rows = [line.split("\t") for line in _lines(options.folder / "gold.tsv")]
    columns = [rows[0].index(name) for name in ("lemma", "change_graded")]
    gold = {row[columns[0]]: float(row[columns[1]]) for row in rows[1:]}
    uses = {word: uses[word] for word in gold}
    elmo = Elmo.from_pretrained(options.model)
    begin = time.perf_counter()
    vectors = {word: read(elmo, periods, strip_part_of_speech(word)) for word, periods in uses.items()}
    n = sum(len(items) for periods in uses.values() for items in periods.values())
    print(f"{len(uses)} words, {n:,} usages, read in {time.perf_counter() - begin:.0f} s\n")
    results: dict[str, Any] = {"model": options.model, "change": changes(elmo, uses, vectors, gold, options.glove)}
    if options.transformer:
        other = transformer(options.transformer)
        theirs = {word: read_other(other, periods, strip_part_of_speech(word)) for word, periods in uses.items()}
        results[f"change, {other.name}"] = changes(elmo, uses, theirs, gold, None)
    written = {word: read(elmo, periods, None) for word, periods in uses.items()}
    results["change as written"] = changes(elmo, uses, written, gold, None)
    if not options.no_senses:
        results["senses"] = senses(options.folder, uses, vectors)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(elmo: Elmo, periods: Mapping[str, Sequence[Usage]], spelling: str | None) -> dict[str, Vectors]:
    """Return the vectors of all usages of a word by layer (usage, width), the earlier period first."""
    usages = [usage for items in periods.values() for usage in items]
    if spelling is not None:
        usages = [respell(usage, spelling) for usage in usages]
    flat = embed_usages(elmo, usages, layers="concat").vectors
    layers = flat.reshape(len(flat), elmo.n_layers, -1)
    # the token layer is the same for one spelling
    numbers = range(0 if spelling is None else 1, elmo.n_layers)
    views = {"average": layers.mean(axis=1)} | {str(k): layers[:, k] for k in numbers}
    return views | {"sense": embed_usages(elmo, usages, layers="sense").vectors}


def read_other(system: System, periods: Mapping[str, Sequence[Usage]], spelling: str) -> dict[str, Vectors]:
    """Return the same from the layers of another system."""
    usages = [respell(usage, spelling) for items in periods.values() for usage in items]
    sentences = [list(usage.sentence.tokens) for usage in usages]
    return {
        f"{system.name} {layers}": np.stack(
            [rows[usage.begin] for rows, usage in zip(system.embed(sentences, layers), usages, strict=True)]
        )
        for layers in system.layers
    }


def changes(
    elmo: Elmo,
    uses: Mapping[str, Mapping[str, Sequence[Usage]]],
    vectors: Mapping[str, Mapping[str, Vectors]],
    gold: Mapping[str, float],
    glove: Path | None,
) -> dict[str, tuple[float, float, float]]:
    """Return the Spearman correlation with the gold change and its interval, by measure and layer."""
    scores: dict[str, list[float]] = {}
    for word, layers in vectors.items():
        sizes = [len(items) for items in uses[word].values()]
        later = np.repeat([0.0, 1.0], sizes)[None]
        for layer, rows in layers.items():
            for name in ("apd", "prt", "mmd", "jsd"):
                labels = cluster(rows).labels if name == "jsd" else None
                value = float(build_measure(name, rows, labels)(1 - later, later)[0])
                scores.setdefault(f"{name}, {layer}", []).append(value)
    if elmo.vocab is not None:
        place = {word: k for k, word in enumerate(elmo.vocab.words)}
        scores["frequency"] = [-place.get(word.partition("_")[0], len(place)) for word in uses]
    scores["ppmi of contexts"] = ppmi_changes(uses)
    if glove is not None:
        scores["glove of contexts"] = glove_changes(uses, Glove(glove))
    judged = np.array([gold[word] for word in uses])
    results: dict[str, tuple[float, float, float]] = {}
    print(f"{'change':24}{'Spearman':>9}   95% interval")
    for name, values in scores.items():
        results[name] = with_interval(np.array(values), judged)
        mark = f"   <- default; goal {GOAL}" if name == ", ".join(DEFAULT) else ""
        print(f"{name:24}{results[name][0]:9.3f}   {results[name][1]:.3f} .. {results[name][2]:.3f}{mark}", flush=True)
    return results


def with_interval(x: Vectors, y: Vectors, n: int = 2000) -> tuple[float, float, float]:
    """Return the correlation and its bootstrap interval over words; NaN if ``x`` or ``y`` is constant."""
    correlation = rank_correlation(x, y)
    if correlation is None:
        return np.nan, np.nan, np.nan
    generator = np.random.default_rng(0)
    resampled = [rank_correlation(x[k], y[k]) for k in generator.integers(0, len(x), (n, len(x)))]
    low, high = np.quantile([value for value in resampled if value is not None], (0.025, 0.975))
    return correlation, float(low), float(high)


def context(usage: Usage) -> list[str]:
    """Return the context words in lower case."""
    tokens = usage.sentence.tokens
    near = tokens[max(usage.begin - WINDOW, 0) : usage.begin] + tokens[usage.end : usage.end + WINDOW]
    return [token.lower() for token in near if token.isalpha()]


def glove_changes(uses: Mapping[str, Mapping[str, Sequence[Usage]]], glove: Glove) -> list[float]:
    """Compute 1 - cosine of the mean static vectors of the contexts."""
    results = []
    for periods in uses.values():
        means = [
            glove([token for usage in items for token in context(usage)]).mean(axis=0) for items in periods.values()
        ]
        results.append(1 - similarity(*means))
    return results


def ppmi_changes(uses: Mapping[str, Mapping[str, Sequence[Usage]]]) -> list[float]:
    """Compute 1 - cosine of the positive PMI with context words; both periods share a vocabulary."""
    counts = [
        Counter(token for usage in items for token in context(usage))
        for periods in uses.values()
        for items in periods.values()
    ]
    total = sum(counts, Counter[str]())
    names = [word for word, n in total.items() if n >= 5]
    table = np.array([[count[name] for name in names] for count in counts], dtype=np.float64)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    ppmi = np.maximum(np.log(np.where(table > 0, table, 1e-9) / expected), 0)
    return [1 - similarity(a, b) for a, b in zip(ppmi[::2], ppmi[1::2], strict=True)]


def senses(
    folder: Path, uses: Mapping[str, Mapping[str, Sequence[Usage]]], vectors: Mapping[str, Mapping[str, Vectors]]
) -> dict[str, dict[str, float]]:
    """Return the mean agreement over words with the clusters of DWUG."""
    generator = np.random.default_rng(0)
    scores: dict[str, list[tuple[float, ...]]] = {}
    for word, periods in uses.items():
        rows = [line.split("\t") for line in _lines(folder / f"{word}.clusters.csv")[1:]]
        by_name = {row[0]: int(row[1]) for row in rows}
        usages = [usage for items in periods.values() for usage in items]
        names = [usage.place for usage in usages]
        spelling = np.unique([usage.word.lower() for usage in usages], return_inverse=True)[1]
        gold = np.array([by_name.get(name, -1) for name in names])
        kept = gold >= 0  # -1 is noise
        if len(set(gold[kept])) < 2:
            continue
        guesses = {method: cluster(vectors[word]["average"], method=method).labels for method in METHODS}
        guesses |= {"one cluster": np.zeros(len(gold), dtype=int), "spelling": spelling}
        for name, guess in guesses.items():
            scores.setdefault(name, []).append(agreement(gold[kept], guess[kept], spelling[kept]))
        random = generator.permutation(gold[kept])
        scores.setdefault("random, DWUG's sizes", []).append(agreement(gold[kept], random, spelling[kept]))
    if not scores:
        print("\nsenses: no word has two or more clusters in DWUG")
        return {}
    n = len(next(iter(scores.values())))
    print(f"\n{f'senses, {n} words':24}{'ARI':>8}{'V':>8}{'clusters':>10}{'ARI with spelling':>19}")
    results: dict[str, dict[str, float]] = {}
    for name, rows in scores.items():
        ari, v, size, form = (float(x) for x in np.mean(rows, axis=0))
        results[name] = {"ari": ari, "v_measure": v, "clusters": size, "ari_spelling": form}
        print(f"{name:24}{ari:8.3f}{v:8.3f}{size:10.1f}{form:19.3f}", flush=True)
    return results


def agreement(gold: Vectors, guess: Vectors, spelling: Vectors) -> tuple[float, ...]:
    """Return ARI, V-measure, the number of clusters, and the ARI with the spellings."""
    from sklearn.metrics import adjusted_rand_score, v_measure_score

    ari, form = (float(adjusted_rand_score(labels, guess)) for labels in (gold, spelling))
    return ari, float(v_measure_score(gold, guess)), len(set(guess.tolist())), form


if __name__ == "__main__":
    main()
