"""Raw text in, a folder with a model that ``Elmo.from_pretrained`` loads out: the whole way in one call."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from elmo.config import BiLmConfig
from elmo.errors import ConfigError, DataError, ElmoError
from elmo.formats import native
from elmo.formats.loading import load
from elmo.formats.pretrained import Pretrained
from elmo.plots import training as curves
from elmo.storage.files import format_path
from elmo.train.build_corpus import OnProgress, build, reopen
from elmo.train.corpus import Corpus
from elmo.train.distributed import Ranks, ranks_from
from elmo.train.log import Stopwatch
from elmo.train.loop import Report, Trainer
from elmo.train.options import Shape, TrainOptions
from elmo.train.plan import kept_plan, sizes_of
from elmo.train.run_folder import GENTLE, NAME, Recipe, RunFolder, finished
from elmo.train.start_from import (
    StartingPoint,
    is_tied_in,
    refuse_what_cannot_be_trained,
    start_from,
    tell_what_is_lost,
    vocabulary_of,
)

EPOCHS = 10.0  # what bilm-tf's authors trained for
EVALUATED_TOKENS = 1 << 16  # of a held-out part that nobody named: enough to compare
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
    threads: int | None = None,
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Path:
    """Train a biLM on text and write it, with softmax, vocabulary and warm state, to the new folder ``out``.

    ``preset`` is a name of ``PRESETS``, a ``BiLmConfig``, a ``Shape``, or None for a size that suits the
    text; ``epochs`` or ``hours`` say how long; ``start`` is a model to go on from, with its own vocabulary or
    that of the text (``has_new_vocabulary``). ``corpus_options`` go to ``corpus.build``, ``options`` to
    ``TrainOptions``; a dict as ``dropout`` or ``optimisation``, ``{"clip": 1.0}``, changes only these fields
    of what is usual for such a run. ``threads`` is torch's own number, unless it is given.

    Corpus, checkpoints, log and curves are kept in ``OUT.training`` beside it: the same call again, or
    ``resume_bilm(out)``, goes on after the last checkpoint. What is written is the checkpoint that predicted
    the held-out text best.

    Under ``torchrun`` every process makes the same call, and they share the work.
    """
    recipe = Recipe.of(
        inputs,
        tokenizer=tokenizer,
        corpus_options=corpus_options or {},
        shape=preset if isinstance(preset, Shape) else Shape(preset),
        epochs=epochs,
        hours=hours,
        start=start,
        has_new_vocabulary=has_new_vocabulary,
        options=options,
        threads=threads,
    )
    return _carry_out(recipe, Path(out), is_resumed=False, on_report=on_report, on_progress=on_progress)


def resume_bilm(
    out: str | Path, *, on_report: OnReport | None = None, on_progress: OnProgress | None = None
) -> Path:
    """Go on with the run that was to write ``out``, as it was asked for."""
    recipe = RunFolder(out).recipe()
    if recipe is None:
        raise DataError(
            f"{format_path(out)}: no run to resume: expected {format_path(RunFolder(out).path / NAME)}"
        )
    return _carry_out(recipe, Path(out), is_resumed=True, on_report=on_report, on_progress=on_progress)


def _carry_out(
    recipe: Recipe, out: Path, *, is_resumed: bool, on_report: OnReport | None, on_progress: OnProgress | None
) -> Path:
    place = RunFolder(out)
    place.refuse_what_is_no_run()
    device = str(recipe.options.get("device", "cpu"))
    with _threads(recipe.threads), ranks_from(device=device) as ranks, ExitStack() as stack:
        if _is_done(recipe, place, ranks, stack, is_resumed=is_resumed):
            return out
        model = _model(recipe)
        corpus = _corpus(recipe, model, place, ranks, is_resumed=is_resumed, on_progress=on_progress)
        options = _fitted(corpus, recipe)
        start = None
        if model is not None:
            # an adaptive softmax has no rows that words could be read by
            is_tied = recipe.options.get("is_tied", is_tied_in(model) and not options.cutoffs)
            options = replace(options, is_tied=is_tied)
            start = start_from(
                model, corpus, n_vocab=options.n_vocab, is_tied=is_tied, is_adaptive=bool(options.cutoffs)
            )
        config, options = _planned(recipe, corpus, options, start, place.path, ranks)
        if corpus.is_simplified and config.chars is not None:
            config = replace(config, alphabet="simplified")
        with Trainer(corpus, config, options, place.path, ranks=ranks, start=start) as trainer:
            model = start = None  # whose weights are the trainer's own now
            trainer.run(_both(Stopwatch(place.path), on_report) if ranks.is_first else None)
            # the others stay: should the first one fail, torchrun starts all of them again
            with ranks.first_one_first():
                if ranks.is_first:
                    curves.leave_curves(place.path)
                    # last: where it is, all is
                    native.write(finished(trainer, tokenizer=corpus.tokenizer), out)
                    _log.info("%s: written", format_path(out))
    return out


def _is_done(recipe: Recipe, place: RunFolder, ranks: Ranks, stack: ExitStack, *, is_resumed: bool) -> bool:
    """Whether nothing is left to do; the first process takes the folder, and what it refuses all refuse."""
    found: bool | ElmoError = False
    if ranks.is_first:
        try:
            stack.enter_context(place.held())
            found = place.is_done(recipe)
            if not found and not is_resumed:
                place.refuse_another(recipe)
        except ElmoError as error:
            found = error
    found = ranks.from_first(found)
    if isinstance(found, ElmoError):
        raise found
    if found and ranks.is_first:
        _log.info("%s: was written before; nothing is left to do", format_path(place.out))
        if not (place.path / curves.NAME).exists():
            curves.leave_curves(place.path)
    return found


def _model(recipe: Recipe) -> Pretrained | None:
    """The model to start from."""
    if recipe.start is None:
        return None
    model = load(recipe.start)
    refuse_what_cannot_be_trained(model, is_tied=bool(recipe.options.get("is_tied")))
    if recipe.is_simplified and model.config.alphabet != "simplified":
        raise ConfigError(
            "this model was not trained on simplified characters: it reads words as they are written"
        )
    tell_what_is_lost(model, recipe.train_options().directions)
    if model.vocab is None and not recipe.has_new_vocabulary:
        _log.info("the model has no vocabulary: words of the text are predicted")
    return model


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
        work,
        corpus,
        recipe.hours,
        sizes=sizes,
        options=options,
        given=[name for name in recipe.options if name not in recipe.parts],
        parts=recipe.parts,
        highest_rate=None if start is None else GENTLE.learning_rate,
        ranks=ranks,
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


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """As many threads as the run was asked for, for as long as it takes."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        if number is not None:
            torch.set_num_threads(before)


