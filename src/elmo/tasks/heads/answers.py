"""Head that finds the answer to a question in a passage.

The model of Clark and Gardner (2018, section 3.1), as in Peters et al. (2018, appendix), and the program that
the authors trained with ELMo: a biLSTM that passage and question share, attention in both directions, a
residual block of self-attention, a biLSTM for the first token of the answer, and another one, which reads
the states of the first, for its last token. ELMo is joined to the input of the shared biLSTM and, if the task
uses it, to its output. LSTMs replace the GRUs of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths, compute_in_chunks, join_outputs

MAX_FULL_LENGTH = 1024  # longest passage with full self-attention; all passages of SQuAD are shorter
MAX_LENGTH = 17  # tokens of an answer, as in the paper


@dataclass(frozen=True)
class AnswerSpan:
    """Tokens from ``start`` to ``end`` (exclusive), and p(first token) · p(last token)."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class AnswerBounds:
    """Log-probabilities of each token as first and as last token of the answer; -inf for padding."""

    first: Tensor  # (batch, time)
    last: Tensor  # (batch, time)


class AnswersHead(nn.Module):
    """Network for questions about a passage, with ``hidden_width`` units per direction in each biLSTM."""

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
        """Compute where the answer to each question starts and ends.

        ``rows`` (batch,) is the passage of each question; None: passages and questions have the same order.
        """
        rows = _check_rows(passages, questions, rows)
        passage_mask = passages.mask[rows]  # (batch, time)
        passage = self.dropout(self._encode(passages)[rows])  # (batch, time, width); each is encoded once
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
        """Compute the states of the shared biLSTM, joined with ELMo, (batch, time, width)."""
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
        """Compute the mean of −log Σ p(true first token) − log Σ p(true last token) (Eq. 1 of the paper).

        ``is_start`` and ``is_end`` (batch, time) are true for the first and the last token of every true
        answer.
        """
        bounds = self(passages, questions, rows=rows)
        total = bounds.first.new_zeros(())
        for name, scores, flags in (("start", bounds.first, is_start), ("end", bounds.last, is_end)):
            if flags.shape != scores.shape:
                raise ShapeError(
                    f"is_{name}: expected one flag per question and token, {tuple(scores.shape)}, found "
                    f"{tuple(flags.shape)}"
                )
            is_true = flags & scores.isfinite()  # without padding
            _check_rows_have_true(is_true, f"question {{}}: expected a token of its passage as {name}, found none")
            total = total - scores.masked_fill(~is_true, -torch.inf).logsumexp(dim=1).mean()
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
        """Predict ``n_best`` answers of at most ``max_length`` tokens to each question, the best first."""
        return find_best_answers(self(passages, questions, rows=rows), max_length=max_length, n_best=n_best)


def _check_rows(passages: FeatureVectors, questions: FeatureVectors, rows: Tensor | None) -> Tensor:
    """Return the passage of each question, and check that all have words: a softmax needs at least one."""
    n_passages, n_questions = passages.mask.size(0), questions.mask.size(0)
    if rows is None:
        rows = torch.arange(n_passages, device=passages.mask.device)
    if rows.shape != (n_questions,):
        raise ShapeError(f"rows: expected one passage for each of {n_questions} questions, found {tuple(rows.shape)}")
    _check_rows_have_true(passages.mask, "passage {}: expected words, found none")
    _check_rows_have_true(questions.mask, "question {}: expected words, found none")
    return rows


def _check_rows_have_true(flags: Tensor, message: str) -> None:
    """Raise ``DataError`` with the number of the first row of (batch, time) that has no true flag."""
    missing = (~flags.any(dim=1)).nonzero()
    if len(missing):
        raise DataError(message.format(int(missing[0]) + 1))


def _compute_log_probabilities(scores: Tensor, mask: Tensor) -> Tensor:
    """Normalize scores (batch, time, 1) over time, (batch, time)."""
    return scores.squeeze(2).masked_fill(~mask, -torch.inf).log_softmax(dim=1)


