"""``elmo score``: print the log-probabilities of sentences or words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger, show_counts, warn_about_bytes
from elmo.cli.results import print_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.cli.console import Console
    from elmo.plots.words import Panel
    from elmo.predict.scores import SentenceScores

EXAMPLES = opt.examples(
    "elmo score corpus.txt",
    "elmo score --text 'the bank of the river' --tokens",
    "elmo score --text 我坐在河岸 --model zh --json",
    "elmo score corpus.txt more --tokens --out scores.tsv",
    "elmo score --text 'the river bank' --picture score.png",
    "elmo score --pairs blimp.jsonl",
)
_N_PANELS = 12  # maximum number of sentences in a picture
_SENTENCE_HEADER = f"{'forward':>11}{'backward':>11}{'perplexity':>13}{'unknown':>9}  sentence"
_TOKEN_HEADER = f"{'sentence':>8}{'forward':>11}{'backward':>11}  token"


def command(
    context: typer.Context,
    inputs: opt.OptionalInputs = None,
    *,
    model: opt.Model = None,
    text: Annotated[
        list[str] | None, opt.option("--text", "-t", metavar="SENTENCE", help="Sentence to score; may be repeated.")
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        opt.option(
            metavar="PATH",
            help="Minimal pairs, as a file or a folder: JSON lines as in BLiMP, or TSV with the columns sentence_good "
            "and sentence_bad; may be repeated.",
        ),
    ] = None,
    by_token: Annotated[bool, typer.Option("--tokens", help="Score each word instead of each sentence.")] = False,
    as_json: opt.AsJson = False,
    out: opt.ScoreFile = None,
    picture: opt.Picture = None,
    start: Annotated[
        Literal["zero", "warm", "carry"],
        typer.Option(
            help="LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'; carry "
            "continues from the previous sentence."
        ),
    ] = "zero",
    input_format: opt.InputFormat = "text",
    tokenizer: opt.Tokenizer = None,
    split: opt.Split = None,
    errors: opt.Errors = "strict",
    device: opt.Device = "cpu",
) -> None:
    """Score sentences or words: log-probabilities in nats, with the full softmax.

    The forward language model predicts a word from the words before it, the backward one from the words after it.
    The perplexity of a sentence is the geometric mean of both directions. Unknown words are predicted as <UNK>.
    With --pairs, print how often the acceptable sentence of a minimal pair is more probable, by phenomenon.
    """
    from elmo.errors import DataError
    from elmo.predict.score_files import format_json
    from elmo.predict.scores import score_sentences
    from elmo.text.lines import Tally

    if pairs:
        if inputs or text or by_token or out or picture or start == "carry" or input_format != "text" or split:
            raise typer.BadParameter(
                "--pairs cannot be combined with INPUT, --text, --tokens, --out, --picture, --split, --input-format or "
                "--start carry",
                ctx=context,
            )
        _score_pairs(
            context.obj, pairs, model=model, as_json=as_json, start=start, tokenizer=tokenizer, device=device
        )  # fmt: skip
        return
    if not inputs and not text:
        raise typer.BadParameter("expected INPUT or --text, found neither", ctx=context)
    for path in inputs or []:
        if " " in path and not Path(path).exists() and not any(character in path for character in "*?["):
            raise typer.BadParameter(f"{path[:60]!r}: no such file; to score a sentence, use --text", ctx=context)
    tally = Tally()
    by: Literal["sentence", "token"] = "token" if by_token else "sentence"
    results = score_sentences(
        model, [*map(Path, inputs or []), *(text or [])],
        start=start, input_format=input_format, split=split, errors=errors, out=out, by=by, tally=tally, device=device,
        tokenizer="whitespace" if input_format == "tokens" else tokenizer,
    )  # fmt: skip
    number = 0
    drawn: list[SentenceScores] = []
    for number, scores in enumerate(results, start=1):
        if picture and len(drawn) < _N_PANELS:
            drawn.append(scores)
        if as_json:
            perplexity = scores.perplexity if math.isfinite(scores.perplexity) else None
            print(format_json(number, scores, by=by, perplexity=perplexity))
        elif out is None:
            if number == 1:
                print(_TOKEN_HEADER if by_token else _SENTENCE_HEADER)
            for line in _format_tokens(number, scores) if by_token else [_format_sentence(scores)]:
                print(one_line(line))
    if not number:
        raise DataError("cannot score the text: it has no sentence with a word")
    warn_about_bytes(tally)
    if out is not None:
        logger.info("wrote %s", out)
    if picture:
        from elmo.plots.words import draw_bars

        if number > len(drawn):
            logger.warning("%s shows only the first %d of %d sentences", picture, _N_PANELS, number)
        title = "How surprising each word is: −log p in nats"
        draw_bars(list(map(_build_panel, drawn)), picture, title=title, names=("forward", "backward"))
        logger.info("wrote %s", picture)


def _score_pairs(
    console: Console,
    paths: list[Path],
    *,
    model: str | None,
    as_json: bool,
    start: Literal["zero", "warm"],
    tokenizer: str | None,
    device: str,
) -> None:
    from elmo.predict.minimal_pairs import count_right, read_minimal_pairs, score_minimal_pairs
    from elmo.text.lines import expand_paths

    pairs = [pair for path in expand_paths(list(map(str, paths))) for pair in read_minimal_pairs(str(path))]
    with show_counts(console, "predicting", n_sentences=2 * len(pairs)) as on_progress:
        scores = list(
            score_minimal_pairs(
                model, pairs, start=start, tokenizer=tokenizer, device=device, on_progress=on_progress
            )
        )  # fmt: skip
    accuracies = count_right(scores)
    directions = [name for name in accuracies["all"] if name != "pairs"]
    lines = [f"{'pairs':>8}" + "".join(f"{name:>10}" for name in directions) + "  phenomenon"]
    for name, values in accuracies.items():
        figures = "".join(f"{values[key]:10.1%}" for key in directions)
        lines.append(f"{values['pairs']:8,}{figures}  {name or '-'}")
    details = [
        {"sentence_good": x.pair.good, "sentence_bad": x.pair.bad, "phenomenon": x.pair.phenomenon,
         "good": x.good, "bad": x.bad, "is_right": x.is_right}
        for x in scores
    ]  # fmt: skip
    print_results({"accuracy": accuracies, "pairs": details}, lines, as_json=as_json)


def _format_sentence(scores: SentenceScores) -> str:
    sums = "".join(f" {_format_number(x):>10}" for x in scores.sums)
    n_unknown = int(scores.is_unknown.sum())
    return f"{sums} {scores.perplexity:>12,.2f} {n_unknown:>8}  {' '.join(scores.tokens)}"


def _format_tokens(number: int, scores: SentenceScores) -> Iterator[str]:
    """Format a line for each word and boundary; a direction does not predict the boundary at which it starts."""
    for token, is_unknown, forward, backward in scores.by_token():
        note = "  (unknown)" if is_unknown else ""
        yield f"{number:>8} {_format_number(forward):>10} {_format_number(backward):>10}  {token}{note}"


def _format_number(x: float | None) -> str:
    return "-" if x is None else f"{x:.3f}"


def _build_panel(scores: SentenceScores) -> Panel:
    from elmo.plots.words import Panel

    tokens, is_unknown, forward, backward = zip(*scores.by_token(), strict=True)
    labels = [f"{token} (unknown)" if x else token for token, x in zip(tokens, is_unknown, strict=True)]
    series = [[None if x is None else -float(x) for x in log_ps] for log_ps in (forward, backward)]
    return Panel(" ".join(scores.tokens), labels, series)
