"""Read tokenized sentences, with their positions, from text, token files and CoNLL-U."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from elmo.errors import ConfigError, DataError, SentenceTooLongError
from elmo.text.lines import ErrorPolicy, Line, Tally, TextLimits, expand_paths, format_source, read_lines
from elmo.text.sentences import SPLIT_SAMPLE, SplitChoice, choose_split, iter_sentences
from elmo.text.tokenizers import Tokenizer, Tokens, WhitespaceTokenizer, skip_space

InputFormat = Literal["text", "tokens", "conllu"]
INPUT_FORMATS: tuple[InputFormat, ...] = get_args(InputFormat)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sentence:
    """A sentence and its position.

    Attributes:
        tokens: Tokens of the sentence.
        path: File that contains the sentence, formatted for messages.
        line: Line number of the sentence, from 1; for CoNLL-U, the line of its first word.
        start: Offset in the line at which ``tokens.text`` starts.
    """

    tokens: Tokens
    path: str
    line: int
    start: int = 0

    @property
    def place(self) -> str:
        """``file:line``, for messages."""
        return f"{self.path}:{self.line}"

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True)
class UnusableSentence:
    """A sentence that is too long, or has a token that is too long.

    Attributes:
        path: File that contains the sentence, formatted for messages.
        line: Line number of the sentence, from 1.
        start: Offset in the line at which the text starts.
        text: The text, or the tokens separated by spaces.
        error: What is wrong.
    """

    path: str
    line: int
    start: int
    text: str
    error: str

    @classmethod
    def of(cls, sentence: Sentence, error: DataError) -> UnusableSentence:
        """Describe a sentence and its error."""
        text = sentence.tokens.text
        text = " ".join(sentence.tokens.tokens) if text is None else text
        return cls(sentence.path, sentence.line, sentence.start, text, _without_place(error, sentence.place))


def _without_place(error: DataError, place: str) -> str:
    return str(error).removeprefix(f"{place}: ")


def read_sentences(
    paths: Sequence[str | Path],
    *,
    tokenizer: Tokenizer,
    input_format: InputFormat = "text",
    split: bool | None = None,
    errors: ErrorPolicy = "strict",
    tally: Tally | None = None,
    on_unusable: Callable[[UnusableSentence], None] | None = None,
) -> Iterator[Sentence]:
    """Read the sentences of files, globs, folders and stdin, in order.

    Except in CoNLL-U files, an empty line gives a sentence without tokens, so that every line is represented. The
    paths are checked immediately, so that a typo is reported before the work starts.

    Args:
        paths: Files, globs, folders, or ``-`` for stdin.
        tokenizer: Tokenizer for text.
        input_format: ``text``: one sentence per line. ``tokens``: one sentence per line, with tokens separated by
            spaces. ``conllu``: the words of CoNLL-U files.
        split: Whether to split each line into sentences; only for ``text``. None splits lines that are paragraphs, as
            ``choose_split`` finds from the beginning of the text; lines of stdin are not split, because waiting for
            this beginning would hold back the first results.
        errors: What to do with bytes that are not UTF-8.
        tally: Counts the lines that were repaired or skipped.
        on_unusable: Receives the sentences that are too long, or have a token that is too long, and leaves them out.
            Default: raise an error.
    """
    if input_format not in INPUT_FORMATS:
        raise ConfigError(f"input format must be one of {', '.join(INPUT_FORMATS)}; found {str(input_format)[:40]!r}")
    if split and input_format != "text":
        raise ConfigError(f"split requires input format text; found {input_format}")
    files = expand_paths([str(path) for path in paths], is_remote_allowed=True)
    # read_lines checks the policy at once; the first line may be read much later
    limits = TextLimits.read()
    if split is None and "-" in map(str, paths):
        split = False
    lines_per_file = [read_lines(file, errors=errors, tally=tally, limits=limits) for file in files]
    return _parse_files(
        lines_per_file,
        tokenizer=tokenizer,
        input_format=input_format,
        split=split,
        limits=limits,
        on_unusable=on_unusable,
    )


def _parse_files(
    lines_per_file: Iterable[Iterator[Line]],
    *,
    tokenizer: Tokenizer,
    input_format: InputFormat,
    split: bool | None,
    limits: TextLimits,
    on_unusable: Callable[[UnusableSentence], None] | None,
) -> Iterator[Sentence]:
    tokenize = WhitespaceTokenizer() if input_format == "tokens" else tokenizer
    if split is None:
        split = False
        if input_format == "text":
            split, lines_per_file = _choose_split(lines_per_file, getattr(tokenize, "name", "en"))
    for lines in lines_per_file:
        for sentence in (
            read_conllu(lines)
            if input_format == "conllu"
            else _split_lines(lines, tokenize, split=split, on_unusable=on_unusable)
        ):
            # most lines are shorter than the longest token
            if sentence.tokens.text is None or 4 * len(sentence.tokens.text) > limits.token_bytes:
                try:
                    limits.check_tokens(sentence.tokens.tokens, sentence.place)
                except DataError as error:
                    if on_unusable is None:
                        raise
                    on_unusable(UnusableSentence.of(sentence, error))
                    continue
            yield sentence


def _choose_split(lines_per_file: Iterable[Iterator[Line]], language: str) -> tuple[bool, Iterable[Iterator[Line]]]:
    """Return whether lines are paragraphs, found from the beginning of the text, and the lines of all files."""
    files = iter(lines_per_file)
    begun: list[Iterator[Line]] = []
    sample: list[str] = []
    n_characters = 0
    for lines in files:
        head: list[Line] = []
        rest = lines
        try:
            for line in lines:
                head.append(line)
                sample.append(line.text)
                n_characters += len(line.text) + 1
                if n_characters > SPLIT_SAMPLE:
                    break
        except (DataError, OSError) as error:
            rest = _fail(error)  # after the lines before it
            n_characters = SPLIT_SAMPLE + 1
        begun.append(chain(head, rest))
        if n_characters > SPLIT_SAMPLE:
            break
    choice = choose_split("\n".join(sample), language)
    report_split(choice)
    return choice.is_split, chain(begun, files)


def _fail(error: Exception) -> Iterator[Line]:
    raise error
    yield  # makes this function a generator


def report_split(choice: SplitChoice) -> None:
    """Log one line if the lines of a text are split without a request; commands show it."""
    if choice.is_split:
        logger.info("%s", choice, extra={"sentences_per_line": round(choice.sentences_per_line, 2)})


def _split_lines(
    lines: Iterable[Line], tokenize: Tokenizer, *, split: bool, on_unusable: Callable[[UnusableSentence], None] | None
) -> Iterator[Sentence]:
    for line in lines:
        spans = list(iter_sentences(line.text, language=getattr(tokenize, "name", "en"))) if split else []
        for start, end in spans or [(0, len(line.text))]:
            text = line.text[start:end]
            try:
                tokens = tokenize(text)
            except SentenceTooLongError as error:
                if on_unusable is None:
                    raise SentenceTooLongError(f"{line.path}:{line.number}: {error}") from error
                on_unusable(UnusableSentence(line.path, line.number, start, text, str(error)))
            else:
                yield Sentence(tokens, line.path, line.number, start)


def require_words(sentences: Iterable[Sentence], *, inputs: Sequence[str | Path]) -> Iterator[Sentence]:
    """Return the sentences unchanged; raise ``DataError`` immediately if none of them has a word."""
    rest = iter(sentences)
    first: list[Sentence] = []
    for sentence in rest:
        first.append(sentence)
        if len(sentence):
            return chain(first, rest)
    names = ", ".join(map(format_source, inputs))
    raise DataError(f"{names[:200]}: expected text, found no words")


_N_COLUMNS = 10
_NOT_A_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a multiword token or an empty node
_TEXT = re.compile(r"#\s*text\s*=\s*(.*)", re.DOTALL)


def read_conllu(lines: Iterable[Line]) -> Iterator[Sentence]:
    """Read the sentences of a CoNLL-U file; sentences without a word are skipped.

    Words get offsets if a comment ``# text = …`` has the text of the sentence and the words match it.
    """
    text: str | None = None
    words: list[str] = []
    first: Line | None = None
    for line in chain(lines, [Line("", 0, "")]):  # an empty line ends the last sentence
        if not line.text.strip(" \t"):
            if first is not None and words:
                offsets = None if text is None else align_words(words, text)
                yield Sentence(Tokens(text, tuple(words), offsets), first.path, first.number)
            text, words, first = None, [], None
        elif line.text.startswith("#"):
            if match := _TEXT.match(line.text):
                text = match[1]
        else:
            first = first or line
            word = _parse_word(line, number=len(words) + 1)
            words += [] if word is None else [word]


def _parse_word(line: Line, *, number: int) -> str | None:
    """Return the form of the word with id ``number``, or None for a multiword token or an empty node."""
    place = f"{line.path}:{line.number}"
    columns = line.text.split("\t")
    if len(columns) != _N_COLUMNS:
        raise DataError(f"{place}: expected {_N_COLUMNS} columns separated by tabs, found {len(columns)}")
    word_id, form = columns[:2]
    if _NOT_A_WORD.fullmatch(word_id):
        return None
    if word_id != str(number):
        raise DataError(f"{place}: expected word id {number}, found {word_id[:20]!r}")
    if not form:
        raise DataError(f"{place}: expected a word form in column 2, found an empty string")
    return form


def align_words(words: Sequence[str], text: str) -> tuple[tuple[int, int], ...] | None:
    """Return the offsets of words in ``text``; None if the text is not exactly these words, with or without spaces."""
    offsets: list[tuple[int, int]] = []
    end = 0
    for word in words:
        start = end if text.startswith(word, end) else skip_space(text, end)
        if not text.startswith(word, start):
            return None
        end = start + len(word)
        offsets.append((start, end))
    return tuple(offsets) if not text[end:].strip() else None
