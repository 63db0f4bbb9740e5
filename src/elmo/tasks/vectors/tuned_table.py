"""Rows in, their vectors out, of a table in which the rows that data meets are learned.

Learning all rows of a large table takes an optimiser longer than all else, though most of them never change.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TunedTable(nn.Module):
    """A table whose ``rows`` (met,) are learned; the others stay as they are.

    Saved it is one table, ``weight``, like that of ``nn.Embedding``, and it loads what that saved.
    """

    weight: Tensor
    rows: Tensor
    places: Tensor

    def __init__(self, weight: Tensor, rows: Tensor) -> None:
        super().__init__()
        places = torch.full((len(weight),), -1)
        places[rows] = torch.arange(len(rows))
        self.met = nn.Parameter(weight[rows])  # (met, width)
        self.register_buffer("weight", weight, persistent=False)  # (row, width), of those not met
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("places", places, persistent=False)  # (row,): in ``met``; -1: not there

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, time, width) of (batch, time)."""
        places = self.places[rows]
        learned = F.embedding(places.clamp(min=0), self.met)
        return torch.where((places >= 0).unsqueeze(-1), learned, F.embedding(rows, self.weight))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """The table with what was learned in its place."""
        destination[f"{prefix}weight"] = self.weight.index_copy(0, self.rows, self.met.detach())

    def _load_from_state_dict(  # noqa: PLR0917 -- torch's own signature
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        given = state_dict.get(f"{prefix}weight")
        if given is None:
            missing_keys.append(f"{prefix}weight")
            return
        with torch.no_grad():
            self.weight.copy_(given)
            self.met.copy_(self.weight[self.rows])
