"""``elmo substitutes``: predict the words that fit in the position of a word."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli.console import logger, warn_about_script
from elmo.cli.generate import options_from
from elmo.cli.options import (
    AsJson,
    Device,
    MarkedSentences,
    Model,
    Picture,
    ResultFile,
    Tokenizer,
    examples,
    parse_words,
)
from elmo.cli.results import check_result_file, write_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elmo.lexicon.substitutes import Substitutes

EXAMPLES = examples(
    "elmo substitutes 'I sat by the [[bank]] of the river .'",
    "elmo substitutes 'the river' 'a river' --word river -n 3 --json",
    "elmo substitutes 'a [[bank]]' --candidates river,café",
    "elmo substitutes 'a [[bank]]' --combine product --out s.tsv",
    "elmo substitutes 'the [[river]]' --picture s.png",
)
_COLUMNS = ("sentence", "target", "rank", "substitute", "lemma", "probability", "forward", "backward",
            "similarity")  # fmt: skip


@options_from(
    "elmo.lexicon.substitutes:find_substitutes",
    skip=("candidates", "beta", "temperature"),
    flags={"n": "-n"},
    metavars={"language": "CODE"},
    minimums={"n": 1},
)
def command(
    sentences: MarkedSentences,
    *,
    candidates: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|a,b,c",
            help="Rank these words instead: a file with one word per line, or a list.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    as_json: AsJson = False,
    out: ResultFile = None,
    picture: Picture = None,
    tokenizer: Tokenizer = None,
    device: Device = "cpu",
    **options: Any,
) -> None:
    """Predict substitutes for a word in context, using both language models."""
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.substitutes import find_substitutes

    check_result_file(out)
    words = parse_words(candidates, option="--candidates")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    warn_about_script(elmo.tokenizer, sentences)
    results = find_substitutes(elmo, sentences, candidates=words, **options)
    values = [result.to_json() for result in results]
    print(json.dumps(values, ensure_ascii=False) if as_json else "\n\n".join(map(_format_table, results)))
    if out:
        write_results(out, columns=_COLUMNS, rows=_rows(results), values=values)
        logger.info("wrote %s", out)
    if picture:
        from elmo.plots.words import draw_substitutes

        draw_substitutes(results, picture)
        logger.info("wrote %s", picture)


def _format_table(result: Substitutes) -> str:
    before, word, after = result.usage.parts()
    lines = [one_line(f"{before}[{word}]{after}")]
    if not result.items:
        lines.append("  no word of the vocabulary fits")
    for item in result.items:
        candidate = "" if item.candidate in (None, item.word) else f"  ({one_line(str(item.candidate))})"
        share = f"{item.probability:9.2%}" if item.is_known else f"{'unknown':>9}"
        lines.append(f"{share}  {one_line(item.word)}{candidate}")
    return "\n".join(lines)


def _rows(results: Sequence[Substitutes]) -> Iterator[list[object]]:
    for number, result in enumerate(results, start=1):
        for rank, item in enumerate(result.items, start=1):
            numbers = (item.probability, item.forward, item.backward, item.similarity)
            yield [number, result.usage.word, rank, item.word, item.lemma,
                   *("" if value is None else f"{value:.6g}" for value in numbers)]  # fmt: skip
