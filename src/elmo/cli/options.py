"""Options that several commands have, each declared once.

What the commands about words share: options, lists of words, files of results, sentences in a line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from elmo.cli.report import logger, one_line

if TYPE_CHECKING:
    from elmo.cli.report import Show
    from elmo.embed.encoding import LayerChoice
    from elmo.lexicon.usages import Usage
    from elmo.text.lines import Tally
    from elmo.text.reader import Sentence
    from elmo.text.tokenizers import Tokenizer as TextTokenizer


MODEL_HELP = "en or zh (bundled), a folder, an archive or a Hub id; any published format."
LAYERS = ("average", "top", "all", "concat")


def examples(*commands: str) -> str:
    """The end of a command's help; tests run every line of it."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)  # \b: keep these lines


def _layers(value: str) -> str:
    if value in LAYERS or (value.isascii() and value.isdigit() and len(value) < 4):
        return value
    raise typer.BadParameter(f"expected {', '.join(LAYERS)} or a layer's number, found {value[:40]!r}")


def layer_choice(value: str) -> LayerChoice | int:
    """What ``--layers`` stands for."""
    return int(value) if value.isdigit() else cast("LayerChoice", value)


Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT",
        help="Files, globs or folders, compressed or not; - is stdin.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", envvar="ELMO_MODEL", metavar="MODEL", help=MODEL_HELP, show_default=False),
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)]
Layers = Annotated[
    str,
    typer.Option(
        metavar="average|top|all|concat|0..", callback=_layers, help="Which layers' vectors to take."
    ),
]


def _one_layer(value: str) -> str:
    if value == "all":
        raise typer.BadParameter("a word has one vector here: all gives several, concat joins them")
    return _layers(value)


OneVector = Annotated[
    str,
    typer.Option(
        "--layers",
        metavar="average|top|concat|0..",
        callback=_one_layer,
        help="Which layers' vector to take.",
    ),
]
InputFormat = Annotated[
    Literal["text", "tokens", "conllu"],
    typer.Option("--format", help="A sentence a line, tokens parted by spaces, or CoNLL-U."),
]
Split = Annotated[bool, typer.Option("--split", help="Split lines of text into sentences.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="en|zh|whitespace|spacy:xx",
        help="How text is cut into tokens.",
        show_default="the model's own, else en",
    ),
]
Start = Annotated[
    Literal["zero", "warm"], typer.Option(help="What the LSTMs remember when a sentence begins.")
]
Device = Annotated[str, typer.Option(metavar="cpu|cuda|mps", help="Where to compute.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "int8"],
    typer.Option(help="Of the network: rougher is faster where the processor has units for it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Errors = Annotated[
    Literal["strict", "replace", "skip", "surrogateescape"],
    typer.Option(help="What to do with bytes that are not UTF-8."),
]

_LINE = 100  # of a sentence in a table, in Latin letters
_EVERY = 10.0  # seconds between two log lines
Words = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|a,b,c", help="Which words: a file with one a line, or a list.", show_default=False
    ),
]
Marked = Annotated[
    list[str],
    typer.Argument(
        metavar="SENTENCE", help="One or more, the word marked like [[this]].", show_default=False
    ),
]
MarkedWord = Annotated[
    str | None, typer.Option("--word", help="The word, where a sentence marks none.", show_default=False)
]
ResultFile = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE.tsv", help="Write the results, too (.tsv or .json).",
                 show_default=False),
]  # fmt: skip
By = Annotated[
    Literal["layers", "substitutes"],
    typer.Option(help="Compare the word's vectors, or the words expected in its place."),
]
AsWritten = Annotated[
    bool,
    typer.Option("--as-written", help="Read Bank and banks as they are, not as the word that is asked for."),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="Draw it, too (.png, .pdf or .svg).", show_default=False),
]


def word_list(given: str | None, *, option: str = "--words") -> tuple[str, ...] | None:
    """The words that an option names; a name with a dot or a slash in it is a file's."""
    from elmo.errors import DataError
    from elmo.text.lines import read_lines

    if given is None:
        return None
    path = Path(given)
    if "," not in given and (path.suffix or "/" in given or path.is_file()):
        if not path.is_file():
            raise DataError(f"{given[:200]}: no such file; words are given as a file or as a,b,c")
        found = [line.text.strip() for line in read_lines(path)]
    else:
        found = [word.strip() for word in given.split(",")]
    words = tuple(dict.fromkeys(word for word in found if word))
    if not words:
        raise DataError(f"{option} {given[:80]!r}: expected words, found none")
    return words


