"""``elmo neighbors``: find the usages in a corpus that are nearest to a word in context."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger, warn_about_script
from elmo.cli.generate import options_from
from elmo.cli.results import check_result_file, format_usage, print_results, write_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elmo.lexicon.neighbors import Neighbors

EXAMPLES = opt.examples(
    "elmo neighbors usages 'by the [[bank]] of the river'",
    "elmo neighbors usages 'the river' --word river -n 3 --json",
    "elmo neighbors usages 'a [[bank]]' --among others --out n.tsv",
    "elmo neighbors usages 'a [[bank]]' --picture n.png",
)
_COLUMNS = ("sentence", "word", "rank", "similarity", "neighbor", "before", "after", "place")


@options_from("elmo.lexicon.neighbors:find_neighbors", flags={"k": "-n"}, minimums={"k": 1})
def command(
    index: Annotated[Path, opt.argument(metavar="INDEX", help="Index folder written by 'elmo index'.")],
    sentences: opt.MarkedSentences,
    *,
    model: opt.Model = None,
    as_json: opt.AsJson = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Find the usages in a corpus that are nearest to a word in context.

    By default, the model is the one that the index was built with.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.index import Index
    from elmo.lexicon.neighbors import find_neighbors
    from elmo.text.tokenizers import load_tokenizer

    check_result_file(out)
    opened = Index(index)
    if model is None:
        model = opened.find_model()
        logger.info("using the model of the index: %s", model)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    if tokenizer is None and opened.is_from(elmo):  # a model of another language keeps its own tokenizer
        elmo.tokenizer = load_tokenizer(opened.tokenizer)
    warn_about_script(elmo.tokenizer, sentences)
    results = find_neighbors(elmo, opened, sentences, **options)
    values = [result.to_json() for result in results]
    print_results(values, list(chain.from_iterable(map(_format_lines, results)))[1:], as_json=as_json)
    write_results(out, columns=_COLUMNS, rows=_rows(results), values=values)
    if picture:
        from elmo.plots.words import draw_neighbors

        draw_neighbors(results, picture)
        logger.info("wrote %s", picture)


def _format_lines(result: Neighbors) -> list[str]:
    """Return the lines to print: a blank line, the sentence and its neighbors."""
    lines = [f"  {near.similarity:6.3f}  {format_usage(near.usage)}" for near in result.items]
    return ["", "{}[{}]{}".format(*result.usage.parts()), *(lines or ["  no neighbors"])]


def _rows(results: Sequence[Neighbors]) -> Iterator[list[object]]:
    for number, result in enumerate(results, start=1):
        for rank, near in enumerate(result.items, start=1):
            before, _, after = near.usage.parts()
            yield [number, result.usage.word, rank, f"{near.similarity:.6f}", near.usage.word, before, after,
                   near.usage.place]  # fmt: skip
