"""Heads for text classification: a linear classifier, and the biattentive classification network.

The biattentive network is described in McCann et al. 2017, "Learned in Translation: Contextualized Word
Vectors", section 5. For a single text, it attends from the text to itself. ELMo is added as in the SST-5 model
of Peters et al. 2018.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import (
    BiLstm,
    FeatureVectors,
    FeatureWidths,
    LabelHead,
    SelfAttentivePooling,
    align,
    join_outputs,
    masked_max,
    masked_mean,
    masked_min,
)

FinalLayers = Literal["relu", "maxout"]


class LinearHead(LabelHead):
    """Linear classifier on the mean over the words: softmax(W · mean(x) + b).

    x are the input features, concatenated with the output features if there are any. ``use_max`` concatenates
    the maximum over the words to the mean.
    """

    def __init__(self, widths: FeatureWidths, *, n_labels: int, use_max: bool = False, dropout: float = 0.2) -> None:
        super().__init__()
        self.output_width = widths.outputs
        self.use_max = use_max
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear((widths.inputs + widths.outputs) * (2 if use_max else 1), n_labels)

    def forward(self, features: FeatureVectors) -> Tensor:
        """Compute a score for each label, (batch, n_labels)."""
        x = join_outputs(features.inputs, features, width=self.output_width)  # (batch, time, width)
        pooled = masked_mean(x, features.mask)  # (batch, width)
        if self.use_max:
            pooled = torch.cat([pooled, masked_max(x, features.mask)], dim=-1)  # (batch, 2 · width)
        return self.linear(self.dropout(pooled))


class BiattentiveHead(LabelHead):
    """Biattentive network: ReLU layer, biLSTM encoder, biattention, biLSTM integrator, pooling, final layers.

    Output features are concatenated with the states of the encoder before biattention: x = [h; ELMo].

    ``final_layers="maxout"`` uses the maxout layers of the paper, but without batch normalization, which cannot be
    trained on a batch of one text and makes the loss of a text depend on the other texts of its batch.
    ``final_layers="relu"`` uses layers with ReLU activations.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        n_labels: int,
        hidden_width: int = 150,
        dropout: float = 0.3,
        final_layers: FinalLayers = "relu",
    ) -> None:
        super().__init__()
        self.output_width = widths.outputs
        self.dropout = Dropout(dropout, is_locked=True)
        self.feedforward = nn.Linear(widths.inputs, hidden_width)
        self.encoder = BiLstm(hidden_width, hidden_width, dropout=dropout)
        encoded_width = self.encoder.width + widths.outputs
        self.integrator = BiLstm(3 * encoded_width, hidden_width, dropout=dropout)
        self.self_attentive = SelfAttentivePooling(self.integrator.width)
        pooled_width = 4 * self.integrator.width
        self.final = nn.Sequential(
            Dropout(dropout),
            *_build_layer(final_layers, pooled_width, hidden_width),
            Dropout(dropout),
            *_build_layer(final_layers, hidden_width, hidden_width),
            Dropout(dropout),
            nn.Linear(hidden_width, n_labels),
        )

    def forward(self, features: FeatureVectors) -> Tensor:
        """Compute a score for each label, (batch, n_labels)."""
        mask = features.mask
        h = F.relu(self.feedforward(self.dropout(features.inputs)))  # (batch, time, hidden)
        x = join_outputs(self.encoder(h, mask), features, width=self.output_width)  # (batch, time, width)
        c = align(x, x, mask=mask)  # (batch, time, width)
        integrated = self.integrator(torch.cat([x, x - c, x * c], dim=-1), mask)  # (batch, time, 2 · hidden)
        pooled = [
            masked_max(integrated, mask),
            masked_mean(integrated, mask),
            masked_min(integrated, mask),
            self.self_attentive(integrated, mask),
        ]
        return self.final(torch.cat(pooled, dim=-1))


class Maxout(nn.Module):
    """Layer whose units are the maximum of ``n_pieces`` linear units each (Goodfellow et al. 2013)."""

    def __init__(self, input_width: int, width: int, *, n_pieces: int = 4) -> None:
        super().__init__()
        self.n_pieces = n_pieces
        self.linear = nn.Linear(input_width, width * n_pieces)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the units (batch, width) for inputs ``x`` (batch, input width)."""
        return self.linear(x).unflatten(-1, (-1, self.n_pieces)).amax(dim=-1)


def _build_layer(kind: FinalLayers, input_width: int, width: int) -> list[nn.Module]:
    return [Maxout(input_width, width)] if kind == "maxout" else [nn.Linear(input_width, width), nn.ReLU()]
