"""Heads that predict a tag for every word: sequence tagging, and semantic roles of a predicate.

Sequence tagging is the model of Peters et al. 2018 (section 4 and appendix): a biLSTM, joined with ELMo for
the output if the task uses it, and a conditional random field or a softmax. Semantic role labeling is the
deep model of He et al. 2017, as in Peters et al. 2018: an embedding marks the predicate, highway LSTM layers
of alternating direction read the sentence, and the best sequence of tags that the rules allow is decoded from
a softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.crf import Crf
from elmo.tasks.heads.highway_lstm import HighwayLstm
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths


@dataclass(frozen=True)
class TagPrediction:
    """The predicted tags of one sentence."""

    tags: tuple[int, ...]
    confidences: tuple[float, ...]  # probability of each tag
    probability: float  # of the whole sequence


class TaggerHead(nn.Module):
    """A biLSTM with ``hidden_width`` units per direction and a CRF, or a softmax without ``has_crf``.

    ``dropout`` is applied before each layer, with the same units at every word of a sentence. ``allowed``
    (tag, tag), ``starts`` and ``ends`` (tag,) are true for tags that may follow each other, start a sentence
    and end a sentence. Predictions follow these rules; training data may break them.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        n_tags: int,
        hidden_width: int = 200,
        n_layers: int = 1,
        dropout: float = 0.5,
        has_crf: bool = True,
        allowed: Tensor | None = None,
        starts: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.has_crf = has_crf
        self.lstm = BiLstm(widths.inputs, hidden_width, n_layers=n_layers, dropout=dropout)
        self.scores = TagScores(self.lstm.width, widths.outputs, n_tags=n_tags)
        self.crf = Crf(n_tags, allowed=allowed, starts=starts, ends=ends, has_transitions=has_crf)

    def loss(self, features: FeatureVectors, tags: Tensor) -> Tensor:
        """Compute the negative log-likelihood of ``tags`` (batch, time), a scalar.

        It is the mean over sentences with a CRF, and over words with a softmax. A tag of -1 is unknown: a
        softmax ignores it, a CRF sums over all tags.
        """
        emissions = self._compute_emissions(features)
        if self.has_crf:
            return -self.crf.log_likelihood(emissions, tags, features.mask).mean()
        return mean_cross_entropy(emissions, tags, features.mask)

    @torch.no_grad()
    def predict(self, features: FeatureVectors) -> list[TagPrediction]:
        """Predict the most likely tags of each sentence; confidences are marginal probabilities."""
        emissions = self._compute_emissions(features)
        marginals = self.crf.marginals(emissions, features.mask)
        return _decode(emissions, features.mask, crf=self.crf, probabilities=marginals)

    def _compute_emissions(self, features: FeatureVectors) -> Tensor:
        """Compute scores (batch, time, tag)."""
        return self.scores(self.lstm(features.inputs, features.mask), features.outputs)


class RolesHead(nn.Module):
    """Highway LSTM with ``n_layers`` layers of ``hidden_width`` units; the paper has 8 layers.

    ``dropout`` is applied to the input and to the states of every layer, with the same units at every word
    of a sentence. ``allowed`` (tag, tag), ``starts`` and ``ends`` (tag,) are true for tags that may follow
    each other, start a sentence and end a sentence. Predictions follow these rules; transitions have no
    learned scores.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        *,
        n_tags: int,
        hidden_width: int = 300,
        n_layers: int = 4,
        dropout: float = 0.1,
        predicate_width: int = 100,
        allowed: Tensor | None = None,
        starts: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.is_predicate = nn.Embedding(2, predicate_width)
        self.dropout = Dropout(dropout, is_locked=True)
        self.lstm = HighwayLstm(widths.inputs + predicate_width, hidden_width, n_layers=n_layers, dropout=dropout)
        self.scores = TagScores(hidden_width, widths.outputs, n_tags=n_tags)
        self.rules = Crf(n_tags, allowed=allowed, starts=starts, ends=ends, has_transitions=False)

    def loss(self, features: FeatureVectors, predicates: Tensor, *, tags: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute the mean cross entropy of ``tags`` (predicate, time); a tag of -1 is ignored.

        Args:
            features: Features of the sentences.
            predicates: Positions of the predicates in their sentences, (predicate,).
            tags: Tags of the words for each predicate.
            rows: Sentence of each predicate, (predicate,), so that the features of a sentence with several
                predicates are computed once. None: one predicate per sentence.
        """
        features = _select_sentences(features, predicates, rows=rows)
        return mean_cross_entropy(self._compute_scores(features, predicates), tags, features.mask)

    @torch.no_grad()
    def predict(
        self, features: FeatureVectors, predicates: Tensor, *, rows: Tensor | None = None
    ) -> list[TagPrediction]:
        """Predict the most likely allowed tags for each predicate; confidences come from the softmax."""
        features = _select_sentences(features, predicates, rows=rows)
        scores = self._compute_scores(features, predicates)
        return _decode(scores, features.mask, crf=self.rules, probabilities=scores.softmax(dim=2))

    def _compute_scores(self, features: FeatureVectors, predicates: Tensor) -> Tensor:
        """Compute scores (predicate, time, tag)."""
        positions = torch.arange(features.mask.size(1), device=predicates.device)
        markers = self.is_predicate((positions == predicates[:, None]).long())  # (predicate, time, width)
        states = self.lstm(self.dropout(torch.cat([features.inputs, markers], dim=2)), features.mask)
        return self.scores(states, features.outputs)


