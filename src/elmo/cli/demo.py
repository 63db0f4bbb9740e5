"""``elmo demo``: show that the vector of a word depends on its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.embed.comparison import Comparison

EXAMPLES = opt.examples("elmo demo", "elmo demo --model path/to/model --picture words.png")


@dataclass(frozen=True)
class DemoWord:
    """An ambiguous word, with two sentences for its first sense and two sentences for its second sense."""

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


def command(*, model: opt.Model = None, picture: opt.Picture = None) -> None:
    """Compare a few ambiguous words in example sentences, with a table of similarities for each.

    Without --model, all bundled models are used. With --model, only the English words are shown.
    """
    results = _compare_words(model)
    tables = ["\n".join(_format_table(*result, 1 + 4 * k)) for k, result in enumerate(results)]
    print("\n\n".join(tables))
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
    results: list[tuple[DemoWord, Comparison]] = []
    for language in languages:
        words = [word for word in WORDS if word.model == language]
        try:
            elmo = Elmo.from_pretrained(model or bundled_folder(language))
        except MissingExtraError as error:
            if language != "zh":  # only the Chinese tokenizer requires an extra
                raise
            logger.warning("skipping %s: %s", ", ".join(word.word for word in words), error)
            continue
        results += [(word, compare(elmo, word.word, word.sentences)) for word in words]
    return results


def _format_table(word: DemoWord, comparison: Comparison, first: int) -> list[str]:
    """Return the lines to print for a word: its sentences, numbered from ``first``, and their similarities."""
    a, b, c, d = numbers = range(first, first + 4)
    lines = [f"{word.word}: {word.senses[0]} ({a}, {b}) and {word.senses[1]} ({c}, {d})", ""]
    lines += [f" {number:2}  {use.marked(one_line)}" for number, use in zip(numbers, comparison.uses, strict=True)]
    matrix = comparison.matrices["sense"]
    lines += ["", "     " + "".join(f"{number:8}" for number in numbers)]
    for number, row in zip(numbers, matrix.tolist(), strict=True):
        lines.append(f" {number:2}  " + "".join(f"{value:8.2f}" for value in row))
    same = (matrix[0, 1] + matrix[2, 3]) / 2
    other = float(matrix[:2, 2:].mean())
    note = "" if same > other else ": this model does not separate the senses"
    lines += ["", f"  similarity within a sense {same:.2f}, between senses {other:.2f}{note}"]
    if comparison.ranks:
        shares = {pair: rank.share for pair, rank in comparison.ranks.items()}
        within = (shares[0, 1] + shares[2, 3]) / 2
        between = sum(shares[a, b] for a in (0, 1) for b in (2, 3)) / 4
        of_word = "the same word" if comparison.ranks[0, 1].word is None else comparison.ranks[0, 1].word
        lines.append(f"  more alike than {within:.0%} and {between:.0%} of pairs of uses of {of_word}")
    return lines
