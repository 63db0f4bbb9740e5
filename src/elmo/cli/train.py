"""How far a training run came, in; log lines, and TensorBoard's files on request, out.

``elmo train``: raw text in, a model out, with progress on the way; stopped and started again at will.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli.options import Device, Errors, examples
from elmo.cli.report import logger

if TYPE_CHECKING:
    from elmo.cli.report import Report as Reporter
    from elmo.train.build_corpus import BuildProgress
    from elmo.train.loop import Report


def watching(reporter: Reporter, out: Path, *, has_tensorboard: bool) -> dict[str, Any]:
    """Who is told how far the run is."""
    told: list[Any] = [] if reporter.is_quiet else [_Told()]
    if has_tensorboard:
        from elmo.train.run_folder import RunFolder
        from elmo.train.tensorboard import TensorBoard

        told.append(TensorBoard(RunFolder(out).path / "tensorboard"))

    def tell(report: Report) -> None:
        for each in told:
            each(report)

    return {"on_report": tell, "on_progress": None if reporter.is_quiet else _Read()}


class _Read:
    """A line now and then while the corpus is built."""

    EVERY = 10.0  # seconds

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, progress: BuildProgress) -> None:
        if time.monotonic() - self._last < self.EVERY:
            return
        self._last = time.monotonic()
        share = f"{progress.done / progress.total:.0%}, " if progress.total else ""
        doing = {"read": "reading the text", "write": "writing the corpus"}[progress.step]
        logger.info(
            f"{doing}: {share}{progress.n_sentences:,} sentences, {progress.n_tokens:,} tokens",
            extra={"stage": progress.step, "tokens": progress.n_tokens, "sentences": progress.n_sentences},
        )


class _Told:
    """A line for each report: loss or perplexity, speed, time left."""

    def __init__(self) -> None:
        self._begin: tuple[float, int] | None = None  # when, and at which step, this process began

    def __call__(self, report: Report) -> None:
        now = time.monotonic()
        if self._begin is None:
            self._begin = (now, report.step)
        fields: dict[str, Any] = {"step": report.step, "steps": report.n_windows, "epoch": report.epoch}
        heldout = {
            name: value
            for name in ("heldout_forward", "heldout_backward")
            if (value := getattr(report, name)) is not None
        }
        if heldout:
            fields |= heldout
            told = "held-out perplexity " + " / ".join(f"{value:,.1f}" for value in heldout.values())
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


EXAMPLES = examples(
    "elmo train corpus.txt --out trained --preset tiny --epochs 1",
    "elmo train corpus.txt --out other --preset tiny --optimiser adamw",
    "elmo train corpus.txt --out tuned --from trained --epochs 1",
)
MOST_WORDS = 1 << 20  # that a model folder holds
INPUTS_HELP = "Files, globs or folders, compressed or not; - is stdin."


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _vocabulary(value: str) -> str:
    if _is_number(value) and not 4 <= int(value) <= MOST_WORDS:
        raise typer.BadParameter(f"expected 4 to {MOST_WORDS:,} words, or a file, found {value[:40]}")
    return value


def _cutoffs(value: str | None) -> str | None:
    if value is not None and not all(map(_is_number, value.split(","))):
        raise typer.BadParameter(f"expected numbers like 4000,20000, found {value[:40]!r}")
    return value


_text = partial(typer.Option, rich_help_panel="The text")
_model = partial(typer.Option, rich_help_panel="The model")
_learning = partial(typer.Option, rich_help_panel="How it learns")
_run = partial(typer.Option, rich_help_panel="The run")

Format = Literal["text", "tokens", "conllu"]
Size = Literal["tiny", "mini", "small", "medium", "original"]
TOKENIZERS = "auto|en|zh|whitespace|spacy:xx"


def command(
    context: typer.Context,
    inputs: Annotated[list[str] | None, typer.Argument(metavar="INPUT", help=INPUTS_HELP)] = None,
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder for the model.")],
    input_format: Annotated[
        Format, _text("--format", help="Raw text, tokens parted by spaces a sentence a line, or CoNLL-U.")
    ] = "text",
    tokenizer: Annotated[str, _text(metavar=TOKENIZERS, help="How raw text is cut into tokens.")] = "auto",
    errors: Errors = "strict",
    heldout: Annotated[
        float | None,
        _text(metavar="N", help="A share of the sentences, or a number.", show_default="about 1%"),
    ] = None,
    heldout_file: Annotated[list[str] | None, _text(metavar="INPUT", help="Hold out this text.")] = None,
    deduplicate: Annotated[bool, _text("--deduplicate", help="Leave out repeated sentences.")] = False,
    keep_order: Annotated[
        bool, _text("--keep-order", help="Read the text in its order, not in shuffled blocks.")
    ] = False,
    blank_lines: Annotated[
        bool, _text("--blank-lines", help="A blank line is a sentence without words.")
    ] = False,
    simplified: Annotated[
        bool, _text("--simplified", help="Read Chinese of either script in simplified characters.")
    ] = False,
    vocabulary: Annotated[
        str,
        _text(metavar="N|FILE", callback=_vocabulary, help="Words to predict: so many, or a file of them."),
    ] = "50000",
    preset: Annotated[
        Size | None,
        _model(help="The last three are the published sizes.", show_default="by the size of the text"),
    ] = None,
    reads: Annotated[
        Literal["characters", "words", "both"], _model(help="What the model sees of a word.")
    ] = "characters",
    layers: Annotated[int | None, _model(min=1, metavar="N", help="LSTM layers.")] = None,
    cells: Annotated[int | None, _model(min=1, metavar="N", help="LSTM cells of a layer.")] = None,
    width: Annotated[int | None, _model(min=1, metavar="N", help="Of each direction's vectors.")] = None,
    tied: Annotated[bool, _model("--tied", help="Predict words with the vectors that read them.")] = False,
    direction: Annotated[
        Literal["both", "forward", "backward"], _model(help="Train both language models or one.")
    ] = "both",
    start: Annotated[
        str | None, _model("--from", metavar="MODEL", help="Go on from this model, of any format.")
    ] = None,
    new_vocabulary: Annotated[
        bool, _model("--new-vocabulary", help="With --from: predict this text's words, not the model's.")
    ] = False,
    epochs: Annotated[
        float | None, _learning(metavar="N", help="How often the text is read.", show_default="10")
    ] = None,
    hours: Annotated[
        float | None, _learning(metavar="N", help="Plan size and schedule for so much time.")
    ] = None,
    samples: Annotated[
        int, _learning(min=0, metavar="N", help="Words a prediction is held against; 0 is all.")
    ] = 8192,
    adaptive: Annotated[
        str | None,
        _learning(metavar="N,N", callback=_cutoffs, help="An adaptive softmax: where its parts end."),
    ] = None,
    optimiser: Annotated[
        Literal["adagrad", "adamw", "sgd"], _learning(help="Adagrad is what was published.")
    ] = "adagrad",
    learning_rate: Annotated[
        float | None, _learning(metavar="X", show_default="0.2 for adagrad, 0.001 for adamw, 1 for sgd")
    ] = None,
    warm_up: Annotated[int, _learning(min=0, metavar="N", help="Steps for the rate to rise.")] = 0,
    decay: Annotated[
        Literal["none", "linear", "cosine"], _learning(help="How the rate falls to the end.")
    ] = "none",
    weight_decay: Annotated[float, _learning(metavar="X", help="Of adamw and sgd.")] = 0.0,
    clip: Annotated[float, _learning(metavar="X", help="The gradients' largest norm.")] = 10.0,
    loss_scale: Annotated[float, _learning(metavar="X", help="Times the loss; bilm-tf's is 20.")] = 20.0,
    restarts: Annotated[
        float, _learning(metavar="X", help="Share of windows read from a zero state; bilm-tf's is 0.")
    ] = 0.01,
    sentence_starts: Annotated[
        float, _learning(metavar="X", help="Share of sentences that start from a zero state.")
    ] = 0.0,
    dropout: Annotated[float, _learning(metavar="X", help="On what each layer reads.")] = 0.1,
    input_dropout: Annotated[float | None, _learning(metavar="X", help="On what the first reads.")] = None,
    output_dropout: Annotated[float | None, _learning(metavar="X", help="Before the softmax.")] = None,
    word_dropout: Annotated[float, _learning(metavar="X", help="Of whole words.")] = 0.0,
    weight_drop: Annotated[float, _learning(metavar="X", help="Of state-to-state weights.")] = 0.0,
    variational: Annotated[
        bool, _learning("--variational", help="Drop the same numbers in a whole window.")
    ] = False,
    rows: Annotated[
        int | None,
        _learning(min=1, metavar="N", help="Texts read side by side.", show_default="128, or fewer"),
    ] = None,
    steps: Annotated[int, _learning(min=1, metavar="N", help="Tokens of a window.")] = 20,
    turns: Annotated[
        int, _learning(min=1, metavar="N", help="Read the rows in so many turns, to save memory.")
    ] = 1,
    precision: Annotated[
        Literal["float32", "bfloat16", "float64"], _learning(help="bfloat16 pays where a processor has it.")
    ] = "float32",
    seed: Annotated[int, _learning(metavar="N", help="The same seed gives the same model.")] = 0,
    resume: Annotated[bool, _run("--resume", help="Go on with the run of --out as it was begun.")] = False,
    evaluate_every: Annotated[
        int | None, _run(min=1, metavar="N", help="Steps between two looks at the held-out text.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, _run(min=1, metavar="N", help="Steps between two checkpoints.")
    ] = None,
    tensorboard: Annotated[bool, _run("--tensorboard", help="Write its files, too.")] = False,
    device: Device = "cpu",
    threads: Annotated[int | None, _run(min=1, metavar="N", help="Processors to use.")] = None,
) -> None:
    """Train a model on raw text, in any language.

    A run that was stopped goes on after its last checkpoint when the same command is given again, or with
    --resume. Corpus, checkpoints, log.jsonl and curves.png lie in FOLDER.training.
    """
    from elmo.errors import ConfigError
    from elmo.train.options import Shape
    from elmo.train.run import resume_bilm, train_bilm
    from elmo.train.run_folder import RunFolder

    def after_interrupt() -> str:
        if RunFolder(out).has_begun:
            return "; give the same command again to go on after the last checkpoint"
        return "; no checkpoint was kept yet: the same command begins the training anew"

    context.obj.after_interrupt = after_interrupt
    if os.environ.get("RANK", "0") != "0":
        context.obj.be_quiet()  # of many processes that torchrun began, the first one speaks
    if not resume and not inputs:
        raise typer.BadParameter("Missing argument 'INPUT...'.")
    if resume and inputs:
        raise typer.BadParameter("--resume takes the text of the run that was begun: name no INPUT")
    if resume and (strange := _asked(context, but=("out", "resume", "tensorboard"))):
        raise typer.BadParameter(f"--resume goes on as the run was begun: leave out {', '.join(strange)}")
    if adaptive and _is_asked(context, "samples"):
        raise ConfigError("--samples and --adaptive are two kinds of softmax: give one of them")
    told = watching(context.obj, out, has_tensorboard=tensorboard)
    if resume:
        with context.obj.showing("elmo.train.run"):
            resume_bilm(out, **told)
        return
    # Only what was asked for: the rest follows from the text, the model and the time.
    is_counted = _is_number(vocabulary)
    options: dict[str, Any] = {
        "n_rows": rows,
        "n_vocab": int(vocabulary) if is_counted and _is_asked(context, "vocabulary") else None,
        "evaluate_every": evaluate_every,
        "checkpoint_every": checkpoint_every,
        "is_tied": tied or None,
        "dropout": _only_asked(
            context,
            dropout=("layers", dropout),
            input_dropout=("inputs", input_dropout),
            output_dropout=("outputs", output_dropout),
            word_dropout=("words", word_dropout),
            weight_drop=("weights", weight_drop),
            variational=("is_variational", variational),
        ),
        "optimisation": _only_asked(
            context,
            optimiser=("optimiser", optimiser),
            learning_rate=("learning_rate", learning_rate),
            warm_up=("warm_up_steps", warm_up),
            decay=("decay", decay),
            weight_decay=("weight_decay", weight_decay),
            clip=("clip", clip),
        ),
    }
    with context.obj.showing("elmo.train.run"):
        train_bilm(
            inputs or [],
            out,
            preset=Shape(
                preset,
                reads=reads if _is_asked(context, "reads") else None,
                n_layers=layers,
                cell_width=cells,
                state_width=width,
            ),
            epochs=epochs,
            hours=hours,
            tokenizer=tokenizer,
            start=start,
            has_new_vocabulary=new_vocabulary,
            corpus_options={
                "input_format": input_format,
                "errors": errors,
                "heldout": heldout,
                "heldout_inputs": heldout_file or [],
                "deduplicate": deduplicate,
                "keep_order": keep_order,
                "blank_lines_count": blank_lines,
                **({"is_simplified": True} if simplified else {}),
                **({} if is_counted else {"vocabulary": vocabulary}),
            },
            threads=threads,
            **told,
            n_steps=steps,
            n_samples=None if adaptive else samples or None,
            cutoffs=tuple(int(part) for part in adaptive.split(",")) if adaptive else (),
            directions=direction,
            loss_scale=loss_scale,
            restarts=restarts,
            sentence_starts=sentence_starts,
            keep_order=keep_order,
            precision=precision,
            n_turns=turns,
            seed=seed,
            device=device,
            **{name: value for name, value in options.items() if value is not None},
        )


def _is_asked(context: typer.Context, *names: str) -> bool:
    """Whether the command line says something about one of these options."""
    sources = [context.get_parameter_source(name) for name in names]
    return any(source is not None and source.name != "DEFAULT" for source in sources)


def _only_asked(context: typer.Context, **values: tuple[str, Any]) -> dict[str, Any] | None:
    """What the command line says, by the names of the library; None when it says nothing."""
    return {name: value for option, (name, value) in values.items() if _is_asked(context, option)} or None


def _asked(context: typer.Context, *, but: Collection[str]) -> list[str]:
    """The options of the command line, as they are written there."""
    parameters = [each for each in context.command.params if each.name and each.name not in but]
    return [each.opts[0] for each in parameters if _is_asked(context, str(each.name))]
