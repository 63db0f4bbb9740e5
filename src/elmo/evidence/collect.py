"""A plan, a model and a folder in, the evidence out: every run that is not there yet, then the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmo.errors import ConfigError, raise_all
from elmo.evidence.plan import Plan, TaskData, read_tasks
from elmo.evidence.runs import Run, RunResult, Runs, Sources, choice_of, wanted_runs
from elmo.evidence.tables import Evidence, TaskAbout, curves_of, lines_of, mixes_of, tables_of
from elmo.storage import checksums
from elmo.storage.atomic import atomic_file, cannot_write, hold_lock
from elmo.tasks.features.encoders import ElmoEncoder
from elmo.tasks.features.store import FeatureCache
from elmo.tasks.fit import Epoch

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

DEFAULT_SEEDS = 3
JSON_NAME, TEXT_NAME = "evidence.json", "evidence.txt"


@dataclass(frozen=True)
class RunReport:
    """A run that is done, and how far all of them are."""

    run: Run
    result: RunResult
    score: str  # the score's name
    is_new: bool  # not from an earlier time
    n_done: int
    n_all: int
    seconds_left: float  # an estimate


def collect(
    plan: Plan,
    out: Path,
    *,
    elmo: Callable[[], Elmo],
    vectors: Path | None = None,
    n_seeds: int | None = None,
    tables: Collection[int] = (1, 2, 3),
    has_curve: bool = False,
    cache: Path | None = None,
    on_run: Callable[[RunReport], None] = lambda report: None,
    on_epoch: Callable[[Run, Epoch], None] = lambda run, epoch: None,
    show_progress: bool = False,
) -> Evidence:
    """Carry out all runs that are not in ``out`` yet, and write ``evidence.json`` and ``evidence.txt`` there.

    ``elmo`` gives the model, once the data is known to be good; ``vectors`` are static ones, those of the
    plan by default. Layers are kept in ``cache``, by default in ``out``.
    """
    vectors = vectors or (Path(plan.vectors) if plan.vectors else None)
    n_seeds = n_seeds or plan.seeds or DEFAULT_SEEDS
    _check_words(plan, vectors)
    wanted_runs({}, tables=tables, has_curve=has_curve, n_seeds=n_seeds)  # mistakes before all reading
    try:
        (out / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error
    with hold_lock(out / ".lock", subject=out):
        digest = "" if vectors is None else checksums.sha256(vectors)
        data = read_tasks(plan)
        model = elmo()
        sources = Sources(model, ElmoEncoder(model).key, vectors, digest, FeatureCache(cache or out / "layers"))
        runs = Runs(out / "runs", data, sources)
        sizes = {name: len(one.train) for name, one in data.items()}
        wanted = wanted_runs(sizes, tables=tables, has_curve=has_curve, n_seeds=n_seeds)
        results: dict[Run, RunResult] = {}
        before = {run: result for run in wanted if (result := runs.done(run)) is not None}
        for run in wanted:
            kept = runs.done(run)  # asked again: two tasks may be the same but in name
            results[run] = kept or runs.carry_out(
                run, on_epoch=partial(on_epoch, run), show_progress=show_progress
            )
            left = _seconds_left(wanted[len(results) :], before, results)
            score = data[run.task].task.main_score
            on_run(RunReport(run, results[run], score, kept is None, len(results), len(wanted), left))
        evidence = Evidence(
            tasks=tuple(_about(one) for one in data.values()),
            n_seeds=n_seeds,
            sources={"elmo": sources.elmo_key, "vectors": digest},
            tables=tables_of(results, list(data), list(tables)),
            curves=curves_of(results, list(data)) if has_curve else (),
            mixes=mixes_of(results),
            runs=_listed(runs, results),
        )
        _write(evidence, out)
    return evidence


def _check_words(plan: Plan, vectors: Path | None) -> None:
    """Without ELMo at the input there must be something else."""
    problems = []
    for one in plan.tasks:
        if vectors is None and not choice_of("baseline", one.words).characters:
            problems.append(
                f"[{one.name}] has no vectors for its baseline: name static ones (--vectors, or vectors in "
                "[defaults]), or let characters in its words be more than 0"
            )
    raise_all(problems, subject=plan.path, kind=ConfigError)


def _seconds_left(
    left: list[Run], before: Mapping[Run, RunResult], results: Mapping[Run, RunResult]
) -> float:
    """By the mean of the task's runs of that size; else of that task; else of all."""
    known = {**before, **results}
    total = 0.0
    for run in left:
        if run in before:
            continue
        of_task = [(one.n_examples, known[one].seconds) for one in known if one.task == run.task]
        alike = [seconds for size, seconds in of_task if size == run.n_examples]
        some = alike or [seconds for _, seconds in of_task] or [one.seconds for one in known.values()]
        total += float(np.mean(some))
    return total


def _about(data: TaskData) -> TaskAbout:
    return TaskAbout(
        task=data.plan.name,
        kind=data.plan.kind,
        score=data.task.main_score,
        scored_on="test" if data.test else "dev",
        n_train=len(data.train),
        n_scored=len(data.test or data.dev),
        left_out=data.left_out,
    )


def _listed(runs: Runs, results: Mapping[Run, RunResult]) -> tuple[dict[str, Any], ...]:
    """Without the time that runs took, which is never the same."""
    found = []
    for run, result in results.items():
        values = {name: value for name, value in result.to_json().items() if name != "seconds"}
        about = {"task": run.task, "condition": run.condition, "seed": run.seed, "n_examples": run.n_examples}
        found.append({"key": runs.key(run), **about, **values})
    return tuple(found)


def _write(evidence: Evidence, out: Path) -> None:
    texts = {
        JSON_NAME: json.dumps(evidence.to_json(), ensure_ascii=False, indent=1),
        TEXT_NAME: "\n".join(lines_of(evidence)),
    }
    for name, text in texts.items():
        with atomic_file(out / name) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace", newline="\n")
