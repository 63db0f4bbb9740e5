"""Padded sentences and their masks in, attention over their words out; padding gets none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from elmo.errors import ShapeError
from elmo.tasks.heads.sentence_vectors import SentenceVectors

SCORES_AT_ONCE = 1 << 24  # that are in memory


def by_rows(
    compute: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor, *, row_scores: int
) -> tuple[Tensor, ...]:
    """What ``compute`` gives for ``rows`` (batch, row, width), each of which needs ``row_scores`` scores.

    Scores of long texts would not fit in memory: those of a few rows are made at a time, and again for
    their gradients.
    """
    n_at_once = max(1, SCORES_AT_ONCE // max(1, row_scores))
    if rows.size(1) <= n_at_once:
        return compute(rows)
    parts = [
        cast("tuple[Tensor, ...]", checkpoint(compute, some, use_reentrant=False))
        for some in rows.split(n_at_once, dim=1)
    ]
    return tuple(torch.cat(part, dim=1) for part in zip(*parts, strict=True))


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

    def aligned(rows: Tensor) -> tuple[Tensor]:
        scores = rows @ keys.transpose(1, 2)  # (batch, row, key time)
        return (masked_softmax(scores, mask.unsqueeze(1)) @ keys,)  # (batch, row, width)

    return by_rows(aligned, queries, row_scores=mask.numel())[0]


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
