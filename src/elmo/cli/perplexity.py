"""``elmo perplexity``: measure how well a model predicts text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger, show_counts, warn_about_bytes
from elmo.cli.generate import is_set, options_from
from elmo.cli.results import print_results

if TYPE_CHECKING:
    from elmo.predict.evaluate import Perplexity
    from elmo.predict.scores import Means

EXAMPLES = opt.examples(
    "elmo perplexity en corpus.txt",
    "elmo perplexity en corpus.txt --start all",
    "elmo perplexity path/to/model corpus.txt more --split --start carry --json",
    "elmo perplexity en corpus.txt --start zero --out scores.tsv",
    "elmo perplexity en corpus.txt --start zero --by token --out scores.jsonl",
)
_COLUMNS = ("forward", "backward", "arithmetic", "geometric", "nats/token", "bits/char")
_N_UNKNOWN_WORDS = 10  # number of unknown words in the table
_ADVICE = (
    "for publication, report the geometric mean with unknown words as <UNK>: "
    "carry for running text (as in bilm-tf), zero for single sentences"
)

_HINT = (
    "each sentence starts from zero; for running text, as in the training log, use --start carry; for all start "
    "states, --start all"
)


@options_from(
    "elmo.predict.evaluate:perplexity",
    skip=("start", "n_unknown_words", "out", "by", "tokenizer", "on_progress"),
    flags={"input_format": "--format"},
    minimums={"batch_size": 1},
)
def command(
    context: typer.Context,
    model: opt.ModelArgument,
    text: opt.Texts,
    *,
    start: Annotated[
        Literal["all", "zero", "warm", "carry"],
        typer.Option(
            help="LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'; carry "
            "continues from the previous sentence; all measures with each available state."
        ),
    ] = "zero",
    out: opt.ScoreFile = None,
    by: Annotated[
        Literal["sentence", "token"] | None,
        typer.Option(help="Unit of the scores in --out: sentence or token.", show_default="sentence"),
    ] = None,
    as_json: opt.AsJson = False,
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Measure the perplexity of a model on text, with the full softmax.

    For publication, report the geometric mean with unknown words as <UNK>: with --start carry for running text,
    as in bilm-tf, or with --start zero for single sentences. To compare with left-to-right models, report the
    forward perplexity.

    The number of characters for bits/char includes one separator after each word.
    """
    from elmo.embed.elmo import Elmo
    from elmo.jobs.plan import EmbedJob
    from elmo.predict.evaluate import perplexity
    from elmo.predict.score_files import check_score_file
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences

    if by is not None and out is None:
        raise typer.BadParameter("--by requires --out", ctx=context)
    files = expand_paths(text)  # reports a missing file before a large model is loaded
    if out is not None:
        check_score_file(out, inputs=files)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    tally = Tally()
    reading = {name: options.pop(name) for name in ("input_format", "split", "errors")}
    sentences = read_sentences(text, tokenizer=elmo.tokenizer, tally=tally, **reading)
    n_lines = None if context.obj.is_quiet else EmbedJob(tuple(text), **reading).count_lines()
    with show_counts(context.obj, "predicting", n_sentences=n_lines) as report:
        result = perplexity(elmo, sentences, start=start, out=out, by=by or "sentence", on_progress=report, **options)
    warn_about_bytes(tally)
    has_choice = elmo.config.encoder_name == "lstm"  # a transformer has only one start state
    hint = "" if is_set(context, "start") or not has_choice else _HINT
    print_results({"model": model, **result.to_json()}, _format_lines(result, hint=hint), as_json=as_json)
    if out is not None:
        logger.info("wrote %s", out)


def _format_lines(result: Perplexity, *, hint: str) -> list[str]:
    """Return the lines to print: counts, then a table with and without unknown words for each start state."""
    means = next(iter(result.by_start.values())).with_unknown
    lines = [
        f"text      {result.n_sentences:,} sentences, {result.n_tokens:,} tokens, "
        f"{means.n_predictions:,} predictions per direction",
        f"unknown   {result.n_unknown:,} tokens ({result.unknown_rate:.2%})",
    ]
    if result.n_unknown:
        words = ", ".join(f"{word} {n:,}" for word, n in result.unknown_words[:_N_UNKNOWN_WORDS])
        lines.append(f"          most frequent: {words}")
    lines += ["", f"{'start':6}{'unknown':9}" + "".join(f"{name:>{_width(name)}}" for name in _COLUMNS)]
    for start, both in result.by_start.items():
        lines.append(f"{start:6}{'as <UNK>':9}{_format_row(both.with_unknown)}")
        lines.append(f"{'':6}{'left out':9}{_format_row(both.without_unknown)}")
    if last := _ADVICE if len(result.by_start) > 1 else hint:
        lines += ["", last]
    return lines


def _format_row(means: Means) -> str:
    perplexities = (means.forward, means.backward, means.arithmetic_mean, means.geometric_mean)
    cells = ["-" if x is None else f"{x:,.2f}" for x in perplexities]
    cells += [f"{x:.4f}" for x in (means.nats_per_token, means.bits_per_character)]
    return "".join(f" {cell:>{_width(name) - 1}}" for name, cell in zip(_COLUMNS, cells, strict=True))


def _width(name: str) -> int:
    return max(10, len(name) + 1)
