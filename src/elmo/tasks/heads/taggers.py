"""Heads that predict a tag for every word: sequence tagging and semantic role labeling.

Sequence tagging uses the model of Peters et al. 2018 (section 4 and appendix): a biLSTM, whose states are
concatenated with ELMo if the task uses output features, and a conditional random field (CRF) or a softmax.
Semantic role labeling uses the deep model of He et al. 2017, as in Peters et al. 2018: an embedding marks the
predicate, highway LSTM layers with alternating directions read the sentence, and a softmax gives the scores from
which the best allowed sequence of tags is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.data.schemes import Transitions
from elmo.tasks.heads.crf import Chain, Crf
from elmo.tasks.heads.highway_lstm import HighwayLstm
from elmo.tasks.heads.layers import BiLstm, FeatureVectors, FeatureWidths, concat_outputs


@dataclass(frozen=True)
class TagPrediction:
    """The predicted tags of one sentence."""

    tags: tuple[int, ...]  # tag ids
    confidences: tuple[float, ...]  # probability of each tag
    probability: float  # of the whole sequence


class TaggerHead(nn.Module):
    """Head for sequence tagging: a biLSTM with ``hidden_width`` units per direction, and a CRF or a softmax.

    ``dropout`` is applied before each LSTM layer and drops the same units at every word of a sentence. Predicted
    tags follow ``rules``, the allowed transitions between tags; the tags of the training data may break them.
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
        rules: Transitions | None = None,
    ) -> None:
        super().__init__()
        self.has_crf = has_crf
        self.lstm = BiLstm(widths.inputs, hidden_width, n_layers=n_layers, dropout=dropout)
        self.scores = TagScores(self.lstm.width, widths.outputs, n_tags=n_tags)
        self.crf = Crf(n_tags, rules=rules, has_transitions=has_crf)

    def loss(self, features: FeatureVectors, tags: Tensor) -> Tensor:
        """Compute the negative log-likelihood of ``tags`` (batch, time), a scalar.

        The result is the mean over sentences with a CRF, and the mean over words with a softmax. A tag of -1 is
        unknown: a CRF sums over all tags there, and a softmax ignores the word.
        """
        emissions = self._compute_emissions(features)
        if self.has_crf:
            return -self.crf.chain(is_constrained=False).log_likelihood(emissions, tags, features.mask).mean()
        return mean_cross_entropy(emissions, tags, features.mask)

    @torch.no_grad()
    def predict(self, features: FeatureVectors) -> list[TagPrediction]:
        """Predict the most likely tags of each sentence; confidences are marginal probabilities."""
        emissions, chain = self._compute_emissions(features), self.crf.chain()
        marginals = chain.marginals(emissions, features.mask)
        return _decode(emissions, features.mask, chain=chain, probabilities=marginals)

    def _compute_emissions(self, features: FeatureVectors) -> Tensor:
        """Compute the score of each tag at each word, (batch, time, tag)."""
        return self.scores(self.lstm(features.inputs, features.mask), features)


