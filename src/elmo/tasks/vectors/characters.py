"""Words in, vectors of their characters out: one convolution, the largest value of each filter.

Characters are UTF-8 bytes, so any script is read and no list of characters is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

MAX_BYTES = 40  # of a word; what is longer is cut
_PADDING, _BEGIN, _END = 0, 257, 258  # bytes are 1..256


@dataclass(frozen=True, eq=False)
class CharacterIds:
    """The characters of a batch: each word once, and where it stands."""

    words: Tensor  # (word, char): begin, bytes, end, padding; row 0 is padding alone
    places: Tensor  # (batch, time): rows of words


def character_ids(sentences: Sequence[Sequence[str]], longest: int) -> CharacterIds:
    """The bytes of a batch's words."""
    rows: dict[str, int] = {}
    places = np.zeros((len(sentences), longest), np.int64)
    for k, words in enumerate(sentences):
        places[k, : len(words)] = [rows.setdefault(word, len(rows) + 1) for word in words]
    found = [_ids(word) for word in rows]
    ids = np.zeros((len(rows) + 1, max(map(len, found), default=3)), np.int64)
    for row, one in enumerate(found, start=1):
        ids[row, : len(one)] = one
    return CharacterIds(torch.from_numpy(ids), torch.from_numpy(places))


@lru_cache(maxsize=1 << 16)
def _ids(word: str) -> NDArray[np.int16]:
    raw = np.frombuffer(word.encode("utf-8", "surrogatepass")[:MAX_BYTES], np.uint8)
    return np.concatenate([[_BEGIN], raw.astype(np.int16) + 1, [_END]], dtype=np.int16)


class CharacterVectors(nn.Module):
    """Filters three bytes wide over embedded bytes (Ma and Hovy 2016)."""

    def __init__(self, width: int, *, byte_width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, byte_width, padding_idx=_PADDING)
        self.filters = nn.Conv1d(byte_width, width, kernel_size=3, padding=1)

    def forward(self, ids: CharacterIds) -> Tensor:
        """(batch, time, width), zero where there is no word; a word that stands often is computed once."""
        words = ids.words[1:]  # (word, char)
        found = self.filters(self.embedding(words).transpose(1, 2))  # (word, width, char)
        found = found.masked_fill((words == _PADDING)[:, None], -torch.inf).amax(dim=2)  # (word, width)
        return functional.embedding(ids.places, functional.pad(found, (0, 0, 1, 0)))
