from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from elmo.errors import ConfigError, DataError, ShapeError
from elmo.tasks.data.examples import Span
from elmo.tasks.heads import coreference
from elmo.tasks.heads.coreference import CoreferenceHead
from elmo.tasks.heads.layers import SentenceGroups, FeatureVectors, FeatureWidths


def vectors(*lengths: int, seed: int = 0, padding: int = 0) -> FeatureVectors:
    """Random sentences whose words do not depend on the padding."""
    mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = torch.zeros(*mask.shape, 6), torch.zeros(*mask.shape, 3)
    for row, length in enumerate(lengths):
        inputs[row, :length] = torch.randn(length, 6, generator=generator)
        outputs[row, :length] = torch.randn(length, 3, generator=generator)
    return FeatureVectors(inputs, mask, outputs)


def a_head(**options: object) -> CoreferenceHead:
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
    head = a_head(is_coarse=is_coarse, max_antecedents=6, kept_share=0.8)
    if head.coarse is not None:
        torch.nn.init.normal_(head.coarse.weight, std=0.1)
    document = vectors(5, 4, 6)
    speakers = torch.tensor([1] * 5 + [-1] * 4 + [1, 2, 2, 1, 1, 2])
    with torch.no_grad():
        found = head(document, speakers)
        spans = found.spans[found.kept]
        g = head.vectors(head._tokens(document), spans)
        mentions = head.mention_score(head.mention_layer(g)).squeeze(1)
        torch.testing.assert_close(found.mentions[found.kept], mentions, atol=1e-6, rtol=1e-5)
        assert len(found.kept) == 12
        for i, (start, _) in enumerate(spans.pairs()):
            before = range(i) if is_coarse else range(max(0, i - 6), i)
            real = [
                j for j, link in zip(found.antecedents[i], found.links[i, 1:], strict=True) if link.isfinite()
            ]
            assert len(real) == min(i, 6)
            assert set(map(int, real)) <= set(before)
            assert found.links[i, 0] == 0
            for place, j in enumerate(map(int, real)):
                a, b = int(speakers[start]), int(speakers[spans.starts[j]])
                relation = 0 if min(a, b) < 0 else 1 + (a == b)
                expected = slow_link(head, g, i=i, j=j, relation=relation) + mentions[i] + mentions[j]
                if head.coarse is not None:
                    expected = expected + g[i] @ head.coarse.weight.T @ g[j]
                torch.testing.assert_close(found.links[i, 1 + place], expected, atol=1e-6, rtol=1e-5)


def test_the_loss_is_that_of_all_gold_antecedents_and_of_all_mentions() -> None:
    head = a_head(has_singletons=True)
    document = vectors(5, 4)
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
    head = a_head(has_singletons=True)
    tight, loose = head(vectors(5, 4)), head(vectors(5, 0, 4, padding=3))
    assert tight.spans.pairs() == loose.spans.pairs()
    torch.testing.assert_close(tight.mentions, loose.mentions, atol=1e-6, rtol=0)
    torch.testing.assert_close(tight.links, loose.links, atol=1e-6, rtol=0)


def test_chunks_change_neither_loss_nor_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    head, document, gold = a_head(), vectors(5, 4, 6), [pairs([(0, 1), (5, 6), (9, 11)])]
    whole = torch.autograd.grad(head.loss(document, gold), list(head.parameters()), allow_unused=True)
    monkeypatch.setattr(coreference, "MAX_PAIRS", 2)
    parts = torch.autograd.grad(head.loss(document, gold), list(head.parameters()), allow_unused=True)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_gold_that_was_not_kept_or_is_too_long_does_not_break_the_loss() -> None:
    head = a_head(kept_share=0.01, has_singletons=True)
    loss = head.loss(vectors(5, 4), [pairs([(0, 5), (5, 9)]), pairs([(1, 2), (6, 7)])])
    loss.backward()
    assert loss.isfinite()
    assert all(weights.grad is None or weights.grad.isfinite().all() for weights in head.parameters())


@pytest.mark.parametrize("lengths", [(1,), (1, 1), (7,), (0, 1)])
@pytest.mark.parametrize("is_coarse", [False, True])
def test_short_documents_without_mentions_are_read(lengths: tuple[int, ...], is_coarse: bool) -> None:
    head = a_head(has_singletons=True, is_coarse=is_coarse)
    loss = head.loss(vectors(*lengths), [])
    loss.backward()
    assert loss.isfinite()
    assert all(one.span.end <= sum(lengths) for cluster in head.predict(vectors(*lengths)) for one in cluster)
    assert a_head().loss(vectors(*lengths), []).requires_grad


def test_predicted_spans_lie_within_sentences_once_each_and_are_alike_each_time() -> None:
    head = a_head(has_singletons=True, kept_share=0.9)
    document = vectors(5, 1, 6, padding=1)
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
        for place, one in enumerate(cluster[1:], start=1):
            assert one.antecedent in [other.span for other in cluster[:place]]
            assert 0 < one.probability <= 1
    head.has_singletons = False
    assert head.predict(document) == tuple(cluster for cluster in clusters if len(cluster) > 1)


def test_a_head_learns_who_is_who_and_who_stands_alone() -> None:
    """Words 0 and 1 are two people named often, 2 is one named once, the others are nobody."""
    torch.manual_seed(1)
    words = torch.tensor([[0, 4, 1, 5], [3, 0, 2, 4], [1, 5, 3, 0]])
    document = FeatureVectors(torch.eye(6)[words], torch.ones(3, 4, dtype=torch.bool))
    gold = [pairs([(0, 1), (5, 6), (11, 12)]), pairs([(2, 3), (8, 9)]), pairs([(6, 7)])]
    head = CoreferenceHead(
        FeatureWidths(6), hidden_width=12, max_span_width=2, feature_width=4, has_singletons=True,
        kept_share=0.6, input_dropout=0.0, dropout=0.0,
    )  # fmt: skip
    optimiser = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(50):
        optimiser.zero_grad()
        head.loss(document, gold).backward()
        optimiser.step()
    found = [tuple(one.span for one in cluster) for cluster in head.eval().predict(document)]
    assert found == gold


def test_what_does_not_fit_is_refused() -> None:
    head = a_head()
    with pytest.raises(DataError, match="expected tokens within the document's 9, found 8 to 10"):
        head.loss(vectors(5, 4), [pairs([(8, 10)])])
    with pytest.raises(ShapeError, match=r"speakers: expected one for each of 9 tokens, found \(8,\)"):
        head(vectors(5, 4), torch.zeros(8))
    with pytest.raises(DataError, match="a document: expected words, found none"):
        head.loss(vectors(0, padding=1), [])
    assert head.predict(vectors(0, padding=1)) == ()
    with pytest.raises(ConfigError, match=r"found 0, 100 and 0\.4"):
        a_head(max_span_width=0)


def test_sentences_in_groups_have_the_numbers_of_a_padded_batch() -> None:
    """Groups of sentences 1, 4 | 0, 3 | 2: the document's order is not theirs."""
    head = a_head(has_singletons=True)
    whole = vectors(5, 2, 9, 4, 1)
    rows = ([1, 4], [0, 3], [2])
    groups = []
    for some in rows:
        longest = int(whole.lengths[some].max())
        assert whole.outputs is not None
        groups.append(
            FeatureVectors(
                whole.inputs[some, :longest], whole.mask[some, :longest], whole.outputs[some, :longest]
            )
        )
    document = SentenceGroups(
        tuple(groups), torch.tensor([place for some in rows for place in some]).argsort()
    )
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
