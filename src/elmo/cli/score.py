"""``elmo score``: print the log-probabilities of sentences or words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.console import logger, warn_about_bytes
from elmo.cli.options import AsJson, Device, Errors, InputFormat, Model, Picture, Split, Tokenizer, examples
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.plots.words import Panel
    from elmo.predict.scores import SentenceScores

EXAMPLES = examples(
    "elmo score corpus.txt",
    "elmo score --text 'the bank of the river' --tokens",
    "elmo score --text 我坐在河岸 --model zh --json",
    "elmo score corpus.txt more --tokens --out scores.tsv",
    "elmo score --text 'the river bank' --picture score.png",
)
_N_PANELS = 12  # sentences in a picture
_SENTENCE_HEADER = f"{'forward':>11}{'backward':>11}{'perplexity':>13}{'unknown':>9}  sentence"
_TOKEN_HEADER = f"{'sentence':>8}{'forward':>11}{'backward':>11}  token"


def command(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", help="Files, globs or folders, plain or compressed; - is stdin.", show_default=False
        ),
    ] = None,
    *,
    model: Model = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", "-t", metavar="SENTENCE", help="Score this sentence; repeatable.", show_default=False),
    ] = None,
    by_token: Annotated[bool, typer.Option("--tokens", help="Score each word instead of each sentence.")] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write scores to a .tsv or .jsonl file.", show_default=False)
    ] = None,
    picture: Picture = None,
    start: Annotated[
        Literal["zero", "warm", "carry"],
        typer.Option(
            help="LSTM state at the start of a sentence; warm requires a model prepared with 'elmo warm'; carry "
            "continues from the previous sentence."
        ),
    ] = "zero",
    input_format: InputFormat = "text",
    tokenizer: Tokenizer = None,
    split: Split = False,
    errors: Errors = "strict",
    device: Device = "cpu",
) -> None:
    """Score sentences or words: log-probabilities in nats, with the full softmax.

    Forward, a word is predicted from the words before it; backward, from the words after it. The perplexity
    of a sentence covers both directions. Unknown words are predicted as <UNK>.
    """
    from elmo.embed.elmo import Elmo
    from elmo.errors import DataError
    from elmo.predict.score_files import check_score_file, format_json, score_writer
    from elmo.predict.scores import score_sentences
    from elmo.predict.texts import read_text
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences
    from elmo.text.tokenizers import WhitespaceTokenizer

    if not inputs and not text:
        raise typer.BadParameter("expected INPUT or --text, found neither", ctx=context)
    files = expand_paths(inputs or [])  # reports a typo before a large model is loaded
    if out is not None:
        check_score_file(out, inputs=files)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    tokenize = WhitespaceTokenizer() if input_format == "tokens" else elmo.tokenizer
    tally = Tally()
    read = read_sentences(
        inputs or [], tokenizer=tokenize, input_format=input_format, split=split, errors=errors, tally=tally
    )
    sentences = chain(read, read_text(text or [], tokenizer=tokenize, split=split))
    by: Literal["sentence", "token"] = "token" if by_token else "sentence"
    number = 0
    drawn: list[SentenceScores] = []
    with ExitStack() as stack:
        write = None if out is None else stack.enter_context(score_writer(out, by=by))
        for number, scores in enumerate(score_sentences(elmo, sentences, start=start), start=1):
            if write is not None:
                write(number, scores)
            if picture and len(drawn) < _N_PANELS:
                drawn.append(scores)
            if as_json:
                perplexity = scores.perplexity if math.isfinite(scores.perplexity) else None
                print(format_json(number, scores, by=by, perplexity=perplexity))
            elif write is None:
                if number == 1:
                    print(_TOKEN_HEADER if by_token else _SENTENCE_HEADER)
                for line in _format_tokens(number, scores) if by_token else [_format_sentence(scores)]:
                    print(one_line(line))
        if not number:
            raise DataError("score: expected text, found no sentence with a word")
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


def _format_sentence(scores: SentenceScores) -> str:
    sums = "".join(f" {_format_number(x):>10}" for x in scores.sums)
    n_unknown = int(scores.is_unknown.sum())
    return f"{sums} {scores.perplexity:>12,.2f} {n_unknown:>8}  {' '.join(scores.tokens)}"


def _format_tokens(number: int, scores: SentenceScores) -> Iterator[str]:
    """Format a line for each word and boundary; a direction does not predict its first token."""
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
