"""The learned mix of layers, which gives one vector per token for a task (Peters et al. 2018, Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, ShapeError
from elmo.model.bilm import Layers
from elmo.model.dropout import Dropout


class LayerMix(nn.Module):
    """The weighted sum of layers ELMo_k = γ · Σ_j s_j · h_{k,j}, where s = softmax(w), and w and γ are learned.

    Example:
        >>> layers = elmo.bilm(torch.from_numpy(elmo.batch([["The", "bank"]]).char_ids)).layers
        >>> mix = LayerMix(elmo.n_layers)
        >>> mix(layers).shape == (1, 2, elmo.width)
        True
        >>> mix.shares.sum().item()  # equal shares before training
        1.0
    """

    def __init__(
        self,
        n_layers: int,
        *,
        weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        is_fixed: bool = False,
        top_only: bool = False,
        layer_norm: bool = False,
        dropout: float = 0.0,
        keep_boundaries: bool = False,
    ) -> None:
        """Build a mix of ``n_layers`` layers.

        Args:
            n_layers: Number of layers, including the token layer.
            weights: Initial value of w, one number per layer. Default: all layers have equal shares.
            gamma: Initial value of γ.
            is_fixed: Do not learn w and γ.
            top_only: Use only the last layer, scaled by γ.
            layer_norm: Normalize the vector of each token in each layer before mixing.
            dropout: Dropout rate for the mixed vectors.
            keep_boundaries: Keep the boundary tokens of each sentence.
        """
        super().__init__()
        if top_only and weights is not None:
            raise ConfigError(
                "cannot use weights with top_only, which uses only the last layer; set either top_only or weights"
            )
        if weights is not None and len(weights) != n_layers:
            raise ConfigError(f"weights must have {n_layers} values, one per layer; found {len(weights)}")
        if not all(math.isfinite(value) for value in (*(weights or ()), gamma)):
            raise ConfigError("weights and gamma must be finite numbers; found nan or inf")
        self.n_layers = n_layers
        self.top_only = top_only
        self.layer_norm = layer_norm
        self.keep_boundaries = keep_boundaries
        self.dropout = Dropout(dropout)
        w = torch.zeros(n_layers) if weights is None else torch.tensor(weights, dtype=torch.float32)
        self.w = nn.Parameter(w, requires_grad=not (is_fixed or top_only))
        self.gamma = nn.Parameter(torch.tensor(float(gamma)), requires_grad=not is_fixed)

    @property
    def shares(self) -> Tensor:
        """The share s_j of each layer, (layer,)."""
        if self.top_only:
            return F.one_hot(torch.tensor(self.n_layers - 1, device=self.w.device), self.n_layers).to(self.w)
        return self.w.softmax(dim=0)

    def forward(self, layers: Layers) -> Tensor:
        """Mix ``layers.states`` (batch, layer, time, width) into (batch, time, width)."""
        n_layers = layers.states.size(1)
        if n_layers != self.n_layers:
            raise ShapeError(f"the input of this mix must have {self.n_layers} layers; found {n_layers}")
        if not self.keep_boundaries:
            layers = layers.without_boundaries()
        states = layers.states
        if self.layer_norm:
            # Each token is normalized by itself, so that it does not depend on other sentences in the batch.
            states = F.layer_norm(states, states.shape[-1:])
            states = torch.where(layers.mask[:, None, :, None], states, 0)
        mixed = self.gamma * torch.einsum("l,bltw->btw", self.shares.to(states), states)
        return self.dropout(mixed)

    if TYPE_CHECKING:  # torch declares that calling a module returns Any

        def __call__(self, layers: Layers) -> Tensor:
            """Run ``forward``."""
            ...


class LayerMixes(nn.Module):
    """Several mixes of the same layers, each with separate weights.

    Args:
        mixes: The mixes.

    Example:
        >>> layers = elmo.bilm(torch.from_numpy(elmo.batch([["The", "bank"]]).char_ids)).layers
        >>> mixes = LayerMixes([LayerMix(elmo.n_layers), LayerMix(elmo.n_layers, top_only=True)])
        >>> [mixed.shape == (1, 2, elmo.width) for mixed in mixes(layers)]
        [True, True]
    """

    def __init__(self, mixes: Sequence[LayerMix]) -> None:
        super().__init__()
        if not mixes:
            raise ConfigError("mixes must have at least one LayerMix; found none")
        self.mixes = nn.ModuleList(mixes)

    def forward(self, layers: Layers) -> list[Tensor]:
        """Return one tensor (batch, time, width) per mix."""
        return [mix(layers) for mix in self.mixes]

    if TYPE_CHECKING:

        def __call__(self, layers: Layers) -> list[Tensor]:
            """Run ``forward``."""
            ...
