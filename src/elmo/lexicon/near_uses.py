"""Texts in, uses of words out, two and two near each other: most likely of one sense.

Whoever writes a word again a few sentences on means the same by it ("one sense per discourse": Gale, Church
and Yarowsky 1992), and elsewhere it may mean something else. So plain text says which uses are alike.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elmo.errors import DataError
from elmo.lexicon.choice import Key, is_word
from elmo.lexicon.usages import Usage
from elmo.text.tokens import Tokens

PAIRS = 8  # of a word
N_USES = 2 * PAIRS
REACH = 400  # tokens from one use of a pair to the other, at most
APART = 4 * REACH  # of a word's pairs one is taken in so many tokens: the next is of another text
N_COMMON = 150  # the most frequent words have no senses to tell
SENTENCE = (6, 40)  # tokens of one that counts
MOST_TOKENS = 2_000_000  # that are read


@dataclass(frozen=True)
class _Place:
    token: int  # of the text
    sentence: Tokens
    place: int

    @property
    def usage(self) -> Usage:
        return Usage(self.sentence, self.place, self.place + 1)


def near_uses(texts: Iterable[Iterable[Tokens]], *, key: Key, n_words: int, seed: int = 0) -> list[Usage]:
    """``N_USES`` uses each of at most ``n_words`` words, a word's pairs one after the other.

    A pair is of one text and of two different sentences. Words are what ``key`` makes one word of, none of
    the most frequent, and none that is written with a capital where it stands: most of these are names
    (in German nouns, which are passed over as well). A use is never the first or last token of its
    sentence, so that both directions have read something before it.
    """
    counts: Counter[str] = Counter()
    before: dict[str, _Place] = {}
    newest: dict[str, int] = {}  # where a word's last pair ends
    pairs: defaultdict[str, list[tuple[_Place, _Place]]] = defaultdict(list)
    n_read = 0
    for sentence in _sentences(texts):
        if sentence is None:  # the next text
            before.clear()
            continue
        fits = SENTENCE[0] <= len(sentence) <= SENTENCE[1]
        last = len(sentence.tokens) - 1
        for place, token in enumerate(sentence.tokens):
            if not is_word(token) or token != token.lower():
                continue
            word = key(token)
            counts[word] += 1
            if not fits or place in (0, last):
                continue
            here = _Place(n_read + place, sentence, place)
            earlier = before.get(word)
            before[word] = here
            if earlier is None or here.token - earlier.token > REACH:
                continue
            if earlier.sentence.tokens == sentence.tokens:  # the same one, or a line that is repeated
                continue
            if word not in newest or here.token - newest[word] >= APART:
                pairs[word].append((earlier, here))
                newest[word] = here.token
        n_read += len(sentence)
        if n_read >= MOST_TOKENS:
            break
    common = {word for word, _ in counts.most_common(N_COMMON)}
    words = [word for word, found in pairs.items() if len(found) >= PAIRS and word not in common]
    chance = random.Random(seed)
    chosen = chance.sample(words, min(n_words, len(words)))
    return [each.usage for word in chosen for pair in chance.sample(pairs[word], PAIRS) for each in pair]


def _sentences(texts: Iterable[Iterable[Tokens]]) -> Iterator[Tokens | None]:
    """All sentences; None where a text ends."""
    for text in texts:
        if isinstance(text, str | Tokens):
            raise DataError("expected texts, each of tokenised sentences, found a sentence: give [text]")
        for sentence in text:
            if not isinstance(sentence, Tokens):
                kind = type(sentence).__name__
                raise DataError(f"expected sentences as a tokenizer gives them, found a {kind}")
            yield sentence
        yield None
