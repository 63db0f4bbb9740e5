"""What ``elmo task train`` was asked for, by --set and by options of its own, in; options of tasks out.

What the commands of ``elmo task`` share: options, reading their files, figures in a table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli.options import MODEL_HELP
from elmo.cli.report import Report, logger

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.tasks.data.files import Tokenize
    from elmo.tasks.features.store import FeatureCache
    from elmo.tasks.kinds.registry import Reading
    from elmo.tasks.model import TaskModel
    from elmo.text.tokenizers import Tokenizer, Tokens


Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.NAME=VALUE",
        help="What has no option of its own, named as in a plan of elmo evidence: head.max_span_width=12, "
        "fit.decay=0.3, words.dropout=0; may be repeated.",
        rich_help_panel="How it learns",
        show_default=False,
    ),
]

# by the parameters of the command: what a plan calls them
_OWN: Mapping[str, tuple[str, str]] = {
    "network": ("head", "network"),
    "hidden": ("head", "hidden_width"),
    "layers": ("head", "n_layers"),
    "dropout": ("head", "dropout"),
    "crf": ("head", "has_crf"),
    "elmo": ("words", "elmo"),
    "top_only": ("words", "top_only"),
    "layer_norm": ("words", "layer_norm"),
    "elmo_dropout": ("words", "dropout"),
    "mix_penalty": ("words", "mix_penalty"),
    "tune_bilm": ("words", "is_bilm_tuned"),
    "tune_vectors": ("words", "is_static_tuned"),
    "characters": ("words", "characters"),
    **{name: ("fit", name) for name in ("epochs", "patience", "batch_size", "learning_rate", "seed")},
}


def assigned(
    context: typer.Context, kind: str, assignments: Sequence[str] | None
) -> Mapping[str, Mapping[str, Any]]:
    """The values of ``--set`` by the tables of a plan: head, fit and words."""
    from elmo.errors import ConfigError, raise_all
    from elmo.evidence.plan import assignments_of
    from elmo.tasks.features.layer import Features
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.registry import KINDS

    tables = {"head": KINDS[kind][1], "fit": FitOptions, "words": Features}
    found, problems = assignments_of(assignments or (), tables)
    for parameter, (table, name) in _OWN.items():
        source = context.get_parameter_source(parameter)
        if name in found[table] and source is not None and source.name == "COMMANDLINE":
            problems.append(f"{table}.{name} is {_option(parameter)}; give one of the two")
    raise_all(problems, subject="--set", kind=ConfigError)
    return found


def head_options(kind: str, asked: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """The options of the kind's network; one that it has not is named as the user wrote it."""
    from dataclasses import fields

    from elmo.errors import ConfigError
    from elmo.tasks.kinds.registry import KINDS, task_options

    names = {parameter: name for parameter, (table, name) in _OWN.items() if table == "head"}
    known = {one.name for one in fields(KINDS[kind][1])}
    for parameter, value in asked.items():
        if value is not None and names[parameter] not in known:
            has = ", ".join(_option(one) for one, name in names.items() if name in known)
            raise ConfigError(f"{kind} has no {_option(parameter)}; of its network, it has {has}")
    return task_options(kind, {names[parameter]: value for parameter, value in asked.items()} | {**more})


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


TOKENISED = ("tagging", "roles", "coreference")  # kinds whose labelled files are columns of words

_data = partial(typer.Option, rich_help_panel="The data", show_default=False)
_cache = partial(typer.Option, rich_help_panel="The cache", show_default=False)

TaskFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A file of elmo task train.", show_default=False)
]
Column = Annotated[
    str | None,
    _data(
        "--column",
        "-c",
        metavar="NAME|N",
        help="Where tags, labels, scores or predicates stand: a name, or a number from 0; -1 is the last.",
    ),
]
TextColumn = Annotated[
    list[str] | None,
    _data(metavar="NAME|N", help="Where words or the text stand; for pairs of texts, give it twice."),
]
FileFormat = Annotated[
    str | None,
    _data(
        "--format",
        metavar="FORMAT",
        help="columns, conllu, tsv, csv, jsonl, lines, semeval, propbank, conll2005 or conll2012; else it is "
        "told by the file.",
    ),
]
Header = Annotated[
    bool | None, _data("--header/--no-header", help="Whether a table's first line names its columns.")
]
Separator = Annotated[
    Literal["tab", "space"] | None, _data(help="What parts columns, where the first row does not show it.")
]
Also = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="Vectors of a transformers model beside ELMo's; may be repeated.",
        show_default=False,
    ),
]
# not from ELMO_MODEL: a task model names its own
Bilm = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="MODEL",
        help=f"The biLM, where it is not what MODEL names. {MODEL_HELP}",
        show_default=False,
    ),
]
Cache = Annotated[
    Path | None,
    _cache(
        "--cache",
        envvar="ELMO_CACHE",
        metavar="FOLDER",
        help="Where layers are kept that were computed once.",
        show_default="elmo/layers in the user's cache folder",
    ),
]
NoCache = Annotated[bool, _cache("--no-cache", help="Compute layers each time they are needed.")]
CacheLimit = Annotated[
    float, _cache(min=0.0, metavar="GB", help="What was used longest ago goes first.", show_default=True)
]

