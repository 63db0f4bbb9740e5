"""All that a training run is asked for, in one place: options in, JSON out, and back, to resume it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from elmo.config import BiLmConfig
from elmo.embed.atomic import replacing
from elmo.errors import ConfigError, FormatError
from elmo.formats import files
from elmo.train.dropout import Dropout
from elmo.train.options import TrainOptions
from elmo.train.presets import Shape
from elmo.train.schedule import Optimisation

NAME = "recipe.json"  # in the run's folder
_PARTS = {"dropout": Dropout, "optimisation": Optimisation}


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
    options: Mapping[str, Any] = field(default_factory=dict)  # of ``TrainOptions``

    def __post_init__(self) -> None:
        for name in ("epochs", "hours"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, int | float) and math.isfinite(value) and value > 0
            ):
                raise ConfigError(f"{name} must be a positive number, not {value!r:.40}")
        if self.epochs is not None and self.hours is not None:
            raise ConfigError("epochs and hours both say how long to train: give one of them")
        if self.start is not None and self.shape != Shape():
            raise ConfigError("a run that starts from a model has its shape: give no other")
        if self.start is None and self.has_new_vocabulary:
            raise ConfigError("a new vocabulary goes with a model to start from")
        if self.start is not None and not self.has_new_vocabulary and "vocabulary" in self.corpus_options:
            raise ConfigError("a model to start from brings its vocabulary: ask for a new one, or give none")
        # What is wrong is said before hours of tokenising.
        options = TrainOptions(**{"n_windows": 1, **self.options})
        if options.is_tied and self.start is None and not self.shape.reads_words_only:
            raise ConfigError("only a model that reads words, and no characters, can be tied to its softmax")

    @classmethod
    def of(cls, inputs: str | Path | Sequence[str | Path], **choices: Any) -> Self:
        """With the inputs as files may be named."""
        listed = [inputs] if isinstance(inputs, str | Path) else inputs
        return cls(tuple(str(path) for path in listed), **choices)

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
            options = {
                name: _PARTS[name](**value) if name in _PARTS else value
                for name, value in values["options"].items()
            }
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
