"""``elmo probe``: labelled text in, how much of the labels each layer of a model holds out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.options import AsJson, Device, Errors, Model, Picture, ResultFile, Start, examples
from elmo.cli.results import check_result_file, write_results
from elmo.cli.console import logger
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.lexicon.probe import Baseline, LabelledText, LayerProbe, Measure, Probing

EXAMPLES = examples(
    "elmo probe train.conllu dev.conllu --column upos",
    "elmo probe train.conllu dev.conllu --column feats:Number --seeds 3",
    "elmo probe train.conllu dev.conllu --column deprel --picture x.png",
    "elmo probe train.tsv dev.tsv --column 2 --out probes.tsv",
)
_COLUMNS = ("layer", "measure", "label", "n", "mean", "spread")
_N_LABELS = 12  # in the table
_PART = "CoNLL-U, or a word and its labels a line; compressed or not."


def command(
    train: Annotated[str, typer.Argument(metavar="TRAIN", help=_PART, show_default=False)],
    dev: Annotated[str, typer.Argument(metavar="DEV", help="The same, to measure on.", show_default=False)],
    *,
    column: Annotated[
        str,
        typer.Option(
            "--column",
            "-c",
            metavar="NAME|N",
            help="Of CoNLL-U: upos, xpos, deprel, feats:Number; else a number from 1, or a name in a header.",
            show_default=False,
        ),
    ],
    model: Model = None,
    tokens_column: Annotated[
        str | None,
        typer.Option(metavar="NAME|N", help="Where the words stand.", show_default="form, or 1"),
    ] = None,
    file_format: Annotated[
        Literal["auto", "conllu", "columns"],
        typer.Option("--format", help="CoNLL-U, or columns separated by tabs or spaces."),
    ] = "auto",
    header: Annotated[bool, typer.Option("--header", help="The first line names the columns.")] = False,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Probes of each layer.")] = 1,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="The first of them.")] = 0,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Words of each file at most.", show_default="300,000"),
    ] = None,
    as_json: AsJson = False,
    out: ResultFile = None,
    picture: Picture = None,
    errors: Errors = "strict",
    start: Start = "zero",
    device: Device = "cpu",
) -> None:
    """Measure what each layer knows of labels, by linear classifiers.

    Control is a task that has to be learned by heart: every word has a random label. What accuracy is above
    it, selectivity, is not the classifier's own doing.
    """  # fmt: skip
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.probe import MAX_TRAIN_TOKENS, probe, read_labelled

    check_result_file(out, inputs=[train, dev])
    if picture is not None:
        from elmo.plots.figure import check_picture

        check_picture(picture)
    parts = []
    for name in (train, dev):  # mistakes are told before a large model is loaded
        parts.append(
            read_labelled(
                name,
                column,
                tokens_column=tokens_column,
                file_format=file_format,
                has_header=header,
                max_tokens=max_tokens or MAX_TRAIN_TOKENS,
                errors=errors,
            )
        )
        _tell(name, parts[-1])
    elmo = Elmo.from_pretrained(model, device=device)
    found = probe(elmo, *parts, n_seeds=seeds, seed=seed, start=start, on_progress=logger.info)
    if found.unknown_labels:
        named = ", ".join(f"{label} {n:,}" for label, n in list(found.unknown_labels.items())[:10])
        logger.warning("labels that train does not have, and are counted as wrong: %s", named)
    values = {"column": column, **found.to_json()}
    if as_json:
        print(json.dumps(values, ensure_ascii=False))
    else:
        print("\n".join(map(one_line, _lines(found))))
    if out is not None:
        write_results(out, columns=_COLUMNS, rows=found.rows(), values=values)
        logger.info("%s: written", out)
    if picture is not None:
        from elmo.plots.words import draw_probing

        draw_probing(found, picture, column=column)
        logger.info("%s: written", picture)


def _tell(name: str, part: LabelledText) -> None:
    if part.is_cut:
        logger.warning(
            "%s: only the first %s labelled words are taken; --max-tokens takes more",
            name,
            f"{part.n_labels:,}",
        )
    if part.n_without:
        logger.info("%s: %s words have no label here and are left out", name, f"{part.n_without:,}")


def _lines(found: Probing) -> list[str]:
    """What was learned from, a table of layers, and one of labels."""
    n_labels = len(found.labels)
    lines = [
        f"train     {found.n_train:,} words",
        f"dev       {found.n_dev:,} words, {found.n_unseen:,} of them not in train, {n_labels} labels",
        "",
        f"{'layer':10}{'accuracy':>14}{'unseen':>14}{'control':>14}{'selectivity':>14}{'macro F1':>14}",
    ]
    lines += [_baseline("majority", found.majority), _baseline("per word", found.per_word)]
    lines += [_row(layer) for layer in found.layers]
    for layer in found.layers:
        if layer.gamma is not None:
            shares = ", ".join(f"{k}: {share:.2f}" for k, share in enumerate(layer.shares))
            lines.append(f"the mix's shares: {shares}; gamma {layer.gamma:.2f}")
    names = [layer.layer for layer in found.layers]
    lines += ["", f"{'F1':16}{'words':>9}" + "".join(f"{name:>9}" for name in names)]
    for label, n in list(found.labels.items())[:_N_LABELS]:
        shown = label if len(label) <= 15 else label[:14] + "…"
        figures = "".join(f"{layer.f1[label].mean:9.2%}" for layer in found.layers)
        lines.append(f"{shown:16}{n:>9,}{figures}")
    if n_labels > _N_LABELS:
        lines.append(f"and {n_labels - _N_LABELS} more: see --json, --out or --picture")
    return lines


def _baseline(name: str, found: Baseline) -> str:
    cells = ("-" if x is None else f"{x:.2%}" for x in (found.accuracy, found.unseen))
    return f"{name:10}" + "".join(f"{cell:>14}" for cell in cells)


def _row(layer: LayerProbe) -> str:
    measures = (layer.accuracy, layer.unseen, layer.control, layer.selectivity, layer.macro_f1)
    return f"{layer.layer:10}" + "".join(f"{_shown(measure):>14}" for measure in measures)


def _shown(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    return f"{measure.mean:.2%}" + (f" ±{100 * measure.spread:.2f}" if measure.spread else "")
