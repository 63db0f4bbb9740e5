"""``elmo task predict``: a model of a task and examples without labels in, what it says of them out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elmo.cli.options import AsJson, Tokenizer, examples
from elmo.cli.report import EVERY, logger, one_line
from elmo.cli.task_options import (
    TOKENISED,
    Also,
    Bilm,
    Column,
    FileFormat,
    Header,
    Separator,
    TaskFile,
    TextColumn,
    cutting,
    layer_cache,
    load_model,
    reader_options,
    remembered,
)

if TYPE_CHECKING:
    from elmo.tasks.data.files import Tokenize

# options of readers that are not of labels
_PLACES = ("text", "first", "second", "has_header", "file_format")

EXAMPLES = examples(
    "elmo task predict ner.safetensors --text 'The river bank .'",
    "elmo task predict ner.safetensors corpus.txt --out tagged.conll",
    "elmo task predict ner.safetensors corpus.txt --json",
)
_LINE = 60  # of a text in a line, in Latin letters
PREDICATES = (
    "roles are those of a predicate: mark it, --text 'They [[lent]] money .', or give columns word, tag, "
    "lemma, roleset with - where there is no predicate"
)


def command(
    task_model: TaskFile,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Text or examples, compressed or not; - is stdin."),
    ] = None,
    *,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Instead of FILE; for pairs give it twice, for roles mark a [[predicate]].",
            show_default=False,
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instead of FILE, for answers.", show_default=False)
    ] = None,
    passage: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where the answer is looked for.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=".jsonl; .conll, .tsv or .json where the kind has it.",
            show_default="as text on stdout",
        ),
    ] = None,
    model: Bilm = None,
    also: Also = None,
    column: Column = None,
    text_column: TextColumn = None,
    file_format: FileFormat = None,
    header: Header = None,
    separator: Separator = None,
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model: tags, labels, answers, with how sure it is of each."""
    from elmo.tasks.output import check_output, write_pairs
    from elmo.text.reader import expand

    given = [name for name, value in (("FILE", files), ("--text", text), ("--question", question)) if value]
    if len(given) != 1 or (question is None) != (passage is None):
        found = ", ".join(given) or "none"
        raise typer.BadParameter(f"expected one of FILE, --text, or --question and --passage, found {found}")
    if files:
        expand(files)  # a typo is told before a large model is loaded
    learned = load_model(task_model, bilm=model, also=also, kept=layer_cache(None, has_none=True, limit=0.0))
    kind = learned.task.kind
    if out is not None:
        check_output(out, kind, inputs=[*(files or ()), task_model])
    options = reader_options(
        kind,
        column=column,
        text_column=text_column,
        file_format=file_format,
        header=header,
        separator=separator,
    )
    if kind not in TOKENISED:  # columns of tables are where they were; files of words tell by themselves
        before = remembered(learned).get("options", {})
        options = {name: before[name] for name in _PLACES if name in before} | options
    cut, _ = cutting(tokenizer or remembered(learned).get("tokenizer"), lambda: learned.sources.elmo)
    asked: Iterable[Any]
    if files:
        asked = _of_files(kind, files, cut=cut, options=options)
    else:
        asked = _of_texts(kind, text or [], question=question, passage=passage, cut=cut)
    said = _told(learned.predict_each(asked))
    if out is None:
        for pair in said:
            _print(kind, *pair, as_json=as_json)
        return
    closed: list[BrokenPipeError] = []
    write_pairs(out, kind, _printed(said, closed) if as_json else said)
    logger.info("%s: written", out)
    if closed:
        raise closed[0]


def _print(kind: str, example: Any, one: Any, *, as_json: bool) -> None:
    from elmo.tasks.output import record

    if as_json:
        print(json.dumps(record(example, one), ensure_ascii=False))
    else:
        print("\n".join(map(one_line, _shown(kind, example, one))))


def _printed(pairs: Iterator[tuple[Any, Any]], closed: list[BrokenPipeError]) -> Iterator[tuple[Any, Any]]:
    """Print what passes through; when nobody reads on, the file is still to be written."""
    for pair in pairs:
        if not closed:
            try:
                _print("", *pair, as_json=True)
            except BrokenPipeError as error:
                closed.append(error)
        yield pair


