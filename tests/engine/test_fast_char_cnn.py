from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elmo.engine.token_layer import run_char_cnn
from elmo.model.token_layer import CharCnn

N_CHARS, PADDING = 12, 20


def random_cnn(activation="relu", filters=((1, 3), (2, 4), (4, 5)), n_highway: int = 1) -> CharCnn:
    torch.manual_seed(0)
    cnn = CharCnn(
        n_characters=PADDING, char_width=3, filters=filters, n_highway=n_highway, activation=activation
    )
    for weight in cnn.parameters():
        torch.nn.init.normal_(weight)
    with torch.no_grad():
        cnn.char_embed.weight[0] = 0
    return cnn.double()


def words_of(lengths: list[int]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    ids = torch.full((len(lengths), N_CHARS), PADDING)
    for word, length in enumerate(lengths):
        ids[word, :length] = torch.randint(1, PADDING, (length,), generator=generator)
    return ids


def values_and_gradients(read, cnn: CharCnn, char_ids: Tensor) -> dict[str, Tensor]:
    cnn.zero_grad()
    vectors = read(char_ids)
    torch.manual_seed(2)
    (vectors * torch.randn(vectors.shape).to(vectors)).sum().backward()
    found = {name: weight.grad for name, weight in cnn.named_parameters() if weight.grad is not None}
    assert len(found) == len(list(cnn.parameters()))
    return {"vectors": vectors.detach(), **{name: grad.clone() for name, grad in found.items()}}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    "filters", [((1, 3), (2, 4), (4, 5)), ((3, 4),), ((12, 2), (1, 2)), ((5, 2), (2, 6))]
)
@pytest.mark.parametrize("n_highway", [0, 2])
def test_values_and_gradients_are_the_references(activation: str, filters, n_highway: int) -> None:
    cnn = random_cnn(activation, filters, n_highway)
    char_ids = words_of([3, 12, 1, 5, 11, 3, 8, 10, 9, 0, 4, 4, 7] + [3] * 150)
    expected = values_and_gradients(cnn, cnn, char_ids)
    found = values_and_gradients(lambda ids: run_char_cnn(cnn, ids), cnn, char_ids)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 4), min_size=N_CHARS, max_size=N_CHARS), min_size=1, max_size=9))
def test_any_ids_at_all_give_the_references_vectors(char_ids: list[list[int]]) -> None:
    cnn = random_cnn()
    with torch.no_grad():
        ids = torch.tensor(char_ids)
        torch.testing.assert_close(run_char_cnn(cnn, ids), cnn(ids), rtol=0, atol=1e-12)


def test_the_padding_window_takes_part_in_the_max_even_of_one_word() -> None:
    cnn = random_cnn(filters=((4, 6),), n_highway=0)
    with torch.no_grad():
        cnn.char_embed.weight[:] = -1.0
        cnn.char_embed.weight[PADDING] = 1.0
        cnn.convolutions[0].weight.fill_(1.0)
        char_ids = words_of([3])
        assert (run_char_cnn(cnn, char_ids) > 4).all()
        torch.testing.assert_close(run_char_cnn(cnn, char_ids), cnn(char_ids), rtol=0, atol=1e-12)


def test_no_words_give_no_vectors() -> None:
    assert run_char_cnn(random_cnn(), words_of([])).shape == (0, 12)


def test_in_float32_vectors_are_near_the_references() -> None:
    cnn = random_cnn().float()
    char_ids = words_of([3, 12, 1, 5])
    with torch.no_grad():
        torch.testing.assert_close(run_char_cnn(cnn, char_ids), cnn(char_ids), rtol=1e-5, atol=1e-5)
