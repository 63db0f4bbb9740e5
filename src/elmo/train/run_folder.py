"""All that a training run is asked for, in one place: options in, JSON out, and back, to resume it.

A run that has ended in, its best checkpoint as a model out.

The place of a model in, the folder of the run that makes it out: held by one process, and what is there.

``OUT.training`` keeps corpus, recipe, plan, checkpoints and log. A run has begun when it has a checkpoint;
then who asks for something else changes nothing of it. Its recipe never lies beside the corpus of another.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from elmo import models
from elmo.config import BiLmConfig
from elmo.embed.start import compute_warm_state
from elmo.engine.bilm import Engine
from elmo.errors import ConfigError, DataError, ElmoError, FormatError, OutputError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.model.bilm import BiLm
from elmo.storage import files
from elmo.storage.atomic import atomic_file, hold_lock, sync
from elmo.storage.files import format_error, format_path
from elmo.text.lines import expand_paths
from elmo.train.checkpoint import Checkpoints
from elmo.train.corpus import MANIFEST, Corpus, read_manifest
from elmo.train.log import SUFFIX
from elmo.train.loop import Trainer
from elmo.train.objective import Dropout
from elmo.train.options import USUAL_RATES, Optimisation, Shape, TrainOptions, changed
from elmo.train.vocabulary import EOS

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
        with atomic_file(folder / NAME) as temporary:
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
            raise FormatError(f"{files.format_path(path)}: is not the recipe of a run: {error}") from error


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


_WARM_TOKENS = 1 << 18  # of the held-out text that the warm state is a mean over
_log = logging.getLogger(__name__)


def finished(trainer: Trainer, *, tokenizer: str) -> Pretrained:
    """The checkpoint that predicted the held-out text best, with a warm state from that text.

    A direction that was not trained is all zeros: its half of every vector then says nothing.
    """
    step = trainer.checkpoints.best()
    kept = trainer.checkpoints.load(trainer.step if step is None else step).tensors["weights"]
    directions = trainer.options.directions
    bilm_weights = _below_the_softmax(kept, directions)
    bilm = BiLm.from_config(trainer.config).eval().requires_grad_(False)
    bilm.load_state_dict(bilm_weights)
    model = Pretrained(
        config=trainer.config,
        weights=bilm_weights,
        format=native.NAME,
        vocab=trainer.corpus.vocab(trainer.n_vocab),
        softmax=_softmax({name: value.float() for name, value in kept.items()}),
        metadata={
            "tokenizer": tokenizer,
            "training": {
                "tokens": trainer.corpus.n_tokens,
                "steps": trainer.step,
                "best_step": step,
                "heldout_perplexity": trainer.best,
                "directions": directions,
            },
        },
    )
    return replace(model, warm=compute_warm_state(Engine(bilm, model.indexer()), _sentences(trainer.corpus)))


def is_finished(model: Pretrained, checkpoints: Checkpoints) -> bool:
    """Whether these are the checkpoints of a run that has ended, and the model is what it wrote."""
    found = checkpoints.latest()
    if found is None or found[0] != found[1].progress["options"]["n_windows"]:
        return False
    step, snapshot = found
    best = checkpoints.best()
    kept = snapshot if best in (None, step) else checkpoints.load(best)
    expected = _below_the_softmax(kept.tensors["weights"], snapshot.progress["options"]["directions"])
    return expected.keys() == model.weights.keys() and all(
        torch.equal(weight, model.weights[name]) for name, weight in expected.items()
    )


def _below_the_softmax(weights: Mapping[str, Tensor], directions: str) -> dict[str, Tensor]:
    """Those that give vectors, by the names of a model."""
    found = {
        name.removeprefix("bilm."): value.float()
        for name, value in weights.items()
        if name.startswith("bilm.")
    }
    for stack in {"forward": ["backward_stack."], "backward": ["forward_stack."]}.get(directions, []):
        found |= {name: torch.zeros_like(value) for name, value in found.items() if name.startswith(stack)}
    return found


def _softmax(weights: dict[str, Tensor]) -> SoftmaxWeights | None:
    bias = weights.get("softmax.bias")
    if bias is None:
        _log.warning("an adaptive softmax is not part of a model folder: this model cannot predict words")
        return None
    own = weights.get("softmax.weight")
    tied = weights.get("bilm.token_layer.word_embed.weight")
    if own is None and tied is not None:
        own = tied[1:].clone()
    return None if own is None else SoftmaxWeights(own, bias)


def _sentences(corpus: Corpus) -> list[list[str]]:
    """The held-out sentences as words, the first few thousand of them."""
    stream = np.asarray(corpus.heldout[:_WARM_TOKENS], dtype=np.int64)
    ends = np.flatnonzero(stream == EOS)
    pieces = np.split(stream, ends + 1)[: len(ends)]
    return [corpus.types.spellings(piece[:-1]) for piece in pieces]


_LOCK = ".run.lock"
_NEXT = "resume it (--resume), or name another place (--out) to start anew"


class RunFolder:
    """Where the run of the model ``out`` keeps what it needs to go on."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        named = self.out if self.out.name not in ("", "..") else self.out.resolve()
        if not named.name:
            raise OutputError(f"{format_path(self.out)}: already exists; name a new folder")
        self.path = named.with_name(f"{named.name}{SUFFIX}")
        self.corpus = self.path / "corpus"
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def has_corpus(self) -> bool:
        """Whether a whole one is there."""
        return (self.corpus / MANIFEST).is_file()

    @property
    def has_begun(self) -> bool:
        """Whether there is something to lose."""
        return bool(self.checkpoints.steps())

    def recipe(self) -> Recipe | None:
        """What the run there was asked for."""
        return Recipe.read(self.path) if (self.path / NAME).is_file() else None

    def refuse_what_is_no_run(self) -> None:
        """``OutputError`` when something stands in the model's place that no run here can have written."""
        if self._is_taken() and not (self.path / NAME).is_file():
            raise self._exists_already()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder and let no other process in; what stayed empty is gone afterwards."""
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"{format_path(self.path)}: cannot be made: {format_error(error)}"
                ) from error
            with hold_lock(self.path / _LOCK, subject=self.out):
                yield
        finally:
            with suppress(OSError):  # innermost first, up to one that holds something
                for folder in made:
                    folder.rmdir()

    def is_done(self, recipe: Recipe) -> bool:
        """Whether the model stands, written by this very run; ``OutputError`` when another stands there.

        A process may be killed when its last act, the model, is done: the same command again is content.
        """
        if not self._is_taken():
            return False
        try:
            before = self.recipe()
            is_ours = before is not None and not before.differences(recipe) and native.can_read(self.out)
            if is_ours and is_finished(native.read(self.out), self.checkpoints):
                return True
        except (FormatError, ConfigError) as error:  # damaged, or of another version
            raise self._exists_already() from error
        raise self._exists_already()

    def refuse_another(self, recipe: Recipe) -> None:
        """``ConfigError`` when the run that has begun here was asked for something else, or of other text."""
        before = self.recipe() if self.has_begun else None
        if before is None:
            return
        if found := before.differences(recipe):
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            raise ConfigError(
                f"{format_path(self.out)}: a run was begun there with another {', '.join(found[:3])}{more}; {_NEXT}"
            )
        if (changed := self._changed_text(recipe)) is not None:
            raise ConfigError(
                f"{format_path(self.out)}: the text of the run that was begun there has changed since ({changed}); "
                f"{_NEXT}"
            )

    @contextmanager
    def keeping(self, recipe: Recipe) -> Iterator[None]:
        """Keep the recipe beside the corpus that is built inside; what is refused there changes nothing."""
        try:
            before = self.recipe()
        except (FormatError, ConfigError):  # no run can go on by it
            before = None
        is_fit = not self.has_corpus or (before is not None and before.has_the_text_of(recipe))
        if not is_fit:
            (self.path / NAME).unlink(missing_ok=True)
            sync(self.path)
        elif before is None or before.differences(recipe):
            recipe.write(self.path)
        try:
            yield
        except ElmoError:
            with suppress(OutputError):
                if before is None:
                    (self.path / NAME).unlink(missing_ok=True)
                else:
                    before.write(self.path)
            raise
        if not is_fit:
            recipe.write(self.path)

    def _is_taken(self) -> bool:
        return self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir()))

    def _exists_already(self) -> OutputError:
        return OutputError(f"{format_path(self.out)}: already exists; name a new folder, or remove it first")

    def _changed_text(self, recipe: Recipe) -> str | None:
        """The first file that is not as it was when the corpus was built; of stdin nobody can tell."""
        if not self.has_corpus:
            return None
        try:
            kept = read_manifest(self.corpus).inputs
        except DataError:  # damaged: it is built again, of the same text or in vain
            return None
        heldout = recipe.corpus_options.get("heldout_inputs") or ()
        named = [*recipe.inputs, *([heldout] if isinstance(heldout, str | Path) else heldout)]
        found = expand_paths([str(path) for path in named])
        if len(found) != len(kept):
            return f"{len(kept)} files then, {len(found)} now"
        for file, then in zip(found, kept, strict=True):
            if file == "-" or then["path"] == "-":
                continue
            now = file.stat()
            if (now.st_size, now.st_mtime_ns) != (then["size"], then["mtime_ns"]):
                return format_path(file)
        return None
