"""A sentence and a word in it, marked like ``[[this]]`` or named, in; its usage out."""

from __future__ import annotations

from collections.abc import Sequence

from elmo.embed.marks import find_word, joined_places, start_of, unmarked
from elmo.errors import DataError
from elmo.lexicon.usages import Usage
from elmo.text.tokens import Tokenizer, Tokens


def marked_usage(
    tokenizer: Tokenizer, sentence: str | Sequence[str], word: str | None = None, *, number: int = 1
) -> Usage:
    """Where the word stands: the marked place, else the first place of ``word``.

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
                f"sentence {number}: which word is meant? Mark it like [[this]], or name it: "
                f"{start_of(text)!r}"
            )
        span = find_word(word, text, offsets)
    inside = [k for k, (begin, end) in enumerate(offsets) if span and begin < span[1] and end > span[0]]
    if not inside:
        raise DataError(
            f"sentence {number} does not have the word {(word or '')[:40]!r}: {start_of(text)!r}; "
            "mark the word that you mean, like [[this]]"
        )
    return Usage(tokens, inside[0], inside[-1] + 1, f"sentence {number}")
