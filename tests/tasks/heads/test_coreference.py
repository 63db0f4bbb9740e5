"""The head for coreference resolution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from elmo.errors import DataError, ShapeError
from elmo.tasks.data.examples import Span
from elmo.tasks.heads import coreference
from elmo.tasks.heads.coreference import (
    CoreferenceHead,
    Spans,
    SpanVectors,
    TokenStates,
    enumerate_spans,
    number_clusters,
    prune_crossing,
)
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths, SentenceGroups
from tests.tasks.heads.toy_words import random_features


def build_spans(*pairs: tuple[int, int]) -> Spans:
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


def test_spans_do_not_exceed_sentences_or_the_maximum_width() -> None:
    found = enumerate_spans(torch.tensor([2, 0, 3]), 2)
    assert found.pairs() == [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (3, 5), (4, 5)]
    assert enumerate_spans(torch.tensor([1]), 10).pairs() == [(0, 1)]


def test_a_span_that_crosses_a_better_one_is_skipped() -> None:
    spans = build_spans((0, 3), (1, 2), (1, 3), (2, 4), (3, 5))
    scores = torch.tensor([5.0, 1.0, 2.0, 4.0, 3.0])
    assert prune_crossing(spans, scores, 3).tolist() == [0, 2, 4]  # (2, 4) crosses (0, 3)
    assert prune_crossing(spans, scores, 99).tolist() == [0, 1, 2, 4]
    assert prune_crossing(spans, scores, 1).tolist() == [0]
    assert prune_crossing(Spans(torch.zeros(0).long(), torch.zeros(0).long()), torch.zeros(0), 3).numel() == 0


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 99), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_pruning_is_greedy_over_all_pairs(lengths: list[int], seed: int, n: int) -> None:
    spans = enumerate_spans(torch.tensor(lengths), 4)
    scores = torch.rand(len(spans), generator=torch.Generator().manual_seed(seed))
    pairs = spans.pairs()
    expected: list[int] = []
    for index in sorted(range(len(pairs)), key=lambda k: -float(scores[k])):
        if len(expected) < n and not any(do_cross(pairs[index], pairs[other]) for other in expected):
            expected.append(index)
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


def test_a_layer_over_tokens_equals_the_layer_over_spans() -> None:
    vectors, tokens = span_vectors()
    spans = enumerate_spans(torch.tensor([4, 3]), 3)
    layer = nn.Linear(vectors.width, 5).double()
    weights = torch.randn(len(spans), 5, dtype=torch.float64)
    parameters = [*layer.parameters(), *vectors.parameters()]
    slow, fast = layer(vectors(tokens, spans)), vectors.apply_layer(layer, tokens, spans)
    torch.testing.assert_close(slow, fast)
    for one, other in zip(
        torch.autograd.grad((slow * weights).sum(), parameters),
        torch.autograd.grad((fast * weights).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_clusters_are_numbered_from_one() -> None:
    spans = build_spans((0, 1), (0, 2), (1, 2), (2, 3))
    assert number_clusters(spans, [[(0, 1), (2, 3)], [(0, 2), (5, 9)]]).tolist() == [1, 2, 0, 1]
    assert number_clusters(spans, []).tolist() == [0, 0, 0, 0]


def build_head(**options: object) -> CoreferenceHead:
    torch.manual_seed(0)
    given = {"hidden_width": 5, "max_span_width": 3, "feature_width": 2, **options}
    return CoreferenceHead(FeatureWidths(6, 3), **given).eval()  # pyright: ignore


def pairs(spans: list[tuple[int, int]]) -> tuple[Span, ...]:
    return tuple(Span(*pair) for pair in spans)


def slow_link(head: CoreferenceHead, g: Tensor, *, i: int, j: int, relation: int) -> Tensor:
    """s_a(i, j) from one long vector: [g_i; g_j; g_i ⊙ g_j; φ]."""
    score = head.pair_score
    bucket = max(k for k, begin in enumerate((1, 2, 3, 4, 5, 8, 16, 32, 64)) if i - j >= begin)
    features = torch.cat([score.distances.weight[bucket], score.speakers.weight[relation]])
    weight = torch.cat(
        [layer.weight for layer in (score.anaphor, score.antecedent, score.product, score.features)], dim=1
    )
    hidden = weight @ torch.cat([g[i], g[j], g[i] * g[j], features]) + score.anaphor.bias
    return score.rest(hidden)[0]


@pytest.mark.parametrize("is_coarse", [False, True])
def test_scores_agree_with_a_slow_transcription(is_coarse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coreference, "MAX_PAIRS", 20)  # several chunks
    head = build_head(is_coarse=is_coarse, max_antecedents=6, kept_share=0.8)
    if head.coarse is not None:
        torch.nn.init.normal_(head.coarse.weight, std=0.1)
    document = random_features(5, 4, 6)
    speakers = torch.tensor([1] * 5 + [-1] * 4 + [1, 2, 2, 1, 1, 2])
    with torch.no_grad():
        found = head(document, speakers)
        spans = found.spans[found.kept]
        g = head.vectors(head._encode(document), spans)
        mentions = head.mention_score(head.mention_layer(g)).squeeze(1)
        torch.testing.assert_close(found.mentions[found.kept], mentions, atol=1e-6, rtol=1e-5)
        assert len(found.kept) == 12
        for i, (start, _) in enumerate(spans.pairs()):
            before = range(i) if is_coarse else range(max(0, i - 6), i)
            real = [j for j, link in zip(found.antecedents[i], found.links[i, 1:], strict=True) if link.isfinite()]
            assert len(real) == min(i, 6)
            assert set(map(int, real)) <= set(before)
            assert found.links[i, 0] == 0
            for index, j in enumerate(map(int, real)):
                a, b = int(speakers[start]), int(speakers[spans.starts[j]])
                relation = 0 if min(a, b) < 0 else 1 + (a == b)
                expected = slow_link(head, g, i=i, j=j, relation=relation) + mentions[i] + mentions[j]
                if head.coarse is not None:
                    expected = expected + g[i] @ head.coarse.weight.T @ g[j]
                torch.testing.assert_close(found.links[i, 1 + index], expected, atol=1e-6, rtol=1e-5)


def test_the_loss_agrees_with_a_slow_transcription() -> None:
    head = build_head(has_singletons=True)
    document = random_features(5, 4)
    found = head(document)
    kept = found.spans[found.kept].pairs()
    assert len(kept) == 3
    gold = [pairs([kept[0], kept[1], kept[2]]), pairs([(8, 9)] if (8, 9) not in kept else [(7, 8)])]
    links = [row.tolist() for row in found.links.detach()]
    total = 0.0
    for row, right in zip(links, ([0], [1], [1, 2]), strict=True):
        total -= math.log(sum(math.exp(row[k]) for k in right) / sum(map(math.exp, row)))
    for score, span in zip(found.mentions.tolist(), found.spans.pairs(), strict=True):
        is_gold = any(span == (one.start, one.end) for cluster in gold for one in cluster)
        total += math.log1p(math.exp(-score if is_gold else score))
    assert float(head.loss(document, gold).detach()) == pytest.approx(total / 3, rel=1e-5)


def test_padding_and_empty_sentences_change_nothing() -> None:
    head = build_head(has_singletons=True)
    tight, loose = head(random_features(5, 4)), head(random_features(5, 0, 4, padding=3))
    assert tight.spans.pairs() == loose.spans.pairs()
    torch.testing.assert_close(tight.mentions, loose.mentions, atol=1e-6, rtol=0)
    torch.testing.assert_close(tight.links, loose.links, atol=1e-6, rtol=0)


def test_chunks_change_neither_loss_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    head, document, gold = build_head(), random_features(5, 4, 6), [pairs([(0, 1), (5, 6), (9, 11)])]
    whole = torch.autograd.grad(head.loss(document, gold), list(head.parameters()), allow_unused=True)
    monkeypatch.setattr(coreference, "MAX_PAIRS", 2)
    parts = torch.autograd.grad(head.loss(document, gold), list(head.parameters()), allow_unused=True)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_gold_mentions_that_are_not_kept_have_a_finite_loss() -> None:
    head = build_head(kept_share=0.01, has_singletons=True)
    loss = head.loss(random_features(5, 4), [pairs([(0, 5), (5, 9)]), pairs([(1, 2), (6, 7)])])
    loss.backward()
    assert loss.isfinite()
    assert all(weights.grad is None or weights.grad.isfinite().all() for weights in head.parameters())


@pytest.mark.parametrize("lengths", [(1,), (1, 1), (7,), (0, 1)])
@pytest.mark.parametrize("is_coarse", [False, True])
def test_short_documents_without_mentions_have_a_loss(lengths: tuple[int, ...], is_coarse: bool) -> None:
    head = build_head(has_singletons=True, is_coarse=is_coarse)
    loss = head.loss(random_features(*lengths), [])
    loss.backward()
    assert loss.isfinite()
    assert all(one.span.end <= sum(lengths) for cluster in head.predict(random_features(*lengths)) for one in cluster)
    assert build_head().loss(random_features(*lengths), []).requires_grad


def test_predicted_clusters_are_valid_and_deterministic() -> None:
    head = build_head(has_singletons=True, kept_share=0.9)
    document = random_features(5, 1, 6, padding=1)
    sentence_ends = [5] * 5 + [6] + [12] * 6  # of each token
    with torch.no_grad():  # about half of the spans become mentions, about half of the links good ones
        found = head(document)
        head.mention_score[-1].bias -= found.mentions[found.kept].median()
        links = head(document).links[:, 1:]
        head.pair_score.rest[-1].bias -= links[links.isfinite()].quantile(0.9)
    clusters = head.predict(document)
    assert clusters == head.predict(document)
    assert len({len(cluster) > 1 for cluster in clusters}) == 2  # both kinds
    spans = [one.span for cluster in clusters for one in cluster]
    assert len(spans) == len(set(spans))
    for span in spans:
        assert span.start < span.end <= min(sentence_ends[span.start], span.start + 3)
    for cluster in clusters:
        opener = cluster[0]
        assert opener.antecedent is None
        assert len(cluster) > 1 or opener.score > 0
        for index, one in enumerate(cluster[1:], start=1):
            assert one.antecedent in [other.span for other in cluster[:index]]
            assert 0 < one.probability <= 1
    head.has_singletons = False
    assert head.predict(document) == tuple(cluster for cluster in clusters if len(cluster) > 1)


def test_a_head_learns_clusters_and_singletons() -> None:
    """Words 0 and 1 are mentioned often, word 2 once; the others are not mentions."""
    torch.manual_seed(1)
    words = torch.tensor([[0, 4, 1, 5], [3, 0, 2, 4], [1, 5, 3, 0]])
    document = FeatureVectors(torch.eye(6)[words], torch.ones(3, 4, dtype=torch.bool))
    gold = [pairs([(0, 1), (5, 6), (11, 12)]), pairs([(2, 3), (8, 9)]), pairs([(6, 7)])]
    head = CoreferenceHead(
        FeatureWidths(6), hidden_width=12, max_span_width=2, feature_width=4, has_singletons=True,
        kept_share=0.6, input_dropout=0.0, dropout=0.0,
    )  # fmt: skip
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(50):
        optimizer.zero_grad()
        head.loss(document, gold).backward()
        optimizer.step()
    found = [tuple(one.span for one in cluster) for cluster in head.eval().predict(document)]
    assert found == gold


def test_wrong_inputs_raise_an_error() -> None:
    head = build_head()
    with pytest.raises(DataError, match="gold mention must be within the 9 tokens of the text; found 8 to 10"):
        head.loss(random_features(5, 4), [pairs([(8, 10)])])
    with pytest.raises(ShapeError, match=r"speakers must have shape \(9,\), one id per token; found \(8,\)"):
        head(random_features(5, 4), torch.zeros(8))


def test_grouped_sentences_give_the_numbers_of_a_padded_batch() -> None:
    """The groups are sentences 1, 4 | 0, 3 | 2, which is not document order."""
    head = build_head(has_singletons=True)
    whole = random_features(5, 2, 9, 4, 1)
    rows = ([1, 4], [0, 3], [2])
    groups = []
    for some in rows:
        longest = int(whole.lengths[some].max())
        assert whole.outputs is not None
        groups.append(
            FeatureVectors(whole.inputs[some, :longest], whole.mask[some, :longest], whole.outputs[some, :longest])
        )
    document = SentenceGroups(tuple(groups), torch.tensor([index for some in rows for index in some]).argsort())
    assert document.lengths.tolist() == [5, 2, 9, 4, 1]
    gold = [pairs([(0, 1), (8, 9), (16, 18)]), pairs([(3, 5)])]
    found, expected = head(document), head(whole)
    assert found.spans.pairs() == expected.spans.pairs()
    assert found.kept.tolist() == expected.kept.tolist()
    torch.testing.assert_close(found.mentions, expected.mentions, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.links, expected.links, atol=1e-5, rtol=0)
    weights = list(head.parameters())
    grouped = torch.autograd.grad(head.loss(document, gold), weights, allow_unused=True)
    padded = torch.autograd.grad(head.loss(whole, gold), weights, allow_unused=True)
    for one, other in zip(grouped, padded, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert [[one.span for one in cluster] for cluster in head.predict(document)] == [
        [one.span for one in cluster] for cluster in head.predict(whole)
    ]
