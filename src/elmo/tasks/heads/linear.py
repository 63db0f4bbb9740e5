"""Vectors of texts in, a class for each out: their mean through one linear layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.model.dropout import Dropout
from elmo.tasks.heads.attention import join_outputs
from elmo.tasks.heads.pooling import masked_max, masked_mean
from elmo.tasks.heads.sentence_vectors import SentenceVectors, Widths


class LinearHead(nn.Module):
    """softmax(W · mean(x) + b), the plain text classifier; ``use_max`` puts the maximum beside the mean.

    Vectors for the output, where there are any, stand beside those for the input.
    """

    def __init__(self, widths: Widths, *, n_labels: int, use_max: bool = False, dropout: float = 0.2) -> None:
        super().__init__()
        self.output_width = widths.outputs
        self.use_max = use_max
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear((widths.inputs + widths.outputs) * (2 if use_max else 1), n_labels)

    def forward(self, vectors: SentenceVectors) -> Tensor:
        """A score for each label, (batch, n_labels)."""
        x = join_outputs(vectors.inputs, vectors, width=self.output_width)  # (batch, time, width)
        pooled = masked_mean(x, vectors.mask)  # (batch, width)
        if self.use_max:
            pooled = torch.cat([pooled, masked_max(x, vectors.mask)], dim=-1)  # (batch, 2 · width)
        return self.linear(self.dropout(pooled))

    def loss(self, vectors: SentenceVectors, labels: Tensor) -> Tensor:
        """Mean cross entropy with the right ``labels`` (batch,)."""
        return F.cross_entropy(self(vectors), labels)

    @torch.no_grad()
    def predict(self, vectors: SentenceVectors) -> Tensor:
        """Probabilities of the labels, (batch, n_labels); call ``eval()`` before."""
        return self(vectors).softmax(dim=-1)
