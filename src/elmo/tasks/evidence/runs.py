"""A run and its task's data in, its result out: a file named by all that the result depends on.

So a run is done once, whichever tables it belongs to and however often the command is given; one that was
killed goes on after its last epoch; and a plan that was changed repeats only what the change touches.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.embed.atomic import replacing
from elmo.tasks.evidence.conditions import Run, choice_of, fit_of
from elmo.tasks.evidence.task_data import TaskData
from elmo.tasks.fit import Epoch
from elmo.tasks.task_model import TaskModel
from elmo.tasks.vectors.layer_cache import LayerCache
from elmo.tasks.vectors.static import StaticVectors, read_static
from elmo.tasks.word_sources import WordSources

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

VERSION = 3  # of what a run is: another one repeats all of them
_log = logging.getLogger(__name__)
_UNSEEN = logging.getLogger("elmo.tasks.kinds.labels")


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
    cache: LayerCache


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
        with replacing(self._path(key)) as temporary:
            text = json.dumps(values, ensure_ascii=False, indent=1)
            temporary.write_text(text + "\n", encoding="utf-8", errors="surrogatepass")
        shutil.rmtree(training, ignore_errors=True)
        return result

    def _sources(self, run: Run) -> WordSources:
        data, shared = self.data[run.task], self.sources
        if self._static[0] != run.task:
            # words beyond those of the data would only make the table larger
            words = data.words
            static = shared.vectors and read_static(shared.vectors, wanted=words, max_words=0)
            self._static = (run.task, static or None)
        choice = choice_of(run.condition, data.plan.words)
        return WordSources(choice, shared.elmo, self._static[1], cache=shared.cache)

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
