"""Type ids against the ids that the text room gives to the same words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, WordConfig
from elmo.text.ids import ByteAlphabet, TokenIndexer
from elmo.train.corpus import TypeIds
from tests.train.small_corpus import build


def test_a_text_is_read_and_predicted_in_training_as_it_is_when_embedded(tmp_path: Path) -> None:
    words = ["the", "<S>", "bank", "</S>", "<UNK>", "<S>", "of", "<s>"]
    (tmp_path / "text.txt").write_text(" ".join(words) + "\nthe bank\n")
    corpus = build(tmp_path / "text.txt", tmp_path / "built", input_format="tokens", heldout=0)
    vocab = corpus.vocab(6)
    stream = corpus.train[: len(words)].astype(np.int64)
    config = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4),)), WordConfig(6, 4), LstmConfig(1, 6, 4))
    ids = TypeIds(corpus, config, len(vocab))
    char_ids, word_ids = ids.inputs(stream)
    expected = TokenIndexer(ByteAlphabet(), vocab).words(words)
    np.testing.assert_array_equal(char_ids, expected.char_ids)
    np.testing.assert_array_equal(word_ids, expected.word_ids)
    assert ids.targets(stream).tolist() == vocab.ids(words)
