"""``elmo info``: describe a model, or how this machine computes its vectors."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli import options as opt
from elmo.cli.results import print_results
from elmo.config import TransformerConfig

if TYPE_CHECKING:
    from elmo.config import BiLmConfig, CharCnnConfig, EncoderConfig
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
        values, rows = {**asdict(info), "config": info.config.to_json()}, _rows(info)
    width = max(len(name) for name, _ in rows)
    print_results(values, [f"{name:{width}}  {value}".rstrip() for name, value in rows], as_json=as_json)


def _rows(info: ModelInfo) -> list[tuple[str, str]]:
    from elmo.train import assess_model

    config = info.config
    rows = [
        ("model", info.source),
        ("format", info.format),
        ("parameters", f"{info.n_parameters:,}"),
        ("layers", f"{config.n_layers}, each {config.width} wide"),
        ("tokens", "; ".join(_token_layer(config))),
        ("tokenizer", str(info.metadata.get("tokenizer", "en"))),
        *([("language", str(language))] if (language := info.metadata.get("language")) else []),
        _encoder(config.encoder),
        ("vocabulary", "none" if info.n_words is None else f"{info.n_words:,} words"),
        ("softmax", "yes" if info.has_softmax else "no"),
        ("warm state", "yes" if info.has_warm else "no"),
        ("mix", "yes, published layer weights" if info.has_mix else "no"),
        ("checksum", f"{info.fingerprint} (SHA-256 of config and weights)"),
    ]
    assessment = assess_model(info.metadata, n_words=info.n_words, n_weights=info.n_parameters)
    rows[-1:-1] = [] if assessment is None else list(assessment.lines.items())
    if "sharpened" in info.metadata:
        rows.insert(-1, ("vectors", "transformed by elmo sharpen"))
    if "aligned" in info.metadata:
        rows.insert(-1, ("vectors", "in the coordinates of another model, by elmo align"))
    files = [f"{name}  {size:,} bytes" for name, size in info.files.items()]
    return rows + [("files" if k == 0 else "", line) for k, line in enumerate(files)]


def _token_layer(config: BiLmConfig) -> list[str]:
    parts = []
    if config.chars:
        chars = config.chars
        alphabet = _ALPHABETS.get(str(config.alphabet), f"{chars.n_characters} characters")
        parts.append(
            f"{alphabet}, at most {chars.max_characters} per token, {chars.char_width} wide, "
            f"{chars.n_filters:,} filters ({chars.activation}), {_highways(chars)}"
        )
    if config.words:
        parts.append(f"{config.words.n_words:,} words, {config.words.word_width} wide")
    return parts


def _highways(chars: CharCnnConfig) -> str:
    width = "" if chars.highway_width is None else f", {chars.highway_width:,} wide"
    return f"highway layers: {chars.n_highway}{width}{', normalized' if chars.has_norm else ''}"


def _encoder(encoder: EncoderConfig) -> tuple[str, str]:
    per_direction = f"{encoder.n_layers} per direction"
    if isinstance(encoder, TransformerConfig):
        return "transformers", (
            f"{per_direction}, states {encoder.state_width} wide, {encoder.n_heads} heads, "
            f"{encoder.feed_forward_width} hidden units"
        )
    clips = {"cells": encoder.cell_clip, "states": encoder.state_clip}
    clipped = " and ".join(f"{name} clipped at {clip}" for name, clip in clips.items() if clip is not None)
    return "LSTMs", (
        f"{per_direction}, {encoder.cell_width} cells, states {encoder.state_width} wide, "
        f"{clipped or 'no clipping'}, {'skip connections' if encoder.has_skip else 'no skip connections'}"
    )
