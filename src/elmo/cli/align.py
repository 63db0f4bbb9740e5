"""``elmo align``: map the vectors of a model to the coordinates of a model of another language."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli import options as opt
from elmo.cli.console import logger
from elmo.cli.generate import options_from
from elmo.cli.results import print_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elmo.lexicon.align import AlignedModel, AlignOptions
    from elmo.text.tokenizers import Tokens

EXAMPLES = opt.examples(
    "elmo align zh en --dictionary zh-en.txt --corpus zh.txt en.txt --out zh-en",
    "elmo align es en --matrix 0.pth --matrix 1.pth --matrix 2.pth --out es-en",
)


@options_from(
    "elmo.lexicon.align:AlignOptions",
    flags={"n_words": "--words", "n_test": "--test", "centered": "--center"},
    minimums={"refinements": 0, "n_words": 1, "n_test": 0, "max_tokens": 1, "seed": 0},
)
def command(
    source: Annotated[str, opt.argument(metavar="SOURCE", help="Model to align: a name, a folder or a Hub id.")],
    target: Annotated[
        str,
        opt.argument(
            metavar="TARGET",
            help="Model of the other language, with as many layers. With --corpus, its vectors may be wider.",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="New folder for the aligned model.")],
    dictionary: Annotated[
        Path | None,
        opt.option(
            metavar="FILE",
            help="Word pairs: one source word and one translation per line, separated by a tab or a space.",
        ),
    ] = None,
    corpus: Annotated[
        tuple[str, str] | None,
        opt.option(
            metavar="SOURCE_TEXT TARGET_TEXT",
            help="Text of each language: a file, a folder or a quoted glob. The texts need not be translations.",
        ),
    ] = None,
    matrices: Annotated[
        list[Path] | None,
        opt.option(
            "--matrix",
            metavar="FILE.pth",
            help="Use a published matrix instead of a dictionary; repeat for each layer, the token layer first.",
        ),
    ] = None,
    input_format: opt.InputFormat = "text",
    split: opt.Split = None,
    errors: opt.Errors = "strict",
    device: opt.Device = "cpu",
    as_json: opt.AsJson = False,
    **options: Any,
) -> None:
    """Map the vectors of a model to the coordinates of a model of another language.

    The result is the source model with one orthogonal matrix per layer: its vectors can be compared with those of the
    target model, and its predictions stay the same. The table shows how many held-out words of the dictionary have
    a translation as their nearest neighbor (P@1) or among the ten nearest (P@10), and the same after training with a
    shuffled dictionary, which must be close to 0. A million tokens per language take several minutes.
    """
    from elmo.embed.elmo import Elmo
    from elmo.formats import native
    from elmo.lexicon import align
    from elmo.storage.atomic import check_output_folder
    from elmo.text.lines import expand_paths
    from elmo.text.reader import read_sentences, require_words

    settings = align.AlignOptions(**options)
    if matrices and (dictionary or corpus):
        raise typer.BadParameter("--matrix cannot be used with --dictionary or --corpus")
    if matrices and (unused := _list_unused(settings, split=split, as_json=as_json)):
        raise typer.BadParameter(f"--matrix cannot be used with {' or '.join(unused)}")
    if not matrices and corpus is None:
        raise typer.BadParameter("--corpus SOURCE_TEXT TARGET_TEXT is required, or --matrix for published matrices")
    if corpus == ("-", "-"):
        raise typer.BadParameter("--corpus: stdin (-) can be the text of one language only")
    if not matrices and dictionary is None and settings.pairs == "dictionary":
        raise typer.BadParameter("--dictionary is required, or --pairs identical or frequency")
    check_output_folder(out)
    pairs = [] if dictionary is None else align.read_dictionary(dictionary)
    for text in corpus or ():
        expand_paths([text])  # reports a missing file before a large model is loaded
    elmos = Elmo.from_pretrained(source, device=device), Elmo.from_pretrained(target, device=device)
    if corpus is None:
        native.write(align.read_matrices(*elmos, matrices or []), out)
        logger.info("wrote %s", out)
        return

    def read(elmo: Elmo, text: str) -> Iterator[Tokens]:
        sentences = read_sentences(
            [text], tokenizer=elmo.tokenizer, input_format=input_format, split=split, errors=errors
        )
        return (sentence.tokens for sentence in require_words(sentences, inputs=[text]))

    texts = read(elmos[0], corpus[0]), read(elmos[1], corpus[1])
    result = align.align_models(*elmos, texts, pairs, settings, show_progress=sys.stderr.isatty())
    native.write(result.model, out)
    logger.info("wrote %s", out)
    print_results(result.to_json(), _lines(result), as_json=as_json)


def _list_unused(settings: AlignOptions, *, split: bool | None, as_json: bool) -> list[str]:
    """Return the options that were set but have no effect with published matrices."""
    flags = {
        "pairs": "--pairs",
        "refinements": "--refinements",
        "centered": "--center",
        "n_words": "--words",
        "n_test": "--test",
        "max_tokens": "--max-tokens",
        "seed": "--seed",
    }
    defaults = type(settings)()
    unused = [flag for name, flag in flags.items() if getattr(settings, name) != getattr(defaults, name)]
    if split is not None:
        unused.append("--split" if split else "--no-split")
    return [*unused, "--json"] if as_json else unused


def _lines(result: AlignedModel) -> list[str]:
    """Return the table of scores in percent."""
    first = f"{result.n_pairs:,} word pairs"
    if not result.n_test:
        return [f"{first}; no held-out words, so there is no evaluation"]
    columns = ("nearest", "csls", "shuffled")
    lines = [
        f"{first}; {result.n_test:,} held-out words, translated among {result.n_candidates:,} words; in percent",
        "",
        f"{'':8}" + "".join(f"{name:^16}" for name in ("nearest", "CSLS", "shuffled")).rstrip(),
        f"{'layer':8}" + "     P@1    P@10" * len(columns),
    ]
    for scores in result.scores:
        parts = [getattr(scores, column) for column in columns]
        lines.append(f"{scores.layer:8}" + "".join(f"{100 * p.at_1:8.1f}{100 * p.at_10:8.1f}" for p in parts))
    return lines
