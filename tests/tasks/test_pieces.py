"""Runs of examples: all of them, in order, as large as can be held and no larger."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from elmo.tasks.data.examples import Document, TaggedSentence
from elmo.tasks.model import CHUNK_EXAMPLES, CHUNK_TOKENS, split_chunks
from elmo.tasks.kinds.task import count_tokens


@given(st.lists(st.integers(1, 9), max_size=3 * CHUNK_EXAMPLES))
def test_every_example_is_in_one_piece_in_its_place(lengths: list[int]) -> None:
    examples = [TaggedSentence(("a",) * n, None) for n in lengths]
    found = list(split_chunks(iter(examples)))
    assert [one for piece in found for one in piece] == examples
    assert all(len(piece) == CHUNK_EXAMPLES for piece in found[:-1])
    assert all(found)


def test_long_examples_make_small_pieces_and_a_document_is_one() -> None:
    long = TaggedSentence(("a",) * (CHUNK_TOKENS // 3), None)
    found = list(split_chunks([long] * 9))
    assert max(sum(map(count_tokens, piece)) for piece in found) < CHUNK_TOKENS + count_tokens(long)
    document = Document("d", (("a",),), None)
    assert list(split_chunks([document] * 3)) == [[document]] * 3


def test_no_more_is_taken_than_a_piece_needs() -> None:
    taken = 0

    def examples() -> Iterator[TaggedSentence]:
        nonlocal taken
        while True:
            taken += 1
            yield TaggedSentence(("a",), None)

    assert len(next(split_chunks(examples()))) == taken == CHUNK_EXAMPLES
