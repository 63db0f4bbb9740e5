"""All that a training run is asked for, in one place: options in, JSON out, and back, to resume it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from elmo import models
from elmo.config import BiLmConfig
from elmo.embed.atomic import replacing
from elmo.errors import ConfigError, FormatError
from elmo.formats import files
from elmo.train.dropout import Dropout
from elmo.train.options import TrainOptions, changed
from elmo.train.presets import Shape
from elmo.train.schedule import USUAL_RATES, Optimisation

NAME = "recipe.json"  # in the run's folder
# For a model that has learned already: Adagrad's first steps would shake it.
GENTLE = Optimisation("adamw", USUAL_RATES["adamw"], warm_up_steps=100)
_PARTS = ("dropout", "optimisation")
_OF_THE_TEXT = ("inputs", "tokenizer", "corpus_options", "start", "has_new_vocabulary")


@dataclass(frozen=True)
class Recipe:
    """What to train on, what to train, and how; what is not said is chosen by the size of the corpus."""

    inputs: tuple[str, ...]
    tokenizer: str = "auto"
    corpus_options: Mapping[str, Any] = field(default_factory=dict)  # of ``corpus.build``
    shape: Shape = field(default_factory=Shape)
    epochs: float | None = None  # how often the text is read; None: 10, or what the hours allow
    hours: float | None = None  # to spend: decides the size, unless it is given, and how much is read
    start: str | None = None  # a model to go on from, in any format
    has_new_vocabulary: bool = False  # with ``start``: predict the words of this text, not those of the model
    # Of ``TrainOptions``; of dropout and optimisation only what was asked for, by name.
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None  # they decide how work is cut in pieces, and so what is dropped; None: torch's

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _with_plain_parts(self.options))
        # What is wrong is said before hours of tokenising.
        self._check_length()
        if self.threads is not None and not (isinstance(self.threads, int) and self.threads >= 1):
            raise ConfigError(f"threads must be at least 1, not {self.threads!r:.40}")
        if self.corpus_options.get("heldout") == 0:
            raise ConfigError("heldout: a run needs held-out text to tell its best checkpoint by, found 0")
        self._check_vocabulary()
        if self.is_simplified and self.shape.reads_words_only:
            raise ConfigError("only a model that reads characters can read Chinese in simplified ones")
        if self.start is not None and self.shape != Shape():
            raise ConfigError("a run that starts from a model has its shape: give no other")
        if self.start is None and self.has_new_vocabulary:
            raise ConfigError("a new vocabulary goes with a model to start from")
        options = self.train_options()
        if options.is_tied and self.start is None and not self.shape.reads_words_only:
            raise ConfigError("only a model that reads words, and no characters, can be tied to its softmax")
        for name, value in _leaves(_plain(self)):
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{name}: expected a value that JSON can keep, to resume the run, found {value!r:.40}"
                ) from error

    def _check_length(self) -> None:
        for name in ("epochs", "hours"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, int | float) and math.isfinite(value) and value > 0
            ):
                raise ConfigError(f"{name} must be a positive number, not {value!r:.40}")
        given = [name for name in ("epochs", "hours") if getattr(self, name) is not None]
        given += ["n_windows"] if "n_windows" in self.options else []
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} both say how long to train: give one of them")

    def _check_vocabulary(self) -> None:
        words = self.corpus_options.get("vocabulary")
        if words is not None and not isinstance(words, str | Path):
            raise ConfigError(
                f"vocabulary: expected a file, to be found when the run is resumed, found a "
                f"{type(words).__name__}; write its words to one, each on a line"
            )
        is_given = words is not None or "n_vocab" in self.options
        if self.start is not None and not self.has_new_vocabulary and is_given:
            raise ConfigError("a model to start from brings its vocabulary: ask for a new one, or give none")
        if words is not None and "n_vocab" in self.options:
            raise ConfigError("a vocabulary file says how many words to predict: give no other number")

    @classmethod
    def of(cls, inputs: str | Path | Sequence[str | Path], **choices: Any) -> Self:
        """With the inputs as files may be named, and a model of this machine by its whole path."""
        listed = [inputs] if isinstance(inputs, str | Path) else inputs
        start = choices.pop("start", None)
        is_bundled = isinstance(start, str) and start in models.names()
        if isinstance(start, Path) or (start is not None and not is_bundled and _exists(start)):
            start = str(Path(start).absolute())
        return cls(tuple(str(path) for path in listed), start=start, **choices)

    @property
    def is_simplified(self) -> bool:
        """Whether Chinese of either script is to be read in simplified characters."""
        preset = self.shape.preset
        is_preset = isinstance(preset, BiLmConfig) and preset.alphabet == "simplified"
        return is_preset or bool(self.corpus_options.get("is_simplified"))

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """What was asked for of dropout and optimisation, by name."""
        return {name: self.options[name] for name in _PARTS if name in self.options}

    def train_options(self) -> TrainOptions:
        """What it says about the loop, beside what is usual for such a run; its length is still open."""
        usual = Optimisation()
        if self.start is not None or self.hours is not None:
            usual = GENTLE
        parts = {
            "optimisation": changed(usual, self.parts.get("optimisation", {})),
            "dropout": changed(Dropout(), self.parts.get("dropout", {})),
        }
        return TrainOptions(**{"n_windows": 1, **self.options, **parts})

    def differences(self, other: Recipe) -> list[str]:
        """What ``other`` has otherwise, in words: ``seed (0, not 4)``."""
        mine, others = (dict(_leaves(_as_read(recipe))) for recipe in (self, other))
        return [
            f"{name.removeprefix('options.')} ({_shown(mine.get(name))}, not {_shown(others.get(name))})"
            for name in sorted({*mine, *others})
            if mine.get(name) != others.get(name)
        ]

    def has_the_text_of(self, other: Recipe) -> bool:
        """Whether both make the same corpus of the same text."""
        mine, others = _as_read(self), _as_read(other)
        return all(mine[name] == others[name] for name in _OF_THE_TEXT)

    def write(self, folder: Path) -> None:
        """Keep it with the run."""
        with replacing(folder / NAME) as temporary:
            temporary.write_text(json.dumps(_plain(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What ``write`` kept."""
        path = folder / NAME
        values = files.read_json(path)
        try:
            shape = dict(values["shape"])
            if isinstance(shape.get("preset"), dict):
                shape["preset"] = BiLmConfig.from_json(shape["preset"])
            options = dict(values["options"])
            if "cutoffs" in options:
                options["cutoffs"] = tuple(options["cutoffs"])
            return cls(
                **{
                    **values,
                    "inputs": tuple(values["inputs"]),
                    "shape": Shape(**shape),
                    "options": options,
                }
            )
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise FormatError(f"{files.shown(path)}: is not the recipe of a run: {error}") from error


def _with_plain_parts(options: Mapping[str, Any]) -> dict[str, Any]:
    """A whole ``Optimisation`` asks for all of its fields."""
    return {
        name: _plain(value) if name in _PARTS and is_dataclass(value) else value
        for name, value in options.items()
    }


def _exists(path: str) -> bool:
    try:
        return path != "" and Path(path).exists()
    except (OSError, ValueError):  # too long a name, a NUL in it
        return False


def _as_read(recipe: Recipe) -> dict[str, Any]:
    """As a file gives it back."""
    return json.loads(json.dumps(_plain(recipe)))


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "none"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"…{text[-40:]}"  # of a path, its end tells most


def _plain(value: Any) -> Any:
    """As JSON values."""
    if isinstance(value, BiLmConfig):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
