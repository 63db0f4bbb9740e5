"""The folder of a run, ``OUT.training``, and the model that is written from it.

The folder keeps corpus, recipe, plan, checkpoints and log. Once a run has a checkpoint, a call with other
options is refused and changes nothing. A recipe is never kept next to the corpus of another recipe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elmo.embed.start import compute_warm_state
from elmo.engine.bilm import Engine
from elmo.errors import ConfigError, DataError, ElmoError, FormatError, OutputError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.model.bilm import BiLm
from elmo.storage.atomic import hold_lock, sync
from elmo.storage.files import format_error, format_path
from elmo.text.lines import expand_paths
from elmo.train.checkpoint import Checkpoints
from elmo.train.corpus import EOS, MANIFEST, Corpus, read_manifest
from elmo.train.log import SUFFIX
from elmo.train.loop import Trainer, check_version
from elmo.train.recipe import FILE_NAME, Recipe

_LOCK = ".run.lock"
_NEXT = "resume it (--resume), or start a new run with another output folder (--out)"
_WARM_TOKENS = 1 << 18  # held-out tokens for the warm state
_log = logging.getLogger(__name__)


class RunFolder:
    """The folder of the run that writes the model ``out``."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        named = self.out if self.out.name not in ("", "..") else self.out.resolve()
        if not named.name:
            raise OutputError(f"{format_path(self.out)} already exists; use a new folder")
        self.path = named.with_name(f"{named.name}{SUFFIX}")
        self.corpus = self.path / "corpus"
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def has_corpus(self) -> bool:
        """Whether there is a complete corpus."""
        return (self.corpus / MANIFEST).is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self.checkpoints.steps())

    def read_recipe(self) -> Recipe | None:
        """Read the recipe of the run; None if there is no run."""
        return Recipe.read(self.path) if (self.path / FILE_NAME).is_file() else None

    def check_output(self) -> None:
        """Raise ``OutputError`` if ``out`` exists and was not written by a run in this folder."""
        if self._has_output() and not (self.path / FILE_NAME).is_file():
            raise self._output_exists()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Create the folder and lock it. Folders that stay empty are removed."""
        created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                message = f"cannot create {format_path(self.path)}: {format_error(error)}"
                raise OutputError(message) from error
            with hold_lock(self.path / _LOCK, subject=self.out):
                yield
        finally:
            with suppress(OSError):  # innermost first, up to one that is not empty
                for folder in created:
                    folder.rmdir()

    def is_finished(self, recipe: Recipe) -> bool:
        """Whether ``out`` was written by a run with this recipe; ``OutputError`` if by another.

        A process may be killed right after it wrote the model. Then the same command has nothing to do.
        """
        if not self._has_output():
            return False
        try:
            before = self.read_recipe()
            is_same = before is not None and not before.differences(recipe) and native.can_read(self.out)
            if is_same and has_written(native.read(self.out), self.checkpoints):
                return True
        except (FormatError, ConfigError) as error:  # damaged, or from another version
            raise self._output_exists() from error
        raise self._output_exists()

    def check_same_run(self, recipe: Recipe) -> None:
        """Raise ``ConfigError`` if the run in this folder has another recipe or its text has changed."""
        before = self.read_recipe() if self.has_checkpoint else None
        if before is None:
            return
        if differences := before.differences(recipe):
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise ConfigError(
                f"{format_path(self.out)}: a run with this output was started with another {', '.join(differences[:3])}"
                f"{more}; {_NEXT}"
            )
        if (changed := self._changed_text(recipe)) is not None:
            raise ConfigError(
                f"{format_path(self.out)}: the text of this run has changed since its start ({changed}); {_NEXT}"
            )

    @contextmanager
    def keep_recipe(self, recipe: Recipe) -> Iterator[None]:
        """Write the recipe while its corpus is built. After an error, the old recipe is restored."""
        try:
            before = self.read_recipe()
        except (FormatError, ConfigError):  # no run can be resumed with it
            before = None
        fits_corpus = not self.has_corpus or (before is not None and before.has_same_text(recipe))
        if not fits_corpus:
            (self.path / FILE_NAME).unlink(missing_ok=True)
            sync(self.path)
        elif before is None or before.differences(recipe):
            recipe.write(self.path)
        try:
            yield
        except ElmoError:
            with suppress(OutputError):
                if before is None:
                    (self.path / FILE_NAME).unlink(missing_ok=True)
                else:
                    before.write(self.path)
            raise
        if not fits_corpus:
            recipe.write(self.path)

    def _has_output(self) -> bool:
        return self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir()))

    def _output_exists(self) -> OutputError:
        return OutputError(f"{format_path(self.out)} already exists; use a new folder, or remove it first")

    def _changed_text(self, recipe: Recipe) -> str | None:
        """Return the first file that has changed since the corpus was built. Stdin cannot be checked."""
        if not self.has_corpus:
            return None
        try:
            kept = read_manifest(self.corpus).inputs
        except DataError:  # damaged: it will be built again from the same text
            return None
        files = expand_paths([*recipe.texts, *recipe.options.get("heldout_file", ())])
        if len(files) != len(kept):
            return f"{len(kept)} files at the start, {len(files)} now"
        for file, then in zip(files, kept, strict=True):
            if file == "-" or then["path"] == "-":
                continue
            now = file.stat()
            if (now.st_size, now.st_mtime_ns) != (then["size"], then["mtime_ns"]):
                return format_path(file)
        return None


# --- the model of a finished run ----------------------------------------------------------------------------


def export_model(trainer: Trainer, *, tokenizer: str) -> Pretrained:
    """Build the model from the best checkpoint, with a warm state from the held-out text.

    The weights of a direction that was not trained are zero, and so is its half of every vector.
    """
    step = trainer.checkpoints.best()
    weights = trainer.checkpoints.load(trainer.step if step is None else step).tensors["weights"]
    directions = trainer.options.directions
    bilm_weights = _bilm_weights(weights, directions)
    bilm = BiLm.from_config(trainer.config).eval().requires_grad_(False)
    bilm.load_state_dict(bilm_weights)
    model = Pretrained(
        config=trainer.config,
        weights=bilm_weights,
        format=native.NAME,
        vocab=trainer.corpus.vocab(trainer.n_vocab),
        softmax=_softmax_weights({name: value.float() for name, value in weights.items()}),
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
    sentences = _heldout_sentences(trainer.corpus)
    return replace(model, warm=compute_warm_state(Engine(bilm, model.indexer()), sentences))


def has_written(model: Pretrained, checkpoints: Checkpoints) -> bool:
    """Whether a finished run with these checkpoints wrote the model."""
    latest = checkpoints.latest()
    if latest is None:
        return False
    step, snapshot = latest
    check_version(snapshot.progress, checkpoints.folder)
    options = snapshot.progress["options"]
    if step != options["n_steps"]:
        return False
    best = checkpoints.best()
    kept = snapshot if best in (None, step) else checkpoints.load(best)
    expected = _bilm_weights(kept.tensors["weights"], options["directions"])
    return expected.keys() == model.weights.keys() and all(
        torch.equal(weight, model.weights[name]) for name, weight in expected.items()
    )


def _bilm_weights(weights: Mapping[str, Tensor], directions: str) -> dict[str, Tensor]:
    """Return the weights below the softmax, by their names in a model."""
    bilm = {name.removeprefix("bilm."): value.float() for name, value in weights.items() if name.startswith("bilm.")}
    untrained = {"forward": "backward_stack.", "backward": "forward_stack."}.get(directions)
    if untrained:
        bilm |= {name: torch.zeros_like(value) for name, value in bilm.items() if name.startswith(untrained)}
    return bilm


def _softmax_weights(weights: dict[str, Tensor]) -> SoftmaxWeights | None:
    bias = weights.get("softmax.bias")
    if bias is None:
        _log.warning("a model folder cannot store an adaptive softmax; this model cannot predict words")
        return None
    weight = weights.get("softmax.weight")
    table = weights.get("bilm.token_layer.word_embed.weight")
    if weight is None and table is not None:  # tied
        weight = table[1:].clone()
    return None if weight is None else SoftmaxWeights(weight, bias)


def _heldout_sentences(corpus: Corpus) -> list[list[str]]:
    """Return the first held-out sentences as words."""
    stream = np.asarray(corpus.heldout[:_WARM_TOKENS], dtype=np.int64)
    ends = np.flatnonzero(stream == EOS)
    pieces = np.split(stream, ends + 1)[: len(ends)]
    return [corpus.types.spellings(piece[:-1]) for piece in pieces]
