"""The precision of a network: convert its weights without losing the exact numbers, and choose one for ``"auto"``."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elmo.engine.bilm import Engine
from elmo.engine.matmul import choose_kernels
from elmo.errors import NotFiniteError

_log = logging.getLogger(__name__)

MAX_ERROR = 0.01  # ‖vectors − float32 vectors‖ / ‖float32 vectors‖ over all layers
N_SENTENCES, SENTENCE_TOKENS = 16, 12
_WORDS = [
    "the", "a", "of", "in", "to", "is", "was", "and", "it", "on", "as", "by", "with", "for", "that", "this", "from",
    "river", "bank", "money", "old", "new", "的", "是", "在", "了",
]  # fmt: skip


def convert_weights(
    weights: Mapping[str, Tensor], full: Mapping[str, Tensor], *, device: torch.device | None, dtype: torch.dtype | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Convert ``weights`` from the exact numbers in ``full``; return both for the next conversion.

    A weight is converted from ``full`` if rounding that gives the current weight; otherwise the weight was changed, and
    is converted as it is. The second result has the weights before rounding, in the memory of the CPU.

    Args:
        weights: The current weights.
        full: The weights before they were rounded, if they were.
        device: The new device; None leaves each weight where it is.
        dtype: The new type; None leaves the type of each weight.
    """
    converted: dict[str, Tensor] = {}
    exact: dict[str, Tensor] = {}
    for name, weight in weights.items():
        source = full[name].detach() if name in full and _is_rounded(full[name], weight) else weight
        converted[name] = source.to(device or weight.device, dtype or weight.dtype)
        if converted[name].dtype != source.dtype and not bool(torch.isfinite(converted[name]).all()):
            kind = str(converted[name].dtype).removeprefix("torch.")
            raise NotFiniteError(
                f"cannot convert {name} to {kind}: its largest weight, {float(source.abs().max()):.3g}, is out of "
                "range; use bfloat16 or float32"
            )
        # weights in the memory of the CPU take none on the device, and those of the file are not copied
        if name in full and source is not weight:
            exact[name] = full[name]
        elif not _is_rounded(converted[name], source):
            exact[name] = source.cpu()
    return converted, exact


def _is_rounded(source: Tensor, weight: Tensor) -> bool:
    """Whether ``weight`` has the numbers of ``source``, rounded to its type."""
    is_same = source.data_ptr() == weight.data_ptr() and source.dtype == weight.dtype and source.shape == weight.shape
    return is_same or torch.equal(source.detach().to(weight), weight)


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
