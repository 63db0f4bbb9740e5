"""``elmo wsd``: rank the WordNet senses of a word in context, and train or evaluate senses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger, show_counts
from elmo.cli.generate import is_set
from elmo.cli.results import print_results
from elmo.errors import ConfigError

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice
    from elmo.lexicon.sense_corpora import SenseScore, SenseSentence
    from elmo.lexicon.wordnet import WordNet
    from elmo.lexicon.wsd import Method, SenseCentroids, SensePrediction
    from elmo.plots.words import Panel

EXAMPLES = opt.examples(
    "elmo wsd --train semcor.jsonl --out s.safetensors",
    "elmo wsd 'the [[bank]] lent money' --senses s.safetensors",
    "elmo wsd 'by the [[banks]]' --pos noun --senses s.safetensors",
    "elmo wsd 'a [[bank]]' --senses s.safetensors --picture s.png",
    "elmo wsd --evaluate dev.xml --gold dev.txt --senses s.safetensors",
    "elmo wsd --train semcor.jsonl --layers all --out all.safetensors",
)
_N_SHOWN = 10  # number of senses to print for each word


def command(
    context: typer.Context,
    texts: Annotated[
        list[str] | None, opt.argument(metavar="TEXT", help="Sentences with words marked like [[this]].")
    ] = None,
    *,
    senses: Annotated[Path | None, opt.option(metavar="FILE", help="File of senses written by --train.")] = None,
    train: Annotated[
        Path | None,
        opt.option(
            metavar="FILE", help="Train senses on a tagged corpus such as SemCor: JSON lines, or XML with --gold."
        ),
    ] = None,
    evaluate: Annotated[
        Path | None,
        opt.option(
            metavar="FILE", help="Predict the senses of a tagged corpus and score them: XML with --gold, or JSON lines."
        ),
    ] = None,
    gold: Annotated[Path | None, opt.option(metavar="FILE", help="Correct sense keys of an XML corpus.")] = None,
    out: Annotated[
        Path | None,
        opt.option(
            metavar="FILE",
            help="Output of --train (.safetensors), or predictions of --evaluate (an instance id and a sense key "
            "per line).",
        ),
    ] = None,
    model: opt.Model = None,
    method: Annotated[
        Literal["knn", "prior", "centroid", "first"],
        typer.Option(
            help="Vote of the nearest usages (knn), nearest centroid with or without sense frequency (prior, "
            "centroid), or WordNet's first sense (first)."
        ),
    ] = "knn",
    pos: Annotated[
        Literal["noun", "verb", "adj", "adv"] | None,
        typer.Option(help="Part of speech of the marked words.", show_default="any"),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            "--layers",
            metavar="sense|average|top|concat|0..|all",
            callback=opt.check_layers,
            help="With --train: layers of the vectors; all keeps every layer, so that the corpus is read only once. "
            "With senses of all layers: the layers to use; all shows the scores of each with --evaluate.",
        ),
    ] = "top",
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="With --train: store only centroids, in a smaller file that does not support knn."
        ),
    ] = False,
    wordnet: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of WordNet 3.0.",
            show_default="$WNSEARCHDIR, $WNHOME/dict or a system folder",
        ),
    ] = None,
    as_json: opt.AsJson = False,
    picture: opt.Picture = None,
    tokenizer: opt.Tokenizer = None,
    start: opt.Start = "zero",
    device: opt.Device = "cpu",
) -> None:
    """Rank the WordNet senses of a word in context.

    First train senses on SemCor with --train, using the same model. --start applies only to --train.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.sense_corpora import read_sense_corpus
    from elmo.lexicon.wordnet import WordNet
    from elmo.lexicon.wsd import ALL, SenseCentroids, disambiguate, disambiguate_text, train_senses

    _check(context, texts=texts, senses=senses, train=train, evaluate=evaluate, gold=gold, out=out)
    if picture and not texts:
        raise typer.BadParameter("--picture requires TEXT", ctx=context)
    if train is not None and out is not None:
        elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
        n_sentences = sum(
            1 for _ in read_sense_corpus(train, gold=gold)
        )  # reports errors in the corpus before training
        context.obj.after_interrupt = "; nothing was written and existing files are unchanged"
        with show_counts(context.obj, "embedding", n_sentences=n_sentences) as on_progress:
            trained = train_senses(
                elmo, read_sense_corpus(train, gold=gold), layers=opt.parse_layers(layers), start=start,
                on_progress=on_progress,
            )  # fmt: skip
        (trained.compact() if compact else trained).save(out)
        n_usages = int(trained.counts.sum())
        logger.info("wrote %s: %s senses from %s usages", out, f"{len(trained):,}", f"{n_usages:,}")
        return
    trained, net = SenseCentroids.load(senses or Path()), WordNet(wordnet)
    if trained.layers != ALL and is_set(context, "layers") and layers != trained.layers:
        raise ConfigError(f"these senses were trained with --layers {trained.layers}; train others with --layers all")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    if trained.layers == ALL and layers == ALL and evaluate is not None:
        if out is not None:
            raise typer.BadParameter("--out requires one layer; found --layers all", ctx=context)
        _print_layers(elmo, list(read_sense_corpus(evaluate, gold=gold)), trained, net, method, as_json=as_json)
        return
    if trained.layers == ALL:
        trained = trained.select(opt.parse_layers(layers), n_layers=elmo.n_layers)
    if evaluate is not None:
        sentences = list(read_sense_corpus(evaluate, gold=gold))
        with show_counts(context.obj, "embedding", n_sentences=len(sentences)) as on_progress:
            predictions = list(
                disambiguate(elmo, sentences, trained, wordnet=net, method=method, on_progress=on_progress)
            )
        _print_scores(predictions, as_json=as_json, out=out)
        return
    panels: list[Panel] = []
    for number, text in enumerate(texts or (), start=1):
        predictions = disambiguate_text(elmo, text, trained, wordnet=net, pos=pos, method=method, number=number)
        panels += [_panel(prediction, net) for prediction in predictions]
        values = [prediction.to_json(net) for prediction in predictions]
        print_results(values, [line for x in predictions for line in _lines(x, net)], as_json=as_json)
    if picture:
        from elmo.plots.words import draw_bars

        draw_bars(panels, picture, title=f"WordNet senses by {method}")
        logger.info("wrote %s", picture)


