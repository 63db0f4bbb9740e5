"""``elmo substitutes``: predict other words that fit in the place of a word."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger, warn_about_script
from elmo.cli.generate import options_from
from elmo.cli.results import check_result_file, print_results, write_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elmo.lexicon.substitutes import Substitutes

EXAMPLES = opt.examples(
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
    sentences: opt.MarkedSentences,
    *,
    model: opt.Model = None,
    candidates: Annotated[
        str | None,
        opt.option(
            metavar="FILE|a,b,c",
            help="Rank only these words: a file with one word per line, or a comma-separated list.",
        ),
    ] = None,
    as_json: opt.AsJson = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Predict substitutes for a word in context, using both language models."""
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.substitutes import find_substitutes

    check_result_file(out)
    words = opt.parse_words(candidates, option="--candidates")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    warn_about_script(elmo.tokenizer, sentences)
    results = find_substitutes(elmo, sentences, candidates=words, **options)
    values = [result.to_json() for result in results]
    print_results(values, list(chain.from_iterable(map(_format_lines, results)))[1:], as_json=as_json)
    write_results(out, columns=_COLUMNS, rows=_rows(results), values=values)
    if picture:
        from elmo.plots.words import draw_substitutes

        draw_substitutes(results, picture)
        logger.info("wrote %s", picture)


def _format_lines(result: Substitutes) -> list[str]:
    """Return the lines to print: a blank line, the sentence and its substitutes."""
    lines = ["", "{}[{}]{}".format(*result.usage.parts())]
    if not result.items:
        lines.append("  no substitutes")
    for item in result.items:
        candidate = "" if item.candidate in (None, item.word) else f"  ({item.candidate})"
        share = f"{item.probability:9.2%}" if item.is_known else f"{'unknown':>9}"
        lines.append(f"{share}  {item.word}{candidate}")
    return lines


def _rows(results: Sequence[Substitutes]) -> Iterator[list[object]]:
    for number, result in enumerate(results, start=1):
        for rank, item in enumerate(result.items, start=1):
            numbers = (item.probability, item.forward, item.backward, item.similarity)
            yield [number, result.usage.word, rank, item.word, item.lemma,
                   *("" if value is None else f"{value:.6g}" for value in numbers)]  # fmt: skip
