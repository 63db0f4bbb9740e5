"""``elmo task train``: labelled examples in, a model of a task out; stopped and started again at will."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli.options import AsJson, Model, Start, Tokenizer, examples
from elmo.cli.report import logger, one_line
from elmo.cli.task_options import (
    TOKENISED,
    Also,
    Assignments,
    Cache,
    CacheLimit,
    Column,
    FileFormat,
    Header,
    NoCache,
    Separator,
    TextColumn,
    assigned,
    cutting,
    head_options,
    is_bar_shown,
    layer_cache,
    read,
    reader_options,
    score_lines,
    shown_score,
)
from elmo.cli.train import watching

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.tasks.features.static import StaticVectors
    from elmo.tasks.fit import Epoch
    from elmo.tasks.model import TaskModel

KINDS = "tagging, classification, entailment, similarity, answers, roles or coreference"
EXAMPLES = examples(
    "elmo task train tagging train.conll --out a.safetensors --epochs 2",
    "elmo task train classification texts.tsv --out b.safetensors",
    "elmo task train roles roles.tsv --out c.safetensors --elmo both",
    "elmo task train tagging train.conll --out d.safetensors --vectors v",
    "elmo task train tagging train.conll --out e.safetensors --adapt 1",
)
SUFFIX = ".safetensors"
_HELD_OUT = 10  # one in so many groups of examples

_words = partial(typer.Option, rich_help_panel="Vectors of words")
_network = partial(typer.Option, rich_help_panel="The network", show_default="by the kind")
_learning = partial(typer.Option, rich_help_panel="How it learns")


def command(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{KINDS}.", show_default=False)],
    train: Annotated[
        list[str],
        typer.Argument(metavar="TRAIN", help="Files to learn from, compressed or not.", show_default=False),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar=f"FILE{SUFFIX}", help="The new model.", show_default=False)],
    dev: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Files to measure on after each epoch.", show_default="a tenth of TRAIN"
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model of that name.")] = False,
    model: Model = None,
    elmo: Annotated[
        Literal["none", "input", "output", "both"],
        _words("--elmo", help="Where the network is given ELMo's vectors."),
    ] = "input",
    top_only: Annotated[bool, _words("--top-only", help="The top layer alone, no mix.")] = False,
    layer_norm: Annotated[
        bool, _words("--layer-norm", help="Normalise layers before they are mixed.")
    ] = False,
    mix_penalty: Annotated[
        float, _words(metavar="X", help="On the mix's weights; much gives all layers equal shares.")
    ] = 0.001,
    elmo_dropout: Annotated[float, _words(metavar="X", help="On ELMo's vectors.")] = 0.5,
    tune_bilm: Annotated[bool, _words("--tune-bilm", help="Train the biLM, too; slow.")] = False,
    adapt: Annotated[
        float | None,
        _words(
            metavar="EPOCHS",
            help="First train the biLM on the text of TRAIN, as a language model.",
            show_default=False,
        ),
    ] = None,
    start: Start = "zero",
    vectors: Annotated[
        Path | None, _words(metavar="FILE", help="Static vectors: GloVe, word2vec, fastText.")
    ] = None,
    tune_vectors: Annotated[bool, _words("--tune-vectors", help="Train the static vectors, too.")] = False,
    characters: Annotated[
        int, _words(min=0, metavar="N", help="Width of vectors made of a word's characters.")
    ] = 0,
    also: Also = None,
    network: Annotated[
        Literal["biattentive", "linear"] | None, _network("--network", help="Of classification.")
    ] = None,
    hidden: Annotated[int | None, _network(min=1, metavar="N", help="Width of its states.")] = None,
    layers: Annotated[int | None, _network(min=1, metavar="N", help="Of tagging and roles.")] = None,
    dropout: Annotated[float | None, _network(metavar="X", help="Inside it.")] = None,
    crf: Annotated[
        bool | None, _network("--crf/--no-crf", help="Of tagging.", show_default="where tags mark spans")
    ] = None,
    epochs: Annotated[int, _learning(min=1, metavar="N", help="At most.")] = 50,
    patience: Annotated[int, _learning(min=1, metavar="N", help="Epochs to wait for a better score.")] = 6,
    batch_size: Annotated[int, _learning(min=1, metavar="N", help="Examples of a batch.")] = 32,
    learning_rate: Annotated[
        float | None, _learning(metavar="X", help="AdamW's.", show_default="0.005 for tagging, else 0.001")
    ] = None,
    seed: Annotated[int, _learning(min=0, metavar="N", help="The same seed gives the same model.")] = 1,
    assignments: Assignments = None,
    column: Column = None,
    text_column: TextColumn = None,
    file_format: FileFormat = None,
    header: Header = None,
    separator: Separator = None,
    tokenizer: Tokenizer = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    cache_limit: CacheLimit = 20.0,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw the layers' shares in the mixes (.png, .pdf or .svg).",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model of a task; the one file holds all of it but a frozen biLM, which it names.

    A run that was stopped goes on after its last epoch when the same command is given again: until the
    model is written, checkpoints lie in FILE.training.
    """
    from elmo.embed.elmo import Elmo
    from elmo.storage.atomic import hold_lock
    from elmo.tasks.features.encoders import TransformerEncoder
    from elmo.tasks.features.layer import Features
    from elmo.tasks.features.store import FeatureStore
    from elmo.tasks.fit import FitOptions
    from elmo.tasks.kinds.registry import task_class
    from elmo.tasks.model import TaskModel

    task_class(kind)  # mistakes are told before a large model is loaded
    _check_out(out, inputs=[*train, *(dev or ())], is_replaced=overwrite)
    if picture is not None:
        from elmo.plots.figure import check

        check(picture)
    more = assigned(context, kind, assignments)
    asked = {"network": network, "hidden": hidden, "layers": layers, "dropout": dropout, "crf": crf}
    head = head_options(kind, asked, more["head"])
    reading = reader_options(
        kind,
        column=column,
        text_column=text_column,
        file_format=file_format,
        header=header,
        separator=separator,
    )
    choice = Features(
        **{
            "elmo": elmo,
            "top_only": top_only,
            "layer_norm": layer_norm,
            "dropout": elmo_dropout,
            "mix_penalty": mix_penalty,
            "is_bilm_tuned": tune_bilm,
            "is_static_tuned": tune_vectors,
            "characters": characters,
            **more["words"],
        }
    )
    rate = {} if learning_rate is None else {"learning_rate": learning_rate}
    options = FitOptions.for_kind(
        kind,
        **{
            "epochs": epochs,
            "patience": patience,
            "batch_size": batch_size,
            "seed": seed,
            **rate,
            **more["fit"],
        },
    )

    @once
    def bilm() -> Elmo | None:
        return None if choice.elmo == "none" else Elmo.from_pretrained(model)

    cut, chosen = cutting(tokenizer, bilm)
    learned = read(kind, train, cut=cut, options=reading).examples
    measured = read(kind, dev, cut=cut, options=reading).examples if dev else None
    is_held_out = measured is None
    if measured is None:
        learned, measured = _held_out(learned, seed=options.seed)
    task: Any = task_class(kind).of(learned, head)  # pyright: ignore[reportArgumentType]
    sources = FeatureStore(
        choice,
        bilm(),
        None if vectors is None else _static(vectors, [*learned, *measured]),
        tuple(TransformerEncoder(name) for name in also or ()),
        layer_cache(cache, has_none=no_cache, limit=cache_limit),
        start,
    )
    if tokenizer is not None and kind in TOKENISED:
        logger.warning("--tokenizer is for raw text; labelled files of %s have their own words", kind)
    if is_held_out:
        of_all = f"{len(measured):,} of {len(learned) + len(measured):,}"
        logger.info("%s examples are held out to measure on (--dev names others)", of_all)
    folder = _beside(out)
    context.obj.after_interrupt = partial(_what_is_kept, folder, is_adapted=bool(adapt))
    with (
        hold_lock(out.with_name(f".{out.name}.lock"), subject=out),
        context.obj.showing("elmo.tasks.features.store"),
        context.obj.showing("elmo.tasks.adapt"),
    ):
        if folder.exists():
            logger.info("%s: going on with the run that was begun", folder)
        found = TaskModel.train(
            task,
            learned,
            measured,
            sources=sources,
            options=options,
            adapt=adapt,
            elmo_name=_lasting(model) if choice.elmo != "none" else None,
            folder=folder,
            on_epoch=_tell,
            on_adapt=watching(context.obj, out, has_tensorboard=False)["on_report"],
            show_progress=is_bar_shown(context.obj),
        )
        # how text was cut, and files were read, for those who measure or use the model
        name = tokenizer if kind in TOKENISED else chosen().name
        found.reading = {"tokenizer": name, "options": reading}
        found.save(out)
        _forget(folder)
    values = _values(found, out, n_train=len(learned), n_dev=len(measured))
    print(json.dumps(values) if as_json else "\n".join(map(one_line, _lines(values))))
    logger.info("%s: written", out)
    if picture is not None:
        _draw(found, out, picture)


