"""Exact match and F1 of predicted answers.

The default rules are those of SQuAD 1.1 (Rajpurkar et al. 2016): case, ASCII punctuation, the articles "a", "an"
and "the" and extra white space are ignored; F1 is computed over the words that two answers share; the gold answer
that matches best counts. These rules treat a Chinese answer as a single word.

``by_character`` follows the rules of CMRC 2018 (Cui et al. 2019): each Chinese character and each word in another
script is a unit, F1 is computed over the longest common sequence of consecutive units, and the punctuation marks in
CMRC's list are ignored. CMRC splits words with NLTK; here a punctuation mark next to a word is a separate unit.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from elmo.errors import DataError
from elmo.text.english import HAN

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_HAN = re.compile(f"[{HAN}]")
_UNIT = re.compile(rf"[{HAN}]|[^\W{HAN}]+(?:[.,'][^\W{HAN}]+)*|[^\w\s]")


@dataclass(frozen=True)
class AnswerScores:
    """Exact match and F1, averaged over questions."""

    exact_match: float
    f1: float
    n_questions: int


def is_mostly_chinese(gold: Sequence[Sequence[str]]) -> bool:
    """Return whether more than half of the characters of all gold answers, without white space, are Chinese."""
    text = "".join("".join(answer.split()) for answers in gold for answer in answers)
    return 2 * len(_HAN.findall(text)) > len(text)


def answer_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[str | None], *, by_character: bool = False
) -> AnswerScores:
    """Compute the mean exact match and F1 over questions; a missing answer (None) scores 0."""
    if not gold:
        raise DataError("cannot compute scores: there are no questions")
    n_exact, f1 = 0, 0.0
    for k, (answers, answer) in enumerate(zip(gold, predicted, strict=True)):
        if not answers:
            raise DataError(f"question {k + 1} must have a gold answer; found none")
        if answer is not None:
            n_exact += is_exact_match(answer, answers, by_character=by_character)
            f1 += answer_f1(answer, answers, by_character=by_character)
    return AnswerScores(n_exact / len(gold), f1 / len(gold), len(gold))


def is_exact_match(answer: str, gold: Sequence[str], *, by_character: bool = False) -> bool:
    """Return whether an answer equals one of the gold answers after normalization."""
    normalize = _strip_cmrc_punctuation if by_character else normalize_answer
    return normalize(answer) in map(normalize, gold)


def answer_f1(answer: str, gold: Sequence[str], *, by_character: bool = False) -> float:
    """Compute F1 between an answer and the gold answer that matches best."""
    split = _split_units if by_character else _split_words
    count_shared = _count_longest_run if by_character else _count_common
    units = split(answer)
    return max(_f1(count_shared(units, gold_units), units, gold_units) for gold_units in map(split, gold))


def normalize_answer(text: str) -> str:
    """Normalize an answer by the rules of SQuAD: lower case, without punctuation, articles and extra space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(n_shared: int, predicted: Sequence[str], gold: Sequence[str]) -> float:
    # 0 even if both are empty, as in SQuAD 1.1
    return 2 * n_shared / (len(predicted) + len(gold)) if n_shared else 0.0


def _split_words(text: str) -> list[str]:
    return normalize_answer(text).split()


def _count_common(predicted: Sequence[str], gold: Sequence[str]) -> int:
    return (Counter(predicted) & Counter(gold)).total()


def _split_units(text: str) -> list[str]:
    return _UNIT.findall(_strip_cmrc_punctuation(text))


def _count_longest_run(predicted: Sequence[str], gold: Sequence[str]) -> int:
    return SequenceMatcher(None, predicted, gold, autojunk=False).find_longest_match().size


def _strip_cmrc_punctuation(text: str) -> str:
    return text.lower().strip().translate(_NO_CMRC_PUNCTUATION)
