"""``elmo demo``: the bundled models show that a word's vector follows its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli.options import Model, examples
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.embed.compare import Comparison

EXAMPLES = examples("elmo demo", "elmo demo --model path/to/model --picture words.png")


@dataclass(frozen=True)
class Word:
    """A word of two senses: two sentences of the one, then two of the other."""

    model: str
    word: str
    senses: tuple[str, str]
    sentences: tuple[str, str, str, str]


WORDS = (
    Word(
        "en", "bank", ("money", "river"),
        (
            "The bank lent the company two million dollars.",
            "Her bank gave her a loan to buy the house.",
            "They walked along the bank of the river.",
            "The village lies on the north bank of the stream.",
        ),
    ),
    Word(
        "en", "play", ("theatre", "game"),
        (
            "Shakespeare wrote the play in London.",
            "The actors in the play were very good.",
            "The children play in the garden.",
            "They play football every Sunday.",
        ),
    ),
    Word(
        "zh", "苹果", ("公司", "水果"),
        ("苹果发布了新款手机。", "苹果的股票价格上涨了。", "他每天吃一个苹果。", "桌上有苹果和香蕉。"),
    ),
)  # fmt: skip


def command(
    *,
    model: Model = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw all words, too (.png, .pdf or .svg).", show_default=False
        ),
    ] = None,
) -> None:
    """Show what this is about: ambiguous words in sentences, a table each.

    English words by --model; without it, words of each language that a model is bundled for.
    """
    if picture:
        from elmo.plots.figure import check

        check(picture)
    found = _compared(model)
    tables = [_lines(word, comparison, 1 + 4 * k) for k, (word, comparison) in enumerate(found)]
    print("\n\n".join("\n".join(lines) for lines in tables))
    if picture:
        from elmo.plots.compare import draw_words

        draw_words([comparison for _, comparison in found], picture)
        logger.info("%s: written", picture)


def _compared(model: str | None) -> list[tuple[Word, Comparison]]:
    from elmo import models
    from elmo.embed.compare import compare
    from elmo.embed.elmo import Elmo
    from elmo.errors import MissingExtraError

    if model is None:
        models.folder()  # an installation without any says what to give instead
    there = models.names() if model is None else (models.DEFAULT,)
    wanted = [word for word in WORDS if word.model in there]
    loaded: dict[str, Elmo] = {}
    found: list[tuple[Word, Comparison]] = []
    for word in wanted:
        try:
            if word.model not in loaded:
                loaded[word.model] = Elmo.from_pretrained(model or models.folder(word.model))
        except MissingExtraError as error:
            if word.model != "zh":  # which is an extra
                raise
            logger.warning("%s is left out: %s", word.word, error)
            continue
        found.append((word, compare(loaded[word.model], word.word, word.sentences)))
    return found


def _lines(word: Word, comparison: Comparison, first: int) -> list[str]:
    """The sentences, counted from ``first`` as in the picture, the layers' average, and what it says."""
    a, b, c, d = numbers = range(first, first + 4)
    lines = [f"{word.word}: {word.senses[0]} ({a}, {b}) and {word.senses[1]} ({c}, {d})", ""]
    for number, use in zip(numbers, comparison.uses, strict=True):
        lines.append(f" {number:2}  {use.marked(one_line)}")
    matrix = comparison.matrices["average"]
    lines += ["", "     " + "".join(f"{number:8}" for number in numbers)]
    for number, row in zip(numbers, matrix.tolist(), strict=True):
        lines.append(f" {number:2}  " + "".join(f"{value:8.2f}" for value in row))
    same = (matrix[0, 1] + matrix[2, 3]) / 2
    other = float(matrix[:2, 2:].mean())
    verdict = "" if same > other else ": this model does not tell the senses apart"
    return [*lines, "", f"  alike in the same sense {same:.2f}, in the other {other:.2f}{verdict}"]
