"""``elmo similarity``: pairs of sentences with a word in each in, how alike its uses are out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmo.cli.options import (
    AsJson,
    Device,
    Layers,
    Model,
    Picture,
    ResultFile,
    Start,
    check_result_file,
    examples,
    layer_choice,
    write_results,
)
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.lexicon.word_pairs import PairJudgments, PairSimilarities

EXAMPLES = examples(
    "elmo similarity pairs.data.txt",
    "elmo similarity wic --layers all",
    "elmo similarity pairs.data.txt --layers 1 --out pairs.tsv",
    "elmo similarity wic --layers all --picture pairs.png",
    "elmo similarity pairs.data.txt --tune more.data.txt more.gold.txt",
)
_COLUMNS = ("pair", "word", "pos", "layer", "cosine", "judgement", "first", "second")


def command(
    context: typer.Context,
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER | DATA [GOLD]",
            help="A folder of Words in Context (train and dev), or a file of pairs and one of T or F.",
            show_default=False,
        ),
    ],
    *,
    model: Model = None,
    layers: Layers = "average",
    tune: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="DATA GOLD", help="Pairs to choose the threshold by.", show_default="a folder's train"
        ),
    ] = None,
    out: ResultFile = None,
    picture: Picture = None,
    as_json: AsJson = False,
    start: Start = "zero",
    device: Device = "cpu",
) -> None:
    """Tell how alike a word's uses in two sentences are, and whether that is one sense.

    DATA is in WiC's format: word, part of speech, places such as 2-5 (from 0), two tokenised sentences.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.word_pairs import judge, pair_similarities, read_gold, read_pairs, wic_parts

    if len(inputs) > 2:
        raise typer.BadParameter(
            f"expected a folder, or DATA and GOLD, found {len(inputs)} names", ctx=context
        )
    data, gold = inputs[0], inputs[1] if len(inputs) == 2 else None
    if data.is_dir() and gold is None:
        train, part = wic_parts(data)
        data, gold = part.data, part.gold
        if tune is None and train is not None and train.gold is not None:
            tune = train.data, train.gold
        elif tune is None:
            gold = None  # similarities only
    if gold is not None and tune is None:
        raise typer.BadParameter("GOLD is judged with a threshold: give --tune DATA GOLD, too", ctx=context)
    check_result_file(out, inputs=[path for path in (data, gold, *(tune or ())) if path is not None])
    if picture:
        from elmo.plots.figure import check

        check(picture)
    pairs = read_pairs(data)  # mistakes are told before a large model is loaded
    truths = None if gold is None else read_gold(gold, n_pairs=len(pairs))
    tune_pairs = [] if tune is None else read_pairs(tune[0])
    tune_truths = None if tune is None else read_gold(tune[1], n_pairs=len(tune_pairs))
    elmo = Elmo.from_pretrained(model, device=device)
    choice = layer_choice(layers)
    found = pair_similarities(elmo, pairs, layers=choice, start=start)
    judged: list[PairJudgments] = []
    if tune_truths is not None:
        tuned_on = pair_similarities(elmo, tune_pairs, layers=choice, start=start)
        judged = judge(found, truths, tuned_on=tuned_on, tuned_is_same=tune_truths)
    rows = list(found.rows(judged))
    values = {"judged": [one.to_json() for one in judged], "pairs": rows}
    if as_json:
        print(json.dumps(values, ensure_ascii=False))
    elif truths is not None:
        print("\n".join(_judged_lines(judged, n_pairs=len(pairs), n_tuned=len(tune_pairs))))
    else:
        print("\n".join(_pair_lines(found, judged)))
    if out is not None:
        table = ([row[name] for name in _COLUMNS] for row in rows)
        write_results(out, columns=_COLUMNS, rows=table, values=values)
        logger.info("%s: written", out)
    if picture:
        from elmo.plots.words import draw_pairs

        draw_pairs(found, picture, judged=judged, is_same=truths)
        logger.info("%s: written", picture)


def _judged_lines(judged: Sequence[PairJudgments], *, n_pairs: int, n_tuned: int) -> list[str]:
    lines = [
        f"{n_pairs:,} pairs, thresholds from {n_tuned:,} others",
        f"{'layer':10}{'threshold':>10}{'tuned':>10}{'accuracy':>10}  95% interval",
    ]
    for one in judged:
        lines.append(f"{one.layer:10}{one.threshold:10.3f}{one.tuned:10.2%}{one.accuracy or 0:10.2%}")
        if one.interval is not None:
            lines[-1] += f"  {one.interval[0]:.2%} – {one.interval[1]:.2%}"
    return lines


def _pair_lines(found: PairSimilarities, judged: Sequence[PairJudgments]) -> list[str]:
    """A line for each pair: a cosine for each layer, with T or F where it was judged, and both sentences."""
    says = {one.layer: one.is_same for one in judged}
    lines = ["".join(f"{layer:>10}" for layer in found.cosines) + "  sentences"]
    for k, pair in enumerate(found.pairs):
        cells = [
            f"{cosines[k]:8.3f}" + (f" {'T' if says[layer][k] else 'F'}" if layer in says else "  ")
            for layer, cosines in found.cosines.items()
        ]
        texts = ["{}[{}]{}".format(*usage.parts()) for usage in (pair.first, pair.second)]
        lines.append("".join(cells) + one_line("  " + "  |  ".join(texts)))
    return lines
