"""Exact match and F1 of answers to questions.

The default rules are those of SQuAD 1.1 (Rajpurkar et al. 2016): case, ASCII punctuation, the articles a, an,
the and extra white space are ignored; F1 is computed over the words that two answers share; the best match
among the true answers counts. These rules treat a Chinese answer as a single word. ``by_character`` follows
CMRC 2018 (Cui et al. 2019) instead: each Chinese character and each word in another script is a unit, F1 is
computed over the longest common run of units, and CMRC's list of punctuation is ignored. CMRC splits words
with NLTK; here a punctuation mark next to a word is a separate unit.
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
    """Mean scores over questions."""

    exact_match: float
    f1: float
    n_questions: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def is_mostly_chinese(gold: Sequence[Sequence[str]]) -> bool:
    """Whether more than half of the characters of the true answers, without white space, are Chinese."""
    text = "".join("".join(answer.split()) for answers in gold for answer in answers)
    return 2 * len(_HAN.findall(text)) > len(text)


def answer_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[str | None], *, by_character: bool = False
) -> AnswerScores:
    """Average over questions the best match with a true answer; a missing answer (None) scores 0."""
    if len(gold) != len(predicted) or not gold:
        raise DataError(f"expected one answer per question ({len(gold):,}), found {len(predicted):,} answers")
    n_exact, f1 = 0, 0.0
    for k, (answers, answer) in enumerate(zip(gold, predicted, strict=True)):
        if not answers:
            raise DataError(f"question {k + 1}: expected a true answer to compare with, found none")
        if answer is not None:
            n_exact += is_exact_match(answer, answers, by_character=by_character)
            f1 += answer_f1(answer, answers, by_character=by_character)
    return AnswerScores(n_exact / len(gold), f1 / len(gold), len(gold))


def is_exact_match(answer: str, gold: Sequence[str], *, by_character: bool = False) -> bool:
    """Whether a normalized answer equals one of the true ones."""
    normalize = _strip_cmrc_punctuation if by_character else normalize_answer
    return normalize(answer) in map(normalize, gold)


def answer_f1(answer: str, gold: Sequence[str], *, by_character: bool = False) -> float:
    """F1 between the units of an answer and those of the true answer that fits best."""
    split = _split_units if by_character else _split_words
    count_shared = _longest_common_run if by_character else _count_common
    units = split(answer)
    return max(_f1(count_shared(units, true), units, true) for true in map(split, gold))


def normalize_answer(text: str) -> str:
    """Normalize an answer by the rules of SQuAD."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(n_shared: int, predicted: Sequence[str], true: Sequence[str]) -> float:
    # 0 even if both are empty, as in SQuAD 1.1
    return 2 * n_shared / (len(predicted) + len(true)) if n_shared else 0.0


def _split_words(text: str) -> list[str]:
    return normalize_answer(text).split()


def _count_common(predicted: Sequence[str], true: Sequence[str]) -> int:
    return (Counter(predicted) & Counter(true)).total()


def _split_units(text: str) -> list[str]:
    return _UNIT.findall(_strip_cmrc_punctuation(text))


def _longest_common_run(predicted: Sequence[str], true: Sequence[str]) -> int:
    return SequenceMatcher(None, predicted, true, autojunk=False).find_longest_match().size


def _strip_cmrc_punctuation(text: str) -> str:
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)
