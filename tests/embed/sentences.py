"""Sentences that are ordinary input here and trouble elsewhere, with a tiny model to read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elmo.embed.elmo import Elmo
from elmo.embed.encoding import Encoding
from elmo.jobs.shard import Layout, Shard
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens
from tests.formats.tiny import tiny_model

HOSTILE: list[tuple[str, ...]] = [
    (),
    ("The", "river", "bank"),
    ("", "empty", ""),
    ("a/b", "/", "..", "sentence_to_index", "0"),
    ("The", "river", "bank"),
    ("\0", "a\0b", "\n", "\u2028", "\u3000", "\ufeff"),
    ("\ud800", "x\udcff", "\udc80\udc81", "\N{GRINNING FACE}", "河岸", "\u202eabc"),
    (),
    ("<S>", "</S>", '"', "\\", "\\ud800", "null"),
    ("x" * 10_000_000, "after"),
    (),
]


def sentences(rows: Sequence[Sequence[str]], *, with_offsets: bool = False) -> list[Sentence]:
    """Rows of tokens as sentences of a file ``rows.txt``."""
    found = []
    for line, row in enumerate(rows, start=1):
        ends = np.cumsum([len(token) + 1 for token in row]).tolist()
        offsets = tuple((end - 1 - len(token), end - 1) for token, end in zip(row, ends, strict=True))
        tokens = Tokens(
            " ".join(row) if with_offsets else None, tuple(row), offsets if with_offsets else None
        )
        found.append(Sentence(tokens, "rows.txt", line))
    return found


def shard(
    given: Sequence[Sentence],
    *,
    n_layers: int | None = None,
    width: int = 4,
    dtype: str = "float32",
    first: int = 0,
) -> Shard:
    """The sentences with random vectors."""
    vectors = Layout(n_layers, width, dtype).empty(sum(len(one.tokens) for one in given))
    vectors[...] = np.random.default_rng(first).standard_normal(vectors.shape)
    return Shard.of(given, vectors, first=first)


def assert_same(found: Sequence[Encoding], expected: Sequence[Encoding], *, dtype: str | None = None) -> None:
    """Equal tokens, offsets, shapes, types and bits."""
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.offsets for one in found] == [one.offsets for one in expected]
    for one, other in zip(found, expected, strict=True):
        a, b = np.asarray(one.vectors), np.asarray(other.vectors)
        assert a.shape == b.shape
        assert a.dtype == (dtype or b.dtype)
        assert np.array_equal(a, b.astype(a.dtype))


def tiny_elmo(**options: object) -> Elmo:
    """A model of a few hundred weights that cuts text at spaces."""
    return Elmo(tiny_model(**options), tokenizer="whitespace")  # pyright: ignore[reportArgumentType]
