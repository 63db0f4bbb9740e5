from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from elmo.embed.elmo import Elmo
from elmo.engine import token_layer
from elmo.engine.buffers import BufferPool
from elmo.engine.matmul import choose_kernels
from elmo.engine.token_layer import (
    CACHE_ROWS,
    FrozenTokenLayer,
    TokenVectorCache,
    _freeze_char_cnn,
    run_char_cnn,
    run_highway,
)
from elmo.model.token_layer import CharCnn, Highway
from tests.engine.cases import assert_close_in_float32, autograd_functions, is_compiled
from tests.formats.tiny import tiny_model

N_CHARS, PADDING = 12, 20


def random_cnn(activation="relu", filters=((1, 3), (2, 4), (4, 5)), n_highway: int = 1, char_width: int = 3) -> CharCnn:
    torch.manual_seed(0)
    cnn = CharCnn(
        n_characters=PADDING, char_width=char_width, filters=filters, n_highway=n_highway, activation=activation
    )
    for weight in cnn.parameters():
        torch.nn.init.normal_(weight, std=(3 / char_width) ** 0.5)
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


LENGTHS = [3, 12, 1, 5, 11, 3, 8, 10, 9, 0, 4, 4, 7, 12, 12] + [3] * 150
# Whole vectors, but not whole panels. The widest filters reach beyond the last character.
WIDE_FILTERS = [((1, 16), (2, 32), (4, 48)), ((3, 80),), ((12, 16), (1, 16)), ((5, 20), (2, 12))]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("filters", WIDE_FILTERS)
@pytest.mark.parametrize("n_highway", [0, 2])
def test_the_compiled_char_cnn_has_the_values_and_gradients_of_the_reference(
    activation: str, filters, n_highway: int, variant: str
) -> None:
    cnn = random_cnn(activation, filters, n_highway, char_width=16)
    with torch.no_grad():
        for weight in cnn.highways.parameters():
            weight.mul_(weight.size(-1) ** -0.5)
    char_ids = words_of(LENGTHS)
    expected = values_and_gradients(cnn, cnn, char_ids)
    cnn.float()
    functions = autograd_functions(run_char_cnn(cnn, char_ids))
    if variant == "0":
        assert functions == {"_MaxOverWindows", *["_HighwayFunction"][:n_highway]}
    else:
        assert functions == {"_CompiledMaxOverWindows", *["_CompiledHighway"][:n_highway]}
    assert_close_in_float32(values_and_gradients(lambda ids: run_char_cnn(cnn, ids), cnn, char_ids), expected)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_first_of_several_equal_windows_gets_the_gradient(activation: str, variant: str) -> None:
    cnn = random_cnn(activation, ((2, 16),), 0, char_width=16).float()
    char_ids = torch.full((1, N_CHARS), PADDING)
    char_ids[0, :8] = torch.tensor([1, 2, 3, 4, 1, 2, 3, 4])  # two equal parts
    result = values_and_gradients(lambda ids: run_char_cnn(cnn, ids), cnn, char_ids)
    assert autograd_functions(run_char_cnn(cnn, char_ids)) == {
        "_MaxOverWindows" if variant == "0" else "_CompiledMaxOverWindows"
    }
    # The gradient of a filter is one window times one factor: not divided, not counted twice.
    torch.manual_seed(2)
    d_y, y = torch.randn(1, 16)[0], result["vectors"][0]
    factors = d_y * ((y > 0) if activation == "relu" else 1 - y.square())
    torch.testing.assert_close(result["convolutions.0.bias"], factors)
    vectors = cnn.char_embed.weight.detach()[char_ids[0]]  # (char, width)
    windows = torch.stack([vectors[:-1], vectors[1:]], dim=2)  # (start, width, position)
    responses = torch.einsum("fwp,swp->sf", cnn.convolutions[0].weight.detach(), windows)
    best = windows[responses.argmax(dim=0)]
    torch.testing.assert_close(result["convolutions.0.weight"], factors[:, None, None] * best)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_all_windows_equal_give_the_gradient_of_one(activation: str, variant: str) -> None:
    cnn = random_cnn(activation, ((1, 16), (3, 16)), 0, char_width=16).float()
    with torch.no_grad():
        cnn.char_embed.weight[1:] = 0.5  # every character is the same
    result = values_and_gradients(lambda ids: run_char_cnn(cnn, ids), cnn, words_of([3, 12, 0]))
    exact = values_and_gradients(cnn.double(), cnn, words_of([3, 12, 0]))
    assert_close_in_float32(
        {name: result[name] for name in exact if name != "char_embed.weight"},
        {name: x for name, x in exact.items() if name != "char_embed.weight"},
    )
    # The reference divides the gradient among equal windows; its sum is the same.
    for gradients in (result, exact):
        gradients["sum"] = gradients["char_embed.weight"].sum(dim=0)
    torch.testing.assert_close(result["sum"].double(), exact["sum"], rtol=1e-5, atol=1e-5)


def test_gradients_of_the_char_cnn_do_not_depend_on_the_type_of_ids(variant: str) -> None:
    cnn = random_cnn("tanh", ((2, 16),), 0, char_width=16).float()
    ids = words_of([3, 12, 1])
    whole, half = (values_and_gradients(lambda x: run_char_cnn(cnn, x), cnn, x) for x in (ids, ids.int()))
    torch.testing.assert_close(whole, half, rtol=0, atol=0)
    columns = ids.t().contiguous().t()
    torch.testing.assert_close(values_and_gradients(lambda x: run_char_cnn(cnn, x), cnn, columns), whole)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("wrong", [-1, PADDING + 1, 1 << 40])
