"""A table of a plan and the options that it sets in, all that is wrong with it out: names and types.

The same tables may be given in a command line, value by value: ``head.max_span_width=12``.

A plan in TOML in, the tasks of which evidence is gathered out: files, how each is read and learned.

::

    [defaults]                       # all of it may be left out
    vectors = "$DATA/glove.txt"      # absolute, or from the plan's folder; $NAMES are the environment's
    model = "my-elmo"
    seeds = 3
    fit = {patience = 3}             # FitOptions
    words = {dropout = 0.5}          # Features, but where ELMo is and how it is mixed

    [ner]                            # a name of your own
    kind = "tagging"
    train = "ner/train.conll.xz"     # or a list of files
    dev = "ner/dev.conll.xz"         # stops training and, without a test, is what is scored
    test = "ner/test.conll.xz"
    max_train = 3000                 # examples, from all over the file; max_dev likewise
    reader = {tags = 3}              # the kind's reader; tokenizer = "en" for text that is not tokenised
    head = {hidden_width = 100}      # the kind's head
    fit = {epochs = 15}              # beside those of the defaults
    words = {characters = 32}

A task of a plan in, its examples and what they set to learn out, with a hash of them all.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from elmo.errors import ConfigError, DataError, ElmoError, raise_all
from elmo.storage.files import format_path, open_regular
from elmo.tasks.data.files import NoFilesError
from elmo.tasks.features.layer import Features
from elmo.tasks.fit import FitOptions
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.kinds.registry import KINDS, read_examples, task_class
from elmo.text.lines import expand_paths
from elmo.text.tokenizers import load_tokenizer

_SPOKEN = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def unknown_names(given: Iterable[str], known: Collection[str], *, place: str) -> list[str]:
    """A problem for each name that is not known."""
    listed = ", ".join(known)
    return [f"[{place}] has no {name[:40]!r}; it has {listed}" for name in given if name not in known]


def table_of(given: Any, *, place: str) -> tuple[Mapping[str, Any], list[str]]:
    """A table as it is; anything else as an empty one, with the problem."""
    if isinstance(given, dict):
        return given, []
    return {}, [f"[{place}]: expected a table, found {given!r:.40}"]


def option_problems(
    given: Mapping[str, Any], options: type[Any], *, place: str, without: Collection[str] = ()
) -> list[str]:
    """What is wrong with values for a dataclass of options, ``without`` those that a plan does not set."""
    types = get_type_hints(options)
    known = [one.name for one in fields(options) if one.name not in without]
    found = unknown_names(given, known, place=place)
    for name, value in given.items():
        if name in known and not _fits(value, types[name]):
            found.append(f"[{place}] {name}: expected {_spoken(types[name])}, found {value!r:.40}")
    return found


def assignments_of(
    given: Iterable[str], tables: Mapping[str, type[Any]]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """``table.name=value``, as often as you like, as values by table; and what is wrong with them."""
    found: dict[str, dict[str, Any]] = {table: {} for table in tables}
    problems: list[str] = []
    for one in given:
        place, equals, text = one.partition("=")
        table, _, name = place.strip().partition(".")
        if not equals or not name or table not in tables:
            problems.append(
                f"expected TABLE.NAME=VALUE with one of the tables {', '.join(tables)}, found {one[:60]!r}"
            )
        elif name in found[table]:
            problems.append(f"[{table}] {name}: expected one value, found a second, {text[:40]!r}")
        else:
            found[table][name] = _value(text.strip())
    for table, options in tables.items():
        problems += option_problems(found[table], options, place=table)
    return found, problems


def _value(text: str) -> Any:
    """As TOML has it; text needs no quotation marks, nor a number a digit before its point."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        values = {}
    if len(values) == 1:
        return values["value"]
    try:
        return float(text)
    except ValueError:
        return text


def _fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(wanted))
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if isinstance(value, bool):  # which is a number to Python
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _spoken(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(_spoken(one) for one in get_args(wanted) if one is not type(None))
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(str, get_args(wanted)))}"
    return _SPOKEN.get(wanted, str(wanted))


