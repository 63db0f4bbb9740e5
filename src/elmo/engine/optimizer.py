"""Steps of a torch optimizer, fast: clipping, update and clearing of gradients in one pass over memory.

A sampled softmax has a gradient in a few thousand rows only. The norm reads just these rows, and Adagrad, which
does not change a weight without a gradient, updates just these. The state of the optimizer stays in the torch
object, so checkpoints do not depend on how steps are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from elmo.engine.compiled import Library, Range, Update, find_library
from elmo.engine.threads import ThreadPool

T = TypeVar("T")
MIN_NUMBERS = 1 << 16  # numbers of a part of a weight: fewer are not worth a task for another thread
NORM_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_

Rows = Mapping[Tensor, Tensor]  # rows of a weight that have a gradient; weights that are not listed: all rows


class OptimizerStep:
    """Computes the steps of ``optimizer``, which is AdamW, Adagrad or another optimizer of torch."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._weights: list[Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
        is_known = type(optimizer) in {torch.optim.AdamW, torch.optim.Adagrad}
        flat = [weight.detach().new_empty(0) for weight in self._weights]
        is_contiguous = all(weight.is_contiguous() for weight in self._weights)
        self._library: Library | None = find_library("float32", *flat) if is_known and is_contiguous else None
        n_threads = torch.get_num_threads()
        self._threads = ThreadPool(n_threads) if self._library is not None and n_threads > 1 else None

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.close()

    def compute_norm(self, rows: Rows) -> float:
        """Compute the norm of all gradients; only the listed ``rows`` of a weight are read."""
        library = self._library
        if library is None:
            return float(torch.nn.utils.get_total_norm([w.grad for w in self._weights if w.grad is not None]))
        sums = self._run(
            [
                partial(library.sum_squares, cast("Tensor", weight.grad), part)
                for weight in self._weights
                if weight.grad is not None
                for part in self._split(weight, rows.get(weight))
            ]
        )
        return math.sqrt(sum(sums))

    def update(self, rows: Rows, *, rate: float, norm: float, clip: float) -> None:
        """Scale the gradients of a given norm to at most ``clip``, update the weights, and clear the gradients."""
        scale = min(1.0, clip / (norm + NORM_EPSILON))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        library = self._library
        if library is None:
            for weight in self._weights:
                if weight.grad is not None:
                    weight.grad.mul_(scale)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=False)
            return
        tasks: list[Callable[[], None]] = []
        for group in self._optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    tasks += self._update_tasks(library, group, weight, rows.get(weight), scale)
        self._run(tasks)
        torch.autograd.graph.increment_version(self._weights)

    def _update_tasks(
        self, library: Library, group: dict[str, Any], weight: Tensor, rows: Tensor | None, scale: float
    ) -> list[Callable[[], None]]:
        """The parts of the update of one weight."""
        state = self._optimizer.state[weight]
        is_adagrad = isinstance(self._optimizer, torch.optim.Adagrad)
        if not state:  # as torch does before its first step
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        settings = Update(is_adagrad=is_adagrad, rate=group["lr"], scale=scale, epsilon=group["eps"])
        if is_adagrad:
            moments = (state["sum"].data_ptr(), None)
        else:
            rows = None  # moments change without a gradient, too
            beta1, beta2 = group["betas"]
            n_steps = float(state["step"])
            settings.beta1, settings.beta2, settings.decay = beta1, beta2, group["weight_decay"]
            settings.correction1, settings.correction2 = 1 - beta1**n_steps, math.sqrt(1 - beta2**n_steps)
            moments = (state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr())
        gradient = cast("Tensor", weight.grad).data_ptr()
        return [
            partial(library.call, "elmo_update", settings, part, weight.data_ptr(), gradient, *moments)
            for part in self._split(weight, rows)
        ]

    def _split(self, weight: Tensor, rows: Tensor | None) -> list[Range]:
        """Split a weight, or some of its rows, into parts for the threads."""
        n_threads = 1 if self._threads is None else torch.get_num_threads()
        width = 1 if rows is None else weight[0].numel()
        n = weight.numel() if rows is None else len(rows)
        n_parts = max(1, min(n_threads, n * width // MIN_NUMBERS))
        ends = [n * k // n_parts for k in range(n_parts + 1)]
        return [
            Range(rows=None if rows is None else rows.data_ptr(), width=width, begin=begin, end=end)
            for begin, end in pairwise(ends)
        ]

    def _run(self, tasks: list[Callable[[], T]]) -> list[T]:
        return [task() for task in tasks] if self._threads is None else self._threads.run(*tasks)
