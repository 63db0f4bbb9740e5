from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from elmo.embed.elmo import Elmo
from elmo.engine.matmul import choose_kernels
from elmo.engine.token_layer import FrozenTokenLayer, TokenVectorCache
from tests.formats.tiny import tiny_model

ELMO = Elmo(tiny_model())
LIKE = next(ELMO.bilm.parameters())


class Counting(FrozenTokenLayer):
    """A token layer that counts what it is asked for."""

    n_words = 0

    def __call__(self, char_ids: torch.Tensor | None, word_ids: torch.Tensor | None) -> torch.Tensor:
        assert char_ids is not None
        self.n_words += len(char_ids)
        return super().__call__(char_ids, word_ids)


def in_turn(pieces: Sequence[Callable[[], torch.Tensor]]) -> list[torch.Tensor]:
    return [piece() for piece in pieces]


@pytest.fixture
def layer() -> Counting:
    return Counting(ELMO.bilm.token_layer, choose_kernels(LIKE))


@pytest.fixture
def vectors(layer: Counting) -> TokenVectorCache:
    found = TokenVectorCache(ELMO.indexer, layer, choose_kernels(LIKE), device=LIKE.device, n_cached=3)
    layer.n_words = 0  # the boundaries
    return found


def test_a_word_is_computed_once_and_has_the_same_bits_ever_after(
    vectors: TokenVectorCache, layer: Counting
) -> None:
    first = vectors(["river", "bank"], in_turn)
    again = vectors(["bank", "the", "river"], in_turn)
    assert layer.n_words == 3
    assert torch.equal(again[[2, 0]], first)


def test_the_word_that_was_not_read_for_longest_is_forgotten(vectors: TokenVectorCache, layer: Counting) -> None:
    for words in (["a"], ["b"], ["c"], ["a"], ["d"]):  # "b" makes room
        vectors(words, in_turn)
    assert (layer.n_words, len(vectors)) == (4, 3)
    vectors(["a", "c", "d"], in_turn)
    assert layer.n_words == 4
    vectors(["b"], in_turn)
    assert layer.n_words == 5


def test_more_words_than_are_remembered_all_get_their_vectors(vectors: TokenVectorCache) -> None:
    words = [f"word{k}" for k in range(300)]
    found = vectors(words, in_turn)
    assert len(vectors) == 3
    for k in (0, 150, 299):
        assert torch.equal(vectors([words[k]], in_turn)[0], found[k])


def test_a_spelling_of_megabytes_is_not_kept(vectors: TokenVectorCache) -> None:
    vectors(["x" * 1_000_000], in_turn)
    assert len(vectors) == 0


def test_no_words_have_no_vectors(vectors: TokenVectorCache) -> None:
    assert vectors([], in_turn).shape == (0, 4)
