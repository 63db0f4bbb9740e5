"""Layers of a biLM in, one vector per token out (Peters et al. 2018, Eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmo.errors import ConfigError, ShapeError
from elmo.model.bilm import Layers
from elmo.model.dropout import Dropout


class LayerMix(nn.Module):
    """ELMo_k = γ · Σ_j s_j · h_{k,j}, where s = softmax(w); w and γ are learned unless ``is_fixed``."""

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
        """Start from ``weights`` (before the softmax; equal shares when None) and ``gamma``.

        ``top_only`` takes the last layer alone; ``layer_norm`` normalises each true token's vector in each
        layer before it is weighed; ``keep_boundaries`` leaves a sentence's opening and closing tokens in.
        """
        super().__init__()
        if top_only and weights is not None:
            raise ConfigError("a mix of the top layer only takes no weights")
        if weights is not None and len(weights) != n_layers:
            raise ConfigError(f"expected {n_layers} weights, one per layer, found {len(weights)}")
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
        """s_j: what each layer contributes, (layer,)."""
        if self.top_only:
            return F.one_hot(torch.tensor(self.n_layers - 1, device=self.w.device), self.n_layers).to(self.w)
        return self.w.softmax(dim=0)

    def forward(self, layers: Layers) -> Tensor:
        """Mix ``layers.states`` (batch, layer, time, width) into (batch, time, width)."""
        n_layers = layers.states.size(1)
        if n_layers != self.n_layers:
            raise ShapeError(f"this mix weighs {self.n_layers} layers, but was given {n_layers}")
        if not self.keep_boundaries:
            layers = layers.without_boundaries()
        states = layers.states
        if self.layer_norm:
            # Over one token's own width: a token's vector must not depend on its neighbours in the batch.
            states = F.layer_norm(states, states.shape[-1:])
            states = torch.where(layers.mask[:, None, :, None], states, 0)
        mixed = self.gamma * torch.einsum("l,bltw->btw", self.shares.to(states), states)
        return self.dropout(mixed)


class LayerMixes(nn.Module):
    """Several mixes of the same layers at once, each with weights of its own."""

    def __init__(self, mixes: Sequence[LayerMix]) -> None:
        super().__init__()
        if not mixes:
            raise ConfigError("expected at least one mix, found none")
        self.mixes = nn.ModuleList(mixes)

    def forward(self, layers: Layers) -> list[Tensor]:
        """One (batch, time, width) for each mix."""
        return [mix(layers) for mix in self.mixes]
