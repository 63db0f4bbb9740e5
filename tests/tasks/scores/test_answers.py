"""Exact match and F1 of answers, by SQuAD's rules and by CMRC's."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import pytest

from elmo.errors import DataError
from elmo.tasks.scores.answers import (
    AnswerScores,
    answer_f1,
    answer_scores,
    is_exact_match,
    is_mostly_chinese,
    normalize_answer,
)

PIECES = [
    *("the", "The", "a", "an", "AN", "theory", "bath", "cat", "cat", "dog", "dog's", "a-b", "U.S.", "the-cat"),
    *("(the)", "1,000", "“cat”", "中文", "é", "_a_", "\t", "\u00a0", "--", ""),
]
MARKS = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
CMRC_MARKS = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")


def squad_words(text: str) -> list[str]:
    """The official rules, told another way: the words that are left, one by one."""
    kept = "".join(letter for letter in text.lower() if letter not in MARKS)
    # an article is a whole word: what stands between two changes from letters to others
    cuts = [0, *(match.start() for match in re.finditer(r"(?<=\w)(?=\W)|(?<=\W)(?=\w)", kept)), len(kept)]
    parts = [kept[begin:end] for begin, end in pairwise(cuts)]
    return "".join(" " if part in ("a", "an", "the") else part for part in parts).split()


def squad(answer: str, gold: list[str]) -> tuple[int, float]:
    exact, f1 = [], []
    for one in gold:
        said, true = squad_words(answer), squad_words(one)
        exact.append(" ".join(said) == " ".join(true))
        left, n_same = list(true), 0
        for word in said:  # each word of the truth is found once
            if word in left:
                left.remove(word)
                n_same += 1
        precision, recall = (n_same / max(len(words), 1) for words in (said, true))
        f1.append(2 * precision * recall / (precision + recall) if n_same else 0.0)
    return int(max(exact)), max(f1)


def test_scores_agree_with_the_rules_of_squad() -> None:
    random = Random(6)
    gold, said, expected = [], [], []
    for _ in range(1500):
        answers = [" ".join(random.choices(PIECES, k=random.randint(0, 4))) for _ in range(random.randint(1, 3))]
        answer = random.choice([*answers, " ".join(random.choices(PIECES, k=random.randint(0, 4)))])
        answer = random.choice([answer, answer.upper(), f"the {answer}!", f"{answer} dog"])
        exact, f1 = squad(answer, answers)
        assert normalize_answer(answer) == " ".join(squad_words(answer))
        assert is_exact_match(answer, answers) == exact, (answer, answers)
        assert answer_f1(answer, answers) == pytest.approx(f1, abs=1e-12), (answer, answers)
        gold.append(answers)
        said.append(answer)
        expected.append((exact, f1))
    scores = answer_scores(gold, said)
    assert scores.exact_match == pytest.approx(sum(exact for exact, _ in expected) / 1500)
    assert scores.f1 == pytest.approx(sum(f1 for _, f1 in expected) / 1500)
    assert all(0.2 < share < 0.8 for share in (scores.exact_match, scores.f1))  # many of either kind


def test_case_marks_articles_and_space_do_not_count_and_the_best_answer_does() -> None:
    assert is_exact_match(" the  Cat, ", ["dog", "cat"])
    assert not is_exact_match("cats", ["dog", "cat"])
    assert answer_f1("big cat", ["dog", "the cat"]) == pytest.approx(2 / 3)
    assert answer_f1("cat cat", ["cat"]) == pytest.approx(2 / 3)  # each word is found once


def test_answers_of_nothing_but_articles_match_yet_share_no_word() -> None:
    assert is_exact_match("the", ["a"])
    assert answer_f1("the", ["a"]) == 0.0  # as SQuAD 1.1 has it


def test_no_answer_counts_nought() -> None:
    assert answer_scores([["the"], ["cat"]], [None, "cat"]) == AnswerScores(0.5, 0.5, 2)
    assert answer_scores([["cat"]], ["cat"]) == AnswerScores(exact_match=1.0, f1=1.0, n_questions=1)


def test_a_chinese_answer_is_one_word_for_squad_and_characters_for_cmrc() -> None:
    assert answer_f1("中华人民", ["中华人民共和国"]) == 0.0
    assert answer_f1("中华人民", ["中华人民共和国"], by_character=True) == pytest.approx(8 / 11)
    assert is_exact_match("《红楼梦》。", ["红楼梦"], by_character=True)
    assert not is_exact_match("《红楼梦》。", ["红楼梦"])
    # the longest run counts, not the characters in any order
    assert answer_f1("国中", ["中国"], by_character=True) == pytest.approx(0.5)
    # words of other scripts are units; the article is one of them
    assert answer_f1("3.5 km的路", ["the 3.5 km"], by_character=True) == pytest.approx(2 * 2 / (4 + 3))
    assert answer_f1("iPhone手机", ["iphone"], by_character=True) == pytest.approx(2 / 4)


def cmrc_f1(answer: str, gold: list[str]) -> float:
    """The official rules, told another way: try every run of units."""

    def units(text: str) -> list[str]:
        kept = "".join(letter for letter in text.lower().strip() if letter not in CMRC_MARKS)
        return "".join(f" {one} " if "\u4e00" <= one <= "\u9fa5" else one for one in kept).split()

    best = 0.0
    for one in gold:
        said, true = units(answer), units(one)
        runs = {tuple(said[i:j]) for i in range(len(said)) for j in range(i + 1, len(said) + 1)}
        runs &= {tuple(true[i:j]) for i in range(len(true)) for j in range(i + 1, len(true) + 1)}
        longest = max(map(len, runs), default=0)
        if longest:
            precision, recall = longest / len(said), longest / len(true)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def test_scores_agree_with_the_rules_of_cmrc() -> None:
    random = Random(7)
    pieces = ["中", "国", "国", "人", "，", "。", "《", "》", "-", " ", "ab", "1999", "年"]
    for _ in range(1500):
        answers = ["".join(random.choices(pieces, k=random.randint(0, 8))) for _ in range(random.randint(1, 3))]
        answer = random.choice([*answers, "".join(random.choices(pieces, k=random.randint(0, 8)))])
        f1 = answer_f1(answer, answers, by_character=True)
        assert f1 == pytest.approx(cmrc_f1(answer, answers), abs=1e-12), (answer, answers)
        if answer in answers:
            assert is_exact_match(answer, answers, by_character=True)


def test_questions_without_a_true_answer_or_an_answer_are_refused() -> None:
    with pytest.raises(DataError, match="question 2 must have a gold answer; found none"):
        answer_scores([["a"], []], ["a", "b"])
    with pytest.raises(ValueError, match="argument 2 is longer"):
        answer_scores([["a"]], ["a", "b"])
    with pytest.raises(DataError, match="cannot compute scores: there are no questions"):
        answer_scores([], [])


def test_answers_are_chinese_where_most_of_their_characters_are() -> None:
    assert is_mostly_chinese([["北京大学", "北京 大学"], ["1922"]])
    assert not is_mostly_chinese([["北京"], ["in 1922"]])
    assert not is_mostly_chinese([["Egypt"], [" "]])
