"""A model in, the text of its ``config.json`` out; and back, as values of which every type is checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elmo.config import MAX_ROWS, BiLmConfig
from elmo.errors import ConfigError, FormatError, OutputError, raise_all
from elmo.formats.pretrained import MixWeights, Pretrained

FORMAT = "elmo"
VERSION = 1


@dataclass(frozen=True)
class VocabularyNotes:
    """What ``vocab.txt`` does not say itself."""

    n_words: int
    is_escaped: bool
    bos: str
    eos: str
    unknown: str


@dataclass(frozen=True)
class NativeConfig:
    """All that ``config.json`` says."""

    bilm: BiLmConfig
    vocabulary: VocabularyNotes | None  # None: there is no vocab.txt
    n_softmax_words: int | None  # None: there is no softmax.safetensors
    mix: MixWeights | None
    metadata: Mapping[str, Any]


def to_text(model: Pretrained, *, dtype: str, is_escaped: bool) -> str:
    """The file's content; the same model gives the same text."""
    vocab, mix, metadata = model.vocab, model.mix, dict(model.metadata)
    if model.format != FORMAT:
        metadata.setdefault("converted_from", model.format)
    values = {
        "format": FORMAT,
        "format_version": VERSION,
        "library_version": _library_version(),
        "dtype": dtype,
        "config": model.config.to_json(),
        "vocabulary": None if vocab is None else {
            "n_words": len(vocab), "is_escaped": is_escaped,
            "bos": vocab.bos, "eos": vocab.eos, "unknown": vocab.unknown,
        },
        "softmax": None if model.softmax is None else {"n_words": len(model.softmax.bias)},
        "mix": None if mix is None else {"weights": list(mix.weights), "gamma": mix.gamma},
        "metadata": metadata,
    }  # fmt: skip
    try:
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise OutputError(f"model: its mix or metadata cannot be written as JSON: {error}") from error


def from_json(values: Any, subject: str) -> NativeConfig:
    """From a parsed ``config.json``; ``FormatError`` for anything that ``to_text`` does not write."""
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else values
        raise FormatError(f"{subject}: expected an object with format {FORMAT!r}, found {found!r:.40}")
    if values.get("format_version") != VERSION:
        raise FormatError(
            f"{subject}: expected format_version {VERSION}, found {values.get('format_version')!r:.40}; "
            "a newer pyelmo may read it"
        )
    problems = []
    for key, tests in _PARTS.items():
        if values.get(key) is not None:
            problems += [f"{key}: {problem}" for problem in _part_problems(values[key], tests)]
    metadata = values.get("metadata", {})
    if not isinstance(metadata, dict):
        problems.append("metadata must be an object")
    try:
        bilm = BiLmConfig.from_json(values.get("config", {}))
    except ConfigError as error:
        bilm = None
        problems.append(str(error)[:2000])
    raise_all(problems, subject=subject)
    if bilm is None:  # for the type checker: raise_all has raised
        raise FormatError(f"{subject}: no config")
    vocabulary, softmax, mix = (values.get(key) for key in ("vocabulary", "softmax", "mix"))
    return NativeConfig(
        bilm,
        vocabulary=None if vocabulary is None else VocabularyNotes(**vocabulary),
        n_softmax_words=None if softmax is None else softmax["n_words"],
        mix=None if mix is None else MixWeights(tuple(mix["weights"]), mix["gamma"]),
        metadata=metadata,
    )


def _part_problems(part: Any, tests: Mapping[str, Callable[[Any], bool]]) -> list[str]:
    if not isinstance(part, dict):
        return [f"must be an object or null, found {part!r:.40}"]
    return [
        *(f"unexpected {name!r:.40}" for name in part if name not in tests),
        *(f"missing {name!r}" for name in tests if name not in part),
        *(
            f"cannot use {name} {part[name]!r:.40}"
            for name, is_fit in tests.items()
            if name in part and not is_fit(part[name])
        ),
    ]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ROWS


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


_PARTS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "vocabulary": {
        "n_words": _is_count,
        "is_escaped": _is_bool,
        "bos": _is_text,
        "eos": _is_text,
        "unknown": _is_text,
    },
    "softmax": {"n_words": _is_count},
    "mix": {"weights": _is_numbers, "gamma": _is_number},
}


def _library_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyelmo")
    except PackageNotFoundError:  # run from its sources
        return None
