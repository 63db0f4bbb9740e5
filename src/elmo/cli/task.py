"""``elmo task``: train, evaluate and use models for the downstream tasks of the paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.console import Console, LogInterval, logger
from elmo.cli.generate import options_from
from elmo.cli.results import print_json, print_results
from elmo.cli.train import StepLines
from elmo.errors import ConfigError
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.tasks.fit import Epoch
    from elmo.tasks.model import TaskModel
    from elmo.tasks.scores.translation import ComparedScore

_KINDS = "tagging, classification, entailment, similarity, answers, roles, coreference or translation"
_FLAGS = {"column": ("--column", "-c"), "file_format": "--format", "header": "--header/--no-header"}
_METAVARS = {"also": "MODEL", "column": "NAME|N", "text_column": "NAME|N", "file_format": "FORMAT", "tokenizer": "NAME"}
_DATA = ("column", "text_column", "file_format", "header", "separator", "tokenizer")
_LINE_WIDTH = 60  # maximum width of a text on a line, in Latin letters

TaskFile = Annotated[Path, opt.argument(metavar="MODEL", help="Model file written by 'elmo task train'.")]
# the environment variable ELMO_MODEL does not set this option, because a task model refers to its own biLM
Bilm = Annotated[
    str | None,
    opt.option(
        "--model", "-m", metavar="MODEL", help="The biLM, if it is not at the location stored in the model file."
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar="ELMO_CACHE",
        metavar="FOLDER",
        help="Folder in which computed layers are cached.",
        show_default="elmo/layers in the user's cache folder",
        rich_help_panel="Cache",
    ),
]
app = typer.Typer(
    name="task",
    help="Train, evaluate and use models for the downstream tasks of the paper.",
    epilog=opt.examples(
        "elmo task train tagging train.conll --out a.safetensors --epochs 2",
        "elmo task evaluate ner.safetensors dev.conll",
        "elmo task predict ner.safetensors --text 'The river bank .'",
    ),
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.command(
    "train",
    epilog=opt.examples(
        "elmo task train tagging train.conll --out a.safetensors --epochs 2",
        "elmo task train classification texts.tsv --out b.safetensors",
        "elmo task train roles roles.tsv --out c.safetensors --elmo both",
        "elmo task train tagging train.conll --out d.safetensors --vectors v",
        "elmo task train tagging train.conll --out e.safetensors --adapt 1",
        "elmo task train translation train.en train.de --out f.safetensors",
    ),
)
@options_from(
    "elmo.tasks.run:train",
    skip=("out", "model", "cache", "on_epoch", "on_adapt", "show_progress"),
    panels={
        "Features": (
            "elmo", "top_only", "layer_norm", "mix_penalty", "elmo_dropout", "tune_bilm", "adapt", "start",
            "vectors", "vector_words", "tune_vectors", "random_vectors", "characters", "also",
        ),
        "Network": ("network", "hidden", "layers", "dropout", "crf"),
        "Training": ("epochs", "patience", "batch_size", "learning_rate", "seed", "settings"),
        "Data": _DATA,
        "Cache": ("no_cache", "cache_limit"),
    },
    flags={**_FLAGS, "crf": "--crf/--no-crf", "settings": "--set"},
    metavars={
        **_METAVARS, "dev": "FILE", "adapt": "EPOCHS", "vectors": "FILE", "random_vectors": "WIDTH",
        "settings": "TABLE.NAME=VALUE", "cache_limit": "GB",
    },
    minimums={
        "characters": 0, "vector_words": 0, "random_vectors": 0, "hidden": 1, "layers": 1, "epochs": 1, "patience": 1,
        "batch_size": 1, "seed": 0, "cache_limit": 0.0,
    },
)  # fmt: skip
def train(
    context: typer.Context,
    kind: Annotated[str, opt.argument(metavar="KIND", help=f"Kind of task: {_KINDS}.")],
    files: Annotated[
        list[str],
        opt.argument(
            metavar="TRAIN",
            help="Training files, plain or compressed. For translation: a file of texts, then a file of translations.",
        ),
    ],
    *,
    out: Annotated[Path, opt.option(metavar="FILE.safetensors", help="The model file to write.")],
    model: opt.Model = None,
    cache: Cache = None,
    picture: Annotated[
        Path | None,
        opt.option(
            metavar="FILE.png",
            help="Draw the learned layer weights (.png, .pdf or .svg).",
            callback=opt.check_picture_option,
        ),
    ] = None,
    as_json: opt.AsJson = False,
    **options: Any,
) -> None:
    """Train a task model and write it to one file.

    If the command is interrupted, run it again: it resumes after the last finished epoch. Until the model is
    written, checkpoints are kept in FILE.safetensors.training. The model file contains everything except a frozen
    biLM, to which it refers by name.
    """
    from elmo.tasks.run import train as train_task
    from elmo.tasks.run import training_folder

    console: Console = context.obj
    console.after_interrupt = partial(_describe_resume, training_folder(out), is_adapted=bool(options["adapt"]))
    with (
        console.show_log("elmo.tasks.run"),
        console.show_log("elmo.tasks.features.store"),
        console.show_log("elmo.tasks.adapt"),
    ):
        trained = train_task(
            kind,
            files,
            out=out,
            model=model,
            cache=cache,
            on_epoch=_log_epoch,
            on_adapt=None if console.is_quiet else StepLines(),
            show_progress=console.is_bar_shown,
            **options,
        )
    best = trained.best_epoch
    values = {
        "model": str(out),
        "kind": trained.task.kind,
        "train": trained.n_train,
        "dev": trained.n_dev,
        "best_epoch": best.epoch,
        "scores": best.scores,
        "mixes": best.mixes,
        "epochs": [asdict(epoch) for epoch in trained.epochs],
    }
    print_results(values, _training_lines(trained), as_json=as_json)
    logger.info("wrote %s", out)
    if picture is not None:
        from elmo.plots.tasks import draw_mixes, learned_mixes

        if mixes := learned_mixes(trained, out.stem):
            draw_mixes(mixes, picture)
            logger.info("wrote %s", picture)
        else:
            logger.warning("cannot draw %s: a model without ELMo has no layer weights", picture)


@app.command(
    "evaluate",
    epilog=opt.examples(
        "elmo task evaluate ner.safetensors dev.conll",
        "elmo task evaluate ner.safetensors dev.conll --out predictions.conll --json",
    ),
)
@options_from(
    "elmo.tasks.run:evaluate",
    skip=("model", "cache", "show_progress"),
    panels={"Data": _DATA, "Cache": ("no_cache", "cache_limit")},
    flags=_FLAGS,
    metavars={**_METAVARS, "out": "FILE", "against": "FILE", "cache_limit": "GB"},
    minimums={"cache_limit": 0.0},
)
def evaluate(
    context: typer.Context,
    task_model: TaskFile,
    files: Annotated[list[str], opt.argument(metavar="FILE", help="Labeled files, plain or compressed.")],
    *,
    model: Bilm = None,
    cache: Cache = None,
    as_json: opt.AsJson = False,
    **options: Any,
) -> None:
    """Score a task model on labeled files."""
    from elmo.tasks.run import evaluate

    with context.obj.show_log("elmo.tasks.features.store"), context.obj.show_log("elmo.tasks.run"):
        result = evaluate(
            task_model, files, model=model, cache=cache, show_progress=context.obj.is_bar_shown, **options
        )
    values = {
        "model": str(task_model),
        "kind": result.kind,
        "files": list(files),
        **result.counts,
        "left_out": dict(result.left_out),
        "scores": result.scores,
        **({"signatures": result.signatures} if result.signatures else {}),
        **({"compared": {name: asdict(score) for name, score in result.compared.items()}} if result.compared else {}),
    }
    lines = [f"{name:20}{n:>9,}" for name, n in result.counts.items()] + _score_lines(result.scores)
    lines += [f"{name} settings: {signature}" for name, signature in result.signatures.items()]
    lines += [_comparison_line(name, score) for name, score in result.compared.items()]
    print_results(values, lines, as_json=as_json)
    if options["out"] is not None:
        logger.info("wrote %s", Path(options["out"]))


@app.command(
    "predict",
    epilog=opt.examples(
        "elmo task predict ner.safetensors --text 'The river bank .'",
        "elmo task predict ner.safetensors corpus.txt --out tagged.conll",
        "elmo task predict ner.safetensors corpus.txt --json",
        "elmo task predict de.safetensors --text 'Two men .' --picture a.png",
    ),
)
@options_from("elmo.tasks.run:predict", skip=("model",), panels={"Data": _DATA}, flags=_FLAGS, metavars=_METAVARS)
def predict(
    task_model: TaskFile,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files of text or examples, plain or compressed; - is stdin."),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File for the predictions: .jsonl for every kind of task; .conll, .tsv, .json or .txt for some kinds.",
            show_default="text on stdout",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        opt.option(
            metavar="FILE.png",
            help="Draw the attention of the first translation (.png, .pdf or .svg).",
            callback=opt.check_picture_option,
        ),
    ] = None,
    model: Bilm = None,
    as_json: opt.AsJson = False,
    **options: Any,
) -> None:
    """Predict labels for texts or unlabeled files, with probabilities."""
    from elmo.tasks.run import predict

    inputs = {"FILE": files, "--text": options["text"], "--question": options["question"]}
    used = [name for name, value in inputs.items() if value]
    if len(used) != 1 or (options["question"] is None) != (options["passage"] is None):
        found = ", ".join(used) or "none"
        raise typer.BadParameter(f"expected either FILE, --text, or --question with --passage; found {found}")
    predictions = predict(task_model, files or (), model=model, **options)
    if picture is not None and predictions.kind != "translation":
        raise ConfigError(f"--picture draws the attention of a translation; this model is for {predictions.kind}")
    log_progress = _PredictionLog()
    first: list[tuple[Any, Any]] = []  # the first translation that is not empty, to draw
    broken_pipe: list[BrokenPipeError] = []  # if stdout is closed, the file is still written before the error is raised

    def watch(example: Any, prediction: Any) -> None:
        if picture is not None and not first and prediction.units:
            first.append((example, prediction))
        if (out is None or as_json) and not broken_pipe:
            try:
                _print_prediction(predictions.kind, example, prediction, as_json=as_json)
            except BrokenPipeError as error:
                if out is None:
                    raise
                broken_pipe.append(error)
        log_progress()

    if out is None:
        for example, prediction in predictions:
            watch(example, prediction)
    else:
        predictions.write(out, on_prediction=watch)
        logger.info("wrote %s", out)
    if picture is not None:
        _draw_attention(first, picture)
    if broken_pipe:
        raise broken_pipe[0]


def _draw_attention(first: list[tuple[Any, Any]], picture: Path) -> None:
    from elmo.plots.attention import draw_attention

    if not first:
        logger.warning("cannot draw %s: all translations are empty", picture)
        return
    example, prediction = first[0]
    draw_attention(example.source, prediction.units, prediction.attention, picture)
    logger.info("wrote %s", picture)


def _describe_resume(folder: Path, *, is_adapted: bool) -> str:
    """Return the hint for the message after Ctrl-C; the adaptation of a biLM has its own checkpoints."""
    from elmo.train.checkpoint import Checkpoints

    if is_adapted or Checkpoints(folder).steps():
        return "; run the same command again to resume after the last epoch"
    return "; no epoch was finished, so the same command starts from the beginning"


def _log_epoch(epoch: Epoch) -> None:
    scores = ", ".join(f"{name.replace('_', ' ')} {_format_score(name, value)}" for name, value in epoch.scores.items())
    best = ", best so far" if epoch.is_best else ""
    logger.info(f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, {scores}{best}", extra=asdict(epoch))


def _training_lines(model: TaskModel) -> list[str]:
    """Return the lines to print after training: sizes, scores of the best epoch, learned layer weights."""
    best = model.best_epoch
    lines = [
        f"{'train':20}{model.n_train:>9,} examples",
        f"{'dev':20}{model.n_dev:>9,} examples",
        f"{'best epoch':20}{best.epoch:>9} of {len(model.epochs)}",
        *_score_lines(best.scores),
    ]
    for position, mix in best.mixes.items():
        weights = ", ".join(f"{k}: {share:.2f}" for k, share in enumerate(mix["shares"]))
        lines.append(f"layer weights at the {position}: {weights}; gamma {mix['gamma']:.2f}")
    return lines


def _score_lines(scores: Mapping[str, float]) -> list[str]:
    return [f"{name.replace('_', ' '):20}{_format_score(name, value):>9}" for name, value in scores.items()]


def _format_score(name: str, value: float) -> str:
    """Format a score as a percentage, or an error as a plain number."""
    return f"{value:.4f}" if name.endswith("_error") else f"{value:.2%}"


def _comparison_line(name: str, score: ComparedScore) -> str:
    """Return the line that compares a score with that of another system."""
    return (
        f"{name} {score.score:.2%} ± {score.margin:.2%}, other system {score.other:.2%} ± {score.other_margin:.2%}, "
        f"p = {score.p_value:.3f} (paired bootstrap)"
    )


class _PredictionLog:
    """Counts predictions, and logs their number at intervals."""

    def __init__(self) -> None:
        self._n_examples, self._interval = 0, LogInterval()

    def __call__(self) -> None:
        self._n_examples += 1
        if self._interval.is_over():
            logger.info("predicting: %s examples", f"{self._n_examples:,}", extra={"examples": self._n_examples})


def _print_prediction(kind: str, example: Any, prediction: Any, *, as_json: bool) -> None:
    from elmo.tasks.output import to_record

    if as_json:
        print_json(to_record(example, prediction))
    else:
        print("\n".join(map(one_line, _prediction_lines(kind, example, prediction))))


def _prediction_lines(kind: str, example: Any, prediction: Any) -> Iterator[str]:
    """Yield the lines of text that show a prediction."""
    from elmo.text.display import shorten, text_width

    if kind == "tagging":
        widest = max(map(text_width, example.words))
        longest = max(map(len, prediction.tags))
        for word, tag, p in zip(example.words, prediction.tags, prediction.confidences, strict=True):
            yield f"{word}{' ' * (widest - text_width(word))}  {tag:{longest}}  {p:6.1%}"
        yield ""
    elif kind == "classification":
        yield f"{_format_label(prediction)}  {shorten(' '.join(example.words), _LINE_WIDTH)}"
    elif kind in ("entailment", "similarity"):
        first, second = (shorten(" ".join(words), _LINE_WIDTH // 2) for words in example.sentences)
        value = f"{prediction.score:.2f}" if kind == "similarity" else _format_label(prediction)
        yield f"{value}  {first} | {second}"
    elif kind == "answers":
        yield shorten(" ".join(example.question), _LINE_WIDTH)
        yield from (f"  {p:6.1%}  {text}" for text, p in prediction.answers)
    elif kind == "roles":
        yield _format_roles(example, prediction)
    elif kind == "translation":
        yield prediction.text
    else:
        words = [word for sentence in example.text for word in sentence]
        yield f"{example.name}: {len(prediction.clusters)} clusters"
        clusters = zip(prediction.clusters, prediction.confidences, strict=True)
        for number, (cluster, confidences) in enumerate(clusters, start=1):
            mentions = (
                f"{' '.join(words[span.start : span.end])} ({p:.0%})"
                for span, p in zip(cluster, confidences, strict=True)
            )
            yield f"{number:4}  {', '.join(mentions)}"


def _format_label(prediction: Any) -> str:
    return f"{prediction.label:16}{prediction.probabilities[prediction.label]:6.1%}"


def _format_roles(example: Any, prediction: Any) -> str:
    """Return the sentence with its roles, such as ``[ARG0 98%: The bank] [[lent]] [ARG2 87%: me] money``."""
    words = list(example.words)
    words[example.predicate] = f"[[{words[example.predicate]}]]"
    for span, p in zip(prediction.roles, prediction.confidences, strict=True):
        words[span.start] = f"[{span.label} {p:.0%}: {words[span.start]}"
        words[span.end - 1] += "]"
    return " ".join(words)
