"""Compare vectors of usages on development data, to choose those that separate senses best.

usage: views.py MODEL DATA [--max-triples N] [--pseudo FILE ...] [--time]

DATA is a folder with wsd (SemCor) and wic. Of SemCor, triples of usages of one word form from three documents: two have
the same sense, and the third another one; "coarse" are those whose senses belong to different lexicographer files of
WordNet. Of WiC, the train part: the accuracy with the best threshold, and the area under the ROC curve. Of --pseudo,
text with one tokenized sentence per line: triples of pseudo-words. A pseudo-word is made of two words: the second one
is replaced by the first one, and both are its senses. For English, these are nouns of different meanings (by SemCor).
Without SemCor and WiC (Chinese), only --pseudo is used. --time measures
the time of encode with the sense vectors, relative to the average of the layers, on the first 2,000 sentences.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo import Elmo
from elmo.embed.sense import N_CANDIDATES, compute_log_priors, sum_nearby
from elmo.lexicon.sense_corpora import SenseSentence, read_sense_corpus
from elmo.lexicon.usages import Usage, is_word
from elmo.lexicon.word_pairs import best_threshold, read_pairs
from elmo.text.reader import read_sentences
from elmo.text.tokenizers import Tokens

Vectors = np.ndarray[Any, Any]
Triple = tuple[int, int, int]
LENGTHS = (6, 40)
WEIGHTS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0.5, 0), (1, 0, 0.5), (0, 1, 0.5), (1, 0.5, 0.5), (1, 1, 1))


def main() -> None:
    """Print a row for each kind of vectors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--max-triples", type=int, default=6000)
    parser.add_argument("--pseudo", type=Path, nargs="*", default=[])
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    elmo = Elmo.from_pretrained(options.model)
    if options.time:
        measure_time(elmo, options.pseudo)
        return
    sets: dict[str, tuple[list[Usage], Any]] = {}
    nouns: dict[str, str] = {}
    if elmo.tokenizer.name == "en":
        corpus = list(read_sense_corpus(options.data / "wsd" / "semcor.jsonl.xz"))
        sets["SemCor"] = semcor_triples(corpus, options.max_triples)
        nouns = monosemous_nouns(corpus)
        pairs = read_pairs(*(options.data / "wic" / f"train.{kind}.txt.xz" for kind in ("data", "gold")))
        sets["WiC"] = [usage for pair in pairs.pairs for usage in (pair.first, pair.second)], pairs.is_same
    if options.pseudo:
        sets["pseudo-words"] = pseudo_triples(elmo, options.pseudo, nouns)
    views = {name: Views(elmo, usages) for name, (usages, _) in sets.items()}
    header = "".join(f"{name:>{22 if name == 'WiC' else 18}}" for name in sets)
    print(f"{'':52}{header}")
    for label, choose in list_views(elmo):
        figures = [evaluate(name, choose(views[name]), gold) for name, (_, gold) in sets.items()]
        print(f"{label:52}{''.join(figures)}", flush=True)


def measure_time(elmo: Elmo, paths: Sequence[Path]) -> None:
    """Print the time per token with the average of the layers and with the sense vectors; the best of five."""
    sentences = [Tokens.from_words(tokens) for tokens in itertools.islice(read_text(elmo, paths), 2000)]
    n_tokens = sum(map(len, sentences))
    seconds: dict[str, float] = {}
    for _ in range(5):
        for layers in ("average", "sense"):
            begin = time.perf_counter()
            elmo.encode(sentences, layers=layers)
            seconds[layers] = min(seconds.get(layers, math.inf), time.perf_counter() - begin)
    for layers, best in seconds.items():
        print(f"{layers:10}{1e6 * best / n_tokens:8.1f} µs per token{best / seconds['average']:8.2f}")


def list_views(elmo: Elmo) -> Iterator[tuple[str, Callable[[Views], Vectors]]]:
    """Yield the name of each kind of vectors and a function that selects it."""
    for layer in range(elmo.n_layers):
        yield f"layer {layer}", lambda views, layer=layer: views.layers[:, layer]
    yield "average", lambda views: views.layers.mean(axis=1)
    yield "top layer, halves added", lambda views: add_halves(views.layers[:, -1])
    yield "states around the word", lambda views: views.context
    for weights in WEIGHTS:
        parts = zip(weights, ("expected words", "states", "nearby words"), strict=True)
        label = " + ".join(f"{'' if weight == 1 else f'{weight} · '}{part}" for weight, part in parts if weight)
        yield label, lambda views, weights=weights: views.combine(weights)
    yield 'layers="sense"', lambda views: views.sense


