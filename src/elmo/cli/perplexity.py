"""``elmo perplexity``: a model and text in, how well it predicts the text out, and scores in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.options import AsJson, Device, Errors, ModelArgument, Tokenizer, examples
from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.predict.perplexity import Means, Perplexity
    from elmo.text.lines import Tally

EXAMPLES = examples(
    "elmo perplexity en corpus.txt",
    "elmo perplexity path/to/model corpus.txt more --split --start carry --json",
    "elmo perplexity en corpus.txt --start zero --out scores.tsv",
    "elmo perplexity en corpus.txt --start zero --by token --out scores.jsonl",
)
_COLUMNS = ("forward", "backward", "arithmetic", "geometric", "nats/token", "bits/char")
_N_SHOWN = 10  # unknown words in the table
_TO_QUOTE = (
    "to quote: geometric, as <UNK>; carry for running text, as bilm-tf does, zero for single sentences"
)


def command(
    context: typer.Context,
    model: ModelArgument,
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT", help="Files, globs or folders, compressed or not; - is stdin.", show_default=False
        ),
    ],
    *,
    start: Annotated[
        Literal["all", "zero", "warm", "carry"],
        typer.Option(
            help="What the LSTMs remember when a sentence begins: nothing, the model's warm state, or the "
            "sentence before; all that the model has, side by side."
        ),
    ] = "all",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write scores: .tsv or .jsonl.", show_default=False),
    ] = None,
    by: Annotated[
        Literal["sentence", "token"] | None,
        typer.Option(help="Of what to write scores.", show_default="sentence"),
    ] = None,
    as_json: AsJson = False,
    input_format: Annotated[
        Literal["text", "tokens", "conllu"],
        typer.Option("--format", help="A sentence a line, tokens parted by spaces, or CoNLL-U."),
    ] = "text",
    tokenizer: Tokenizer = None,
    split: Annotated[bool, typer.Option("--split", help="Split lines of text into sentences.")] = False,
    blank_lines: Annotated[
        bool, typer.Option("--blank-lines", help="Blank lines are sentences without words.")
    ] = False,
    errors: Errors = "strict",
    directions: Annotated[
        Literal["both", "forward", "backward"] | None,
        typer.Option(help="Which language model is asked.", show_default="those that were trained"),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Parts of the text that --start carry reads side by side.",
            show_default="up to 32, of about a thousand tokens or more",
        ),
    ] = None,
    device: Device = "cpu",
) -> None:
    """Measure how well a model predicts text: perplexity, every token, full softmax.

    Quote the geometric mean with unknown words as <UNK>: of carry for running text, as bilm-tf does, of zero
    for sentences that stand alone; the forward one beside models that read from left to right.

    Per character counts the characters of the words and one boundary after each word.
    """
    from elmo.cli.embed import lines_to_come
    from elmo.cli.report import shown
    from elmo.embed.elmo import Elmo
    from elmo.jobs.plan import EmbedJob, Progress
    from elmo.predict.perplexity import perplexity
    from elmo.predict.scores import check_output
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences

    if by is not None and out is None:
        raise typer.BadParameter("--by says how a file is written: give --out, too", ctx=context)
    files = expand_paths(text)  # typos are told before a large model is loaded
    if out is not None:
        check_output(out, inputs=files)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    tally = Tally()
    sentences = read_sentences(
        text, tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors, tally=tally
    )
    job = EmbedJob(tuple(text), input_format=input_format, split=split)
    n_lines = None if context.obj.is_quiet else lines_to_come(job)
    with shown(context.obj, n_sentences=n_lines, is_stdout_free=True) as show:

        def told(n_sentences: int, n_tokens: int) -> None:
            if show is not None:
                show(Progress("predicting", sentences=n_sentences, tokens=n_tokens, shards=0, kept=0))

        found = perplexity(
            elmo,
            sentences,
            start=start,
            directions=directions,
            blank_lines_count=blank_lines,
            n_rows=rows,
            out=out,
            by=by or "sentence",
            on_progress=told,
        )
    _warn(tally)
    if as_json:
        print(json.dumps({"model": model, **found.to_json()}))
    else:
        print("\n".join(map(one_line, _lines(found))))
    if out is not None:
        logger.info("%s: written", out)


def _lines(found: Perplexity) -> list[str]:
    """What was read, then a table with a line for each start and each way to count unknown words."""
    means = next(iter(found.by_start.values())).with_unknown
    lines = [
        f"text      {found.n_sentences:,} sentences, {found.n_tokens:,} tokens, "
        f"{means.n_predictions:,} predictions each way",
        f"unknown   {found.n_unknown:,} tokens ({found.unknown_rate:.2%})",
    ]
    if found.n_unknown:
        named = ", ".join(f"{word} {n:,}" for word, n in found.unknown_words[:_N_SHOWN])
        lines.append(f"          most frequent: {named}")
    lines += ["", f"{'start':6}{'unknown':9}" + "".join(f"{name:>{_width(name)}}" for name in _COLUMNS)]
    for start, both in found.by_start.items():
        lines.append(f"{start:6}{'as <UNK>':9}{_row(both.with_unknown)}")
        lines.append(f"{'':6}{'left out':9}{_row(both.without_unknown)}")
    if len(found.by_start) > 1:  # who asked for one start knows what for
        lines += ["", _TO_QUOTE]
    return lines


def _width(name: str) -> int:
    return max(10, len(name) + 1)


def _row(means: Means) -> str:
    perplexities = (means.forward, means.backward, means.arithmetic_mean, means.geometric_mean)
    shown = ["-" if x is None else f"{x:,.2f}" for x in perplexities]
    shown += [f"{x:.4f}" for x in (means.nats_per_token, means.bits_per_character)]
    return "".join(f" {x:>{_width(name) - 1}}" for name, x in zip(_COLUMNS, shown, strict=True))


def _warn(tally: Tally) -> None:
    if tally.repaired:
        logger.warning("lines repaired that were not UTF-8: %d", tally.repaired)
    if tally.skipped:
        logger.warning("lines left out that were not UTF-8 (--errors skip): %d", tally.skipped)