class RolesHead(nn.Module):
    """Head for semantic roles: a highway LSTM with ``n_layers`` layers of ``hidden_width`` units.

    ``dropout`` is applied to the input and to the states of every layer, and drops the same units at every word of
    a sentence. Predicted tags follow ``rules``, the allowed transitions between tags, which have no learned
    scores.
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
        rules: Transitions | None = None,
    ) -> None:
        super().__init__()
        self.is_predicate = nn.Embedding(2, predicate_width)
        self.dropout = Dropout(dropout, is_locked=True)
        self.lstm = HighwayLstm(widths.inputs + predicate_width, hidden_width, n_layers=n_layers, dropout=dropout)
        self.scores = TagScores(hidden_width, widths.outputs, n_tags=n_tags)
        self.rules = Crf(n_tags, rules=rules, has_transitions=False)

    def loss(self, features: FeatureVectors, predicates: Tensor, *, tags: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute the mean cross entropy of the gold tags, a scalar.

        Args:
            features: Features of the sentences.
            predicates: Position of each predicate in its sentence, (predicate,).
            tags: Tag of each word for each predicate, (predicate, time); -1 is ignored.
            rows: Sentence index of each predicate, (predicate,), so that the features of a sentence with several
                predicates are computed once. None means one predicate per sentence.
        """
        features = _select_sentences(features, predicates, rows=rows)
        return mean_cross_entropy(self._compute_scores(features, predicates), tags, features.mask)

    @torch.no_grad()
    def predict(
        self, features: FeatureVectors, predicates: Tensor, *, rows: Tensor | None = None
    ) -> list[TagPrediction]:
        """Predict the most likely allowed tags for each predicate; confidences are softmax probabilities."""
        features = _select_sentences(features, predicates, rows=rows)
        scores = self._compute_scores(features, predicates)
        return _decode(scores, features.mask, chain=self.rules.chain(), probabilities=scores.softmax(dim=2))

    def _compute_scores(self, features: FeatureVectors, predicates: Tensor) -> Tensor:
        """Compute the score of each tag at each word, (predicate, time, tag)."""
        positions = torch.arange(features.mask.size(1), device=predicates.device)
        markers = self.is_predicate((positions == predicates[:, None]).long())  # (predicate, time, width)
        states = self.lstm(self.dropout(torch.cat([features.inputs, markers], dim=2)), features.mask)
        return self.scores(states, features)


def _select_sentences(features: FeatureVectors, predicates: Tensor, *, rows: Tensor | None) -> FeatureVectors:
    """Return the features of the sentence of each predicate; raise ``DataError`` if a predicate is outside it."""
    if rows is not None:
        outputs = None if features.outputs is None else features.outputs[rows]
        features = FeatureVectors(features.inputs[rows], features.mask[rows], outputs)
    is_outside = (predicates < 0) | (predicates >= features.lengths)
    if bool(is_outside.any()):
        k = int(is_outside.nonzero()[0])
        raise DataError(
            f"position of predicate {k} must be within its sentence of {int(features.lengths[k])} words; "
            f"found {int(predicates[k])}"
        )
    return features


class TagScores(nn.Module):
    """Linear layer that computes a score for each tag from states and output features."""

    def __init__(self, state_width: int, output_width: int, *, n_tags: int) -> None:
        super().__init__()
        self.output_width = output_width
        self.linear = nn.Linear(state_width + output_width, n_tags)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor, features: FeatureVectors) -> Tensor:
        """Compute the scores (batch, time, tag) of ``states`` (batch, time, width)."""
        return self.linear(concat_outputs(states, features, width=self.output_width))


def mean_cross_entropy(scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean cross entropy of ``tags`` (batch, time) over the words with a known tag."""
    if tags.shape != mask.shape:
        raise ShapeError(f"tags must have shape {tuple(mask.shape)}; found {tuple(tags.shape)}")
    known = tags.masked_fill(~mask, -1)
    total = F.cross_entropy(scores.flatten(0, 1), known.flatten(), ignore_index=-1, reduction="sum")
    return total / (known >= 0).sum().clamp(min=1)  # 0 for a batch without known tags


def _decode(emissions: Tensor, mask: Tensor, *, chain: Chain, probabilities: Tensor) -> list[TagPrediction]:
    """Decode the best tags of each sentence; their confidences are from ``probabilities`` (batch, time, tag)."""
    best = chain.best_paths(emissions, mask)
    path_probabilities = chain.path_probabilities(emissions, best.tags, mask).tolist()
    confidences = probabilities.gather(2, best.tags.clamp(min=0)[:, :, None])[:, :, 0].tolist()  # (batch, time)
    lengths = mask.sum(dim=1).tolist()
    rows = zip(best.tags.tolist(), confidences, path_probabilities, lengths, strict=True)
    return [TagPrediction(tuple(tags[:n]), tuple(row[:n]), probability) for tags, row, probability, n in rows]
