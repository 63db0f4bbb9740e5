"""``elmo score``: text in, the log-probability of its sentences or words out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elmo.cli.options import (
    AsJson,
    Device,
    Errors,
    InputFormat,
    Model,
    Picture,
    Split,
    Tokenizer,
    examples,
    tell_of_bytes,
)
from elmo.cli.report import logger, one_line

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
_DRAWN = 12  # sentences of one picture
_SENTENCE = f"{'forward':>11}{'backward':>11}{'perplexity':>13}{'unknown':>9}  sentence"
_TOKEN = f"{'sentence':>8}{'forward':>11}{'backward':>11}  token"


def command(
    context: typer.Context,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="Files, globs or folders, compressed or not; - is stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    model: Model = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text", "-t", metavar="SENTENCE", help="Score this; may be repeated.", show_default=False
        ),
    ] = None,
    by_token: Annotated[bool, typer.Option("--tokens", help="Score each word, not sentences.")] = False,
    as_json: AsJson = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write scores there: .tsv or .jsonl.", show_default=False),
    ] = None,
    picture: Picture = None,
    start: Annotated[
        Literal["zero", "warm", "carry"],
        typer.Option(
            help="What the LSTMs remember when a sentence begins: nothing, the model's warm state, or the "
            "sentence before."
        ),
    ] = "zero",
    input_format: InputFormat = "text",
    tokenizer: Tokenizer = None,
    split: Split = False,
    errors: Errors = "strict",
    device: Device = "cpu",
) -> None:
    """Score sentences or words: log-probabilities in nats, under the full softmax.

    Forward, a word is predicted from those before it; backward, from those after it. A sentence's perplexity
    is that of both; unknown words are predicted as <UNK>.
    """
    from elmo.embed.elmo import Elmo
    from elmo.errors import DataError
    from elmo.predict.predictor import sentences_of
    from elmo.predict.scores import check_output, score_writer, scores
    from elmo.text.lines import Tally, expand_paths
    from elmo.text.reader import read_sentences
    from elmo.text.tokenizers import WhitespaceTokenizer

    if not inputs and not text:
        raise typer.BadParameter("give INPUT, or a sentence by --text", ctx=context)
    if picture:
        from elmo.plots.figure import check

        check(picture)
    files = expand_paths(inputs or [])  # typos are told before a large model is loaded
    if out is not None:
        check_output(out, inputs=files)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    cut = WhitespaceTokenizer() if input_format == "tokens" else elmo.tokenizer
    tally = Tally()
    read = read_sentences(
        inputs or [], tokenizer=cut, input_format=input_format, split=split, errors=errors, tally=tally
    )
    given = sentences_of(text or [], tokenizer=cut, split=split)
    by: Literal["sentence", "token"] = "token" if by_token else "sentence"
    number = 0
    drawn: list[SentenceScores] = []
    with ExitStack() as stack:
        write = None if out is None else stack.enter_context(score_writer(out, by=by))
        for number, found in enumerate(scores(elmo, chain(read, given), start=start), start=1):
            if write is not None:
                write(number, found)
            if picture and len(drawn) < _DRAWN:
                drawn.append(found)
            if as_json:
                print(_json(number, found, by_token=by_token))
            elif write is None:
                if number == 1:
                    print(_TOKEN if by_token else _SENTENCE)
                for line in _token_lines(number, found) if by_token else [_sentence_line(found)]:
                    print(one_line(line))
        if not number:
            raise DataError("score: expected text, found no sentence with a word in it")
    tell_of_bytes(tally)
    if out is not None:
        logger.info("%s: written", out)
    if picture:
        from elmo.plots.words import draw_bars

        if number > len(drawn):
            logger.warning("%s: only the first %d of %d sentences are drawn", picture, _DRAWN, number)
        title = "How surprising each word is: −log p in nats"
        draw_bars(list(map(_panel, drawn)), picture, title=title, names=("forward", "backward"))
        logger.info("%s: written", picture)


def _panel(found: SentenceScores) -> Panel:
    from elmo.plots.words import Panel

    n = len(found.tokens)
    nothing = [None] * (n + 2)
    forward = nothing if found.forward is None else [None, *(-float(x) for x in found.forward)]
    backward = nothing if found.backward is None else [*(-float(x) for x in found.backward), None]
    unknown = [
        f"{token} (unknown)" if x else token for token, x in zip(found.tokens, found.is_unknown, strict=True)
    ]
    return Panel(" ".join(found.tokens), ["<S>", *unknown, "</S>"], [forward, backward])


def _perplexity(found: SentenceScores) -> float:
    """Exp of the mean loss of all predictions, the boundary's among them."""
    from elmo.predict.perplexity import Means

    nats = [None if x is None else -float(x.sum(dtype="float64")) for x in (found.forward, found.backward)]
    return Means(*nats, n_predictions=len(found.tokens) + 1, n_characters=0).geometric_mean


def _json(number: int, found: SentenceScores, *, by_token: bool) -> str:
    """A line as the file of scores has it, with the sentence's perplexity."""
    from elmo.predict.scores import json_of_sentence, json_of_tokens

    line = (json_of_tokens if by_token else json_of_sentence)(number, found)
    perplexity = _perplexity(found)
    told = {"perplexity": perplexity if math.isfinite(perplexity) else None}
    return json.dumps(json.loads(line) | told)


def _sentence_line(found: SentenceScores) -> str:
    sums = ["-" if x is None else f"{x.sum(dtype='float64'):.3f}" for x in (found.forward, found.backward)]
    figures = "".join(f" {x:>10}" for x in sums) + f" {_perplexity(found):>12,.2f}"
    return f"{figures} {int(found.is_unknown.sum()):>8}  {' '.join(found.tokens)}"


def _token_lines(number: int, found: SentenceScores) -> Iterator[str]:
    """A line for each word and boundary; a direction does not predict what it begins with."""
    n = len(found.tokens)
    forward = ["-"] * (n + 2) if found.forward is None else ["-", *(f"{x:.3f}" for x in found.forward)]
    backward = ["-"] * (n + 2) if found.backward is None else [*(f"{x:.3f}" for x in found.backward), "-"]
    unknown = ["", *("  (unknown)" if x else "" for x in found.is_unknown), ""]
    tokens = ["<S>", *found.tokens, "</S>"]
    for token, ahead, back, note in zip(tokens, forward, backward, unknown, strict=True):
        yield f"{number:>8} {ahead:>10} {back:>10}  {token}{note}"
