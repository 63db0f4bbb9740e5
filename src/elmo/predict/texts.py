"""Text as a caller has it in (strings, tokens, files), its sentences with their places out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from elmo.errors import ConfigError, DataError
from elmo.text.sentences import split_sentences
from elmo.text.source import INPUT_FORMATS, ErrorPolicy, InputFormat, Sentence, read_sentences
from elmo.text.tokens import Tokenizer, Tokens
from elmo.text.tokens import tokenizer as tokenizer_by_name

Item = str | Sequence[str] | Tokens | Sentence | Path
Text = str | Path | Tokens | Iterable[Item]

_IN_MEMORY = "<text>"  # stands for a path where there is no file


def sentences_of(
    text: Text,
    *,
    tokenizer: str | Tokenizer | Callable[[str], Sequence[str]],
    input_format: InputFormat = "text",
    split: bool = False,
    errors: ErrorPolicy = "strict",
) -> Iterator[Sentence]:
    """The sentences of a text, in order.

    A string is a sentence (with ``split``, one or more), a list of strings inside an iterable the tokens of
    one, and a ``Path`` what ``elmo embed`` reads: a file, a folder, a glob, or ``Path("-")`` for stdin;
    ``input_format`` and ``errors`` are for these. A string that names a file is refused: whoever gives one
    means the file.
    """
    if input_format not in INPUT_FORMATS:
        raise ConfigError(
            f"input format: expected one of {', '.join(INPUT_FORMATS)}, found {str(input_format)[:40]!r}"
        )
    if isinstance(tokenizer, str):
        tokenizer = tokenizer_by_name(tokenizer)
    if isinstance(text, str | Path | Tokens):
        items: Iterable[Any] = [text]
    elif isinstance(text, Iterable) and not isinstance(text, bytes | bytearray):
        items = text
    else:
        raise DataError(
            f"text: expected a string, a Path or an iterable of sentences, found {type(text).__name__}"
        )
    return _sentences(
        items, tokenizer=cast("Tokenizer", tokenizer), input_format=input_format, split=split, errors=errors
    )


def _sentences(
    items: Iterable[Any],
    *,
    tokenizer: Tokenizer,
    input_format: InputFormat,
    split: bool,
    errors: ErrorPolicy,
) -> Iterator[Sentence]:
    for number, item in enumerate(items, start=1):
        if isinstance(item, Sentence):
            yield item
        elif isinstance(item, Path):
            yield from read_sentences(
                [item], tokenizer=tokenizer, input_format=input_format, split=split, errors=errors
            )
        elif isinstance(item, str):
            if number == 1:
                _refuse_file_name(item)
            yield from _of_string(item, number, tokenizer=tokenizer, split=split)
        else:
            yield Sentence(_given(item, number), _IN_MEMORY, number)


def _of_string(text: str, number: int, *, tokenizer: Tokenizer, split: bool) -> Iterator[Sentence]:
    language = getattr(tokenizer, "name", "en")  # a function of the user's own has none
    for start, end in (split_sentences(text, language=language) if split else []) or [(0, len(text))]:
        found: Any = tokenizer(text[start:end])
        yield Sentence(found if isinstance(found, Tokens) else Tokens.given(found), _IN_MEMORY, number, start)


def _given(item: Any, number: int) -> Tokens:
    if isinstance(item, Tokens):
        return item
    if not isinstance(item, Sequence) or isinstance(item, bytes | bytearray):
        raise DataError(
            f"sentence {number}: expected text, a list of tokens or a Path, found {type(item).__name__}"
        )
    try:
        return Tokens.given(cast("Sequence[str]", item))
    except DataError as error:
        raise DataError(f"sentence {number}: {error}") from error


def _refuse_file_name(text: str) -> None:
    try:
        is_file = len(text) < 1024 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return
    if is_file:
        raise DataError(
            f"text {text[:80]!r} is the name of a file; to read that file give Path({text[:80]!r})"
        )
