"""Vocabularies: order, unknown words, boundaries and hostile words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import DataError, FormatError
from elmo.text.ids import Vocabulary

VOCAB = Vocabulary(("<S>", "</S>", "<UNK>", "the", "\u3000", "the"))


def test_lines_are_words_in_id_order_without_bilm_tfs_marker() -> None:
    vocab = Vocabulary.from_lines(["<S>\n", "a\r\n", "!!!MAXTERMID\n", "b\u2028c\n", "last"])
    assert vocab.words == ("<S>", "a", "b\u2028c", "last")


def test_of_doubled_words_the_last_counts_as_in_bilm_tf() -> None:
    assert VOCAB.id("the") == 5
    assert len(VOCAB) == 6


def test_a_word_spelled_like_a_boundary_is_unknown() -> None:
    assert VOCAB.ids(["<S>", "</S>", "<UNK>", "nowhere", "\u3000"]) == [2, 2, 2, 2, 4]
    assert (VOCAB.bos_id, VOCAB.eos_id) == (0, 1)


@given(st.text(st.characters()))
def test_every_word_has_an_id(word: str) -> None:
    assert 0 <= VOCAB.id(word) < len(VOCAB)


@given(st.text(st.characters()))
def test_without_an_unknown_word_the_missing_one_is_named_in_one_line(word: str) -> None:
    with pytest.raises(DataError, match="is not in the vocabulary, which has no <UNK> either") as caught:
        Vocabulary(("<S>", "</S>")).id(word)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_missing_boundary_is_named() -> None:
    with pytest.raises(FormatError, match="expected the word </S>, found none among 1 words"):
        _ = Vocabulary(("<S>",)).eos_id
