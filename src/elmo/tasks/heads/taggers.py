"""Vectors of sentences in, a tag for every word out: for named entities, and for word classes.

A bidirectional LSTM, with ELMo beside its states where the task wants it, scores every tag of every word; a
conditional random field or a softmax tells how likely they are (Peters et al. 2018, section 4 and appendix).

Vectors of sentences and predicates of them in, a tag for every word out: who did what to whom.

The deep model of He et al. 2017, as Peters et al. 2018 use it: a vector tells each word whether it is the
predicate, a stack of highway LSTMs of alternating direction reads the sentence, ELMo joins its states where
the task wants it, a softmax tells how likely each tag is, and the best sequence that is allowed is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.crf import Crf
from elmo.tasks.heads.layers import BiLstm, HighwayLstm, FeatureVectors, FeatureWidths


@dataclass(frozen=True)
class TagPrediction:
    """The tags of one sentence, and how sure the head is of them."""

    tags: tuple[int, ...]
    confidences: tuple[float, ...]  # of each tag, by itself
    probability: float  # of the tags as a whole


class TaggerHead(nn.Module):
    """A biLSTM of ``hidden_width`` units a direction, and a CRF or, without ``has_crf``, a softmax.

    ``dropout`` is before each layer, the same units at every word of a sentence. ``allowed`` (tag, tag),
    ``starts`` and ``ends`` (tag,) are true where tags may follow each other, start and end a sentence:
    predictions keep to them, training does not need to.
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

    def loss(self, vectors: FeatureVectors, tags: Tensor) -> Tensor:
        """How unlikely ``tags`` (batch, time) are, a scalar.

        With a CRF the mean of sentences; with a softmax the mean of words. A tag of -1 is not known: a
        softmax leaves it out, a CRF sums over all tags.
        """
        emissions = self._emissions(vectors)
        if self.has_crf:
            return -self.crf.log_likelihood(emissions, tags, vectors.mask).mean()
        return mean_cross_entropy(emissions, tags, vectors.mask)

    @torch.no_grad()
    def predict(self, vectors: FeatureVectors) -> list[TagPrediction]:
        """The likeliest tags of each sentence; a tag's confidence is its probability at that word."""
        emissions = self._emissions(vectors)
        chances = self.crf.marginals(emissions, vectors.mask)
        return predictions(emissions, vectors.mask, crf=self.crf, chances=chances)

    def _emissions(self, vectors: FeatureVectors) -> Tensor:
        """Scores (batch, time, tag)."""
        states = self.lstm(vectors.inputs, vectors.mask)
        return self.scores(states, vectors.outputs)


class TagScores(nn.Module):
    """States, and vectors that join them, to a score for each tag."""

    def __init__(self, state_width: int, joined_width: int, *, n_tags: int) -> None:
        super().__init__()
        self.joined_width = joined_width
        self.linear = nn.Linear(state_width + joined_width, n_tags)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor, joined: Tensor | None) -> Tensor:
        """Scores (batch, time, tag) of ``states`` (batch, time, width)."""
        found = 0 if joined is None else joined.size(2)
        if found != self.joined_width:
            raise ShapeError(f"output vectors: expected {self.joined_width} numbers a word, found {found}")
        return self.linear(states if joined is None else torch.cat([states, joined], dim=2))


def mean_cross_entropy(scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
    """The mean of -log softmax(``scores``) at ``tags`` (batch, time), over words whose tag is known."""
    if tags.shape != mask.shape:
        raise ShapeError(f"tags: expected shape {tuple(mask.shape)}, found {tuple(tags.shape)}")
    known = tags.masked_fill(~mask, -1)
    total = F.cross_entropy(scores.flatten(0, 1), known.flatten(), ignore_index=-1, reduction="sum")
    return total / (known >= 0).sum().clamp(min=1)  # a batch without a known tag loses nothing


def predictions(emissions: Tensor, mask: Tensor, *, crf: Crf, chances: Tensor) -> list[TagPrediction]:
    """The best path of each sentence, with its tags' ``chances`` (batch, time, tag) as confidences."""
    best = crf.best_paths(emissions, mask)
    wholes = crf.path_probabilities(emissions, best, mask).tolist()
    sure = chances.gather(2, best.tags.clamp(min=0)[:, :, None])[:, :, 0].tolist()  # (batch, time)
    rows = zip(best.tags.tolist(), sure, wholes, mask.sum(dim=1).tolist(), strict=True)
    return [TagPrediction(tuple(tags[:n]), tuple(each[:n]), whole) for tags, each, whole, n in rows]


class RolesHead(nn.Module):
    """``n_layers`` highway LSTMs of ``hidden_width`` units; the paper has 8.

    ``dropout`` is of the input and of every layer's states, the same units at every word of a sentence.
    ``allowed`` (tag, tag), ``starts`` and ``ends`` (tag,) are true where tags may follow each other, start
    and end a sentence: predictions keep to them. Nothing is learned about which tags follow which.
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
        self.lstm = HighwayLstm(
            widths.inputs + predicate_width, hidden_width, n_layers=n_layers, dropout=dropout
        )
        self.scores = TagScores(hidden_width, widths.outputs, n_tags=n_tags)
        self.rules = Crf(n_tags, allowed=allowed, starts=starts, ends=ends, has_transitions=False)

    def loss(
        self, vectors: FeatureVectors, predicates: Tensor, *, tags: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """How unlikely ``tags`` (predicate, time) are: the mean of words; a tag of -1 is left out.

        ``predicates`` (predicate,) are places of words, of the sentences ``rows`` (predicate,): a sentence
        may have many predicates, and its vectors are made once. By default each sentence has one.
        """
        vectors = _of_each(predicates, vectors, rows=rows)
        return mean_cross_entropy(self._scores(vectors, predicates), tags, vectors.mask)

    @torch.no_grad()
    def predict(
        self, vectors: FeatureVectors, predicates: Tensor, *, rows: Tensor | None = None
    ) -> list[TagPrediction]:
        """The likeliest allowed tags for each predicate, with each tag's probability by the softmax."""
        vectors = _of_each(predicates, vectors, rows=rows)
        scores = self._scores(vectors, predicates)
        return predictions(scores, vectors.mask, crf=self.rules, chances=scores.softmax(dim=2))

    def _scores(self, vectors: FeatureVectors, predicates: Tensor) -> Tensor:
        """Scores (predicate, time, tag)."""
        places = torch.arange(vectors.mask.size(1), device=predicates.device)
        told = self.is_predicate((places == predicates[:, None]).long())  # (predicate, time, width)
        states = self.lstm(self.dropout(torch.cat([vectors.inputs, told], dim=2)), vectors.mask)
        return self.scores(states, vectors.outputs)


def _of_each(predicates: Tensor, vectors: FeatureVectors, *, rows: Tensor | None) -> FeatureVectors:
    """The vectors of each predicate's sentence."""
    if rows is not None:
        outputs = None if vectors.outputs is None else vectors.outputs[rows]
        vectors = FeatureVectors(vectors.inputs[rows], vectors.mask[rows], outputs)
    if predicates.shape != vectors.mask.shape[:1]:
        raise ShapeError(
            f"predicates: expected shape {tuple(vectors.mask.shape[:1])}, one for each row, "
            f"found {tuple(predicates.shape)}"
        )
    is_outside = (predicates < 0) | (predicates >= vectors.lengths)
    if bool(is_outside.any()):
        k = int(is_outside.nonzero()[0])
        raise DataError(
            f"predicate {k}: expected a place within its sentence of {int(vectors.lengths[k])} words, "
            f"found {int(predicates[k])}"
        )
    return vectors
