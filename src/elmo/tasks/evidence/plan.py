"""A plan in TOML in, the tasks of which evidence is gathered out: files, how each is read and learned.

::

    [defaults]                       # all of it may be left out
    vectors = "$DATA/glove.txt"      # absolute, or from the plan's folder; $NAMES are the environment's
    model = "my-elmo"
    seeds = 3
    fit = {patience = 3}             # FitOptions
    words = {dropout = 0.5}          # VectorChoice, but where ELMo is and how it is mixed

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
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from elmo.errors import ConfigError, DataError, ElmoError, raise_all
from elmo.formats.files import open_regular, shown
from elmo.tasks.data.sources import NoFilesError
from elmo.tasks.evidence.option_tables import option_problems, table_of, unknown_names
from elmo.tasks.fit import FitOptions
from elmo.tasks.kinds.by_name import KINDS
from elmo.tasks.reading import read_examples
from elmo.tasks.vectors.word_vectors import VectorChoice
from elmo.text.lines import expand
from elmo.text.tokens import tokenizer

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
    words: Mapping[str, Any]  # of VectorChoice
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
    raise_all(problems, subject=shown(path), kind=ConfigError)
    return Plan(
        shown(path),
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
        raise ConfigError(f"{shown(path)}: expected a plan in TOML: {error}") from error


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
        for name, options, without in (("fit", FitOptions, _NOT_FIT), ("words", VectorChoice, _NOT_WORDS)):
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
        words = self._options(given, "words", VectorChoice, name=name, problems=problems, without=_NOT_WORDS)
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
                for one in fields(VectorChoice)
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
                expand([path])
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
        tokenizer(str(cut))
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
