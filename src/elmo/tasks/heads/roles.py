"""Vectors of sentences and predicates of them in, a tag for every word out: who did what to whom.

The deep model of He et al. 2017, as Peters et al. 2018 use it: a vector tells each word whether it is the
predicate, a stack of highway LSTMs of alternating direction reads the sentence, ELMo joins its states where
the task wants it, a softmax tells how likely each tag is, and the best sequence that is allowed is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmo.errors import DataError, ShapeError
from elmo.model.dropout import Dropout
from elmo.tasks.heads.crf import Crf
from elmo.tasks.heads.highway_lstm import HighwayLstm
from elmo.tasks.heads.sentence_vectors import SentenceVectors, Widths
from elmo.tasks.heads.tagger import TagPrediction, TagScores, mean_cross_entropy, predictions


class RolesHead(nn.Module):
    """``n_layers`` highway LSTMs of ``hidden_width`` units; the paper has 8.

    ``dropout`` is of the input and of every layer's states, the same units at every word of a sentence.
    ``allowed`` (tag, tag), ``starts`` and ``ends`` (tag,) are true where tags may follow each other, start
    and end a sentence: predictions keep to them. Nothing is learned about which tags follow which.
    """

    def __init__(
        self,
        widths: Widths,
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
        self, vectors: SentenceVectors, predicates: Tensor, *, tags: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """How unlikely ``tags`` (predicate, time) are: the mean of words; a tag of -1 is left out.

        ``predicates`` (predicate,) are places of words, of the sentences ``rows`` (predicate,): a sentence
        may have many predicates, and its vectors are made once. By default each sentence has one.
        """
        vectors = _of_each(predicates, vectors, rows=rows)
        return mean_cross_entropy(self._scores(vectors, predicates), tags, vectors.mask)

    @torch.no_grad()
    def predict(
        self, vectors: SentenceVectors, predicates: Tensor, *, rows: Tensor | None = None
    ) -> list[TagPrediction]:
        """The likeliest allowed tags for each predicate, with each tag's probability by the softmax."""
        vectors = _of_each(predicates, vectors, rows=rows)
        scores = self._scores(vectors, predicates)
        return predictions(scores, vectors.mask, crf=self.rules, chances=scores.softmax(dim=2))

    def _scores(self, vectors: SentenceVectors, predicates: Tensor) -> Tensor:
        """Scores (predicate, time, tag)."""
        places = torch.arange(vectors.mask.size(1), device=predicates.device)
        told = self.is_predicate((places == predicates[:, None]).long())  # (predicate, time, width)
        states = self.lstm(self.dropout(torch.cat([vectors.inputs, told], dim=2)), vectors.mask)
        return self.scores(states, vectors.outputs)


def _of_each(predicates: Tensor, vectors: SentenceVectors, *, rows: Tensor | None) -> SentenceVectors:
    """The vectors of each predicate's sentence."""
    if rows is not None:
        outputs = None if vectors.outputs is None else vectors.outputs[rows]
        vectors = SentenceVectors(vectors.inputs[rows], vectors.mask[rows], outputs)
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
