"""Read a plan of experiments: the tasks, their files and their options.

A plan is a TOML file::

    [defaults]                       # optional, and all of its keys are optional
    vectors = "$DATA/glove.txt"      # absolute, or relative to the plan; $DATA is an environment variable
    model = "my-elmo"
    seeds = 3                        # number of runs per condition
    fit = {patience = 3}             # training options: fields of FitOptions
    words = {dropout = 0.5}          # feature options: fields of Features, except those that the conditions set

    [ner]                            # a task with any name
    kind = "tagging"
    train = "ner/train.conll.xz"     # a file or a list of files
    dev = "ner/dev.conll.xz"         # selects the best epoch; scored if there is no test file
    test = "ner/test.conll.xz"
    sizes = [500, 3000]              # numbers of training examples in table 4
    max_train = 3000                 # use at most 3,000 examples, spread evenly over the file; also max_dev
    reader = {tags = 3}              # options of the reader; tokenizer = "en" for raw text
    head = {hidden_width = 100}      # options of the head
    fit = {epochs = 15}              # training options of this task, in addition to the defaults
    words = {characters = 32}        # feature options of this task, in addition to the defaults
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from elmo.errors import ConfigError, DataError, ElmoError, raise_all
from elmo.storage.files import format_path, open_regular
from elmo.tasks.data.files import NoFilesError
from elmo.tasks.features.layer import Features
from elmo.tasks.fit import FitOptions
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.kinds.options import find_option_problems, find_unknown_names
from elmo.tasks.kinds.registry import KINDS, build_task, read_examples
from elmo.tasks.kinds.task import example_key
from elmo.text.lines import expand_paths
from elmo.text.tokenizers import load_tokenizer

MAX_BYTES = 1 << 20  # maximum size of a plan
_DEFAULTS = ("model", "vectors", "seeds", "fit", "words")
_TASK_KEYS = ("kind", "train", "dev", "test", "max_train", "max_dev", "sizes", "reader", "head", "fit", "words")
_NOT_FIT = ("seed",)  # not an option of a plan: the runs of a condition have the seeds 1, 2, 3, …
_NOT_WORDS = ("elmo", "top_only", "mix_penalty", "is_bilm_tuned")  # not options of a plan: the conditions set them
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass(frozen=True)
class TaskPlan:
    """One task of a plan.

    Attributes:
        name: Name of the task.
        kind: Kind of task, such as tagging.
        train: Training files.
        dev: Files of held-out examples.
        test: Test files; if there are none, dev is scored.
        reader: Options for reading the files.
        tokenizer: Name of the tokenizer for raw text.
        head: Options of the head; their class depends on the kind.
        fit: Training options.
        words: Options of the word vectors: fields of ``Features``.
        max_train: Maximum number of training examples.
        max_dev: Maximum number of held-out examples.
        sizes: Numbers of training examples for table 4.
    """

    name: str
    kind: str
    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]
    reader: Mapping[str, Any]
    tokenizer: str
    head: Any
    fit: FitOptions
    words: Mapping[str, Any]
    max_train: int | None = None
    max_dev: int | None = None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class EvidencePlan:
    """The tasks of a plan, and default values, which the arguments of ``collect_evidence`` override.

    Attributes:
        path: The plan file, for messages.
        tasks: The tasks.
        model: The biLM; None if the plan names none.
        vectors: The file with static vectors; None if the plan names none.
        seeds: Number of runs per condition; None if the plan states none.
    """

    path: str
    tasks: tuple[TaskPlan, ...]
    model: str | None = None
    vectors: str | None = None
    seeds: int | None = None


def read_plan(path: str | Path, *, only: Collection[str] | None = None) -> EvidencePlan:
    """Read a plan of experiments; raise one ``ConfigError`` that lists all problems.

    Args:
        path: The plan, a TOML file.
        only: Names of the tasks to read; None reads all tasks.

    Example:
        >>> plan = read_plan("examples/evidence.toml")  # doctest: +SKIP
    """
    path = Path(path)
    values = _read_toml(path)
    problems: list[str] = []
    defaults = _as_table(values.pop("defaults", {}), problems, table="defaults") or {}
    reader = _PlanReader(path.parent, defaults, problems)
    reader.check_defaults()
    names = list(values) if only is None else list(dict.fromkeys(only))
    if not values or not names:
        problems.append("expected at least one task (a table such as [ner]); found none")
    for name in names:
        if name not in values:
            problems.append(f"unknown task {name[:40]!r}; this plan has: {', '.join(values)}")
    tasks = [reader.read_task(name, values[name]) for name in names if name in values]
    raise_all(problems, subject=format_path(path), kind=ConfigError)
    return EvidencePlan(
        format_path(path),
        tuple(task for task in tasks if task is not None),
        model=reader.model,
        vectors=reader.vectors,
        seeds=defaults.get("seeds"),
    )


def _read_toml(path: Path) -> dict[str, Any]:
    with open_regular(path, MAX_BYTES) as file:
        raw = file.read()
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # ValueError: also text that is not UTF-8
        raise ConfigError(f"cannot read {format_path(path)} as TOML: {error}") from error


def _as_table(value: Any, problems: list[str], *, table: str) -> Mapping[str, Any] | None:
    if isinstance(value, dict):
        return value
    problems.append(f"[{table}] must be a table; found {value!r:.40}")
    return None


class _PlanReader:
    """Converts the tables of a plan into options, and collects the problems."""

    def __init__(self, folder: Path, defaults: Mapping[str, Any], problems: list[str]) -> None:
        self.folder = folder
        self.defaults = defaults
        self.problems = problems
        self.model: str | None = None
        self.vectors: str | None = None

    def check_defaults(self) -> None:
        """Check the table ``[defaults]``, and read the model and the vectors from it."""
        defaults = self.defaults
        self.problems += find_unknown_names(defaults, _DEFAULTS, table="defaults")
        self._check_count(defaults, "seeds", table="defaults")
        for name, options, without in (("fit", FitOptions, _NOT_FIT), ("words", Features, _NOT_WORDS)):
            table = f"defaults.{name}"
            values = _as_table(defaults.get(name, {}), self.problems, table=table) or {}
            self.problems += find_option_problems(values, options, table=table, without=without)
        if "vectors" in defaults:
            self.vectors = "".join(self._read_paths(defaults["vectors"], "[defaults] vectors")[:1])
        if "model" in defaults:
            path = self._read_path(defaults["model"], "[defaults] model")
            # a model may also be a Hub id
            self.model = path if path and Path(path).exists() else str(defaults["model"])

    def read_task(self, name: str, values: Any) -> TaskPlan | None:
        """Read the table of one task; return None if it has problems."""
        n_problems = len(self.problems)
        table = _as_table(values, self.problems, table=name)
        if table is None:
            return None
        self.problems += find_unknown_names(table, _TASK_KEYS, table=name)
        kind = str(table.get("kind"))
        if kind not in KINDS:
            self.problems.append(f"[{name}] kind must be one of {', '.join(KINDS)}; found {kind[:40]!r}")
        files = {
            part: self._read_paths(table.get(part), f"[{name}] {part}")
            for part in ("train", "dev", "test")
            if part != "test" or part in table
        }
        for limit in ("max_train", "max_dev"):
            self._check_count(table, limit, table=name)
        sizes = self._read_sizes(table.get("sizes", []), table=name)
        fit = self._read_options(table, "fit", FitOptions, name=name, without=_NOT_FIT)
        words = self._read_options(table, "words", Features, name=name, without=_NOT_WORDS)
        head, reader, tokenizer = None, {}, "whitespace"
        if kind in KINDS:
            head = self._read_options(table, "head", KINDS[kind][1], name=name)
            reader, tokenizer = self._read_reader(kind, table.get("reader", {}), name=name)
        if len(self.problems) > n_problems or fit is None or words is None:
            return None
        return TaskPlan(
            name=name,
            kind=kind,
            train=files["train"],
            dev=files["dev"],
            test=files.get("test", ()),
            reader=reader,
            tokenizer=tokenizer,
            head=head,
            fit=fit,
            words={name: value for name, value in asdict(words).items() if name not in _NOT_WORDS},
            max_train=table.get("max_train"),
            max_dev=table.get("max_dev"),
            sizes=sizes,
        )

    def _read_sizes(self, value: Any, *, table: str) -> tuple[int, ...]:
        sizes = value if isinstance(value, list) else [value]
        if all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
            return tuple(sorted(set(sizes)))
        self.problems.append(f"[{table}] sizes must be a list of integers of at least 1; found {value!r:.40}")
        return ()

    def _check_count(self, values: Mapping[str, Any], name: str, *, table: str) -> None:
        value = values.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            self.problems.append(f"[{table}] {name} must be an integer of at least 1; found {value!r:.40}")

    def _read_options(
        self, values: Mapping[str, Any], part: str, options: type[Any], *, name: str, without: Collection[str] = ()
    ) -> Any:
        """Create options from a table of the task and the table with the same name in the defaults."""
        table = f"{name}.{part}"
        own: list[str] = []
        chosen = _as_table(values.get(part, {}), own, table=table) or {}
        own += find_option_problems(chosen, options, table=table, without=without)
        self.problems += own
        defaults = self.defaults.get(part, {})
        defaults = defaults if isinstance(defaults, dict) and part in _DEFAULTS else {}
        if own or find_option_problems(defaults, options, table=table, without=without):
            return None
        try:
            return options(**{**defaults, **chosen})
        except ElmoError as error:
            self.problems.append(f"[{table}]: {error}")
            return None

    def _read_reader(self, kind: str, value: Any, *, name: str) -> tuple[dict[str, Any], str]:
        """Read the options of the reader for a kind of task, and the name of the tokenizer."""
        table = f"{name}.reader"
        options = dict(_as_table(value, self.problems, table=table) or {})
        tokenizer = str(options.pop("tokenizer", "whitespace"))
        invalid = [key for key, option in options.items() if not isinstance(option, str | int)]
        for key in invalid:
            self.problems.append(
                f"[{table}] {key} must be a string, a number, true or false; found {options[key]!r:.40}"
            )
        try:
            load_tokenizer(tokenizer)
        except ElmoError as error:
            self.problems.append(f"[{table}] {error}")
        if not invalid:
            try:
                read_examples(kind, (), options=options)
            except NoFilesError:  # raised after all options were checked: they are valid
                pass
            except ConfigError as error:
                self.problems.append(f"[{table}] {error}")
        return options, tokenizer

    def _read_paths(self, value: Any, where: str) -> tuple[str, ...]:
        """Read one or more paths of files, folders or globs; they are relative to the folder of the plan."""
        paths: list[str] = []
        for item in value if isinstance(value, list) and value else [value]:
            path = self._read_path(item, where)
            if path is None:
                continue
            try:
                expand_paths([path])
            except DataError as error:
                self.problems.append(f"{where}: {error}")
            paths.append(path)
        return tuple(paths)

    def _read_path(self, value: Any, where: str) -> str | None:
        if not isinstance(value, str) or not value:
            self.problems.append(f"{where} must be a path; found {'nothing' if value is None else repr(value)[:40]}")
            return None
        names = (name for match in _VARIABLE.findall(value) for name in match if name)
        if unset := [name for name in names if name not in os.environ]:
            self.problems.append(f"{where}: {value[:80]!r} uses the environment variable ${unset[0]}, which is not set")
            return None
        path = Path(_VARIABLE.sub(lambda match: os.environ[match[1] or match[2]], value)).expanduser()
        return str(self.folder / path)


@dataclass(frozen=True, eq=False)
class TaskData:
    """The examples of a task, which all of its runs share; their locations are removed."""

    plan: TaskPlan
    task: Any  # the task with its labels and options
    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]  # empty: dev is scored
    digest: str  # hash of the examples
    left_out: Mapping[str, int]  # number of skipped examples by reason

    @property
    def words(self) -> set[str]:
        """All distinct words of the examples."""
        examples = (*self.train, *self.dev, *self.test)
        return {word for example in examples for sentence in example.sentences for word in sentence}


def read_tasks(plan: EvidencePlan) -> dict[str, TaskData]:
    """Read the examples of all tasks; raise one ``DataError`` that lists all problems."""
    data: dict[str, TaskData] = {}
    problems: list[str] = []
    for task in plan.tasks:
        try:
            data[task.name] = read_task(task)
        except ElmoError as error:
            problems.append(f"[{task.name}] {error}")
    raise_all(problems, subject=plan.path, kind=DataError)
    return data


def read_task(plan: TaskPlan) -> TaskData:
    """Read the examples of one task."""
    tokenize = load_tokenizer(plan.tokenizer)
    left_out: Counter[str] = Counter()
    parts: dict[str, list[Any]] = {"test": []}
    for name, paths, limit in (
        ("train", plan.train, plan.max_train),
        ("dev", plan.dev, plan.max_dev),
        ("test", plan.test, None),
    ):
        if paths:
            labeled = read_examples(plan.kind, paths, tokenize=tokenize, options=plan.reader)
            parts[name] = _spread(labeled.examples, limit)
            left_out.update(labeled.left_out)
            if not parts[name]:
                raise DataError(f"{name}: expected examples; found none")
    if plan.sizes and plan.sizes[-1] > len(parts["train"]):
        n_train = f"{len(parts['train']):,}"
        raise ConfigError(f"sizes must be at most the number of training examples, {n_train}; found {plan.sizes[-1]:,}")
    task = build_task(plan.kind, parts["train"], plan.head)
    for name in ("dev", "test"):
        if parts[name]:
            task.check(parts[name])
    try:
        task.build_head(FeatureWidths(4, 4))
    except (ValueError, RuntimeError, ZeroDivisionError) as error:
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"head: cannot build a network with these options: {problem}") from error
    digest = _digest(parts)
    train, dev, test = (
        [replace(example, location=None) for example in parts[name]] for name in ("train", "dev", "test")
    )
    return TaskData(plan, task, train, dev, test, digest=digest, left_out=left_out)


def _spread(examples: Sequence[Any], limit: int | None) -> list[Any]:
    """Return at most ``limit`` examples, spread evenly over the corpus, because corpora are often sorted by genre."""
    if limit is None or len(examples) <= limit:
        return list(examples)
    return [examples[k * len(examples) // limit] for k in range(limit)]


def _digest(parts: Mapping[str, Sequence[Any]]) -> str:
    digest = hashlib.sha256()
    for name, examples in parts.items():
        digest.update(f"{name} {len(examples)}\n".encode())
        for example in examples:
            digest.update(example_key(example) + b"\n")
    return digest.hexdigest()
