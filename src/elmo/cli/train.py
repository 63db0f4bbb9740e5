"""``elmo train``: raw text in, a model out, with progress on the way; stopped and started again at will."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli.options import Errors, Inputs, examples
from elmo.cli.report import logger

if TYPE_CHECKING:
    from elmo.train.loop import Report

EXAMPLES = examples(
    "elmo train corpus.txt --out trained --preset tiny --epochs 1",
    "elmo train corpus.txt --out other --preset tiny --optimiser adamw",
)


def command(
    context: typer.Context,
    inputs: Inputs,
    *,
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A new folder for the model.", show_default=False)
    ],
    preset: Annotated[
        Literal["tiny", "mini", "small", "medium", "original"],
        typer.Option(help="The last three are the published sizes."),
    ] = "small",
    epochs: Annotated[float, typer.Option(metavar="N", help="How often the text is read.")] = 10,
    input_format: Annotated[
        Literal["text", "tokens", "conllu"],
        typer.Option("--format", help="Raw text, tokens parted by spaces a sentence a line, or CoNLL-U."),
    ] = "text",
    tokenizer: Annotated[
        str, typer.Option(metavar="en|zh|whitespace|spacy:xx", help="How raw text is cut into tokens.")
    ] = "en",
    errors: Errors = "strict",
    heldout: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="A share of the sentences, or a number of them.", show_default="about 1%"
        ),
    ] = None,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Leave out sentences that came before.")
    ] = False,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="Read the text in its order, not in shuffled blocks.")
    ] = False,
    vocabulary: Annotated[
        int, typer.Option(min=4, metavar="N", help="Words to predict, by falling count.")
    ] = 50_000,
    samples: Annotated[
        int, typer.Option(min=0, metavar="N", help="Words a prediction is held against; 0 is all.")
    ] = 8192,
    optimiser: Annotated[
        Literal["adagrad", "adamw"], typer.Option(help="Adagrad is what was published.")
    ] = "adagrad",
    learning_rate: Annotated[
        float | None, typer.Option(metavar="X", show_default="0.2 for adagrad, 0.001 for adamw")
    ] = None,
    dropout: Annotated[float, typer.Option(metavar="X", help="On what each layer reads.")] = 0.1,
    rows: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Texts read side by side.", show_default="128, or fewer"),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same model.")] = 0,
) -> None:
    """Train a model on raw text, in any language.

    A run that was stopped goes on after its last checkpoint when the same command is given again. Corpus,
    checkpoints and log.jsonl lie in FOLDER.training.
    """
    from elmo.train.recipe import train_bilm
    from elmo.train.schedule import Optimisation

    rate = learning_rate if learning_rate is not None else {"adagrad": 0.2, "adamw": 0.001}[optimiser]
    given: dict[str, Any] = {} if rows is None else {"n_rows": rows}
    context.obj.after_interrupt = "; give the same command again to go on after the last checkpoint"
    train_bilm(
        inputs,
        out,
        preset=preset,
        epochs=epochs,
        tokenizer=tokenizer,
        corpus_options={
            "input_format": input_format,
            "errors": errors,
            "heldout": None if heldout is None else (heldout if heldout < 1 else int(heldout)),
            "deduplicate": deduplicate,
            "keep_order": keep_order,
        },
        on_report=None if context.obj.is_quiet else _Told(),
        n_vocab=vocabulary,
        n_samples=samples or None,
        dropout=dropout,
        keep_order=keep_order,
        seed=seed,
        optimisation=Optimisation(optimiser=optimiser, learning_rate=rate),
        **given,
    )
    logger.info("%s: written", out)


class _Told:
    """A line for each report: loss or perplexity, speed, time left."""

    def __init__(self) -> None:
        self._begin: tuple[float, int] | None = None  # when, and at which step, this process began

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if self._begin is None:
            self._begin = (now, report.step)
        fields: dict[str, Any] = {"step": report.step, "steps": report.n_windows, "epoch": report.epoch}
        if report.heldout_forward is not None:
            fields |= {"heldout_forward": report.heldout_forward, "heldout_backward": report.heldout_backward}
            told = f"held-out perplexity {report.heldout_forward:,.1f} / {report.heldout_backward:,.1f}"
        else:
            fields["loss"] = report.loss
            told = f"loss {report.loss:.3f}"
        steps, seconds = report.step - self._begin[1], now - self._begin[0]
        if steps and seconds:
            rate = steps * report.n_tokens / seconds
            left = (report.n_windows - report.step) * seconds / steps
            fields |= {"tokens_per_second": round(rate, 1), "seconds_left": round(left)}
            told += f", {rate:,.0f} tokens/s, {_time(left)} left"
        logger.info(f"step {report.step:,} of {report.n_windows:,}: {told}", extra=fields)


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"