def check_result_file(path: Path | None, *, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse a name before anything is computed: what cannot be written, or is an input."""
    from elmo.errors import OutputError
    from elmo.storage.atomic import check_output_file
    from elmo.storage.files import format_path

    if path is None:
        return
    if path.suffix.lower() not in (".tsv", ".json"):
        raise OutputError(f"{format_path(path)}: expected a name that ends in .tsv or .json")
    if path.is_dir():
        raise OutputError(f"{format_path(path)}: expected a file name, found a folder")
    check_output_file(path)
    if path.resolve() in (Path(one).resolve() for one in inputs if one != "-"):
        raise OutputError(f"{format_path(path)}: is one of the inputs; put it elsewhere")


def write_results(path: Path, *, columns: Sequence[str], rows: Iterable[Sequence[Any]], values: Any) -> None:
    r"""A table, or ``values`` as JSON, by the suffix; whole or not at all.

    In a table ``\``, tab and line ends are escaped as Python does.
    """
    from elmo.storage.atomic import atomic_file
    from elmo.storage.atomic import make_parents
    from elmo.text.lines import escape_field

    make_parents(path)
    with (
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        if path.suffix.lower() == ".json":
            file.write(json.dumps(values, ensure_ascii=False, indent=1) + "\n")
            return
        for row in chain([columns], rows):
            file.write("\t".join("" if x is None else escape_field(str(x)) for x in row) + "\n")


def told(sentences: Iterable[Sentence], show: Show | None) -> Iterator[Sentence]:
    """The sentences as they are, their number told."""
    from elmo.jobs.plan import Progress

    n_tokens = 0
    for n, sentence in enumerate(sentences, start=1):
        n_tokens += len(sentence)
        if show is not None and n % 1000 == 0:
            show(Progress(cast("Any", "reading"), sentences=n, tokens=n_tokens, shards=0, kept=0))
        yield sentence


class NowAndThen:
    """Tells now and then how many usages a long piece of work has done."""

    def __init__(self, work: str, *, is_quiet: bool) -> None:
        self._work, self._is_quiet, self._last = work, is_quiet, time.monotonic()

    def __call__(self, n_done: int, n_all: int) -> None:
        """Say so, if the last time was long ago."""
        if not self._is_quiet and time.monotonic() - self._last >= _EVERY:
            self._last = time.monotonic()
            logger.info("%s: %s of %s usages", self._work, f"{n_done:,}", f"{n_all:,}")


def sentence_line(usage: Usage) -> str:
    """A usage's sentence in one line of a terminal, its word in brackets."""
    from elmo.text.display import shorten, text_width

    before, word, after = (one_line(part) for part in usage.parts())
    room = max(_LINE - text_width(word), 20)
    left = shorten(before[::-1], max(room // 2, room - text_width(after)))[::-1]
    return f"{left}[{word}]{shorten(after, max(room - text_width(left), 1))}"


def hint_of_tokens(tokenizer: TextTokenizer, word: str) -> str:
    """What to do about a word that no text can have, because the tokenizer cuts it up; or nothing."""
    from elmo.lexicon.usages import split_phrase

    tokens = tokenizer(word).tokens
    if tokens == split_phrase(word):
        return ""
    name = getattr(tokenizer, "name", "this one")
    return f"; the tokenizer {name} makes {' | '.join(tokens)[:60]} of it: name another with --tokenizer"


def tell_of_script(tokenizer: TextTokenizer, sentences: Sequence[str]) -> None:
    """That Chinese is read by rules, and so perhaps by a model, of another language."""
    from elmo.text.chinese import guess_tokenizer

    found = guess_tokenizer(" ".join(sentences))
    if found is not None and found.tokenizer == "zh" and getattr(tokenizer, "name", "") == "en":
        logger.warning(
            "the text is Chinese, and is cut into characters by English rules; a Chinese model is bundled: "
            "--model zh (or --tokenizer zh, where yours is one)"
        )


def tell_of_bytes(tally: Tally) -> None:
    """What an error policy did to the lines of a text."""
    if tally.repaired:
        logger.warning("lines repaired that were not UTF-8: %d", tally.repaired)
    if tally.skipped:
        logger.warning("lines left out that were not UTF-8: %d", tally.skipped)