def evaluate(name: str, vectors: Vectors, gold: Any) -> str:
    """Return the figures of a kind of vectors on one set."""
    rows = unit(vectors.astype(np.float64))
    if name == "WiC":
        cosines = (rows[::2] * rows[1::2]).sum(axis=1)
        right = ((cosines >= best_threshold(cosines, gold)) == gold).mean()
        ranks = np.argsort(np.argsort(cosines, kind="stable"), kind="stable") + 1
        n_same, n = int(gold.sum()), len(gold)
        area = (ranks[gold].sum() - n_same * (n_same + 1) / 2) / (n_same * (n - n_same))
        return f"{right:11.1%}, AUC {area:4.3f}".rjust(22)
    triples, is_coarse = gold
    a, b, c = np.array(triples).T
    near, far = ((rows[a] * rows[x]).sum(axis=1) for x in (b, c))
    right = (near > far + 1e-9) + 0.5 * (abs(near - far) <= 1e-9)
    figures = f"{right.mean():.1%}"
    if not is_coarse.all():
        figures += f", {right[is_coarse].mean():.1%}"
    return figures.rjust(18)


class Views:
    """All kinds of vectors of some usages."""

    def __init__(self, elmo: Elmo, usages: Sequence[Usage]) -> None:
        assert elmo.softmax is not None
        assert elmo.vocab is not None
        self._rows = elmo.softmax.weight.detach().float().numpy()
        self._bias = elmo.softmax.bias.detach().float().numpy()
        half, n = elmo.width // 2, len(usages)
        self.layers = np.empty((n, elmo.n_layers, elmo.width), np.float32)
        self.context = np.empty((n, elmo.width), np.float32)
        self.sense = np.empty((n, elmo.width), np.float32)
        self._nearby = np.empty((n, half), np.float32)
        ids = {word: k for k, word in enumerate(elmo.vocab.words)}
        priors = np.exp(compute_log_priors(len(ids)))
        by_sentence: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for row, usage in enumerate(usages):
            by_sentence[usage.sentence.tokens].append(row)
        sentences = list(by_sentence)
        for begin in range(0, len(sentences), 1000):
            batch = [Tokens.from_words(words) for words in sentences[begin : begin + 1000]]
            found = zip(batch, elmo.encode(batch, layers="all"), elmo.encode(batch, layers="sense"), strict=True)
            for tokens, layers, senses in found:
                numbers = [ids.get(word, ids.get(word.lower(), -1)) for word in tokens.tokens]
                weights = [0 if k < 0 else 1e-4 / (1e-4 + priors[k]) for k in numbers]
                nearby = sum_nearby(unit(self._rows[np.maximum(numbers, 0)]) * np.array(weights, np.float32)[:, None])
                for row in by_sentence[tokens.tokens]:
                    first, last = usages[row].begin, usages[row].end
                    self.layers[row] = layers.vectors[:, first:last].mean(axis=1)
                    self.sense[row] = senses.vectors[first:last].mean(axis=0)
                    self._nearby[row] = nearby[first:last].mean(axis=0)
                    top = layers.vectors[-1]
                    # the first and the last token have only one state here; "sense" uses those of the boundaries too
                    self.context[row, :half] = top[first - 1, :half] if first else 0
                    self.context[row, half:] = top[last, half:] if last < len(tokens) else 0
        self._states = add_halves(self.context)
        self._expected = self._expect(compute_log_priors(len(ids)))

    def _expect(self, log_priors: Vectors) -> Vectors:
        rows, bias = self._rows[3:N_CANDIDATES], self._bias[3:N_CANDIDATES]
        units, offsets = unit(rows), 2 * (bias - log_priors[3:N_CANDIDATES])
        parts = []
        for begin in range(0, len(self._states), 512):
            scores = self._states[begin : begin + 512] @ rows.T + offsets
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            parts.append(odds @ units / odds.sum(axis=1, keepdims=True))
        return np.concatenate(parts)

    def combine(self, weights: Sequence[float]) -> Vectors:
        """Return the weighted sum of expected words, states and nearby words."""
        parts = (self._expected, self._states, self._nearby)
        return sum(weight * unit(part) for weight, part in zip(weights, parts, strict=True) if weight)  # type: ignore[return-value]


def add_halves(vectors: Vectors) -> Vectors:
    """Add the forward and the backward half of vectors (usage, width)."""
    half = vectors.shape[1] // 2
    return vectors[:, :half] + vectors[:, half:]


