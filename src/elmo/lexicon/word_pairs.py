"""Compare a word in two sentences, and judge whether it has the same sense (Words in Context, WiC).

The files have the format of WiC. The data file has the columns word, part of speech, ``i-j`` (the index of the word
in each sentence, from 0) and two tokenized sentences, separated by tabs; the gold file has T (same sense) or F
in each line. A pair is judged to have the same sense if its cosine reaches a threshold, which is tuned
on other pairs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import LayerChoice, similarity
from elmo.errors import DataError
from elmo.lexicon.usages import Usage, embed_usages
from elmo.storage.files import format_path
from elmo.text.lines import Line, read_lines
from elmo.text.tokenizers import WhitespaceTokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start

Cosines = NDArray[np.float64]
PairLabels = NDArray[np.bool_]
_SUFFIXES = ("", ".xz", ".gz", ".bz2", ".zst")
_INDEXES = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
_BATCH_PAIRS = 256


@dataclass(frozen=True)
class WordPair:
    """A word in two sentences; ``word`` is spelled as in the file."""

    word: str
    pos: str
    first: Usage
    second: Usage


@dataclass(frozen=True, eq=False)
class LabeledPairs:
    """Word pairs with optional gold labels."""

    pairs: tuple[WordPair, ...]
    is_same: PairLabels | None = None  # whether each pair has the same sense (pair,); None if unknown


@dataclass(frozen=True, eq=False)
class PairJudgments:
    """Judgments about word pairs from the vectors of one layer.

    Attributes:
        layer: Name of the layer.
        threshold: Pairs with at least this cosine are judged to have the same sense.
        tuned: Accuracy on the pairs that the threshold was tuned on.
        accuracy: Accuracy on the judged pairs; None without gold labels.
        interval: 95% confidence interval of the accuracy (Wilson); None without gold labels.
        is_same: Whether each pair is judged to have the same sense (pair,).
    """

    layer: str
    threshold: float
    tuned: float
    accuracy: float | None
    interval: tuple[float, float] | None
    is_same: PairLabels

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        names = ("layer", "threshold", "tuned", "accuracy", "interval")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class PairSimilarities:
    """The cosines of word pairs and the judgments about them, by layer ("0", "1", …, "average")."""

    data: LabeledPairs
    cosines: Mapping[str, Cosines]  # cosine of each pair (pair,)
    judgments: Mapping[str, PairJudgments]  # empty if no thresholds were tuned

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per pair and layer, with the cosine, the judgment (T, F or None) and the sentences."""
        for k, pair in enumerate(self.data.pairs):
            for layer, cosines in self.cosines.items():
                judged = self.judgments.get(layer)
                yield {
                    "pair": k + 1,
                    "word": pair.word,
                    "pos": pair.pos,
                    "layer": layer,
                    "cosine": float(cosines[k]),
                    "judgement": None if judged is None else "T" if judged.is_same[k] else "F",
                    "first": "{}[{}]{}".format(*pair.first.parts()),
                    "second": "{}[{}]{}".format(*pair.second.parts()),
                }


