"""Minimal pairs: whether the language models prefer the acceptable sentence of each pair (BLiMP, Warstadt et al. 2020).

A file has a pair in each line: JSON objects with the keys ``sentence_good`` and ``sentence_bad``, as in BLiMP, or
tab-separated columns with these names in the first line. The phenomenon is ``phenomenon``, ``linguistics_term`` or
``UID``, the first of these that a pair has.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import DataError
from elmo.predict.scores import Scorer, Start, load_model
from elmo.predict.texts import AnyTokenizer, read_text
from elmo.storage.files import format_path
from elmo.text.lines import Line, read_lines, unescape_field

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.formats.pretrained import Pretrained

_GOOD, _BAD = "sentence_good", "sentence_bad"
_PHENOMENA = ("phenomenon", "linguistics_term", "UID")


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable sentence, and one that differs little from it and is not acceptable.

    Attributes:
        good: The acceptable sentence.
        bad: The other sentence.
        phenomenon: What the pair tests, such as anaphor_agreement.

    Example:
        >>> pair = MinimalPair("They see themselves.", "They see itself.", "agreement")
    """

    good: str
    bad: str
    phenomenon: str = ""


@dataclass(frozen=True)
class MinimalPairScores:
    """The log-probabilities of both sentences of a pair in nats; None if the model does not have the direction.

    Attributes:
        pair: The pair.
        good: Log-probability of the acceptable sentence, forward and backward.
        bad: Log-probability of the other sentence, forward and backward.
    """

    pair: MinimalPair
    good: tuple[float | None, float | None]
    bad: tuple[float | None, float | None]

    @property
    def is_right(self) -> dict[str, bool]:
        """Whether the good sentence is more probable: forward, backward, and by the sum of both (``both``)."""
        values: dict[str, bool] = {}
        for name, good, bad in zip(("forward", "backward"), self.good, self.bad, strict=True):
            if good is not None and bad is not None:
                values[name] = good > bad
        return values | {"both": sum(x or 0 for x in self.good) > sum(x or 0 for x in self.bad)}


def read_minimal_pairs(path: str | Path) -> list[MinimalPair]:
    """Read minimal pairs from a file of JSON lines, as in BLiMP, or of tab-separated columns.

    Args:
        path: The file, plain or compressed.

    Example:
        >>> read_minimal_pairs("agreement.tsv")[0].bad
        'The keys is here.'
    """
    pairs: list[MinimalPair] = []
    columns: list[str] | None = None
    for line in read_lines(Path(path)):
        if not line.text.strip():
            continue
        if columns is None and not line.text.lstrip().startswith("{"):
            columns = line.text.split("\t")
            if not {_GOOD, _BAD} <= {*columns}:
                raise DataError(
                    f"{line.path}:{line.number}: expected JSON lines, or columns with {_GOOD} and {_BAD}; "
                    f"found {line.text[:60]!r}"
                )
            continue
        pairs.append(_build_pair(_parse_json(line) if columns is None else _parse_columns(line, columns), line))
    if not pairs:
        raise DataError(f"{format_path(path)}: expected minimal pairs; found none")
    return pairs


def score_minimal_pairs(
    model: Elmo | Pretrained | str | Path | None,
    pairs: Sequence[MinimalPair],
    *,
    start: Start = "zero",
    tokenizer: AnyTokenizer | None = None,
    device: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[MinimalPairScores]:
    """Yield the log-probabilities of the sentences of each pair, in order.

    Args:
        model: A model with a softmax, or a name as in ``Elmo.from_pretrained``; None is the default model.
        pairs: The pairs.
        start: State at the start of a sentence, zero or warm.
        tokenizer: Tokenizer to use instead of that of the model.
        device: Device on which the model is loaded; not used if ``model`` is an ``Elmo``.
        on_progress: Called with the number of sentences and of tokens done.

    Example:
        >>> from elmo.predict import MinimalPair, score_minimal_pairs
        >>> (scores,) = score_minimal_pairs("en", [MinimalPair("They see themselves.", "They see itself.")])
        >>> sorted(scores.is_right)
        ['backward', 'both', 'forward']
    """
    elmo = load_model(model, tokenizer, device)
    texts = [[text] for pair in pairs for text in (pair.good, pair.bad)]
    sentences = (sentence for text in texts for sentence in read_text(text, tokenizer=tokenizer or elmo.tokenizer))
    results = Scorer(elmo, starts=[start]).score(sentences, blank_lines=True, on_progress=on_progress)
    for pair, (good,), (bad,) in zip(pairs, results, results, strict=True):
        yield MinimalPairScores(pair, good.sums, bad.sums)


def count_right(scores: Sequence[MinimalPairScores]) -> dict[str, dict[str, float]]:
    """Return the number of pairs and the accuracy of each direction by phenomenon, and of all pairs as ``all``.

    Args:
        scores: The scores of the pairs.

    Example:
        >>> scores = list(score_minimal_pairs("en", [MinimalPair("The keys are here.", "The keys is here.")]))
        >>> sorted(count_right(scores)["all"])
        ['backward', 'both', 'forward', 'pairs']
    """
    groups: defaultdict[str, list[MinimalPairScores]] = defaultdict(list)
    for result in scores:
        groups[result.pair.phenomenon].append(result)
    accuracies: dict[str, dict[str, float]] = {}
    for name, group in [*sorted(groups.items()), ("all", list(scores))]:
        rights = [result.is_right for result in group]
        accuracies[name] = {"pairs": len(group)} | {
            key: sum(right[key] for right in rights) / len(rights) for key in rights[0]
        }
    return accuracies


def _parse_json(line: Line) -> Mapping[str, Any]:
    try:
        value = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{line.path}:{line.number}: expected a JSON object; found {line.text[:40]!r}") from error
    if not isinstance(value, dict):
        raise DataError(f"{line.path}:{line.number}: expected a JSON object; found {line.text[:40]!r}")
    return value


def _parse_columns(line: Line, columns: Sequence[str]) -> Mapping[str, Any]:
    fields = line.text.split("\t")
    if len(fields) != len(columns):
        raise DataError(f"{line.path}:{line.number}: expected {len(columns)} columns; found {len(fields)}")
    return dict(zip(columns, map(unescape_field, fields), strict=True))


def _build_pair(values: Mapping[str, Any], line: Line) -> MinimalPair:
    good, bad = values.get(_GOOD), values.get(_BAD)
    for name, text in ((_GOOD, good), (_BAD, bad)):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{line.path}:{line.number}: {name} must be a sentence; found {text!r:.40}")
    phenomenon = next((str(values[name]) for name in _PHENOMENA if values.get(name)), "")
    return MinimalPair(str(good), str(bad), phenomenon)