MAX_BYTES = 1 << 20  # of a plan
_DEFAULTS = ("model", "vectors", "seeds", "fit", "words")
_OF_A_TASK = (
    "kind", "train", "dev", "test", "max_train", "max_dev", "reader", "head", "fit", "words",
)  # fmt: skip
_NOT_FIT = ("seed",)  # seeds are counted from 1
_NOT_WORDS = ("elmo", "top_only", "mix_penalty", "is_bilm_tuned")  # what the conditions differ in
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass(frozen=True)
class TaskPlan:
    """One task of a plan."""

    name: str
    kind: str
    train: tuple[str, ...]
    dev: tuple[str, ...]
    test: tuple[str, ...]  # (): dev is scored
    reader: Mapping[str, Any]
    tokenizer: str
    head: Any  # the options of the kind's head
    fit: FitOptions
    words: Mapping[str, Any]  # of Features
    max_train: int | None = None
    max_dev: int | None = None


@dataclass(frozen=True)
class Plan:
    """All tasks, and what a command line may say otherwise."""

    path: str  # for messages
    tasks: tuple[TaskPlan, ...]
    model: str | None = None
    vectors: str | None = None
    seeds: int | None = None


def read_plan(path: str | Path, *, only: Collection[str] | None = None) -> Plan:
    """The plan of a file, with ``only`` these tasks; every problem of it is told at once."""
    path = Path(path)
    values = _toml(path)
    defaults, problems = table_of(values.pop("defaults", {}), place="defaults")
    reading = _Reading(path.parent, defaults)
    problems += reading.problems_of_defaults()
    names = list(values) if only is None else list(dict.fromkeys(only))
    if not values or not names:
        problems.append("expected at least one task, a table such as [ner], found none")
    for name in names:
        if name not in values:
            problems.append(f"has no task {name[:40]!r}; it has {', '.join(values)}")
    tasks = [reading.task(name, values[name], problems) for name in names if name in values]
    raise_all(problems, subject=format_path(path), kind=ConfigError)
    return Plan(
        format_path(path),
        tuple(task for task in tasks if task is not None),
        model=reading.model,
        vectors=reading.vectors,
        seeds=defaults.get("seeds"),
    )


def _toml(path: Path) -> dict[str, Any]:
    with open_regular(path, MAX_BYTES) as file:
        raw = file.read()
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # not UTF-8 either
        raise ConfigError(f"{format_path(path)}: expected a plan in TOML: {error}") from error


