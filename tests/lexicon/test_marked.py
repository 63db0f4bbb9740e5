from __future__ import annotations

import pytest

from elmo import DataError
from elmo.lexicon.marked import marked_usage
from elmo.text.tokens import WhitespaceTokenizer, tokenizer

SPACES = WhitespaceTokenizer()


@pytest.mark.parametrize(
    ("sentence", "word", "expected"),
    [
        ("the bank by the [[bank]] .", None, (4, 5)),
        ("the bank by the bank .", "bank", (1, 2)),
        ("in New York .", "New York", (1, 3)),
        ("in [[New York]] .", "York", (1, 3)),  # the mark counts
        ("The Bank", "bank", (1, 2)),
    ],
)
def test_the_mark_or_the_first_place_is_meant(
    sentence: str, word: str | None, expected: tuple[int, int]
) -> None:
    found = marked_usage(SPACES, sentence, word)
    assert (found.begin, found.end) == expected
    assert "[[" not in "".join(found.parts())


def test_tokens_may_be_given() -> None:
    assert marked_usage(SPACES, ["a", "New", "York"], "New York").word == "New York"


def test_chinese_words_are_found() -> None:
    pytest.importorskip("jieba")
    found = marked_usage(tokenizer("zh"), "他每天吃一个[[苹果]]。")
    assert found.parts() == ("他每天吃一个", "苹果", "。")


@pytest.mark.parametrize(
    ("sentence", "word", "message"),
    [
        ("the bank", None, "sentence 7: which word is meant"),
        ("the bank", "river", "sentence 7 does not have the word 'river'"),
        ("[[a]] [[b]]", None, "expected one word marked by"),
        ("", "x", "does not have the word"),
    ],
)
def test_a_word_that_is_not_there_is_told(sentence: str, word: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        marked_usage(SPACES, sentence, word, number=7)
