"""States of a passage in, the same joined with what they attend to in the question or the passage out.

After Clark and Gardner (2018), section 3.1, and the program that trained their model with ELMo.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.tasks.heads.attention import by_rows

MAX_WHOLE = 1024  # tokens of a passage that all attend to each other: more than any of SQuAD's has


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

        attended, highest = by_rows(attend, passage, row_scores=question_mask.numel())
        highest = highest.masked_fill(~passage_mask, -torch.inf)  # (batch, time)
        summary = highest.softmax(dim=1).unsqueeze(1) @ passage  # (batch, 1, width)
        return torch.cat([passage, attended, passage * attended, passage * summary], dim=2)


class SelfAttention(nn.Module):
    """[p_i; c_i; p_i ⊙ c_i], where c_i is what token i attends to among the passage's other tokens.

    As in the published program, a learned score stands for "none of them": c_i may be near zero, and is
    where a passage has one token. A passage of more than ``MAX_WHOLE`` tokens is read in blocks of half as
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
        if passage.size(1) <= MAX_WHOLE:
            attended = self._attended(passage, passage, mask=mask)
        else:  # each for itself: how one is read does not depend on the length of the others
            lengths = mask.sum(dim=1).tolist()
            rows = [self._in_blocks(one[:n]) for one, n in zip(passage, lengths, strict=True)]
            attended = torch.stack([F.pad(one, (0, 0, 0, passage.size(1) - len(one))) for one in rows])
        return torch.cat([passage, attended, passage * attended], dim=2)

    def _in_blocks(self, passage: Tensor) -> Tensor:
        """(time, width) of (time, width), without padding."""
        n_time = len(passage)
        size = n_time if n_time <= MAX_WHOLE else MAX_WHOLE // 2
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
