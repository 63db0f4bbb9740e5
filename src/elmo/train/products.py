"""Two factors in, their matrix product out, where there is a place for it.

The factors may be rounded to bfloat16 before; the product is then rounded too, but not what holds it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_product(to: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right to ``to``."""
    if left.dtype == to.dtype:
        to.addmm_(left, right)
    else:
        to += left @ right


def set_product(to: Tensor, left: Tensor, right: Tensor) -> None:
    """Write left · right to ``to``."""
    if left.dtype == to.dtype:
        torch.mm(left, right, out=to)
    else:
        to.copy_(left @ right)