def unit(rows: Vectors) -> Vectors:
    """Scale rows to unit length."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def semcor_triples(corpus: Iterable[SenseSentence], n_triples: int, seed: int = 0) -> tuple[list[Usage], Any]:
    """Return usages and triples of them; at most two triples per word form and part of speech."""
    generator = random.Random(seed)
    found: defaultdict[Any, defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for sentence in corpus:
        for item in sentence.instances:
            if item.end - item.begin == 1 and item.keys and len(sentence.tokens) <= 60:
                form = sentence.tokens.tokens[item.begin].lower()
                found[form, item.pos][item.keys[0]].append((sentence, item))
    usages: dict[Any, Usage] = {}
    triples, is_coarse = [], []
    words = sorted(found, key=str)
    generator.shuffle(words)
    for word in words:
        senses = found[word]
        repeated = sorted(key for key, items in senses.items() if len(items) > 1)
        n_word = 0
        for _ in range(40 if len(senses) > 1 and repeated else 0):
            same, other = generator.choice(repeated), generator.choice(sorted(senses))
            items = [*generator.sample(senses[same], 2), generator.choice(senses[other])]
            if same == other or len({sentence.document for sentence, _ in items}) < 3:
                continue
            keys = [(id(sentence), item.begin) for sentence, item in items]
            for key, (sentence, item) in zip(keys, items, strict=True):
                usages.setdefault(key, sentence.usage(item))
            triples.append(keys)
            is_coarse.append(same.split(":")[1] != other.split(":")[1])
            n_word += 1
            if n_word == 2:
                break
    triples = triples[:n_triples]
    order = {key: k for k, key in enumerate(dict.fromkeys(itertools.chain.from_iterable(triples)))}
    numbers = [[order[key] for key in keys] for keys in triples]
    return [usages[key] for key in order], (numbers, np.array(is_coarse[:n_triples]))


def monosemous_nouns(corpus: Iterable[SenseSentence]) -> dict[str, str]:
    """Return words that are nouns of one lexicographer file in SemCor, and this file."""
    files: defaultdict[str, Counter[tuple[str | None, str]]] = defaultdict(Counter)
    for sentence in corpus:
        for item in sentence.instances:
            if item.end - item.begin == 1 and item.keys:
                files[sentence.tokens.tokens[item.begin]][item.pos, item.keys[0].split(":")[1]] += 1
    nouns: dict[str, str] = {}
    for word, counts in sorted(files.items()):
        (pos, file), n = counts.most_common(1)[0]
        if pos == "noun" and counts.total() >= 5 and n >= 0.8 * counts.total() and word.islower():
            nouns[word] = file
    return nouns


def pseudo_triples(
    elmo: Elmo, paths: Sequence[Path], nouns: dict[str, str], *, n_words: int = 400, seed: int = 1
) -> tuple[list[Usage], Any]:
    """Return usages of pseudo-words and triples of them."""
    generator = random.Random(seed)
    found: defaultdict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
    assert elmo.vocab is not None
    for tokens in read_text(elmo, paths):
        if LENGTHS[0] <= len(tokens) <= LENGTHS[1]:
            for k, word in enumerate(tokens[1:-1], start=1):
                if (word in nouns if nouns else is_word(word)) and tokens.count(word) == 1 and word in elmo.vocab:
                    found[word].append((tokens, k))
    frequent = sorted(found, key=lambda word: (-len(found[word]), word))
    words = [word for word in frequent[0 if nouns else 150 :] if len(found[word]) >= 6]
    usages: list[Usage] = []
    triples: list[list[int]] = []
    while len(usages) < 8 * n_words:
        first, second = generator.sample(words, 2)
        if nouns and nouns[first] == nouns[second]:
            continue
        items = [*generator.sample(found[first], 4), *generator.sample(found[second], 4)]
        begin = len(usages)
        for tokens, k in items:
            usages.append(Usage(Tokens.from_words((*tokens[:k], first, *tokens[k + 1 :])), k, k + 1))
        for own, other in itertools.permutations((begin, begin + 4)):
            triples += [[own + k, own + (k + 1) % 4, other + k] for k in range(4)]
    return usages, (triples, np.ones(len(triples), dtype=bool))


def read_text(elmo: Elmo, paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """Yield the sentences of tokenized English text, or of raw Chinese text."""
    if elmo.tokenizer.name == "en":
        for path in paths:
            with lzma.open(path, "rt", encoding="utf-8") as file:
                yield from (tuple(line.split()) for line in file)
    else:
        for sentence in read_sentences([str(path) for path in paths], tokenizer=elmo.tokenizer, split=True):
            yield sentence.tokens.tokens


if __name__ == "__main__":
    main()
