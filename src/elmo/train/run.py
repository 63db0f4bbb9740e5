"""Raw text in, a folder with a model that ``Elmo.from_pretrained`` loads out: the whole way in one call."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmo.config import BiLmConfig
from elmo.errors import DataError, OutputError
from elmo.formats import native
from elmo.formats.detect import load
from elmo.formats.files import shown
from elmo.formats.pretrained import Pretrained
from elmo.train.corpus import build
from elmo.train.corpus_folder import MANIFEST, Corpus
from elmo.train.curves import leave_curves
from elmo.train.draft import OnProgress
from elmo.train.export import finished
from elmo.train.loop import Report, Trainer
from elmo.train.options import TrainOptions
from elmo.train.plan import kept_plan, sizes_of
from elmo.train.presets import Shape
from elmo.train.ranks import Ranks, ranks_from
from elmo.train.recipe import NAME, Recipe
from elmo.train.schedule import USUAL_RATES, Optimisation
from elmo.train.start_from import (
    StartingPoint,
    is_tied_in,
    refuse_what_cannot_be_trained,
    start_from,
    vocabulary_of,
)
from elmo.train.stopwatch import Stopwatch

EPOCHS = 10.0  # what bilm-tf's authors trained for
EVALUATED_TOKENS = 1 << 16  # of a held-out part that nobody named: enough to compare

# For a model that has learned already: Adagrad's first steps would shake it.
GENTLE = Optimisation("adamw", USUAL_RATES["adamw"], warm_up_steps=100)
_log = logging.getLogger(__name__)

OnReport = Callable[[Report], None]


def train_bilm(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    preset: str | BiLmConfig | Shape | None = None,
    epochs: float | None = None,
    hours: float | None = None,
    tokenizer: str = "auto",
    start: str | Path | None = None,
    has_new_vocabulary: bool = False,
    corpus_options: Mapping[str, Any] | None = None,
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Path:
    """Train a biLM on text and write it, with softmax, vocabulary and warm state, to the new folder ``out``.

    ``preset`` is a name of ``PRESETS``, a ``BiLmConfig``, a ``Shape``, or None for a size that suits the
    text; ``epochs`` or ``hours`` say how long; ``start`` is a model to go on from, with its own vocabulary or
    that of the text (``has_new_vocabulary``). ``corpus_options`` go to ``corpus.build``, ``options`` to
    ``TrainOptions``. Corpus, checkpoints, log and curves are kept in ``OUT.training`` beside it: the same
    call again, or ``resume_bilm(out)``, goes on after the last checkpoint. What is written is the checkpoint
    that predicted the held-out text best.

    Under ``torchrun`` every process makes the same call, and they share the work.
    """
    recipe = Recipe.of(
        inputs,
        tokenizer=tokenizer,
        corpus_options=corpus_options or {},
        shape=preset if isinstance(preset, Shape) else Shape(preset),
        epochs=epochs,
        hours=hours,
        start=None if start is None else str(start),
        has_new_vocabulary=has_new_vocabulary,
        options=options,
    )
    return _carry_out(recipe, Path(out), is_resumed=False, on_report=on_report, on_progress=on_progress)


def resume_bilm(
    out: str | Path, *, on_report: OnReport | None = None, on_progress: OnProgress | None = None
) -> Path:
    """Go on with the run that was to write ``out``, as it was asked for."""
    out = Path(out)
    work = _work(out)
    if not (work / NAME).is_file():
        raise DataError(f"{shown(out)}: no run to resume: expected {shown(work / NAME)}")
    recipe = Recipe.read(work)
    return _carry_out(recipe, out, is_resumed=True, on_report=on_report, on_progress=on_progress)


def _carry_out(
    recipe: Recipe, out: Path, *, is_resumed: bool, on_report: OnReport | None, on_progress: OnProgress | None
) -> Path:
    is_again = is_resumed or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if is_again and native.is_here(out):  # killed after the model was written, before the end
        _log.info("%s: was written before; nothing is left to do", shown(out))
        return out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{shown(out)}: exists already; name a new folder, or remove it first")
    work = _work(out)
    model = None
    if recipe.start is not None:
        model = load(recipe.start)
        refuse_what_cannot_be_trained(model)
        if model.vocab is None and not recipe.has_new_vocabulary:
            _log.info("the model has no vocabulary: words of the text are predicted")
            recipe = replace(recipe, has_new_vocabulary=True)
    with ranks_from(device=str(recipe.options.get("device", "cpu"))) as ranks:
        corpus = _corpus(recipe, model, work, ranks, is_resumed=is_resumed, on_progress=on_progress)
        options = _fitted(corpus, recipe)
        start = None
        if model is not None:
            options = replace(options, is_tied=recipe.options.get("is_tied", is_tied_in(model)))
            start = start_from(
                model,
                corpus,
                n_vocab=options.n_vocab,
                is_tied=options.is_tied,
                is_adaptive=bool(options.cutoffs),
            )
        config, options = _planned(recipe, corpus, options, start, work, ranks)
        trainer = Trainer(corpus, config, options, work, ranks=ranks, start=start)
        trainer.run(_both(Stopwatch(work), on_report) if ranks.is_first else None)
        with ranks.first_one_first():  # the others stay: should it fail, torchrun starts all of them again
            if ranks.is_first:
                native.write(finished(trainer, tokenizer=corpus.tokenizer), out)
                leave_curves(work)
    return out


def _planned(  # noqa: PLR0917
    recipe: Recipe,
    corpus: Corpus,
    options: TrainOptions,
    start: StartingPoint | None,
    work: Path,
    ranks: Ranks,
) -> tuple[BiLmConfig, TrainOptions]:
    """The model's shape; and where hours are given, what they are spent on."""
    n_vocab = min(options.n_vocab, len(corpus.types))
    if recipe.hours is None:
        shape = recipe.shape.config(n_tokens=corpus.n_tokens, n_vocab=n_vocab)
        return (shape if start is None else start.config), options
    if start is None:
        sizes = sizes_of(recipe.shape, n_tokens=corpus.n_tokens, n_vocab=n_vocab)
    else:
        sizes = {"of the model": start.config}
    found = kept_plan(
        work, corpus, recipe.hours, sizes=sizes, options=options, given=recipe.options, ranks=ranks
    )
    if ranks.is_first:
        _log.info("%s", found.line)
    return found.config, found.options


