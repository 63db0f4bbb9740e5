"""The folder of a run, ``OUT.training``, and the model that is exported from it.

The folder contains corpus, recipe, plan, checkpoints and log. Once a run has a checkpoint, a call with other
options raises an error and changes nothing. The recipe always matches the corpus in the same folder.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from elmo.embed.calibration import compute_similarity_statistics
from elmo.embed.elmo import Elmo
from elmo.embed.start import compute_warm_state
from elmo.engine.bilm import Engine
from elmo.errors import ConfigError, DataError, ElmoError, FormatError, OutputError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, SoftmaxWeights
from elmo.model.bilm import BiLm
from elmo.storage.atomic import hold_lock, make_folder, sync
from elmo.storage.files import format_path
from elmo.text.languages import LANGUAGES, detect_language
from elmo.text.lines import expand_paths
from elmo.text.tokenizers import Tokens
from elmo.train.checkpoint import Checkpoints, checking_content
from elmo.train.corpus import EOS, MANIFEST, Corpus, read_manifest
from elmo.train.corpus_builder import is_changed, is_regular
from elmo.train.log import SUFFIX
from elmo.train.loop import Trainer, check_version
from elmo.train.recipe import FILE_NAME, Recipe

_LOCK = ".run.lock"
_NEXT = "resume it (--resume), or start a new run with another output folder (--out)"
_WARM_TOKENS = 1 << 18  # number of held-out tokens for the warm state
_CALIBRATION_TOKENS = 1 << 17  # number of held-out tokens for the similarity statistics
_log = logging.getLogger(__name__)


class RunFolder:
    """The folder of the run that writes the model ``out``."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        named = self.out if self.out.name not in ("", "..") else self.out.resolve()
        if not named.name:
            raise self._output_exists()
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
        """Read the recipe of the run, or return None if there is no run."""
        return Recipe.read(self.path) if (self.path / FILE_NAME).is_file() else None

    def check_output(self) -> None:
        """Raise ``OutputError`` if ``out`` exists and there is no run that could have written it."""
        if self._has_output() and not (self.path / FILE_NAME).is_file():
            raise self._output_exists()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Create the folder and lock it. New folders that are empty at the end are removed."""
        created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            make_folder(self.path)
            with hold_lock(self.path / _LOCK, subject=self.out):
                yield
        finally:
            with suppress(OSError):  # from the innermost folder to the first that is not empty
                for folder in created:
                    folder.rmdir()

    def is_finished(self, recipe: Recipe) -> bool:
        """Whether a run with this recipe has written ``out``; raise ``OutputError`` if ``out`` is something else."""
        if not self._has_output():
            return False
        with suppress(FormatError, ConfigError):  # damaged, or from another version
            before = self.read_recipe()
            is_same = before is not None and not before.differences(recipe) and native.can_read(self.out)
            if is_same and has_written(native.read(self.out), self.checkpoints):
                return True
        raise self._output_exists()

    def check_same_run(self, recipe: Recipe) -> None:
        """Raise ``ConfigError`` if the run in this folder has another recipe, or if its text has changed."""
        before = self.read_recipe() if self.has_checkpoint else None
        if before is None:
            return
        if differences := before.differences(recipe):
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            changed = f"was started with other options: {', '.join(differences[:3])}{more}"
            raise ConfigError(f"{format_path(self.out)}: a run with this output {changed}; {_NEXT}")
        if (changed := self._changed_text(recipe)) is not None:
            name = format_path(self.out)
            raise ConfigError(f"{name}: the text of this run has changed since its start ({changed}); {_NEXT}")

    @contextmanager
    def keep_recipe(self, recipe: Recipe) -> Iterator[None]:
        """Store the recipe while the ``with`` block builds the corpus. If the build fails, restore the old recipe."""
        try:
            before = self.read_recipe()
        except (FormatError, ConfigError):  # no run can be resumed with a damaged recipe
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
        """Describe the first change of the text since the corpus was built, or return None.

        Stdin and pipes are not checked.
        """
        if not self.has_corpus:
            return None
        try:
            kept = read_manifest(self.corpus).inputs
        except DataError:  # the corpus is damaged and will be built again from the same text
            return None
        files = expand_paths([*recipe.texts, *recipe.options.get("heldout_file", ())])
        if len(files) != len(kept):
            return f"{len(kept)} files at the start, {len(files)} now"
        for file, then in zip(files, kept, strict=True):
            if is_regular(file) and then["path"] != "-" and is_changed(file, then):
                return format_path(file)
        return None


# --- the model of a finished run ----------------------------------------------------------------------------


def export_model(trainer: Trainer, *, tokenizer: str) -> Pretrained:
    """Build a model from the best checkpoint; compute its warm state and similarity statistics from the held-out text.

    The weights of a direction that was not trained are zero, so its half of every vector is also zero.
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
            "language": _find_language(trainer.corpus, tokenizer),
            "training": {
                "tokens": trainer.corpus.n_tokens,
                "tokens_read": trainer.step * trainer.options.batch_size * trainer.options.window,
                "steps": trainer.step,
                "best_step": step,
                "heldout_perplexity": trainer.best,
                "directions": directions,
            },
        },
    )
    sentences = _heldout_sentences(trainer.corpus)
    if not bilm.has_positions:  # a transformer keeps no state
        model = replace(model, warm=compute_warm_state(Engine(bilm, model.indexer()), sentences))
    try:
        elmo, tokens = Elmo(model, tokenizer="whitespace"), map(Tokens.from_words, sentences)
        similarity = compute_similarity_statistics(elmo, tokens, max_tokens=_CALIBRATION_TOKENS)
    except DataError:  # the held-out text is too short
        return model
    return replace(model, similarity=similarity)


def _find_language(corpus: Corpus, tokenizer: str) -> str | None:
    """Return the language of the tokenizer, or else detect that of the held-out text."""
    code = tokenizer.removeprefix("spacy:")
    if code != "en" and (code == "zh" or code in LANGUAGES):
        return code
    return detect_language(" ".join(itertools.chain.from_iterable(_heldout_sentences(corpus))))


def has_written(model: Pretrained, checkpoints: Checkpoints) -> bool:
    """Whether the run with these checkpoints is finished and has written this model."""
    latest = checkpoints.latest()
    if latest is None:
        return False
    step, snapshot = latest
    check_version(snapshot.progress, checkpoints.folder)
    with checking_content(checkpoints.folder):
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
    """Return the weights of the biLM without the softmax, by their names in ``BiLm``."""
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
    if weight is None:  # tied
        weight = weights["bilm.token_layer.word_embed.weight"][1:].clone()
    return SoftmaxWeights(weight, bias)


def _heldout_sentences(corpus: Corpus) -> list[list[str]]:
    """Return the first held-out sentences as words."""
    stream = np.asarray(corpus.heldout[:_WARM_TOKENS], dtype=np.int64)
    ends = np.flatnonzero(stream == EOS)
    pieces = np.split(stream, ends + 1)[: len(ends)]
    return [corpus.types.spellings(piece[:-1]) for piece in pieces]