def _select_sentences(features: FeatureVectors, predicates: Tensor, *, rows: Tensor | None) -> FeatureVectors:
    """Return the features of the sentence of each predicate, and check the predicates."""
    if rows is not None:
        outputs = None if features.outputs is None else features.outputs[rows]
        features = FeatureVectors(features.inputs[rows], features.mask[rows], outputs)
    if predicates.shape != features.mask.shape[:1]:
        raise ShapeError(
            f"predicates: expected shape {tuple(features.mask.shape[:1])}, one per row, found {tuple(predicates.shape)}"
        )
    is_outside = (predicates < 0) | (predicates >= features.lengths)
    if bool(is_outside.any()):
        k = int(is_outside.nonzero()[0])
        raise DataError(
            f"predicate {k}: expected a position in its sentence of {int(features.lengths[k])} words, found "
            f"{int(predicates[k])}"
        )
    return features


class TagScores(nn.Module):
    """Linear layer from states, joined with output features, to a score for each tag."""

    def __init__(self, state_width: int, output_width: int, *, n_tags: int) -> None:
        super().__init__()
        self.output_width = output_width
        self.linear = nn.Linear(state_width + output_width, n_tags)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor, outputs: Tensor | None) -> Tensor:
        """Compute the scores (batch, time, tag) of ``states`` (batch, time, width)."""
        width = 0 if outputs is None else outputs.size(2)
        if width != self.output_width:
            raise ShapeError(f"output features: this head was built for width {self.output_width}, found {width}")
        return self.linear(states if outputs is None else torch.cat([states, outputs], dim=2))


def mean_cross_entropy(scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean of -log softmax(``scores``) at ``tags`` (batch, time) over words with a known tag."""
    if tags.shape != mask.shape:
        raise ShapeError(f"tags: expected shape {tuple(mask.shape)}, found {tuple(tags.shape)}")
    known = tags.masked_fill(~mask, -1)
    total = F.cross_entropy(scores.flatten(0, 1), known.flatten(), ignore_index=-1, reduction="sum")
    return total / (known >= 0).sum().clamp(min=1)  # 0 for a batch without known tags


def _decode(emissions: Tensor, mask: Tensor, *, crf: Crf, probabilities: Tensor) -> list[TagPrediction]:
    """Decode the best path of each sentence; ``probabilities`` (batch, time, tag) give the confidences."""
    best = crf.best_paths(emissions, mask)
    path_probabilities = crf.path_probabilities(emissions, best, mask).tolist()
    confidences = probabilities.gather(2, best.tags.clamp(min=0)[:, :, None])[:, :, 0].tolist()  # (batch, time)
    lengths = mask.sum(dim=1).tolist()
    rows = zip(best.tags.tolist(), confidences, path_probabilities, lengths, strict=True)
    return [TagPrediction(tuple(tags[:n]), tuple(row[:n]), probability) for tags, row, probability, n in rows]
