"""States of a passage in, the same joined with what they attend to in the question or the passage out.

After Clark and Gardner (2018), section 3.1, and the program that trained their model with ELMo.

Vectors of passages and questions in, the passages' tokens that answer them out.

The model of Clark and Gardner (2018), as Peters et al. (2018, appendix) used it: a biLSTM that passage and
question share, attention in both directions, a residual block of self-attention, then one biLSTM for the
answer's first token and a second, which sees the first's states, for its last. ELMo joins the input of the
shared biLSTM and, where asked for, its output. LSTMs stand where the paper has GRUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths, compute_in_chunks, join_outputs

MAX_FULL_LENGTH = 1024  # tokens of a passage that all attend to each other: more than any of SQuAD's has


class TrilinearSimilarity(nn.Module):
    """a_ij = w1 · p_i + w2 · q_j + w3 · (p_i ⊙ q_j) (Seo et al. 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        limit = (3 / width) ** 0.5  # a sum over the width then varies like one of its terms
        self.passage = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w1
        self.question = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w2
        self.product = nn.Parameter(torch.empty(width).uniform_(-limit, limit))  # w3

    def forward(self, passage: Tensor, question: Tensor) -> Tensor:
        """Scores (batch, time, question time) of (batch, time, width) and (batch, question time, width).

        w3 · (p_i ⊙ q_j) = (w3 ⊙ p_i) · q_j, a product of two matrices: nothing of four axes is made.
        """
        scores = (passage * self.product) @ question.transpose(1, 2)  # (batch, time, question time)
        return scores + (passage @ self.passage).unsqueeze(2) + (question @ self.question).unsqueeze(1)


class QuestionAttention(nn.Module):
    """[p_i; c_i; p_i ⊙ c_i; p_i ⊙ m]: attention in both directions (Seo et al. 2017, section 2.4).

    c_i is what token i attends to in the question; m is the passage, weighed by how much each of its
    tokens is like any of the question's.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 4 * width  # of what comes out
        self.similarity = TrilinearSimilarity(width)

    def forward(
        self, passage: Tensor, question: Tensor, *, passage_mask: Tensor, question_mask: Tensor
    ) -> Tensor:
        """(batch, time, 4 · width) of (batch, time, width) and (batch, question time, width)."""

        def attend(rows: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.similarity(rows, question)  # (batch, row, question time)
            scores = scores.masked_fill(~question_mask.unsqueeze(1), -torch.inf)
            return scores.softmax(dim=2) @ question, scores.amax(dim=2)  # (batch, row, width), (batch, row)

        attended, highest = compute_in_chunks(attend, passage, row_scores=question_mask.numel())
        highest = highest.masked_fill(~passage_mask, -torch.inf)  # (batch, time)
        summary = highest.softmax(dim=1).unsqueeze(1) @ passage  # (batch, 1, width)
        return torch.cat([passage, attended, passage * attended, passage * summary], dim=2)


class SelfAttention(nn.Module):
    """[p_i; c_i; p_i ⊙ c_i], where c_i is what token i attends to among the passage's other tokens.

    As in the published program, a learned score stands for "none of them": c_i may be near zero, and is
    where a passage has one token. A passage of more than ``MAX_FULL_LENGTH`` tokens is read in blocks of half as
    many, whose tokens see their own block and the two beside it: memory and time grow with the length, not
    with its square.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 3 * width  # of what comes out
        self.similarity = TrilinearSimilarity(width)
        self.none = nn.Parameter(torch.tensor(-1.0))

    def forward(self, passage: Tensor, mask: Tensor) -> Tensor:
        """(batch, time, 3 · width) of (batch, time, width)."""
        if passage.size(1) <= MAX_FULL_LENGTH:
            attended = self._attended(passage, passage, mask=mask)
        else:  # each for itself: how one is read does not depend on the length of the others
            lengths = mask.sum(dim=1).tolist()
            rows = [self._in_blocks(one[:n]) for one, n in zip(passage, lengths, strict=True)]
            attended = torch.stack([F.pad(one, (0, 0, 0, passage.size(1) - len(one))) for one in rows])
        return torch.cat([passage, attended, passage * attended], dim=2)

    def _in_blocks(self, passage: Tensor) -> Tensor:
        """(time, width) of (time, width), without padding."""
        n_time = len(passage)
        size = n_time if n_time <= MAX_FULL_LENGTH else MAX_FULL_LENGTH // 2
        parts = []
        for begin in range(0, n_time, size):
            first = max(0, begin - size)
            keys = passage[first : begin + 2 * size].unsqueeze(0)  # (1, key, width)
            queries = passage[begin : begin + size].unsqueeze(0)
            mask = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
            parts.append(self._attended(queries, keys, mask=mask, skipped=begin - first))
        return torch.cat(parts, dim=1).squeeze(0)

    def _attended(self, queries: Tensor, keys: Tensor, *, mask: Tensor, skipped: int = 0) -> Tensor:
        """c_i of ``queries`` (batch, query, width), which stand ``skipped`` tokens after the first key."""
        places = torch.arange(skipped, skipped + queries.size(1), device=mask.device)
        is_self = places.unsqueeze(1) == torch.arange(keys.size(1), device=mask.device)  # (query, key)
        scores = self.similarity(queries, keys).masked_fill(~mask.unsqueeze(1) | is_self, -torch.inf)
        none = self.none.expand(*queries.shape[:2], 1)
        weights = torch.cat([scores, none], dim=2).softmax(dim=2)[:, :, :-1]  # (batch, query, key)
        return weights @ keys


MAX_LENGTH = 17  # tokens of an answer, as in the paper


@dataclass(frozen=True)
class AnswerSpan:
    """Tokens ``start`` to ``end`` of a passage, the end not included; p(first token) · p(last token)."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True)
class AnswerBounds:
    """Log-probabilities that an answer's first and last token are each token; -inf where there is none."""

    first: Tensor  # (batch, time)
    last: Tensor  # (batch, time)


class AnswersHead(nn.Module):
    """Reads a passage with a question in mind; ``hidden_width`` units a direction in each biLSTM."""

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
        """Where each question's answer begins and ends.

        ``rows`` (batch,) names each question's passage; None: the first question's is the first, and so on.
        """
        rows = _checked_rows(passages, questions, rows)
        passage_mask = passages.mask[rows]  # (batch, time)
        passage = self.dropout(self._states(passages)[rows])  # (batch, time, width), each read once
        question = self.dropout(self._states(questions))  # (batch, question time, width)
        joined = self.attention(
            passage, question, passage_mask=passage_mask, question_mask=questions.mask
        )  # (batch, time, 4 · width)
        aware = F.relu(self.merge(joined))  # (batch, time, 2 · hidden)
        again = self.self_attention(self.dropout(self.reread(aware, passage_mask)), passage_mask)
        aware = aware + F.relu(self.self_merge(again))  # (batch, time, 2 · hidden)
        first = self.first_states(aware, passage_mask)
        last = self.last_states(torch.cat([first, aware], dim=2), passage_mask)
        return AnswerBounds(
            _log_probabilities(self.first_score(self.dropout(first)), passage_mask),
            _log_probabilities(self.last_score(self.dropout(last)), passage_mask),
        )

    def loss(
        self,
        passages: FeatureVectors,
        questions: FeatureVectors,
        *,
        is_start: Tensor,
        is_end: Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """−log Σ p(right first token) − log Σ p(right last token), on average (Clark and Gardner, Eq. 1).

        ``is_start`` and ``is_end`` (batch, time) are true for the first and the last token of every answer
        that counts as right: several may.
        """
        bounds = self(passages, questions, rows=rows)
        total = bounds.first.new_zeros(())
        for name, scores, flags in (("start", bounds.first, is_start), ("end", bounds.last, is_end)):
            if flags.shape != scores.shape:
                raise ShapeError(
                    f"is_{name}: expected a flag for each question and token, {tuple(scores.shape)}, found "
                    f"{tuple(flags.shape)}"
                )
            is_right = flags & scores.isfinite()  # padding answers nothing
            _check_all(is_right, f"question {{}}: expected a token of its passage as {name}, found none")
            total = total - scores.masked_fill(~is_right, -torch.inf).logsumexp(dim=1).mean()
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
        """The ``n_best`` answers to each question of at most ``max_length`` tokens, the best first."""
        return find_best_answers(self(passages, questions, rows=rows), max_length=max_length, n_best=n_best)

    def _states(self, vectors: FeatureVectors) -> Tensor:
        """What the shared biLSTM makes of sentences, with ELMo beside it, (batch, time, width)."""
        states = self.shared(vectors.inputs, vectors.mask)
        return join_outputs(states, vectors, width=self.output_width)


def find_best_answers(bounds: AnswerBounds, *, max_length: int, n_best: int) -> list[tuple[AnswerSpan, ...]]:
    """The likeliest spans of at most ``max_length`` tokens that do not end before they start."""
    if max_length < 1 or n_best < 1:
        raise ConfigError(f"max_length and n_best must be at least 1, found {max_length} and {n_best}")
    n_time = bounds.last.size(1)
    max_length = min(max_length, n_time)
    after = F.pad(bounds.last, (0, max_length - 1), value=-torch.inf)
    # a band instead of a triangle: [b, i, k] is the span of k + 1 tokens from i on
    scores = bounds.first.unsqueeze(2) + after.unfold(1, max_length, 1)  # (batch, time, max_length)
    best, places = scores.flatten(1).topk(min(n_best, n_time * max_length), dim=1)  # (batch, n_best)
    return [
        tuple(
            AnswerSpan(place // max_length, place // max_length + place % max_length + 1, probability)
            for probability, place in zip(probabilities, row, strict=True)
            if probability >= 0.0
        )
        for probabilities, row in zip(_shares(best), places.tolist(), strict=True)
    ]


def _shares(scores: Tensor) -> list[list[float]]:
    """Log-probabilities as probabilities; -1 for what cannot be."""
    return scores.exp().masked_fill(scores.isneginf(), -1.0).tolist()


def _log_probabilities(scores: Tensor, mask: Tensor) -> Tensor:
    """Over the time axis, (batch, time), of (batch, time, 1)."""
    return scores.squeeze(2).masked_fill(~mask, -torch.inf).log_softmax(dim=1)


def _checked_rows(passages: FeatureVectors, questions: FeatureVectors, rows: Tensor | None) -> Tensor:
    """The passage of each question; a softmax over no token would give no numbers."""
    n_passages, n_questions = passages.mask.size(0), questions.mask.size(0)
    if rows is None:
        rows = torch.arange(n_passages, device=passages.mask.device)
    if rows.shape != (n_questions,):
        raise ShapeError(
            f"rows: expected the passage of each of {n_questions} questions, found {tuple(rows.shape)}"
        )
    _check_all(passages.mask, "passage {}: expected words, found none")
    _check_all(questions.mask, "question {}: expected words, found none")
    return rows


def _check_all(flags: Tensor, message: str) -> None:
    """Refuse the first row of (batch, time) without a true flag, counted from 1."""
    lacking = (~flags.any(dim=1)).nonzero()
    if len(lacking):
        raise DataError(message.format(int(lacking[0]) + 1))
