"""``elmo wsd``: a word in a sentence in, its WordNet senses ranked out; or senses learned, or scored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli.options import (
    AsJson,
    Device,
    Model,
    OneVector,
    Picture,
    Start,
    Tokenizer,
    examples,
    parse_layers,
)
from elmo.cli.console import logger
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.lexicon.sense_corpora import Score
    from elmo.lexicon.wordnet import WordNet
    from elmo.lexicon.wsd import Answer, Heard, SenseCentroids
    from elmo.plots.words import Panel

EXAMPLES = examples(
    "elmo wsd --train semcor.jsonl --out s.safetensors",
    "elmo wsd 'the [[bank]] lent money' --senses s.safetensors",
    "elmo wsd 'by the [[banks]]' --pos noun --senses s.safetensors",
    "elmo wsd 'a [[bank]]' --senses s.safetensors --picture s.png",
    "elmo wsd --evaluate dev.xml --gold dev.txt --senses s.safetensors",
)
_N_SHOWN = 10  # senses of a word


def command(
    context: typer.Context,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="Sentences, each with words marked like [[this]].", show_default=False
        ),
    ] = None,
    *,
    senses: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Senses that --train wrote.", show_default=False),
    ] = None,
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Learn senses from SemCor: JSON lines, or XML with --gold.",
            show_default=False,
        ),
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Answer and score a marked text: XML with --gold, or JSON lines.",
            show_default=False,
        ),
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The right senses that go with XML.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where --train writes (.safetensors), or --evaluate its answers (id and key a line).",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    method: Annotated[
        Literal["knn", "prior", "centroid", "first"],
        typer.Option(
            help="Votes of the nearest uses; nearest centroid with or without frequency; first sense."
        ),
    ] = "knn",
    pos: Annotated[
        Literal["noun", "verb", "adj", "adv"] | None,
        typer.Option(help="The part of speech of the words of TEXT.", show_default="any"),
    ] = None,
    layers: OneVector = "top",
    compact: Annotated[
        bool, typer.Option("--compact", help="Train centroids only: a small file, but without knn.")
    ] = False,
    wordnet: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="WordNet 3.0's files.",
            show_default="$WNSEARCHDIR, $WNHOME/dict, the system's",
        ),
    ] = None,
    as_json: AsJson = False,
    picture: Picture = None,
    tokenizer: Tokenizer = None,
    start: Start = "zero",
    device: Device = "cpu",
) -> None:
    """Tell the sense of a word in its sentence, among those of WordNet.

    Senses are learned once from SemCor, with the same model; layers and start are those of the training.
    """
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.wordnet import WordNet
    from elmo.lexicon.wsd import SenseCentroids, disambiguate_text

    _check(context, texts=texts, senses=senses, train=train, evaluate=evaluate, gold=gold, out=out)
    if picture and not texts:
        raise typer.BadParameter("--picture goes with TEXT", ctx=context)
    if picture:
        from elmo.plots.figure import check_picture

        check_picture(picture)
    settings: Any = {"device": device, "tokenizer": tokenizer}
    if train is not None and out is not None:
        elmo = Elmo.from_pretrained(model, **settings)
        found = _train(context, elmo, train, gold, layers=parse_layers(layers), start=start)
        (found.compact() if compact else found).save(out)
        n_uses = int(found.counts.sum())
        logger.info("%s: %s senses of %s uses written", out, f"{len(found):,}", f"{n_uses:,}")
        return
    known, net = SenseCentroids.load(senses or Path()), WordNet(wordnet)
    elmo = Elmo.from_pretrained(model, **settings)
    if evaluate is not None:
        answers = _answers(context, elmo, evaluate, gold, known=known, net=net, method=method)
        _print_scores(answers, as_json=as_json, out=out)
        return
    panels: list[Panel] = []
    for number, text in enumerate(texts or (), start=1):
        answers = disambiguate_text(elmo, text, known, wordnet=net, pos=pos, method=method, number=number)
        panels += [_panel(answer, net) for answer in answers]
        if as_json:
            print(json.dumps([_to_json(answer, net) for answer in answers]))
        else:
            print("\n".join(line for answer in answers for line in _lines(answer, net)))
    if picture:
        from elmo.plots.words import draw_bars

        draw_bars(panels, picture, title=f"Senses of WordNet, by {method}")
        logger.info("%s: written", picture)


def _panel(answer: Answer, net: WordNet) -> Panel:
    from elmo.plots.words import Panel

    usage = answer.sentence.usages()[answer.sentence.instances.index(answer.instance)]
    best = answer.senses[:_N_SHOWN]
    labels = [f"{net.definition(one.key)[:56]}  ({one.n_uses} ×)" for one in best]
    return Panel("{}[{}]{}".format(*usage.parts()), labels, [[one.score for one in best]])


def _check(context: typer.Context, *, texts: list[str] | None, **files: Path | None) -> None:
    """One thing is done at a time, with the files that it needs; typos are told before a model is loaded."""
    from elmo.errors import OutputError
    from elmo.storage.atomic import check_output_file
    from elmo.text.lines import expand_paths, format_source

    jobs = [name for name in ("train", "evaluate") if files[name]] + (["TEXT"] if texts else [])
    if len(jobs) != 1:
        found = " and ".join(jobs) or "none"
        raise typer.BadParameter(f"expected one of TEXT, --train and --evaluate, found {found}", ctx=context)
    if jobs == ["train"] and not files["out"]:
        raise typer.BadParameter("--train needs --out FILE.safetensors", ctx=context)
    if jobs != ["train"] and not files["senses"]:
        raise typer.BadParameter("--senses FILE is needed; --train writes one", ctx=context)
    if jobs == ["TEXT"] and (files["gold"] or files["out"]):
        raise typer.BadParameter("--gold and --out go with --train and --evaluate", ctx=context)
    if (out := files["out"]) and out.is_dir():
        raise OutputError(f"{format_source(out)}: expected a file name, found a folder")
    if out:
        check_output_file(out)
    expand_paths([str(files[name]) for name in ("train", "evaluate", "gold") if files[name]])


def _train(
    context: typer.Context, elmo: Any, path: Path, gold: Path | None, **options: Any
) -> SenseCentroids:
    from elmo.lexicon.sense_corpora import read_senses
    from elmo.lexicon.wsd import train

    n_sentences = sum(1 for _ in read_senses(path, gold=gold))  # a damaged line is told before hours of work
    context.obj.after_interrupt = "; nothing was written, an older file is as it was"
    with _heard(context, n_sentences) as heard:
        return train(elmo, read_senses(path, gold=gold), **options, on_progress=heard)


def _answers(
    context: typer.Context,
    elmo: Any,
    path: Path,
    gold: Path | None,
    *,
    known: SenseCentroids,
    net: WordNet,
    method: Any,
) -> list[Answer]:
    from elmo.lexicon.sense_corpora import read_senses
    from elmo.lexicon.wsd import disambiguate

    sentences = list(read_senses(path, gold=gold))
    with _heard(context, len(sentences)) as heard:
        return list(disambiguate(elmo, sentences, known, wordnet=net, method=method, on_progress=heard))


@contextmanager
def _heard(context: typer.Context, n_sentences: int) -> Iterator[Heard]:
    from elmo.cli.console import show_progress
    from elmo.jobs.plan import Progress

    with show_progress(context.obj, n_sentences=n_sentences, is_stdout_free=True) as show:

        def heard(n_done: int, n_tokens: int) -> None:
            if show is not None:
                show(Progress("embedding", sentences=n_done, tokens=n_tokens, shards=0, kept=0))

        yield heard


def _print_scores(answers: list[Answer], *, as_json: bool, out: Path | None) -> None:
    from elmo.lexicon.sense_corpora import score
    from elmo.storage.atomic import atomic_file
    from elmo.storage.atomic import make_parents

    if out is not None:
        make_parents(out)
        lines = [f"{answer.instance.id} {answer.key}\n" for answer in answers if answer.key]
        with atomic_file(out) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
        logger.info("%s: %s answers written", out, f"{len(lines):,}")
    if answers and not any(answer.instance.keys for answer in answers):
        logger.warning("there are no gold keys, so nothing is scored: give --gold")
        return
    scores = score({answer.instance.id: answer.key for answer in answers}, [a.instance for a in answers])
    if as_json:
        print(json.dumps({name: _score_json(found) for name, found in scores.items()}))
        return
    print(f"{'':6}{'instances':>10}{'answered':>10}{'precision':>11}{'recall':>9}{'F1':>9}")
    for name, s in scores.items():
        print(f"{name:6}{s.n_instances:10,}{s.n_answered:10,}{s.precision:11.2%}{s.recall:9.2%}{s.f1:9.2%}")
    n_back_off = sum(answer.is_back_off for answer in answers)
    print(f"without a use in training, so by WordNet's order: {n_back_off:,}")


def _score_json(found: Score) -> dict[str, float]:
    names = ("n_instances", "n_answered", "n_right", "precision", "recall", "f1")
    return {name: getattr(found, name) for name in names}


def _lines(answer: Answer, net: WordNet) -> list[str]:
    """The sentence, then its word's senses, the best first."""
    usage = answer.sentence.usages()[answer.sentence.instances.index(answer.instance)]
    before, word, after = map(one_line, usage.parts())
    lines = [f"{before}[{word}]{after}"]
    if answer.is_back_off:
        lines.append("no use of these senses in training: WordNet's order")
    for ranked in answer.senses[:_N_SHOWN]:
        score = "      -" if ranked.score is None else f"{ranked.score:7.3f}"
        lines.append(f"{score} {ranked.n_uses:5} ×  {ranked.key:24} {one_line(net.definition(ranked.key))}")
    if len(answer.senses) > _N_SHOWN:
        lines.append(f"and {len(answer.senses) - _N_SHOWN} more senses; --json has them all")
    return lines


def _to_json(answer: Answer, net: WordNet) -> dict[str, Any]:
    instance = answer.instance
    return {
        "word": answer.word,
        "tokens": list(answer.sentence.tokens.tokens),
        "span": [instance.begin, instance.end],
        "is_back_off": answer.is_back_off,
        "senses": [
            {"key": each.key, "score": each.score, "uses": each.n_uses, "gloss": net.gloss(each.key)}
            for each in answer.senses
        ],
    }
