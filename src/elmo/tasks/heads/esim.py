"""Vectors of two sentences in, their relation out: ESIM, the enhanced LSTM for inference.

Chen et al. 2017, "Enhanced LSTM for Natural Language Inference", without its trees; with ELMo as in Peters
et al. 2018.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.model.dropout import Dropout
from elmo.tasks.heads.attention import align, join_outputs
from elmo.tasks.heads.pooling import masked_max, masked_mean
from elmo.tasks.heads.recurrent import BiLstm
from elmo.tasks.heads.sentence_vectors import SentenceVectors, Widths


class EsimHead(nn.Module):
    """Encode both sentences alike, align them softly, compare word by word, compose, pool, classify.

    ELMo for the output joins the encoder's states before the alignment: a = [h; ELMo]. Dropout drops the
    same units at every time step, before each LSTM and the projection.
    """

    def __init__(
        self, widths: Widths, *, n_labels: int, hidden_width: int = 150, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.output_width = widths.outputs
        self.dropout = Dropout(dropout, is_locked=True)
        self.encoder = BiLstm(widths.inputs, hidden_width, dropout=dropout)
        encoded_width = self.encoder.width + widths.outputs
        self.projection = nn.Linear(4 * encoded_width, hidden_width)
        self.composition = BiLstm(hidden_width, hidden_width, dropout=dropout)
        self.final = nn.Sequential(
            Dropout(dropout),
            nn.Linear(4 * self.composition.width, hidden_width),
            nn.Tanh(),
            Dropout(dropout),
            nn.Linear(hidden_width, n_labels),
        )

    def forward(self, first: SentenceVectors, second: SentenceVectors) -> Tensor:
        """A score for each label, (batch, n_labels)."""
        a, b = self._encoded(first), self._encoded(second)  # (batch, first or second time, width)
        a_like_b = align(a, b, mask=second.mask)  # ã: what of b stands for each word of a
        b_like_a = align(b, a, mask=first.mask)
        pooled = [
            *self._composed(a, a_like_b, mask=first.mask),
            *self._composed(b, b_like_a, mask=second.mask),
        ]
        return self.final(torch.cat(pooled, dim=-1))

    def _encoded(self, vectors: SentenceVectors) -> Tensor:
        """[h; ELMo] for every word (section 3.1), (batch, time, width)."""
        states = self.encoder(vectors.inputs, vectors.mask)
        return join_outputs(states, vectors, width=self.output_width)

    def _composed(self, a: Tensor, aligned: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and maximum of the composition of [a; ã; a - ã; a * ã] (sections 3.2 and 3.3)."""
        compared = torch.cat([a, aligned, a - aligned, a * aligned], dim=-1)  # (batch, time, 4 · width)
        projected = F.relu(self.projection(self.dropout(compared)))  # (batch, time, hidden)
        composed = self.composition(projected, mask)  # (batch, time, 2 · hidden)
        return masked_mean(composed, mask), masked_max(composed, mask)

    def loss(self, first: SentenceVectors, second: SentenceVectors, labels: Tensor) -> Tensor:
        """Mean cross entropy with the right ``labels`` (batch,)."""
        return F.cross_entropy(self(first, second), labels)

    @torch.no_grad()
    def predict(self, first: SentenceVectors, second: SentenceVectors) -> Tensor:
        """Probabilities of the labels, (batch, n_labels); call ``eval()`` before."""
        return self(first, second).softmax(dim=-1)
