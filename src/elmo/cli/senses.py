"""``elmo senses``: a word and text in, the senses that the word has there out."""

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
        str,
        typer.Argument(metavar="WORD", help="A word, or a phrase such as 'New York'.", show_default=False),
    ],
    inputs: Inputs,
    *,
    model: Model = None,
    method: Annotated[
        Literal["agglomerative", "kmeans", "affinity", "hdbscan"],
        typer.Option(help="How usages are clustered."),
    ] = "agglomerative",
    clusters: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="How many senses.", show_default="found")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=5000, metavar="N", help="Usages to look at; of more, a fair sample.")
    ] = 500,
    n_examples: Annotated[
        int, typer.Option("--examples", min=0, metavar="N", help="Sentences to show of each sense.")
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
    seed: Annotated[int, typer.Option(min=0, help="Of the sample and of clustering.")] = 0,
    device: Device = "cpu",
) -> None:
    """Find the senses of a word: clusters of its usages, with typical sentences.

    Senses are named by what else could stand there, if the model has a softmax. INPUT may be a folder that
    elmo index made, too: its vectors are taken as they are.
    """
    from elmo.errors import DataError
    from elmo.lexicon.index import MANIFEST, Index
    from elmo.lexicon.senses import COLUMNS, find_senses
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences, require_words

    check_result_file(out)
    if picture:
        from elmo.plots.figure import check_picture

        check_picture(picture)
    name_of, hint, tally = None, "", Tally()
    if len(inputs) == 1 and Path(inputs[0], MANIFEST).is_file():
        _tell_of_index(context, inputs[0])
        usages = Index(inputs[0]).usages(word, limit=limit, seed=seed)
    else:
        expand_paths(inputs)  # typos are told before a large model is loaded
        from elmo.cli.console import show_progress
        from elmo.embed.elmo import Elmo
        from elmo.lexicon.substitutes import embed_substitutes
        from elmo.lexicon.senses import name_by_substitutes
        from elmo.lexicon.usages import Usages, embed_usages, entry_key, find_usages, respell

        elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
        with show_progress(context.obj, n_sentences=None, is_stdout_free=not as_json) as show:
            sentences = read_sentences(
                inputs, tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors,
                tally=tally,
            )  # fmt: skip
            read = track_sentences(require_words(sentences, inputs=inputs), show)
            found = find_usages(read, [word], key=entry_key(elmo), limit=limit, seed=seed)[word]
        warn_about_bytes(tally)
        hint = "" if found or input_format != "text" else hint_about_tokenizer(elmo.tokenizer, word)
        if by == "substitutes":
            usages = embed_substitutes(elmo, found, start=start)
        else:
            read_as = found if as_written else [respell(usage, word) for usage in found]
            vectors = embed_usages(elmo, read_as, layers=parse_layers(layers), start=start).vectors
            usages = Usages(tuple(found), vectors)
        name_of = name_by_substitutes(elmo)
    if not len(usages):
        hint = hint or "; is it spelled and tokenised like this?"
        raise DataError(f"{word[:40]!r} does not occur in the text{hint}")
    _check_clusters(word, usages, clusters)
    result = find_senses(
        usages, word=word, method=method, n_clusters=clusters, n_examples=n_examples, name_of=name_of,
        seed=seed,
    )  # fmt: skip
    print(json.dumps(result.to_json(), ensure_ascii=False) if as_json else "\n".join(_lines(result)))
    if out:
        write_results(out, columns=COLUMNS, rows=result.rows(), values=result.to_json())
        logger.info("%s: written", out)
    if picture:
        from elmo.plots.senses import draw_senses

        draw_senses(result, picture, seed=seed)
        logger.info("%s: written", picture)


def _tell_of_index(context: typer.Context, folder: str) -> None:
    """An index has its vectors already: what asks for others is told to have no effect."""
    named = ("by", "layers", "as_written", "start", "model", "tokenizer", "input_format", "split", "errors")
    options = {option.name: option.opts[0] for option in context.command.params}
    given = [
        options[name]
        for name in named
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]
    if given:
        logger.warning(
            "%s: an index has its vectors, so %s changes nothing; give the text to have others",
            folder, ", ".join(given),
        )  # fmt: skip


def _check_clusters(word: str, usages: Usages, clusters: int | None) -> None:
    from elmo.errors import DataError

    if clusters is not None and clusters > len(usages):
        raise DataError(
            f"{word[:40]!r}: expected {clusters} usages or more for so many senses, found {len(usages)}"
        )


def _lines(found: Senses) -> list[str]:
    from elmo.lexicon.clustering import MIN_USAGES, MAX_CLUSTERS

    how = "one sense" if len(found) == 1 else f"{len(found)} senses"
    n = len(found.usages)
    lines = [one_line(f"{found.word}: {how} in {n:,} usage{'s' * (n != 1)} ({found.method})")]
    if found.silhouette is not None and found.null is not None:
        lines.append(f"silhouette {found.silhouette:.3f}; data without clusters reach {found.null:.3f}")
    elif n < MIN_USAGES:
        lines.append(f"too few to look for senses, which needs {MIN_USAGES} usages; --clusters K makes K")
    if found.silhouette is not None and len(found) == MAX_CLUSTERS:
        lines.append(f"no more than {MAX_CLUSTERS} are looked for; --clusters K makes K")
    for sense in found.items:
        lines += ["", one_line(f"{sense.share:5.0%}  {sense.label}")]
        lines += [f"       {format_usage(usage)}" for usage in sense.examples]
    return lines
