"""Tag schemes and their spans."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Span
from elmo.tasks.data.schemes import (
    Scheme,
    Transitions,
    build_transitions,
    convert_tags,
    decode_spans,
    detect_letters,
    detect_scheme,
    encode_spans,
    replace_letters,
)

SCHEMES: tuple[Scheme, ...] = ("IOB1", "IOB2", "BIOES")
LETTERS = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES"}
# Two people right after each other, a place, and a person right after it, in each scheme.
SPANS = (Span(0, 2, "PER"), Span(2, 3, "PER"), Span(4, 7, "LOC"), Span(7, 8, "PER"))
WRITTEN = {
    "IOB1": "I-PER I-PER B-PER O I-LOC I-LOC I-LOC I-PER",
    "IOB2": "B-PER I-PER B-PER O B-LOC I-LOC I-LOC B-PER",
    "BIOES": "B-PER E-PER S-PER O B-LOC I-LOC E-LOC S-PER",
}


@st.composite
def span_lists(draw: st.DrawFn) -> tuple[tuple[Span, ...], int]:
    """Draw spans that do not overlap, many of them adjacent, and the number of tokens."""
    spans, here = [], 0
    for gap, length, label in draw(
        st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.sampled_from(["A", "B-A", "中"])))
    ):
        spans.append(Span(here + gap, here + gap + length, label))
        here += gap + length
    return tuple(spans), here + draw(st.integers(0, 2))


def random_tags(random: Random, letters: str, n_sequences: int) -> list[list[str]]:
    tags = ["O", *(f"{letter}-{label}" for letter in letters for label in ("PER", "LOC", "X-Y"))]
    return [random.choices(tags, k=random.randint(1, 12)) for _ in range(n_sequences)]


def follows(tags: tuple[str, ...], kinds: list[str], allowed: Transitions) -> bool:
    ids = [kinds.index(tag) for tag in tags]
    return bool(allowed.start[ids[0]] and allowed.end[ids[-1]] and allowed.between[ids[:-1], ids[1:]].all())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_encodes_and_decodes_spans(scheme: Scheme) -> None:
    tags = tuple(WRITTEN[scheme].split())
    assert encode_spans(SPANS, 8, scheme) == tags
    assert decode_spans(tags, scheme) == decode_spans(tags, scheme, is_strict=True) == SPANS
    assert detect_scheme([tags]) == scheme


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=40)
@given(found=span_lists())
def test_spans_survive_a_round_trip_through_tags(scheme: Scheme, found: tuple[tuple[Span, ...], int]) -> None:
    spans, n = found
    tags = encode_spans(spans[::-1], n, scheme)
    assert len(tags) == n
    assert decode_spans(tags, scheme) == decode_spans(tags, scheme, is_strict=True) == spans
    for other in SCHEMES:
        assert convert_tags(tags, scheme, other) == encode_spans(spans, n, other)


@pytest.mark.parametrize("tags", ["B-A L-A U-A O B-A I-A L-A", "B-A E-A W-A O B-A M-A E-A"])
def test_bilou_and_bmewo_are_read_as_bioes(tags: str) -> None:
    assert detect_scheme([tags.split()]) == "BIOES"
    assert convert_tags(tags.split(), "BIOES", "BIOES") == ("B-A", "E-A", "S-A", "O", "B-A", "I-A", "E-A")


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O O", "IOB2"),
        ("B-A O I-A", "IOB2"),  # with a mistake: IOB1 would not have written the B
        ("I-A B-A", "IOB1"),
        ("I-A B-B", "IOB2"),
        ("I-A I-B", "IOB1"),
        ("S-A", "BIOES"),
        ("DT NN VBZ", "plain"),
        ("B-A DT", "plain"),
        ("B I O", "plain"),
        ("B-", "plain"),
        ("-LRB- O", "plain"),
    ],
)
def test_the_scheme_is_detected_from_tags(tags: str, scheme: Scheme) -> None:
    assert detect_scheme([tags.split()]) == scheme
    assert detect_scheme([["O"], tags.split()]) == scheme


def test_detecting_a_scheme_needs_tags() -> None:
    with pytest.raises(DataError, match="cannot detect a tag scheme: there are no tags"):
        detect_scheme([[]])


def test_a_tag_that_breaks_the_scheme_starts_a_span_unless_strict() -> None:
    tags = ["I-A", "I-B", "O", "B-A", "I-B"]
    assert decode_spans(tags, "IOB2") == (Span(0, 1, "A"), Span(1, 2, "B"), Span(3, 4, "A"), Span(4, 5, "B"))
    assert decode_spans(tags, "IOB2", is_strict=True) == (Span(3, 4, "A"),)
    assert decode_spans(["B-A", "O", "B-A", "E-A"], "BIOES", is_strict=True) == (Span(2, 4, "A"),)
    assert decode_spans(["B-A", "I-A", "O", "I-A", "B-A"], "IOB1", is_strict=True) == (Span(3, 4, "A"), Span(4, 5, "A"))


def test_lenient_decoding_agrees_with_seqeval() -> None:
    get_entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities
    for scheme in ("IOB2", "BIOES"):
        for tags in random_tags(Random(1), LETTERS[scheme], 1000):
            theirs = [(start, end + 1, label) for label, start, end in get_entities(tags)]
            assert [(s.start, s.end, s.label) for s in decode_spans(tags, cast("Scheme", scheme))] == theirs, tags


@pytest.mark.parametrize(
    ("scheme", "name", "letters"), [("IOB2", "IOB2", "BI"), ("BIOES", "IOBES", "BIES"), ("BIOES", "BILOU", "BILU")]
)
def test_strict_decoding_agrees_with_seqeval(scheme: Scheme, name: str, letters: str) -> None:
    theirs = pytest.importorskip("seqeval.scheme")
    for tags in random_tags(Random(2), letters, 1000):
        entities = theirs.Tokens(tags, getattr(theirs, name)).entities
        expected = [(one.start, one.end, one.tag) for one in entities]
        assert [(s.start, s.end, s.label) for s in decode_spans(tags, scheme, is_strict=True)] == expected, tags


@pytest.mark.parametrize("scheme", SCHEMES)
def test_transitions_allow_exactly_the_tags_of_spans(scheme: Scheme) -> None:
    kinds = ["O", *(f"{letter}-{label}" for letter in LETTERS[scheme] for label in "AB")]
    allowed = build_transitions(kinds, scheme)
    for n in (1, 2, 3, 4):
        for tags in product(kinds, repeat=n):
            is_written = encode_spans(decode_spans(tags, scheme), n, scheme) == tags
            assert follows(tags, kinds, allowed) == is_written, tags


def test_transitions_accept_other_letters_and_plain_tags() -> None:
    one = build_transitions(["O", "B-A", "I-A", "E-A", "S-A"], "BIOES")
    other = build_transitions(["O", "B-A", "M-A", "L-A", "U-A"], "BIOES")
    np.testing.assert_array_equal(one.between, other.between)
    assert one.start.tolist() == other.start.tolist() == [True, True, False, False, True]
    assert one.end.tolist() == other.end.tolist() == [True, False, False, True, True]
    plain = build_transitions(["DT", "NN"], "plain")
    assert plain.between.shape == (2, 2)
    assert all(part.all() for part in (plain.between, plain.start, plain.end))
    assert convert_tags(["DT", "NN"], "plain", "plain") == ("DT", "NN")


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span(1, 3, "A"), Span(2, 4, "B")], r"spans must not overlap; found span 1-3 'A' and span 2-4 'B'"),
        ([Span(2, 5, "A")], r"span 2-5 'A': start must be before the end, and both must be within 4 tokens"),
        ([Span(-1, 1, "A")], r"span -1-1 'A': start must be"),
        ([Span(2, 2, "A")], r"span 2-2 'A': start must be"),
        ([Span(2, 3)], r"span 2-3 '': cannot write a span without a label"),
    ],
)
def test_spans_that_cannot_be_encoded_raise_an_error(spans: list[Span], message: str) -> None:
    with pytest.raises(DataError, match=message):
        encode_spans(spans, 4, "IOB2")


def test_tags_without_a_scheme_raise_an_error() -> None:
    with pytest.raises(DataError, match=r"tag 2 must be O, or one of B-, I-, E-, S- with a label; found 'NN'"):
        decode_spans(["O", "NN"], "IOB2")
    with pytest.raises(DataError, match=r"tag 1 must be O, or one of B-, I- with a label; found 'S-A'"):
        decode_spans(["S-A"], "IOB2", is_strict=True)
    with pytest.raises(DataError, match=r"found 'E-A'"):
        build_transitions(["O", "E-A"], "IOB1")
    with pytest.raises(ConfigError, match="found plain tags, which mark no spans"):
        decode_spans(["NN"], "plain")
    with pytest.raises(ConfigError, match="tag scheme must be one of IOB1, IOB2, BIOES, plain; found 'BIO'"):
        encode_spans([], 1, cast("Scheme", "BIO"))


@pytest.mark.parametrize(
    ("tags", "letters"),
    [
        ("B-X I-X E-X O S-X", "BIES"),
        ("B-X I-X L-X O U-X", "BILU"),
        ("B-X L-X", "BILU"),  # no U is there: it goes with the L
        ("B-X M-X E-X W-X", "BMEW"),
        ("B-X M-X E-X S-X", "BMES"),
    ],
)
def test_other_letters_of_bioes_are_detected_and_restored(tags: str, letters: str) -> None:
    given = tags.split()
    assert detect_letters([given]) == letters
    assert replace_letters(convert_tags(given, "BIOES", "BIOES"), letters) == tuple(given)
