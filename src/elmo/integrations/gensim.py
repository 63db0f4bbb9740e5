"""gensim: ``build_keyed_vectors``, one vector per word type, for tools that expect static vectors.

The vector of a word is the mean of the vectors of its uses. A mean has no context: all senses of a word are in one
vector. It is the right input for tools such as ``KeyedVectors.most_similar``, and the wrong one for comparing uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError
from elmo.integrations.requirements import require
from elmo.lexicon.index import MANIFEST, Index
from elmo.text.reader import read_sentences

require("gensim", extra="gensim", at_least="4.3", below="5")

from gensim.models import KeyedVectors  # noqa: E402

if TYPE_CHECKING:
    from elmo.embed.elmo import Sentence
    from elmo.embed.encoding import LayerChoice, Vectors

BATCH = 512  # sentences that are encoded at once


def build_keyed_vectors(
    source: Index | str | Path | Iterable[Sentence],
    *,
    elmo: Elmo | None = None,
    layers: LayerChoice | int = "average",
    start: Literal["zero", "warm"] = "zero",
    lowercase: bool = False,
    min_count: int = 1,
    max_words: int | None = None,
) -> KeyedVectors:
    """Average the vectors of each word over a corpus.

    Words are sorted by frequency; the frequency is the attribute "count", as in gensim's own models.

    Args:
        source: An index or its folder, a text file with one sentence per line, or sentences. An index has its own
            layers, start state and spelling of words, so these options do not apply to it.
        elmo: The model. Default: the bundled English model. For an index, it is only checked that this model built it.
        layers: "average", "top", "concat" or a layer number.
        start: State at the start of a sentence: "zero" or "warm".
        lowercase: Convert words to lower case, after their vectors were computed.
        min_count: Leave out words that occur less often.
        max_words: Maximum number of words, the most frequent ones. Default: no limit.

    Example:
        >>> vectors = build_keyed_vectors("corpus.txt")
        >>> "bank" in vectors
        True
    """
    if max_words is not None and max_words < 1:
        raise ConfigError(f"max_words must be at least 1; found {max_words}")
    if isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file():
        source = Index(source)
    if isinstance(source, Index):
        if elmo is not None:
            source.check_model(elmo)
        words, vectors, counts = _average_index(source, min_count, max_words)
    else:
        if layers == "all":
            raise ConfigError("layers must give one vector per token; found all; use concat")
        elmo = elmo or Elmo.from_pretrained()
        if isinstance(source, str | Path):
            read = read_sentences([source], tokenizer=elmo.tokenizer)
            source = (sentence.tokens for sentence in read if len(sentence))
        encode = elmo.snapshot().encode
        batches = (encode(batch, layers=layers, start=start, dtype="float32") for batch in _split(source))
        tokens = ((encoding.tokens, cast("Vectors", encoding.vectors)) for batch in batches for encoding in batch)
        words, vectors, counts = _average_tokens(tokens, min_count, max_words, lowercase=lowercase)
    if not words:
        raise DataError(f"cannot build vectors: no word occurs {min_count} times or more")
    keyed = KeyedVectors(vector_size=vectors.shape[1], dtype=np.float32)
    keyed.add_vectors(words, vectors)
    for word, count in zip(words, counts.tolist(), strict=True):
        keyed.set_vecattr(word, "count", count)
    return keyed


def _split(sentences: Iterable[Any]) -> Iterator[list[Any]]:
    remaining = iter(sentences)
    while batch := list(islice(remaining, BATCH)):
        yield batch


def _average_index(
    index: Index, min_count: int, max_words: int | None
) -> tuple[list[str], NDArray[np.float32], NDArray[np.int64]]:
    """Return the words of an index, the means of their vectors (word, width), and their frequencies."""
    frequencies = {word: n for word, (n_usages, n) in index.words.items() if n >= min_count and n_usages}
    words = sorted(frequencies, key=lambda word: (-frequencies[word], word))[:max_words]
    vectors = np.zeros((len(words), index.width), np.float32)
    for row, word in zip(vectors, words, strict=True):
        row[:] = index.vectors(index.numbers(word)).mean(axis=0, dtype=np.float64)
    return words, vectors, np.array([frequencies[word] for word in words], np.int64)


def _average_tokens(
    sentences: Iterable[tuple[tuple[str, ...], Vectors]], min_count: int, max_words: int | None, *, lowercase: bool
) -> tuple[list[str], NDArray[np.float32], NDArray[np.int64]]:
    """Return the words of sentences, the means of their vectors (word, width), and their frequencies."""
    rows: dict[str, int] = {}
    sums, counts = np.zeros((0, 0)), np.zeros(0, np.int64)  # (row, width) and (row,); they grow
    for tokens, vectors in sentences:
        forms = [token.lower() if lowercase else token for token in tokens]
        places = [rows.setdefault(form, len(rows)) for form in forms]
        if len(rows) > len(counts):
            more = max(1024, len(rows))
            sums = np.concatenate([sums.reshape(-1, vectors.shape[1]), np.zeros((more, vectors.shape[1]))])
            counts = np.concatenate([counts, np.zeros(more, np.int64)])
        np.add.at(sums, places, vectors)
        np.add.at(counts, places, 1)
    frequent = (word for word, row in rows.items() if counts[row] >= min_count)
    words = sorted(frequent, key=lambda word: (-int(counts[rows[word]]), word))[:max_words]
    order = [rows[word] for word in words]
    return words, (sums[order] / counts[order, None]).astype(np.float32), counts[order]
