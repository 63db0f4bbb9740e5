"""Head for question answering: finds the answer to a question in a passage.

The model is that of Clark and Gardner (2018, section 3.1), as used with ELMo in Peters et al. (2018, appendix) and in
the code that Clark and Gardner published: a biLSTM that encodes both passage and question, attention in both
directions, a residual block of self-attention, a biLSTM for the first token of the answer, and a biLSTM for its last
token, which also reads the states for the first token. ELMo is concatenated with the input of the shared biLSTM and, if
the task uses output features, with its output. LSTMs replace the GRUs of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths, compute_in_chunks, join_outputs

MAX_FULL_LENGTH = 1024  # maximum number of tokens of a passage with full self-attention; SQuAD passages are shorter
MAX_LENGTH = 17  # maximum number of tokens of an answer, as in the paper


@dataclass(frozen=True)
class AnswerSpan:
    """An answer from token ``start`` to ``end`` (exclusive); its probability is p(first token) · p(last token)."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class AnswerBounds:
    """Log-probabilities that a token is the first or the last token of the answer; -inf for padding."""

    first: Tensor  # (batch, time)
    last: Tensor  # (batch, time)


class AnswersHead(nn.Module):
    """Network for question answering with ``hidden_width`` units per direction in each biLSTM."""

    def __init__(self, widths: FeatureWidths, *, hidden_width: int = 90, dropout: float = 0.2) -> None:
        super().__init__()
        width = 2 * hidden_width
        self.output_width = widths.outputs
        self.dropout = Dropout(dropout, is_locked=True)
        self.shared = BiLstm(widths.inputs, hidden_width, dropout=dropout)
        self.attention = QuestionAttention(width + widths.outputs)
        self.merge = nn.Linear(self.attention.width, width)
        self.reread = BiLstm(width, hidden_width, dropout=dropout)
        self.self_attention = SelfAttention(width)
        self.self_merge = nn.Linear(self.self_attention.width, width)
        self.first_states = BiLstm(width, hidden_width, dropout=dropout)
        self.first_score = nn.Linear(width, 1)
        self.last_states = BiLstm(2 * width, hidden_width, dropout=dropout)
        self.last_score = nn.Linear(width, 1)

    def forward(
        self, passages: FeatureVectors, questions: FeatureVectors, *, rows: Tensor | None = None
    ) -> AnswerBounds:
        """Compute log-probabilities for the first and the last token of the answer to each question.

        ``rows`` (batch,) is the passage index of each question; None means that question i is about passage i.
        """
        if rows is None:
            rows = torch.arange(len(passages.mask), device=passages.mask.device)
        passage_mask = passages.mask[rows]  # (batch, time)
        passage = self.dropout(self._encode(passages)[rows])  # (batch, time, width); each passage is encoded once
        question = self.dropout(self._encode(questions))  # (batch, question time, width)
        attended = self.attention(
            passage, question, passage_mask=passage_mask, question_mask=questions.mask
        )  # (batch, time, 4 · width)
        merged = F.relu(self.merge(attended))  # (batch, time, 2 · hidden)
        attended = self.self_attention(self.dropout(self.reread(merged, passage_mask)), passage_mask)
        merged = merged + F.relu(self.self_merge(attended))  # (batch, time, 2 · hidden)
        first = self.first_states(merged, passage_mask)
        last = self.last_states(torch.cat([first, merged], dim=2), passage_mask)
        return AnswerBounds(
            _compute_log_probabilities(self.first_score(self.dropout(first)), passage_mask),
            _compute_log_probabilities(self.last_score(self.dropout(last)), passage_mask),
        )

    def _encode(self, features: FeatureVectors) -> Tensor:
        """Compute the states of the shared biLSTM, with the output features, (batch, time, width)."""
        states = self.shared(features.inputs, features.mask)
        return join_outputs(states, features, width=self.output_width)

    def loss(
        self,
        passages: FeatureVectors,
        questions: FeatureVectors,
        *,
        is_start: Tensor,
        is_end: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Compute the mean of −log Σ p(gold first token) − log Σ p(gold last token) (Clark and Gardner 2018, Eq. 1).

        ``is_start`` and ``is_end`` (batch, time) are true for the first and the last token of each gold answer.
        """
        bounds = self(passages, questions, rows=rows)
        total = bounds.first.new_zeros(())
        for name, scores, flags in (("start", bounds.first, is_start), ("end", bounds.last, is_end)):
            is_gold = flags & scores.isfinite()  # without padding
            missing = (~is_gold.any(dim=1)).nonzero()
            if len(missing):
                raise DataError(
                    f"question {int(missing[0]) + 1}: the {name} of the answer must be in the passage; found none"
                )
            total = total - scores.masked_fill(~is_gold, -torch.inf).logsumexp(dim=1).mean()
        return total

    @torch.no_grad()
    def predict(
        self,
        passages: FeatureVectors,
        questions: FeatureVectors,
        *,
        rows: Tensor | None = None,
        max_length: int = MAX_LENGTH,
        n_best: int = 1,
    ) -> list[tuple[AnswerSpan, ...]]:
        """Predict the ``n_best`` answers of at most ``max_length`` tokens to each question, best first."""
        return find_best_answers(self(passages, questions, rows=rows), max_length=max_length, n_best=n_best)


def _compute_log_probabilities(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the log-softmax of scores (batch, time, 1) over the tokens of the passage, (batch, time)."""
    return scores.squeeze(2).masked_fill(~mask, -torch.inf).log_softmax(dim=1)


def find_best_answers(bounds: AnswerBounds, *, max_length: int, n_best: int) -> list[tuple[AnswerSpan, ...]]:
    """Find the ``n_best`` most probable spans of 1 to ``max_length`` tokens for each question, best first."""
    n_time = bounds.last.size(1)
    max_length = min(max_length, n_time)
    after = F.pad(bounds.last, (0, max_length - 1), value=-torch.inf)
    # scores[b, i, k] is the score of the span of k + 1 tokens from i; all pairs of tokens would need more memory
    scores = bounds.first.unsqueeze(2) + after.unfold(1, max_length, 1)  # (batch, time, max_length)
    best, indices = scores.flatten(1).topk(min(n_best, n_time * max_length), dim=1)  # (batch, n_best)
    probabilities = best.exp().masked_fill(best.isneginf(), -1.0)  # -1 for impossible spans
    return [
        tuple(
            AnswerSpan(index // max_length, index // max_length + index % max_length + 1, probability)
            for probability, index in zip(*row, strict=True)
            if probability >= 0.0
        )
        for row in zip(probabilities.tolist(), indices.tolist(), strict=True)
    ]


class TrilinearSimilarity(nn.Module):
    """Similarity of tokens: a_ij = w1 · p_i + w2 · q_j + w3 · (p_i ⊙ q_j) (Seo et al. 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        limit = (3 / width) ** 0.5  # so that each sum over the width has the variance of its terms
        self.passage = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w1
        self.question = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w2
        self.product = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w3

    def forward(self, passage: Tensor, question: Tensor) -> Tensor:
        """Compute the similarity of all pairs of tokens, (batch, time, question time).

        ``passage`` is (batch, time, width) and ``question`` (batch, question time, width). w3 · (p_i ⊙ q_j) is
        computed as the matrix product (w3 ⊙ p_i) · q_j, which needs no tensor with four axes.
        """
        scores = (passage * self.product) @ question.transpose(1, 2)  # (batch, time, question time)
        return scores + (passage @ self.passage).unsqueeze(2) + (question @ self.question).unsqueeze(1)


class QuestionAttention(nn.Module):
    """Attention between passage and question in both directions (Seo et al. 2017, section 2.4).

    The result for token i of the passage is [p_i; c_i; p_i ⊙ c_i; p_i ⊙ m]. c_i is the mean of the question,
    weighted by attention from token i. m is the mean of the passage, weighted by the highest similarity of each
    token to a token of the question.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 4 * width  # width of the result
        self.similarity = TrilinearSimilarity(width)

    def forward(self, passage: Tensor, question: Tensor, *, passage_mask: Tensor, question_mask: Tensor) -> Tensor:
        """Compute the attended passage (batch, time, 4 · width).

        ``passage`` is (batch, time, width) and ``question`` (batch, question time, width).
        """

        def attend(rows: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.similarity(rows, question)  # (batch, row, question time)
            scores = scores.masked_fill(~question_mask.unsqueeze(1), -torch.inf)
            return scores.softmax(dim=2) @ question, scores.amax(dim=2)  # (batch, row, width), (batch, row)

        attended, highest = compute_in_chunks(attend, passage, row_scores=question_mask.numel())
        highest = highest.masked_fill(~passage_mask, -torch.inf)  # (batch, time)
        summary = highest.softmax(dim=1).unsqueeze(1) @ passage  # (batch, 1, width)
        return torch.cat([passage, attended, passage * attended, passage * summary], dim=2)


class SelfAttention(nn.Module):
    """Attention from each token of the passage to all others: [p_i; c_i; p_i ⊙ c_i].

    c_i is the mean of the other tokens, weighted by attention from token i. As in the published code, a learned
    score represents "no token", so that c_i may be near zero. c_i is zero for a passage of one token. A passage of
    more than ``MAX_FULL_LENGTH`` tokens is split into blocks of half this length, and tokens attend to their own
    block and its neighbors. Memory and time then grow linearly with the length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 3 * width  # width of the result
        self.similarity = TrilinearSimilarity(width)
        self.none = nn.Parameter(torch.tensor(-1.0))

    def forward(self, passage: Tensor, mask: Tensor) -> Tensor:
        """Compute the attended passage (batch, time, 3 · width) of ``passage`` (batch, time, width)."""
        if passage.size(1) <= MAX_FULL_LENGTH:
            attended = self._attend(passage, passage, mask=mask)
        else:  # one passage at a time, so that a result does not depend on the lengths of other passages
            lengths = mask.sum(dim=1).tolist()
            rows = [self._attend_in_blocks(row[:n]) for row, n in zip(passage, lengths, strict=True)]
            attended = torch.stack([F.pad(row, (0, 0, 0, passage.size(1) - len(row))) for row in rows])
        return torch.cat([passage, attended, passage * attended], dim=2)

    def _attend_in_blocks(self, passage: Tensor) -> Tensor:
        """Compute c_i for each token of a passage (time, width) without padding, (time, width)."""
        n_time = len(passage)
        size = n_time if n_time <= MAX_FULL_LENGTH else MAX_FULL_LENGTH // 2
        blocks = []
        for start in range(0, n_time, size):
            first = max(0, start - size)
            keys = passage[first : start + 2 * size].unsqueeze(0)  # (1, key, width)
            queries = passage[start : start + size].unsqueeze(0)  # (1, query, width)
            mask = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
            blocks.append(self._attend(queries, keys, mask=mask, shift=start - first))
        return torch.cat(blocks, dim=1).squeeze(0)

    def _attend(self, queries: Tensor, keys: Tensor, *, mask: Tensor, shift: int = 0) -> Tensor:
        """Compute c_i for each of ``queries`` (batch, query, width); query i is the token of key i + ``shift``."""
        positions = torch.arange(shift, shift + queries.size(1), device=mask.device)
        is_self = positions.unsqueeze(1) == torch.arange(keys.size(1), device=mask.device)  # (query, key)
        scores = self.similarity(queries, keys).masked_fill(~mask.unsqueeze(1) | is_self, -torch.inf)
        none = self.none.expand(*queries.shape[:2], 1)
        weights = torch.cat([scores, none], dim=2).softmax(dim=2)[:, :, :-1]  # (batch, query, key)
        return weights @ keys
