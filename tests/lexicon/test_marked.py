from __future__ import annotations

import pytest

from elmo import DataError
from elmo.lexicon.usages import find_marked_usage, find_marked_usages
from elmo.text.tokenizers import Tokens, WhitespaceTokenizer, tokenizer

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
    found = find_marked_usage(SPACES, sentence, word)
    assert (found.begin, found.end) == expected
    assert "[[" not in "".join(found.parts())


@pytest.mark.parametrize(
    ("sentence", "word", "told"),
    [("the [[bank]]er", None, "'bank' is part of a token, which is taken: 'banker'"), ("a bank", "bank", "")],
)
def test_a_token_that_is_more_than_the_marked_word_is_told(
    sentence: str, word: str | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    find_marked_usage(SPACES, sentence, word)
    assert told in caplog.text
    assert bool(caplog.records) == bool(told)


def test_tokens_may_be_given() -> None:
    assert find_marked_usage(SPACES, ["a", "New", "York"], "New York").word == "New York"


def test_chinese_words_are_found() -> None:
    pytest.importorskip("jieba")
    found = find_marked_usage(tokenizer("zh"), "他每天吃一个[[苹果]]。")
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
        find_marked_usage(SPACES, sentence, word, number=7)


def test_all_marked_words_of_a_sentence_are_found() -> None:
    found = find_marked_usages(tokenizer("en"), "By [[New York]]'s old [[banks]].", number=3)
    assert [usage.word for usage in found] == ["New York", "banks"]
    assert {usage.place for usage in found} == {"sentence 3"}
    assert {"".join(usage.parts()) for usage in found} == {"By New York's old banks."}
    assert found[0].sentence is found[1].sentence  # which is read once


def test_one_marked_word_is_the_same_by_both() -> None:
    for sentence in ("the bank by the [[bank]] .", "in [[New York]] ."):
        assert find_marked_usages(SPACES, sentence) == [find_marked_usage(SPACES, sentence)]


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("a bank", r"sentence 7: expected a word that is marked like \[\[this\]\], found none: 'a bank'"),
        ("[[a]] [[ ]]", r"sentence 7: expected one word marked by \[\[ \]\], found a mark without any"),
        ("a [[]] b", "found a mark without any"),
    ],
)
def test_a_mark_without_a_word_is_told(sentence: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_marked_usages(SPACES, sentence, number=7)
    with pytest.raises(DataError, match=r"sentence 7: (which word|expected one word marked)"):
        find_marked_usage(SPACES, sentence, number=7)


def test_a_mark_around_what_is_no_token_is_told() -> None:
    class Cut(WhitespaceTokenizer):
        """As tokenisers do that drop control characters."""

        def __call__(self, text: str) -> Tokens:
            found = super().__call__(text)
            pairs = zip(found.tokens, found.offsets or (), strict=True)
            tokens, places = zip(*(pair for pair in pairs if pair[0] != "-"), strict=True)
            return Tokens(text, tokens, places)

    with pytest.raises(DataError, match=r"sentence 7: expected a word between \[\[ and \]\], found '-'"):
        find_marked_usages(Cut(), "the [[-]] bank", number=7)
