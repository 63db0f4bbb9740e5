"""``elmo compare``: compare a word across sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from elmo.cli import options as opt
from elmo.cli.console import logger, warn_about_script
from elmo.cli.results import print_results
from elmo.text.display import one_line

if TYPE_CHECKING:
    from elmo.embed.comparison import Comparison

EXAMPLES = opt.examples(
    "elmo compare bank 'the bank of the river' 'the bank has money'",
    "elmo compare bank 'a bank' 'two [[banks]]' 'BANK' --json",
    "elmo compare bank 'the bank of the river' 'the bank has money' --layers all",
    "elmo compare 苹果 '他每天吃一个苹果' '苹果发布了新款手机' --model zh",
    "elmo compare bank 'a bank' --other-model zh-en --other '[[银行]]'",
    "elmo compare bank 'a bank' 'the bank' --picture bank.png",
)


def command(
    word: opt.Word,
    sentences: Annotated[
        list[str],
        opt.argument(
            metavar="SENTENCE",
            help="Sentences that contain the word, two or more with those of --other. To choose one of several "
            "occurrences, or another form, mark it like [[this]].",
        ),
    ],
    *,
    model: opt.Model = None,
    other_model: Annotated[
        str | None,
        opt.option(metavar="MODEL", help="Model of another language, which 'elmo align' aligned to the first one."),
    ] = None,
    other: Annotated[
        list[str] | None,
        opt.option(
            metavar="SENTENCE", help="Sentence for --other-model, with the word marked like [[this]]; may be repeated."
        ),
    ] = None,
    layers: opt.Layers = "sense",
    picture: opt.Picture = None,
    as_json: opt.AsJson = False,
    tokenizer: opt.Tokenizer = None,
    start: opt.Start = "zero",
    device: opt.Device = "cpu",
) -> None:
    """Compare a word in two or more sentences, with a table of similarities.

    The similarities are also ranked among random usages of the word, if the model has similarity statistics (see elmo
    calibrate). --layers all shows a table for each layer. With --other-model and --other, sentences of two languages
    are compared.
    """
    from elmo.embed.comparison import compare
    from elmo.embed.elmo import Elmo

    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    warn_about_script(elmo.tokenizer, sentences)
    second = None if other_model is None else Elmo.from_pretrained(other_model, device=device)
    if second is not None:
        warn_about_script(second.tokenizer, other or [])
    comparison = compare(
        elmo, word, sentences, layers=opt.parse_layers(layers), start=start, other=second, other_sentences=other or []
    )
    lines = _format_lines(comparison)
    if "sense" in comparison.matrices and not comparison.ranks and len(sentences) > 1:
        lines += ["", "no ranks: this model has no similarity statistics; add them with: elmo calibrate MODEL TEXT"]
    print_results(comparison.to_json(), lines, as_json=as_json)
    if picture:
        from elmo.plots.compare import draw_comparison

        draw_comparison(comparison, picture)
        logger.info("wrote %s", picture)


def _format_lines(comparison: Comparison) -> list[str]:
    """Return the lines to print: the sentences, a table of similarities for each kind of vectors, and the ranks."""
    labels = [f"S{k}" for k in range(1, len(comparison.uses) + 1)]
    size = max(map(len, labels))
    lines = [f"{label:{size}}  {use.marked(one_line)}" for label, use in zip(labels, comparison.uses, strict=True)]
    for name, matrix in comparison.matrices.items():
        title = f"layer {name}" if name.isdigit() else name
        lines += ["", f"{title:{max(size, 8)}}" + "".join(f"{label:>8}" for label in labels)]
        for label, row in zip(labels, matrix.tolist(), strict=True):
            lines.append(f"{label:{max(size, 8)}}" + "".join(f"{value:8.3f}" for value in row))
    if comparison.ranks:
        lines += ["", *(f"{labels[a]}, {labels[b]}: {rank}" for (a, b), rank in comparison.ranks.items())]
    return lines
