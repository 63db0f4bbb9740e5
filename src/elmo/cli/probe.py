"""``elmo probe``: measure how well each layer predicts the labels of words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.results import check_result_file, print_results, write_results

if TYPE_CHECKING:
    from elmo.lexicon.probe import Baseline, LabeledSentences, LayerProbe, MeanScore, ProbeResults

EXAMPLES = opt.examples(
    "elmo probe train.conllu dev.conllu --column upos",
    "elmo probe train.conllu dev.conllu --column feats:Number --seeds 3",
    "elmo probe train.conllu dev.conllu --column deprel --picture x.png",
    "elmo probe train.tsv dev.tsv --column 2 --out probes.tsv",
)
_COLUMNS = ("layer", "measure", "label", "n", "mean", "spread")
_N_LABELS = 12  # number of labels in the table


def command(
    train: Annotated[
        str,
        opt.argument(
            metavar="TRAIN", help="Training file: CoNLL-U, or one word with its labels per line; plain or compressed."
        ),
    ],
    dev: Annotated[str, opt.argument(metavar="DEV", help="File to evaluate on, in the same format.")],
    *,
    column: Annotated[
        str,
        opt.option(
            "--column",
            "-c",
            metavar="NAME|N",
            help="Column of the labels: upos, xpos, deprel or a feature such as feats:Number in CoNLL-U; "
            "in other files, a number from 1 or a name from the header.",
        ),
    ],
    model: opt.Model = None,
    tokens_column: Annotated[
        str | None,
        typer.Option(metavar="NAME|N", help="Column of the words.", show_default="form in CoNLL-U, otherwise 1"),
    ] = None,
    file_format: Annotated[
        Literal["auto", "conllu", "columns"],
        typer.Option("--format", help="File format: CoNLL-U, or columns separated by tabs or spaces; auto detects it."),
    ] = "auto",
    header: Annotated[bool, typer.Option("--header", help="The first line contains the names of the columns.")] = False,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of probes per layer, with different seeds.")
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Random seed of the first probe; each further probe uses the next number."
        ),
    ] = 0,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum number of labeled words per file.", show_default="300,000"),
    ] = None,
    as_json: opt.AsJson = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    errors: opt.Errors = "strict",
    start: opt.Start = "zero",
    device: opt.Device = "cpu",
) -> None:
    """Measure how well linear classifiers predict labels from each layer.

    In the control task, each word has a random label, which a classifier can only memorize. Selectivity is the
    accuracy minus the accuracy in the control task.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.probe import MAX_TRAIN_TOKENS, probe_layers, read_labels

    check_result_file(out, inputs=[train, dev])
    parts = []
    for path in (train, dev):  # reports errors in the files before a large model is loaded
        part = read_labels(
            path, column, tokens_column=tokens_column, file_format=file_format, has_header=header,
            max_tokens=max_tokens or MAX_TRAIN_TOKENS, errors=errors,
        )  # fmt: skip
        _report_labels(path, part)
        parts.append(part)
    elmo = Elmo.from_pretrained(model, device=device)
    results = probe_layers(elmo, *parts, n_seeds=seeds, seed=seed, start=start, on_progress=logger.info)
    if results.unknown_labels:
        listed = ", ".join(f"{label} {n:,}" for label, n in list(results.unknown_labels.items())[:10])
        logger.warning("words in DEV whose label does not occur in TRAIN count as errors: %s", listed)
    values = {"column": column, **results.to_json()}
    print_results(values, _lines(results), as_json=as_json)
    write_results(out, columns=_COLUMNS, rows=results.rows(), values=values)
    if picture is not None:
        from elmo.plots.words import draw_probing

        draw_probing(results, picture, column=column)
        logger.info("wrote %s", picture)


def _report_labels(path: str, part: LabeledSentences) -> None:
    if part.is_truncated:
        logger.warning(
            "%s: using only the first %s labeled words; increase --max-tokens to use more", path, f"{part.n_labels:,}"
        )
    if part.n_unlabeled:
        logger.info("%s: ignoring %s words without a label", path, f"{part.n_unlabeled:,}")


def _lines(results: ProbeResults) -> list[str]:
    """Return the lines to print: the sizes of the data, a table of layers and a table of labels."""
    n_labels = len(results.labels)
    lines = [
        f"train     {results.n_train:,} words",
        f"dev       {results.n_dev:,} words, {results.n_unseen:,} of them not in train, {n_labels} labels",
        "",
        f"{'layer':10}{'accuracy':>14}{'unseen':>14}{'control':>14}{'selectivity':>14}{'macro F1':>14}",
    ]
    lines += [_format_baseline("majority", results.majority), _format_baseline("per word", results.per_word)]
    lines += [_format_row(layer) for layer in results.layers]
    for layer in results.layers:
        if layer.gamma is not None:
            shares = ", ".join(f"{k}: {share:.2f}" for k, share in enumerate(layer.shares))
            lines.append(f"weights of the mix: {shares}; gamma {layer.gamma:.2f}")
    names = [layer.layer for layer in results.layers]
    lines += ["", f"{'F1':16}{'words':>9}" + "".join(f"{name:>9}" for name in names)]
    for label, n in list(results.labels.items())[:_N_LABELS]:
        name = label if len(label) <= 15 else label[:14] + "…"
        scores = "".join(f"{layer.f1[label].mean:9.2%}" for layer in results.layers)
        lines.append(f"{name:16}{n:>9,}{scores}")
    if n_labels > _N_LABELS:
        lines.append(f"and {n_labels - _N_LABELS} more labels: see --json, --out or --picture")
    return lines


def _format_baseline(name: str, baseline: Baseline) -> str:
    cells = ("-" if x is None else f"{x:.2%}" for x in (baseline.accuracy, baseline.unseen))
    return f"{name:10}" + "".join(f"{cell:>14}" for cell in cells)


def _format_row(layer: LayerProbe) -> str:
    scores = (layer.accuracy, layer.unseen, layer.control, layer.selectivity, layer.macro_f1)
    return f"{layer.layer:10}" + "".join(f"{_format_score(score):>14}" for score in scores)


def _format_score(score: MeanScore | None) -> str:
    if score is None:
        return "-"
    return f"{score.mean:.2%}" + (f" ±{100 * score.spread:.2f}" if score.spread else "")
