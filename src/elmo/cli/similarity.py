"""``elmo similarity``: compare a word in pairs of sentences (Words in Context)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.results import check_result_file, print_results, write_results

if TYPE_CHECKING:
    from elmo.lexicon.word_pairs import PairSimilarities

EXAMPLES = opt.examples(
    "elmo similarity pairs.data.txt",
    "elmo similarity wic --layers all",
    "elmo similarity pairs.data.txt --layers 1 --out pairs.tsv",
    "elmo similarity wic --layers all --picture pairs.png",
    "elmo similarity pairs.data.txt --tune more.data.txt more.gold.txt",
    "elmo similarity graded.tsv --respell",
    "elmo similarity wic --part train",
)
_COLUMNS = ("pair", "word", "pos", "layer", "cosine", "judgement", "first", "second")


def command(
    context: typer.Context,
    inputs: Annotated[
        list[Path],
        opt.argument(
            metavar="FOLDER | DATA [GOLD]",
            help="A folder of Words in Context data (train and dev), or a file of pairs, with or without a file of "
            "labels (T or F, or numbers).",
        ),
    ],
    *,
    model: opt.Model = None,
    layers: opt.Layers = "sense",
    tune: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="DATA GOLD",
            help="Pairs to tune the threshold on, and their labels; the same file twice, if it has both.",
            show_default="FOLDER/train",
        ),
    ] = None,
    part: Annotated[
        Literal["dev", "test", "train"] | None,
        typer.Option(help="Part of FOLDER to judge.", show_default="dev, or else test, or else train"),
    ] = None,
    respell: Annotated[
        bool,
        typer.Option(
            "--respell", help="Replace the word in both sentences by the word of the pair, such as its lemma."
        ),
    ] = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    as_json: opt.AsJson = False,
    tokenizer: opt.Tokenizer = None,
    start: opt.Start = "zero",
    device: opt.Device = "cpu",
) -> None:
    """Measure how similar a word is in two sentences, and judge whether it has the same sense.

    Each line of DATA is in the WiC format: the word, its part of speech, its positions in both sentences such as
    2-5 (counted from 0), and two tokenized sentences. DATA may also have positions in characters (XL-WiC, or JSON as
    in SuperGLUE), or two sentences with the word marked like [[this]], with an optional label. For numbers as labels,
    the Spearman correlation is shown.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.word_pairs import WicFiles, compare_pairs, find_wic_files, read_pairs

    if len(inputs) > 2:
        raise typer.BadParameter(
            f"expected a folder, DATA, or DATA and GOLD, found {len(inputs)} arguments; to compare a word in "
            "sentences, use elmo compare",
            ctx=context,
        )
    if len(inputs) == 1 and inputs[0].is_dir():
        files = find_wic_files(inputs[0], part=part, tune=tune)
    elif part is not None:
        raise typer.BadParameter("--part requires a folder", ctx=context)
    else:
        files = WicFiles(*inputs, tune=tune)
    check_result_file(out, inputs=[path for path in (files.data, files.gold, *(files.tune or ())) if path])
    data = read_pairs(files.data, files.gold)  # before the model is loaded, to report mistakes early
    if data.scores is not None and tune is None:
        files = replace(files, tune=None)  # no threshold is needed
    tune_pairs = None if files.tune is None else read_pairs(*files.tune)
    if files.gold is not None and data.is_same is not None and files.tune is None:
        raise typer.BadParameter("GOLD requires --tune DATA GOLD, to choose a threshold", ctx=context)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    if getattr(elmo.tokenizer, "name", None) != "en":  # raw sentences are tokenized as the model needs it
        data = read_pairs(files.data, files.gold, tokenizer=elmo.tokenizer)
        tune_pairs = None if files.tune is None else read_pairs(*files.tune, tokenizer=elmo.tokenizer)
    result = compare_pairs(
        elmo, data, tune=tune_pairs, layers=opt.parse_layers(layers), is_respelled=respell, start=start
    )
    rows = list(result.rows())
    values = {
        "judged": [judged.to_json() for judged in result.judgments.values()],
        **({"spearman": result.correlations} if result.correlations else {}),
        "pairs": rows,
    }
    if result.correlations:
        lines = [f"{len(data.pairs):,} pairs with graded labels", f"{'layer':10}{'Spearman':>10}"]
        lines += [f"{name:10}{'-' if x is None else f'{x:.3f}':>10}" for name, x in result.correlations.items()]
    elif data.is_same is not None and tune_pairs is not None:
        lines = _format_accuracies(result, n_tuned=len(tune_pairs.pairs))
    else:
        lines = _format_pairs(result)
        if data.is_same is not None:
            logger.info("the labels are not used; to compute the accuracy, choose pairs for a threshold with --tune")
    print_results(values, lines, as_json=as_json)
    write_results(out, columns=_COLUMNS, rows=([row[name] for name in _COLUMNS] for row in rows), values=values)
    if picture:
        from elmo.plots.words import draw_pairs

        draw_pairs(result, picture)
        logger.info("wrote %s", picture)


def _format_accuracies(result: PairSimilarities, *, n_tuned: int) -> list[str]:
    lines = [
        f"{len(result.data.pairs):,} pairs, thresholds tuned on {n_tuned:,} others",
        f"{'layer':10}{'threshold':>10}{'tuned':>10}{'accuracy':>10}  95% interval",
    ]
    for judged in result.judgments.values():
        line = f"{judged.layer:10}{judged.threshold:10.3f}{judged.tuned:10.2%}{judged.accuracy or 0:10.2%}"
        if judged.interval is not None:
            line += f"  {judged.interval[0]:.2%} – {judged.interval[1]:.2%}"
        lines.append(line)
    return lines


def _format_pairs(result: PairSimilarities) -> list[str]:
    """Return a line for each pair: the cosine of each layer, T or F if a threshold is known, both sentences."""
    lines = ["".join(f"{layer:>10}" for layer in result.cosines) + "  sentences"]
    for k, pair in enumerate(result.data.pairs):
        cells = []
        for layer, cosines in result.cosines.items():
            judged = result.judgments.get(layer)
            label = " " if judged is None else "T" if judged.is_same[k] else "F"
            cells.append(f"{cosines[k]:8.3f} {label}")
        texts = ["{}[{}]{}".format(*usage.parts()) for usage in (pair.first, pair.second)]
        lines.append("".join(cells) + "  " + "  |  ".join(texts))
    return lines