def _beside(out: Path) -> Path:
    """Where checkpoints go; the folders that it and the model lie in are made."""
    from elmo.storage.atomic import make_parents

    make_parents(out)
    return out.with_name(f"{out.name}.training")


def _what_is_kept(folder: Path, *, is_adapted: bool) -> str:
    """What to do after Ctrl-C; a biLM that is adapted first keeps checkpoints of its own."""
    from elmo.train.checkpoint import Checkpoints

    if is_adapted or Checkpoints(folder).steps():
        return "; give the same command again to go on after the last epoch"
    return "; no epoch was kept yet: the same command begins the training anew"


def _lasting(model: str | None) -> str | None:
    """A path as it is known from every folder; a bundled model or a Hub id as it is."""
    from elmo import models

    is_path = model is not None and model not in models.names() and Path(model).exists()
    return str(Path(model).resolve()) if is_path and model else model


def _check_out(out: Path, *, inputs: Sequence[str], is_replaced: bool) -> None:
    from elmo.errors import OutputError
    from elmo.storage.atomic import check_output_file
    from elmo.storage.files import format_path

    if out.suffix != SUFFIX:
        raise OutputError(f"{format_path(out)}: expected a name that ends in {SUFFIX}")
    check_output_file(out)
    if out.is_dir():
        raise OutputError(f"{format_path(out)}: expected a file name, found a folder")
    if out.resolve() in (Path(one).resolve() for one in inputs if one != "-"):
        raise OutputError(f"{format_path(out)}: is one of the inputs; put it elsewhere")
    if out.exists() and not is_replaced:
        raise OutputError(f"{format_path(out)}: is there already; --overwrite replaces it, or name another")


