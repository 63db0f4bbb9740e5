"""Rows of character ids: what the published models were fed, for ordinary and hostile tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import FormatError
from elmo.text.ids import N_BYTE_CHARACTERS, ByteAlphabet, UnicodeAlphabet

tokens = st.text(st.characters(), max_size=80)
DICTIONARY = {name: k for k, name in enumerate([*UnicodeAlphabet.SPECIAL, "a", "b", "中", "\u3000"])}
PAD = 261


def test_a_word_is_its_bytes_between_boundaries_one_higher_than_in_training() -> None:
    assert ByteAlphabet(8).ids("é!") == [259, 0xC3 + 1, 0xA9 + 1, 0x21 + 1, 260, PAD, PAD, PAD]


def test_sentence_boundaries_are_words_of_one_special_character() -> None:
    assert ByteAlphabet(5).begin() == [259, 257, 260, PAD, PAD]
    assert ByteAlphabet(5).end() == [259, 258, 260, PAD, PAD]


def test_a_literal_boundary_is_spelled_out_like_any_word() -> None:
    alphabet = ByteAlphabet()
    assert alphabet.ids("<S>") != alphabet.begin()
    assert alphabet.ids("</S>")[1:5] == [byte + 1 for byte in b"</S>"]


@given(tokens, st.integers(3, 60))
def test_a_row_is_bilm_tfs_bytes_for_any_token(token: str, size: int) -> None:
    row = ByteAlphabet(size).ids(token)
    inner = [byte + 1 for byte in token.encode("utf-8", "ignore")[: size - 2]]
    assert row == [259, *inner, 260] + [PAD] * (size - 2 - len(inner))
    assert len(row) == size
    assert all(1 <= character <= N_BYTE_CHARACTERS for character in row)


@pytest.mark.parametrize("unit", ["a", "中", "\ud800", "\x00", "\U0010ffff"])
def test_a_token_of_megabytes_is_cut(unit: str) -> None:
    row = ByteAlphabet().ids(unit * 2_000_000)
    assert row[1:-1] == (
        [byte + 1 for byte in (unit * 50).encode("utf-8", "ignore")[:48]] or [260, *[PAD] * 47]
    )


def test_surrogates_use_up_no_room() -> None:
    assert ByteAlphabet().ids("\ud800" * 100_000 + "z") == ByteAlphabet().ids("z")


def test_a_unicode_word_opens_with_eow_and_closes_with_bow_as_its_weights_learned() -> None:
    special = {name: DICTIONARY[name] + 1 for name in UnicodeAlphabet.SPECIAL}
    row = UnicodeAlphabet(DICTIONARY, 7).ids("a中?")
    assert row == [
        special["<eow>"],
        7,
        9,
        special["<oov>"],
        special["<bow>"],
        special["<pad>"],
        special["<pad>"],
    ]


@given(tokens, st.integers(3, 60))
def test_a_unicode_row_holds_known_ids_for_any_token(token: str, size: int) -> None:
    row = UnicodeAlphabet(DICTIONARY, size).ids(token)
    assert len(row) == size
    assert all(1 <= character <= len(DICTIONARY) for character in row)


def test_a_literal_special_name_is_spelled_out() -> None:
    alphabet = UnicodeAlphabet(DICTIONARY, 10)
    assert alphabet.ids("<bos>") == alphabet.ids("?b???")  # characters, known or not
    assert alphabet.ids("<bos>") != alphabet.begin()


def test_a_dictionary_without_its_special_characters_is_refused_with_all_that_miss() -> None:
    with pytest.raises(FormatError, match="character dictionary: expected <bos>, <eow>, found none"):
        UnicodeAlphabet({"<eos>": 0, "<bow>": 1, "<pad>": 2, "<oov>": 3})