_LABELS = {
    "tagging": "tags",
    "classification": "label",
    "entailment": "label",
    "similarity": "score",
    "roles": "target",
}
_TEXTS = {
    "tagging": ("words",),
    "classification": ("text",),
    "entailment": ("first", "second"),
    "similarity": ("first", "second"),
}


def reader_options(
    kind: str,
    *,
    column: str | None,
    text_column: Sequence[str] | None,
    file_format: str | None,
    header: bool | None,
    separator: str | None,
) -> dict[str, Any]:
    """What was asked for, by the names of the kind's reader."""
    from elmo.errors import ConfigError

    found: dict[str, Any] = {}
    if column is not None:
        if kind not in _LABELS:
            raise ConfigError(f"files of {kind} have fixed columns: leave out --column")
        if kind == "roles" and not isinstance(_column(column), int):
            raise ConfigError(
                f"files of roles have no names of columns: give a number, found {column[:40]!r}"
            )
        found[_LABELS[kind]] = _column(column)
    if text_column:
        names = _TEXTS.get(kind, ())
        if len(text_column) != len(names):
            takes = {0: "no --text-column", 1: "one --text-column"}.get(len(names), "two of --text-column")
            raise ConfigError(f"{kind} takes {takes}, found {len(text_column)}")
        found |= {name: _column(one) for name, one in zip(names, text_column, strict=True)}
    given = {
        "file_format": file_format,
        "has_header": header,
        "separator": None if separator is None else {"tab": "\t", "space": " "}[separator],
    }
    return found | {name: value for name, value in given.items() if value is not None}


def _column(given: str) -> int | str:
    digits = given.removeprefix("-")
    return int(given) if digits.isascii() and digits.isdigit() and len(digits) < 6 else given


def read(
    kind: str,
    files: Sequence[str],
    *,
    cut: Tokenize,
    options: Mapping[str, Any],
    is_labelled: bool = True,
) -> Reading:
    """The examples of files, at least one; what was left out is told."""
    from elmo.errors import DataError
    from elmo.tasks.kinds.registry import read_examples

    found = read_examples(kind, files, is_labelled=is_labelled, tokenize=cut, options=options)
    names = ", ".join(files)[:200]
    for why, n in found.left_out.items():
        logger.warning("%s: left out: %s: %s", names, why, f"{n:,}")
    if not found.examples:
        raise DataError(f"{names}: expected examples of {kind}, found none")
    return found


def cutting(name: str | None, elmo: Callable[[], Elmo | None]) -> tuple[Tokenize, Callable[[], Tokenizer]]:
    """What cuts text, and its tokeniser; a model is loaded for its own when the first text comes."""

    @cache
    def chosen() -> Tokenizer:
        from elmo.text.tokenizers import tokenizer

        if name is not None:
            return tokenizer(name)
        model = elmo()
        return tokenizer("en") if model is None else model.tokenizer

    if name is not None:
        chosen()  # a typo is told before anything is read

    def cut(text: str) -> Tokens:
        return chosen()(text)

    return cut, chosen


def remembered(model: TaskModel) -> Mapping[str, Any]:
    """How the examples were read that a model learned from: ``tokenizer`` and ``options``."""
    return model.reading


def layer_cache(folder: Path | None, *, has_none: bool, limit: float) -> FeatureCache:
    """Where layers are kept."""
    from elmo.tasks.features.store import FeatureCache

    if has_none:
        return FeatureCache(None)
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(home) if home else Path.home() / ".cache") / "elmo" / "layers"
    return FeatureCache(folder, limit=int(limit * (1 << 30)))


def load_model(path: Path, *, bilm: str | None, also: Sequence[str] | None, kept: FeatureCache) -> TaskModel:
    """A task model, with the biLM and the encoders that were asked for."""
    from elmo.embed.elmo import Elmo
    from elmo.errors import ConfigError
    from elmo.storage.files import format_path
    from elmo.tasks.features.encoders import TransformerEncoder
    from elmo.tasks.model import LostBilmError, TaskModel

    others = [TransformerEncoder(name) for name in also or ()]
    elmo = None if bilm is None else Elmo.from_pretrained(bilm)
    try:
        return TaskModel.load(path, elmo=elmo, others=others, cache=kept)
    except LostBilmError as error:
        raise ConfigError(f"{error}; --model names the biLM that {format_path(path)} was learned with") from error


def is_bar_shown(report: Report) -> bool:
    """Whether there is somebody to see a bar."""
    return not (report.is_quiet or report.is_json) and sys.stderr.isatty()


def score_lines(scores: Mapping[str, float]) -> list[str]:
    """A line for each figure: shares in percent."""
    return [f"{name.replace('_', ' '):20}{shown_score(name, value):>9}" for name, value in scores.items()]


def shown_score(name: str, value: float) -> str:
    """A share in percent; an error in its own unit."""
    return f"{value:.4f}" if name.endswith("_error") else f"{value:.2%}"


def counts(examples: Sequence[Any]) -> dict[str, int]:
    """Examples, their different sentences, and the tokens of these."""
    sentences = {words for example in examples for words in example.sentences}
    return {"examples": len(examples), "sentences": len(sentences), "tokens": sum(map(len, sentences))}