def _held_out(examples: Sequence[Any], *, seed: int) -> tuple[list[Any], list[Any]]:
    """A tenth of the examples, by chance; those that share a sentence or a passage stay together."""
    import numpy as np

    from elmo.errors import DataError

    groups: dict[Any, list[Any]] = {}
    for example in examples:
        groups.setdefault(example.sentences[0], []).append(example)
    if len(groups) < 2:
        raise DataError("expected two different examples or more to hold some out, found one; give --dev")
    order = np.random.default_rng((seed, len(groups))).permutation(len(groups))
    held = set(order[: max(1, round(len(groups) / _HELD_OUT))].tolist())
    is_held = {words: place in held for place, words in enumerate(groups)}
    parts: tuple[list[Any], list[Any]] = ([], [])
    for example in examples:
        parts[is_held[example.sentences[0]]].append(example)
    return parts


def _static(path: Path, examples: Sequence[Any]) -> StaticVectors:
    from elmo.tasks.features.static import read_static

    words = {word for example in examples for sentence in example.sentences for word in sentence}
    found = read_static(path, wanted=words)
    n_found = sum(found.place(word) >= 0 for word in words)
    logger.info("%s: vectors of %s of %s words", path, f"{n_found:,}", f"{len(words):,}")
    return found


def _tell(epoch: Epoch) -> None:
    scores = ", ".join(
        f"{name.replace('_', ' ')} {shown_score(name, value)}" for name, value in epoch.scores.items()
    )
    best = ", best so far" if epoch.is_best else ""
    logger.info(f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, {scores}{best}", extra=asdict(epoch))


def _forget(folder: Path) -> None:
    """Checkpoints have done their duty when the model stands."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning("%s: cannot be removed; it is of no use any more", folder)


def _values(model: TaskModel, out: Path, *, n_train: int, n_dev: int) -> dict[str, Any]:
    best = next(epoch for epoch in reversed(model.epochs) if epoch.is_best)
    return {
        "model": str(out),
        "kind": model.task.kind,
        "train": n_train,
        "dev": n_dev,
        "best_epoch": best.epoch,
        "scores": best.scores,
        "mixes": best.mixes,
        "epochs": [asdict(epoch) for epoch in model.epochs],
    }


def _lines(values: Mapping[str, Any]) -> list[str]:
    """The best epoch's figures, and what the mixes learned."""
    lines = [
        f"{'train':20}{values['train']:>9,} examples",
        f"{'dev':20}{values['dev']:>9,} examples",
        f"{'best epoch':20}{values['best_epoch']:>9} of {len(values['epochs'])}",
        *score_lines(values["scores"]),
    ]
    for place, mix in values["mixes"].items():
        shares = ", ".join(f"{k}: {share:.2f}" for k, share in enumerate(mix["shares"]))
        lines.append(f"the mix's shares at the {place}: {shares}; gamma {mix['gamma']:.2f}")
    return lines


def _draw(model: TaskModel, out: Path, picture: Path) -> None:
    from elmo.plots.tasks import draw_mixes, learned_mixes

    if mixes := learned_mixes(model, out.stem):
        draw_mixes(mixes, picture)
        logger.info("%s: written", picture)
    else:
        logger.warning("%s: a model without ELMo has no mix to draw", picture)
