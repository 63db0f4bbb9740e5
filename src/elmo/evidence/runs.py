"""The runs of an experiment: what each condition is, and how one run is trained and its result kept.

Peters et al. 2018 compare ELMo with a baseline without it (Table 1), the last layer with all layers and two
values of λ (Table 2), and the positions of ELMo in the network (Table 3); Figure 1 uses less and less
training data.

The result of a run is a file named by a hash of everything that it depends on. So each run is trained once for
all tables and all calls; a run that was killed resumes after its last epoch; and a changed plan repeats only
the runs that the change affects.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import ConfigError
from elmo.evidence.plan import TaskData
from elmo.storage.atomic import atomic_file
from elmo.tasks.features.layer import Features
from elmo.tasks.features.static import StaticVectors, read_static
from elmo.tasks.features.store import FeatureCache, FeatureStore
from elmo.tasks.fit import Epoch, FitOptions
from elmo.tasks.model import TaskModel

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

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
COMPARED: Mapping[int, tuple[tuple[str, str], ...]] = {  # condition, over which; the first is printed
    1: ((ELMO, BASELINE),),
    2: ((ELMO, "top_only"), ("top_only", BASELINE), ("lambda_1", BASELINE), (ELMO, BASELINE),
        (ELMO, "lambda_1")),
    3: (("both", ELMO), ("output", ELMO), ("both", "output")),
}  # fmt: skip
SHARES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
MIN_EXAMPLES = 4  # of a point of the curve
MAX_FACTOR = 4.0  # by which runs with little data have more epochs
VERSION = 3  # another version repeats all runs
_log = logging.getLogger(__name__)
_LABEL_LOG = logging.getLogger("elmo.tasks.kinds.task")


@dataclass(frozen=True)
class EvidenceRun:
    """One training run: a task, a condition, a seed, and the number of training examples."""

    task: str
    condition: str
    seed: int
    n_examples: int
    n_all: int

    @property
    def share(self) -> float:
        """Fraction of the training examples that is used."""
        return self.n_examples / self.n_all


def list_runs(
    n_train: Mapping[str, int], *, tables: Collection[int], has_curve: bool, n_seeds: int
) -> list[EvidenceRun]:
    """List the runs that the tables and the curve need, each once, task by task."""
    if unknown := sorted(set(tables) - set(TABLES)):
        raise ConfigError(f"tables must be among {', '.join(map(str, TABLES))}, found {unknown[0]}")
    if not tables and not has_curve:
        raise ConfigError("expected at least one table or the curve, found none")
    runs: dict[EvidenceRun, None] = {}
    for task, n_all in n_train.items():
        conditions = dict.fromkeys(name for table in sorted(set(tables)) for name in TABLES[table])
        cells = [(name, n_all) for name in conditions]
        if has_curve:
            sizes = reversed(curve_sizes(n_all))
            cells += [(name, size) for size in sizes for name in (BASELINE, ELMO)]
        for name, size in cells:
            for seed in range(1, n_seeds + 1):
                runs[EvidenceRun(task, name, seed, size, n_all)] = None
    return list(runs)


def curve_sizes(n_all: int) -> list[int]:
    """Return increasing numbers of training examples; the last one is all of them."""
    sizes = {round(share * n_all) for share in SHARES if share < 1}
    return [*sorted(size for size in sizes if MIN_EXAMPLES <= size < n_all), n_all]


def condition_features(condition: str, words: Mapping[str, Any]) -> Features:
    """Return the features of a condition; ``words`` are the features that the plan sets."""
    return Features(**{**words, **CONDITIONS[condition]})


def run_options(run: EvidenceRun, fit: FitOptions) -> FitOptions:
    """Return the training options of a run: with less data epochs are shorter, so there are more of them."""
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
    """The result of a run."""

    score: float  # main score of the task, at the best epoch
    scores: Mapping[str, float]
    best_epoch: int
    n_epochs: int
    mixes: Mapping[str, Mapping[str, Any]]  # at the best epoch, by position: shares of the layers, and gamma
    seconds: float  # since the run was started or resumed


@dataclass(frozen=True, eq=False)
class EvidenceSources:
    """The biLM, static vectors and cache of all runs."""

    elmo: Elmo
    elmo_key: str  # identifies the biLM and how it is run
    vectors: Path | None
    vectors_digest: str
    cache: FeatureCache


class RunStore:
    """Trains runs, and keeps their results in a folder."""

    def __init__(self, folder: Path, data: Mapping[str, TaskData], sources: EvidenceSources) -> None:
        self.folder = folder
        self.data = data
        self.sources = sources
        self._static: tuple[str, StaticVectors | None] = ("", None)  # of the last task

    def key(self, run: EvidenceRun) -> str:
        """Hash everything that the result depends on; names of files and tasks are not included."""
        text = json.dumps(self.describe(run), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def describe(self, run: EvidenceRun) -> dict[str, Any]:
        """Return everything that the result depends on."""
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
            "vectors": self.sources.vectors_digest,
        }

    def load(self, run: EvidenceRun) -> RunResult | None:
        """Return the result of a finished run, or None."""
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
            _log.warning("%s: cannot read this result: %s; training the run again", path.name, error)
            return None
        shutil.rmtree(self._training(key), ignore_errors=True)  # left if the run was killed at its end
        return result

    def train(
        self, run: EvidenceRun, *, on_epoch: Callable[[Epoch], None] = lambda epoch: None, show_progress: bool = False
    ) -> RunResult:
        """Train a run, from its last checkpoint if there is one, and keep the result."""
        begin = time.monotonic()
        key, data = self.key(run), self.data[run.task]
        training = self._training(key)
        with _silence(_LABEL_LOG):  # unseen labels were reported when the data was read
            model = TaskModel.train(
                data.task,
                select_examples(run, data),
                data.dev,
                store=self._build_store(run),
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

    def _build_store(self, run: EvidenceRun) -> FeatureStore:
        data, sources = self.data[run.task], self.sources
        if self._static[0] != run.task:
            # other words would only make the table larger
            static = sources.vectors and read_static(sources.vectors, words=data.words, max_words=0)
            self._static = (run.task, static or None)
        features = condition_features(run.condition, data.plan.words)
        return FeatureStore(features, sources.elmo, self._static[1], cache=sources.cache)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _training(self, key: str) -> Path:
        return self.folder / f"{key}.training"


def select_examples(run: EvidenceRun, data: TaskData) -> list[Any]:
    """Return the training examples of a run, in their order; larger runs of a seed include smaller ones."""
    if run.n_examples == len(data.train):
        return list(data.train)
    order = np.random.default_rng((run.seed, len(data.train))).permutation(len(data.train))
    return [data.train[index] for index in sorted(order[: run.n_examples])]


def _sort_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sort names at every depth, as they are in the checkpoints of resumed runs."""
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