def _both(first: OnReport, second: OnReport | None) -> OnReport:
    def tell(report: Report) -> None:
        first(report)
        if second is not None:
            second(report)

    return tell


def _work(out: Path) -> Path:
    """Where a run keeps what it needs to go on."""
    return out.with_name(f"{out.name}.training")


def _corpus(
    recipe: Recipe,
    model: Pretrained | None,
    work: Path,
    ranks: Ranks,
    *,
    is_resumed: bool,
    on_progress: OnProgress | None,
) -> Corpus:
    folder = work / "corpus"
    options = dict(recipe.corpus_options)
    if model is not None and not recipe.has_new_vocabulary:
        options["vocabulary"] = vocabulary_of(model)

    def opened_or_built() -> Corpus:
        if is_resumed and (folder / MANIFEST).is_file():  # the text may be gone: stdin always is
            return Corpus.open(folder)
        tokenizer = recipe.tokenizer
        corpus = build(list(recipe.inputs), folder, tokenizer=tokenizer, on_progress=on_progress, **options)
        recipe.write(work)
        return corpus

    return ranks.corpus(folder, opened_or_built)


def _fitted(corpus: Corpus, recipe: Recipe) -> TrainOptions:
    """The options, with what was not given chosen by the size of the corpus."""
    options = dict(recipe.options)
    if corpus.n_given is not None:
        options["n_vocab"] = corpus.n_given
    if recipe.start is not None:
        options = {"optimisation": GENTLE, **options}
    unfitted = TrainOptions(**{"n_windows": 1, **options})
    # Streams of a batch should be longer than a few windows, or the state carried on is worth nothing.
    longest = max(1, min(corpus.n_sentences, len(corpus.train) // (10 * unfitted.n_steps)))
    n_rows = options.get("n_rows", min(unfitted.n_rows, longest))
    per_epoch = len(corpus.train) / (n_rows * unfitted.n_steps)
    epochs = EPOCHS if recipe.epochs is None else recipe.epochs
    n_windows = options.get("n_windows", max(1, math.ceil(epochs * per_epoch)))
    every = max(1, min(1000, n_windows // 10))
    intervals = {"evaluate_every": every, "checkpoint_every": every, "log_every": max(1, min(50, every))}
    chosen = {name: options.get(name, value) for name, value in intervals.items()}
    if "evaluate_tokens" not in options and not recipe.corpus_options.get("heldout_inputs"):
        chosen["evaluate_tokens"] = EVALUATED_TOKENS
    return replace(unfitted, n_rows=n_rows, n_windows=n_windows, **chosen)
