"""``elmo senses``: find the senses of a word by clustering its usages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.console import logger, track_sentences, warn_about_bytes
from elmo.cli.options import (
    AsJson,
    AsWritten,
    By,
    Device,
    Errors,
    InputFormat,
    Inputs,
    Model,
    OneVector,
    Picture,
    ResultFile,
    Split,
    Start,
    Tokenizer,
    examples,
    parse_layers,
)
from elmo.cli.results import check_result_file, format_usage, hint_about_tokenizer, write_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.lexicon.senses import Senses
    from elmo.lexicon.usages import Usages

EXAMPLES = examples(
    "elmo senses bank corpus.txt",
    "elmo senses bank corpus.txt --clusters 2 --json",
    "elmo senses bank corpus.txt --clusters 2 --out bank.tsv",
    "elmo senses the corpus.txt --method kmeans --picture the.png",
)


def command(
    context: typer.Context,
    word: Annotated[
        str, typer.Argument(metavar="WORD", help="A word, or a phrase such as 'New York'.", show_default=False)
    ],
    inputs: Inputs,
    *,
    model: Model = None,
    method: Annotated[
        Literal["agglomerative", "kmeans", "affinity", "hdbscan"], typer.Option(help="Clustering method.")
    ] = "agglomerative",
    clusters: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Number of senses.", show_default="chosen from the data")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=5000, metavar="N", help="Number of usages; more usages are sampled.")
    ] = 500,
    n_examples: Annotated[
        int, typer.Option("--examples", min=0, metavar="N", help="Sentences to show for each sense.")
    ] = 3,
    by: By = "layers",
    layers: OneVector = "average",
    as_written: AsWritten = False,
    as_json: AsJson = False,
    out: ResultFile = None,
    picture: Picture = None,
    input_format: InputFormat = "text",
    tokenizer: Tokenizer = None,
    split: Split = False,
    errors: Errors = "strict",
    start: Start = "zero",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and of clustering.")] = 0,
    device: Device = "cpu",
) -> None:
    """Find the senses of a word: clusters of its usages, with typical sentences.

    Senses are named by substitutes if the model has a softmax. INPUT can also be the folder of an index,
    whose vectors are then used.
    """
    from elmo.errors import DataError
    from elmo.lexicon.index import MANIFEST, Index
    from elmo.lexicon.senses import COLUMNS, find_senses
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences, require_words

    check_result_file(out)
    name_of, hint, tally = None, "", Tally()
    if len(inputs) == 1 and Path(inputs[0], MANIFEST).is_file():
        _warn_about_options(context, inputs[0])
        usages = Index(inputs[0]).usages(word, limit=limit, seed=seed)
    else:
        expand_paths(inputs)  # reports a missing file before a large model is loaded
        from elmo.cli.console import show_progress
        from elmo.embed.elmo import Elmo
        from elmo.lexicon.senses import embed_by, name_by_substitutes
        from elmo.lexicon.usages import Usages, entry_key, find_usages, respell

        elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
        with show_progress(context.obj, n_sentences=None, is_stdout_free=not as_json) as show:
            sentences = read_sentences(
                inputs, tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors,
                tally=tally,
            )  # fmt: skip
            read = track_sentences(require_words(sentences, inputs=inputs), show)
            items = find_usages(read, [word], key=entry_key(elmo), limit=limit, seed=seed)[word]
        warn_about_bytes(tally)
        hint = "" if items or input_format != "text" else hint_about_tokenizer(elmo.tokenizer, word)
        is_kept = as_written or by == "substitutes"  # substitutes do not depend on the spelling
        respelled = items if is_kept else [respell(usage, word) for usage in items]
        vectors = embed_by(elmo, respelled, by=by, layers=parse_layers(layers), start=start).vectors
        usages = Usages(tuple(items), vectors)
        name_of = name_by_substitutes(elmo)
    if not len(usages):
        hint = hint or "; check its spelling and the tokenizer"
        raise DataError(f"{word[:40]!r} does not occur in the text{hint}")
    _check_clusters(word, usages, clusters)
    result = find_senses(
        usages, word=word, method=method, n_clusters=clusters, n_examples=n_examples, name_of=name_of,
        seed=seed,
    )  # fmt: skip
    print(json.dumps(result.to_json(), ensure_ascii=False) if as_json else "\n".join(_lines(result)))
    if out:
        write_results(out, columns=COLUMNS, rows=result.rows(), values=result.to_json())
        logger.info("wrote %s", out)
    if picture:
        from elmo.plots.senses import draw_senses

        draw_senses(result, picture, seed=seed)
        logger.info("wrote %s", picture)


def _warn_about_options(context: typer.Context, folder: str) -> None:
    """Warn about options that have no effect on the vectors of an index."""
    names = ("by", "layers", "as_written", "start", "model", "tokenizer", "input_format", "split", "errors")
    flags = {option.name: option.opts[0] for option in context.command.params}
    unused = [
        flags[name] for name in names if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]
    if unused:
        logger.warning(
            "%s: this index has vectors, so %s has no effect; use the text for other vectors",
            folder, ", ".join(unused),
        )  # fmt: skip


def _check_clusters(word: str, usages: Usages, clusters: int | None) -> None:
    from elmo.errors import DataError

    if clusters is not None and clusters > len(usages):
        raise DataError(
            f"{word[:40]!r}: expected at least {clusters} usages for {clusters} senses, found {len(usages)}"
        )


def _lines(senses: Senses) -> list[str]:
    from elmo.lexicon.clustering import MAX_CLUSTERS, MIN_USAGES

    n_senses = "one sense" if len(senses) == 1 else f"{len(senses)} senses"
    n = len(senses.usages)
    lines = [one_line(f"{senses.word}: {n_senses} in {n:,} usage{'s' * (n != 1)} ({senses.method})")]
    if senses.silhouette is not None and senses.null is not None:
        lines.append(f"silhouette {senses.silhouette:.3f}; data without clusters reach {senses.null:.3f}")
    elif n < MIN_USAGES:
        lines.append(f"too few usages to find senses ({MIN_USAGES} are needed); set the number with --clusters")
    if senses.silhouette is not None and len(senses) == MAX_CLUSTERS:
        lines.append(f"{MAX_CLUSTERS} is the largest number that is tried; set a larger one with --clusters")
    for sense in senses.items:
        lines += ["", one_line(f"{sense.share:5.0%}  {sense.label}")]
        lines += [f"       {format_usage(usage)}" for usage in sense.examples]
    return lines
