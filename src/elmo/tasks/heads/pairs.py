"""Heads for pairs of sentences: entailment (ESIM) and similarity.

ESIM is the sequential model of Chen et al. 2017, "Enhanced LSTM for Natural Language Inference". The similarity
head is the regression model of Tai et al. 2015, "Improved Semantic Representations From Tree-Structured Long
Short-Term Memory Networks", section 4.2. ELMo is added as in Peters et al. 2018.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, DataError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import (
    BiLstm,
    FeatureVectors,
    FeatureWidths,
    LabelHead,
    align,
    join_outputs,
    masked_max,
    masked_mean,
)

SentenceEncoder = Literal["lstm", "mean"]


class EsimHead(LabelHead):
    """ESIM: encode both sentences, align them, compare word by word, compose, pool, and classify.

    Output features are concatenated with the states of the encoder before the alignment: a = [h; ELMo]. Dropout
    is applied before each LSTM and the projection, and drops the same units at every time step.
    """

    def __init__(self, widths: FeatureWidths, *, n_labels: int, hidden_width: int = 150, dropout: float = 0.5) -> None:
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
        """Compute a score for each label, (batch, n_labels)."""
        a, b = self._encode(first), self._encode(second)  # (batch, first or second time, width)
        aligned_a = align(a, b, mask=second.mask)  # ã: the mean of b, weighted by attention from a
        aligned_b = align(b, a, mask=first.mask)
        pooled = [*self._compose(a, aligned_a, mask=first.mask), *self._compose(b, aligned_b, mask=second.mask)]
        return self.final(torch.cat(pooled, dim=-1))

    def _encode(self, features: FeatureVectors) -> Tensor:
        """Compute the states [h; ELMo] of all words (Chen et al. 2017, section 3.1), (batch, time, width)."""
        states = self.encoder(features.inputs, features.mask)
        return join_outputs(states, features, width=self.output_width)

    def _compose(self, a: Tensor, aligned: Tensor, *, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compose [a; ã; a - ã; a * ã], then pool by mean and maximum (Chen et al. 2017, sections 3.2, 3.3)."""
        compared = torch.cat([a, aligned, a - aligned, a * aligned], dim=-1)  # (batch, time, 4 · width)
        projected = F.relu(self.projection(self.dropout(compared)))  # (batch, time, hidden)
        composed = self.composition(projected, mask)  # (batch, time, 2 · hidden)
        return masked_mean(composed, mask), masked_max(composed, mask)


class SimilarityHead(nn.Module):
    """Predict a distribution over the integer scores ``low`` to ``high``: softmax(W σ(W₁ (a * b) + W₂ |a - b|)).

    With the encoder "lstm", the vectors a and b of the two sentences are the mean and the maximum of biLSTM
    states and output features; with "mean", they are the mean of all features. The order of the two sentences
    does not matter.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        low: int,
        high: int,
        encoder: SentenceEncoder = "lstm",
        hidden_width: int = 150,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        if low >= high:
            raise ConfigError(f"the lowest score must be below the highest; found {low} and {high}")
        self.low, self.high = low, high
        self.output_width = widths.outputs
        if encoder == "lstm":
            self.encoder = BiLstm(widths.inputs, hidden_width, dropout=dropout)
            pooled_width = 2 * (self.encoder.width + widths.outputs)
        else:
            self.encoder = None
            pooled_width = widths.inputs + widths.outputs
        self.dropout = Dropout(dropout)
        self.compared = nn.Linear(2 * pooled_width, hidden_width)  # [W₁; W₂]
        self.final = nn.Linear(hidden_width, high - low + 1)

    def forward(self, first: FeatureVectors, second: FeatureVectors) -> Tensor:
        """Compute a logit for each integer score, (batch, n_scores)."""
        a, b = self._encode(first), self._encode(second)  # (batch, width)
        compared = self.dropout(torch.cat([a * b, (a - b).abs()], dim=-1))  # (batch, 2 · width)
        return self.final(self.compared(compared).sigmoid())

    def _encode(self, features: FeatureVectors) -> Tensor:
        """Compute a vector for each sentence, (batch, width)."""
        mask = features.mask
        states = features.inputs if self.encoder is None else self.encoder(features.inputs, mask)
        states = join_outputs(states, features, width=self.output_width)  # (batch, time, width)
        if self.encoder is None:
            return masked_mean(states, mask)
        return torch.cat([masked_mean(states, mask), masked_max(states, mask)], dim=-1)

    def loss(self, first: FeatureVectors, second: FeatureVectors, scores: Tensor) -> Tensor:
        """Compute the mean of KL(gold ‖ predicted) for gold ``scores`` (batch,); see ``build_score_distribution``."""
        target = build_score_distribution(scores, low=self.low, high=self.high)
        log_probabilities = self(first, second).log_softmax(dim=-1)  # (batch, n_scores)
        return F.kl_div(log_probabilities, target.to(log_probabilities.dtype), reduction="batchmean")

    @torch.no_grad()
    def predict(self, first: FeatureVectors, second: FeatureVectors) -> Tensor:
        """Compute the mean of the predicted distribution for each pair, (batch,)."""
        logits = self(first, second)
        integers = torch.arange(self.low, self.high + 1, device=logits.device, dtype=logits.dtype)
        return logits.softmax(dim=-1) @ integers


def build_score_distribution(scores: Tensor, *, low: int, high: int) -> Tensor:
    """Convert each of ``scores`` (batch,) into a distribution over the two nearest integers, (batch, n_scores).

    The mean of the distribution is the score: 3.2 becomes 0.8 for 3 and 0.2 for 4 (Tai et al. 2015, section 4.2).
    """
    scores = scores.float()
    is_inside = (scores >= low) & (scores <= high)  # false for NaN
    if not bool(is_inside.all()):
        outside = scores[~is_inside][0].item()
        raise DataError(f"score must be a number from {low} to {high}; found {outside:g}")
    below = scores.floor().clamp(max=high - 1)  # so that below + 1 is at most high
    share_above = (scores - below).unsqueeze(1)  # (batch, 1)
    index = (below - low).long().unsqueeze(1)  # (batch, 1)
    shares = scores.new_zeros(len(scores), high - low + 1)
    return shares.scatter(1, index, 1 - share_above).scatter(1, index + 1, share_above)