def test_a_character_id_out_of_range_is_refused(wrong: int) -> None:
    cnn = random_cnn("tanh", ((2, 16),), 0, char_width=16).float()
    ids = words_of([3, 12, 1])
    ids[1, 2] = wrong
    with pytest.raises(IndexError):
        run_char_cnn(cnn, ids)
    with pytest.raises(IndexError), torch.no_grad():
        _freeze_char_cnn(cnn, choose_kernels(cnn.char_embed.weight))(ids)


@pytest.mark.usefixtures("variant")
def test_words_too_long_for_the_compiled_code_use_torch() -> None:
    cnn = random_cnn("tanh", ((1, 16), (2, 16)), 0, char_width=16).float()
    generator = torch.Generator().manual_seed(0)
    for n_chars in (token_layer._MAX_STARTS, token_layer._MAX_STARTS + 1):
        ids = torch.randint(1, PADDING, (5, n_chars), generator=generator)
        exact = values_and_gradients(cnn.double(), cnn, ids)
        cnn.float()
        assert_close_in_float32(values_and_gradients(lambda x: run_char_cnn(cnn, x), cnn, ids), exact)
    assert autograd_functions(run_char_cnn(cnn, ids)) == {"_MaxOverWindows"}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    "filters", [((1, 3), (2, 4), (4, 5)), ((3, 4),), ((12, 2), (1, 2)), ((5, 2), (2, 6)), *WIDE_FILTERS, ((2, 129),)]
)
@pytest.mark.parametrize("char_width", [1, 3, 16])
@torch.no_grad()
def test_a_frozen_char_cnn_agrees_with_the_reference(activation, filters, char_width: int, kernels: str) -> None:
    cnn = random_cnn(activation, filters, n_highway=2, char_width=char_width)
    for weight in cnn.highways.parameters():
        weight.mul_(weight.size(-1) ** -0.5)
    char_ids = words_of(LENGTHS[:32])
    expected = cnn(char_ids)
    chosen = choose_kernels(torch.ones(1))
    assert chosen.name == kernels
    result = _freeze_char_cnn(cnn.float(), chosen)(char_ids)
    torch.testing.assert_close(result.double(), expected, rtol=5e-7, atol=2e-6 * max(1.0, float(expected.abs().max())))


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


@pytest.mark.usefixtures("variant")
def test_no_words_give_no_vectors() -> None:
    assert run_char_cnn(random_cnn(), words_of([])).shape == (0, 12)
    cnn = random_cnn(filters=((2, 16),), char_width=16).float()
    vectors = run_char_cnn(cnn, words_of([]))
    assert vectors.shape == (0, 16)
    vectors.sum().backward()


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
    return [*torch.autograd.grad((y * torch.randn(y.shape).to(y)).sum(), [x, *highway.parameters()])]


@pytest.mark.parametrize("n_words", [0, 1, CACHE_ROWS, CACHE_ROWS + 1, 3 * CACHE_ROWS - 1])
def test_a_highway_has_the_values_and_gradients_of_the_reference(n_words: int) -> None:
    highway, x = highway_and_input(n_words)
    pool = BufferPool()
    for _ in range(3):  # later rounds reuse memory
        y = run_highway(highway, x, buffers=pool)
        torch.testing.assert_close(y, highway(x), rtol=0, atol=1e-12)
        expected = highway_gradients(highway(x), highway, x)
        torch.testing.assert_close(highway_gradients(y, highway, x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_words", [0, 1, CACHE_ROWS + 1, 200])
@pytest.mark.parametrize("width", [16, 48, 320])
def test_a_compiled_highway_has_the_values_and_gradients_of_the_reference(
    n_words: int, width: int, variant: str
) -> None:
    highway, x = highway_and_input(n_words, width)
    with torch.no_grad():
        highway.transform.weight /= width**0.5
        highway.gate.weight /= width**0.5
    names = ["y", "x", *(name for name, _ in highway.named_parameters())]
    exact = dict(zip(names, [highway(x).detach(), *highway_gradients(highway(x), highway, x)], strict=True))
    highway, x = highway.float(), x.detach().float().requires_grad_()
    pool = BufferPool()
    for _ in range(3):  # later rounds reuse memory
        y = run_highway(highway, x, buffers=pool)
        assert autograd_functions(y) == {"_HighwayFunction" if variant == "0" else "_CompiledHighway"}
        result = dict(zip(names, [y.detach(), *highway_gradients(y, highway, x)], strict=True))
        if n_words:
            assert_close_in_float32(result, exact)
        with torch.no_grad():
            assert torch.equal(run_highway(highway, x, buffers=pool), y)


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


def test_bfloat16_highway_products_are_close_to_exact_ones(variant: str) -> None:
    highway, x = highway_and_input(40, width=64)
    highway, x = highway.float(), x.detach().float().requires_grad_()
    y = run_highway(highway, x, has_bf16_products=True)
    has_kernels = is_compiled(variant, "bfloat16")
    assert autograd_functions(y) == {"_CompiledHighway" if has_kernels else "_HighwayFunction"}
    assert y.dtype == torch.float32
    assert 0 < (y - highway(x)).abs().mean() < 0.02
    gradients = zip(highway_gradients(y, highway, x), highway_gradients(highway(x), highway, x), strict=True)
    for gradient, exact in gradients:
        assert gradient.dtype == torch.float32
        assert (gradient - exact).norm() < 0.05 * exact.norm()


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
def layer(kernels: str) -> CountingTokenLayer:
    assert choose_kernels(LIKE).name == kernels
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
