"""Measure word sense disambiguation: F1 by layer and method, compared with the first sense of WordNet.

usage: wsd.py MODEL SEMCOR TEST_XML GOLD [--cache FOLDER] [--start zero|warm] [--json FILE]

There are two evaluations: train on SemCor and test on TEST_XML; and train on nine tenths of the documents
of SemCor and test on the last tenth, which is selected by a hash of the document names. ``first`` is the
first sense of WordNet, ``frequent`` the most frequent sense in training (the first sense if the word does not
occur there). The layer and the method that are best on the tenth of SemCor are compared with ``first`` in
both evaluations. The order of senses in WordNet comes from SemCor itself, including the tenth, so ``first``
has seen the held-out part; knn and prior use this order, too. --cache stores the vectors of SemCor for the
next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elmo import Elmo
from elmo.formats.pretrained import fingerprint
from elmo.lexicon.sense_corpora import Instance, SenseScore, SenseSentence, read_sense_corpus, score_senses
from elmo.lexicon.usages import embed_usages
from elmo.lexicon.wordnet import WordNet
from elmo.lexicon.wsd import SenseCentroids

METHODS = ("first", "frequent", "centroid", "prior", "knn")
TENTH = "SemCor's tenth"
Vectors = np.ndarray[Any, Any]
Which = tuple[str, str]  # layer and method
Results = dict[Which, dict[str, dict[str, SenseScore]]]  # by evaluation and part of speech
Rights = dict[Which, dict[str, list[bool]]]  # by evaluation, for each instance


@dataclass(frozen=True)
class Words:
    """Instances with their vectors (instance, layer, width) and documents; the last "layer" is ``layers="sense"``."""

    instances: list[Instance]
    documents: list[str]
    vectors: Vectors

    def where(self, is_in: Callable[[int], bool]) -> Words:
        """Return the instances whose number satisfies ``is_in``."""
        kept = [k for k in range(len(self.instances)) if is_in(k)]
        return Words([self.instances[k] for k in kept], [self.documents[k] for k in kept], self.vectors[kept])


def main() -> None:
    """Print F1 by layer and method, then the best one on the tenth of SemCor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    for name in ("semcor", "test", "gold"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--start", choices=("zero", "warm"), default="zero")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    elmo, wordnet = Elmo.from_pretrained(options.model), WordNet()
    parts = build_parts(
        elmo, wordnet, options.semcor, (options.test, options.gold), start=options.start, cache=options.cache
    )
    results, rights = compare_methods(parts, wordnet, n_layers=elmo.n_layers)
    report(results, rights)
    if options.json:
        rows = list_rows(results)
        options.json.write_text(json.dumps({"model": options.model, "start": options.start, "rows": rows}, indent=1))


def build_parts(
    elmo: Elmo, wordnet: WordNet, semcor: Path, test: tuple[Path, Path], *, start: str, cache: Path | None = None
) -> dict[str, tuple[Words, Words]]:
    """Return the words to train on and to test, for both evaluations: a tenth of SemCor, and the file in ``test``."""
    words = read_words(elmo, read_all(semcor), start=start, cache=cache)
    # Some keys of SemCor are from an older WordNet, so no method can predict them.
    known = [any(key in _senses(wordnet, instance) for key in instance.keys) for instance in words.instances]
    words = words.where(lambda k: known[k])
    is_held_out = [_is_held_out(name) for name in words.documents]
    parts = {
        TENTH: (words.where(lambda k: not is_held_out[k]), words.where(lambda k: is_held_out[k])),
        test[0].name: (words, read_words(elmo, read_all(*test), start=start, cache=None)),
    }
    for name, (train, tested) in parts.items():
        n_train, n_test = len(train.instances), len(tested.instances)
        if not n_train or not n_test:
            raise SystemExit(
                f"{name}: expected usages to train on and to test, found {n_train:,} and {n_test:,}; "
                "use a corpus with more documents"
            )
        print(f"{name}: {n_train:,} usages to train on, {n_test:,} to test")
    return parts


def compare_methods(
    parts: dict[str, tuple[Words, Words]], wordnet: WordNet, *, n_layers: int
) -> tuple[Results, Rights]:
    """Print F1 by layer and method; return all scores, and whether each answer is right."""
    print(f"\n{'layer':10}{'method':12}" + "".join(f"{name:>16}" for name in parts), flush=True)
    results: Results = {}
    rights: Rights = {}
    views: dict[str, Any] = {str(k): k for k in range(n_layers)} | {"average": None, "concat": ..., "sense": -1}
    for layer, view in views.items():
        answers: dict[str, dict[str, dict[str, str]]] = {}
        for name, (train, test) in parts.items():
            keys = [instance.keys for instance in train.instances]
            senses = SenseCentroids.from_usages(keys, _view(train, view), model="", layers=layer)
            answers[name] = answer(senses, test, _view(test, view), wordnet)
        for method in METHODS if layer == "0" else METHODS[2:]:
            which = ("-" if method in METHODS[:2] else layer, method)
            results[which] = {
                name: score_senses(answers[name][method], test.instances) for name, (_, test) in parts.items()
            }
            rights[which] = {
                name: [answers[name][method].get(instance.id) in instance.keys for instance in test.instances]
                for name, (_, test) in parts.items()
            }
            figures = "".join(f"{scores['all'].f1:16.2%}" for scores in results[which].values())
            print(f"{which[0]:10}{method:12}{figures}", flush=True)
    return results, rights


def list_rows(results: Results) -> list[dict[str, Any]]:
    """Return one row for each layer, method, evaluation and part of speech."""
    return [
        {"layer": layer, "method": method, "part": part, "words": words, "f1": score.f1, "n": score.n_instances}
        for (layer, method), by_part in results.items()
        for part, scores in by_part.items()
        for words, score in scores.items()
    ]


def report(results: Results, rights: Rights) -> None:
    """Print the layer and method that are best on the tenth of SemCor, and the gain over the first sense."""
    first = ("-", "first")
    best = max(results, key=lambda which: results[which][TENTH]["all"].f1)
    print(f"\nchosen on SemCor's tenth: layer {best[0]}, {best[1]}")
    for part, scores in results[best].items():
        gain = 100 * (scores["all"].f1 - results[first][part]["all"].f1)
        low, high = _interval(rights[best][part], rights[first][part])
        print(f"{part}: {gain:+.2f} F1 over the first sense (95% of resamples: {low:+.2f} to {high:+.2f})")
        print(
            "  "
            + ", ".join(
                f"{words} {s.f1:.1%} (first {results[first][part][words].f1:.1%})" for words, s in scores.items()
            )
        )


def read_all(path: Path, gold: Path | None = None) -> list[SenseSentence]:
    """Return the sentences that have instances."""
    return [sentence for sentence in read_sense_corpus(path, gold=gold) if sentence.instances]


def read_words(elmo: Elmo, sentences: Sequence[SenseSentence], *, start: str, cache: Path | None) -> Words:
    """Return all instances of the sentences, with the vectors of all layers and of "sense" in float16."""
    instances = [instance for sentence in sentences for instance in sentence.instances]
    documents = [sentence.document for sentence in sentences for _ in sentence.instances]
    stored = None
    if cache is not None:
        stored = cache / f"{fingerprint(elmo.pretrained, with_warm=True)[:16]}-{start}-sense-{len(instances)}.npy"
        if stored.exists():
            return Words(instances, documents, np.load(stored))
    rows: list[Vectors] = []
    for at in range(0, len(sentences), 500):
        usages = [usage for sentence in sentences[at : at + 500] for usage in sentence.usages()]
        parts = [embed_usages(elmo, usages, layers=layers, start=start).vectors for layers in ("concat", "sense")]
        rows.append(np.concatenate(parts, axis=1).astype(np.float16))
        if at % 5000 == 0:
            print(f"{at:,} of {len(sentences):,} sentences", flush=True)
    vectors = np.concatenate(rows).reshape(len(instances), elmo.n_layers + 1, elmo.width)
    if stored is not None:
        stored.parent.mkdir(parents=True, exist_ok=True)
        np.save(stored, vectors)
    return Words(instances, documents, vectors)


def answer(senses: SenseCentroids, test: Words, vectors: Vectors, wordnet: WordNet) -> dict[str, dict[str, str]]:
    """Return the sense keys of each method by instance id; all usages of a word are scored at once."""
    groups: defaultdict[tuple[str, Any], list[int]] = defaultdict(list)
    for k, instance in enumerate(test.instances):
        groups[instance.lemma, instance.pos].append(k)
    results: dict[str, dict[str, str]] = {method: {} for method in METHODS}
    for rows in groups.values():
        keys = _senses(wordnet, test.instances[rows[0]])
        if not keys:
            continue
        for method in METHODS:
            if method == "frequent":
                best = [int(np.argmax([senses.count(key) for key in keys]))] * len(rows)
            else:
                scores: Vectors = senses.scores(vectors[rows], keys, method=method)  # pyright: ignore[reportArgumentType]
                best = np.nan_to_num(scores, nan=-np.inf).argmax(axis=1).tolist()
            results[method] |= {test.instances[k].id: keys[b] for k, b in zip(rows, best, strict=True)}
    return results


def _senses(wordnet: WordNet, instance: Instance) -> list[str]:
    return [sense.key for sense in wordnet.senses(instance.lemma, instance.pos)] if instance.pos else []


def _view(words: Words, view: Any) -> Vectors:
    if view is None:
        return words.vectors[:, :-1].mean(axis=1, dtype=np.float32).astype(np.float16)
    return words.vectors[:, :-1].reshape(len(words.vectors), -1) if view is ... else words.vectors[:, view]


def _is_held_out(document: str) -> bool:
    return int(hashlib.sha256(document.encode()).hexdigest(), 16) % 10 == 0


def _interval(ours: Sequence[bool], theirs: Sequence[bool]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of the difference in accuracy, in points."""
    difference = np.array(ours, dtype=np.float64) - np.array(theirs)
    generator = np.random.default_rng(0)
    means = [generator.choice(difference, len(difference)).mean() * 100 for _ in range(2000)]
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


if __name__ == "__main__":
    main()
