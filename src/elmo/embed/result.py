"""All layers of a sentence in, what ``encode`` was asked for out: which of them, in what form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from elmo.model.mix import LayerMix

LayerChoice = Literal["average", "top", "all", "concat"]
DTYPES = ("float32", "float64", "bfloat16", "float16")


def layer_taker(layers: LayerChoice | int | LayerMix, n_layers: int) -> Callable[[Tensor], Tensor]:
    """A function from all layers (layer, time, width) to the vectors asked for."""
    import torch

    from elmo.model.layers import Layers
    from elmo.model.mix import LayerMix

    if isinstance(layers, LayerMix):
        mix = layers

        def mixed(states: Tensor) -> Tensor:
            mask = torch.ones(1, states.size(1), dtype=torch.bool, device=states.device)
            was_training = mix.training
            mix.eval()  # no dropout here
            try:
                with torch.inference_mode():
                    return mix(Layers(states[None], mask, has_boundaries=False))[0]
            finally:
                mix.train(was_training)

        return mixed
    if isinstance(layers, int | np.integer) and not isinstance(layers, bool):
        if not -n_layers <= layers < n_layers:
            raise ConfigError(f"layer must lie in 0..{n_layers - 1}, found {layers}")
        return lambda states: states[int(layers)].clone()  # a view would keep all layers in memory
    named: dict[str, Callable[[Tensor], Tensor]] = {
        "average": lambda states: states.mean(dim=0),
        "top": lambda states: states[-1].clone(),
        "all": lambda states: states,
        "concat": lambda states: states.transpose(0, 1).flatten(start_dim=1),
    }
    if not isinstance(layers, str) or layers not in named:
        found = repr(layers) if isinstance(layers, str | bool) else type(layers).__name__
        raise ConfigError(
            f"layers must be {', '.join(named)}, 0..{n_layers - 1} or a LayerMix, not {found[:40]}"
        )
    return named[layers]


def check_dtype(dtype: str | None, known: Sequence[str] = DTYPES) -> None:
    """Refuse a precision that is not one of those."""
    if dtype is not None and dtype not in known:
        raise ConfigError(f"dtype must be one of {', '.join(known)}, not {dtype!r:.40}")


def finisher(*, as_tensor: bool, dtype: str | None) -> Callable[[Tensor], Any]:
    """A function that brings vectors into the form and precision asked for."""
    import torch

    check_dtype(dtype)
    if dtype == "bfloat16" and not as_tensor:
        raise ConfigError("numpy has no bfloat16; ask for tensors with as_tensor=True, or for float16")

    def finish(vectors: Tensor) -> Any:
        if dtype is not None:
            vectors = vectors.to(getattr(torch, dtype))
        if as_tensor:
            # a tensor made in inference mode could not be used in a user's own training
            return vectors.clone() if vectors.is_inference() else vectors
        if vectors.dtype == torch.bfloat16:
            vectors = vectors.float()
        return vectors.cpu().contiguous().numpy()

    return finish
