"""Tokens of a document in, its spans, their vectors and the best of them that do not cross out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Spans:
    """Tokens ``starts`` to ``ends``, the end not included, counted from the document's beginning."""

    starts: Tensor  # (span,)
    ends: Tensor  # (span,)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, chosen: Tensor) -> Spans:
        return Spans(self.starts[chosen], self.ends[chosen])

    def pairs(self) -> list[tuple[int, int]]:
        """As numbers."""
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))


@dataclass(frozen=True)
class Tokens:
    """The tokens of a document, one after another."""

    inputs: Tensor  # (token, input width): x
    states: Tensor  # (token, state width): h


def spans_within(lengths: Tensor, max_width: int) -> Spans:
    """Every span of at most ``max_width`` words of sentences with ``lengths`` (batch,), ordered by place."""
    sentence_ends = lengths.cumsum(0).repeat_interleave(lengths)  # (token,)
    starts = torch.arange(len(sentence_ends), device=lengths.device).unsqueeze(1)  # (token, 1)
    ends = starts + torch.arange(1, max_width + 1, device=lengths.device)  # (token, max_width)
    is_within = ends <= sentence_ends.unsqueeze(1)
    return Spans(starts.expand_as(ends)[is_within], ends[is_within])


def best_not_crossing(spans: Spans, scores: Tensor, n: int) -> Tensor:
    """Which ``n`` spans score best, passing over one that crosses a better one (Lee et al. 2017, section 5).

    Spans cross where they share tokens and neither lies within the other. Comes ordered as ``spans`` are.
    """
    pairs = spans.pairs()
    n_tokens = max((end for _, end in pairs), default=0)
    furthest = [0] * n_tokens  # end of the kept spans that start at a token
    earliest = [n_tokens] * (n_tokens + 1)  # start of the kept spans that end before a token
    kept: list[int] = []
    for place in scores.argsort(descending=True, stable=True).tolist():
        if len(kept) == n:
            break
        start, end = pairs[place]
        if max(furthest[start + 1 : end], default=0) > end:
            continue
        if min(earliest[start + 1 : end], default=n_tokens) < start:
            continue
        furthest[start] = max(furthest[start], end)
        earliest[end] = min(earliest[end], start)
        kept.append(place)
    return torch.tensor(sorted(kept), dtype=torch.long, device=scores.device)


class SpanVectors(nn.Module):
    """g = [h_first; h_last; x̂; φ(width)], where x̂ is attended to over the span's words (Lee et al. 2017).

    The score by which a word is taken as head is linear in its state, as in the published program.
    """

    def __init__(
        self, *, state_width: int, input_width: int, max_span_width: int, feature_width: int
    ) -> None:
        super().__init__()
        self.parts = (state_width, state_width, input_width, feature_width)
        self.width = sum(self.parts)  # of what comes out
        self.head_score = nn.Linear(state_width, 1)
        self.widths = nn.Embedding(max_span_width, feature_width)

    def forward(self, tokens: Tokens, spans: Spans) -> Tensor:
        """The vectors of spans, (span, width)."""
        return torch.cat(
            [
                F.embedding(spans.starts, tokens.states),
                F.embedding(spans.ends - 1, tokens.states),
                self._heads(tokens.inputs, tokens.states, spans),
                self.widths(spans.ends - spans.starts - 1),
            ],
            dim=1,
        )

    def through(self, layer: nn.Linear, tokens: Tokens, spans: Spans) -> Tensor:
        """``layer(self(tokens, spans))``, (span, layer's width), for many more spans than tokens.

        Each part of the layer meets tokens before they are gathered into spans: a tenth of the sums, and no
        vectors of all spans in memory.
        """
        first, last, head, width = layer.weight.split(self.parts, dim=1)
        return (
            F.embedding(spans.starts, F.linear(tokens.states, first, layer.bias))
            + F.embedding(spans.ends - 1, F.linear(tokens.states, last))
            + self._heads(F.linear(tokens.inputs, head), tokens.states, spans)
            + F.embedding(spans.ends - spans.starts - 1, F.linear(self.widths.weight, width))
        )

    def _heads(self, values: Tensor, states: Tensor, spans: Spans) -> Tensor:
        """Values (token, width) averaged over each span with the weights of its words, (span, width)."""
        if not len(spans):
            return values.new_zeros(0, values.size(1))
        widest = int((spans.ends - spans.starts).max())
        words = spans.starts.unsqueeze(1) + torch.arange(widest, device=values.device)  # (span, word)
        is_inside = words < spans.ends.unsqueeze(1)
        words = words.clamp(max=len(values) - 1)
        scores = F.embedding(words, self.head_score(states)).squeeze(2)  # (span, word)
        weights = scores.masked_fill(~is_inside, -torch.inf).softmax(dim=1)
        return F.embedding_bag(words, values, per_sample_weights=weights, mode="sum")


def cluster_numbers(spans: Spans, clusters: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """The cluster of each span, from 1, (span,); 0: none."""
    number = {pair: k for k, cluster in enumerate(clusters, start=1) for pair in cluster}
    return torch.tensor(
        [number.get(pair, 0) for pair in spans.pairs()], dtype=torch.long, device=spans.starts.device
    )
