"""``elmo senses``: find the senses of a word by clustering its usages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger, show_progress, track_sentences, warn_about_bytes
from elmo.cli.generate import options_from
from elmo.cli.results import check_result_file, format_usage, print_results, write_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.lexicon.senses import Senses
    from elmo.text.reader import Sentence

EXAMPLES = opt.examples(
    "elmo senses bank corpus.txt",
    "elmo senses bank corpus.txt --clusters 2 --json",
    "elmo senses bank corpus.txt --clusters 2 --out bank.tsv",
    "elmo senses the corpus.txt --method kmeans --picture the.png",
    "elmo senses bank usages --other-index usages-zh --other-word 银行",
)


@options_from(
    "elmo.lexicon.senses:senses_in_corpus",
    skip=("is_as_written",),
    flags={"n_clusters": "--clusters", "n_examples": "--examples"},
    metavars={"n_clusters": "K"},
    minimums={"n_clusters": 1, "n_examples": 0, "seed": 0},
)
def command(
    context: typer.Context,
    word: opt.Word,
    inputs: opt.Inputs,
    *,
    model: opt.Model = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=5000, metavar="N", help="Maximum number of usages; if there are more, a random sample is used."
        ),
    ] = 500,
    by: opt.By = "layers",
    layers: opt.OneVector = "sense",
    start: opt.Start = "zero",
    as_written: opt.AsWritten = False,
    input_format: opt.InputFormat = "text",
    tokenizer: opt.Tokenizer = None,
    split: opt.Split = None,
    errors: opt.Errors = "strict",
    device: opt.Device = "cpu",
    as_json: opt.AsJson = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    other_index: Annotated[
        Path | None,
        opt.option(
            metavar="FOLDER",
            help="Index of another language, built with a model that 'elmo align' aligned to the other model.",
        ),
    ] = None,
    other_word: Annotated[
        str | None, opt.option(metavar="WORD", help="Translation of the word, for --other-index.")
    ] = None,
    **options: Any,
) -> None:
    """Find the senses of a word: clusters of its usages, with typical sentences.

    If the model has a softmax, senses are named by predicted substitutes. INPUT can also be a folder written by
    'elmo index'; its vectors are then used. With --other-index, the usages of a word and of its translation are
    clustered together.
    """
    from elmo.errors import DataError
    from elmo.lexicon.index import MANIFEST, Index
    from elmo.lexicon.senses import COLUMNS, find_senses, join_usages, senses_in_corpus
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences, require_words

    check_result_file(out)
    is_index = len(inputs) == 1 and Path(inputs[0], MANIFEST).is_file()
    if (other_index is None) != (other_word is None) or (other_index is not None and not is_index):
        raise typer.BadParameter("--other-index and --other-word are for an INPUT that is an index, and go together")
    if is_index:
        _warn_about_options(context, inputs[0])
        if other_index is not None and other_word is not None:
            indexes = Index(inputs[0]), Index(other_index)
            usages = join_usages(*indexes, (word, other_word), limit=limit, seed=options["seed"])
        else:
            usages = Index(inputs[0]).usages(word, limit=limit, seed=options["seed"])
        if not len(usages):
            raise DataError(f"{word[:40]!r} does not occur in the index; check its spelling")
        result = find_senses(usages, word=word, **options)
    else:
        expand_paths(inputs)  # reports a missing file before a large model is loaded
        from elmo.embed.elmo import Elmo

        elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)

        def read() -> Iterator[Sentence]:
            tally = Tally()
            sentences = read_sentences(
                inputs, tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors, tally=tally
            )
            with show_progress(context.obj, n_sentences=None, is_stdout_free=not as_json) as show:
                yield from track_sentences(require_words(sentences, inputs=inputs), show)
            warn_about_bytes(tally)

        result = senses_in_corpus(
            elmo, read(), word, limit=limit, is_as_written=as_written, by=by, layers=opt.parse_layers(layers),
            start=start, **options,
        )  # fmt: skip
    print_results(result.to_json(), _lines(result), as_json=as_json)
    write_results(out, columns=COLUMNS, rows=result.rows(), values=result.to_json())
    if picture:
        from elmo.plots.senses import draw_senses

        draw_senses(result, picture, seed=options["seed"])
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
            "%s: ignoring %s, because the index already has vectors; pass the text to compute other vectors",
            folder, ", ".join(unused),
        )  # fmt: skip


def _lines(senses: Senses) -> list[str]:
    from elmo.lexicon.clustering import MAX_CLUSTERS, MIN_USAGES

    n_senses = "one sense" if len(senses) == 1 else f"{len(senses)} senses"
    n = len(senses.usages)
    lines = [one_line(f"{senses.word}: {n_senses} in {n:,} usage{'s' * (n != 1)} ({senses.method})")]
    if senses.silhouette is not None and senses.null is not None:
        lines.append(f"silhouette {senses.silhouette:.3f} ({senses.null:.3f} for data without clusters)")
    elif n < MIN_USAGES:
        lines.append(
            f"too few usages to choose the number of senses (at least {MIN_USAGES} are needed); set it with --clusters"
        )
    if senses.silhouette is not None and len(senses) == MAX_CLUSTERS:
        lines.append(f"{MAX_CLUSTERS} is the largest number of senses that is tried; set a larger one with --clusters")
    for sense in senses.items:
        lines += ["", one_line(f"{sense.share:5.0%}  {sense.label}")]
        lines += [f"       {format_usage(usage)}" for usage in sense.examples]
    return lines
