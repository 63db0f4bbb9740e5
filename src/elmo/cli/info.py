"""``elmo info``: describe a model, or how this machine computes its vectors."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli import options as opt
from elmo.cli.results import print_results

if TYPE_CHECKING:
    from elmo.config import BiLmConfig
    from elmo.formats import ModelInfo

EXAMPLES = opt.examples(
    "elmo info",
    "elmo info path/to/model --json",
    "elmo info --engine",
    "elmo info path/to/model --engine --precision bfloat16",
)

_ALPHABETS = {"bytes": "UTF-8 bytes", "simplified": "UTF-8 bytes of simplified Chinese"}


def command(
    model: Annotated[str | None, opt.argument(metavar="MODEL", envvar="ELMO_MODEL", help=opt.MODEL_HELP)] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Show how vectors are computed on this machine, and why.")
    ] = False,
    precision: opt.Precision = "float32",
    as_json: opt.AsJson = False,
) -> None:
    """Show the format, sizes, vocabulary and checksum of a model."""
    if precision != "float32" and not engine:
        raise typer.BadParameter("--precision requires --engine")
    if engine:
        from elmo import Elmo

        values = Elmo.from_pretrained(model, dtype=precision).engine()
        rows = list(values.items())
    else:
        from elmo.formats import describe

        info = describe(model)
        values, rows = asdict(info), _rows(info)
    width = max(len(name) for name, _ in rows)
    print_results(values, [f"{name:{width}}  {value}".rstrip() for name, value in rows], as_json=as_json)


def _rows(info: ModelInfo) -> list[tuple[str, str]]:
    config = info.config
    rows = [
        ("model", info.source),
        ("format", info.format),
        ("parameters", f"{info.n_parameters:,}"),
        ("layers", f"{config.n_layers}, each {config.width} wide"),
        ("tokens", "; ".join(_token_layer(config))),
        ("tokenizer", str(info.metadata.get("tokenizer", "en"))),
        ("LSTMs", _lstms(config)),
        ("vocabulary", "none" if info.n_words is None else f"{info.n_words:,} words"),
        ("softmax", "yes" if info.has_softmax else "no"),
        ("warm state", "yes" if info.has_warm else "no"),
        ("mix", "yes, published layer weights" if info.has_mix else "no"),
        ("checksum", f"{info.fingerprint} (SHA-256 of config and weights)"),
    ]
    if "sharpened" in info.metadata:
        rows.insert(-1, ("vectors", "transformed by elmo sharpen"))
    files = [f"{name}  {size:,} bytes" for name, size in info.files.items()]
    return rows + [("files" if k == 0 else "", line) for k, line in enumerate(files)]


def _token_layer(config: BiLmConfig) -> list[str]:
    parts = []
    if config.chars:
        chars = config.chars
        alphabet = _ALPHABETS.get(str(config.alphabet), f"{chars.n_characters} characters")
        parts.append(
            f"{alphabet}, at most {chars.max_characters} per token, {chars.char_width} wide, "
            f"{chars.n_filters:,} filters ({chars.activation}), highway layers: {chars.n_highway}"
        )
    if config.words:
        parts.append(f"{config.words.n_words:,} words, {config.words.word_width} wide")
    return parts


def _lstms(config: BiLmConfig) -> str:
    lstm = config.lstm
    clips = {"cells": lstm.cell_clip, "states": lstm.state_clip}
    clipped = " and ".join(f"{name} clipped at {clip}" for name, clip in clips.items() if clip is not None)
    return (
        f"{lstm.n_layers} per direction, {lstm.cell_width} cells, states {lstm.state_width} wide, "
        f"{clipped or 'no clipping'}, {'skip connections' if lstm.has_skip else 'no skip connections'}"
    )