def _check(context: typer.Context, *, texts: list[str] | None, **files: Path | None) -> None:
    """Check before a model is loaded that the options can be combined and that the files exist."""
    from elmo.storage.atomic import check_output_file
    from elmo.text.lines import expand_paths

    modes = [f"--{name}" for name in ("train", "evaluate") if files[name]] + (["TEXT"] if texts else [])
    if len(modes) != 1:
        named = " and ".join(modes) or "none"
        raise typer.BadParameter(f"expected one of TEXT, --train and --evaluate, found {named}", ctx=context)
    if modes == ["--train"] and not files["out"]:
        raise typer.BadParameter("--train requires --out FILE.safetensors", ctx=context)
    if modes != ["--train"] and not files["senses"]:
        raise typer.BadParameter("--senses FILE is required; create one with --train", ctx=context)
    if modes == ["TEXT"] and (files["gold"] or files["out"]):
        raise typer.BadParameter("--gold and --out require --train or --evaluate", ctx=context)
    if files["out"]:
        check_output_file(files["out"])
    expand_paths([str(files[name]) for name in ("train", "evaluate", "gold") if files[name]])


def _print_scores(predictions: Sequence[SensePrediction], *, as_json: bool, out: Path | None) -> None:
    from elmo.lexicon.sense_corpora import score_senses
    from elmo.lexicon.wsd import write_predictions

    if out is not None:
        logger.info("wrote %s: %s predictions", out, f"{write_predictions(out, predictions):,}")
    instances = [prediction.instance for prediction in predictions]
    if instances and not any(instance.keys for instance in instances):
        logger.warning("cannot compute scores: the corpus has no gold keys; add --gold")
        return
    keys = {prediction.instance.id: prediction.key for prediction in predictions}
    scores = score_senses(keys, instances)
    lines = [f"{'':6}{'instances':>10}{'answered':>10}{'precision':>11}{'recall':>9}{'F1':>9}"]
    for name, s in scores.items():
        lines.append(f"{name:6}{s.n_instances:10,}{s.n_answered:10,}{s.precision:11.2%}{s.recall:9.2%}{s.f1:9.2%}")
    n_back_off = sum(prediction.is_back_off for prediction in predictions)
    lines.append(f"words without a sense in the training corpus, ranked in WordNet's order: {n_back_off:,}")
    print_results({name: score.to_json() for name, score in scores.items()}, lines, as_json=as_json)


def _print_layers(
    elmo: Elmo, sentences: list[SenseSentence], senses: SenseCentroids, net: WordNet, method: Method, *, as_json: bool
) -> None:
    """Print the scores of each layer, of the average of all layers and of all layers concatenated."""
    from elmo.lexicon.sense_corpora import score_senses
    from elmo.lexicon.wsd import disambiguate

    layers: list[LayerChoice | int] = [*range(elmo.n_layers), "average", "concat"]
    scores: dict[str, dict[str, SenseScore]] = {}
    for choice in layers:
        chosen = senses.select(choice, n_layers=elmo.n_layers)
        predictions = list(disambiguate(elmo, sentences, chosen, wordnet=net, method=method))
        keys = {prediction.instance.id: prediction.key for prediction in predictions}
        scores[str(choice)] = score_senses(keys, [prediction.instance for prediction in predictions])
    words = list(scores["0"])
    lines = [f"{'F1':10}" + "".join(f"{name:>9}" for name in words)]
    lines += [f"{name:10}" + "".join(f"{row[word].f1:9.2%}" for word in words) for name, row in scores.items()]
    values = {name: {word: score.to_json() for word, score in row.items()} for name, row in scores.items()}
    print_results(values, lines, as_json=as_json)


def _panel(prediction: SensePrediction, net: WordNet) -> Panel:
    from elmo.plots.words import Panel

    best = prediction.senses[:_N_SHOWN]
    labels = [f"{net.definition(sense.key)[:56]}  ({sense.n_usages} ×)" for sense in best]
    return Panel("{}[{}]{}".format(*prediction.usage.parts()), labels, [[sense.score for sense in best]])


def _lines(prediction: SensePrediction, net: WordNet) -> list[str]:
    """Return the lines to print for a marked word: its sentence and its best senses."""
    lines = ["{}[{}]{}".format(*prediction.usage.parts())]
    if prediction.is_back_off:
        lines.append("none of these senses is in the training corpus; ranked in WordNet's order")
    for sense in prediction.senses[:_N_SHOWN]:
        score = "      -" if sense.score is None else f"{sense.score:7.3f}"
        lines.append(f"{score} {sense.n_usages:5} ×  {sense.key:24} {net.definition(sense.key)}")
    if len(prediction.senses) > _N_SHOWN:
        lines.append(f"and {len(prediction.senses) - _N_SHOWN} more senses; --json lists all of them")
    return lines
