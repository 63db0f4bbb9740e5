"""Pairs of sentences with one word in each (Words in Context) in, how alike its two uses are out.

WiC's files: ``data`` has columns word, part of speech, ``i-j`` (the word's tokens, from 0) and two tokenised
sentences, parted by tabs; ``gold`` has T (one sense) or F a line. Two uses are judged to have one sense where
their cosine reaches a threshold: the one that is right most often on other pairs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import Vectors, similarity
from elmo.errors import DataError
from elmo.lexicon.usages import Usage
from elmo.text.lines import Line, read_lines, shown
from elmo.text.tokenizers import WhitespaceTokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.embed.start import Start

PARTS = ("dev", "test")  # of a folder: the first that it has is judged
CHUNK = 256  # pairs whose vectors are in memory at once
_SUFFIXES = ("", ".xz", ".gz", ".bz2", ".zst")
_PLACES = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
Cosines = NDArray[np.float64]
Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class WordPair:
    """A word in two sentences."""

    word: str  # as the file names it
    pos: str
    first: Usage
    second: Usage


@dataclass(frozen=True, eq=False)
class PairSimilarities:
    """Cosines (pair,) by layer: "0", "1", …, "average", or the one that was asked for."""

    pairs: tuple[WordPair, ...]
    cosines: Mapping[str, Cosines]

    def rows(self, judged: Sequence[PairJudgments] = ()) -> Iterator[dict[str, Any]]:
        """For each pair and layer its number, from 1, cosine, judgement (None: not judged) and sentences."""
        says = {one.layer: one.is_same for one in judged}
        for k, pair in enumerate(self.pairs):
            for layer, cosines in self.cosines.items():
                yield {
                    "pair": k + 1,
                    "word": pair.word,
                    "pos": pair.pos,
                    "layer": layer,
                    "cosine": float(cosines[k]),
                    "judgement": ("T" if says[layer][k] else "F") if layer in says else None,
                    "first": "{}[{}]{}".format(*pair.first.parts()),
                    "second": "{}[{}]{}".format(*pair.second.parts()),
                }


@dataclass(frozen=True, eq=False)
class PairJudgments:
    """What a layer's cosines say with the threshold that was best on other pairs."""

    layer: str
    threshold: float
    tuned: float  # accuracy on the pairs that the threshold is from
    accuracy: float | None  # None: there was no gold
    interval: tuple[float, float] | None  # that the accuracy lies in with a chance of 95% (Wilson)
    is_same: Truths  # (pair,)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "layer": self.layer,
            "threshold": self.threshold,
            "tuned": self.tuned,
            "accuracy": self.accuracy,
            "interval": None if self.interval is None else list(self.interval),
        }


@dataclass(frozen=True)
class WicPart:
    """The files of a part; None: no gold."""

    name: str
    data: Path
    gold: Path | None


def wic_parts(folder: str | Path) -> tuple[WicPart | None, WicPart]:
    """Train, where a folder has it with its gold, and the part to judge: dev, else test, else train."""
    place = Path(folder)
    parts = {}
    for name in ("train", *PARTS):
        data, gold = (_beside(place, f"{name}.{kind}.txt") for kind in ("data", "gold"))
        if data is not None:
            parts[name] = WicPart(name, data, gold)
    judged = next((parts[name] for name in (*PARTS, "train") if name in parts), None)
    if judged is None:
        raise DataError(f"{shown(place)}: expected dev.data.txt, test.data.txt or train.data.txt, found none")
    train = parts.get("train")
    return (train if train and train.gold and train is not judged else None), judged


def read_pairs(path: str | Path) -> list[WordPair]:
    """The pairs of a data file, compressed or not."""
    pairs = [_pair(line) for line in _lines(path)]
    if not pairs:
        raise DataError(f"{shown(str(path))}: expected pairs of sentences, found none")
    return pairs


def read_gold(path: str | Path, *, n_pairs: int) -> Truths:
    """Whether each pair has one sense, (pair,)."""
    found: list[bool] = []
    for line in _lines(path):
        if line.text.strip() not in ("T", "F"):
            raise DataError(f"{line.path}:{line.number}: expected T or F, found {line.text[:40]!r}")
        found.append(line.text.strip() == "T")
    if len(found) != n_pairs:
        raise DataError(f"{shown(str(path))}: expected {n_pairs:,} lines, one a pair, found {len(found):,}")
    return np.array(found)


