"""``elmo task predict``: predict unlabeled files or texts with a task model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from elmo.cli.console import LOG_SECONDS, logger
from elmo.cli.generate import options_from
from elmo.cli.options import AsJson, examples
from elmo.cli.task_options import DATA, FLAGS, METAVARS, Bilm, TaskFile
from elmo.text.display import one_line

EXAMPLES = examples(
    "elmo task predict ner.safetensors --text 'The river bank .'",
    "elmo task predict ner.safetensors corpus.txt --out tagged.conll",
    "elmo task predict ner.safetensors corpus.txt --json",
)
_LINE = 60  # maximum width of a text in a line, in Latin letters


@options_from("elmo.tasks.run:predict", skip=("model",), panels={"Data": DATA}, flags=FLAGS, metavars=METAVARS)
def command(
    task_model: TaskFile,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Text or examples, plain or compressed; - is stdin.")
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write .jsonl for every kind; .conll, .tsv or .json for some kinds.",
            show_default="text on stdout",
        ),
    ] = None,
    model: Bilm = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Predict tags, labels, scores, answers, roles or clusters, with probabilities."""
    from elmo.tasks.run import predict

    inputs = {"FILE": files, "--text": options["text"], "--question": options["question"]}
    used = [name for name, value in inputs.items() if value]
    if len(used) != 1 or (options["question"] is None) != (options["passage"] is None):
        found = ", ".join(used) or "none"
        raise typer.BadParameter(f"expected one of FILE, --text, or --question and --passage, found {found}")
    predictions = predict(task_model, files or (), model=model, **options)
    log_progress = _ProgressLog()
    if out is None:
        for example, prediction in predictions:
            _print(predictions.kind, example, prediction, as_json=as_json)
            log_progress()
        return
    broken_pipe: list[BrokenPipeError] = []  # stdout was closed: write the file, then report it

    def watch(example: Any, prediction: Any) -> None:
        if as_json and not broken_pipe:
            try:
                _print(predictions.kind, example, prediction, as_json=True)
            except BrokenPipeError as error:
                broken_pipe.append(error)
        log_progress()

    predictions.write(out, on_prediction=watch)
    logger.info("wrote %s", out)
    if broken_pipe:
        raise broken_pipe[0]


class _ProgressLog:
    """Logs the number of predictions every few seconds."""

    def __init__(self) -> None:
        self._n_examples = 0
        self._last = time.monotonic()

    def __call__(self) -> None:
        self._n_examples += 1
        if time.monotonic() - self._last >= LOG_SECONDS:
            self._last = time.monotonic()
            logger.info("predicting: %s examples", f"{self._n_examples:,}", extra={"examples": self._n_examples})


def _print(kind: str, example: Any, prediction: Any, *, as_json: bool) -> None:
    from elmo.tasks.output import to_record

    if as_json:
        print(json.dumps(to_record(example, prediction), ensure_ascii=False))
    else:
        print("\n".join(map(one_line, _text_lines(kind, example, prediction))))


def _text_lines(kind: str, example: Any, prediction: Any) -> Iterator[str]:
    """Yield a prediction as lines for people."""
    from elmo.text.display import shorten, text_width

    if kind == "tagging":
        widest = max(map(text_width, example.words))
        longest = max(map(len, prediction.tags))
        for word, tag, p in zip(example.words, prediction.tags, prediction.confidences, strict=True):
            yield f"{word}{' ' * (widest - text_width(word))}  {tag:{longest}}  {p:6.1%}"
        yield ""
    elif kind == "classification":
        yield f"{_label(prediction)}  {shorten(' '.join(example.words), _LINE)}"
    elif kind in ("entailment", "similarity"):
        first, second = (shorten(" ".join(words), _LINE // 2) for words in example.sentences)
        value = f"{prediction.score:.2f}" if kind == "similarity" else _label(prediction)
        yield f"{value}  {first} | {second}"
    elif kind == "answers":
        yield shorten(" ".join(example.question), _LINE)
        yield from (f"  {p:6.1%}  {text}" for text, p in prediction.answers)
    elif kind == "roles":
        yield _bracketed(example, prediction)
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


def _label(prediction: Any) -> str:
    return f"{prediction.label:16}{prediction.probabilities[prediction.label]:6.1%}"


def _bracketed(example: Any, prediction: Any) -> str:
    """Return ``[ARG0 98%: The bank] [[lent]] [ARG2 87%: me] …``."""
    words = list(example.words)
    words[example.predicate] = f"[[{words[example.predicate]}]]"
    for span, p in zip(prediction.roles, prediction.confidences, strict=True):
        words[span.start] = f"[{span.label} {p:.0%}: {words[span.start]}"
        words[span.end - 1] += "]"
    return " ".join(words)
