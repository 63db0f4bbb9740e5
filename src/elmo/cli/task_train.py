"""``elmo task train``: train a task model on labeled files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli.console import logger
from elmo.cli.generate import options_from
from elmo.cli.options import AsJson, Model, examples
from elmo.cli.task_options import DATA, FLAGS, KINDS, METAVARS, Cache, format_score, is_bar_shown, score_lines
from elmo.cli.train import StepLines
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.tasks.fit import Epoch
    from elmo.tasks.model import TaskModel

EXAMPLES = examples(
    "elmo task train tagging train.conll --out a.safetensors --epochs 2",
    "elmo task train classification texts.tsv --out b.safetensors",
    "elmo task train roles roles.tsv --out c.safetensors --elmo both",
    "elmo task train tagging train.conll --out d.safetensors --vectors v",
    "elmo task train tagging train.conll --out e.safetensors --adapt 1",
)


@options_from(
    "elmo.tasks.run:train",
    skip=("out", "model", "cache", "on_epoch", "on_adapt", "show_progress"),
    panels={
        "Features": (
            "elmo", "top_only", "layer_norm", "mix_penalty", "elmo_dropout", "tune_bilm", "adapt", "start",
            "vectors", "tune_vectors", "characters", "also",
        ),
        "Network": ("network", "hidden", "layers", "dropout", "crf"),
        "Training": ("epochs", "patience", "batch_size", "learning_rate", "seed", "settings"),
        "Data": DATA,
        "Cache": ("no_cache", "cache_limit"),
    },
    flags={**FLAGS, "crf": "--crf/--no-crf", "settings": "--set"},
    metavars={
        **METAVARS, "dev": "FILE", "adapt": "EPOCHS", "vectors": "FILE", "settings": "TABLE.NAME=VALUE",
        "cache_limit": "GB",
    },
    minimums={
        "characters": 0, "hidden": 1, "layers": 1, "epochs": 1, "patience": 1, "batch_size": 1, "seed": 0,
        "cache_limit": 0.0,
    },
)  # fmt: skip
def command(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{KINDS}.", show_default=False)],
    train: Annotated[
        list[str], typer.Argument(metavar="TRAIN", help="Training files, plain or compressed.", show_default=False)
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE.safetensors", help="The model file to write.", show_default=False)],
    model: Model = None,
    cache: Cache = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw the learned layer weights (.png, .pdf or .svg).", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Train a task model and write it to one file.

    If a run was stopped, the same command resumes it after its last epoch: until the model is written,
    checkpoints are in FILE.training. The model file contains everything except a frozen biLM, which it
    refers to.
    """
    from elmo.tasks.run import train as train_task
    from elmo.tasks.run import training_folder

    if picture is not None:
        from elmo.plots.figure import check_picture

        check_picture(picture)
    context.obj.after_interrupt = partial(_resume_hint, training_folder(out), is_adapted=bool(options["adapt"]))
    with (
        context.obj.show_log("elmo.tasks.run"),
        context.obj.show_log("elmo.tasks.features.store"),
        context.obj.show_log("elmo.tasks.adapt"),
    ):
        trained = train_task(
            kind,
            train,
            out=out,
            model=model,
            cache=cache,
            on_epoch=_log_epoch,
            on_adapt=None if context.obj.is_quiet else StepLines(),
            show_progress=is_bar_shown(context.obj),
            **options,
        )
    values = _values(trained, out)
    print(json.dumps(values) if as_json else "\n".join(map(one_line, _lines(values))))
    logger.info("wrote %s", out)
    if picture is not None:
        _draw(trained, out, picture)


def _resume_hint(folder: Path, *, is_adapted: bool) -> str:
    """Return what to do after Ctrl-C; an adaptation has its own checkpoints."""
    from elmo.train.checkpoint import Checkpoints

    if is_adapted or Checkpoints(folder).steps():
        return "; run the same command again to resume after the last epoch"
    return "; no epoch was finished: the same command starts again from the beginning"


def _log_epoch(epoch: Epoch) -> None:
    scores = ", ".join(f"{name.replace('_', ' ')} {format_score(name, value)}" for name, value in epoch.scores.items())
    best = ", best so far" if epoch.is_best else ""
    logger.info(f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, {scores}{best}", extra=asdict(epoch))


def _values(model: TaskModel, out: Path) -> dict[str, Any]:
    best = model.best_epoch
    return {
        "model": str(out),
        "kind": model.task.kind,
        "train": model.n_train,
        "dev": model.n_dev,
        "best_epoch": best.epoch,
        "scores": best.scores,
        "mixes": best.mixes,
        "epochs": [asdict(epoch) for epoch in model.epochs],
    }


def _lines(values: Mapping[str, Any]) -> list[str]:
    """Return the scores of the best epoch, and the learned layer weights."""
    lines = [
        f"{'train':20}{values['train']:>9,} examples",
        f"{'dev':20}{values['dev']:>9,} examples",
        f"{'best epoch':20}{values['best_epoch']:>9} of {len(values['epochs'])}",
        *score_lines(values["scores"]),
    ]
    for position, mix in values["mixes"].items():
        weights = ", ".join(f"{k}: {share:.2f}" for k, share in enumerate(mix["shares"]))
        lines.append(f"layer weights at the {position}: {weights}; gamma {mix['gamma']:.2f}")
    return lines


def _draw(model: TaskModel, out: Path, picture: Path) -> None:
    from elmo.plots.tasks import draw_mixes, learned_mixes

    if mixes := learned_mixes(model, out.stem):
        draw_mixes(mixes, picture)
        logger.info("wrote %s", picture)
    else:
        logger.warning("did not draw %s: a model without ELMo has no layer weights", picture)
