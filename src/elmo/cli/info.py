"""``elmo info``: a model in, what it is out."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli.options import MODEL_HELP, AsJson, Precision, examples
from elmo.cli.report import one_line

if TYPE_CHECKING:
    from elmo.config import BiLmConfig
    from elmo.formats.loading import ModelInfo

EXAMPLES = examples(
    "elmo info",
    "elmo info path/to/model --json",
    "elmo info --engine",
    "elmo info path/to/model --engine --precision bfloat16",
)

_ALPHABETS = {"bytes": "UTF-8 bytes", "simplified": "UTF-8 bytes, Chinese simplified"}


def command(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", envvar="ELMO_MODEL", help=MODEL_HELP, show_default=False)
    ] = None,
    engine: Annotated[
        bool, typer.Option("--engine", help="Show instead how this machine computes it, and why so.")
    ] = False,
    precision: Precision = "float32",
    as_json: AsJson = False,
) -> None:
    """Show a model's format, sizes, vocabulary and checksum; or how it is computed here."""
    from elmo.formats.loading import describe

    if precision != "float32" and not engine:
        raise typer.BadParameter("--precision goes with --engine")
    if engine:
        found = _engine(model, precision)
        if as_json:
            print(json.dumps(found))
            return
        rows = list(found.items())
    else:
        info = describe(model)
        if as_json:
            print(json.dumps(asdict(info), default=str))
            return
        rows = _rows(info)
    size = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(one_line(f"{name:{size}}  {value}").rstrip())


def _engine(model: str | None, precision: str) -> dict[str, str]:
    """The weights are loaded and prepared for it: some shapes decide, and are tried out."""
    from elmo.embed.elmo import Elmo

    return Elmo.from_pretrained(model, dtype=precision).engine()


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
        ("mix", "yes, the publisher's weights of the layers" if info.has_mix else "no"),
        ("checksum", f"{info.fingerprint} (SHA-256 of config and weights)"),
    ]
    if "sharpened" in info.metadata:
        rows.insert(-1, ("vectors", "turned by elmo sharpen"))
    files = [f"{name}  {size:,} bytes" for name, size in info.files.items()]
    rows += [("files" if k == 0 else "", line) for k, line in enumerate(files)]
    return rows


def _token_layer(config: BiLmConfig) -> list[str]:
    """What a token's first vector is made of."""
    parts = []
    if config.chars:
        chars = config.chars
        kind = _ALPHABETS.get(str(config.alphabet), f"{chars.n_characters} characters")
        parts.append(
            f"{kind}, at most {chars.max_characters} a token, {chars.char_width} wide, "
            f"{chars.n_filters:,} filters ({chars.activation}), highway layers: {chars.n_highway}"
        )
    if config.words:
        parts.append(f"{config.words.n_words:,} words, {config.words.word_width} wide")
    return parts


def _lstms(config: BiLmConfig) -> str:
    lstm = config.lstm
    skip = "skip connections" if lstm.has_skip else "no skip connections"
    limits = {"cells": lstm.cell_clip, "states": lstm.state_clip}
    clips = " and ".join(f"{name} clipped at {limit}" for name, limit in limits.items() if limit is not None)
    clips = clips or "not clipped"
    return (
        f"{lstm.n_layers} each way, {lstm.cell_width} cells, states {lstm.state_width} wide, {clips}, {skip}"
    )
