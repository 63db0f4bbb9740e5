from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from elmo.tasks.heads.coreference import (
    Spans,
    SpanVectors,
    TokenStates,
    prune_crossing,
    number_clusters,
    enumerate_spans,
)


def decode_spans(*pairs: tuple[int, int]) -> Spans:
    starts, ends = zip(*pairs, strict=True)
    return Spans(torch.tensor(starts), torch.tensor(ends))


def do_cross(one: tuple[int, int], other: tuple[int, int]) -> bool:
    (a, b), (c, d) = sorted([one, other])
    return a < c < b < d


def span_vectors() -> tuple[SpanVectors, TokenStates]:
    torch.manual_seed(0)
    vectors = SpanVectors(state_width=4, input_width=3, max_span_width=3, feature_width=2).double()
    tokens = TokenStates(torch.randn(7, 3, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64))
    return vectors, tokens


def test_spans_stay_within_sentences_and_the_width() -> None:
    found = enumerate_spans(torch.tensor([2, 0, 3]), 2)
    assert found.pairs() == [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (3, 5), (4, 5)]
    assert enumerate_spans(torch.tensor([1]), 10).pairs() == [(0, 1)]


def test_a_span_that_crosses_a_better_one_is_passed_over() -> None:
    spans = decode_spans((0, 3), (1, 2), (1, 3), (2, 4), (3, 5))
    scores = torch.tensor([5.0, 1.0, 2.0, 4.0, 3.0])
    assert prune_crossing(spans, scores, 3).tolist() == [0, 2, 4]  # (2, 4) crosses (0, 3)
    assert prune_crossing(spans, scores, 99).tolist() == [0, 1, 2, 4]
    assert prune_crossing(spans, scores, 1).tolist() == [0]
    assert (
        prune_crossing(Spans(torch.zeros(0).long(), torch.zeros(0).long()), torch.zeros(0), 3).numel() == 0
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 99), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_pruning_is_greedy_over_all_pairs(lengths: list[int], seed: int, n: int) -> None:
    spans = enumerate_spans(torch.tensor(lengths), 4)
    scores = torch.rand(len(spans), generator=torch.Generator().manual_seed(seed))
    pairs = spans.pairs()
    expected: list[int] = []
    for place in sorted(range(len(pairs)), key=lambda k: -float(scores[k])):
        if len(expected) < n and not any(do_cross(pairs[place], pairs[other]) for other in expected):
            expected.append(place)
    assert prune_crossing(spans, scores, n).tolist() == sorted(expected)


def test_span_vectors_agree_with_a_slow_transcription() -> None:
    vectors, tokens = span_vectors()
    spans = enumerate_spans(torch.tensor([4, 3]), 3)
    found = vectors(tokens, spans).detach().numpy()
    x, h = tokens.inputs.numpy(), tokens.states.numpy()
    weight, bias = (one.detach().numpy() for one in vectors.head_score.parameters())
    for row, (start, end) in enumerate(spans.pairs()):
        scores = np.exp(h[start:end] @ weight[0] + bias[0])
        head = (scores / scores.sum()) @ x[start:end]
        width = vectors.widths.weight.detach().numpy()[end - start - 1]
        expected = np.concatenate([h[start], h[end - 1], head, width])
        np.testing.assert_allclose(found[row], expected, rtol=1e-9)


def test_a_layer_over_tokens_gives_what_it_gives_over_spans_with_the_same_gradients() -> None:
    vectors, tokens = span_vectors()
    spans = enumerate_spans(torch.tensor([4, 3]), 3)
    layer = nn.Linear(vectors.width, 5).double()
    weights = torch.randn(len(spans), 5, dtype=torch.float64)
    parameters = [*layer.parameters(), *vectors.parameters()]
    slow, fast = layer(vectors(tokens, spans)), vectors.through(layer, tokens, spans)
    torch.testing.assert_close(slow, fast)
    for one, other in zip(
        torch.autograd.grad((slow * weights).sum(), parameters),
        torch.autograd.grad((fast * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_clusters_are_numbered_from_one_and_spans_outside_them_are_zero() -> None:
    spans = decode_spans((0, 1), (0, 2), (1, 2), (2, 3))
    assert number_clusters(spans, [[(0, 1), (2, 3)], [(0, 2), (5, 9)]]).tolist() == [1, 2, 0, 1]
    assert number_clusters(spans, []).tolist() == [0, 0, 0, 0]
