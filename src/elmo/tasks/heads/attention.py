"""Padded sentences and their masks in, attention over their words out; padding gets none of it."""

from __future__ import annotations

import torch
from torch import Tensor

from elmo.errors import ShapeError
from elmo.tasks.heads.sentence_vectors import SentenceVectors


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of ``scores`` (..., time) over the words of ``mask`` (..., time); the rest gets exactly 0.

    ``mask`` may be broadcast. Each row needs a word: one without would get equal shares, not NaN.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)


def align(queries: Tensor, keys: Tensor, *, mask: Tensor) -> Tensor:
    """For each query the words most like it: Σ_j softmax_j(q_i · k_j) · k_j, (batch, query time, width).

    Chen et al. 2017, section 3.2; with ``queries`` equal to ``keys``, the biattention of one text
    (McCann et al. 2017, section 5). ``mask`` (batch, key time) tells which keys are words.
    """
    keys = keys.masked_fill(~mask.unsqueeze(-1), 0.0)
    scores = queries @ keys.transpose(1, 2)  # (batch, query time, key time)
    return masked_softmax(scores, mask.unsqueeze(1)) @ keys  # (batch, query time, width)


def join_outputs(states: Tensor, vectors: SentenceVectors, *, width: int) -> Tensor:
    """[h; ELMo] (Peters et al. 2018, section 3.3): an encoder's states beside ELMo for the output.

    ``width`` is what the head was built for: 0 leaves ``states`` (batch, time, width) as they are. Padding
    becomes zeros.
    """
    found = 0 if vectors.outputs is None else vectors.outputs.size(-1)
    if width != found:
        raise ShapeError(f"vectors for the output: this head was built for width {width}, found {found}")
    if vectors.outputs is not None:
        states = torch.cat([states, vectors.outputs], dim=-1)
    return states.masked_fill(~vectors.mask.unsqueeze(-1), 0.0)
