"""Compare a word in two sentences, and judge whether it has the same sense (Words in Context, WiC).

``read_pairs`` reads the files of WiC and of data sets like it. Their gold labels say whether the word has the same
sense (T or F), or how similar its two usages are (a number). A pair is judged to have the same sense if its cosine
reaches a threshold, which is tuned on other pairs; graded labels are compared with the cosines by their rank
correlation.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.embed.encoding import LayerChoice, similarity
from elmo.embed.find import parse_mark
from elmo.errors import ConfigError, DataError
from elmo.lexicon.change import rank_correlation
from elmo.lexicon.usages import Usage, embed_usages, respell, usage_at
from elmo.storage.files import format_path
from elmo.text.lines import read_lines
from elmo.text.tokenizers import Tokenizer, WhitespaceTokenizer, load_tokenizer

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start

Cosines = NDArray[np.float64]
PairLabels = NDArray[np.bool_]
Part = Literal["dev", "test", "train"]
_SUFFIXES = ("", ".xz", ".gz", ".bz2", ".zst")
_POSITION = r"([0-9]{1,6})(?::([0-9]{1,6}))?"
_POSITIONS = re.compile(f"{_POSITION}-{_POSITION}")
_JSON_LIST = re.compile(r"\s*\[\s*(?:[{\"]|\Z)")  # not a sentence that begins with a bracket, such as [1] or [[this]]
_BATCH_PAIRS = 256


@dataclass(frozen=True)
class WordPair:
    """A word in two sentences; ``word`` is spelled as in the file, usually as a lemma.

    Attributes:
        word: The word, usually a lemma.
        pos: Part of speech, as in the file.
        first: The word in the first sentence.
        second: The word in the second sentence.

    Example:
        >>> first, second = (find_marked_usage(elmo.tokenizer, text) for text in ("The [[bank]].", "Her [[bank]]."))
        >>> pair = WordPair("bank", "NOUN", first, second)
    """

    word: str
    pos: str
    first: Usage
    second: Usage


@dataclass(frozen=True, eq=False)
class LabeledPairs:
    """Word pairs with optional gold labels.

    Attributes:
        pairs: The pairs.
        is_same: Whether each pair has the same sense (pair,); None if unknown.
        scores: Graded similarity of each pair (pair,); None if unknown.
    """

    pairs: tuple[WordPair, ...]
    is_same: PairLabels | None = None
    scores: Cosines | None = None


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
    """The cosines of word pairs and the judgments about them, by layer ("0", "1", …, "average").

    Attributes:
        data: The pairs.
        cosines: Cosine of each pair (pair,), by layer.
        judgments: Judgments by layer; empty if no thresholds were tuned.
    """

    data: LabeledPairs
    cosines: Mapping[str, Cosines]
    judgments: Mapping[str, PairJudgments]

    @property
    def correlations(self) -> dict[str, float | None]:
        """Spearman correlation of the cosines of each layer with graded labels; empty without such labels.

        None if all cosines or all labels are equal.
        """
        scores = self.data.scores
        return {} if scores is None else {name: rank_correlation(row, scores) for name, row in self.cosines.items()}

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
    is_respelled: bool = False,
    start: Start = "zero",
    on_progress: Callable[[int], None] | None = None,
) -> PairSimilarities:
    """Compute the cosine of each pair and judge whether it has the same sense.

    Args:
        elmo: The model.
        data: The pairs. If they have gold labels, the accuracy of the judgments is computed.
        tune: Labeled pairs for tuning the thresholds. Without them, only cosines are computed.
        layers: Layers of the vectors, as in ``Elmo.encode``; ``"all"`` compares each layer and their average.
        is_respelled: Replace the word in both sentences by the word of the pair, such as its lemma, so that different
            forms do not make usages less similar.
        start: LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'.
        on_progress: Called with the number of pairs that are compared so far.

    Example:
        >>> data = read_pairs("pairs.tsv", tokenizer=elmo.tokenizer)
        >>> result = compare_pairs(elmo, data, tune=data)
        >>> result.judgments["sense"].accuracy
        1.0
    """
    if tune is not None and tune.is_same is None:
        raise DataError("pairs to tune a threshold need the labels T or F")
    usages = _list_usages(data.pairs, is_respelled=is_respelled)
    cosines = _compute_cosines(elmo, usages, layers=layers, start=start, on_progress=on_progress)
    judgments: dict[str, PairJudgments] = {}
    if tune is not None and tune.is_same is not None:
        tuned_usages = _list_usages(tune.pairs, is_respelled=is_respelled)
        tuned_cosines = _compute_cosines(elmo, tuned_usages, layers=layers, start=start)
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


def _list_usages(pairs: Sequence[WordPair], *, is_respelled: bool) -> list[Usage]:
    """Return the two usages of each pair, one after the other."""
    usages = [(usage, pair.word) for pair in pairs for usage in (pair.first, pair.second)]
    return [respell(usage, word) if is_respelled else usage for usage, word in usages]


def _compute_cosines(
    elmo: Elmo,
    usages: Sequence[Usage],
    *,
    layers: LayerChoice | int,
    start: Start,
    on_progress: Callable[[int], None] | None = None,
) -> dict[str, Cosines]:
    values: dict[str, list[float]] = {}
    for begin in range(0, len(usages), 2 * _BATCH_PAIRS):
        batch = usages[begin : begin + 2 * _BATCH_PAIRS]
        vectors = embed_usages(elmo, batch, layers="concat" if layers == "all" else layers, start=start).vectors
        by_layer = {str(layers): vectors}
        if layers == "all":
            stacked = vectors.reshape(len(vectors), elmo.n_layers, -1)
            by_layer = {str(k): stacked[:, k] for k in range(elmo.n_layers)} | {"average": stacked.mean(axis=1)}
        for layer, rows in by_layer.items():
            cosines = [similarity(a, b) for a, b in zip(rows[::2], rows[1::2], strict=True)]
            values.setdefault(layer, []).extend(cosines)
        if on_progress is not None:
            on_progress((begin + len(batch)) // 2)
    return {layer: np.array(cosines) for layer, cosines in values.items()}


def best_threshold(cosines: Cosines, is_same: PairLabels) -> float:
    """Return the threshold with the best accuracy on labeled pairs; ``is_same`` (pair,) has the labels.

    Pairs with at least this cosine are judged to have the same sense. If several thresholds are equally good, the
    lowest is returned.

    Args:
        cosines: Cosine of each pair, (pair,).
        is_same: Whether each pair has the same sense, (pair,).

    Example:
        >>> threshold = best_threshold(np.array([0.9, 0.8, 0.3]), np.array([True, True, False]))
        >>> bool(0.3 < threshold <= 0.8)
        True
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


