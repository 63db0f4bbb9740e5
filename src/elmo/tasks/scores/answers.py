"""Answers to questions as people gave them and as they were predicted in, exact match and F1 out.

The rules are those of SQuAD 1.1 (Rajpurkar et al. 2016): case, ASCII punctuation, the words a, an, the and
extra white space do not count; F1 counts the words that two answers share; the true answer that fits best
counts. To them a Chinese answer is a single word. ``by_character`` follows CMRC 2018 (Cui et al. 2019)
instead: each Chinese character and each word of other scripts is a unit, F1 counts the longest run of units
that two answers share, and CMRC's list of punctuation does not count. CMRC parts words with NLTK; here a
mark of punctuation beside a word is a unit of its own. All scores are shares from 0 to 1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from elmo.errors import DataError
from elmo.text.english import HAN

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_HAN = re.compile(f"[{HAN}]")
_UNIT = re.compile(rf"[{HAN}]|[^\W{HAN}]+(?:[.,'][^\W{HAN}]+)*|[^\w\s]")


@dataclass(frozen=True)
class AnswerScores:
    """How well questions were answered, on average."""

    exact_match: float
    f1: float
    n_questions: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def is_mostly_chinese(gold: Sequence[Sequence[str]]) -> bool:
    """Whether more than half of the true answers' characters (white space aside) are Chinese ones."""
    text = "".join("".join(one.split()) for answers in gold for one in answers)
    return 2 * len(_HAN.findall(text)) > len(text)


def answer_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[str | None], *, by_character: bool = False
) -> AnswerScores:
    """The mean over questions of the best match with a true answer; None, no answer, counts 0."""
    if len(gold) != len(predicted) or not gold:
        raise DataError(f"expected an answer to each of {len(gold):,} questions, found {len(predicted):,}")
    n_exact, f1 = 0, 0.0
    for k, (answers, answer) in enumerate(zip(gold, predicted, strict=True)):
        if not answers:
            raise DataError(f"question {k + 1}: expected a true answer to compare with, found none")
        if answer is not None:
            n_exact += is_exact_match(answer, answers, by_character=by_character)
            f1 += answer_f1(answer, answers, by_character=by_character)
    return AnswerScores(n_exact / len(gold), f1 / len(gold), len(gold))


def is_exact_match(answer: str, gold: Sequence[str], *, by_character: bool = False) -> bool:
    """Whether an answer is, but for what does not count, one of the true ones."""
    normal = _without_cmrc_punctuation if by_character else normalised
    said = normal(answer)
    return any(normal(one) == said for one in gold)


def answer_f1(answer: str, gold: Sequence[str], *, by_character: bool = False) -> float:
    """The F1 of an answer's units with those of the true answer that it fits best."""
    if by_character:
        units = _units(answer)
        return max(_f1(_longest_run(units, one), units, one) for one in map(_units, gold))
    words = normalised(answer).split()
    return max(_f1(_n_shared(words, one), words, one) for one in (normalised(text).split() for text in gold))


def normalised(text: str) -> str:
    """What counts of an answer by SQuAD's rules."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(n_shared: int, said: Sequence[str], true: Sequence[str]) -> float:
    # 0 even where both are empty, as SQuAD 1.1 has it
    return 2 * n_shared / (len(said) + len(true)) if n_shared else 0.0


def _n_shared(said: Sequence[str], true: Sequence[str]) -> int:
    return (Counter(said) & Counter(true)).total()


def _longest_run(said: Sequence[str], true: Sequence[str]) -> int:
    return SequenceMatcher(None, said, true, autojunk=False).find_longest_match().size


def _without_cmrc_punctuation(text: str) -> str:
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)


def _units(text: str) -> list[str]:
    return _UNIT.findall(_without_cmrc_punctuation(text))
