"""Batches of ids: boundaries, padding, and independence of neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.errors import DataError
from elmo.text.ids import ByteAlphabet, TokenIndexer, Vocabulary

ALPHABET = ByteAlphabet(6)
VOCAB = Vocabulary(("<S>", "</S>", "<UNK>", "a"))
BOTH = TokenIndexer(ALPHABET, VOCAB)
sentences = st.lists(st.lists(st.text(st.characters(), max_size=8), max_size=5), max_size=5)


def test_a_sentence_stands_between_its_boundaries_and_zeros_follow() -> None:
    batch = BOTH.batch([["a"], ["a", "<S>", "x"]])
    assert batch.lengths.tolist() == [3, 5]
    assert batch.word_ids is not None
    assert batch.word_ids.tolist() == [[1, 4, 2, 0, 0], [1, 4, 3, 3, 2]]
    assert batch.char_ids is not None
    assert batch.char_ids.shape == (2, 5, 6)
    assert batch.char_ids[0, :3].tolist() == [ALPHABET.begin(), ALPHABET.ids("a"), ALPHABET.end()]
    assert not batch.char_ids[0, 3:].any()


@given(sentences)
def test_a_sentence_has_the_same_ids_alone_and_among_others(lines: list[list[str]]) -> None:
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


def test_empty_batches_and_sentences_have_their_shapes() -> None:
    nothing = BOTH.batch([])
    assert nothing.char_ids is not None
    assert nothing.char_ids.shape == (0, 2, 6)
    empty = BOTH.batch([[]])
    assert empty.word_ids is not None
    assert empty.word_ids.tolist() == [[1, 2]]
    words = BOTH.words([])
    assert words.char_ids is not None
    assert words.char_ids.shape == (0, 6)


@pytest.mark.parametrize(("alphabet", "vocab"), [(ALPHABET, None), (None, VOCAB)])
def test_what_a_model_does_not_read_is_none(alphabet: ByteAlphabet | None, vocab: Vocabulary | None) -> None:
    batch = TokenIndexer(alphabet, vocab).batch([["a"]])
    assert (batch.char_ids is None) == (alphabet is None)
    assert (batch.word_ids is None) == (vocab is None)


def test_an_indexer_needs_something_to_look_up() -> None:
    with pytest.raises(DataError, match="needs an alphabet, a vocabulary or both"):
        TokenIndexer(None, None)