def find_wic_files(folder: str | Path, *, part: Part | None = None, tune: tuple[Path, Path] | None = None) -> WicFiles:
    """Find the files of a WiC folder. Without pairs to tune a threshold on, ``gold`` is None.

    Args:
        folder: A folder with files such as ``dev.data.txt`` and ``dev.gold.txt``, plain or compressed.
        part: The pairs to judge. Default: those of dev; without dev, those of test; without both, those of train.
        tune: Data and gold file of other pairs, to tune thresholds on. Default: those of train.

    Example:
        >>> find_wic_files("path/to/wic", part="dev")  # doctest: +SKIP
    """
    root = Path(folder)
    if part not in (None, *get_args(Part)):
        raise ConfigError(f"part must be one of {', '.join(get_args(Part))}; found {part!r:.40}")
    parts = {name: [_find_file(root, f"{name}.{kind}.txt") for kind in ("data", "gold")] for name in get_args(Part)}
    names = get_args(Part) if part is None else (part,)
    name, data, gold = next(((name, *parts[name]) for name in names if parts[name][0]), ("", None, None))
    if data is None:
        expected = " or ".join(f"{name}.data.txt" for name in names)
        raise DataError(f"{format_path(root)}: expected {expected}, found none")
    train_data, train_gold = parts["train"]
    if tune is None and name != "train" and train_data and train_gold:
        tune = train_data, train_gold
    return WicFiles(data, gold if tune else None, tune)


