"""``elmo substitutes``: a word in a sentence in, what else could stand there out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.options import (
    AsJson,
    Device,
    Marked,
    MarkedWord,
    Model,
    Picture,
    ResultFile,
    Start,
    Tokenizer,
    check_result_file,
    examples,
    tell_of_script,
    word_list,
    write_results,
)
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elmo.lexicon.substitutes import Substitutes
    from elmo.plots.words import Panel

EXAMPLES = examples(
    "elmo substitutes 'I sat by the [[bank]] of the river .'",
    "elmo substitutes 'the river' 'a river' --word river -n 3 --json",
    "elmo substitutes 'a [[bank]]' --candidates river,café",
    "elmo substitutes 'a [[bank]]' --combine product --out s.tsv",
    "elmo substitutes 'the [[river]]' --picture s.png",
)
_COLUMNS = ("sentence", "target", "rank", "substitute", "lemma", "probability", "forward", "backward",
            "similarity")  # fmt: skip


def command(
    sentences: Marked,
    *,
    word: MarkedWord = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many substitutes.")] = 10,
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|a,b,c",
            help="Rank these instead: a file with one a line, or a list.",
            show_default=False,
        ),
    ] = None,
    combine: Annotated[
        Literal["inject", "bcomb", "product", "mean", "forward", "backward"],
        typer.Option(help="How the two language models are put together."),
    ] = "inject",
    language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Whose lemmas and inflections: en, de, …",
            show_default="that of the tokenizer",
        ),
    ] = None,
    model: Model = None,
    as_json: AsJson = False,
    out: ResultFile = None,
    picture: Picture = None,
    tokenizer: Tokenizer = None,
    start: Start = "zero",
    device: Device = "cpu",
) -> None:
    """Show what else could stand in the place of a word, by both language models."""
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.substitutes import Substituter
    from elmo.lexicon.usages import find_marked_usage

    check_result_file(out)
    if picture:
        from elmo.plots.figure import check

        check(picture)
    given = word_list(candidates, option="--candidates")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    tell_of_script(elmo.tokenizer, sentences)
    usages = [
        find_marked_usage(elmo.tokenizer, sentence, word, number=number)
        for number, sentence in enumerate(sentences, start=1)
    ]
    substituter = Substituter(elmo, combine=combine, language=language, start=start)
    if given is None:
        found = list(substituter.substitutes(usages, n=n))
    else:
        found = substituter.rank(usages, [given] * len(usages))
    values = [one.to_json() for one in found]
    print(json.dumps(values, ensure_ascii=False) if as_json else "\n\n".join(map(_table, found)))
    if out:
        write_results(out, columns=_COLUMNS, rows=_rows(found), values=values)
        logger.info("%s: written", out)
    if picture:
        from elmo.plots.words import draw_bars

        draw_bars(list(map(_panel, found)), picture, title="What else could stand there", form="{:.1%}")
        logger.info("%s: written", picture)


def _panel(found: Substitutes) -> Panel:
    from elmo.plots.words import Panel

    known = [one for one in found.found if one.is_known]
    title = "{}[{}]{}".format(*found.usage.parts())
    return Panel(title, [one.word for one in known], [[one.probability for one in known]])


def _table(found: Substitutes) -> str:
    before, word, after = found.usage.parts()
    lines = [one_line(f"{before}[{word}]{after}")]
    if not found.found:
        lines.append("  no word of the vocabulary may stand there")
    for one in found.found:
        given = "" if one.candidate in (None, one.word) else f"  ({one_line(str(one.candidate))})"
        shown = f"{one.probability:9.2%}" if one.is_known else f"{'unknown':>9}"
        lines.append(f"{shown}  {one_line(one.word)}{given}")
    return "\n".join(lines)


def _rows(found: Sequence[Substitutes]) -> list[list[object]]:
    return [
        [number, group.usage.word, rank, one.word, one.lemma, *map(_figure, (one.probability, one.forward,
         one.backward, one.similarity))]
        for number, group in enumerate(found, start=1)
        for rank, one in enumerate(group.found, start=1)
    ]  # fmt: skip


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
