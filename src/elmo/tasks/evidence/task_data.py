"""A task of a plan in, its examples and what they set to learn out, with a hash of them all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elmo.errors import ConfigError, DataError, ElmoError, raise_all
from elmo.tasks.evidence.plan import Plan, TaskPlan
from elmo.tasks.heads.sentence_vectors import Widths
from elmo.tasks.kinds.by_name import task_class
from elmo.tasks.reading import read_examples
from elmo.text.tokens import tokenizer


@dataclass(frozen=True, eq=False)
class TaskData:
    """What all runs of a task share; its examples no longer know where they stood."""

    plan: TaskPlan
    task: Any  # labels and options, of all training examples
    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]  # (): dev is scored
    digest: str
    left_out: Mapping[str, int]  # examples, by reason

    @property
    def words(self) -> set[str]:
        """All that occur."""
        parts = (*self.train, *self.dev, *self.test)
        return {word for example in parts for sentence in example.sentences for word in sentence}


def read_tasks(plan: Plan) -> dict[str, TaskData]:
    """The examples of all tasks; every problem of theirs is told at once."""
    found: dict[str, TaskData] = {}
    problems: list[str] = []
    for one in plan.tasks:
        try:
            found[one.name] = read_task(one)
        except ElmoError as error:
            problems.append(f"[{one.name}] {error}")
    raise_all(problems, subject=plan.path, kind=DataError)
    return found


def read_task(plan: TaskPlan) -> TaskData:
    """The examples of one task."""
    cut = tokenizer(plan.tokenizer)
    left_out: dict[str, int] = {}
    parts: dict[str, list[Any]] = {"test": []}
    for name, paths, limit in (
        ("train", plan.train, plan.max_train),
        ("dev", plan.dev, plan.max_dev),
        ("test", plan.test, None),
    ):
        if paths:
            reading = read_examples(plan.kind, paths, tokenize=cut, options=plan.reader)
            parts[name] = _spread(reading.examples, limit)
            for reason, n in reading.left_out.items():
                left_out[reason] = left_out.get(reason, 0) + n
            if not parts[name]:
                raise DataError(f"{name}: expected examples, found none")
    task: Any = task_class(plan.kind)
    task = task.of(parts["train"], plan.head)
    for name in ("dev", "test"):
        if parts[name]:
            task.check(parts[name])
    try:
        task.head(Widths(4, 4))
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"[{plan.name}.head]: no network can be made of it: {reason}") from error
    parts = {name: [replace(example, place=None) for example in some] for name, some in parts.items()}
    return TaskData(
        plan, task, parts["train"], parts["dev"], parts["test"], digest=_digest(parts), left_out=left_out
    )


def _spread(examples: Sequence[Any], limit: int | None) -> list[Any]:
    """At most ``limit``, from everywhere in the file: corpora are often in order of genre."""
    if limit is None or len(examples) <= limit:
        return list(examples)
    return [examples[k * len(examples) // limit] for k in range(limit)]


def _digest(parts: Mapping[str, Sequence[Any]]) -> str:
    digest = hashlib.sha256()
    for name, examples in parts.items():
        digest.update(f"{name} {len(examples)}\n".encode())
        for example in examples:
            digest.update(repr(example).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
