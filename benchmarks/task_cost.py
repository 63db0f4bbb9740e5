"""What does learning a task cost? Seconds an epoch with and without kept layers, a whole run, and its memory.

usage: task_cost.py PLAN.toml VECTORS [--model MODEL] [--tasks NAME …] [--json FILE]

PLAN.toml is one of `elmo evidence`. Each of its tasks is learned in a process of its own, ELMo at the input
beside the static vectors: two epochs whose layers are computed once and kept on disk, then two whose layers
are computed in every batch. An epoch is counted with its held-out score, as it is in use; the first of each
is left out, so that filling the cache, which is shown beside, is not in the figures. A run takes at most
the filling and all epochs of the plan: most stop earlier. Peak memory is that of the process with the cache.
Without arguments two made-up tasks of tags with the bundled model.
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
from elmo.tasks import FeatureCache, TaskModel, Features, FeatureStore, read_static

Times = dict[str, float]


@dataclass(frozen=True)
class Job:
    """A task of a plan, with or without a place to keep layers at."""

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
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        if options.plan is None:
            options.plan = made_up_plan(Path(place))
        os.environ.setdefault("VECTORS", str(options.vectors))
        names = [one.name for one in read_plan(options.plan, only=options.tasks).tasks]
        print(
            f"{'':14}{'filling':>9}{'kept':>9}{'computed':>10}{'ratio':>8}{'run, min':>10}{'memory':>10}"
            "   seconds an epoch"
        )
        found: dict[str, Times] = {}
        for name in names:
            times: Times = {}
            for cache in (Path(place) / f"layers-{name}", None):
                times |= _alone(Job(options.plan, name, options.vectors, options.model, cache))
            found[name] = times
            ratio = times["computed"] / times["kept"]
            figures = f"{times['filling']:9.1f}{times['kept']:9.1f}{times['computed']:10.1f}{ratio:8.1f}"
            print(f"{name:14}{figures}{times['run'] / 60:10.1f}{times['memory']:7.2f} GB", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _alone(job: Job) -> Times:
    """In a process of its own, so that its memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_learned, (job,))


def _learned(job: Job) -> Times:
    """Two epochs; the second one's seconds."""
    data = read_task(read_plan(job.plan, only=[job.task]).tasks[0])
    static = read_static(job.vectors, words=data.words, max_words=0) if job.vectors else None
    elmo = Elmo.from_pretrained(job.model)
    cache = FeatureCache(job.cache)
    sources = FeatureStore(Features(elmo="input"), elmo, static, cache=cache)
    began = time.monotonic()
    sentences = [sentence for example in (*data.train, *data.dev) for sentence in example.sentences]
    sources.of(sentences)
    filled = time.monotonic() - began
    ends: list[float] = []
    fit = replace(data.plan.fit, epochs=2, patience=2)
    TaskModel.train(
        data.task, data.train, data.dev, store=sources, options=fit,
        on_epoch=lambda epoch: ends.append(time.monotonic()),
    )  # fmt: skip
    if job.cache is None:
        return {"computed": ends[1] - ends[0]}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    kept = ends[1] - ends[0]
    run = filled + data.plan.fit.epochs * kept
    return {"filling": filled, "kept": kept, "run": run, "memory": memory}


def made_up_plan(place: Path) -> Path:
    """Tags that follow from the words, and tags that mark spans."""
    chance = random.Random(0)
    lines: dict[str, list[str]] = {"tags": [], "spans": []}
    for _ in range(200):
        words = [
            chance.choice(("the", "a", "red", "car", "house", "sees", "likes", "Ann", "Bob"))
            for _ in range(12)
        ]
        lines["tags"] += [f"{word}\t{'NAME' if word[0].isupper() else 'WORD'}" for word in words] + [""]
        lines["spans"] += [f"{word}\t{'B-PER' if word[0].isupper() else 'O'}" for word in words] + [""]
    plan = []
    for name, rows in lines.items():
        path = place / f"{name}.conll"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        plan.append(f'[{name}]\nkind = "tagging"\ntrain = "{path}"\ndev = "{path}"\n')
    (place / "plan.toml").write_text("\n".join(plan), encoding="utf-8")
    return place / "plan.toml"


if __name__ == "__main__":
    main()
