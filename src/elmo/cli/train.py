"""``elmo train``: train a model on text, or resume an interrupted run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import FIRST_SECONDS, LogInterval, format_time, logger
from elmo.cli.generate import is_set, options_from

if TYPE_CHECKING:
    from elmo.train import BuildProgress, StepReport, TrainingProgress

EXAMPLES = opt.examples(
    "elmo train corpus.txt --out trained --preset tiny --epochs 1",
    "elmo train corpus.txt --out other --preset tiny --optimizer adamw",
    "elmo train corpus.txt --out tuned --from trained --epochs 1",
)
MAX_WORDS = 1 << 20  # maximum size of the vocabulary
_PYTHON_ONLY = (
    "heldout_seed", "max_sentence", "n_steps", "final_rate", "momentum", "log_every",
    "evaluate_tokens", "processes", "on_report", "on_progress", "on_stage",
)  # fmt: skip


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _check_vocabulary(value: str | None) -> str | None:
    if value is not None and _is_number(value) and not 4 <= int(value) <= MAX_WORDS:
        raise typer.BadParameter(f"expected a number of words from 4 to {MAX_WORDS:,}, or a file, found {value[:40]}")
    return value


def _check_cutoffs(value: str | None) -> str | None:
    if value is not None and not all(map(_is_number, value.split(","))):
        raise typer.BadParameter(f"expected numbers such as 4000,20000, found {value[:40]!r}")
    return value


@options_from(
    "elmo.train.run:train_bilm",
    skip=(*_PYTHON_ONLY, "vocabulary", "preset", "adaptive"),
    panels={
        "Text": (
            "input_format", "tokenizer", "split", "errors", "heldout", "heldout_file", "deduplicate", "keep_order",
            "blank_lines", "simplified",
        ),
        "Model": (
            "reads", "encoder", "layers", "cells", "width", "tied", "direction", "init_from", "new_vocabulary",
        ),
        "Training": (
            "epochs", "hours", "samples", "optimizer", "learning_rate", "warmup", "decay", "weight_decay",
            "clip", "loss_scale", "window_resets", "sentence_resets", "dropout", "input_dropout",
            "output_dropout", "word_dropout", "weight_drop", "variational", "batch_size", "window",
            "accumulate", "precision", "seed",
        ),
        "Run": ("evaluate_every", "checkpoint_every", "tensorboard", "device", "threads"),
    },
    flags={"input_format": "--format", "init_from": "--from"},
    metavars={
        "tokenizer": "auto|en|zh|de|…|whitespace|characters|spacy:xx", "heldout": "N", "heldout_file": "INPUT",
        "init_from": "MODEL", "epochs": "N", "hours": "N", "device": "cpu|cuda|mps",
    },
    minimums={
        "layers": 1, "cells": 1, "width": 1, "samples": 0, "warmup": 0, "batch_size": 1, "window": 1,
        "accumulate": 1, "evaluate_every": 1, "checkpoint_every": 1, "threads": 1,
    },
)  # fmt: skip
def command(
    context: typer.Context,
    inputs: opt.OptionalInputs = None,
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the model.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the interrupted run of --out, with its original options.")
    ] = False,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE",
            rich_help_panel="Text",
            callback=_check_vocabulary,
            help="Number of words to predict, or a file with one word per line.",
            show_default="50000",
        ),
    ] = None,
    preset: Annotated[
        Literal["tiny", "mini", "small", "medium", "original"] | None,
        typer.Option(
            rich_help_panel="Model",
            help="Size of the model; small, medium and original are published sizes.",
            show_default="chosen by the size of the text",
        ),
    ] = None,
    adaptive: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            rich_help_panel="Training",
            callback=_check_cutoffs,
            help="Use an adaptive softmax whose clusters end at these word ranks.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Train a model on raw text, in any language.

    If the run is interrupted, run the same command again, or use --resume, to continue from the last checkpoint.
    The corpus, the checkpoints, log.jsonl and curves.png are in FOLDER.training.
    """
    from elmo.train import resume_bilm, train_bilm
    from elmo.train.run_folder import RunFolder

    def describe_resume() -> str:
        if RunFolder(out).has_checkpoint:
            return "; run the same command again to resume after the last checkpoint"
        return "; no checkpoint was saved, so the same command starts from the beginning"

    console = context.obj
    console.after_interrupt = describe_resume
    if os.environ.get("RANK", "0") != "0":
        console.set_quiet()  # only the first process of torchrun prints
    if not resume and not inputs:
        raise typer.BadParameter("Missing argument 'INPUT...'.")
    if resume and inputs:
        raise typer.BadParameter("--resume continues with the text of the run; remove INPUT")
    if resume and (others := _set_options(context, but=("out", "resume", "tensorboard"))):
        raise typer.BadParameter(f"--resume continues with the options of the run; remove {', '.join(others)}")
    watchers: dict[str, Any] = {"tensorboard": options.pop("tensorboard")}
    if not console.is_quiet:
        lines = StepLines()
        watchers |= {"on_report": lines, "on_progress": _CorpusLines(), "on_stage": lines.show_stage}
    with console.show_log("elmo.train.run"):
        if resume:
            resume_bilm(out, **watchers)
            return
        train_bilm(
            inputs or [],
            out,
            vocabulary=int(vocabulary) if vocabulary and _is_number(vocabulary) else vocabulary,
            preset=preset,
            adaptive=tuple(map(int, adaptive.split(","))) if adaptive else (),
            **watchers,
            **options,
        )


