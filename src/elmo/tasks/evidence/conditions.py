"""Tables and tasks in, the runs that they need out: what each condition is, and how much data a run has.

Peters et al. 2018: Table 1 holds ELMo against none, Table 2 the last layer against all layers and λ against
λ, Table 3 the places where ELMo is given to a task; Figure 1 is of less and less training data.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elmo.errors import ConfigError
from elmo.tasks.fit import FitOptions
from elmo.tasks.vectors.word_vectors import VectorChoice

BASELINE, ELMO = "baseline", "input"
CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {"elmo": "none", "layer_norm": False},
    ELMO: {"elmo": "input", "mix_penalty": 0.001},
    "top_only": {"elmo": "input", "top_only": True},
    "lambda_1": {"elmo": "input", "mix_penalty": 1.0},
    "output": {"elmo": "output", "mix_penalty": 0.001},
    "both": {"elmo": "both", "mix_penalty": 0.001},
}
TABLES: Mapping[int, tuple[str, ...]] = {
    1: (BASELINE, ELMO),
    2: (BASELINE, "top_only", "lambda_1", ELMO),
    3: (ELMO, "output", "both"),
}
COMPARED: Mapping[int, tuple[tuple[str, str], ...]] = {  # what, over what; a table's first one is printed
    1: ((ELMO, BASELINE),),
    2: ((ELMO, "top_only"), ("top_only", BASELINE), ("lambda_1", BASELINE), (ELMO, BASELINE),
        (ELMO, "lambda_1")),
    3: (("both", ELMO), ("output", ELMO), ("both", "output")),
}  # fmt: skip
SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
MIN_EXAMPLES = 4  # of a point of the curve
MAX_FACTOR = 4.0  # of the epochs of a run with little data


@dataclass(frozen=True)
class Run:
    """One training: of a task, in a condition, from a seed, on the first so many of its shuffled examples."""

    task: str
    condition: str
    seed: int
    n_examples: int
    n_all: int

    @property
    def share(self) -> float:
        """Of the training examples."""
        return self.n_examples / self.n_all


def wanted_runs(
    n_train: Mapping[str, int], *, tables: Collection[int], has_curve: bool, n_seeds: int
) -> list[Run]:
    """Every run that the tables and the curve of these tasks need, each once, tasks one after another."""
    if unknown := sorted(set(tables) - set(TABLES)):
        raise ConfigError(f"the tables are {', '.join(map(str, TABLES))}, not {unknown[0]}")
    if not tables and not has_curve:
        raise ConfigError("expected a table, the curve or both, found nothing to gather")
    found: dict[Run, None] = {}
    for task, n_all in n_train.items():
        conditions = dict.fromkeys(name for table in sorted(set(tables)) for name in TABLES[table])
        wanted = [(name, n_all) for name in conditions]
        if has_curve:
            sizes = reversed(curve_sizes(n_all))
            wanted += [(name, size) for size in sizes for name in (BASELINE, ELMO)]
        for name, size in wanted:
            for seed in range(1, n_seeds + 1):
                found[Run(task, name, seed, size, n_all)] = None
    return list(found)


def curve_sizes(n_all: int) -> list[int]:
    """Numbers of examples, growing, the last one all of them."""
    sizes = {round(share * n_all) for share in SHARES if share < 1}
    return [*sorted(size for size in sizes if MIN_EXAMPLES <= size < n_all), n_all]


def choice_of(condition: str, words: Mapping[str, Any]) -> VectorChoice:
    """How words get their vectors in a condition; ``words`` is what a plan says of it."""
    return VectorChoice(**{**words, **CONDITIONS[condition]})


def fit_of(run: Run, fit: FitOptions) -> FitOptions:
    """How a run is learned: with less data epochs are shorter, so that there are more of them."""
    factor = min(MAX_FACTOR, 1 / math.sqrt(run.share))

    def more(epochs: int) -> int:
        return math.ceil(round(epochs * factor, 6))

    return replace(
        fit,
        seed=run.seed,
        epochs=more(fit.epochs),
        patience=more(fit.patience),
        decay_patience=more(fit.decay_patience),
    )