def pair_similarities(
    elmo: Elmo,
    pairs: Sequence[WordPair],
    *,
    layers: LayerChoice | int = "average",
    start: Start = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> PairSimilarities:
    """The cosine of each pair's two vectors; ``layers="all"`` gives each layer and their average.

    ``on_progress`` hears how many pairs are done.
    """
    found: dict[str, list[float]] = {}
    for begin in range(0, len(pairs), CHUNK):
        chunk = pairs[begin : begin + CHUNK]
        usages = [usage for pair in chunk for usage in (pair.first, pair.second)]
        encoded = elmo.encode([usage.sentence for usage in usages], layers=layers, start=start)
        vectors = [
            cast("Vectors", encoding.span(usage.begin, usage.end))
            for encoding, usage in zip(encoded, usages, strict=True)
        ]
        for a, b in zip(vectors[::2], vectors[1::2], strict=True):
            for name, one, other in _by_layer(a, b, layers):
                found.setdefault(name, []).append(cast("float", similarity(one, other)))
        if on_progress is not None:
            on_progress(begin + len(chunk))
    return PairSimilarities(tuple(pairs), {name: np.array(cosines) for name, cosines in found.items()})


def best_threshold(cosines: Cosines, is_same: Truths) -> float:
    """The cosine from which on pairs are best said to have one sense; of equals the lowest."""
    if not len(cosines) or len(cosines) != len(is_same):
        raise DataError(f"expected pairs with a judgement each, found {len(cosines)} and {len(is_same)}")
    order = np.argsort(cosines, kind="stable")
    steps, first = np.unique(cosines[order], return_index=True)
    same_before = np.concatenate([[0], np.cumsum(is_same[order])])[first]  # said to differ, by each step
    n_right = (first - same_before) + (int(is_same.sum()) - same_before)
    n_differ = len(is_same) - int(is_same.sum())  # right if all are said to differ
    if n_differ > n_right.max():
        return float(np.nextafter(steps[-1], np.inf))
    return float(steps[int(n_right.argmax())])


def judge(
    found: PairSimilarities, is_same: Truths | None, *, tuned_on: PairSimilarities, tuned_is_same: Truths
) -> list[PairJudgments]:
    """What each layer says, and how often that is right, with the threshold best on ``tuned_on``."""
    judged = []
    for layer, cosines in found.cosines.items():
        other = tuned_on.cosines[layer]
        threshold = best_threshold(other, tuned_is_same)
        says, tuned = cosines >= threshold, float(((other >= threshold) == tuned_is_same).mean())
        accuracy = interval = None
        if is_same is not None:
            n_right, n = int((says == is_same).sum()), len(is_same)
            accuracy, interval = n_right / n, wilson(n_right, n)
        judged.append(PairJudgments(layer, threshold, tuned, accuracy, interval, says))
    return judged


def wilson(n_right: int, n: int, *, z: float = 1.959964) -> tuple[float, float]:
    """The interval of a share (Wilson 1927); by default with a chance of 95%."""
    share, room = n_right / n, z * z / n
    middle = (share + room / 2) / (1 + room)
    half = z / (1 + room) * math.sqrt(share * (1 - share) / n + room / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def _by_layer(a: Vectors, b: Vectors, layers: Any) -> Iterator[tuple[str, Vectors, Vectors]]:
    if layers != "all":
        yield str(layers), a, b
        return
    for number, (one, other) in enumerate(zip(a, b, strict=True)):
        yield str(number), one, other
    yield "average", a.mean(axis=0), b.mean(axis=0)


def _pair(line: Line) -> WordPair:
    here = f"{line.path}:{line.number}"
    columns = line.text.split("\t")
    if len(columns) != 5:
        raise DataError(
            f"{here}: expected 5 columns (word, part of speech, places, two sentences), found {len(columns)}"
        )
    word, pos, places, *sentences = columns
    match = _PLACES.fullmatch(places.strip())
    if match is None:
        raise DataError(f"{here}: expected places such as 2-5 in column 3, found {places[:40]!r}")
    tokenise = WhitespaceTokenizer()
    usages = []
    for which, (place, text) in enumerate(zip(match.groups(), sentences, strict=True), start=1):
        tokens = tokenise(text)
        if int(place) >= len(tokens):
            raise DataError(
                f"{here}: expected a place within the {len(tokens)} tokens of sentence {which}, counted "
                f"from 0, found {place}"
            )
        usages.append(Usage(tokens, int(place), int(place) + 1, here))
    return WordPair(word, pos, *usages)


def _lines(path: str | Path) -> Iterator[Line]:
    """The lines that hold something; a file may end in empty ones."""
    return (line for line in read_lines(Path(path)) if line.text.strip())


def _beside(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    return next((path for path in candidates if path.is_file()), None)
