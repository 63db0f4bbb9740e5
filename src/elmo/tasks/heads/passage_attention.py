"""States of a passage in, the same joined with what they attend to in the question or the passage out.

After Clark and Gardner (2018), section 3.1, and the program that trained their model with ELMo.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        scores = self.similarity(passage, question)  # (batch, time, question time)
        scores = scores.masked_fill(~question_mask.unsqueeze(1), -torch.inf)
        attended = scores.softmax(dim=2) @ question  # (batch, time, width)
        highest = scores.amax(dim=2).masked_fill(~passage_mask, -torch.inf)  # (batch, time)
        summary = highest.softmax(dim=1).unsqueeze(1) @ passage  # (batch, 1, width)
        return torch.cat([passage, attended, passage * attended, passage * summary], dim=2)


class SelfAttention(nn.Module):
    """[p_i; c_i; p_i ⊙ c_i], where c_i is what token i attends to among the passage's other tokens.

    As in the published program, a learned score stands for "none of them": c_i may be near zero, and is
    where a passage has one token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = 3 * width  # of what comes out
        self.similarity = TrilinearSimilarity(width)
        self.none = nn.Parameter(torch.tensor(-1.0))

    def forward(self, passage: Tensor, mask: Tensor) -> Tensor:
        """(batch, time, 3 · width) of (batch, time, width)."""
        n_batch, n_time, _ = passage.shape
        is_self = torch.eye(n_time, dtype=torch.bool, device=mask.device)  # (time, time)
        scores = self.similarity(passage, passage).masked_fill(~mask.unsqueeze(1) | is_self, -torch.inf)
        none = self.none.expand(n_batch, n_time, 1)
        weights = torch.cat([scores, none], dim=2).softmax(dim=2)[:, :, :-1]  # (batch, time, time)
        attended = weights @ passage
        return torch.cat([passage, attended, passage * attended], dim=2)
