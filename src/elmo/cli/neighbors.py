"""``elmo neighbours``: a word in a sentence in, the nearest usages of a corpus out."""

from __future__ import annotations

import json
from pathlib import Path
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
    Tokenizer,
    check_result_file,
    examples,
    sentence_line,
    tell_of_script,
    write_results,
)
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.lexicon.neighbors import Neighbors

EXAMPLES = examples(
    "elmo neighbours usages 'by the [[bank]] of the river'",
    "elmo neighbours usages 'the river' --word river -n 3 --json",
    "elmo neighbours usages 'a [[bank]]' --among others --out n.tsv",
    "elmo neighbours usages 'a [[bank]]' --picture n.png",
)


def command(
    index: Annotated[
        Path, typer.Argument(metavar="INDEX", help="A folder that elmo index made.", show_default=False)
    ],
    sentences: Marked,
    *,
    word: MarkedWord = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many neighbours.")] = 10,
    among: Annotated[
        Literal["all", "same", "others"], typer.Option(help="All words, the same word, or others only.")
    ] = "all",
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Faster, by the index of elmo index --approximate.")
    ] = False,
    model: Model = None,
    as_json: AsJson = False,
    out: ResultFile = None,
    picture: Picture = None,
    tokenizer: Tokenizer = None,
    device: Device = "cpu",
) -> None:
    """Show the usages of a corpus that are nearest to a word in its sentence."""
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.index import Index
    from elmo.lexicon.neighbors import neighbours

    check_result_file(out)
    if picture:
        from elmo.plots.figure import check

        check(picture)
    opened = Index(index)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer or opened.tokenizer)
    tell_of_script(elmo.tokenizer, sentences)
    found = neighbours(elmo, opened, sentences, word=word, k=n, among=among, is_approximate=approximate)
    values = [one.to_json() for one in found]
    print(json.dumps(values, ensure_ascii=False) if as_json else "\n\n".join(map(_table, found)))
    if out:
        columns = ("sentence", "word", "rank", "similarity", "neighbour", "before", "after", "place")
        write_results(out, columns=columns, rows=_rows(found), values=values)
        logger.info("%s: written", out)
    if picture:
        from elmo.plots.words import draw_neighbors

        draw_neighbors(found, picture)
        logger.info("%s: written", picture)


def _table(found: Neighbors) -> str:
    before, word, after = found.usage.parts()
    lines = [one_line(f"{before}[{word}]{after}")]
    if not found.found:
        lines.append("  no usage was found")
    lines += [f"  {one.similarity:6.3f}  {sentence_line(one.usage)}" for one in found.found]
    return "\n".join(lines)


def _rows(found: list[Neighbors]) -> list[list[object]]:
    return [
        [number, group.usage.word, rank, f"{one.similarity:.6f}", one.usage.word, one.usage.parts()[0],
         one.usage.parts()[2], one.usage.place]
        for number, group in enumerate(found, start=1)
        for rank, one in enumerate(group.found, start=1)
    ]  # fmt: skip
