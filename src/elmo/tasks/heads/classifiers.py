"""Vectors of texts in, a class for each out: their mean through one linear layer.

Vectors of texts in, a class for each out: the biattentive classification network.

McCann et al. 2017, "Learned in Translation: Contextualized Word Vectors", section 5, for one text, so that
both sides of its biattention are the text itself; with ELMo as in Peters et al. 2018 for SST-5.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import (
    BiLstm,
    SelfAttentivePooling,
    FeatureVectors,
    FeatureWidths,
    align,
    join_outputs,
    masked_max,
    masked_mean,
    masked_min,
)


class LinearHead(nn.Module):
    """softmax(W · mean(x) + b), the plain text classifier; ``use_max`` puts the maximum beside the mean.

    Vectors for the output, where there are any, stand beside those for the input.
    """

    def __init__(self, widths: FeatureWidths, *, n_labels: int, use_max: bool = False, dropout: float = 0.2) -> None:
        super().__init__()
        self.output_width = widths.outputs
        self.use_max = use_max
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear((widths.inputs + widths.outputs) * (2 if use_max else 1), n_labels)

    def forward(self, vectors: FeatureVectors) -> Tensor:
        """A score for each label, (batch, n_labels)."""
        x = join_outputs(vectors.inputs, vectors, width=self.output_width)  # (batch, time, width)
        pooled = masked_mean(x, vectors.mask)  # (batch, width)
        if self.use_max:
            pooled = torch.cat([pooled, masked_max(x, vectors.mask)], dim=-1)  # (batch, 2 · width)
        return self.linear(self.dropout(pooled))

    def loss(self, vectors: FeatureVectors, labels: Tensor) -> Tensor:
        """Mean cross entropy with the right ``labels`` (batch,)."""
        return F.cross_entropy(self(vectors), labels)

    @torch.no_grad()
    def predict(self, vectors: FeatureVectors) -> Tensor:
        """Probabilities of the labels, (batch, n_labels); call ``eval()`` before."""
        return self(vectors).softmax(dim=-1)


FinalLayers = Literal["relu", "maxout"]


class Maxout(nn.Module):
    """Each unit is the largest of ``n_pieces`` linear ones (Goodfellow et al. 2013)."""

    def __init__(self, input_width: int, width: int, *, n_pieces: int = 4) -> None:
        super().__init__()
        self.n_pieces = n_pieces
        self.linear = nn.Linear(input_width, width * n_pieces)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, input width) to (batch, width)."""
        return self.linear(x).unflatten(-1, (-1, self.n_pieces)).amax(dim=-1)


class BiattentiveHead(nn.Module):
    """ReLU, biLSTM encoder, biattention, biLSTM integrator, four poolings, two final layers.

    ELMo for the output joins the encoder's states, so that biattention sees it: x = [h; ELMo].

    ``final_layers`` "maxout" are McCann's, without their batch normalisation: it cannot train on a batch of
    one text, and makes a text's loss depend on its batch mates. "relu" are two plain layers in their place.
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
        if final_layers not in get_args(FinalLayers):
            raise ConfigError(f"final_layers must be relu or maxout, not {str(final_layers)!r:.40}")
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
            *_layer(final_layers, pooled_width, hidden_width),
            Dropout(dropout),
            *_layer(final_layers, hidden_width, hidden_width),
            Dropout(dropout),
            nn.Linear(hidden_width, n_labels),
        )

    def forward(self, vectors: FeatureVectors) -> Tensor:
        """A score for each label, (batch, n_labels)."""
        mask = vectors.mask
        h = F.relu(self.feedforward(self.dropout(vectors.inputs)))  # (batch, time, hidden)
        x = join_outputs(self.encoder(h, mask), vectors, width=self.output_width)  # (batch, time, width)
        c = align(x, x, mask=mask)  # (batch, time, width)
        integrated = self.integrator(torch.cat([x, x - c, x * c], dim=-1), mask)  # (batch, time, 2 · hidden)
        pooled = [
            masked_max(integrated, mask),
            masked_mean(integrated, mask),
            masked_min(integrated, mask),
            self.self_attentive(integrated, mask),
        ]
        return self.final(torch.cat(pooled, dim=-1))

    def loss(self, vectors: FeatureVectors, labels: Tensor) -> Tensor:
        """Mean cross entropy with the right ``labels`` (batch,)."""
        return F.cross_entropy(self(vectors), labels)

    @torch.no_grad()
    def predict(self, vectors: FeatureVectors) -> Tensor:
        """Probabilities of the labels, (batch, n_labels); call ``eval()`` before."""
        return self(vectors).softmax(dim=-1)


def _layer(kind: FinalLayers, input_width: int, width: int) -> list[nn.Module]:
    return [Maxout(input_width, width)] if kind == "maxout" else [nn.Linear(input_width, width), nn.ReLU()]
