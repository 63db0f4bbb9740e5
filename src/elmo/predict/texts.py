"""Read text in any form (strings, tokens, files) as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from elmo.errors import ConfigError, DataError
from elmo.text.lines import ErrorPolicy
from elmo.text.reader import INPUT_FORMATS, InputFormat, Sentence, read_sentences
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import Tokenizer, Tokens, load_tokenizer

TextItem = str | Sequence[str] | Tokens | Sentence | Path
Text = str | Path | Tokens | Iterable[TextItem]
AnyTokenizer = str | Tokenizer | Callable[[str], Sequence[str]]

_IN_MEMORY = "<text>"  # replaces the path of a file


def read_text(
    text: Text,
    *,
    tokenizer: AnyTokenizer,
    input_format: InputFormat = "text",
    split: bool = False,
    errors: ErrorPolicy = "strict",
) -> Iterator[Sentence]:
    """Read the sentences of a text, in order.

    Args:
        text: A string, which is one sentence; an iterable of strings and lists of tokens; or a ``Path`` to a
            file, a folder or a glob (``Path("-")`` is stdin). A string that names a file is an error.
        tokenizer: The name of a tokenizer, or a function from text to tokens.
        input_format: Format of files: "text", "tokens" or "conllu".
        split: Split strings, and lines of files, into sentences.
        errors: What to do with bytes of files that are not UTF-8, as in ``EmbedJob``.
    """
    if input_format not in INPUT_FORMATS:
        raise ConfigError(f"input format: expected one of {', '.join(INPUT_FORMATS)}, found {str(input_format)[:40]!r}")
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    if isinstance(text, str | Path | Tokens):
        items: Iterable[Any] = [text]
    elif isinstance(text, Iterable) and not isinstance(text, bytes | bytearray):
        items = text
    else:
        raise DataError(f"text: expected a string, a Path or an iterable of sentences, found {type(text).__name__}")
    return _read_items(
        items, tokenizer=cast("Tokenizer", tokenizer), input_format=input_format, split=split, errors=errors
    )


def _read_items(
    items: Iterable[Any], *, tokenizer: Tokenizer, input_format: InputFormat, split: bool, errors: ErrorPolicy
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
                _check_not_file_name(item)
            yield from _read_string(item, number, tokenizer=tokenizer, split=split)
        else:
            yield Sentence(_read_tokens(item, number), _IN_MEMORY, number)


def _read_string(text: str, number: int, *, tokenizer: Tokenizer, split: bool) -> Iterator[Sentence]:
    language = getattr(tokenizer, "name", "en")  # a user's function has no name
    for start, end in (split_sentences(text, language=language) if split else []) or [(0, len(text))]:
        tokens: Any = tokenizer(text[start:end])
        if not isinstance(tokens, Tokens):
            tokens = Tokens.from_words(tokens)
        yield Sentence(tokens, _IN_MEMORY, number, start)


def _read_tokens(item: Any, number: int) -> Tokens:
    if isinstance(item, Tokens):
        return item
    if not isinstance(item, Sequence) or isinstance(item, bytes | bytearray):
        raise DataError(f"sentence {number}: expected text, a list of tokens or a Path, found {type(item).__name__}")
    try:
        return Tokens.from_words(cast("Sequence[str]", item))
    except DataError as error:
        raise DataError(f"sentence {number}: {error}") from error


def _check_not_file_name(text: str) -> None:
    try:
        is_file = len(text) < 1024 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # too long for a file name, or it contains NUL
        return
    if is_file:
        raise DataError(f"text {text[:80]!r} is the name of a file; to read it, pass Path({text[:80]!r})")
