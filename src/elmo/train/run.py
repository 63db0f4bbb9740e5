"""Train a biLM in one call, from text files to a model folder that ``Elmo.from_pretrained`` loads."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from elmo.config import BiLmConfig, EncoderName, n_parameters
from elmo.engine.matmul import has_bfloat16
from elmo.errors import ConfigError, DataError, ElmoError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained, load
from elmo.plots import training as curves
from elmo.storage.files import format_path
from elmo.text.lines import ErrorPolicy
from elmo.text.reader import InputFormat
from elmo.train.assessment import assess_model
from elmo.train.corpus import Corpus
from elmo.train.corpus_builder import build_corpus, n_cpus, reopen_corpus
from elmo.train.distributed import Ranks, join_ranks
from elmo.train.initial_weights import (
    InitialWeights,
    check_trainable,
    has_tied_softmax,
    model_vocabulary,
    prepare_weights,
    warn_of_lost_direction,
)
from elmo.train.log import Stopwatch, TensorBoard
from elmo.train.loop import OnReport, OnStage, StepReport, Trainer, TrainingProgress
from elmo.train.options import (
    GENTLE,
    MAX_SENTENCE,
    Decay,
    Directions,
    OptimizerName,
    PrecisionChoice,
    Preset,
    ReadsWhat,
    TrainOptions,
)
from elmo.train.plan import PlanRequest, list_sizes, load_or_make_plan
from elmo.train.read_text import OnProgress
from elmo.train.recipe import FILE_NAME, Recipe
from elmo.train.run_folder import RunFolder, export_model

EPOCHS = 10.0  # as in the ELMo paper
TRANSFORMER_WINDOW, TRANSFORMER_ROWS = 128, 20
EVALUATE_TOKENS = 1 << 16  # enough to compare checkpoints
_log = logging.getLogger(__name__)


def train_bilm(
    texts: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    input_format: InputFormat = "text",
    tokenizer: str = "auto",
    errors: ErrorPolicy = "strict",
    heldout: float | None = None,
    heldout_file: Sequence[str | Path] = (),
    heldout_seed: int = 0,
    deduplicate: bool = False,
    keep_order: bool = False,
    blank_lines: bool = False,
    simplified: bool = False,
    split: bool | None = None,
    max_sentence: int = MAX_SENTENCE,
    vocabulary: int | str | Path | None = None,
    preset: Preset | BiLmConfig | None = None,
    reads: ReadsWhat | None = None,
    encoder: EncoderName | None = None,
    layers: int | None = None,
    cells: int | None = None,
    width: int | None = None,
    tied: bool | None = None,
    direction: Directions = "both",
    init_from: str | Path | None = None,
    new_vocabulary: bool = False,
    epochs: float | None = None,
    hours: float | None = None,
    n_steps: int | None = None,
    samples: int | None = None,
    adaptive: Sequence[int] = (),
    optimizer: OptimizerName | None = None,
    learning_rate: float | None = None,
    warmup: int | None = None,
    decay: Decay | None = None,
    final_rate: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float = 10.0,
    loss_scale: float = 20.0,
    window_resets: float = 0.01,
    sentence_resets: float = 0.0,
    dropout: float | None = None,
    input_dropout: float | None = None,
    output_dropout: float | None = None,
    word_dropout: float = 0.0,
    weight_drop: float = 0.0,
    variational: bool = False,
    batch_size: int | None = None,
    window: int | None = None,
    accumulate: int = 1,
    precision: PrecisionChoice = "float32",
    seed: int = 0,
    log_every: int | None = None,
    evaluate_every: int | None = None,
    evaluate_tokens: int | None = None,
    checkpoint_every: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
    processes: int | None = None,
    tensorboard: bool = False,
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
) -> Path:
    """Train a biLM on text and write it, with softmax, vocabulary and warm state, to the new folder ``out``.

    Corpus, checkpoints, log and curves are stored in ``OUT.training`` next to it. If a run was interrupted, the same
    call or ``resume_bilm(out)`` resumes it after the last checkpoint. The model is the checkpoint with the lowest
    held-out perplexity. With ``torchrun``, all processes make the same call and share the work.

    Args:
        texts: Files, globs or folders of text; ``-`` is stdin.
        out: New folder for the model.
        input_format: Format of the text: raw text, tokens separated by spaces, or CoNLL-U.
        tokenizer: Tokenizer for raw text; auto detects the language of the text.
        errors: What to do with bytes that are not UTF-8: stop, replace them, skip the line, or keep them as surrogate
            escapes.
        heldout: Sentences to hold out: a share, such as 0.05, or a number, such as 500. Default: about 1%.
        heldout_file: Files of held-out text. Default: a part of the training text is held out.
        heldout_seed: Seed for the choice of held-out sentences.
        deduplicate: Drop repeated sentences.
        keep_order: Read the text in order instead of in shuffled blocks.
        blank_lines: Keep blank lines as sentences without words.
        simplified: Convert Chinese text to simplified characters, in training and whenever the model is used.
        split: Split lines of raw text into sentences. Default: if they are paragraphs.
        max_sentence: Maximum number of words in a sentence; longer sentences are split.
        vocabulary: Number of words to predict, or a file with one word per line. Default: 50000.
        preset: Size of the model; small, medium and original are published sizes. Default: depends on the size of
            the text.
        reads: Whether the model reads characters, words or both. Default: characters.
        encoder: Kind of the layers above the token layer. Default: lstm.
        layers: Number of LSTM or transformer layers. Default: as in the preset.
        cells: Number of LSTM cells, or of hidden units of a transformer, per layer and direction. Default: as in the
            preset or in the model to start from; a larger number grows that model.
        width: Width of the vectors of each direction. Default: as in the preset or in the model to start from; a
            larger number grows that model.
        tied: Share the softmax weights with the input word vectors.
        direction: Train both language models or only one.
        init_from: Start from this model, in any format, instead of random weights.
        new_vocabulary: When starting from a model: build the vocabulary from the new text instead of using that of the
            model.
        epochs: Number of passes over the text. Default: 10.
        hours: Training time in hours; the size of the model and the learning rate schedule are chosen to fit it.
        n_steps: Number of optimizer steps, instead of ``epochs``.
        samples: Number of words sampled for the softmax in each step; 0 uses all words. Default: 8192.
        adaptive: Use an adaptive softmax whose clusters end at these word ranks.
        optimizer: Optimizer. Default: adagrad, or adamw for a transformer, when starting from a model, or if hours is
            set.
        learning_rate: Learning rate. Default: 0.2 for adagrad, 0.001 for adamw, 1 for sgd; if hours is set,
            it depends on the size of the model.
        warmup: Number of steps over which the learning rate rises to its maximum. Default: 0, or 100 when starting
            from a model, or at most 500 for a transformer; if hours is set, it depends on the number of steps.
        decay: How the learning rate decreases after the warmup. Default: none, or cosine if hours is set.
        final_rate: Final learning rate, as a share of the maximum. Default: 0, or 0.01 if hours is set.
        weight_decay: Weight decay of adamw and sgd.
        momentum: Momentum of sgd.
        clip: Maximum norm of the gradients; larger gradients are scaled down.
        loss_scale: Factor by which the loss is multiplied; bilm-tf uses 20.
        window_resets: Share of windows that start from a zero state; bilm-tf uses 0. A transformer has no state.
        sentence_resets: Share of sentences that start from a zero state.
        dropout: Dropout rate for the input of each layer. Default: 0.1; if hours is set, more for a small text.
        input_dropout: Dropout rate for the input of the first layer. Default: the same as dropout.
        output_dropout: Dropout rate for the input of the softmax. Default: the same as dropout.
        word_dropout: Dropout rate for whole words.
        weight_drop: Dropout rate for the recurrent (state-to-state) weights, or for the attention of a transformer.
        variational: Use the same dropout mask for all tokens of a row in a window.
        batch_size: Number of rows: parts of the text that are read in parallel. Default: 128, or 20 for a transformer,
            or fewer for a small text.
        window: Number of tokens that each row reads in a step; gradients are propagated only within these tokens.
            Default: 20, or 128 for a transformer.
        accumulate: Number of parts into which each batch is split, to save memory; their gradients are summed.
        precision: Number type of the matrix products. bfloat16 is faster on CPUs that support it; auto uses bfloat16
            there and float32 elsewhere.
        seed: Random seed; the same seed gives the same model.
        log_every: Number of steps between log entries. Default: 50, or more often in a short run.
        evaluate_every: Number of steps between evaluations on held-out text. Default: 1000, or more often in a short
            run.
        evaluate_tokens: Number of held-out tokens to evaluate on; 0 uses all. Default: 65536, or all with
            ``heldout_file``.
        checkpoint_every: Number of steps between checkpoints. Default: 1000, or more often in a short run.
        device: Device to train on.
        threads: Number of CPU threads. Default: all CPUs.
        processes: Number of processes that tokenize. Default: one per CPU for a large text.
        tensorboard: Also write TensorBoard files.
        on_report: Function that is called with each ``StepReport``.
        on_progress: Function that is called with the ``BuildProgress`` of the corpus.
        on_stage: Function that is called with a ``TrainingProgress`` when a stage begins and after each step.

    Example:
        >>> folder = train_bilm("corpus.txt", "small", preset="tiny", layers=1, cells=32, width=16, epochs=1)
        >>> Elmo.from_pretrained(folder).encode("The bank.").vectors.shape  # two directions
        (3, 32)
    """
    values = dict(locals())  # only the parameters, because this is the first statement
    defaults = {name: parameter.default for name, parameter in inspect.signature(train_bilm).parameters.items()}
    runtime = ("texts", "out", "tensorboard", "on_report", "on_progress", "on_stage")
    if precision == "auto":  # resolved before the run is described: a run never changes its precision
        values["precision"] = "bfloat16" if has_bfloat16() and str(device) == "cpu" else "float32"
    options = {name: value for name, value in values.items() if name not in runtime and value != defaults[name]}
    return _run(
        Recipe.create(texts, options),
        Path(out),
        is_resumed=False,
        tensorboard=tensorboard,
        on_report=on_report,
        on_progress=on_progress,
        on_stage=on_stage,
    )


def resume_bilm(
    out: str | Path,
    *,
    tensorboard: bool = False,
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
    on_stage: OnStage | None = None,
) -> Path:
    """Resume an interrupted run with its original text and options.

    Args:
        out: Folder of the model, as given to ``train_bilm``.
        tensorboard: Also write TensorBoard files.
        on_report: Function that is called with each ``StepReport``.
        on_progress: Function that is called with the ``BuildProgress`` of the corpus.
        on_stage: Function that is called with a ``TrainingProgress`` when a stage begins and after each step.

    Example:
        >>> resume_bilm("run").name  # a run that is already complete
        'run'
    """
    folder = RunFolder(out)
    recipe = folder.read_recipe()
    if recipe is None:
        path = format_path(folder.path / FILE_NAME)
        raise DataError(f"cannot resume {format_path(out)}: there is no run with this output; found no {path}")
    return _run(
        recipe,
        Path(out),
        is_resumed=True,
        tensorboard=tensorboard,
        on_report=on_report,
        on_progress=on_progress,
        on_stage=on_stage,
    )


def _run(
    recipe: Recipe,
    out: Path,
    *,
    is_resumed: bool,
    tensorboard: bool,
    on_report: OnReport | None,
    on_progress: OnProgress | None,
    on_stage: OnStage | None,
) -> Path:
    folder = RunFolder(out)
    reporters: list[OnReport] = [TensorBoard(folder.path / "tensorboard")] if tensorboard else []
    reporters += [on_report] if on_report is not None else []

    def report_to_all(report: StepReport) -> None:
        for reporter in reporters:
            reporter(report)

    folder.check_output()
    device = str(recipe.options.get("device", "cpu"))
    with _use_threads(recipe.options.get("threads")), join_ranks(device=device) as ranks, ExitStack() as stack:
        if _is_finished(recipe, folder, ranks, stack, is_resumed=is_resumed):
            return out
        if not ranks.is_first:
            on_stage = None
        enter = on_stage or (lambda _: None)
        enter(TrainingProgress("read"))
        model = _load_model(recipe)
        corpus = _load_corpus(recipe, model, folder, ranks, is_resumed=is_resumed, on_progress=on_progress)
        is_transformer = recipe.shape().is_transformer if model is None else model.config.encoder_name == "transformer"
        options = _fit_to_corpus(recipe, corpus, is_transformer=is_transformer)
        initial = None
        if model is not None:
            # an adaptive softmax cannot share the word vectors
            is_tied = recipe.options.get("tied", has_tied_softmax(model) and not options.cutoffs)
            options = replace(options, is_tied=is_tied)
            shape = recipe.shape()
            initial = prepare_weights(
                model,
                corpus,
                n_vocab=options.n_vocab,
                is_tied=is_tied,
                is_adaptive=bool(options.cutoffs),
                cell_width=shape.cell_width,
                state_width=shape.state_width,
            )
        if recipe.options.get("hours") is not None:
            enter(TrainingProgress("plan"))
        config, options = _plan_run(recipe, corpus, options, initial, folder=folder.path, ranks=ranks)
        if corpus.is_simplified and config.chars is not None:
            config = replace(config, alphabet="simplified")
        with Trainer(corpus, config, options, folder.path, ranks=ranks, initial=initial) as trainer:
            model = initial = None  # frees memory: the trainer has copied the weights
            reporters.insert(0, Stopwatch(folder.path))
            trainer.run(report_to_all if ranks.is_first else None, on_stage)
            enter(TrainingProgress("write", options.n_steps, options.n_steps))
            # the other ranks wait, so that torchrun restarts all of them if rank 0 fails
            with ranks.first_one_first():
                if ranks.is_first:
                    curves.write_curves(folder.path)
                    # the model is written last: if it exists, the run is complete
                    exported = export_model(trainer, tokenizer=corpus.tokenizer)
                    native.write(exported, out)
                    _log.info("wrote %s", format_path(out))
                    _log_assessment(exported)
    return out


def _log_assessment(model: Pretrained) -> None:
    n_words = None if model.vocab is None else len(model.vocab)
    assessment = assess_model(model.metadata, n_words=n_words, n_weights=n_parameters(model.config))
    for title, line in ({} if assessment is None else assessment.lines).items():
        _log.info("%s: %s", title, line)


@contextmanager
def _use_threads(number: int | None) -> Iterator[None]:
    """Set the number of threads of torch for the duration of a run."""
    before = torch.get_num_threads()
    try:
        if number is not None:
            torch.set_num_threads(number)
        yield
    finally:
        if number is not None:
            torch.set_num_threads(before)


def _is_finished(recipe: Recipe, folder: RunFolder, ranks: Ranks, stack: ExitStack, *, is_resumed: bool) -> bool:
    """Whether the run is already finished. Rank 0 locks and checks the folder; all ranks raise the errors of rank 0."""
    result: bool | ElmoError = False
    if ranks.is_first:
        try:
            stack.enter_context(folder.hold())
            result = folder.is_finished(recipe)
            if not is_resumed:
                with suppress(*((DataError,) if result else ())):  # the text of a finished run may be gone
                    folder.check_same_run(recipe)
        except ElmoError as error:
            result = error
    result = ranks.from_first(result)
    if isinstance(result, ElmoError):
        raise result
    if result and ranks.is_first:
        _log.info("%s is already trained; nothing to do", format_path(folder.out))
        if not (folder.path / curves.FILE_NAME).exists():
            curves.write_curves(folder.path)
    return result


def _load_model(recipe: Recipe) -> Pretrained | None:
    """Load the model to start from, if there is one, and check that it can be trained."""
    if recipe.init_from is None:
        return None
    model, shape = load(recipe.init_from), recipe.shape()
    model.check_unaligned("train")
    is_tied = bool(recipe.options.get("tied"))
    check_trainable(model, is_tied=is_tied, cell_width=shape.cell_width, state_width=shape.state_width)
    if recipe.is_simplified and model.config.alphabet != "simplified":
        raise ConfigError("simplified: the model to start from must have been trained on simplified characters")
    warn_of_lost_direction(model, recipe.train_options().directions)
    if model.vocab is None and not recipe.options.get("new_vocabulary"):
        _log.info("the model has no vocabulary; predicting the words of the text")
    return model


def _load_corpus(
    recipe: Recipe,
    model: Pretrained | None,
    folder: RunFolder,
    ranks: Ranks,
    *,
    is_resumed: bool,
    on_progress: OnProgress | None,
) -> Corpus:
    options = recipe.corpus_options()
    if model is not None and model.vocab is not None and not recipe.options.get("new_vocabulary"):
        options = replace(options, vocabulary=model_vocabulary(model))
    if recipe.is_simplified or (model is not None and model.config.alphabet == "simplified"):
        options = replace(options, simplified=True)
    threads = recipe.options.get("threads")
    if threads is not None and threads < n_cpus() and options.processes is None:
        options = replace(options, processes=threads)

    def open_or_build() -> Corpus:
        if (is_resumed or folder.has_checkpoint) and folder.has_corpus:
            try:
                return reopen_corpus(folder.corpus)  # the text may be gone, for example if it came from stdin
            except DataError:
                if "-" in recipe.texts:
                    raise
        with folder.keep_recipe(recipe):
            return build_corpus(recipe.texts, folder.corpus, options, on_progress=on_progress)

    return ranks.share_corpus(folder.corpus, open_or_build)


def _fit_to_corpus(recipe: Recipe, corpus: Corpus, *, is_transformer: bool) -> TrainOptions:
    """Return the options of the training loop. Options that the user did not set depend on the size of the corpus."""
    options, chosen = recipe.train_options(), recipe.changes()
    batch_size, accumulation_steps = options.batch_size, options.accumulation_steps
    if is_transformer:  # few sentences are cut by long windows; a step has as many tokens as usual
        options = replace(options, window=chosen.get("window", TRANSFORMER_WINDOW))
        batch_size = chosen.get("batch_size", TRANSFORMER_ROWS)
    if corpus.n_given is not None:
        options = replace(options, n_vocab=corpus.n_given)
    if "batch_size" not in chosen:
        # A row should have at least about ten windows, or the state is hardly ever carried.
        most = max(1, min(corpus.n_sentences, len(corpus.train) // (10 * options.window)))
        batch_size = min(batch_size, most)
        accumulation_steps = min(accumulation_steps, batch_size)
    n_steps = options.n_steps
    if "n_steps" not in chosen:
        epochs = recipe.options.get("epochs", EPOCHS)
        n_steps = max(1, math.ceil(epochs * (len(corpus.train) / (batch_size * options.window))))
    if is_transformer and recipe.init_from is None and "warmup" not in recipe.options:
        warmup = min(options.optimizer.warmup_steps, max(1, n_steps // 10))
        options = replace(options, optimizer=replace(options.optimizer, warmup_steps=warmup))
    every = max(1, min(1000, n_steps // 10))
    fitted: dict[str, int] = {"evaluate_every": every, "checkpoint_every": every, "log_every": max(1, min(50, every))}
    if "heldout_file" not in recipe.options:
        fitted["evaluate_tokens"] = EVALUATE_TOKENS
    return replace(
        options,
        batch_size=batch_size,
        accumulation_steps=accumulation_steps,
        n_steps=n_steps,
        **{name: value for name, value in fitted.items() if name not in chosen},
    )


def _plan_run(
    recipe: Recipe, corpus: Corpus, options: TrainOptions, initial: InitialWeights | None, *, folder: Path, ranks: Ranks
) -> tuple[BiLmConfig, TrainOptions]:
    """Return the configuration of the model and the final options. With ``hours``, a plan chooses them."""
    n_vocab, shape = min(options.n_vocab, len(corpus.types)), recipe.shape()
    hours = recipe.options.get("hours")
    if hours is None:
        config = shape.config(n_tokens=corpus.n_tokens, n_vocab=n_vocab)
        return (config if initial is None else initial.config), options
    if initial is None:
        sizes = list_sizes(shape, n_tokens=corpus.n_tokens, n_vocab=n_vocab)
    else:
        sizes = {"of the model": initial.config}
    max_rate = None if initial is None else GENTLE.learning_rate
    request = PlanRequest(hours, sizes, options, changes=recipe.changes(), max_rate=max_rate)
    plan = load_or_make_plan(folder, corpus, request, ranks=ranks)
    if ranks.is_first:
        _log.info("%s", plan.line)
    return plan.config, plan.options