def _corpus(
    recipe: Recipe,
    model: Pretrained | None,
    place: RunFolder,
    ranks: Ranks,
    *,
    is_resumed: bool,
    on_progress: OnProgress | None,
) -> Corpus:
    options = dict(recipe.corpus_options)
    if model is not None and model.vocab is not None and not recipe.has_new_vocabulary:
        options["vocabulary"] = vocabulary_of(model)
    if recipe.is_simplified or (model is not None and model.config.alphabet == "simplified"):
        options["is_simplified"] = True
    if recipe.threads is not None and recipe.threads < _n_processors():
        options.setdefault("processes", recipe.threads)

    def opened_or_built() -> Corpus:
        if (is_resumed or place.has_begun) and place.has_corpus:
            try:
                return reopen(place.corpus)  # the text may be gone: stdin always is
            except DataError:
                if "-" in recipe.inputs:
                    raise
        with place.keeping(recipe):
            return build(
                list(recipe.inputs),
                place.corpus,
                tokenizer=recipe.tokenizer,
                on_progress=on_progress,
                **options,
            )

    return ranks.corpus(place.corpus, opened_or_built)


def _n_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fitted(corpus: Corpus, recipe: Recipe) -> TrainOptions:
    """The options, with what was not given chosen by the size of the corpus."""
    options, unfitted = recipe.options, recipe.train_options()
    if corpus.n_given is not None:
        unfitted = replace(unfitted, n_vocab=corpus.n_given)
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
    # a small text has fewer rows than turns may have been asked for: then a turn is a row
    n_turns = unfitted.n_turns if "n_rows" in options else min(unfitted.n_turns, n_rows)
    return replace(unfitted, n_rows=n_rows, n_turns=n_turns, n_windows=n_windows, **chosen)
