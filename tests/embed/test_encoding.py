"""``Encoding``: layers, words, phrases, pooling and similarity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo import ConfigError, DataError, Elmo, LayerMix, LayerMixes, ShapeError, similarities, similarity
from elmo.text.tokenizers import Tokens
from tests.formats.tiny import tiny_model

TEXT = "I sat by the bank of the river ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True, mix=True))


def test_tokens_come_with_character_offsets(elmo: Elmo) -> None:
    encoding = elmo.encode("Don't   go, now!")
    assert encoding.offsets is not None
    assert [encoding.text[a:b] for a, b in encoding.offsets] == list(encoding.tokens)


def test_layers_are_selected_by_name_number_or_mix(elmo: Elmo) -> None:
    every = elmo.encode(TEXT, layers="all").vectors
    assert every.shape == (3, 9, elmo.width)
    np.testing.assert_allclose(elmo.encode(TEXT).vectors, every.mean(axis=0), atol=1e-7)
    np.testing.assert_array_equal(elmo.encode(TEXT, layers="top").vectors, every[2])
    np.testing.assert_array_equal(elmo.encode(TEXT, layers=1).vectors, every[1])
    np.testing.assert_array_equal(elmo.encode(TEXT, layers=0).vectors[:, :4], every[0, :, 4:])
    concat = elmo.encode(TEXT, layers="concat").vectors
    np.testing.assert_array_equal(concat, np.concatenate(list(every), axis=1))
    mix = LayerMix(3, weights=[0.0, 20.0, 0.0], gamma=2.0, dropout=0.5)
    np.testing.assert_array_equal(elmo.encode(TEXT, layers=np.int64(1)).vectors, every[1])
    np.testing.assert_allclose(elmo.encode(TEXT, layers=mix).vectors, 2 * every[1], atol=1e-5)
    assert mix.training  # unchanged


@pytest.mark.parametrize("layers", ["bottom", 3, -4, True, None, [0, 1], LayerMixes([LayerMix(3)])])
def test_an_unknown_layer_is_a_one_line_error(elmo: Elmo, layers) -> None:
    with pytest.raises(ConfigError, match="layer") as caught:
        elmo.encode(TEXT, layers=layers)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("layers", ["top", 1])
def test_one_layer_does_not_keep_the_others_in_memory(elmo: Elmo, layers) -> None:
    vectors = elmo.encode(TEXT, layers=layers).vectors
    assert vectors.base.untyped_storage().nbytes() == vectors.nbytes


def test_spans_phrases_and_sentences_pool_their_tokens(elmo: Elmo) -> None:
    text = "She flew to New York, then to York."
    encoding = elmo.encode(text)
    at = encoding.tokens.index("New")
    expected = encoding.vectors[at : at + 2]
    np.testing.assert_array_equal(encoding.phrase("New York"), expected.mean(axis=0))
    begin = text.index("New York")
    np.testing.assert_array_equal(encoding.characters(begin, begin + 8), expected.mean(axis=0))
    np.testing.assert_array_equal(encoding.characters(begin + 1, begin + 5), expected.mean(axis=0))  # cuts both tokens
    np.testing.assert_array_equal(encoding.span(at, at + 2, pooling="max"), expected.max(axis=0))
    np.testing.assert_array_equal(encoding.span(at, at + 2, pooling="ends"), expected.reshape(-1))
    np.testing.assert_array_equal(
        encoding.word("York", occurrence=1), encoding.vectors[encoding.tokens.index("York", at + 2)]
    )
    np.testing.assert_array_equal(encoding.sentence(), encoding.vectors.mean(axis=0))
    from_tokens = elmo.encode([["to", "New", "York"]], as_tensor=True, layers="all")[0]
    assert torch.equal(from_tokens.phrase("New York"), from_tokens.vectors[:, 1:].mean(dim=1))
    assert torch.equal(from_tokens.phrase("New York", pooling="ends"), from_tokens.vectors[:, 1:].flatten(1))
    assert torch.equal(from_tokens.span(1, 3, pooling="max"), from_tokens.vectors[:, 1:].amax(dim=1))


def test_a_phrase_matches_whole_words_first(elmo: Elmo) -> None:
    encoding = elmo.encode("the king is in town")
    np.testing.assert_array_equal(encoding.phrase("in"), encoding.vectors[3])
    chinese = elmo.encode(["我在北京大学读书"])[0]
    np.testing.assert_array_equal(chinese.phrase("北京"), chinese.characters(2, 4))
    trees = elmo.encode(Tokens.from_offsets("苹果树下的苹果", [(0, 3), (3, 4), (4, 5), (5, 7)]))
    np.testing.assert_array_equal(trees.phrase("苹果"), trees.vectors[3])
    np.testing.assert_array_equal(trees.phrase("果树"), trees.vectors[0])
    with pytest.raises(DataError, match="cannot find 'tow' in the sentence"):
        encoding.phrase("tow")


def test_a_phrase_is_searched_in_the_tokens_if_there_are_no_offsets(elmo: Elmo) -> None:
    encoding = elmo.encode(Tokens("du pain", ("de", "le", "pain"), None))
    np.testing.assert_array_equal(encoding.phrase("le pain"), encoding.span(1, 3))


def test_white_space_in_a_phrase_matches_any_white_space(elmo: Elmo) -> None:
    encoding = elmo.encode("in New\n York now")
    np.testing.assert_array_equal(encoding.phrase("New York"), encoding.span(1, 3))


def test_an_empty_sentence_pools_to_zero(elmo: Elmo) -> None:
    assert not elmo.encode("").sentence().any()
    assert elmo.encode("").sentence("ends").shape == (2 * elmo.width,)
    assert elmo.encode("", layers="all", as_tensor=True).sentence().shape == (3, elmo.width)
    with pytest.raises(ConfigError, match="pooling must be"):
        elmo.encode("").sentence("median")


def test_errors_name_the_missing_span(elmo: Elmo) -> None:
    encoding, from_tokens = elmo.encode(TEXT), elmo.encode([["a", "b"]])[0]
    with pytest.raises(DataError, match=r"span must be within 0\.\.9 and not empty; found 3\.\.12"):
        encoding.span(3, 12)
    with pytest.raises(DataError, match="cannot find 'money' in the sentence 'I sat by"):
        encoding.phrase("money")
    with pytest.raises(DataError, match=r"occurrence of 'the' must be in 0\.\.1; found 2"):
        encoding.word("the", occurrence=2)
    with pytest.raises(DataError, match="in the sentence") as caught:
        elmo.encode([["a\nb"]])[0].word("c")
    assert str(caught.value).isprintable()
    with pytest.raises(DataError, match="was passed as tokens and has no text"):
        from_tokens.characters(0, 1)
    with pytest.raises(DataError, match=r"no token overlaps characters 1\.\.2"):
        encoding.characters(1, 2)
    for nothing in (from_tokens, encoding):
        with pytest.raises(DataError, match="cannot find '' in the sentence"):
            nothing.phrase("")
    with pytest.raises(ConfigError, match="pooling must be"):
        encoding.sentence("median")


def test_similarity_is_the_cosine() -> None:
    assert similarity(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(0.5**0.5)
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=np.float16)
    np.testing.assert_allclose(similarities(rows, rows), [[1, 0, 0], [0, 1, 0], [0, 0, 0]])
    assert similarity(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])) == pytest.approx(1.0)
    assert similarities(rows, np.array([3.0, 0.0])).shape == (3,)
    with pytest.raises(ShapeError, match="the same width"):
        similarity(np.zeros(3), np.zeros(4))
    with pytest.raises(ShapeError, match="the same width"):
        similarities(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ShapeError, match="for the rows of matrices"):
        similarity(rows, rows)


def test_the_repr_shows_tokens_axes_and_an_example(elmo: Elmo) -> None:
    assert (
        repr(elmo.encode("a bank"))
        == "Encoding('a bank', 2 tokens, vectors (time 2, width 8); for one word: .word('bank'))"
    )
    assert "vectors (layer 3, time 2, width 8)" in repr(elmo.encode("a b", layers="all"))
    assert repr(elmo.encode("")) == "Encoding('', 0 tokens, vectors (time 0, width 8))"
    assert "'a b c d e f g h …', 9 tokens" in repr(elmo.encode("a b c d e f g h i"))