def compare_pairs(
    elmo: Elmo,
    data: LabeledPairs,
    *,
    tune: LabeledPairs | None = None,
    layers: LayerChoice | int = "sense",
    start: Start = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> PairSimilarities:
    """Compute the cosine of each pair and judge whether it has the same sense.

    Args:
        elmo: The model.
        data: The pairs. If they have gold labels, the accuracy of the judgments is computed.
        tune: Labeled pairs for tuning the thresholds. Without them, only cosines are computed.
        layers: Layers of the vectors, as in ``Elmo.encode``; ``"all"`` compares each layer and their average.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.
        on_progress: Called with the number of pairs that are compared so far.
    """
    cosines = _compute_cosines(elmo, data.pairs, layers=layers, start=start, on_progress=on_progress)
    judgments: dict[str, PairJudgments] = {}
    if tune is not None and tune.is_same is not None:
        tuned_cosines = _compute_cosines(elmo, tune.pairs, layers=layers, start=start)
        for layer in cosines:
            threshold = best_threshold(tuned_cosines[layer], tune.is_same)
            is_same = cosines[layer] >= threshold
            tuned = float(((tuned_cosines[layer] >= threshold) == tune.is_same).mean())
            accuracy = interval = None
            if data.is_same is not None:
                n_right, n = int((is_same == data.is_same).sum()), len(data.is_same)
                accuracy, interval = n_right / n, wilson_interval(n_right, n)
            judgments[layer] = PairJudgments(layer, threshold, tuned, accuracy, interval, is_same)
    return PairSimilarities(data, cosines, judgments)


def _compute_cosines(
    elmo: Elmo,
    pairs: Sequence[WordPair],
    *,
    layers: LayerChoice | int,
    start: Start,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Cosines]:
    values: dict[str, list[float]] = {}
    for begin in range(0, len(pairs), _BATCH_PAIRS):
        batch = pairs[begin : begin + _BATCH_PAIRS]
        usages = [usage for pair in batch for usage in (pair.first, pair.second)]
        vectors = embed_usages(elmo, usages, layers="concat" if layers == "all" else layers, start=start).vectors
        by_layer = {str(layers): vectors}
        if layers == "all":
            stacked = vectors.reshape(len(vectors), elmo.n_layers, -1)
            by_layer = {str(k): stacked[:, k] for k in range(elmo.n_layers)} | {"average": stacked.mean(axis=1)}
        for layer, rows in by_layer.items():
            cosines = [similarity(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            values.setdefault(layer, []).extend(cosines)
        if on_progress is not None:
            on_progress(begin + len(batch))
    return {layer: np.array(cosines) for layer, cosines in values.items()}


def best_threshold(cosines: Cosines, is_same: PairLabels) -> float:
    """Return the threshold with the best accuracy on labeled pairs; ``is_same`` (pair,) has the labels.

    Pairs with at least this cosine are judged to have the same sense. If several thresholds are equally good, the
    lowest is returned.
    """
    if not len(cosines) or len(cosines) != len(is_same):
        raise DataError(
            f"expected one label per pair and at least one pair, found {len(is_same)} labels and {len(cosines)} pairs"
        )
    order = np.argsort(cosines, kind="stable")
    steps, first = np.unique(cosines[order], return_index=True)
    n_same_below = np.concatenate([[0], np.cumsum(is_same[order])])[first]  # judged wrongly at each threshold
    n_right = (first - n_same_below) + (int(is_same.sum()) - n_same_below)
    n_different = len(is_same) - int(is_same.sum())  # number of correct judgments if all pairs are judged different
    if n_different > n_right.max():
        return float(np.nextafter(steps[-1], np.inf))
    return float(steps[int(n_right.argmax())])


def wilson_interval(n_right: int, n: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Return the confidence interval of a proportion (Wilson 1927); the default is a 95% interval."""
    share, spread = n_right / n, z * z / n
    center = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, center - half), min(1.0, center + half)


# --- Files ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WicFiles:
    """The files of a WiC folder."""

    data: Path  # pairs to judge
    gold: Path | None = None  # labels of these pairs
    tune: tuple[Path, Path] | None = None  # pairs to tune the thresholds on, and their labels


def find_wic_files(folder: str | Path, *, tune: tuple[Path, Path] | None = None) -> WicFiles:
    """Find the files of a WiC folder.

    The pairs to judge are those of dev; without dev, those of test; without dev and test, those of train. Thresholds
    are tuned on ``tune`` (data and gold file) or, by default, on train. Without pairs to tune on, ``gold`` is None.
    """
    root = Path(folder)
    parts = {name: [_find_file(root, f"{name}.{kind}.txt") for kind in ("data", "gold")]
             for name in ("dev", "test", "train")}  # fmt: skip
    name, data, gold = next(((name, *files) for name, files in parts.items() if files[0]), ("", None, None))
    if data is None:
        raise DataError(f"{format_path(root)}: expected dev.data.txt, test.data.txt or train.data.txt, found none")
    train_data, train_gold = parts["train"]
    if tune is None and name != "train" and train_data and train_gold:
        tune = train_data, train_gold
    return WicFiles(data, gold if tune else None, tune)


def _find_file(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    return next((path for path in candidates if path.is_file()), None)


def read_pairs(data: str | Path, gold: str | Path | None = None) -> LabeledPairs:
    """Read the pairs of a data file and, with ``gold``, their labels; the files may be compressed."""
    with closing(read_lines(Path(data))) as lines:  # so that an error closes the file at once
        pairs = tuple(_parse_pair(line) for line in lines if line.text.strip())
    if not pairs:
        raise DataError(f"{format_path(str(data))}: expected pairs of sentences, found none")
    if gold is None:
        return LabeledPairs(pairs)
    with closing(read_lines(Path(gold))) as lines:
        labels = [_parse_label(line) for line in lines if line.text.strip()]
    if len(labels) != len(pairs):
        raise DataError(f"{format_path(str(gold))}: expected {len(pairs):,} lines, one per pair, found {len(labels):,}")
    return LabeledPairs(pairs, np.array(labels))


def _parse_label(line: Line) -> bool:
    if line.text.strip() not in ("T", "F"):
        raise DataError(f"{line.path}:{line.number}: expected T or F, found {line.text[:40]!r}")
    return line.text.strip() == "T"


def _parse_pair(line: Line) -> WordPair:
    location = f"{line.path}:{line.number}"
    columns = line.text.split("\t")
    if len(columns) != 5:
        raise DataError(
            f"{location}: expected 5 columns (word, part of speech, indexes, two sentences), found {len(columns)}"
        )
    word, pos, indexes, *sentences = columns
    match = _INDEXES.fullmatch(indexes.strip())
    if match is None:
        raise DataError(f"{location}: expected indexes such as 2-5 in column 3, found {indexes[:40]!r}")
    tokenize = WhitespaceTokenizer()
    usages = []
    for number, (index, text) in enumerate(zip(match.groups(), sentences, strict=True), start=1):
        tokens = tokenize(text)
        if int(index) >= len(tokens):
            raise DataError(
                f"{location}: expected an index below {len(tokens)}, the number of tokens in sentence "
                f"{number}, found {index}"
            )
        usages.append(Usage(tokens, int(index), int(index) + 1, location))
    return WordPair(word, pos, *usages)