def find_best_answers(bounds: AnswerBounds, *, max_length: int, n_best: int) -> list[tuple[AnswerSpan, ...]]:
    """Find the most likely spans of 1 to ``max_length`` tokens."""
    if max_length < 1 or n_best < 1:
        raise ConfigError(f"max_length and n_best must be at least 1, found {max_length} and {n_best}")
    n_time = bounds.last.size(1)
    max_length = min(max_length, n_time)
    after = F.pad(bounds.last, (0, max_length - 1), value=-torch.inf)
    # [b, i, k] is the span of k + 1 tokens from i: a band needs less memory than all pairs
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
    """a_ij = w1 · p_i + w2 · q_j + w3 · (p_i ⊙ q_j) (Seo et al. 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        limit = (3 / width) ** 0.5  # keeps the variance of the terms in their sum over the width
        self.passage = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w1
        self.question = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w2
        self.product = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w3

    def forward(self, passage: Tensor, question: Tensor) -> Tensor:
        """Compute scores (batch, time, question time) of (batch, time, width), (batch, question time, width).

        w3 · (p_i ⊙ q_j) = (w3 ⊙ p_i) · q_j is a matrix product, without a tensor of four axes.
        """
        scores = (passage * self.product) @ question.transpose(1, 2)  # (batch, time, question time)
        return scores + (passage @ self.passage).unsqueeze(2) + (question @ self.question).unsqueeze(1)


class QuestionAttention(nn.Module):
    """[p_i; c_i; p_i ⊙ c_i; p_i ⊙ m]: attention in both directions (Seo et al. 2017, section 2.4).

    c_i is what token i attends to in the question. m is the mean of the passage, with weights from the
    highest similarity of each token to a token of the question.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 4 * width  # of the result
        self.similarity = TrilinearSimilarity(width)

    def forward(self, passage: Tensor, question: Tensor, *, passage_mask: Tensor, question_mask: Tensor) -> Tensor:
        """Compute (batch, time, 4 · width) of (batch, time, width) and (batch, question time, width)."""

        def attend(rows: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.similarity(rows, question)  # (batch, row, question time)
            scores = scores.masked_fill(~question_mask.unsqueeze(1), -torch.inf)
            return scores.softmax(dim=2) @ question, scores.amax(dim=2)  # (batch, row, width), (batch, row)

        attended, highest = compute_in_chunks(attend, passage, row_scores=question_mask.numel())
        highest = highest.masked_fill(~passage_mask, -torch.inf)  # (batch, time)
        summary = highest.softmax(dim=1).unsqueeze(1) @ passage  # (batch, 1, width)
        return torch.cat([passage, attended, passage * attended, passage * summary], dim=2)


class SelfAttention(nn.Module):
    """[p_i; c_i; p_i ⊙ c_i], where c_i is what token i attends to among the other tokens of the passage.

    As in the published program, a learned score represents "no token", so that c_i may be near zero. It is
    zero for a passage of one token. A passage of more than ``MAX_FULL_LENGTH`` tokens is read in blocks of
    half this length; tokens attend to their block and to the previous and next one. Memory and time then grow
    linearly with the length.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 3 * width  # of the result
        self.similarity = TrilinearSimilarity(width)
        self.none = nn.Parameter(torch.tensor(-1.0))

    def forward(self, passage: Tensor, mask: Tensor) -> Tensor:
        """Compute (batch, time, 3 · width) of (batch, time, width)."""
        if passage.size(1) <= MAX_FULL_LENGTH:
            attended = self._attend(passage, passage, mask=mask)
        else:  # one at a time, so that the result does not depend on the lengths of the others
            lengths = mask.sum(dim=1).tolist()
            rows = [self._attend_in_blocks(row[:n]) for row, n in zip(passage, lengths, strict=True)]
            attended = torch.stack([F.pad(row, (0, 0, 0, passage.size(1) - len(row))) for row in rows])
        return torch.cat([passage, attended, passage * attended], dim=2)

    def _attend_in_blocks(self, passage: Tensor) -> Tensor:
        """Compute (time, width) of a passage (time, width) without padding."""
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
        """Compute c_i of ``queries`` (batch, query, width); query i is key i + ``shift``."""
        positions = torch.arange(shift, shift + queries.size(1), device=mask.device)
        is_self = positions.unsqueeze(1) == torch.arange(keys.size(1), device=mask.device)  # (query, key)
        scores = self.similarity(queries, keys).masked_fill(~mask.unsqueeze(1) | is_self, -torch.inf)
        none = self.none.expand(*queries.shape[:2], 1)
        weights = torch.cat([scores, none], dim=2).softmax(dim=2)[:, :, :-1]  # (batch, query, key)
        return weights @ keys
