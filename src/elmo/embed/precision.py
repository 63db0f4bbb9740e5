"""``dtype="auto"``: choose the fastest precision whose error on this model and this CPU is small."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Sequence

import torch

from elmo.engine.bilm import Engine
from elmo.engine.matmul import choose_kernels

_log = logging.getLogger(__name__)

MAX_ERROR = 0.01  # ‖vectors − float32 vectors‖ / ‖float32 vectors‖ over all layers
N_SENTENCES, SENTENCE_TOKENS = 16, 12
_WORDS = [
    "the", "a", "of", "in", "to", "is", "was", "and", "it", "on", "as", "by", "with", "for", "that", "this", "from",
    "river", "bank", "money", "old", "new", "的", "是", "在", "了",
]  # fmt: skip


def choose_dtype(engine: Engine, words: Sequence[str] | None) -> str:
    """Return "int8", "bfloat16" or "float32": the fastest one with an error of at most ``MAX_ERROR``.

    The error is measured on random sequences of ``words``. Precisions for which this CPU has no instructions are not
    considered. ``engine`` must be float32.
    """
    like = next(engine.bilm.parameters())
    library = choose_kernels(like).library
    if library is None:
        _log.info("dtype auto: float32, because there are no compiled kernels for other precisions here")
        return "float32"
    generator = random.Random(0)
    known = list(words[:5000]) if words else _WORDS
    sentences = [generator.choices(known, k=SENTENCE_TOKENS) for _ in range(N_SENTENCES)]
    expected = torch.cat(engine.run(sentences).layers, dim=1)
    for dtype in ("int8", "bfloat16"):
        if dtype not in library.precisions:
            continue
        bilm = engine.bilm if dtype == "int8" else copy.deepcopy(engine.bilm).bfloat16()
        found = torch.cat(Engine(bilm, engine.indexer, is_int8=dtype == "int8").run(sentences).layers, dim=1)
        error = float((found - expected).norm() / expected.norm())
        _log.info("dtype auto: %s has a relative error of %.2g; the limit is %g", dtype, error, MAX_ERROR)
        if error <= MAX_ERROR:
            return dtype
    return "float32"
