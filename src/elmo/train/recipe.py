"""The recipe of a run: its text and the options that the user set, stored as JSON so that the run can be resumed.

A recipe stores only the options of ``train_bilm`` that differ from their defaults, and converts them to
``CorpusOptions``, ``ModelShape`` and ``TrainOptions``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from elmo.config import BiLmConfig
from elmo.errors import ConfigError, FormatError
from elmo.formats import bundled_models
from elmo.storage.atomic import atomic_file
from elmo.storage.files import format_path, read_json
from elmo.train.options import (
    FOR_TRANSFORMERS,
    GENTLE,
    CorpusOptions,
    DropoutOptions,
    ModelShape,
    OptimizerOptions,
    TrainOptions,
)

FILE_NAME = "recipe.json"
VERSION = 2


def _map_fields(same: str, **renamed: str) -> dict[str, str]:
    """Map options of ``train_bilm`` to fields of a dataclass: options with the same name, and renamed options."""
    return {name: name for name in same.split()} | renamed


_CORPUS = _map_fields(
    "input_format tokenizer split heldout heldout_file deduplicate keep_order blank_lines simplified "
    "max_sentence errors processes",
    heldout_seed="seed",
)
_SHAPE = _map_fields("preset reads encoder", layers="n_layers", cells="cell_width", width="state_width")
_OPTIMIZER = _map_fields(
    "learning_rate decay final_rate weight_decay momentum clip", optimizer="name", warmup="warmup_steps"
)
_DROPOUT = {
    "dropout": "layers",
    "input_dropout": "inputs",
    "output_dropout": "outputs",
    "word_dropout": "words",
    "weight_drop": "weights",
    "variational": "is_variational",
}
_TRAIN = _map_fields(
    "n_steps batch_size window precision loss_scale window_resets sentence_resets seed keep_order log_every "
    "evaluate_every checkpoint_every device",
    adaptive="cutoffs",
    tied="is_tied",
    direction="directions",
    accumulate="accumulation_steps",
)
_OTHERS = (
    "vocabulary", "samples", "evaluate_tokens", "epochs", "hours", "init_from", "new_vocabulary", "threads",
)  # fmt: skip
OPTIONS = frozenset((*_CORPUS, *_SHAPE, *_OPTIMIZER, *_DROPOUT, *_TRAIN, *_OTHERS))


@dataclass(frozen=True)
class Recipe:
    """The text of a run and the options that the user set.

    Attributes:
        texts: Files, globs and folders of text.
        options: Options of ``train_bilm`` by name. Missing options have their default values.
    """

    texts: tuple[str, ...]
    options: Mapping[str, Any]

    @classmethod
    def create(cls, texts: str | Path | Sequence[str | Path], options: Mapping[str, Any]) -> Self:
        """Create a recipe from the arguments of ``train_bilm``. Paths become strings."""
        options = dict(options)
        for name, convert in (("adaptive", tuple), ("heldout_file", _to_strings)):
            if values := convert(options.pop(name, ())):
                options[name] = values
        if isinstance(options.get("vocabulary"), Path):
            options["vocabulary"] = str(options["vocabulary"])
        start = options.get("init_from")
        is_path = isinstance(start, Path) or (start not in bundled_models() and os.path.exists(start or ""))  # noqa: PTH110
        if start is not None and is_path:
            options["init_from"] = str(Path(start).absolute())  # the working directory may change before a resume
        return cls(_to_strings(texts), options)

    def __post_init__(self) -> None:
        # Everything is checked before the corpus is built, which may take hours.
        if unknown := sorted(set(self.options) - OPTIONS):
            raise ConfigError(f"unknown option {unknown[0]!r:.40}")
        for name in ("epochs", "hours"):
            value = self.options.get(name, 1)
            if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a positive number; found {value!r:.40}")
        lengths = [name for name in ("epochs", "hours", "n_steps") if name in self.options]
        if len(lengths) > 1:
            raise ConfigError(f"{lengths[0]} and {lengths[1]} both set how long to train; use one of them")
        threads = self.options.get("threads", 1)
        if not (isinstance(threads, int) and threads >= 1):
            raise ConfigError(f"threads must be at least 1; found {threads!r:.40}")
        if self.options.get("heldout") == 0:
            raise ConfigError("heldout must be above 0, because a run needs held-out text to choose a checkpoint")
        self.corpus_options()  # checks the options of the corpus
        self._check_model()
        for name, value in self._to_json()["options"].items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                expected = "a value that can be stored as JSON, so that the run can be resumed"
                raise ConfigError(f"{name} must be {expected}; found {value!r:.40}") from error

    def _check_model(self) -> None:
        shape, vocabulary = self.shape(), self.options.get("vocabulary")
        is_new = bool(self.options.get("new_vocabulary"))
        is_tied = self.train_options().is_tied
        if vocabulary is not None and not isinstance(vocabulary, int | str):
            found = type(vocabulary).__name__
            raise ConfigError(f"vocabulary must be a number of words or a file with one word per line; found a {found}")
        if self.init_from is None:
            if is_new:
                raise ConfigError("new_vocabulary needs a model to start from; set init_from")
            if is_tied and not shape.reads_words_only:
                raise ConfigError("tied is only possible for a model that reads words but not characters")
        elif shape != ModelShape(cell_width=shape.cell_width, state_width=shape.state_width):
            raise ConfigError(
                "init_from: the run has the shape of the model, with more cells or a larger width if these are set; "
                "do not set preset, reads, layers or encoder"
            )
        elif vocabulary is not None and not is_new:
            raise ConfigError("init_from: the run has the vocabulary of the model; set new_vocabulary to replace it")
        if self.is_simplified and shape.reads_words_only:
            raise ConfigError("simplified is only possible for a model that reads characters")

    # --- the options of each part -----------------------------------------------------------------------

    @property
    def init_from(self) -> str | None:
        """Name or path of the model to start from, or None."""
        return self.options.get("init_from")

    @property
    def is_simplified(self) -> bool:
        """Whether the model reads Chinese text in simplified characters."""
        preset = self.options.get("preset")
        is_preset = isinstance(preset, BiLmConfig) and preset.alphabet == "simplified"
        return is_preset or bool(self.options.get("simplified"))

    def corpus_options(self) -> CorpusOptions:
        """Return the options for building the corpus."""
        vocabulary = self.options.get("vocabulary")
        return CorpusOptions(vocabulary=vocabulary if isinstance(vocabulary, str) else None, **self._select(_CORPUS))

    def shape(self) -> ModelShape:
        """Return the shape of the model."""
        return ModelShape(**self._select(_SHAPE))

    def train_options(self) -> TrainOptions:
        """Return the options of the training loop. ``n_steps`` and others are adapted to the corpus later."""
        is_gentle = self.init_from is not None or "hours" in self.options
        usual = FOR_TRANSFORMERS if self.shape().is_transformer else OptimizerOptions()
        changes = self.changes()
        parts = {
            "optimizer": (GENTLE if is_gentle else usual).changed(changes.pop("optimizer", {})),
            "dropout": replace(DropoutOptions(), **changes.pop("dropout", {})),
        }
        vocabulary = self.options.get("vocabulary")
        if isinstance(vocabulary, int):
            parts["n_vocab"] = vocabulary
        return TrainOptions(**{"n_steps": 1, **changes, **parts})

    def changes(self) -> dict[str, Any]:
        """Return the fields of ``TrainOptions`` that the user set. Optimizer and dropout are dicts of fields."""
        changes = self._select(_TRAIN)
        samples, cutoffs = self.options.get("samples"), self.options.get("adaptive")
        if cutoffs and samples is not None:
            raise ConfigError("samples and adaptive choose different kinds of softmax; use one of them")
        if samples is not None or cutoffs:
            changes["n_samples"] = samples or None
        if (n_tokens := self.options.get("evaluate_tokens")) is not None:
            changes["evaluate_tokens"] = n_tokens or None
        for name, fields in (("optimizer", _OPTIMIZER), ("dropout", _DROPOUT)):
            if values := self._select(fields):
                changes[name] = values
        return changes

    def _select(self, fields: Mapping[str, str]) -> dict[str, Any]:
        return {field: self.options[name] for name, field in fields.items() if name in self.options}

    # --- comparison and JSON ----------------------------------------------------------------------------

    def has_same_text(self, other: Recipe) -> bool:
        """Whether both recipes build the same corpus."""
        names = ("init_from", "new_vocabulary")
        return (
            self.texts == other.texts
            and self.corpus_options() == other.corpus_options()
            and all(self.options.get(name) == other.options.get(name) for name in names)
        )

    def differences(self, other: Recipe) -> list[str]:
        """List the options that differ between two recipes, with both values, such as ``seed (default, not 4)``."""
        mine, others = ({"texts": r.texts, **r._comparable_options()} for r in (self, other))
        return [
            f"{name} ({_format_value(mine.get(name))}, not {_format_value(others.get(name))})"
            for name in sorted({*mine, *others})
            if mine.get(name) != others.get(name)
        ]

    def _comparable_options(self) -> dict[str, Any]:
        """Return the options without a window that is the default of an LSTM, which earlier recipes do not contain."""
        is_lstm = self.init_from is None and not self.shape().is_transformer  # that of another model is unknown here
        is_default = is_lstm and self.options.get("window") == TrainOptions.window
        return {name: value for name, value in self.options.items() if not (is_default and name == "window")}

    def write(self, folder: Path) -> None:
        """Write the recipe to the folder of a run."""
        with atomic_file(folder / FILE_NAME) as temporary:
            text = json.dumps(self._to_json(), indent=1, sort_keys=True) + "\n"
            temporary.write_text(text, encoding="utf-8")

    def _to_json(self) -> dict[str, Any]:
        options = {
            name: value.to_json() if isinstance(value, BiLmConfig) else value for name, value in self.options.items()
        }
        return {"kind": "elmo recipe", "version": VERSION, "texts": self.texts, "options": options}

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the recipe of a run."""
        path = folder / FILE_NAME
        values = read_json(path)
        try:
            version = values.get("version", 1)
            if version == VERSION:
                options = dict(values["options"])
                if isinstance(options.get("preset"), dict):
                    options["preset"] = BiLmConfig.from_json(options["preset"])
                return cls.create(values["texts"], options)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise FormatError(f"{format_path(path)} is not a valid training recipe: {error}") from error
        raise FormatError(
            f"{format_path(path)} must have version {VERSION}; found {version!r:.20}; finish the run with the version "
            "of elmo that started it, or use another output folder"
        )


def _to_strings(paths: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    return tuple(str(path) for path in ([paths] if isinstance(paths, str | Path) else paths))


def _format_value(value: Any) -> str:
    if value is None:
        return "default"
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 40 else f"…{text[-40:]}"  # the end of a path is the most useful part
