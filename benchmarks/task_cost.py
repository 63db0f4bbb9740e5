"""Measure the cost of training tasks: seconds per epoch with and without the feature cache, and memory.

usage: task_cost.py PLAN.toml VECTORS [--model MODEL] [--tasks NAME …] [--json FILE]

PLAN.toml is a plan of `elmo evidence`. Each of its tasks is trained in its own process, with ELMo at the
input and static vectors: two epochs with cached layers, then two epochs that compute layers in every batch.
An epoch includes its held-out score. The first epoch is not counted; the time to fill the cache is shown
separately. "run" is an upper bound: filling the cache and all epochs of the plan, though most runs stop
earlier. Memory is the peak of the process with the cache. Without arguments, two synthetic tagging tasks are
trained with the bundled model.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from elmo import Elmo
from elmo.evidence.plan import read_plan, read_task
from elmo.tasks import FeatureCache, Features, FeatureStore, TaskModel, read_static

Times = dict[str, float]


@dataclass(frozen=True)
class Job:
    """A task of a plan, with or without a cache folder."""

    plan: Path
    task: str
    vectors: Path | None
    model: str | None
    cache: Path | None


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("plan", type=Path, nargs="?")
    parser.add_argument("vectors", type=Path, nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--tasks", nargs="+")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        if options.plan is None:
            options.plan = synthetic_plan(Path(folder))
        os.environ.setdefault("VECTORS", str(options.vectors))
        names = [task.name for task in read_plan(options.plan, only=options.tasks).tasks]
        print(
            f"{'':14}{'filling':>9}{'cached':>9}{'computed':>10}{'ratio':>8}{'run, min':>10}{'memory':>10}"
            "   seconds per epoch"
        )
        results: dict[str, Times] = {}
        for name in names:
            times: Times = {}
            for cache in (Path(folder) / f"layers-{name}", None):
                times |= run_in_process(Job(options.plan, name, options.vectors, options.model, cache))
            results[name] = times
            ratio = times["computed"] / times["kept"]
            figures = f"{times['filling']:9.1f}{times['kept']:9.1f}{times['computed']:10.1f}{ratio:8.1f}"
            print(f"{name:14}{figures}{times['run'] / 60:10.1f}{times['memory']:7.2f} GB", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def run_in_process(job: Job) -> Times:
    """Run a job in a new process, so that its peak memory can be measured."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (job,))


def measure(job: Job) -> Times:
    """Train two epochs and time the second one."""
    data = read_task(read_plan(job.plan, only=[job.task]).tasks[0])
    static = read_static(job.vectors, words=data.words, max_words=0) if job.vectors else None
    elmo = Elmo.from_pretrained(job.model)
    cache = FeatureCache(job.cache)
    store = FeatureStore(Features(elmo="input"), elmo, static, cache=cache)
    begin = time.monotonic()
    sentences = [sentence for example in (*data.train, *data.dev) for sentence in example.sentences]
    store.prepare(sentences)
    filled = time.monotonic() - begin
    ends: list[float] = []
    fit = replace(data.plan.fit, epochs=2, patience=2)
    TaskModel.train(
        data.task, data.train, data.dev, store=store, options=fit,
        on_epoch=lambda epoch: ends.append(time.monotonic()),
    )  # fmt: skip
    if job.cache is None:
        return {"computed": ends[1] - ends[0]}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    kept = ends[1] - ends[0]
    run = filled + data.plan.fit.epochs * kept
    return {"filling": filled, "kept": kept, "run": run, "memory": memory}


def synthetic_plan(folder: Path) -> Path:
    """Write a plan with two tagging tasks: tags of words, and tags that mark spans."""
    rng = random.Random(0)
    lines: dict[str, list[str]] = {"tags": [], "spans": []}
    for _ in range(200):
        words = [rng.choice(("the", "a", "red", "car", "house", "sees", "likes", "Ann", "Bob")) for _ in range(12)]
        lines["tags"] += [f"{word}\t{'NAME' if word[0].isupper() else 'WORD'}" for word in words] + [""]
        lines["spans"] += [f"{word}\t{'B-PER' if word[0].isupper() else 'O'}" for word in words] + [""]
    plan = []
    for name, rows in lines.items():
        path = folder / f"{name}.conll"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        plan.append(f'[{name}]\nkind = "tagging"\ntrain = "{path}"\ndev = "{path}"\n')
    (folder / "plan.toml").write_text("\n".join(plan), encoding="utf-8")
    return folder / "plan.toml"


if __name__ == "__main__":
    main()
