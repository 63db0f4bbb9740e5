"""Tables and tasks in, the runs that they need out: what each condition is, and how much data a run has.

Peters et al. 2018: Table 1 holds ELMo against none, Table 2 the last layer against all layers and λ against
λ, Table 3 the places where ELMo is given to a task; Figure 1 is of less and less training data.

A run and its task's data in, its result out: a file named by all that the result depends on.

So a run is done once, whichever tables it belongs to and however often the command is given; one that was
killed goes on after its last epoch; and a plan that was changed repeats only what the change touches.
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


def choice_of(condition: str, words: Mapping[str, Any]) -> Features:
    """How words get their vectors in a condition; ``words`` is what a plan says of it."""
    return Features(**{**words, **CONDITIONS[condition]})


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


VERSION = 3  # of what a run is: another one repeats all of them
_log = logging.getLogger(__name__)
_UNSEEN = logging.getLogger("elmo.tasks.kinds.task")


@dataclass(frozen=True)
class RunResult:
    """What a run came to."""

    score: float  # the task's main one, of the best epoch
    scores: Mapping[str, float]
    best_epoch: int
    n_epochs: int
    mixes: Mapping[str, Mapping[str, Any]]  # of the best epoch, by place: shares of the layers, and gamma
    seconds: float  # since it was begun or gone on with

    def to_json(self) -> dict[str, Any]:
        """For its file."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Sources:
    """Where words get their vectors from, in all runs."""

    elmo: Elmo
    elmo_key: str  # names the biLM and how it is run
    vectors: Path | None
    vectors_digest: str
    cache: FeatureCache


class Runs:
    """The runs of one folder."""

    def __init__(self, folder: Path, data: Mapping[str, TaskData], sources: Sources) -> None:
        self.folder = folder
        self.data = data
        self.sources = sources
        self._static: tuple[str, StaticVectors | None] = ("", None)  # of the task that was last at work

    def key(self, run: Run) -> str:
        """A hash of all that the result depends on; the names of files and tasks are not of it."""
        text = json.dumps(self.about(run), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def about(self, run: Run) -> dict[str, Any]:
        """All that the result depends on."""
        data = self.data[run.task]
        choice = choice_of(run.condition, data.plan.words)
        return {
            "version": VERSION,
            "kind": data.plan.kind,
            "task": data.task.to_json(),
            "data": data.digest,
            "n_examples": run.n_examples,
            "words": asdict(choice),
            "fit": asdict(fit_of(run, data.plan.fit)),
            "elmo": None if choice.elmo == "none" else self.sources.elmo_key,
            "vectors": self.sources.vectors_digest,
        }

    def done(self, run: Run) -> RunResult | None:
        """The result of a run that was finished before."""
        key = self.key(run)
        path = self._path(key)
        try:
            values = json.loads(path.read_bytes())
            if values["about"] != json.loads(json.dumps(self.about(run))):
                raise ValueError("it is of another run")
            result = RunResult(**values["result"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("%s: a result that cannot be read, computed again: %s", path.name, error)
            return None
        shutil.rmtree(self._training(key), ignore_errors=True)  # killed just before it was removed
        return result

    def carry_out(
        self, run: Run, *, on_epoch: Callable[[Epoch], None] = lambda epoch: None, show_progress: bool = False
    ) -> RunResult:
        """Train, from the last checkpoint where there is one, and keep the result."""
        begin = time.monotonic()
        key, data = self.key(run), self.data[run.task]
        training = self._training(key)
        with _silent(_UNSEEN):  # what labels dev has beside was told as it was read
            model = TaskModel.train(
                data.task,
                examples_of(run, data),
                data.dev,
                sources=self._sources(run),
                options=fit_of(run, data.plan.fit),
                folder=training,
                on_epoch=on_epoch,
                show_progress=show_progress,
            )
            best = [epoch for epoch in model.epochs if epoch.is_best][-1]
            scores = model.evaluate(data.test) if data.test else best.scores
        result = RunResult(
            score=scores[data.task.main_score],
            scores=_in_order(scores),
            best_epoch=best.epoch,
            n_epochs=len(model.epochs),
            mixes=_in_order(best.mixes),
            seconds=round(time.monotonic() - begin, 2),
        )
        values = {"run": asdict(run), "about": self.about(run), "result": result.to_json()}
        with atomic_file(self._path(key)) as temporary:
            text = json.dumps(values, ensure_ascii=False, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8", errors="surrogatepass")
        shutil.rmtree(training, ignore_errors=True)
        return result

    def _sources(self, run: Run) -> FeatureStore:
        data, shared = self.data[run.task], self.sources
        if self._static[0] != run.task:
            # words beyond those of the data would only make the table larger
            words = data.words
            static = shared.vectors and read_static(shared.vectors, wanted=words, max_words=0)
            self._static = (run.task, static or None)
        choice = choice_of(run.condition, data.plan.words)
        return FeatureStore(choice, shared.elmo, self._static[1], cache=shared.cache)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _training(self, key: str) -> Path:
        return self.folder / f"{key}.training"


def examples_of(run: Run, data: TaskData) -> list[Any]:
    """The run's training examples, in their order: more of them hold the fewer of the same seed."""
    if run.n_examples == len(data.train):
        return list(data.train)
    order = np.random.default_rng((run.seed, len(data.train))).permutation(len(data.train))
    return [data.train[place] for place in sorted(order[: run.n_examples])]


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """Names sorted at every depth: those of a run that was gone on with come from a checkpoint, sorted."""
    return json.loads(json.dumps(values, sort_keys=True))


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    def nothing(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(nothing)
    try:
        yield
    finally:
        logger.removeFilter(nothing)