def _set_options(context: typer.Context, *, but: tuple[str, ...]) -> list[str]:
    """Return the flags of the options that are set on the command line."""
    parameters = [parameter for parameter in context.command.params if parameter.name not in but]
    return [parameter.opts[0] for parameter in parameters if is_set(context, str(parameter.name))]


_STAGES = {"plan": "measuring the speed of different sizes, to plan the run", "write": "writing the model"}


class _CorpusLines:
    """Logs the progress of building the corpus, after a second and then at intervals."""

    def __init__(self) -> None:
        self._interval = LogInterval(first=FIRST_SECONDS)

    def __call__(self, progress: BuildProgress) -> None:
        if not progress.n_sentences or not self._interval.is_over():
            return
        share = f"{progress.done / progress.total:.0%}, " if progress.total else ""
        stage = {"read": "reading the text", "write": "writing the corpus"}[progress.step]
        logger.info(
            f"{stage}: {share}{progress.n_sentences:,} sentences, {progress.n_tokens:,} tokens",
            extra={"stage": progress.step, "tokens": progress.n_tokens, "sentences": progress.n_sentences},
        )


class StepLines:
    """Logs what a run is doing: its stages, the loss or the held-out perplexity, the speed and the time left.

    The first line about training follows after a second, and others at least every ten seconds.
    """

    def __init__(self) -> None:
        self._begin: tuple[float, int] | None = None  # time and step at which training began
        self._interval = LogInterval(first=FIRST_SECONDS)

    def show_stage(self, progress: TrainingProgress) -> None:
        """Log the beginning of a stage, or the speed and the time left if no line was due recently."""
        if progress.stage == "read":
            return  # a line follows after a second, with the number of sentences
        if progress.stage != "train":
            logger.info(_STAGES[progress.stage], extra={"stage": progress.stage})
        elif self._begin is None:
            self._begin = (time.monotonic(), progress.step)
            self._interval = LogInterval(first=FIRST_SECONDS)
            tokens = f"{progress.n_steps:,} steps of {progress.n_tokens:,} tokens"
            resumed = f", from step {progress.step:,}" if progress.step else ""
            logger.info(f"training: {tokens}{resumed}", extra={"stage": "train", "steps": progress.n_steps})
        elif self._interval.is_over():
            fields: dict[str, Any] = {"step": progress.step, "steps": progress.n_steps}
            speed = self._speed(progress, fields)
            logger.info(f"step {progress.step:,} of {progress.n_steps:,}: {speed}", extra=fields)

    def __call__(self, report: StepReport) -> None:
        """Log one report."""
        if self._begin is None:
            self._begin = (time.monotonic(), report.step)
        self._interval.restart()
        fields: dict[str, Any] = {"step": report.step, "steps": report.n_steps, "epoch": report.epoch}
        heldout = {"heldout_forward": report.heldout_forward, "heldout_backward": report.heldout_backward}
        heldout = {name: value for name, value in heldout.items() if value is not None}
        if heldout:
            fields |= heldout
            line = "held-out perplexity " + " / ".join(f"{value:,.1f}" for value in heldout.values())
        else:
            fields["loss"] = report.loss
            line = f"loss {report.loss:.3f}"
        speed = self._speed(report, fields)
        logger.info(f"step {report.step:,} of {report.n_steps:,}: {line}{', ' if speed else ''}{speed}", extra=fields)

    def _speed(self, progress: TrainingProgress | StepReport, fields: dict[str, Any]) -> str:
        """Return the speed and the time left, and add them to the fields of the log record."""
        begin, first = self._begin or (time.monotonic(), progress.step)
        steps, seconds = progress.step - first, time.monotonic() - begin
        if not (steps and seconds):
            return ""
        rate = steps * progress.n_tokens / seconds
        left = (progress.n_steps - progress.step) * seconds / steps
        fields |= {"tokens_per_second": round(rate, 1), "seconds_left": round(left)}
        return f"{rate:,.0f} tokens/s, {format_time(left)} left"
