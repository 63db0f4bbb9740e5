"""``elmo change``: texts of two or more periods in, the words ranked by how far they changed out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli.console import UsageProgress, logger, track_sentences, warn_about_bytes
from elmo.cli.options import (
    AsJson,
    AsWritten,
    By,
    Device,
    Errors,
    InputFormat,
    Model,
    OneVector,
    Picture,
    ResultFile,
    Split,
    Start,
    Tokenizer,
    Words,
    examples,
    parse_layers,
    parse_words,
)
from elmo.cli.results import check_result_file, format_usage, hint_about_tokenizer, write_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.change import Changes
    from elmo.text.reader import Sentence

EXAMPLES = examples(
    "elmo change corpus.txt more --words the,river --min-count 1",
    "elmo change corpus.txt more --words the --min-count 1 --json",
    "elmo change corpus.txt more --min-count 1 --skip 0 --out c.tsv",
    "elmo change corpus.txt more --min-count 1 --skip 0 --picture c.png",
)


def command(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PERIOD",
            help="Two or more texts in their order in time, each a file, a glob or a folder.",
            show_default=False,
        ),
    ] = None,
    *,
    words: Words = None,
    uses: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of texts: files of uses by period, as DWUG has.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    measure: Annotated[
        Literal["apd", "prt", "prt-inverted", "jsd"],
        typer.Option(help="Average pairwise distance, distance of prototypes, or divergence of senses."),
    ] = "apd",
    limit: Annotated[
        int,
        typer.Option(min=1, max=1000, metavar="N", help="Usages of a word in a period; of more, a sample."),
    ] = 200,
    permutations: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="By which p is found.", show_default="1,000, or 20 a word"),
    ] = None,
    min_count: Annotated[
        int, typer.Option(min=1, metavar="N", help="Usages that a word must have in each period.")
    ] = 10,
    max_words: Annotated[
        int, typer.Option(min=1, metavar="N", help="Without --words: the most frequent, so many.")
    ] = 200,
    skip: Annotated[
        int, typer.Option(min=0, metavar="N", help="Without --words: not the N most frequent of all.")
    ] = 150,
    n_examples: Annotated[
        int, typer.Option("--examples", min=0, metavar="N", help="Sentences to show of each change.")
    ] = 2,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Words whose sentences are shown.")] = 10,
    by: By = "layers",
    layers: OneVector = "top",
    as_written: AsWritten = False,
    as_json: AsJson = False,
    out: ResultFile = None,
    picture: Picture = None,
    input_format: InputFormat = "text",
    tokenizer: Tokenizer = None,
    split: Split = False,
    errors: Errors = "strict",
    start: Start = "zero",
    seed: Annotated[int, typer.Option(min=0, help="Of samples, permutations and clustering.")] = 0,
    device: Device = "cpu",
) -> None:
    """Rank words by how far they changed between periods, with the chance of it.

    Without --words, words of three letters or more that are frequent enough in each period.
    """
    from elmo.embed.elmo import Elmo
    from elmo.errors import DataError
    from elmo.lexicon.change import COLUMNS, change_in_corpora, change_in_uses
    from elmo.lexicon.usages import sort_periods, read_uses
    from elmo.text.lines import Tally, expand_paths

    check_result_file(out)
    if picture:
        from elmo.plots.figure import check_picture

        check_picture(picture)
    chosen = parse_words(words)
    given = inputs or []
    _check_inputs(context, given, uses, has_words=chosen is not None)
    found_uses = None if uses is None else read_uses(uses)
    for one in given:
        expand_paths([one])  # typos are told before a large model is loaded
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    options: dict[str, Any] = {
        "words": chosen, "min_count": min_count, "layers": parse_layers(layers), "start": start, "seed": seed,
        "measure": measure, "permutations": permutations, "n_examples": n_examples,
        "is_as_written": as_written, "by": by,
        "keep_usages": chosen is not None and len(chosen) == 1,  # for the picture of one word
        "on_progress": UsageProgress("embedding", is_quiet=context.obj.is_quiet),
    }  # fmt: skip
    if found_uses is not None:
        periods = sort_periods({period for by_period in found_uses.values() for period in by_period})
        changes = change_in_uses(elmo, found_uses, periods, limit=limit, **options)
    else:
        tally = Tally()
        reading = {"input_format": input_format, "split": split, "errors": errors, "tally": tally}
        corpora = _corpora(context, elmo, given, reading)
        changes = change_in_corpora(elmo, corpora, limit=limit, max_words=max_words, skip=skip, **options)
        warn_about_bytes(tally)
    for one in changes.left_out:
        hint = "" if uses or input_format != "text" else hint_about_tokenizer(elmo.tokenizer, one.word)
        logger.warning("%s: left out: %s%s", one.word, one.reason, hint)
    if not changes.words:
        raise DataError("no word has enough usages in each period; give more text, or a smaller --min-count")
    print(json.dumps(changes.to_json(), ensure_ascii=False) if as_json else "\n".join(_lines(changes, top)))
    if out:
        write_results(out, columns=COLUMNS, rows=changes.rows(), values=changes.to_json())
        logger.info("%s: written", out)
    if picture:
        from elmo.plots.change import draw_changes

        draw_changes(changes, picture, seed=seed)
        logger.info("%s: written", picture)


def _check_inputs(context: typer.Context, given: list[str], uses: Path | None, *, has_words: bool) -> None:
    if uses is not None and given:
        raise typer.BadParameter("--uses FOLDER stands instead of texts: give one or the other", ctx=context)
    if uses is None and len(given) < 2:
        raise typer.BadParameter(
            f"expected a text for each of two periods or more, or --uses FOLDER, found {len(given)}",
            ctx=context,
        )
    if "-" in given and not has_words:
        raise typer.BadParameter("without --words texts are read twice, which stdin cannot be", ctx=context)


def _corpora(
    context: typer.Context, elmo: Elmo, given: list[str], reading: dict[str, Any]
) -> dict[str, Callable[[], Iterable[Sentence]]]:
    """How to read each text, by the name of its period."""
    from elmo.cli.console import show_progress
    from elmo.text.reader import read_sentences

    stems = [Path(path).name.partition(".")[0] or path for path in given]
    names = stems if len(set(stems)) == len(stems) else given  # 1850s/all.txt and 1950s/all.txt

    def reader(path: str) -> Callable[[], Iterable[Sentence]]:
        def read() -> Iterable[Sentence]:
            with show_progress(context.obj, n_sentences=None, is_stdout_free=True) as show:
                yield from track_sentences(read_sentences([path], tokenizer=elmo.tokenizer, **reading), show)

        return read

    return {name: reader(path) for name, path in zip(names, given, strict=True)}


def _lines(changes: Changes, top: int) -> list[str]:
    """The ranking, how it goes with frequency, then what appeared and went."""
    from elmo.text.display import text_width

    size = max(4, *(text_width(one_line(word.word)) for word in changes.words))
    first, last = changes.periods[0], changes.periods[-1]
    head = f"{'word':{size}}  {changes.measure:>7}  {'95 % interval':>16}  {'p':>7}  {'q':>7}  {'usages':>11}"
    has_frequency = all(word.per_million for word in changes.words)
    lines = [one_line(f"{first} → {last}"), head + (f"  {'per million':>19}" if has_frequency else "")]
    for word in changes.words:
        step = word.whole
        name = one_line(word.word)
        counts = f"{word.n_usages[first]} → {word.n_usages[last]}"
        interval = f"{step.low:.4f}..{step.high:.4f}"
        row = f"{name}{' ' * (size - text_width(name))}  {step.value:7.4f}  {interval:>16}"
        row += f"  {step.p:7.4f}  {step.q:7.4f}  {counts:>11}"
        if word.per_million:
            row += f"  {word.per_million[first]:>8.1f} → {word.per_million[last]:>8.1f}"
        lines.append(row)
        if len(word.steps) > 1:
            steps = "; ".join(f"{s.earlier} → {s.later} {s.value:.4f} (q {s.q:.3f})" for s in word.steps[:-1])
            lines.append(one_line(f"{'':{size}}  {steps}"))
    if changes.with_frequency is not None:
        n = len(changes.words)
        lines += ["", f"rank correlation of change with frequency: {changes.with_frequency:+.2f} ({n} words)"]
    for word in changes.words[:top]:
        step = word.whole
        if step.appeared or step.went:
            lines += ["", one_line(f"{word.word}: uses most typical of {last}")]
            lines += [f"  + {format_usage(usage)}" for usage in step.appeared]
            lines.append(one_line(f"{word.word}: uses most typical of {first}"))
            lines += [f"  - {format_usage(usage)}" for usage in step.went]
    return lines