def _find_file(folder: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{suffix}" for suffix in _SUFFIXES]
    return next((path for path in candidates if path.is_file()), None)


def read_pairs(data: str | Path, gold: str | Path | None = None, *, tokenizer: Tokenizer | None = None) -> LabeledPairs:
    r"""Read pairs of sentences and their labels. The format is detected from each line.

    - 5 columns, as in WiC: word, part of speech, the positions of the word such as ``2-5`` (token indexes from 0, or
      ranges such as ``2:4-5:7`` for phrases), and two tokenized sentences.
    - 8 or 9 columns, as in XL-WiC: word, part of speech, begin and end of the word in both sentences in characters,
      the sentences, and a label.
    - 2 or 3 columns: two sentences with the word marked like ``[[this]]``, and a label.
    - JSON lines or a JSON list, as in SuperGLUE and MCL-WiC: objects with ``sentence1``, ``sentence2``, ``start1``,
      ``end1``, ``start2``, ``end2`` in characters, and optionally ``word`` or ``lemma``, ``pos``, and ``label`` or
      ``tag``.

    Columns are separated by tabs. Labels are T or F (also true, false, 1 and 0; case does not matter), or numbers for
    graded similarity.

    Args:
        data: File of pairs, plain or compressed.
        gold: File with the label of each pair: the last column of each line, or JSON. Default: the labels in ``data``,
            if any.
        tokenizer: Tokenizer for sentences that are not tokenized. Default: the English one.

    Example:
        >>> data = read_pairs("pairs.tsv")
        >>> [pair.word for pair in data.pairs], data.is_same.tolist()
        (['bank', 'bank'], [True, False])
    """
    tokenize = tokenizer or load_tokenizer()
    with closing(_read_rows(Path(data))) as lines:  # so that an error closes the file at once
        rows = [_parse_row(row, location, tokenize) for row, location in lines]
    if not rows:
        raise DataError(f"{format_path(str(data))}: expected pairs of sentences, found none")
    pairs = tuple(pair for pair, _ in rows)
    if gold is None:
        labels = [(label, pair.first.place) for pair, label in rows if label is not None]
        if not labels:
            return LabeledPairs(pairs)
        expected = f"{len(pairs):,} labels, one per pair"
    else:
        with closing(_read_rows(Path(gold))) as lines:
            labels = [(_find_label(row, location), location) for row, location in lines]
        expected = f"{len(pairs):,} lines, one per pair"
    values = _parse_labels(labels)
    if len(labels) != len(pairs):
        raise DataError(f"{format_path(str(gold or data))}: expected {expected}, found {len(labels):,}")
    return LabeledPairs(pairs, *values)


_Row = str | Mapping[str, Any]  # a line, or an object of JSON
_LABELS = {"t": True, "f": False, "true": True, "false": False, "1": True, "0": False}  # in lower case


def _read_rows(path: Path) -> Generator[tuple[_Row, str]]:
    """Yield the lines or the JSON objects of a file, with their locations."""
    with closing(read_lines(path)) as lines:
        filled = (line for line in lines if line.text.strip())
        for line in filled:
            location = f"{line.path}:{line.number}"
            if _JSON_LIST.match(line.text):
                text = "\n".join([line.text, *(other.text for other in filled)])
                if isinstance(values := _parse_json(text, location), list):
                    yield from ((value, f"{line.path}: entry {k}") for k, value in enumerate(values, start=1))
                    return
            yield (_parse_json(line.text, location) if line.text.lstrip().startswith("{") else line.text), location


def _parse_json(text: str, location: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{location}: expected JSON, found {text[:40]!r}") from error


def _parse_row(row: _Row, location: str, tokenize: Tokenizer) -> tuple[WordPair, str | None]:
    """Return a pair, and its label if it has one."""
    if not isinstance(row, str):
        return _parse_object(row, location, tokenize)
    columns = row.split("\t")
    if len(columns) == 5:
        return _parse_wic(columns, location), None
    if len(columns) in (8, 9):
        word, pos, *spans = columns[:6]
        usages = [
            _find_characters(text, begin, end, location, tokenize)
            for text, begin, end in zip(columns[6:8], spans[::2], spans[1::2], strict=True)
        ]
        return WordPair(word, pos, *usages), (columns[8].strip() if len(columns) == 9 else None)
    if len(columns) in (2, 3):
        usages = [_find_mark(text, location, tokenize) for text in columns[:2]]
        return WordPair(usages[0].word, "", *usages), (columns[2].strip() if len(columns) == 3 else None)
    raise DataError(
        f"{location}: expected 5 columns (word, part of speech, positions, two sentences), 8 or 9 with positions in "
        f"characters, or two sentences with a word marked like [[this]], found {len(columns)} columns"
    )


def _parse_wic(columns: Sequence[str], location: str) -> WordPair:
    word, pos, positions, *sentences = columns
    match = _POSITIONS.fullmatch(positions.strip())
    if match is None:
        raise DataError(f"{location}: expected positions such as 2-5 or 2:4-5:7 in column 3, found {positions[:40]!r}")
    tokenize = WhitespaceTokenizer()
    usages: list[Usage] = []
    for number, text in enumerate(sentences, start=1):
        tokens = tokenize(text)
        begin = int(match[2 * number - 1])
        end = begin + 1 if match[2 * number] is None else int(match[2 * number])
        if not begin < end <= len(tokens):
            raise DataError(
                f"{location}: expected a position below {len(tokens)}, the number of tokens in sentence {number}, "
                f"found {begin}" + (f":{end}" if match[2 * number] else "")
            )
        usages.append(Usage(tokens, begin, end, location))
    return WordPair(word, pos, *usages)


def _parse_object(row: Mapping[str, Any], location: str, tokenize: Tokenizer) -> tuple[WordPair, str | None]:
    usages: list[Usage] = []
    for number in (1, 2):
        text = row.get(f"sentence{number}") if isinstance(row, Mapping) else None
        if not isinstance(text, str):
            raise DataError(f"{location}: expected an object with sentence1 and sentence2, found {str(row)[:40]!r}")
        begin, end = (row.get(f"{name}{number}") for name in ("start", "end"))
        is_marked = begin is None and end is None
        usages.append(
            _find_mark(text, location, tokenize)
            if is_marked
            else _find_characters(text, str(begin), str(end), location, tokenize)
        )
    word = next((str(row[name]) for name in ("word", "lemma") if row.get(name)), usages[0].word)
    label = next((row[name] for name in ("label", "tag") if row.get(name) is not None), None)
    return WordPair(word, str(row.get("pos") or ""), *usages), None if label is None else _spell_label(label)


def _find_characters(text: str, begin: str, end: str, location: str, tokenize: Tokenizer) -> Usage:
    """Return the usage at a range of characters."""
    span = [int(value) if value.isascii() and value.isdigit() and len(value) < 8 else -1 for value in (begin, end)]
    if not 0 <= span[0] < span[1] <= len(text):
        raise DataError(
            f"{location}: expected a range of characters within 0:{len(text)}, found {begin[:20]}:{end[:20]} "
            f"in {text[:40]!r}"
        )
    return usage_at(tokenize(text), (span[0], span[1]), place=location)


def _find_mark(text: str, location: str, tokenize: Tokenizer) -> Usage:
    """Return the usage that is marked like ``[[this]]``."""
    try:
        plain, span = parse_mark(text, 1)
    except DataError as error:
        raise DataError(f"{location}: {str(error).removeprefix('sentence 1: ')}") from error
    if span is None:
        raise DataError(f"{location}: expected a word marked like [[this]], found none in {text[:40]!r}")
    return usage_at(tokenize(plain), span, place=location)


def _find_label(row: _Row, location: str) -> str:
    if isinstance(row, Mapping):
        row = next((_spell_label(row[name]) for name in ("label", "tag") if row.get(name) is not None), "")
    if not isinstance(row, str):
        raise DataError(f"{location}: expected an object with label or tag, found {str(row)[:40]!r}")
    return row.rpartition("\t")[2].strip()


def _spell_label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_labels(labels: Sequence[tuple[str, str]]) -> tuple[PairLabels | None, Cosines | None]:
    """Return whether each pair has the same sense, or graded labels; ``labels`` are strings with their locations."""
    if all(label.lower() in _LABELS for label, _ in labels):
        return np.array([_LABELS[label.lower()] for label, _ in labels]), None
    is_name = labels[0][0].lower() in ("t", "f", "true", "false")
    scores: list[float] = []
    for label, location in labels:
        try:
            scores.append(float(_LABELS[label.lower()]) if is_name else float(label))
        except (KeyError, ValueError):
            scores.append(math.nan)
        if not math.isfinite(scores[-1]):
            expected = "T or F" if is_name else "a number"
            raise DataError(f"{location}: expected {expected} for each pair, found {label[:40]!r}")
    return None, np.array(scores)
