"""``elmo demo``: show that the vector of a word depends on its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elmo.cli.console import logger
from elmo.cli.options import Model, Picture, examples
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.embed.comparison import Comparison

EXAMPLES = examples("elmo demo", "elmo demo --model path/to/model --picture words.png")


@dataclass(frozen=True)
class DemoWord:
    """A word with two senses: two sentences with the first sense, then two with the second."""

    model: str
    word: str
    senses: tuple[str, str]
    sentences: tuple[str, str, str, str]


WORDS = (
    DemoWord(
        "en", "bank", ("money", "river"),
        (
            "The bank lent the company two million dollars.",
            "Her bank gave her a loan to buy the house.",
            "They walked along the bank of the river.",
            "The village lies on the north bank of the stream.",
        ),
    ),
    DemoWord(
        "en", "play", ("theater", "game"),
        (
            "Shakespeare wrote the play in London.",
            "The actors in the play were very good.",
            "The children play in the garden.",
            "They play football every Sunday.",
        ),
    ),
    DemoWord(
        "zh", "苹果", ("公司", "水果"),
        ("苹果发布了新款手机。", "苹果的股票价格上涨了。", "他每天吃一个苹果。", "桌上有苹果和香蕉。"),
    ),
)  # fmt: skip


def command(*, model: Model = None, picture: Picture = None) -> None:
    """Show ambiguous words in sentences, with one similarity table per word.

    With --model, only the English words are shown; otherwise, the words of every bundled model.
    """
    results = _compare_words(model)
    tables = [_format_table(word, comparison, 1 + 4 * k) for k, (word, comparison) in enumerate(results)]
    print("\n\n".join("\n".join(lines) for lines in tables))
    if picture:
        from elmo.plots.compare import draw_words

        draw_words([comparison for _, comparison in results], picture)
        logger.info("wrote %s", picture)


def _compare_words(model: str | None) -> list[tuple[DemoWord, Comparison]]:
    from elmo.embed.comparison import compare
    from elmo.embed.elmo import Elmo
    from elmo.errors import MissingExtraError
    from elmo.formats import bundled_folder, bundled_models

    if model is None:
        bundled_folder()  # raises if no model is bundled
    languages = bundled_models() if model is None else bundled_models()[:1]
    loaded: dict[str, Elmo] = {}
    results: list[tuple[DemoWord, Comparison]] = []
    for word in WORDS:
        if word.model not in languages:
            continue
        try:
            if word.model not in loaded:
                loaded[word.model] = Elmo.from_pretrained(model or bundled_folder(word.model))
        except MissingExtraError as error:
            if word.model != "zh":  # the Chinese tokenizer is an extra
                raise
            logger.warning("skipping %s: %s", word.word, error)
            continue
        results.append((word, compare(loaded[word.model], word.word, word.sentences)))
    return results


def _format_table(word: DemoWord, comparison: Comparison, first: int) -> list[str]:
    """Format the sentences, numbered from ``first`` as in the picture, and their average similarities."""
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
    note = "" if same > other else ": this model does not separate the senses"
    return [*lines, "", f"  similarity within a sense {same:.2f}, between senses {other:.2f}{note}"]
