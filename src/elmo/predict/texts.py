"""Read sentences from strings, lists of tokens and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from elmo.embed.elmo import as_tokens
from elmo.errors import ConfigError, DataError
from elmo.text.lines import ErrorPolicy, Source, Tally, expand_paths
from elmo.text.reader import INPUT_FORMATS, InputFormat, Sentence, read_sentences
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import Tokenizer, Tokens, load_tokenizer

TextItem = str | Sequence[str] | Tokens | Sentence | Path
Text = str | Path | Tokens | Iterable[TextItem]
AnyTokenizer = str | Tokenizer | Callable[[str], Sequence[str]]

_IN_MEMORY = "<text>"  # the path of sentences that are not from a file


def read_text(
    text: Text,
    *,
    tokenizer: AnyTokenizer,
    input_format: InputFormat = "text",
    split: bool | None = None,
    errors: ErrorPolicy = "strict",
    tally: Tally | None = None,
) -> Iterator[Sentence]:
    """Read the sentences of a text, in order.

    Args:
        text: A string, which is one sentence; an iterable of strings and lists of tokens; or a ``Path`` to a
            file, a folder or a glob (``Path("-")`` is stdin). A file name as a string is an error.
        tokenizer: The name of a tokenizer, or a function that splits a string into tokens.
        input_format: Format of files: "text", "tokens" or "conllu".
        split: Split each line of a file, and with True also each string, into sentences. None splits the lines of
            files that are paragraphs; see ``choose_split``.
        errors: What to do with bytes of files that are not UTF-8, as in ``EmbedJob``.
        tally: Object that counts the lines of files that are not valid UTF-8.
    """
    if input_format not in INPUT_FORMATS:
        raise ConfigError(f"input format must be one of {', '.join(INPUT_FORMATS)}; found {input_format!r:.40}")
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer(tokenizer)
    if isinstance(text, str | Path | Tokens):
        items: Iterable[Any] = [text]
    elif isinstance(text, Iterable) and not isinstance(text, bytes | bytearray):
        items = text
    else:
        raise DataError(f"text must be a string, a Path or an iterable of sentences; found {type(text).__name__}")
    tokenize = cast("Tokenizer", tokenizer)
    read = partial(
        read_sentences, tokenizer=tokenize, input_format=input_format, split=split, errors=errors, tally=tally
    )
    return _read_items(items, tokenize, split=split, read=read)


def known_files(text: Text) -> list[Source]:
    """Return the files of a text, except those that an iterator will yield, which are not known yet.

    Raises ``DataError`` if a file does not exist.
    """
    items = text if isinstance(text, list | tuple) else [text]
    return expand_paths([str(item) for item in items if isinstance(item, Path)])


def _read_items(
    items: Iterable[Any], tokenizer: Tokenizer, *, split: bool | None, read: Callable[[list[Path]], Iterator[Sentence]]
) -> Iterator[Sentence]:
    language = getattr(tokenizer, "name", "en")  # a tokenizer function of the caller has no ``name``
    number = 0  # counts the items that are not files
    for item in items:
        if isinstance(item, Path):
            yield from read([item])
            continue
        number += 1
        if isinstance(item, Sentence):
            yield item
        elif isinstance(item, str):
            if number == 1:
                _check_not_file_name(item)
            for start, end in (split_sentences(item, language=language) if split else []) or [(0, len(item))]:
                tokens = as_tokens(item[start:end], tokenizer, subject=f"sentence {number}")
                yield Sentence(tokens, _IN_MEMORY, number, start)
        else:
            yield Sentence(as_tokens(item, tokenizer, subject=f"sentence {number}"), _IN_MEMORY, number)


def _check_not_file_name(text: str) -> None:
    try:
        is_file = len(text) < 1024 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):  # the text is too long for a file name, or contains NUL
        return
    if is_file:
        raise DataError(
            f"text must not be the name of a file; found {text[:80]!r}; to read it, pass Path({text[:80]!r})"
        )
