"""Sentences in, the vectors that a task's head reads out: vectors of words and head as one module."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from elmo.tasks.data.examples import Words
from elmo.tasks.heads.sentence_vectors import SentenceVectors
from elmo.tasks.vectors.word_vectors import VectorSource, WordVectors


class TaskNetwork(nn.Module):
    """All that a task learns."""

    def __init__(self, words: WordVectors, head: nn.Module) -> None:
        super().__init__()
        self.words = words
        self.head = head

    def vectors(self, source: VectorSource, sentences: Sequence[Words]) -> SentenceVectors:
        """The vectors of these sentences, padded."""
        return self.words(source.batch(sentences))
