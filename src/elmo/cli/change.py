"""``elmo change``: rank words by how much their usage changed between periods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.console import UsageProgress, logger, show_progress, track_sentences, warn_about_bytes
from elmo.cli.generate import options_from
from elmo.cli.results import check_result_file, format_usage, print_results, write_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.change import Changes
    from elmo.text.reader import Sentence

EXAMPLES = opt.examples(
    "elmo change corpus.txt more --words the,river --min-count 1",
    "elmo change corpus.txt more --words the --min-count 1 --json",
    "elmo change corpus.txt more --min-count 1 --skip 0 --out c.tsv",
    "elmo change corpus.txt more --min-count 1 --skip 0 --picture c.png",
)


@options_from(
    "elmo.lexicon.change:change_in_corpora",
    skip=("is_as_written", "options", "on_progress", "on_measured"),
    minimums={"max_words": 1, "skip": 0},
)
@options_from(
    "elmo.lexicon.change:ChangeOptions",
    into="settings",
    skip=("method", "n_examples", "keep_usages"),
    minimums={"min_count": 1, "permutations": 1, "seed": 0},
)
def command(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        opt.argument(
            metavar="PERIOD", help="Two or more files, globs or folders: one for each period, in chronological order."
        ),
    ] = None,
    *,
    words: opt.Words = None,
    uses: Annotated[
        Path | None,
        opt.option(
            metavar="FOLDER",
            help="Read usages from this folder of DWUG data (Diachronic Word Usage Graphs) instead of texts.",
        ),
    ] = None,
    model: opt.Model = None,
    settings: dict[str, Any],
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Maximum number of usages per word and period; if there are more, a random sample is used.",
        ),
    ] = 200,
    n_examples: Annotated[
        int, typer.Option("--examples", min=0, metavar="N", help="Number of typical sentences to show for each period.")
    ] = 2,
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of top-ranked words to show sentences for.")
    ] = 10,
    by: opt.By = "layers",
    layers: opt.OneVector = "top",
    as_written: opt.AsWritten = False,
    as_json: opt.AsJson = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    input_format: opt.InputFormat = "text",
    tokenizer: opt.Tokenizer = None,
    split: opt.Split = None,
    errors: opt.Errors = "strict",
    start: opt.Start = "zero",
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Rank words by how much their usage changed between periods, with p-values.

    Without --words, frequent words with three letters or more that occur in all periods are ranked.
    """
    from elmo.embed.elmo import Elmo
    from elmo.errors import DataError
    from elmo.lexicon.change import COLUMNS, ChangeOptions, change_in_corpora, change_in_uses
    from elmo.lexicon.usages import hint_about_tokenizer, read_uses, sort_periods
    from elmo.text.lines import Tally, expand_paths

    check_result_file(out)
    listed = opt.parse_words(words)
    paths = inputs or []
    _check_inputs(context, paths, uses, has_words=listed is not None)
    uses_by_period = None if uses is None else read_uses(uses)
    for path in paths:
        expand_paths([path])  # reports a missing file before a large model is loaded
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    shared: dict[str, Any] = {
        "words": listed, "limit": limit, "by": by, "layers": opt.parse_layers(layers), "start": start,
        "is_as_written": as_written,
        # the figure of a single word shows its usages
        "options": ChangeOptions(
            **settings, n_examples=n_examples, keep_usages=listed is not None and len(listed) == 1
        ),
        "on_progress": UsageProgress("embedding", is_quiet=context.obj.is_quiet),
    }  # fmt: skip
    if uses_by_period is not None:
        periods = sort_periods({period for by_period in uses_by_period.values() for period in by_period})
        changes = change_in_uses(elmo, uses_by_period, periods, **shared)
    else:
        tally = Tally()
        reading = {"input_format": input_format, "split": split, "errors": errors, "tally": tally}
        changes = change_in_corpora(elmo, _corpora(context, elmo, paths, reading), **shared, **options)
        warn_about_bytes(tally)
    for skipped in changes.skipped:
        is_text = uses is None and input_format == "text"
        hint = hint_about_tokenizer(elmo.tokenizer, skipped.word) if is_text else ""
        logger.warning("skipping %s: %s%s", skipped.word, skipped.reason, hint)
    if not changes.words:
        raise DataError("no word has enough usages in each period; use more text or a smaller --min-count")
    print_results(changes.to_json(), _lines(changes, top), as_json=as_json)
    write_results(out, columns=COLUMNS, rows=changes.rows(), values=changes.to_json())
    if picture:
        from elmo.plots.change import draw_changes

        draw_changes(changes, picture, seed=shared["options"].seed)
        logger.info("wrote %s", picture)


def _check_inputs(context: typer.Context, paths: list[str], uses: Path | None, *, has_words: bool) -> None:
    if uses is not None and paths:
        raise typer.BadParameter("expected texts or --uses FOLDER, found both", ctx=context)
    if uses is None and len(paths) < 2:
        raise typer.BadParameter(
            f"expected two or more texts, one for each period, or --uses FOLDER; found {len(paths)}", ctx=context
        )
    if "-" in paths and not has_words:
        raise typer.BadParameter(
            "stdin can be read only once, but texts are read twice without --words; add --words", ctx=context
        )


def _corpora(
    context: typer.Context, elmo: Elmo, paths: list[str], reading: dict[str, Any]
) -> dict[str, Callable[[], Iterable[Sentence]]]:
    """Return for each period, by its name, a function that reads its text."""
    from elmo.text.reader import read_sentences

    stems = [Path(path).name.partition(".")[0] or path for path in paths]
    names = stems if len(set(stems)) == len(stems) else paths  # e.g. for 1850s/all.txt and 1950s/all.txt

    def read(path: str) -> Iterable[Sentence]:
        with show_progress(context.obj, n_sentences=None, is_stdout_free=True) as show:
            yield from track_sentences(read_sentences([path], tokenizer=elmo.tokenizer, **reading), show)

    return {name: partial(read, path) for name, path in zip(names, paths, strict=True)}


def _lines(changes: Changes, top: int) -> list[str]:
    """Return the lines to print: the ranking, its correlation with frequency, and typical usages."""
    from elmo.text.display import text_width

    size = max(4, *(text_width(one_line(word.word)) for word in changes.words))
    first, last = changes.periods[0], changes.periods[-1]
    head = f"{'word':{size}}  {changes.measure:>7}  {'95 % interval':>16}  {'p':>7}  {'q':>7}  {'usages':>11}"
    has_frequency = all(word.per_million for word in changes.words)
    lines = [f"{first} → {last}", head + (f"  {'per million':>19}" if has_frequency else "")]
    for word in changes.words:
        step = word.overall
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
            lines.append(f"{'':{size}}  {steps}")
    if (correlation := changes.frequency_correlation) is not None:
        n_words = len(changes.words)
        lines += ["", f"rank correlation of change with frequency: {correlation:+.2f} ({n_words} words)"]
    for word in changes.words[:top]:
        step = word.overall
        if step.appeared or step.declined:
            lines += ["", f"{word.word}: usages most typical of {last}"]
            lines += [f"  + {format_usage(usage)}" for usage in step.appeared]
            lines.append(f"{word.word}: usages most typical of {first}")
            lines += [f"  - {format_usage(usage)}" for usage in step.declined]
    return lines