def _told(pairs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """A line now and then about how many there were; how many there will be, nobody knows."""
    last = time.monotonic()
    for number, pair in enumerate(pairs, start=1):
        yield pair
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            logger.info("predicting: %s examples", f"{number:,}", extra={"examples": number})


def _of_files(kind: str, files: Sequence[str], *, cut: Tokenize, options: dict[str, Any]) -> Iterator[Any]:
    """Examples as they are asked for."""
    from elmo.errors import DataError
    from elmo.tasks.data.files import at_least_one
    from elmo.tasks.kinds.registry import each_example

    examples = each_example(kind, files, tokenize=cut, options=options)
    none = f"{', '.join(files)[:200]}: expected examples of {kind}, found none"
    try:
        yield from at_least_one(examples, none)
    except DataError as error:
        if kind != "roles":
            raise
        raise DataError(f"{error}; {PREDICATES}") from error


def _of_texts(
    kind: str, texts: Sequence[str], *, question: str | None, passage: str | None, cut: Tokenize
) -> list[Any]:
    """Examples of what was written on the command line."""
    from elmo.errors import ConfigError
    from elmo.tasks.data.examples import Document, LabelledText, Place, Question, TaggedSentence, TextPair
    from elmo.tasks.data.files import tokens_of, words_of
    from elmo.tasks.data.texts import with_marks

    def words(text: str, number: int, tokenize: Tokenize = cut) -> tuple[str, ...]:
        return words_of(text, tokenize, what="text", place=Place("--text", number))

    if (kind == "answers") != (question is not None):
        wanted = "--question and --passage" if kind == "answers" else "--text or FILE"
        raise ConfigError(f"a model of {kind} is asked by {wanted}")
    if question is not None and passage is not None:
        place = Place("--passage", 1)
        words_of(passage, cut, what="passage", place=place)
        tokens = tokens_of(passage, cut)
        if tokens.offsets is None:
            raise ConfigError("--tokenizer: expected one that leaves the characters of a passage as they are")
        asked = words_of(question, cut, what="question", place=Place("--question", 1))
        return [Question("1", asked, tokens.tokens, passage, tokens.offsets, (), (), place)]
    if kind in ("entailment", "similarity"):
        if len(texts) != 2:
            raise ConfigError(f"a model of {kind} is asked of two texts: give --text twice")
        return [TextPair(words(texts[0], 1), words(texts[1], 2), None)]
    if kind == "roles":
        return [_marked(text, number, cut) for number, text in enumerate(texts, start=1)]
    if kind == "coreference":
        from elmo.text.sentences import split_sentences

        return [
            Document(
                f"text {n}",
                tuple(words(text[i:j], n) for i, j in split_sentences(text)) or (words(text, n),),
                None,
            )
            for n, text in enumerate(texts, start=1)
        ]
    if kind == "classification":
        return [LabelledText(words(text, n, with_marks(cut)), None) for n, text in enumerate(texts, start=1)]
    return [TaggedSentence(words(text, n), None) for n, text in enumerate(texts, start=1)]


def _marked(text: str, number: int, cut: Tokenize) -> Any:
    """A sentence whose predicate is marked like ``[[this]]``."""
    from elmo.embed.find import parse_mark
    from elmo.errors import DataError
    from elmo.tasks.data.examples import Predicate
    from elmo.tasks.data.files import tokens_of

    plain, span = parse_mark(text, number)
    tokens = tokens_of(plain, cut)
    inside = [
        k for k, (begin, end) in enumerate(tokens.offsets or ()) if span and begin < span[1] and end > span[0]
    ]
    if not inside:
        raise DataError(f"text {number}: expected a predicate, found none marked: {PREDICATES}")
    return Predicate(tokens.tokens, inside[0], None)


def _shown(kind: str, example: Any, one: Any) -> Iterator[str]:
    """A prediction as people read it."""
    from elmo.text.display import shortened, text_width

    if kind == "tagging":
        widest = max(map(text_width, example.words))
        longest = max(map(len, one.tags))
        for word, tag, sure in zip(example.words, one.tags, one.confidences, strict=True):
            yield f"{word}{' ' * (widest - text_width(word))}  {tag:{longest}}  {sure:6.1%}"
        yield ""
    elif kind == "classification":
        text = shortened(" ".join(example.words), _LINE)
        yield f"{one.label:16}{one.probabilities[one.label]:6.1%}  {text}"
    elif kind in ("entailment", "similarity"):
        first, second = (shortened(" ".join(words), _LINE // 2) for words in example.sentences)
        said = (
            f"{one.score:.2f}"
            if kind == "similarity"
            else f"{one.label:16}{one.probabilities[one.label]:6.1%}"
        )
        yield f"{said}  {first} | {second}"
    elif kind == "answers":
        yield shortened(" ".join(example.question), _LINE)
        yield from (f"  {sure:6.1%}  {text}" for text, sure in one.answers)
    elif kind == "roles":
        yield _bracketed(example, one)
    else:
        words = [word for sentence in example.text for word in sentence]
        yield f"{example.name}: {len(one.clusters)} clusters"
        for number, (cluster, chances) in enumerate(zip(one.clusters, one.confidences, strict=True), start=1):
            mentions = (
                f"{' '.join(words[span.start : span.end])} ({sure:.0%})"
                for span, sure in zip(cluster, chances, strict=True)
            )
            yield f"{number:4}  {', '.join(mentions)}"


def _bracketed(example: Any, one: Any) -> str:
    """``[ARG0 98%: The bank] [[lent]] [ARG2 87%: me] …``."""
    words = list(example.words)
    words[example.predicate] = f"[[{words[example.predicate]}]]"
    for span, sure in zip(one.roles, one.confidences, strict=True):
        words[span.start] = f"[{span.label} {sure:.0%}: {words[span.start]}"
        words[span.end - 1] += "]"
    return " ".join(words)
