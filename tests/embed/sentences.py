"""Unusual sentences that all formats must keep, and a tiny model to encode them."""

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
    """Return rows of tokens as sentences of a file ``rows.txt``."""
    result = []
    for line, row in enumerate(rows, start=1):
        ends = np.cumsum([len(token) + 1 for token in row]).tolist()
        offsets = tuple((end - 1 - len(token), end - 1) for token, end in zip(row, ends, strict=True))
        tokens = Tokens(" ".join(row) if with_offsets else None, tuple(row), offsets if with_offsets else None)
        result.append(Sentence(tokens, "rows.txt", line))
    return result


def shard(
    items: Sequence[Sentence], *, n_layers: int | None = None, width: int = 4, dtype: str = "float32", first: int = 0
) -> Shard:
    """Return a shard of the sentences with random vectors."""
    vectors = Layout(n_layers, width, dtype).empty(sum(len(one.tokens) for one in items))
    vectors[...] = np.random.default_rng(first).standard_normal(vectors.shape)
    return Shard.of(items, vectors, first=first)


def assert_same(result: Sequence[Encoding], expected: Sequence[Encoding], *, dtype: str | None = None) -> None:
    """Check that tokens, offsets, shapes, dtypes and bits are equal."""
    assert [one.tokens for one in result] == [one.tokens for one in expected]
    assert [one.offsets for one in result] == [one.offsets for one in expected]
    for one, other in zip(result, expected, strict=True):
        a, b = np.asarray(one.vectors), np.asarray(other.vectors)
        assert a.shape == b.shape
        assert a.dtype == (dtype or b.dtype)
        assert np.array_equal(a, b.astype(a.dtype))


def tiny_elmo(**options: object) -> Elmo:
    """Return a model of a few hundred weights that splits text at spaces."""
    return Elmo(tiny_model(**options), tokenizer="whitespace")  # pyright: ignore[reportArgumentType]
