"""Head for coreference resolution: finds mentions in a document and links those of the same entity.

This is the span-ranking model of Lee et al. (2017), the baseline of Peters et al. (2018). A biLSTM reads each
sentence, every span gets a mention score, and only the best spans are kept. Each kept span is linked to an
antecedent among the spans before it, or to none. ELMo is concatenated with the input of the biLSTM and, if the
task uses output features, with its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elmo.errors import DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.data.examples import Span
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths, SentenceGroups, join_outputs

DocumentFeatures = FeatureVectors | SentenceGroups

MAX_PAIRS = 8_192  # maximum number of span pairs whose products are in memory at a time
_DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # smallest distance of each bucket
_UNKNOWN, _OTHER, _SAME = 0, 1, 2  # whether two spans have the same speaker


@dataclass(frozen=True)
class Spans:
    """Spans from token ``starts`` to ``ends`` (exclusive); tokens are counted from the start of the document."""

    starts: Tensor  # (span,)
    ends: Tensor  # (span,)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Tensor) -> Spans:
        return Spans(self.starts[index], self.ends[index])

    def pairs(self) -> list[tuple[int, int]]:
        """Return (start, end) of each span."""
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))


@dataclass(frozen=True)
class TokenStates:
    """Input features and biLSTM states of all tokens of a document, without padding."""

    inputs: Tensor  # (token, input width): x
    states: Tensor  # (token, state width): h


@dataclass(frozen=True)
class LinkedMention:
    """A predicted mention and its antecedent.

    Attributes:
        span: The mention.
        score: Mention score of the span; a score above 0 means that it is probably a mention.
        antecedent: The earlier mention that this mention is linked to, or None.
        probability: Probability of this link, or of having no link.
    """

    span: Span
    score: float
    antecedent: Span | None
    probability: float


@dataclass(frozen=True)
class DocumentScores:
    """The mention scores and link scores of one document."""

    spans: Spans  # all spans, (span,)
    mentions: Tensor  # mention score of each span, (span,)
    kept: Tensor  # indices of the kept spans, (kept,)
    antecedents: Tensor  # candidate antecedents, as indices into ``kept``, (kept, candidate)
    links: Tensor  # (kept, 1 + candidate): 0 for no link, then the scores of candidates; -inf for missing ones


class CoreferenceHead(nn.Module):
    """Span-ranking network for coreference resolution.

    Args:
        widths: Widths of the features.
        hidden_width: Units of each feedforward layer, and of the biLSTM per direction.
        max_span_width: Maximum width of a mention in tokens.
        kept_share: Number of spans to keep, as a fraction of the number of tokens.
        max_antecedents: Maximum number of candidate antecedents per span.
        feature_width: Width of the embeddings of span widths, distances and speakers.
        has_singletons: Whether clusters may have a single mention. If so, mention scores have a separate loss, and
            a span with a score above 0 is a cluster even without a link.
        is_coarse: Whether to choose candidates by a bilinear score (Lee et al. 2018) instead of by distance.
        input_dropout: Dropout on the input features.
        dropout: Dropout inside the network.
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
        self.mention_score = _build_score_layers(hidden_width, dropout)
        self.pair_score = PairScore(width, hidden_width=hidden_width, feature_width=feature_width, dropout=dropout)
        self.coarse = nn.Linear(width, width, bias=False) if is_coarse else None
        if self.coarse is not None:
            nn.init.zeros_(self.coarse.weight)  # at first, candidates are chosen by mention scores only

    def forward(self, features: DocumentFeatures, speakers: Tensor | None = None) -> DocumentScores:
        """Score the spans of one document.

        Args:
            features: Features of the sentences, in one padded batch or in groups.
            speakers: Speaker id of each token, (token,), negative for an unknown speaker; None if all are unknown.
        """
        tokens = self._encode(features)
        n_tokens = len(tokens.inputs)
        if speakers is not None and speakers.shape != (n_tokens,):
            raise ShapeError(f"speakers must have shape ({n_tokens},), one id per token; found {tuple(speakers.shape)}")
        spans = enumerate_spans(features.lengths, self.max_span_width)
        hidden = self.vectors.apply_layer(self.mention_layer, tokens, spans)  # (span, hidden)
        mentions = self.mention_score(hidden).squeeze(1)  # (span,)
        kept = prune_crossing(spans, mentions.detach(), max(1, int(self.kept_share * n_tokens)))
        antecedents, links = self._score_links(tokens, spans[kept], mentions[kept], speakers)
        return DocumentScores(spans, mentions, kept, antecedents, links)

    def loss(
        self, features: DocumentFeatures, clusters: Sequence[Sequence[Span]], *, speakers: Tensor | None = None
    ) -> Tensor:
        """Compute −log Σ p(gold antecedents), averaged over kept spans (Lee et al. 2017, section 4).

        If a span has no gold antecedent among its candidates, the gold choice is "no link". With singletons, the
        cross entropy of the mention scores of all spans is added to the sum.
        """
        scores = self(features, speakers)
        gold = [[(span.start, span.end) for span in cluster] for cluster in clusters]
        _check_mentions(gold, int(features.lengths.sum()))
        numbers = number_clusters(scores.spans, gold)  # (span,)
        kept_numbers = numbers[scores.kept].unsqueeze(1)  # (kept, 1)
        is_gold = (numbers[scores.kept][scores.antecedents] == kept_numbers) & (kept_numbers > 0)
        is_gold = is_gold & scores.links[:, 1:].isfinite()  # (kept, candidate)
        is_gold = torch.cat([~is_gold.any(dim=1, keepdim=True), is_gold], dim=1)  # (kept, 1 + candidate)
        gold_score = scores.links.masked_fill(~is_gold, -torch.inf).logsumexp(dim=1)
        total = (scores.links.logsumexp(dim=1) - gold_score).sum()
        if self.has_singletons:
            is_mention = (numbers > 0).to(scores.mentions.dtype)
            total = total + F.binary_cross_entropy_with_logits(scores.mentions, is_mention, reduction="sum")
        return total / len(scores.kept)

    @torch.no_grad()
    def predict(
        self, features: DocumentFeatures, *, speakers: Tensor | None = None
    ) -> tuple[tuple[LinkedMention, ...], ...]:
        """Predict clusters in the order of their first mentions."""
        scores = self(features, speakers)
        spans = [Span(*pair) for pair in scores.spans[scores.kept].pairs()]
        probabilities, choices = scores.links.softmax(dim=1).max(dim=1)  # (kept,)
        mention_scores = scores.mentions[scores.kept].tolist()
        antecedents = scores.antecedents.tolist()
        cluster_of: list[list[LinkedMention]] = []  # the cluster of each kept span
        for k, (choice, probability) in enumerate(zip(choices.tolist(), probabilities.tolist(), strict=True)):
            link = antecedents[k][choice - 1] if choice else None
            cluster_of.append([] if link is None else cluster_of[link])
            antecedent = None if link is None else spans[link]
            cluster_of[-1].append(LinkedMention(spans[k], mention_scores[k], antecedent, probability))
        clusters = {id(cluster): cluster for cluster in cluster_of}.values()
        return tuple(
            tuple(cluster) for cluster in clusters if len(cluster) > 1 or (self.has_singletons and cluster[0].score > 0)
        )

    def _encode(self, features: DocumentFeatures) -> TokenStates:
        """Encode the tokens of the document, in document order."""
        if isinstance(features, FeatureVectors):
            return self._encode_group(features)
        parts = [self._encode_group(group) for group in features.groups]
        words = features.words  # (token,)
        return TokenStates(
            torch.cat([part.inputs for part in parts]).index_select(0, words),
            torch.cat([part.states for part in parts]).index_select(0, words),
        )

    def _encode_group(self, features: FeatureVectors) -> TokenStates:
        inputs = self.input_dropout(features.inputs)
        states = self.state_dropout(self.context(inputs, features.mask))  # (batch, time, 2 · hidden)
        states = join_outputs(states, features, width=self.output_width)
        return TokenStates(inputs[features.mask], states[features.mask])

    def _score_links(
        self, tokens: TokenStates, kept: Spans, mentions: Tensor, speakers: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return candidate antecedents (kept, candidate) and link scores (kept, 1 + candidate)."""
        vectors = self.vectors(tokens, kept)  # (kept, width)
        antecedents, is_real, scores = self._choose_candidates(vectors, mentions)
        span_speakers = None if speakers is None else speakers[kept.starts]  # (kept,)
        scores = scores + self.pair_score(vectors, antecedents, span_speakers)
        scores = scores.masked_fill(~is_real, -torch.inf)
        return antecedents, torch.cat([scores.new_zeros(len(kept), 1), scores], dim=1)

    def _choose_candidates(self, vectors: Tensor, mentions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the candidate antecedents j of each span i, whether each exists, and its score s_m(i) + s_m(j).

        All results are (kept, candidate). With ``is_coarse``, the bilinear score g_i W g_j is added to the score, so
        that W gets a gradient.
        """
        n_kept = len(vectors)
        n_candidates = min(self.max_antecedents, n_kept - 1)
        indices = torch.arange(n_kept, device=vectors.device).unsqueeze(1)  # (kept, 1)
        if self.coarse is None:
            antecedents = indices - torch.arange(1, n_candidates + 1, device=vectors.device)
            is_real = antecedents >= 0
            antecedents = antecedents.clamp(min=0)
            return antecedents, is_real, mentions.unsqueeze(1) + mentions[antecedents]
        scores = self.coarse(vectors) @ vectors.T + mentions.unsqueeze(1) + mentions  # (kept, kept)
        scores = scores.masked_fill(indices <= indices.T, -torch.inf)
        best, antecedents = scores.topk(n_candidates, dim=1)
        is_real = best.isfinite()
        return antecedents, is_real, best.masked_fill(~is_real, 0.0)


def enumerate_spans(lengths: Tensor, max_width: int) -> Spans:
    """List all spans of at most ``max_width`` words within sentences of ``lengths`` (batch,), in order."""
    sentence_ends = lengths.cumsum(0).repeat_interleave(lengths)  # (token,)
    starts = torch.arange(len(sentence_ends), device=lengths.device).unsqueeze(1)  # (token, 1)
    ends = starts + torch.arange(1, max_width + 1, device=lengths.device)  # (token, max_width)
    is_inside = ends <= sentence_ends.unsqueeze(1)
    return Spans(starts.expand_as(ends)[is_inside], ends[is_inside])


def prune_crossing(spans: Spans, scores: Tensor, n: int) -> Tensor:
    """Choose the ``n`` best spans, without spans that cross a better span (Lee et al. 2017, section 5).

    Two spans cross if they share tokens and neither contains the other. Return the sorted indices of the spans.
    """
    pairs = spans.pairs()
    n_tokens = max((end for _, end in pairs), default=0)
    max_end = [0] * n_tokens  # maximum end of the kept spans that start at a token
    min_start = [n_tokens] * (n_tokens + 1)  # minimum start of the kept spans that end before a token
    kept: list[int] = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if len(kept) == n:
            break
        start, end = pairs[index]
        if max(max_end[start + 1 : end], default=0) > end:
            continue
        if min(min_start[start + 1 : end], default=n_tokens) < start:
            continue
        max_end[start] = max(max_end[start], end)
        min_start[end] = min(min_start[end], start)
        kept.append(index)
    return torch.tensor(sorted(kept), dtype=torch.long, device=scores.device)


def number_clusters(spans: Spans, clusters: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """Return the cluster number of each span, (span,), starting at 1; 0 for a span in no cluster."""
    number = {pair: k for k, cluster in enumerate(clusters, start=1) for pair in cluster}
    return torch.tensor([number.get(pair, 0) for pair in spans.pairs()], dtype=torch.long, device=spans.starts.device)


def _check_mentions(clusters: Sequence[Sequence[tuple[int, int]]], n_tokens: int) -> None:
    for start, end in (pair for cluster in clusters for pair in cluster):
        if not 0 <= start < end <= n_tokens:
            raise DataError(f"gold mention must be within the {n_tokens:,} tokens of the text; found {start} to {end}")


class SpanVectors(nn.Module):
    """Vectors of spans: g = [h_first; h_last; x̂; φ(width)] (Lee et al. 2017).

    x̂ is the mean of the words, weighted by attention. The attention score of a word is a linear function of its
    state, as in the published code.
    """

    def __init__(self, *, state_width: int, input_width: int, max_span_width: int, feature_width: int) -> None:
        super().__init__()
        self.parts = (state_width, state_width, input_width, feature_width)
        self.width = sum(self.parts)  # width of the vectors
        self.head_score = nn.Linear(state_width, 1)
        self.widths = nn.Embedding(max_span_width, feature_width)

    def forward(self, tokens: TokenStates, spans: Spans) -> Tensor:
        """Compute the vectors of spans, (span, width)."""
        return torch.cat(
            [
                F.embedding(spans.starts, tokens.states),
                F.embedding(spans.ends - 1, tokens.states),
                self._attend(tokens.inputs, tokens.states, spans),
                self.widths(spans.ends - spans.starts - 1),
            ],
            dim=1,
        )

    def apply_layer(self, layer: nn.Linear, tokens: TokenStates, spans: Spans) -> Tensor:
        """Compute ``layer(self(tokens, spans))``, (span, layer width), efficiently for many spans.

        Each part of the layer is applied to the tokens before they are gathered into spans. This needs a tenth of
        the operations, and the vectors of all spans are never in memory at once.
        """
        first, last, head, width = layer.weight.split(self.parts, dim=1)
        return (
            F.embedding(spans.starts, F.linear(tokens.states, first, layer.bias))
            + F.embedding(spans.ends - 1, F.linear(tokens.states, last))
            + self._attend(F.linear(tokens.inputs, head), tokens.states, spans)
            + F.embedding(spans.ends - spans.starts - 1, F.linear(self.widths.weight, width))
        )

    def _attend(self, values: Tensor, states: Tensor, spans: Spans) -> Tensor:
        """Compute the mean of ``values`` (token, width) over each span, weighted by attention, (span, width)."""
        widest = int((spans.ends - spans.starts).max())
        words = spans.starts.unsqueeze(1) + torch.arange(widest, device=values.device)  # (span, word)
        is_inside = words < spans.ends.unsqueeze(1)
        words = words.clamp(max=len(values) - 1)
        scores = F.embedding(words, self.head_score(states)).squeeze(2)  # (span, word)
        weights = scores.masked_fill(~is_inside, -torch.inf).softmax(dim=1)
        return F.embedding_bag(words, values, per_sample_weights=weights, mode="sum")


class PairScore(nn.Module):
    """Score of a pair of spans: s_a(i, j) = FFNN([g_i; g_j; g_i ⊙ g_j; φ(i, j)]) (Lee et al. 2017).

    φ embeds the distance between the two spans and whether they have the same speaker. The first layer is split into
    parts for g_i, g_j, their product and φ, so that the parts for g_i and g_j are computed once per span.
    """

    def __init__(self, width: int, *, hidden_width: int, feature_width: int, dropout: float) -> None:
        super().__init__()
        self.anaphor = nn.Linear(width, hidden_width)
        self.antecedent = nn.Linear(width, hidden_width, bias=False)
        self.product = nn.Linear(width, hidden_width, bias=False)
        self.features = nn.Linear(2 * feature_width, hidden_width, bias=False)
        self.distances = nn.Embedding(len(_DISTANCES), feature_width)
        self.speakers = nn.Embedding(3, feature_width)
        self.rest = _build_score_layers(hidden_width, dropout)

    def forward(self, vectors: Tensor, antecedents: Tensor, speakers: Tensor | None) -> Tensor:
        """Compute the scores of all spans and their candidate antecedents, (kept, candidate).

        Args:
            vectors: Span vectors, (kept, width).
            antecedents: Indices of the candidate antecedents, (kept, candidate).
            speakers: Speaker id of each span, (kept,), or None.
        """
        n_kept, n_candidates = antecedents.shape
        if not n_candidates:
            return vectors.new_zeros(n_kept, 0)
        indices = torch.arange(n_kept, device=vectors.device)
        buckets = _find_distance_buckets(indices.unsqueeze(1) - antecedents)  # (kept, candidate)
        relations = _compare_speakers(speakers, antecedents)  # (kept, candidate)
        anaphors, others = self.anaphor(vectors), self.antecedent(vectors)  # (kept, hidden)

        def score(rows: Tensor) -> Tensor:
            columns = antecedents[rows]  # (row, candidate)
            features = torch.cat([self.distances(buckets[rows]), self.speakers(relations[rows])], dim=2)
            products = F.embedding(rows, vectors).unsqueeze(1) * F.embedding(columns, vectors)
            hidden = F.embedding(rows, anaphors).unsqueeze(1) + F.embedding(columns, others)
            hidden = hidden + self.product(products) + self.features(features)
            return self.rest(hidden).squeeze(2)  # (row, candidate)

        # the products of all pairs do not fit into memory: each chunk is computed again in the backward pass
        chunks = indices.split(max(1, MAX_PAIRS // n_candidates))
        return torch.cat([cast("Tensor", checkpoint(score, rows, use_reentrant=False)) for rows in chunks])


def _build_score_layers(hidden_width: int, dropout: float) -> nn.Sequential:
    """Build the layers of a scoring network that follow its first linear layer."""
    return nn.Sequential(
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(hidden_width, hidden_width),
        nn.ReLU(),
        Dropout(dropout),
        nn.Linear(hidden_width, 1),
    )


def _find_distance_buckets(distances: Tensor) -> Tensor:
    """Return the bucket of each distance: 1, 2, 3, 4, 5–7, 8–15, 16–31, 32–63, 64+ (Lee et al. 2017)."""
    boundaries = torch.tensor(_DISTANCES[1:], device=distances.device)
    return torch.bucketize(distances, boundaries, right=True)


def _compare_speakers(speakers: Tensor | None, antecedents: Tensor) -> Tensor:
    """Return for each span and candidate whether they have the same speaker, (kept, candidate)."""
    relations = torch.full_like(antecedents, _UNKNOWN)
    if speakers is None:
        return relations
    anaphor_speakers, other_speakers = speakers.unsqueeze(1), speakers[antecedents]
    is_known = (anaphor_speakers >= 0) & (other_speakers >= 0)
    is_same = is_known & (anaphor_speakers == other_speakers)
    return relations.masked_fill(is_known, _OTHER).masked_fill(is_same, _SAME)
