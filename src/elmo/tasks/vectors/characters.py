"""Words in, vectors of their characters out: one convolution, the largest value of each filter.

Characters are UTF-8 bytes, so any script is read and no list of characters is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

MAX_BYTES = 40  # of a word; what is longer is cut
_PADDING, _BEGIN, _END = 0, 257, 258  # bytes are 1..256


def character_ids(sentences: Sequence[Sequence[str]], longest: int) -> NDArray[np.int64]:
    """(batch, time, char): begin, bytes, end, padding."""
    ids = np.zeros((len(sentences), longest, MAX_BYTES + 2), np.int64)
    for k, words in enumerate(sentences):
        for place, word in enumerate(words):
            raw = np.frombuffer(word.encode("utf-8", "surrogatepass")[:MAX_BYTES], np.uint8)
            ids[k, place, 0] = _BEGIN
            ids[k, place, 1 : len(raw) + 1] = raw.astype(np.int64) + 1
            ids[k, place, len(raw) + 1] = _END
    widest = int((ids != _PADDING).any(axis=(0, 1)).sum())
    return ids[:, :, : max(widest, 3)]


class CharacterVectors(nn.Module):
    """Filters three bytes wide over embedded bytes (Ma and Hovy 2016)."""

    def __init__(self, width: int, *, byte_width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, byte_width, padding_idx=_PADDING)
        self.filters = nn.Conv1d(byte_width, width, kernel_size=3, padding=1)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time, char) to (batch, time, width)."""
        words = ids.flatten(end_dim=1)  # (batch · time, char)
        found = self.filters(self.embedding(words).transpose(1, 2))  # (batch · time, width, char)
        found = found.masked_fill((words == _PADDING)[:, None], -torch.inf).amax(dim=2)
        is_word = (words != _PADDING).any(dim=1, keepdim=True)
        return torch.where(is_word, found, 0.0).view(*ids.shape[:2], -1)
