"""Collect the evidence for a plan: train the runs that are missing, then build the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, raise_all
from elmo.evidence.plan import EvidencePlan, TaskData, read_plan, read_tasks
from elmo.evidence.runs import SIZES, EvidenceRun, EvidenceSources, RunResult, RunStore, list_runs
from elmo.evidence.tables import (
    Evidence,
    TaskSummary,
    build_curves,
    build_mixes,
    build_size_tables,
    build_tables,
    format_evidence,
)
from elmo.storage import files
from elmo.storage.atomic import atomic_file, hold_lock, make_folder
from elmo.tasks.features.store import ElmoEncoder, FeatureCache
from elmo.tasks.fit import Epoch

DEFAULT_SEEDS = 3
JSON_NAME, TEXT_NAME = "evidence.json", "evidence.txt"


@dataclass(frozen=True)
class RunReport:
    """The result of a finished run, and the progress of the whole plan.

    Attributes:
        run: The run.
        result: Its result.
        score: Name of the main score of the task.
        is_new: Whether this call trained the run; false if the result was read from disk.
        n_done: Number of finished runs.
        n_all: Number of all runs.
        seconds_left: Estimated time until all runs are finished.
    """

    run: EvidenceRun
    result: RunResult
    score: str
    is_new: bool
    n_done: int
    n_all: int
    seconds_left: float


def collect_evidence(
    plan: str | Path | EvidencePlan,
    out: str | Path,
    *,
    model: str | Path | Elmo | None = None,
    vectors: str | Path | None = None,
    seeds: int | None = None,
    tables: Collection[int] = (1, 2, 3),
    curve: bool = False,
    tasks: Sequence[str] | None = None,
    cache: str | Path | None = None,
    on_run: Callable[[RunReport], None] | None = None,
    on_epoch: Callable[[EvidenceRun, Epoch], None] | None = None,
    show_progress: bool = False,
) -> Evidence:
    """Train the runs of a plan and write the results to ``evidence.json`` and ``evidence.txt`` in the folder ``out``.

    Runs that are already finished are not trained again, so a call that was interrupted can be repeated to resume.

    Args:
        plan: A plan file in TOML, or the result of ``read_plan``.
        out: Folder for runs and results.
        model: The biLM; None uses the model of the plan, or the bundled model.
        vectors: File with static word vectors; None uses the file of the plan.
        seeds: Number of runs per condition; None uses the number of the plan, or 3.
        tables: Numbers of the tables of the paper to repeat: 1, 2 and 3. Table 4 compares random vectors, static
            vectors and ELMo, for the numbers of training examples in ``sizes`` of a task.
        curve: Whether to train on fewer examples as well (Figure 1).
        tasks: Names of the tasks to run; None runs all tasks of the plan.
        cache: Folder for computed layers; None uses ``out/layers``.
        on_run: Function to call after each run.
        on_epoch: Function to call after each epoch of a run.
        show_progress: Show progress bars.

    Example:
        >>> evidence = collect_evidence("examples/evidence.toml", "evidence", tasks=["pos"])  # doctest: +SKIP
    """
    plan = plan if isinstance(plan, EvidencePlan) else read_plan(plan, only=tasks)
    out = Path(out)
    vectors = Path(vectors) if vectors else Path(plan.vectors) if plan.vectors else None
    n_seeds = seeds or plan.seeds or DEFAULT_SEEDS
    _check_baselines(plan, vectors)
    list_runs({}, tables=tables, has_curve=curve, n_seeds=n_seeds)  # report mistakes before data is read
    compared = {task.name: task.sizes for task in plan.tasks if task.sizes}
    if SIZES in tables and not compared:
        raise ConfigError(
            f"{plan.path}: table {SIZES} needs a task with sizes, such as sizes = [500, 3000]; found none"
        )
    make_folder(out / "runs")
    if cache is None:
        make_folder(out / "layers")
    with hold_lock(out / ".lock", subject=out):
        digest = "" if vectors is None else files.compute_sha256(vectors)
        data = read_tasks(plan)
        elmo = model if isinstance(model, Elmo) else Elmo.from_pretrained(model or plan.model)
        layers = FeatureCache(cache or out / "layers")
        store = RunStore(out / "runs", data, EvidenceSources(elmo, ElmoEncoder(elmo).key, vectors, digest, layers))
        sizes = {name: len(task.train) for name, task in data.items()}
        runs = list_runs(sizes, tables=tables, has_curve=curve, n_seeds=n_seeds, sizes=compared)
        earlier = {run: result for run in runs if (result := store.load(run)) is not None}
        results: dict[EvidenceRun, RunResult] = {}
        for run in runs:
            kept = store.load(run)  # load again: an identical task with another name may have trained it
            watch = None if on_epoch is None else partial(on_epoch, run)
            results[run] = kept or store.train(run, on_epoch=watch, show_progress=show_progress)
            if on_run is not None:
                seconds_left = _estimate_seconds(runs[len(results) :], earlier, results)
                score = data[run.task].task.main_score
                on_run(RunReport(run, results[run], score, kept is None, len(results), len(runs), seconds_left))
        evidence = Evidence(
            tasks=tuple(_summarize_task(task) for task in data.values()),
            n_seeds=n_seeds,
            sources={"elmo": store.sources.elmo_key, "vectors": digest},
            tables=build_tables(results, list(data), sorted(set(tables) - {SIZES})),
            sizes=build_size_tables(results, compared) if SIZES in tables else (),
            curves=build_curves(results, list(data)) if curve else (),
            mixes=build_mixes(results),
            runs=_list_results(store, results),
        )
        _write(evidence, out)
    return evidence


def _check_baselines(plan: EvidencePlan, vectors: Path | None) -> None:
    """Raise ``ConfigError`` if the baseline of a task has no word vectors."""
    problems = [
        f"[{task.name}] needs word vectors for its baseline without ELMo: use static vectors (--vectors, or vectors in "
        "[defaults]), or set characters in words to more than 0"
        for task in plan.tasks
        if vectors is None and not task.words["characters"]
    ]
    raise_all(problems, subject=plan.path, kind=ConfigError)


def _estimate_seconds(
    left: Sequence[EvidenceRun], earlier: Mapping[EvidenceRun, RunResult], results: Mapping[EvidenceRun, RunResult]
) -> float:
    """Estimate the time of the runs ``left`` from runs of the same task and size, else of the same task, else all."""
    known = {**earlier, **results}
    total = 0.0
    for run in left:
        if run in earlier:
            continue
        of_task = [(other.n_examples, known[other].seconds) for other in known if other.task == run.task]
        of_size = [seconds for size, seconds in of_task if size == run.n_examples]
        all_runs = [result.seconds for result in known.values()]
        total += float(np.mean(of_size or [seconds for _, seconds in of_task] or all_runs))
    return total


def _summarize_task(data: TaskData) -> TaskSummary:
    return TaskSummary(
        task=data.plan.name,
        kind=data.plan.kind,
        score=data.task.main_score,
        scored_on="test" if data.test else "dev",
        n_train=len(data.train),
        n_scored=len(data.test or data.dev),
        left_out=data.left_out,
    )


def _list_results(store: RunStore, results: Mapping[EvidenceRun, RunResult]) -> tuple[dict[str, Any], ...]:
    """List the results of all runs, without their times, which differ between repetitions."""
    listed = []
    for run, result in results.items():
        about = {"key": store.key(run), **asdict(run), **asdict(result)}
        listed.append({name: value for name, value in about.items() if name not in ("n_all", "seconds")})
    return tuple(listed)


def _write(evidence: Evidence, out: Path) -> None:
    texts = {
        JSON_NAME: json.dumps(evidence.to_json(), ensure_ascii=False, indent=1),
        TEXT_NAME: "\n".join(format_evidence(evidence)),
    }
    for name, text in texts.items():
        with atomic_file(out / name) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8", errors="backslashreplace", newline="\n")
