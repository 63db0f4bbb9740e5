"""Character ids, word ids and padded batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import DataError, FormatError
from elmo.text.ids import N_BYTE_CHARACTERS, ByteAlphabet, TokenIndexer, UnicodeAlphabet, Vocabulary

tokens = st.text(st.characters(), max_size=80)
DICTIONARY = {name: k for k, name in enumerate([*UnicodeAlphabet.SPECIAL, "a", "b", "中", "\u3000"])}
PAD = 261


def test_a_word_is_its_bytes_between_boundaries_one_higher_than_in_training() -> None:
    assert ByteAlphabet(8).ids("é!") == [259, 0xC3 + 1, 0xA9 + 1, 0x21 + 1, 260, PAD, PAD, PAD]


def test_sentence_boundaries_are_words_of_one_special_character() -> None:
    assert ByteAlphabet(5).begin() == [259, 257, 260, PAD, PAD]
    assert ByteAlphabet(5).end() == [259, 258, 260, PAD, PAD]


def test_a_word_spelled_like_a_boundary_gets_its_bytes() -> None:
    alphabet = ByteAlphabet()
    assert alphabet.ids("<S>") != alphabet.begin()
    assert alphabet.ids("</S>")[1:5] == [byte + 1 for byte in b"</S>"]


@given(tokens, st.integers(3, 60))
def test_a_row_has_the_bytes_of_bilm_tf_for_any_token(token: str, size: int) -> None:
    row = ByteAlphabet(size).ids(token)
    inner = [byte + 1 for byte in token.encode("utf-8", "ignore")[: size - 2]]
    assert row == [259, *inner, 260] + [PAD] * (size - 2 - len(inner))
    assert len(row) == size
    assert all(1 <= character <= N_BYTE_CHARACTERS for character in row)


@pytest.mark.parametrize("unit", ["a", "中", "\ud800", "\x00", "\U0010ffff"])
def test_a_token_of_megabytes_is_cut(unit: str) -> None:
    row = ByteAlphabet().ids(unit * 2_000_000)
    assert row[1:-1] == ([byte + 1 for byte in (unit * 50).encode("utf-8", "ignore")[:48]] or [260, *[PAD] * 47])


def test_surrogates_do_not_count() -> None:
    assert ByteAlphabet().ids("\ud800" * 100_000 + "z") == ByteAlphabet().ids("z")


def test_a_unicode_word_starts_with_eow_and_ends_with_bow_as_in_training() -> None:
    special = {name: DICTIONARY[name] + 1 for name in UnicodeAlphabet.SPECIAL}
    row = UnicodeAlphabet(DICTIONARY, 7).ids("a中?")
    assert row == [special["<eow>"], 7, 9, special["<oov>"], special["<bow>"], special["<pad>"], special["<pad>"]]


@given(tokens, st.integers(3, 60))
def test_a_unicode_row_has_known_ids_for_any_token(token: str, size: int) -> None:
    row = UnicodeAlphabet(DICTIONARY, size).ids(token)
    assert len(row) == size
    assert all(1 <= character <= len(DICTIONARY) for character in row)


def test_a_word_spelled_like_a_special_name_gets_its_characters() -> None:
    alphabet = UnicodeAlphabet(DICTIONARY, 10)
    assert alphabet.ids("<bos>") == alphabet.ids("?b???")  # known and unknown characters
    assert alphabet.ids("<bos>") != alphabet.begin()


def test_a_dictionary_without_special_characters_gives_an_error_that_lists_them() -> None:
    with pytest.raises(FormatError, match="character dictionary has no entry for <bos>, <eow>"):
        UnicodeAlphabet({"<eos>": 0, "<bow>": 1, "<pad>": 2, "<oov>": 3})


VOCAB = Vocabulary(("<S>", "</S>", "<UNK>", "the", "\u3000", "the"))


def test_lines_are_words_in_id_order_without_bilm_tfs_marker() -> None:
    vocab = Vocabulary.from_lines(["<S>\n", "a\r\n", "!!!MAXTERMID\n", "b\u2028c\n", "last"])
    assert vocab.words == ("<S>", "a", "b\u2028c", "last")


def test_the_last_of_equal_words_counts_as_in_bilm_tf() -> None:
    assert VOCAB.id("the") == 5
    assert len(VOCAB) == 6


def test_a_word_spelled_like_a_boundary_is_unknown() -> None:
    assert VOCAB.ids(["<S>", "</S>", "<UNK>", "nowhere", "\u3000"]) == [2, 2, 2, 2, 4]
    assert (VOCAB.bos_id, VOCAB.eos_id) == (0, 1)


@given(st.text(st.characters()))
def test_every_word_has_an_id(word: str) -> None:
    assert 0 <= VOCAB.id(word) < len(VOCAB)


@given(st.text(st.characters()))
def test_a_missing_word_gives_one_line_if_there_is_no_unknown_word(word: str) -> None:
    with pytest.raises(DataError, match="the vocabulary has no <UNK>") as caught:
        Vocabulary(("<S>", "</S>")).id(word)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_missing_boundary_gives_an_error_with_its_name() -> None:
    with pytest.raises(FormatError, match="vocabulary of 1 words must contain the boundary token </S>"):
        _ = Vocabulary(("<S>",)).eos_id


ALPHABET = ByteAlphabet(6)
WORDS_VOCAB = Vocabulary(("<S>", "</S>", "<UNK>", "a"))
BOTH = TokenIndexer(ALPHABET, WORDS_VOCAB)
sentences = st.lists(st.lists(st.text(st.characters(), max_size=8), max_size=5), max_size=5)


def test_a_sentence_has_boundaries_and_zeros_after_it() -> None:
    batch = BOTH.batch([["a"], ["a", "<S>", "x"]])
    assert batch.lengths.tolist() == [3, 5]
    assert batch.word_ids is not None
    assert batch.word_ids.tolist() == [[1, 4, 2, 0, 0], [1, 4, 3, 3, 2]]
    assert batch.char_ids is not None
    assert batch.char_ids.shape == (2, 5, 6)
    assert batch.char_ids[0, :3].tolist() == [ALPHABET.begin(), ALPHABET.ids("a"), ALPHABET.end()]
    assert not batch.char_ids[0, 3:].any()


@given(sentences)
def test_a_sentence_has_the_same_ids_alone_and_in_a_batch(lines: list[list[str]]) -> None:
    together = BOTH.batch(lines)
    assert together.char_ids is not None
    assert together.word_ids is not None
    for k, line in enumerate(lines):
        alone = BOTH.batch([line])
        length = int(together.lengths[k])
        assert length == len(line) + 2
        np.testing.assert_array_equal(together.char_ids[k, :length], alone.char_ids[0])  # type: ignore[index]
        np.testing.assert_array_equal(together.word_ids[k, :length], alone.word_ids[0])  # type: ignore[index]
        assert together.char_ids[k, :length].all()  # 0 is padding only
        assert not together.char_ids[k, length:].any()


def test_empty_batches_and_sentences_have_the_right_shapes() -> None:
    nothing = BOTH.batch([])
    assert nothing.char_ids is not None
    assert nothing.char_ids.shape == (0, 2, 6)
    empty = BOTH.batch([[]])
    assert empty.word_ids is not None
    assert empty.word_ids.tolist() == [[1, 2]]
    words = BOTH.words([])
    assert words.char_ids is not None
    assert words.char_ids.shape == (0, 6)


@pytest.mark.parametrize(("alphabet", "vocab"), [(ALPHABET, None), (None, WORDS_VOCAB)])
def test_ids_that_a_model_does_not_read_are_none(alphabet: ByteAlphabet | None, vocab: Vocabulary | None) -> None:
    batch = TokenIndexer(alphabet, vocab).batch([["a"]])
    assert (batch.char_ids is None) == (alphabet is None)
    assert (batch.word_ids is None) == (vocab is None)


def test_an_indexer_needs_an_alphabet_or_a_vocabulary() -> None:
    with pytest.raises(DataError, match="needs an alphabet, a vocabulary or both"):
        TokenIndexer(None, None)
