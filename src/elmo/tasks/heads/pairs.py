"""Vectors of two sentences in, their relation out: ESIM, the enhanced LSTM for inference.

Chen et al. 2017, "Enhanced LSTM for Natural Language Inference", without its trees; with ELMo as in Peters
et al. 2018.

Vectors of two sentences in, a score of how alike they are out.

The regression of Tai et al. 2015, "Improved Semantic Representations From Tree-Structured Long Short-Term
Memory Networks", section 4.2: a distribution over whole scores, whose mean is the score.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import (
    BiLstm,
    FeatureVectors,
    FeatureWidths,
    align,
    join_outputs,
    masked_max,
    masked_mean,
)


class EsimHead(nn.Module):
    """Encode both sentences alike, align them softly, compare word by word, compose, pool, classify.

    ELMo for the output joins the encoder's states before the alignment: a = [h; ELMo]. Dropout drops the
    same units at every time step, before each LSTM and the projection.
    """

    def __init__(
        self, widths: FeatureWidths, *, n_labels: int, hidden_width: int = 150, dropout: float = 0.5
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

    def forward(self, first: FeatureVectors, second: FeatureVectors) -> Tensor:
        """A score for each label, (batch, n_labels)."""
        a, b = self._encoded(first), self._encoded(second)  # (batch, first or second time, width)
        a_like_b = align(a, b, mask=second.mask)  # ã: what of b stands for each word of a
        b_like_a = align(b, a, mask=first.mask)
        pooled = [
            *self._composed(a, a_like_b, mask=first.mask),
            *self._composed(b, b_like_a, mask=second.mask),
        ]
        return self.final(torch.cat(pooled, dim=-1))

    def _encoded(self, vectors: FeatureVectors) -> Tensor:
        """[h; ELMo] for every word (section 3.1), (batch, time, width)."""
        states = self.encoder(vectors.inputs, vectors.mask)
        return join_outputs(states, vectors, width=self.output_width)

    def _composed(self, a: Tensor, aligned: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and maximum of the composition of [a; ã; a - ã; a * ã] (sections 3.2 and 3.3)."""
        compared = torch.cat([a, aligned, a - aligned, a * aligned], dim=-1)  # (batch, time, 4 · width)
        projected = F.relu(self.projection(self.dropout(compared)))  # (batch, time, hidden)
        composed = self.composition(projected, mask)  # (batch, time, 2 · hidden)
        return masked_mean(composed, mask), masked_max(composed, mask)

    def loss(self, first: FeatureVectors, second: FeatureVectors, labels: Tensor) -> Tensor:
        """Mean cross entropy with the right ``labels`` (batch,)."""
        return F.cross_entropy(self(first, second), labels)

    @torch.no_grad()
    def predict(self, first: FeatureVectors, second: FeatureVectors) -> Tensor:
        """Probabilities of the labels, (batch, n_labels); call ``eval()`` before."""
        return self(first, second).softmax(dim=-1)


Encoder = Literal["lstm", "mean"]


class SimilarityHead(nn.Module):
    """Scores from ``low`` to ``high``: softmax(W σ(W₁ (a * b) + W₂ |a - b|)) over the whole ones.

    A sentence is the mean and the maximum of the states of a biLSTM, with ELMo for the output beside them
    ("lstm"), or the mean of its vectors ("mean"). Both sentences are encoded alike: their order does not
    matter.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        low: int,
        high: int,
        encoder: Encoder = "lstm",
        hidden_width: int = 150,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if encoder not in get_args(Encoder):
            raise ConfigError(f"encoder must be lstm or mean, not {str(encoder)!r:.40}")
        if low >= high:
            raise ConfigError(f"the lowest score must be below the highest, found {low} and {high}")
        self.low, self.high = low, high
        self.output_width = widths.outputs
        if encoder == "lstm":
            self.encoder = BiLstm(widths.inputs, hidden_width, dropout=dropout)
            pooled_width = 2 * (self.encoder.width + widths.outputs)
        else:
            self.encoder = None
            pooled_width = widths.inputs + widths.outputs
        self.dropout = Dropout(dropout)
        self.compared = nn.Linear(2 * pooled_width, hidden_width)  # W₁ and W₂ side by side
        self.final = nn.Linear(hidden_width, high - low + 1)

    def forward(self, first: FeatureVectors, second: FeatureVectors) -> Tensor:
        """A logit for each whole score from ``low`` up, (batch, n_scores)."""
        a, b = self._encoded(first), self._encoded(second)  # (batch, width)
        both = self.dropout(torch.cat([a * b, (a - b).abs()], dim=-1))  # (batch, 2 · width)
        return self.final(self.compared(both).sigmoid())

    def _encoded(self, vectors: FeatureVectors) -> Tensor:
        """One vector for each sentence, (batch, width)."""
        if self.encoder is None:
            return masked_mean(join_outputs(vectors.inputs, vectors, width=self.output_width), vectors.mask)
        states = self.encoder(vectors.inputs, vectors.mask)  # (batch, time, 2 · hidden)
        states = join_outputs(states, vectors, width=self.output_width)
        return torch.cat([masked_mean(states, vectors.mask), masked_max(states, vectors.mask)], dim=-1)

    def loss(self, first: FeatureVectors, second: FeatureVectors, scores: Tensor) -> Tensor:
        """Mean Kullback-Leibler divergence from the distributions of the right ``scores`` (batch,)."""
        target = score_distribution(scores, low=self.low, high=self.high)
        logs = self(first, second).log_softmax(dim=-1)  # (batch, n_scores)
        return F.kl_div(logs, target.to(logs.dtype), reduction="batchmean")

    @torch.no_grad()
    def predict(self, first: FeatureVectors, second: FeatureVectors) -> Tensor:
        """The expected score of each pair, (batch,); call ``eval()`` before."""
        logits = self(first, second)
        whole = torch.arange(self.low, self.high + 1, device=logits.device, dtype=logits.dtype)
        return logits.softmax(dim=-1) @ whole


def score_distribution(scores: Tensor, *, low: int, high: int) -> Tensor:
    """Shares of the two whole scores around each of ``scores`` (batch,), (batch, n_scores).

    Their mean is the score (Tai et al. 2015, section 4.2): 3.2 is 3 with 0.8 and 4 with 0.2.
    """
    scores = scores.float()
    is_inside = (scores >= low) & (scores <= high)  # false for NaN too
    if not bool(is_inside.all()):
        found = scores[~is_inside][0].item()
        raise DataError(
            f"score: expected {low} to {high}, found {found:g}: correct it, or widen the range of scores"
        )
    below = scores.floor().clamp(max=high - 1)  # the highest score is all above the last step
    above_share = (scores - below).unsqueeze(1)  # (batch, 1)
    at = (below - low).long().unsqueeze(1)  # (batch, 1)
    shares = scores.new_zeros(len(scores), high - low + 1)
    return shares.scatter(1, at, 1 - above_share).scatter(1, at + 1, above_share)
