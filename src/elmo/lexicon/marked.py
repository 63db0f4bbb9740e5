"""A sentence and words in it, marked like ``[[this]]`` or named, in; their usages out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from elmo.embed.encoding import Span
from elmo.embed.marks import find_word, joined_places, start_of, unmarked, without_marks
from elmo.errors import DataError
from elmo.lexicon.usages import Usage
from elmo.text.tokens import Tokenizer, Tokens

_log = logging.getLogger(__name__)


def marked_usage(
    tokenizer: Tokenizer, sentence: str | Sequence[str], word: str | None = None, *, number: int = 1
) -> Usage:
    """Where the one word stands: the marked place, else the first place of ``word``.

    ``number`` is the sentence's, for messages. Of a word that is part of a token, the token is taken.
    """
    if isinstance(sentence, str):
        text, span = unmarked(sentence, number)
        tokens = tokenizer(text)
    else:
        tokens, span = Tokens.given(sentence), None
        text = " ".join(tokens.tokens)
    offsets = tokens.offsets or joined_places(tokens.tokens)
    if span is None:
        if not word or not word.strip():
            raise DataError(
                f"sentence {number}: which word is meant? Mark it like [[this]], or name it (--word): "
                f"{start_of(text)!r}"
            )
        span = find_word(word, text, offsets)
    if span is None:
        raise DataError(
            f"sentence {number} does not have the word {(word or '')[:40]!r}: {start_of(text)!r}; "
            "mark the word that you mean, like [[this]]"
        )
    return _usage(tokens, offsets, span, number)


def marked_usages(tokenizer: Tokenizer, sentence: str, *, number: int = 1) -> list[Usage]:
    """Where all the marked words stand, one or more, in one sentence."""
    text, spans = without_marks(sentence, number)
    if not spans:
        raise DataError(
            f"sentence {number}: expected a word that is marked like [[this]], found none: {start_of(text)!r}"
        )
    tokens = tokenizer(text)
    offsets = tokens.offsets or joined_places(tokens.tokens)
    return [_usage(tokens, offsets, span, number) for span in spans]


def _usage(tokens: Tokens, offsets: Sequence[Span], span: Span, number: int) -> Usage:
    inside = [k for k, (begin, end) in enumerate(offsets) if begin < span[1] and end > span[0]]
    if not inside:  # such as a character that the tokeniser leaves out
        found = (tokens.text or "")[slice(*span)]
        raise DataError(f"sentence {number}: expected a word between [[ and ]], found {found!r:.40}")
    begin, end = offsets[inside[0]][0], offsets[inside[-1]][1]
    if begin < span[0] or end > span[1]:
        text = tokens.text or " ".join(tokens.tokens)
        _log.warning(
            "sentence %d: %r is part of a token, which is taken: %r; is the tokenizer right?",
            number,
            text[slice(*span)][:40],
            text[begin:end][:80],
        )
    return Usage(tokens, inside[0], inside[-1] + 1, f"sentence {number}")
