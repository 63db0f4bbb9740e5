"""Errors for results that are not finite numbers, with the cause, and what to do with numbers beyond float16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import NotFiniteError

if TYPE_CHECKING:
    from torch import Tensor

Overflow = Literal["warn", "saturate", "error"]
OVERFLOWS = ("warn", "saturate", "error")
MAX_HALF = 65504.0  # the largest number in float16


def check_finite(values: Any, subject: str, *, precision: str = "float32") -> None:
    """Raise ``NotFiniteError`` if a result has numbers that are not finite; ``subject`` describes it."""
    if not _is_finite(values):
        raise NotFiniteError(f"{subject} are not finite: {_describe_weights(precision)}")


def _is_finite(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        return bool(np.isfinite(values).all())
    import torch

    return bool(torch.isfinite(values).all())


def _describe_weights(precision: str) -> str:
    if precision == "float16":
        return (
            f"the network computes in float16, which ends at {MAX_HALF:,.0f}; use dtype='bfloat16' or dtype='float32'"
        )
    return f"the weights of this model are too large for {precision}; check how it was trained or converted"


def saturate(vectors: Tensor, overflow: Overflow) -> Tensor:
    """Convert vectors to float16; numbers beyond its range become its largest number, or raise ``NotFiniteError``."""
    import torch

    if overflow == "error":
        raise NotFiniteError(
            f"the vectors exceed {MAX_HALF:,.0f}, the largest number in float16 (found {_largest(vectors):.3g}); use "
            "dtype='float32', or overflow='saturate'"
        )
    return vectors.clamp(-MAX_HALF, MAX_HALF).to(torch.float16)


def _largest(vectors: Tensor) -> float:
    return float(vectors.abs().max())


def not_finite(tokens: Sequence[str], layers: Tensor, vectors: Tensor, *, precision: str) -> NotFiniteError:
    """Return the error for a sentence whose vectors are not finite, with the cause.

    Args:
        tokens: The tokens of the sentence.
        layers: All layers, (layer, time, width).
        vectors: The selected vectors, (time, …) or (layer, time, …).
        precision: The precision of the network.
    """
    import torch

    def first_token(bad: Tensor) -> str:
        position = int(bad.nonzero()[0]) if bool(bad.any()) else 0
        return repr(tokens[position])[:60] if tokens else "no token"

    is_bad = ~torch.isfinite(layers.float() if layers.dtype == torch.bfloat16 else layers)
    for number in range(len(layers)):
        if bool(is_bad[number].any()):
            name = "the token layer" if number == 0 else f"LSTM layer {number}"
            token = first_token(is_bad[number].any(dim=-1))
            return NotFiniteError(
                f"the vectors of {name} are not finite, first at {token}: {_describe_weights(precision)}"
            )
    time_axis = 1 if vectors.dim() == 3 else 0
    bad = ~torch.isfinite(vectors).movedim(time_axis, 0).flatten(1).all(dim=1)
    return NotFiniteError(
        f"the vectors are not finite, first at {first_token(bad)}, but all layers are: the weights of the LayerMix are "
        "not finite or too large, or the layers are too large to be added"
    )


def check_array(values: Any, subject: str) -> None:
    """Raise ``NotFiniteError`` if numbers that were passed by the caller are not finite."""
    if not _is_finite(values):
        raise NotFiniteError(f"{subject} must be finite numbers; found nan or inf")
