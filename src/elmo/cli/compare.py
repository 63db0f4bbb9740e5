"""``elmo compare``: compare a word across sentences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli.console import logger, warn_about_script
from elmo.cli.options import AsJson, Device, Layers, Model, Picture, Start, Tokenizer, examples, parse_layers
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.embed.comparison import Comparison

EXAMPLES = examples(
    "elmo compare bank 'the bank of the river' 'the bank has money'",
    "elmo compare bank 'a bank' 'two [[banks]]' 'BANK' --json",
    "elmo compare 苹果 '他每天吃一个苹果' '苹果发布了新款手机' --model zh",
    "elmo compare bank 'a bank' 'the bank' --picture bank.png",
)


def command(
    word: Annotated[
        str, typer.Argument(metavar="WORD", help="A word, or a phrase such as 'New York'.", show_default=False)
    ],
    sentences: Annotated[
        list[str],
        typer.Argument(
            metavar="SENTENCE",
            help="Two or more sentences with the word; mark an occurrence like [[this]] to select it.",
            show_default=False,
        ),
    ],
    *,
    model: Model = None,
    layers: Layers = "all",
    picture: Picture = None,
    as_json: AsJson = False,
    tokenizer: Tokenizer = None,
    start: Start = "zero",
    device: Device = "cpu",
) -> None:
    """Compare a word in two or more sentences: a similarity matrix per layer."""
    from elmo.embed.comparison import compare
    from elmo.embed.elmo import Elmo

    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    warn_about_script(elmo.tokenizer, sentences)
    comparison = compare(elmo, word, sentences, layers=parse_layers(layers), start=start)
    if as_json:
        print(json.dumps(comparison.to_json()))
    else:
        print("\n".join(_format_lines(comparison)))
    if picture:
        from elmo.plots.compare import draw_comparison

        draw_comparison(comparison, picture)
        logger.info("wrote %s", picture)


def _format_lines(comparison: Comparison) -> list[str]:
    """Format the sentences, then a table per layer."""
    labels = [f"S{k}" for k in range(1, len(comparison.uses) + 1)]
    size = max(map(len, labels))
    lines = []
    for label, use in zip(labels, comparison.uses, strict=True):
        lines.append(f"{label:{size}}  {use.marked(one_line)}")
    for name, matrix in comparison.matrices.items():
        title = f"layer {name}" if name.isdigit() else name
        lines += ["", f"{title:{max(size, 8)}}" + "".join(f"{label:>8}" for label in labels)]
        for label, row in zip(labels, matrix.tolist(), strict=True):
            lines.append(f"{label:{max(size, 8)}}" + "".join(f"{value:8.3f}" for value in row))
    return lines