class _Reading:
    """Values of a plan's tables into options; what is wrong is gathered."""

    def __init__(self, folder: Path, defaults: Mapping[str, Any]) -> None:
        self.folder = folder
        self.defaults = defaults
        self.model: str | None = None
        self.vectors: str | None = None

    def problems_of_defaults(self) -> list[str]:
        given = self.defaults
        problems = unknown_names(given, _DEFAULTS, place="defaults")
        seeds = given.get("seeds", 1)
        if not _is_count(seeds):
            problems.append(f"[defaults] seeds: expected a whole number from 1, found {seeds!r:.40}")
        for name, options, without in (("fit", FitOptions, _NOT_FIT), ("words", Features, _NOT_WORDS)):
            table, wrong = table_of(given.get(name, {}), place=f"defaults.{name}")
            problems += wrong
            problems += option_problems(table, options, place=f"defaults.{name}", without=without)
        if "vectors" in given:
            self.vectors = "".join(self._paths(given["vectors"], "[defaults] vectors", problems)[:1])
        if "model" in given:
            found = self._path(given["model"], "[defaults] model", problems)
            # a model may also be named by its id of the Hub
            self.model = found if found and Path(found).exists() else str(given["model"])
        return problems

    def task(self, name: str, values: Any, problems: list[str]) -> TaskPlan | None:
        """One task, or None where something is wrong with it."""
        before = len(problems)
        given, wrong = table_of(values, place=name)
        problems += wrong
        if wrong:
            return None
        problems += unknown_names(given, _OF_A_TASK, place=name)
        kind = str(given.get("kind"))
        if kind not in KINDS:
            problems.append(f"[{name}] kind: expected one of {', '.join(KINDS)}, found {kind[:40]!r}")
        files = {
            part: self._paths(given.get(part), f"[{name}] {part}", problems)
            for part in ("train", "dev", "test")
            if part != "test" or part in given
        }
        for limit in ("max_train", "max_dev"):
            if limit in given and not _is_count(given[limit]):
                problems.append(
                    f"[{name}] {limit}: expected a whole number from 1, found {given[limit]!r:.40}"
                )
        fit = self._options(given, "fit", FitOptions, name=name, problems=problems, without=_NOT_FIT)
        words = self._options(given, "words", Features, name=name, problems=problems, without=_NOT_WORDS)
        head, reader, cut = None, {}, "whitespace"
        if kind in KINDS:
            head = self._options(given, "head", KINDS[kind][1], name=name, problems=problems)
            reader, cut = _reader(kind, given.get("reader", {}), name=name, problems=problems)
        if len(problems) > before or fit is None or words is None:
            return None
        return TaskPlan(
            name=name,
            kind=kind,
            train=files["train"],
            dev=files["dev"],
            test=files.get("test", ()),
            reader=reader,
            tokenizer=cut,
            head=head,
            fit=fit,
            words={
                one.name: getattr(words, one.name)
                for one in fields(Features)
                if one.name not in _NOT_WORDS
            },
            max_train=given.get("max_train"),
            max_dev=given.get("max_dev"),
        )

    def _options(
        self,
        given: Mapping[str, Any],
        part: str,
        options: type[Any],
        *,
        name: str,
        problems: list[str],
        without: Collection[str] = (),
    ) -> Any:
        """The task's table over that of the defaults, as the dataclass that they set."""
        place = f"{name}.{part}"
        table, wrong = table_of(given.get(part, {}), place=place)
        wrong += option_problems(table, options, place=place, without=without)
        problems += wrong
        usual = self.defaults.get(part, {})
        usual = usual if isinstance(usual, dict) and part in _DEFAULTS else {}
        if wrong or option_problems(usual, options, place=place, without=without):
            return None
        try:
            return options(**{**usual, **table})
        except ElmoError as error:
            problems.append(f"[{place}]: {error}")
            return None

    def _paths(self, given: Any, where: str, problems: list[str]) -> tuple[str, ...]:
        """The files, folders or patterns that a value names, made absolute where they are relative."""
        listed = given if isinstance(given, list) and given else [given]
        found: list[str] = []
        for one in listed:
            path = self._path(one, where, problems)
            if path is None:
                continue
            try:
                expand_paths([path])
            except DataError as error:
                problems.append(f"{where}: {error}")
            found.append(path)
        return tuple(found)

    def _path(self, given: Any, where: str, problems: list[str]) -> str | None:
        if not isinstance(given, str) or not given:
            found = "nothing" if given is None else repr(given)[:40]
            problems.append(f"{where}: expected the path of a file, found {found}")
            return None
        unset = [
            name for match in _VARIABLE.findall(given) for name in match if name and name not in os.environ
        ]
        if unset:
            problems.append(f"{where}: {given[:80]!r} names ${unset[0]}, which is not set")
            return None
        path = Path(_VARIABLE.sub(lambda match: os.environ[match[1] or match[2]], given)).expanduser()
        return str(self.folder / path)


def _reader(kind: str, given: Any, *, name: str, problems: list[str]) -> tuple[dict[str, Any], str]:
    """The options of the kind's reader, and the tokeniser's name."""
    place = f"{name}.reader"
    table, wrong = table_of(given, place=place)
    problems += wrong
    options = dict(table)
    cut = options.pop("tokenizer", "whitespace")
    strange = [key for key, value in options.items() if not isinstance(value, str | int)]
    for key in strange:
        problems.append(
            f"[{place}] {key}: expected a text, a number or true or false, found {table[key]!r:.40}"
        )
    try:
        load_tokenizer(str(cut))
    except ElmoError as error:
        problems.append(f"[{place}] {error}")
    if not strange:
        try:
            read_examples(kind, (), options=options)
        except NoFilesError:  # options are looked at first: they are right
            pass
        except ConfigError as error:
            problems.append(f"[{place}] {error}")
    return options, str(cut)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


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
    cut = load_tokenizer(plan.tokenizer)
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
        task.head(FeatureWidths(4, 4))
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
