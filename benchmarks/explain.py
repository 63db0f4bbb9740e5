"""Measure how faithful explanations are: how much the words with the highest scores change a vector.

usage: explain.py DATA [--model en|zh|MODEL] [--sentences 600] [--json FILE]

DATA is a folder of tokenized text such as $DATA/lm-en (dev-wiki and dev-wikinews), or of raw text such as $DATA/lm-zh
(dev.txt). One word of each sentence is the target. The 1, 2 or 3 context words with the highest scores are

removed     or
replaced    by random words of similar frequency (ranks in the vocabulary within a factor of 1.5; two draws),

and the change of the target's vector is 1 − cosine. Each method is thus also measured with a change that it does not
use itself. The table shows the ratio of the mean change to that for random context words (four draws), with a
bootstrap interval (95%, over sentences); "nearest" are the context words next to the target. The second table does the
same for the similarity of two uses of a word: the mean change of the cosine when the words with the highest (raise) or
lowest (lower) scores of the first sentence are changed. The last lines show the time per sentence.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from elmo import Elmo
from elmo.lexicon.explain import Explainer, Method, change_words
from elmo.lexicon.usages import Usage, embed_usages, is_word, unit_rows
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import Tokens

SIZES = (1, 2, 3)
N_RANDOM, N_DRAWS, N_BOOTSTRAP = 4, 2, 1000
MAX_PAIRS = 100
CHANGES = ("removed", "replaced")
MIN_LENGTH, MAX_LENGTH = 8, 24  # tokens
FREQUENT = 200  # words of lower rank are no targets
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Case:
    """A usage, and sets of context words by the name of the ranking that chose them."""

    usage: Usage
    chosen: dict[str, list[list[int]]]  # one set, or several random ones


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="en")
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    elmo = Elmo.from_pretrained(options.model)
    chance = np.random.default_rng(0)
    usages = choose_usages(elmo, read_sentences(options.data, elmo), options.sentences, chance)
    print(f"{options.model}: {len(usages)} sentences, {sum(len(u.sentence) for u in usages):,} tokens", flush=True)
    explainers: dict[Method, Explainer] = {method: Explainer(elmo, method=method) for method in METHODS}
    results: dict[str, Any] = {"vectors": measure_vectors(elmo, usages, explainers, chance)}
    pairs = find_pairs(usages)
    print(f"\nsimilarity of {len(pairs)} pairs of uses of the same word")
    results["similarities"] = measure_similarities(elmo, pairs, explainers, chance)
    results["seconds"] = measure_time(elmo, usages, explainers)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def read_sentences(folder: Path, elmo: Elmo) -> Iterator[Tokens]:
    """Yield the sentences of the dev files of a folder."""
    tokenized = [folder / f"dev-{name}.txt.xz" for name in ("wiki", "wikinews")]
    for path in tokenized if tokenized[0].exists() else [folder / "dev.txt.xz"]:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                if path in tokenized:
                    yield Tokens.from_words(line.split())
                else:
                    text = line.strip()
                    yield from (elmo.tokenizer(text[begin:end]) for begin, end in split_sentences(text))


def choose_usages(elmo: Elmo, sentences: Iterator[Tokens], n: int, chance: np.random.Generator) -> list[Usage]:
    """Choose sentences, and in each of them a word that the vocabulary has and that is not among the most frequent.

    Half of the sentences have a target that occurs in another sentence, too, if there are enough.
    """
    ranks = word_ranks(elmo)
    usages: dict[str, list[Usage]] = {}
    texts = [tokens for tokens in sentences if MIN_LENGTH <= len(tokens) <= MAX_LENGTH]
    for number in chance.permutation(len(texts))[: 20 * n].tolist():
        tokens = texts[number].tokens
        targets = [k for k, token in enumerate(tokens) if is_word(token) and ranks.get(token, 0) > FREQUENT]
        if targets:
            k = targets[int(chance.integers(len(targets)))]
            usages.setdefault(tokens[k], []).append(Usage(texts[number], k, k + 1))
    groups = list(usages.values())
    pairs = [usage for group in groups if len(group) > 1 for usage in group[:2]][: n // 2 // 2 * 2]
    return pairs + [group[0] for group in groups if len(group) == 1][: n - len(pairs)]


def word_ranks(elmo: Elmo) -> dict[str, int]:
    """Return the rank of each word of the vocabulary, which is sorted by count."""
    return {word: k for k, word in enumerate(elmo.vocab.words if elmo.vocab else ())}


def find_pairs(usages: Sequence[Usage]) -> list[tuple[Usage, Usage]]:
    """Return pairs of usages of the same word."""
    groups: dict[str, list[Usage]] = {}
    for usage in usages:
        groups.setdefault(usage.word, []).append(usage)
    return [(group[0], group[1]) for group in groups.values() if len(group) > 1][:MAX_PAIRS]


class RandomWords:
    """Draws words whose frequency is similar to that of a given word."""

    def __init__(self, elmo: Elmo, chance: np.random.Generator) -> None:
        self._ranks, self._chance = word_ranks(elmo), chance
        self._words = list(self._ranks)

    def __call__(self, word: str) -> str:
        """Draw another word; a word that is not in the vocabulary is as rare as its last words."""
        rank = self._ranks.get(word, len(self._words) - 1)
        low, high = max(3, int(rank / 1.5)), min(len(self._words), max(int(rank * 1.5), 12))
        drawn = self._words[int(self._chance.integers(low, high))]
        return drawn if drawn != word else self(word)


def change_sets(usage: Usage, sets: Sequence[Sequence[int]], change: str, draw: RandomWords) -> list[Usage]:
    """Remove each set of words, or replace its words several times."""
    if change == "removed":
        return [change_words(usage, dict.fromkeys(chosen)) for chosen in sets]
    tokens = usage.sentence.tokens
    n_draws = max(1, N_DRAWS // len(sets))
    return [change_words(usage, {k: draw(tokens[k]) for k in chosen}) for chosen in sets for _ in range(n_draws)]


def draw_controls(usage: Usage, size: int, chance: np.random.Generator) -> dict[str, list[list[int]]]:
    """Return random sets of context words, and the words nearest to the target."""
    positions = [k for k in range(len(usage.sentence)) if not usage.begin <= k < usage.end]
    distance = {k: (abs(k - usage.begin), chance.random()) for k in positions}
    return {
        "random": [chance.choice(positions, size, replace=False).tolist() for _ in range(N_RANDOM)],
        "nearest": [sorted(positions, key=lambda k: distance[k])[:size]],
    }


def measure_vectors(
    elmo: Elmo, usages: Sequence[Usage], explainers: dict[Method, Explainer], chance: np.random.Generator
) -> dict[str, Any]:
    """Print and return the ratio of the change by the chosen words to the change by random words."""
    explanations = {method: [explainer.explain(usage) for usage in usages] for method, explainer in explainers.items()}
    vectors = unit_rows(embed_usages(elmo, usages, layers="average").vectors)
    draw = RandomWords(elmo, chance)
    names = [*METHODS, "nearest", "random"]
    print(f"{'changed words':16}{'':10}" + "".join(f"{name:>26}" for name in names))
    results: dict[str, Any] = {}
    for change in CHANGES:
        for size in SIZES:
            moves: dict[str, NDArray[np.float64]] = {}
            cases = []
            for k, usage in enumerate(usages):
                top = {method: [[w.position for w in explanations[method][k].top(size)]] for method in METHODS}
                cases.append(Case(usage, {**top, **draw_controls(usage, size, chance)}))
            for name in names:
                changed = [change_sets(case.usage, case.chosen[name], change, draw) for case in cases]
                rows = unit_rows(
                    embed_usages(elmo, [usage for group in changed for usage in group], layers="average").vectors
                )
                ends = np.cumsum([len(group) for group in changed])
                moves[name] = np.array(
                    [float(np.mean(1 - part @ v)) for part, v in zip(np.split(rows, ends[:-1]), vectors, strict=True)]
                )
            row = {name: ratio_interval(moves[name], moves["random"], chance) for name in names}
            results[f"{change} {size}"] = {name: (*row[name], float(moves[name].mean())) for name in names}
            cells = [f"{ratio:9.2f} ({low:.2f}–{high:.2f})" for ratio, low, high in row.values()]
            print(f"{change:16}{size:<10}" + "".join(f"{cell:>26}" for cell in cells), flush=True)
    return results


def ratio_interval(
    values: NDArray[np.float64], baseline: NDArray[np.float64], chance: np.random.Generator
) -> tuple[float, float, float]:
    """Return the ratio of two means and its 95% interval, by drawing sentences with replacement."""
    drawn = chance.integers(len(values), size=(N_BOOTSTRAP, len(values)))
    ratios = values[drawn].mean(axis=1) / baseline[drawn].mean(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(values.mean() / baseline.mean()), float(low), float(high)


def measure_similarities(
    elmo: Elmo, pairs: Sequence[tuple[Usage, Usage]], explainers: dict[Method, Explainer], chance: np.random.Generator
) -> dict[str, Any]:
    """Print and return the change of the cosine when the words that raise or lower it are changed."""
    first, second = (
        unit_rows(embed_usages(elmo, list(side), layers="average").vectors) for side in zip(*pairs, strict=True)
    )
    before = (first * second).sum(axis=1)
    print(f"mean cosine {before.mean():.3f}; change of the cosine, × 100")
    draw = RandomWords(elmo, chance)
    sets: dict[str, dict[int, list[list[list[int]]]]] = {}
    for method, explainer in explainers.items():
        ranked = [sorted(explainer.explain(*pair).context, key=lambda word: -word.score) for pair in pairs]
        for name, order in (("raise", 1), ("lower", -1)):
            sets[f"{method} {name}"] = {
                size: [[[word.position for word in words[::order][:size]]] for words in ranked] for size in SIZES
            }
    controls = {size: [draw_controls(pair[0], size, chance) for pair in pairs] for size in SIZES}
    for name in ("nearest", "random"):
        sets[name] = {size: [control[name] for control in controls[size]] for size in SIZES}
    results: dict[str, Any] = {}
    print(f"{'scores':18}" + "".join(f"{f'{change} {size}':>24}" for change in CHANGES for size in SIZES))
    for name, by_size in sets.items():
        cells = []
        for change in CHANGES:
            for size in SIZES:
                changed = [
                    change_sets(pair[0], chosen, change, draw)
                    for pair, chosen in zip(pairs, by_size[size], strict=True)
                ]
                rows = unit_rows(
                    embed_usages(elmo, [usage for group in changed for usage in group], layers="average").vectors
                )
                ends = np.cumsum([len(group) for group in changed])
                after = [float(np.mean(part @ v)) for part, v in zip(np.split(rows, ends[:-1]), second, strict=True)]
                moves = 100 * (np.array(after) - before)
                drawn = moves[chance.integers(len(moves), size=(N_BOOTSTRAP, len(moves)))].mean(axis=1)
                low, high = np.quantile(drawn, (0.025, 0.975))
                results[f"{name} {change} {size}"] = (float(moves.mean()), float(low), float(high))
                cells.append(f"{moves.mean():+.1f} ({low:+.1f} to {high:+.1f})")
        print(f"{name:18}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    return results


def measure_time(elmo: Elmo, usages: Sequence[Usage], explainers: dict[Method, Explainer]) -> dict[str, float]:
    """Print and return the seconds per sentence, compared with encoding as many copies as it has words."""
    some = usages[:50]
    seconds: dict[str, float] = {}
    for name in ("encode copies", *METHODS):
        begin = time.perf_counter()
        for usage in some:
            if name == "encode copies":
                elmo.encode([usage.sentence] * len(usage.sentence))
            else:
                explainers[name].explain(usage)
        seconds[name] = (time.perf_counter() - begin) / len(some)
    print("\nmilliseconds per sentence: " + ", ".join(f"{name} {1000 * s:.0f}" for name, s in seconds.items()))
    return seconds


if __name__ == "__main__":
    main()
