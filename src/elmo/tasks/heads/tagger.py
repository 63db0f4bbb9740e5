"""Vectors of sentences in, a tag for every word out: for named entities, and for word classes.

A bidirectional LSTM, with ELMo beside its states where the task wants it, scores every tag of every word; a
conditional random field or a softmax tells how likely they are (Peters et al. 2018, section 4 and appendix).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ShapeError
from elmo.tasks.heads.crf import Crf
from elmo.tasks.heads.recurrent import BiLstm
from elmo.tasks.heads.sentence_vectors import SentenceVectors, Widths


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
        widths: Widths,
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

    def loss(self, vectors: SentenceVectors, tags: Tensor) -> Tensor:
        """How unlikely ``tags`` (batch, time) are, a scalar.

        With a CRF the mean of sentences; with a softmax the mean of words. A tag of -1 is not known: a
        softmax leaves it out, a CRF sums over all tags.
        """
        emissions = self._emissions(vectors)
        if self.has_crf:
            return -self.crf.log_likelihood(emissions, tags, vectors.mask).mean()
        return mean_cross_entropy(emissions, tags, vectors.mask)

    @torch.no_grad()
    def predict(self, vectors: SentenceVectors) -> list[TagPrediction]:
        """The likeliest tags of each sentence; a tag's confidence is its probability at that word."""
        emissions = self._emissions(vectors)
        chances = self.crf.marginals(emissions, vectors.mask)
        return predictions(emissions, vectors.mask, crf=self.crf, chances=chances)

    def _emissions(self, vectors: SentenceVectors) -> Tensor:
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
