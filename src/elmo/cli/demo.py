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

EXAMPLES = examples("elmo demo --model model", "elmo demo --model model --picture words.png")


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
            "She took the money to the bank.",
            "The bank raised its interest rates.",
            "I sat by the bank of the river.",
            "The boat drifted to the far bank.",
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
    """Show what this is about: ambiguous words in sentences, by the bundled models.

    With --model, the English words by that one.
    """
    if picture:
        from elmo.embed.figure import check

        check(picture)
    found = _compared(model)
    print("\n\n".join("\n".join(_lines(word, comparison)) for word, comparison in found))
    if picture:
        from elmo.embed.picture import draw_words

        draw_words([comparison for _, comparison in found], picture)
        logger.info("%s: written", picture)


def _compared(model: str | None) -> list[tuple[Word, Comparison]]:
    from elmo import models
    from elmo.embed.compare import compare
    from elmo.embed.elmo import Elmo
    from elmo.errors import MissingExtraError

    wanted = [word for word in WORDS if model is None or word.model == "en"]
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


def _lines(word: Word, comparison: Comparison) -> list[str]:
    """The sentences, the table of the layers' average, and what it says."""
    lines = [f"{word.word}: {word.senses[0]} (1, 2) and {word.senses[1]} (3, 4)", ""]
    lines += [f"  {number}  {use.marked(one_line)}" for number, use in enumerate(comparison.uses, start=1)]
    matrix = comparison.matrices["average"]
    lines += ["", "     " + "".join(f"{number:8}" for number in range(1, 5))]
    lines += [
        f"  {k + 1}  " + "".join(f"{value:8.2f}" for value in row) for k, row in enumerate(matrix.tolist())
    ]
    same = (matrix[0, 1] + matrix[2, 3]) / 2
    other = float(matrix[:2, 2:].mean())
    return [*lines, "", f"  alike in the same sense {same:.2f}, in the other {other:.2f}"]
