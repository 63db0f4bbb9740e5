"""Type ids of a corpus in, what a biLM's token layer reads out: character ids, word ids, or both."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.errors import ConfigError
from elmo.text.alphabet import N_BYTE_CHARACTERS, ByteAlphabet
from elmo.train.corpus_folder import Corpus
from elmo.train.word_types import EOS, UNKNOWN

BOS = 0
_PAD = N_BYTE_CHARACTERS  # the padding character is the last id


class TypeIds:
    """Looks the types of one corpus up for one model."""

    def __init__(
        self, corpus: Corpus, config: BiLmConfig, n_vocab: int, *, device: str | torch.device = "cpu"
    ) -> None:
        if config.alphabet == "unicode":
            raise ConfigError("a model with a Unicode alphabet cannot be trained here: use bytes")
        self._types = corpus.types
        self._n_vocab = n_vocab
        self._device = torch.device(device)
        self._has_words = config.words is not None
        self._alphabet = ByteAlphabet(config.chars.max_characters) if config.chars else None

    def targets(self, ids: NDArray[np.int64]) -> Tensor:
        """The words to predict: those outside the vocabulary are unknown."""
        return self.on_device(np.where(ids < self._n_vocab, ids, UNKNOWN))

    def on_device(self, numbers: NDArray[np.int64]) -> Tensor:
        """An array as a tensor where the model is."""
        return torch.from_numpy(numbers).to(self._device)

    def inputs(self, ids: NDArray[np.int64]) -> tuple[Tensor | None, Tensor | None]:
        """``char_ids`` (type, char) and ``word_ids`` (type,), those that the model reads."""
        char_ids = self.on_device(self._characters(ids)) if self._alphabet else None
        word_ids = self.targets(ids) + 1 if self._has_words else None
        return char_ids, word_ids

    def _characters(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """What ``ByteAlphabet.ids`` gives for each type, all at once."""
        alphabet = self._alphabet or ByteAlphabet()
        size = alphabet.max_characters
        text, lengths = self._types.padded_bytes(ids, size - 2)
        begin, end = alphabet.begin(), alphabet.end()
        rows = np.full((len(ids), size), _PAD, dtype=np.int64)
        rows[:, 0] = begin[0]  # begin of word
        inner = np.arange(size - 2) < lengths[:, None]
        rows[:, 1:-1][inner] = text[inner].astype(np.int64) + 1
        rows[np.arange(len(ids)), lengths + 1] = begin[2]  # end of word
        for boundary, row in ((BOS, begin), (EOS, end)):
            rows[ids == boundary] = row
        return rows
