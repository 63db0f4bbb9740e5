"""Tokens of a document in, its spans, their vectors and the best of them that do not cross out.

Vectors of one document's sentences in, clusters of spans that speak of the same thing out.

The span-ranking model of Lee et al. (2017), the baseline of Peters et al. (2018): a biLSTM over each
sentence, a score for every span, the best spans kept, and for each of them a choice: a kept span before it,
or none.
ELMo joins the input and, where asked for, the biLSTM's output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elmo.errors import ConfigError, DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.data.examples import Span
from elmo.tasks.heads.layers import BiLstm, SentenceGroups, FeatureVectors, FeatureWidths, join_outputs


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


def enumerate_spans(lengths: Tensor, max_width: int) -> Spans:
    """Every span of at most ``max_width`` words of sentences with ``lengths`` (batch,), ordered by place."""
    sentence_ends = lengths.cumsum(0).repeat_interleave(lengths)  # (token,)
    starts = torch.arange(len(sentence_ends), device=lengths.device).unsqueeze(1)  # (token, 1)
    ends = starts + torch.arange(1, max_width + 1, device=lengths.device)  # (token, max_width)
    is_within = ends <= sentence_ends.unsqueeze(1)
    return Spans(starts.expand_as(ends)[is_within], ends[is_within])


def prune_crossing(spans: Spans, scores: Tensor, n: int) -> Tensor:
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


def number_clusters(spans: Spans, clusters: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """The cluster of each span, from 1, (span,); 0: none."""
    number = {pair: k for k, cluster in enumerate(clusters, start=1) for pair in cluster}
    return torch.tensor(
        [number.get(pair, 0) for pair in spans.pairs()], dtype=torch.long, device=spans.starts.device
    )


Sentences = FeatureVectors | SentenceGroups

MAX_PAIRS = 8_192  # whose products of span vectors are in memory
_DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # where the buckets of distances begin
_UNKNOWN, _OTHER, _SAME = 0, 1, 2  # speakers of two spans


@dataclass(frozen=True)
class LinkedMention:
    """A span, its score as a mention (positive: rather one), and the chosen span before it.

    ``probability`` is that of the choice; ``antecedent`` is None where none was chosen.
    """

    span: Span
    score: float
    antecedent: Span | None
    probability: float


@dataclass(frozen=True)
class DocumentScores:
    """What the model makes of a document."""

    spans: Spans  # all, (span,)
    mentions: Tensor  # scores of all, (span,)
    kept: Tensor  # which spans are, (kept,)
    antecedents: Tensor  # places among the kept spans, (kept, candidate)
    links: Tensor  # (kept, 1 + candidate): 0 for none, then each candidate; -inf where there is none


class PairScore(nn.Module):
    """s_a(i, j) = FFNN([g_i; g_j; g_i ⊙ g_j; φ(i, j)]); φ: distance and whether one speaker says both.

    The first layer is kept in the parts that meet g_i, g_j, their product and φ: only the product has to be
    made for each pair.
    """

    def __init__(self, width: int, *, hidden_width: int, feature_width: int, dropout: float) -> None:
        super().__init__()
        self.anaphor = nn.Linear(width, hidden_width)
        self.antecedent = nn.Linear(width, hidden_width, bias=False)
        self.product = nn.Linear(width, hidden_width, bias=False)
        self.features = nn.Linear(2 * feature_width, hidden_width, bias=False)
        self.distances = nn.Embedding(len(_DISTANCES), feature_width)
        self.speakers = nn.Embedding(3, feature_width)
        self.rest = _rest(hidden_width, dropout)

    def forward(self, vectors: Tensor, antecedents: Tensor, speakers: Tensor | None) -> Tensor:
        """(kept, candidate) of vectors (kept, width), candidates' places and each span's speaker (kept,)."""
        n_kept, n_candidates = antecedents.shape
        if not n_candidates:
            return vectors.new_zeros(n_kept, 0)
        places = torch.arange(n_kept, device=vectors.device)
        buckets = _distance_buckets(places.unsqueeze(1) - antecedents)  # (kept, candidate)
        relations = _relations(speakers, antecedents)  # (kept, candidate)
        anaphors, others = self.anaphor(vectors), self.antecedent(vectors)  # (kept, hidden)

        def scores(rows: Tensor) -> Tensor:
            columns = antecedents[rows]  # (row, candidate)
            features = torch.cat([self.distances(buckets[rows]), self.speakers(relations[rows])], dim=2)
            products = F.embedding(rows, vectors).unsqueeze(1) * F.embedding(columns, vectors)
            hidden = F.embedding(rows, anaphors).unsqueeze(1) + F.embedding(columns, others)
            hidden = hidden + self.product(products) + self.features(features)
            return self.rest(hidden).squeeze(2)  # (row, candidate)

        # products of all pairs would not fit in memory: those of a chunk are made again for its gradients
        chunks = places.split(max(1, MAX_PAIRS // n_candidates))
        return torch.cat([cast("Tensor", checkpoint(scores, rows, use_reentrant=False)) for rows in chunks])


class CoreferenceHead(nn.Module):
    """Finds mentions and links them; ``hidden_width`` units a direction and in each feedforward layer.

    ``has_singletons`` says that gold clusters may have one mention: the mention scores are then trained for
    themselves, and a span that scores above 0 without a link is a cluster. With ``is_coarse`` the
    ``max_antecedents`` that a bilinear score likes best are weighed (Lee et al. 2018), not the nearest.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        hidden_width: int = 150,
        max_span_width: int = 10,
        kept_share: float = 0.4,
        max_antecedents: int = 100,
        feature_width: int = 20,
        has_singletons: bool = False,
        is_coarse: bool = False,
        input_dropout: float = 0.5,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if max_span_width < 1 or max_antecedents < 1 or kept_share <= 0:
            raise ConfigError(
                "max_span_width and max_antecedents must be at least 1 and kept_share above 0, found "
                f"{max_span_width}, {max_antecedents} and {kept_share}"
            )
        self.max_span_width, self.kept_share = max_span_width, kept_share
        self.max_antecedents = max_antecedents
        self.has_singletons, self.output_width = has_singletons, widths.outputs
        self.input_dropout, self.state_dropout = Dropout(input_dropout), Dropout(dropout, is_locked=True)
        self.context = BiLstm(widths.inputs, hidden_width)
        self.vectors = SpanVectors(
            state_width=self.context.width + widths.outputs,
            input_width=widths.inputs,
            max_span_width=max_span_width,
            feature_width=feature_width,
        )
        width = self.vectors.width
        self.mention_layer = nn.Linear(width, hidden_width)
        self.mention_score = _rest(hidden_width, dropout)
        self.pair_score = PairScore(
            width, hidden_width=hidden_width, feature_width=feature_width, dropout=dropout
        )
        self.coarse = nn.Linear(width, width, bias=False) if is_coarse else None
        if self.coarse is not None:
            nn.init.zeros_(self.coarse.weight)  # mention scores alone choose at first

    def forward(self, vectors: Sentences, speakers: Tensor | None = None) -> DocumentScores:
        """Scores of the spans of one document, whose sentences are the batch, or those of all groups.

        ``speakers`` (token,) are numbers; negative, or None at all: not known.
        """
        tokens = self._tokens(vectors)
        n_tokens = len(tokens.inputs)
        if not n_tokens:
            raise DataError("a document: expected words, found none")
        if speakers is not None and speakers.shape != (n_tokens,):
            raise ShapeError(
                f"speakers: expected one for each of {n_tokens} tokens, found {tuple(speakers.shape)}"
            )
        spans = enumerate_spans(vectors.lengths, self.max_span_width)
        hidden = self.vectors.through(self.mention_layer, tokens, spans)  # (span, hidden)
        mentions = self.mention_score(hidden).squeeze(1)  # (span,)
        kept = prune_crossing(spans, mentions.detach(), max(1, int(self.kept_share * n_tokens)))
        antecedents, links = self._links(tokens, spans[kept], mentions[kept], speakers)
        return DocumentScores(spans, mentions, kept, antecedents, links)

    def loss(
        self,
        vectors: Sentences,
        clusters: Sequence[Sequence[Span]],
        *,
        speakers: Tensor | None = None,
    ) -> Tensor:
        """−log Σ p(gold antecedents), a kept span's share of the sum (Lee et al. 2017, section 4).

        "None" is right for a span without gold antecedent among its candidates. With singletons, the cross
        entropy of all spans' mention scores is added to the sum.
        """
        found = self(vectors, speakers)
        gold = [[(span.start, span.end) for span in cluster] for cluster in clusters]
        _check_within(gold, int(vectors.lengths.sum()))
        numbers = number_clusters(found.spans, gold)  # (span,)
        mine = numbers[found.kept]  # (kept,)
        is_gold = (mine[found.antecedents] == mine.unsqueeze(1)) & (mine > 0).unsqueeze(1)
        is_gold = is_gold & found.links[:, 1:].isfinite()  # (kept, candidate)
        is_gold = torch.cat([~is_gold.any(dim=1, keepdim=True), is_gold], dim=1)  # (kept, 1 + candidate)
        right = found.links.masked_fill(~is_gold, -torch.inf).logsumexp(dim=1)
        total = (found.links.logsumexp(dim=1) - right).sum()
        if self.has_singletons:
            is_mention = (numbers > 0).to(found.mentions.dtype)
            total = total + F.binary_cross_entropy_with_logits(found.mentions, is_mention, reduction="sum")
        return total / len(found.kept)

    @torch.no_grad()
    def predict(
        self, vectors: Sentences, *, speakers: Tensor | None = None
    ) -> tuple[tuple[LinkedMention, ...], ...]:
        """Clusters in the order of their first mentions; a document without words has none."""
        if not vectors.lengths.any():
            return ()
        found = self(vectors, speakers)
        spans = [Span(*pair) for pair in found.spans[found.kept].pairs()]
        probabilities, choices = found.links.softmax(dim=1).max(dim=1)  # (kept,)
        scores = found.mentions[found.kept].tolist()
        antecedents = found.antecedents.tolist()
        cluster_of: list[list[LinkedMention]] = []  # of each kept span
        for place, (choice, probability) in enumerate(
            zip(choices.tolist(), probabilities.tolist(), strict=True)
        ):
            before = antecedents[place][choice - 1] if choice else None
            cluster_of.append([] if before is None else cluster_of[before])
            antecedent = None if before is None else spans[before]
            cluster_of[-1].append(LinkedMention(spans[place], scores[place], antecedent, probability))
        clusters = {id(cluster): cluster for cluster in cluster_of}.values()
        return tuple(
            tuple(cluster)
            for cluster in clusters
            if len(cluster) > 1 or (self.has_singletons and cluster[0].score > 0)
        )

    def _tokens(self, vectors: Sentences) -> Tokens:
        """The document's tokens, without padding."""
        if isinstance(vectors, FeatureVectors):
            return self._tokens_of(vectors)
        parts = [self._tokens_of(group) for group in vectors.groups]
        words = vectors.words  # (token,)
        return Tokens(
            torch.cat([part.inputs for part in parts]).index_select(0, words),
            torch.cat([part.states for part in parts]).index_select(0, words),
        )

    def _tokens_of(self, vectors: FeatureVectors) -> Tokens:
        """Those of sentences that are padded together, one sentence after another."""
        inputs = self.input_dropout(vectors.inputs)
        states = self.state_dropout(self.context(inputs, vectors.mask))  # (batch, time, 2 · hidden)
        states = join_outputs(states, vectors, width=self.output_width)
        return Tokens(inputs[vectors.mask], states[vectors.mask])

    def _links(
        self, tokens: Tokens, kept: Spans, mentions: Tensor, speakers: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Candidates of each kept span (kept, candidate), and scores (kept, 1 + candidate)."""
        vectors = self.vectors(tokens, kept)  # (kept, width)
        antecedents, is_real, scores = self._candidates(vectors, mentions)
        said_by = None if speakers is None else speakers[kept.starts]  # (kept,)
        scores = scores + self.pair_score(vectors, antecedents, said_by)
        scores = scores.masked_fill(~is_real, -torch.inf)
        return antecedents, torch.cat([scores.new_zeros(len(kept), 1), scores], dim=1)

    def _candidates(self, vectors: Tensor, mentions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Places of candidates, which of them are real, and s_m(i) + s_m(j), all (kept, candidate).

        With coarse pruning g_i W g_j is part of the score, as W could not learn otherwise.
        """
        n_kept = len(vectors)
        n_candidates = min(self.max_antecedents, n_kept - 1)
        places = torch.arange(n_kept, device=vectors.device).unsqueeze(1)  # (kept, 1)
        if self.coarse is None:
            antecedents = places - torch.arange(1, n_candidates + 1, device=vectors.device)
            is_real = antecedents >= 0
            antecedents = antecedents.clamp(min=0)
            return antecedents, is_real, mentions.unsqueeze(1) + mentions[antecedents]
        scores = self.coarse(vectors) @ vectors.T + mentions.unsqueeze(1) + mentions  # (kept, kept)
        scores = scores.masked_fill(places <= places.T, -torch.inf)
        best, antecedents = scores.topk(n_candidates, dim=1)
        is_real = best.isfinite()
        return antecedents, is_real, best.masked_fill(~is_real, 0.0)


def _rest(hidden_width: int, dropout: float) -> nn.Sequential:
    """The rest of a feedforward net of two hidden layers, after its first weights: a score."""
    return nn.Sequential(
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(hidden_width, hidden_width),
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(hidden_width, 1),
    )


def _distance_buckets(distances: Tensor) -> Tensor:
    """1, 2, 3, 4, 5–7, 8–15, 16–31, 32–63 and more kept spans apart (Lee et al. 2017, section 5)."""
    begins = torch.tensor(_DISTANCES[1:], device=distances.device)
    return torch.bucketize(distances, begins, right=True)


def _relations(speakers: Tensor | None, antecedents: Tensor) -> Tensor:
    """Whether spans and their candidates have one speaker, (kept, candidate)."""
    relations = torch.full_like(antecedents, _UNKNOWN)
    if speakers is None:
        return relations
    mine, theirs = speakers.unsqueeze(1), speakers[antecedents]
    is_known = (mine >= 0) & (theirs >= 0)
    return relations.masked_fill(is_known, _OTHER).masked_fill(is_known & (mine == theirs), _SAME)


def _check_within(clusters: Sequence[Sequence[tuple[int, int]]], n_tokens: int) -> None:
    for start, end in (pair for cluster in clusters for pair in cluster):
        if not 0 <= start < end <= n_tokens:
            raise DataError(
                f"a gold mention: expected tokens within the document's {n_tokens:,}, found {start} to {end}"
            )
