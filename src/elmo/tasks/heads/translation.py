"""The head for translation: an LSTM encoder, and an LSTM decoder with attention that can copy source words.

The decoder has two LSTM layers. The states of the first one attend to the source words (Luong et al. 2015); the
second one reads them together with the result of the attention (Wu et al. 2016). No layer needs the attention of
the previous step at its input, so in training, each layer computes all steps at once.

To copy a source word, the decoder predicts a unit that stands for a copy, and its attention selects the word
(Merity et al. 2016). ``beam_search`` uses the decoder step by step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.model.dropout import Dropout
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths, join_outputs, masked_mean, masked_softmax

IGNORED = -1  # target id at padding
_MIN_ATTENTION = 1e-8  # of a word that is copied, so that its logarithm is finite


@dataclass(frozen=True)
class EncodedSource:
    """The encoded words of a padded batch of texts.

    ``states`` are read by the decoder, ``keys`` are compared with its states, and ``start`` is its first state.
    """

    states: Tensor  # (batch, time, 2 · width)
    keys: Tensor  # (batch, time, width)
    start: Tensor  # (batch, 2 · width): first state of both layers
    mask: Tensor  # (batch, time)


@dataclass(frozen=True)
class TargetBatch:
    """The target units of a batch for training.

    Attributes:
        previous: Unit before each step, which the decoder reads, (batch, step).
        ids: Unit to predict, ``IGNORED`` at padding, (batch, step).
        copied: Source words that are equal to the copied word; none if the unit is not a copy, (batch, step, time).
            None if the batch has no copies.
    """

    previous: Tensor
    ids: Tensor
    copied: Tensor | None


class TranslationHead(nn.Module):
    """Translate texts into units.

    Args:
        widths: Widths of the features.
        n_units: Number of target units.
        hidden_width: Width of the LSTM states of each direction and of the embeddings of units.
        n_layers: Number of layers of the encoder.
        dropout: Dropout on the input of each layer and on the output.
        label_smoothing: Share of the probability that training distributes over all units (Szegedy et al. 2016).
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        n_units: int,
        hidden_width: int,
        n_layers: int = 1,
        dropout: float = 0.3,
        label_smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        width = hidden_width
        self.output_width, self.label_smoothing = widths.outputs, label_smoothing
        self.encoder = BiLstm(widths.inputs, width, n_layers=n_layers, dropout=dropout)
        encoded = 2 * width + widths.outputs
        self.key = nn.Linear(encoded, width, bias=False)
        self.start = nn.Linear(encoded, 2 * width)
        self.units = nn.Embedding(n_units, width)  # also the weights of the output (Press and Wolf 2017)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.second = nn.LSTM(width + encoded, width, batch_first=True)
        self.readout = nn.Linear(width + encoded, width)
        self.bias = nn.Parameter(torch.zeros(n_units))
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.units.weight, std=width**-0.5)

    def encode(self, features: FeatureVectors) -> EncodedSource:
        """Encode the words of a batch of texts."""
        states = self.encoder(features.inputs, features.mask)
        states = join_outputs(states, features, width=self.output_width)
        start = torch.tanh(self.start(masked_mean(states, features.mask)))
        return EncodedSource(states, self.key(states), start, features.mask)

    def forward(self, encoded: EncodedSource, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits of the next unit (batch, step, unit) and the attention (batch, step, time).

        Args:
            encoded: The encoded texts.
            previous: Ids of the preceding units, (batch, step).
        """
        first, second = encoded.start.chunk(2, dim=1)  # (batch, width) each
        queries, _ = self.first(self.dropout(self.units(previous)), _with_cell(first))  # (batch, step, width)
        scores = queries @ encoded.keys.transpose(1, 2)  # (batch, step, time)
        attention = masked_softmax(scores, encoded.mask.unsqueeze(1))
        context = attention @ encoded.states  # (batch, step, 2 · width)
        states, _ = self.second(self.dropout(torch.cat([queries, context], dim=2)), _with_cell(second))
        output = torch.tanh(self.readout(self.dropout(torch.cat([states, context], dim=2))))
        return F.linear(self.dropout(output), self.units.weight, self.bias), attention

    def loss(self, features: FeatureVectors, targets: TargetBatch) -> Tensor:
        """Compute the mean cross entropy of the target units, and of the positions of copied words."""
        logits, attention = self(self.encode(features), targets.previous)
        is_unit = targets.ids != IGNORED
        loss = F.cross_entropy(
            logits[is_unit], targets.ids[is_unit], label_smoothing=self.label_smoothing, reduction="sum"
        )
        if targets.copied is not None:
            chosen = (attention * targets.copied).sum(dim=2)[targets.copied.any(dim=2)]
            loss = loss - chosen.clamp(min=_MIN_ATTENTION).log().sum()
        return loss / is_unit.sum()


def _with_cell(hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first state of an LSTM (1, batch, width), with a cell of zeros."""
    hidden = hidden.unsqueeze(0).contiguous()
    return hidden, torch.zeros_like(hidden)
