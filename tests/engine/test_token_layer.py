from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elmo.embed.elmo import Elmo
from elmo.engine.buffers import BufferPool
from elmo.engine.matmul import choose_kernels
from elmo.engine.token_layer import CACHE_ROWS, FrozenTokenLayer, TokenVectorCache, run_char_cnn, run_highway
from elmo.model.token_layer import CharCnn, Highway
from tests.formats.tiny import tiny_model

N_CHARS, PADDING = 12, 20


def random_cnn(activation="relu", filters=((1, 3), (2, 4), (4, 5)), n_highway: int = 1) -> CharCnn:
    torch.manual_seed(0)
    cnn = CharCnn(n_characters=PADDING, char_width=3, filters=filters, n_highway=n_highway, activation=activation)
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


def values_and_gradients(run, cnn: CharCnn, char_ids: Tensor) -> dict[str, Tensor]:
    cnn.zero_grad()
    vectors = run(char_ids)
    torch.manual_seed(2)
    (vectors * torch.randn(vectors.shape).to(vectors)).sum().backward()
    gradients = {name: weight.grad for name, weight in cnn.named_parameters() if weight.grad is not None}
    assert len(gradients) == len(list(cnn.parameters()))
    return {"vectors": vectors.detach(), **{name: grad.clone() for name, grad in gradients.items()}}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("filters", [((1, 3), (2, 4), (4, 5)), ((3, 4),), ((12, 2), (1, 2)), ((5, 2), (2, 6))])
@pytest.mark.parametrize("n_highway", [0, 2])
def test_the_char_cnn_has_the_values_and_gradients_of_the_reference(activation: str, filters, n_highway: int) -> None:
    cnn = random_cnn(activation, filters, n_highway)
    char_ids = words_of([3, 12, 1, 5, 11, 3, 8, 10, 9, 0, 4, 4, 7] + [3] * 150)
    expected = values_and_gradients(cnn, cnn, char_ids)
    result = values_and_gradients(lambda ids: run_char_cnn(cnn, ids), cnn, char_ids)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 4), min_size=N_CHARS, max_size=N_CHARS), min_size=1, max_size=9))
def test_the_char_cnn_agrees_with_the_reference_for_any_ids(char_ids: list[list[int]]) -> None:
    cnn = random_cnn()
    with torch.no_grad():
        ids = torch.tensor(char_ids)
        torch.testing.assert_close(run_char_cnn(cnn, ids), cnn(ids), rtol=0, atol=1e-12)


def test_a_window_of_padding_takes_part_in_the_max_for_a_single_word() -> None:
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


def test_the_char_cnn_is_close_to_the_reference_in_float32() -> None:
    cnn = random_cnn().float()
    char_ids = words_of([3, 12, 1, 5])
    with torch.no_grad():
        torch.testing.assert_close(run_char_cnn(cnn, char_ids), cnn(char_ids), rtol=1e-5, atol=1e-5)


# --- highway -----------------------------------------------------------------------------------------------


def highway_and_input(n_words: int, width: int = 6) -> tuple[Highway, Tensor]:
    torch.manual_seed(0)
    highway = Highway(width).double()
    for weight in highway.parameters():
        torch.nn.init.normal_(weight)
    return highway, torch.randn(n_words, width, dtype=torch.float64, requires_grad=True)


def highway_gradients(y: Tensor, highway: Highway, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    return [*torch.autograd.grad((y * torch.randn_like(y)).sum(), [x, *highway.parameters()])]


@pytest.mark.parametrize("n_words", [0, 1, CACHE_ROWS, CACHE_ROWS + 1, 3 * CACHE_ROWS - 1])
def test_a_highway_has_the_values_and_gradients_of_the_reference(n_words: int) -> None:
    highway, x = highway_and_input(n_words)
    pool = BufferPool()
    for _ in range(3):  # later rounds reuse memory
        y = run_highway(highway, x, buffers=pool)
        torch.testing.assert_close(y, highway(x), rtol=0, atol=1e-12)
        expected = highway_gradients(highway(x), highway, x)
        torch.testing.assert_close(highway_gradients(y, highway, x), expected, rtol=0, atol=1e-12)


def test_gradients_of_a_highway_agree_with_finite_differences() -> None:
    highway, x = highway_and_input(3)
    weights = tuple(highway.parameters())
    assert torch.autograd.gradcheck(lambda *_: run_highway(highway, x), (x, *weights), eps=1e-6, atol=1e-6)


def test_two_highway_calls_may_precede_the_first_backward_pass() -> None:
    highway, x = highway_and_input(5)
    pool = BufferPool()
    first, second = run_highway(highway, x, buffers=pool), run_highway(highway, 2 * x, buffers=pool)
    expected = highway_gradients(highway(x), highway, x), highway_gradients(highway(2 * x), highway, x)
    result = highway_gradients(first, highway, x), highway_gradients(second, highway, x)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_bfloat16_highway_products_are_close_to_exact_ones() -> None:
    highway, x = highway_and_input(40, width=64)
    y = run_highway(highway.float(), x.float(), has_bf16_products=True)
    assert y.dtype == torch.float32
    assert 0 < (y - highway(x.float())).abs().mean() < 0.02


# --- cache of token vectors ---------------------------------------------------------------------------------

ELMO = Elmo(tiny_model())
LIKE = next(ELMO.bilm.parameters())


class CountingTokenLayer(FrozenTokenLayer):
    """A token layer that counts the words it computes."""

    n_words = 0

    def __call__(self, char_ids: Tensor | None, word_ids: Tensor | None) -> Tensor:
        assert char_ids is not None
        self.n_words += len(char_ids)
        return super().__call__(char_ids, word_ids)


def in_turn(tasks: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
    return [task() for task in tasks]


@pytest.fixture
def layer() -> CountingTokenLayer:
    return CountingTokenLayer(ELMO.bilm.token_layer, choose_kernels(LIKE))


@pytest.fixture
def cache(layer: CountingTokenLayer) -> TokenVectorCache:
    cache = TokenVectorCache(ELMO.indexer, layer, choose_kernels(LIKE), device=LIKE.device, n_cached=3)
    layer.n_words = 0  # do not count the boundaries
    return cache


def test_a_word_is_computed_once_and_keeps_its_bits(cache: TokenVectorCache, layer: CountingTokenLayer) -> None:
    first = cache(["river", "bank"], in_turn)
    again = cache(["bank", "the", "river"], in_turn)
    assert layer.n_words == 3
    assert torch.equal(again[[2, 0]], first)


def test_the_least_recently_used_word_is_dropped(cache: TokenVectorCache, layer: CountingTokenLayer) -> None:
    for words in (["a"], ["b"], ["c"], ["a"], ["d"]):  # drops "b"
        cache(words, in_turn)
    assert (layer.n_words, len(cache)) == (4, 3)
    cache(["a", "c", "d"], in_turn)
    assert layer.n_words == 4
    cache(["b"], in_turn)
    assert layer.n_words == 5


def test_more_words_than_the_cache_holds_get_correct_vectors(cache: TokenVectorCache) -> None:
    words = [f"word{k}" for k in range(300)]
    result = cache(words, in_turn)
    assert len(cache) == 3
    for k in (0, 150, 299):
        assert torch.equal(cache([words[k]], in_turn)[0], result[k])


def test_a_very_long_word_is_not_cached(cache: TokenVectorCache) -> None:
    cache(["x" * 1_000_000], in_turn)
    assert len(cache) == 0


def test_no_words_give_an_empty_result(cache: TokenVectorCache) -> None:
    assert cache([], in_turn).shape == (0, 4)
