"""``elmo explain``: show which words of a sentence determine the vector of a word."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

from elmo.cli import options as opt
from elmo.cli.console import logger, warn_about_script
from elmo.cli.generate import options_from
from elmo.cli.results import check_result_file, print_json, write_results
from elmo.text.display import one_line, text_width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elmo.lexicon.explain import Explanation

EXAMPLES = opt.examples(
    "elmo explain 'I sat by the [[bank]] of the river'",
    "elmo explain 'the [[bank]]' --with 'a river [[bank]]' --json",
    "elmo explain 'the bank of the river' --word bank --method replace",
    "elmo explain 我坐在[[河岸]]上 --model zh --out scores.tsv",
    "elmo explain 'a river [[bank]]' --picture explain.png",
)
_COLUMNS = ("sentence", "position", "token", "begin", "end", "is_target", "score")
_BAR_WIDTH = 20
# backgrounds of the 256-color palette, from weak to strong
_RAISES, _LOWERS = (230, 223, 216, 209, 202), (195, 153, 117, 75, 33)
_WEAKEST = 0.1  # weaker words are not colored, as a share of the strongest one


@options_from(
    "elmo.lexicon.explain:explain", skip=("other", "layers"), metavars={"word": "WORD"}, minimums={"max_words": 1}
)
def command(
    sentence: Annotated[
        str, opt.argument(metavar="SENTENCE", help="A sentence in which the word is marked like [[this]].")
    ],
    *,
    other: Annotated[
        str | None,
        opt.option("--with", metavar="SENTENCE", help="Explain the similarity to the marked word of this sentence."),
    ] = None,
    model: opt.Model = None,
    layers: opt.OneVector = "average",
    as_json: opt.AsJson = False,
    out: opt.ResultFile = None,
    picture: opt.Picture = None,
    tokenizer: opt.Tokenizer = None,
    device: opt.Device = "cpu",
    **options: Any,
) -> None:
    """Show which words of a sentence determine the vector of a word, or its similarity to another use."""
    from elmo.embed.elmo import Elmo
    from elmo.lexicon.explain import explain

    check_result_file(out)
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    warn_about_script(elmo.tokenizer, [sentence] if other is None else [sentence, other])
    explanation = explain(elmo, sentence, other=other, layers=opt.parse_layers(layers), **options)
    values = explanation.to_json()
    if as_json:
        print_json(values)
    else:
        is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join(_format_lines(explanation, is_colored=is_colored)))
    write_results(out, columns=_COLUMNS, rows=_rows(explanation), values=values)
    if picture:
        from elmo.plots.words import draw_explanation

        draw_explanation(explanation, picture)
        logger.info("wrote %s", picture)


def _parts(explanation: Explanation) -> list[Explanation]:
    return [explanation] if explanation.other is None else [explanation, explanation.other]


def _format_lines(explanation: Explanation, *, is_colored: bool) -> Iterator[str]:
    """Yield the lines to print: the similarity, then the words of each sentence in order, with scores and bars."""
    if explanation.similarity is not None:
        yield f"similarity {explanation.similarity:.3f}"
        yield ""
    parts = _parts(explanation)
    strongest = max((abs(word.score) for part in parts for word in part.context), default=0.0)
    for number, part in enumerate(parts):
        if number:
            yield ""
        if is_colored:
            yield _color_sentence(part, strongest)
            yield ""
        tokens = {k: one_line(part.tokens[k]) for k in range(*part.scope)}
        width = max(map(text_width, tokens.values()))
        for k, token in tokens.items():
            padding = " " * (width - text_width(token))
            if part.target[0] <= k < part.target[1]:
                yield f"        ·  [{token}]"
                continue
            score = part.scores[k]
            bar = "█" * round(_BAR_WIDTH * abs(score) / strongest) if strongest > 0 else ""
            if is_colored:
                bar = f"\x1b[38;5;{(_RAISES if score > 0 else _LOWERS)[-1]}m{bar}\x1b[0m"
            sign = "-" if score < 0 else ""
            yield f"{score:9.4f}  {token}{padding}  {sign}{bar}".rstrip()


def _color_sentence(part: Explanation, strongest: float) -> str:
    """Return the examined part of a sentence; the background of each word shows its score, the target is bold."""
    words = []
    for k in range(*part.scope):
        token, share = one_line(part.tokens[k]), abs(part.scores[k]) / strongest if strongest > 0 else 0.0
        if part.target[0] <= k < part.target[1]:
            token = f"\x1b[1;4m{token}\x1b[0m"
        elif share >= _WEAKEST:
            palette = _RAISES if part.scores[k] > 0 else _LOWERS
            shade = palette[min(int(share * len(palette)), len(palette) - 1)]
            token = f"\x1b[38;5;16;48;5;{shade}m{token}\x1b[0m"
        follows = part.offsets is None or k + 1 == len(part.tokens) or part.offsets[k][1] < part.offsets[k + 1][0]
        words.append(f"{token} " if follows else token)
    return "".join(words).rstrip()


def _rows(explanation: Explanation) -> Iterator[list[object]]:
    for number, part in enumerate(_parts(explanation), start=1):
        for k, (token, score) in enumerate(zip(part.tokens, part.scores, strict=True)):
            offsets = ("", "") if part.offsets is None else part.offsets[k]
            yield [number, k, token, *offsets, int(part.target[0] <= k < part.target[1]), f"{score:.6g}"]
