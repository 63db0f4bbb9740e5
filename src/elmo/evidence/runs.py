"""The conditions that the paper compares, and the training runs for them.

Peters et al. 2018 compare ELMo with a baseline without ELMo (Table 1), the last layer with all layers and two values of
λ (Table 2), and ELMo at different positions in the network (Table 3).
Figure 1 compares different amounts of training data. Table 4 compares random vectors, static vectors and ELMo for
several amounts of training data, as Edunov et al. (2019) do for translation.

The result of a run is stored in a file whose name is a hash of everything that the result depends on. Therefore each
run is trained only once for all tables and calls, an interrupted run resumes after its last epoch, and after a change
of the plan only the affected runs are trained again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import ConfigError
from elmo.evidence.plan import TaskData
from elmo.storage.atomic import atomic_file
from elmo.tasks.features.layer import Features
from elmo.tasks.features.static import StaticVectors, random_static, read_static
from elmo.tasks.features.store import FeatureCache, FeatureStore
from elmo.tasks.fit import Epoch, FitOptions
from elmo.tasks.kinds.registry import build_task
from elmo.tasks.kinds.translation import Translation
from elmo.tasks.model import TaskModel
from elmo.tasks.run import count_words

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

BASELINE, ELMO = "baseline", "input"
RANDOM, ELMO_ONLY = "random", "elmo_only"
CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {"elmo": "none", "layer_norm": False},
    ELMO: {"elmo": "input", "mix_penalty": 0.001},
    "top_only": {"elmo": "input", "top_only": True},
    "lambda_1": {"elmo": "input", "mix_penalty": 1.0},
    "output": {"elmo": "output", "mix_penalty": 0.001},
    "both": {"elmo": "both", "mix_penalty": 0.001},
    RANDOM: {"elmo": "none", "layer_norm": False, "is_static_tuned": True},
    ELMO_ONLY: {"elmo": "input", "mix_penalty": 0.001, "is_static_tuned": False},
}
RANDOM_WIDTH = 256  # width of random vectors
SIZES = 4  # number of the table by number of training examples
TABLES: Mapping[int, tuple[str, ...]] = {
    1: (BASELINE, ELMO),
    2: (BASELINE, "top_only", "lambda_1", ELMO),
    3: (ELMO, "output", "both"),
    SIZES: (RANDOM, BASELINE, ELMO_ONLY),
}
COMPARED: Mapping[int, tuple[tuple[str, str], ...]] = {  # pairs to compare; the text shows the first pair
    1: ((ELMO, BASELINE),),
    2: ((ELMO, "top_only"), ("top_only", BASELINE), ("lambda_1", BASELINE), (ELMO, BASELINE),
        (ELMO, "lambda_1")),
    3: (("both", ELMO), ("output", ELMO), ("both", "output")),
    SIZES: ((ELMO_ONLY, BASELINE), (ELMO_ONLY, RANDOM)),
}  # fmt: skip
SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # fractions of the training examples for the curve of Figure 1
MIN_EXAMPLES = 4  # minimum number of training examples
MAX_FACTOR = 4.0  # maximum factor for the number of epochs of runs with fewer examples
VERSION = 3  # increase it to train all runs again
_log = logging.getLogger(__name__)
_LABEL_LOG = logging.getLogger("elmo.tasks.kinds.task")


@dataclass(frozen=True)
class EvidenceRun:
    """One training run: a task, a condition, a seed, and a number of training examples out of ``n_all``.

    Attributes:
        task: Name of the task.
        condition: Name of the condition.
        seed: Seed of the run.
        n_examples: Number of training examples of the run.
        n_all: Number of all training examples of the task.
    """

    task: str
    condition: str
    seed: int
    n_examples: int
    n_all: int

    @property
    def share(self) -> float:
        """Fraction of the training examples that the run uses."""
        return self.n_examples / self.n_all


def list_runs(
    n_train: Mapping[str, int],
    *,
    tables: Collection[int],
    has_curve: bool,
    n_seeds: int,
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> list[EvidenceRun]:
    """List the runs that the tables and the curve need, without duplicates, task by task.

    Args:
        n_train: Number of training examples of each task.
        tables: Numbers of the tables.
        has_curve: Whether the curve is needed.
        n_seeds: Number of runs per condition.
        sizes: Numbers of training examples in table 4, for tasks that are in this table.
    """
    if unknown := sorted(set(tables) - set(TABLES)):
        raise ConfigError(f"tables must be among {', '.join(map(str, TABLES))}; found {unknown[0]}")
    if not tables and not has_curve:
        raise ConfigError("nothing to do: choose at least one table or the curve")
    runs: dict[EvidenceRun, None] = {}
    for task, n_all in n_train.items():
        conditions = dict.fromkeys(name for table in sorted(set(tables) - {SIZES}) for name in TABLES[table])
        cells = [(name, n_all) for name in conditions]
        if has_curve:
            cells += [(name, size) for size in reversed(curve_sizes(n_all)) for name in (BASELINE, ELMO)]
        if SIZES in tables:
            cells += [(name, size) for size in (sizes or {}).get(task, ()) for name in TABLES[SIZES]]
        for name, size in cells:
            for seed in range(1, n_seeds + 1):
                runs[EvidenceRun(task, name, seed, size, n_all)] = None
    return list(runs)


def curve_sizes(n_all: int) -> list[int]:
    """Return the numbers of training examples for the curve, in increasing order; the last one is ``n_all``."""
    sizes = {round(share * n_all) for share in SHARES if share < 1}
    return [*sorted(size for size in sizes if MIN_EXAMPLES <= size < n_all), n_all]


def condition_features(condition: str, words: Mapping[str, Any]) -> Features:
    """Return the features of a condition: the options in ``words``, overridden by those of the condition."""
    return Features(**{**words, **CONDITIONS[condition]})


def run_options(run: EvidenceRun, fit: FitOptions) -> FitOptions:
    """Return the training options of a run; runs with fewer examples have more epochs, which are shorter."""
    factor = min(MAX_FACTOR, 1 / math.sqrt(run.share))

    def scale(epochs: int) -> int:
        return math.ceil(round(epochs * factor, 6))

    return replace(
        fit,
        seed=run.seed,
        epochs=scale(fit.epochs),
        patience=scale(fit.patience),
        decay_patience=scale(fit.decay_patience),
    )


@dataclass(frozen=True)
class RunResult:
    """The result of a training run.

    Attributes:
        score: Main score of the task at the best epoch.
        scores: All scores at the best epoch, by name.
        best_epoch: Number of the best epoch.
        n_epochs: Number of epochs.
        mixes: Mix at each position (``input``, ``output``) at the best epoch, as in ``Epoch``.
        seconds: Training time since the run was last started or resumed.
    """

    score: float
    scores: Mapping[str, float]
    best_epoch: int
    n_epochs: int
    mixes: Mapping[str, Mapping[str, Any]]
    seconds: float


@dataclass(frozen=True, eq=False)
class EvidenceSources:
    """The biLM, the static vectors and the cache, which all runs share."""

    elmo: Elmo
    elmo_key: str  # identifies the biLM, its precision and its start state
    vectors: Path | None
    vectors_digest: str
    cache: FeatureCache


class RunStore:
    """Trains runs and keeps their results in a folder."""

    def __init__(self, folder: Path, data: Mapping[str, TaskData], sources: EvidenceSources) -> None:
        self.folder = folder
        self.data = data
        self.sources = sources
        self._static: tuple[str, StaticVectors | None] = ("", None)  # vectors of the file for the last task

    def key(self, run: EvidenceRun) -> str:
        """Return a hash of everything that the result of a run depends on; names of files and tasks do not matter."""
        text = json.dumps(self.describe(run), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def describe(self, run: EvidenceRun) -> dict[str, Any]:
        """Return everything that the result of a run depends on."""
        data = self.data[run.task]
        features = condition_features(run.condition, data.plan.words)
        return {
            "version": VERSION,
            "kind": data.plan.kind,
            "task": data.task.to_json(),
            "data": data.digest,
            "n_examples": run.n_examples,
            "words": asdict(features),
            "fit": asdict(run_options(run, data.plan.fit)),
            "elmo": self.sources.elmo_key if features.has_elmo else None,
            "vectors": {RANDOM: f"random {RANDOM_WIDTH}", ELMO_ONLY: ""}.get(
                run.condition, self.sources.vectors_digest
            ),
        }

    def load(self, run: EvidenceRun) -> RunResult | None:
        """Return the result of a finished run; None if the run is not finished."""
        key = self.key(run)
        path = self._path(key)
        try:
            values = json.loads(path.read_bytes())
            if values["about"] != json.loads(json.dumps(self.describe(run))):
                raise ValueError("it belongs to another run")
            result = RunResult(**values["result"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("cannot read the result %s: %s; training the run again", path.name, error)
            return None
        shutil.rmtree(self._training(key), ignore_errors=True)  # checkpoints remain if the run was killed at its end
        return result

    def train(
        self, run: EvidenceRun, *, on_epoch: Callable[[Epoch], None] | None = None, show_progress: bool = False
    ) -> RunResult:
        """Train a run, resuming from its last checkpoint if there is one, and store the result."""
        begin = time.monotonic()
        key, data = self.key(run), self.data[run.task]
        training = self._training(key)
        with _silence(_LABEL_LOG):  # unseen labels were already reported when the data was read
            train = select_examples(run, data)
            model = TaskModel.train(
                _build_run_task(run, data, train),
                train,
                data.dev,
                store=self._build_store(run, train),
                options=run_options(run, data.plan.fit),
                folder=training,
                on_epoch=on_epoch,
                show_progress=show_progress,
            )
            best = model.best_epoch
            scores = model.evaluate(data.test) if data.test else best.scores
        result = RunResult(
            score=scores[data.task.main_score],
            scores=_sort_keys(scores),
            best_epoch=best.epoch,
            n_epochs=len(model.epochs),
            mixes=_sort_keys(best.mixes),
            seconds=round(time.monotonic() - begin, 2),
        )
        values = {"run": asdict(run), "about": self.describe(run), "result": asdict(result)}
        with atomic_file(self._path(key)) as temporary:
            text = json.dumps(values, ensure_ascii=False, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8", errors="surrogatepass")
        shutil.rmtree(training, ignore_errors=True)
        return result

    def _build_store(self, run: EvidenceRun, train: Sequence[Any]) -> FeatureStore:
        features = condition_features(run.condition, self.data[run.task].plan.words)
        static = self._choose_static(run, train)
        return FeatureStore(features, self.sources.elmo, static, cache=self.sources.cache)

    def _choose_static(self, run: EvidenceRun, train: Sequence[Any]) -> StaticVectors | None:
        if run.condition == ELMO_ONLY:
            return None
        if run.condition == RANDOM:
            return random_static(count_words(train), width=RANDOM_WIDTH, seed=run.seed)
        if self._static[0] != run.task:
            # words that do not occur in the task would only make the table larger
            path, words = self.sources.vectors, self.data[run.task].words
            self._static = (run.task, None if path is None else read_static(path, words=words, max_words=0))
        return self._static[1]

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _training(self, key: str) -> Path:
        return self.folder / f"{key}.training"


def select_examples(run: EvidenceRun, data: TaskData) -> list[Any]:
    """Return the training examples of a run; with the same seed, a larger selection includes a smaller one."""
    if run.n_examples == len(data.train):
        return list(data.train)
    order = np.random.default_rng((run.seed, len(data.train))).permutation(len(data.train))
    return [data.train[index] for index in sorted(order[: run.n_examples])]


def _build_run_task(run: EvidenceRun, data: TaskData, train: Sequence[Any]) -> Any:
    """Return the task of a run; the target units of a translation are learned from its own training examples."""
    if run.n_examples == run.n_all or data.plan.kind != Translation.kind:
        return data.task
    return build_task(data.plan.kind, train, data.plan.head)


def _sort_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sort the keys at every level, because a resumed run reads them in sorted order from its checkpoint."""
    return json.loads(json.dumps(values, sort_keys=True))


@contextmanager
def _silence(logger: logging.Logger) -> Iterator[None]:
    def drop(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
