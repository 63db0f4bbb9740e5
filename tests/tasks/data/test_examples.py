"""Locations of examples in messages, and checks of their words."""

from __future__ import annotations

from typing import Any

import pytest

from elmo.errors import DataError
from elmo.tasks.data.examples import Document, Example, LabeledText, Location, TaggedSentence, TextPair, format_location
from elmo.tasks.data.examples import check_words as check

LOCATION = Location("a.conll", 7)
LIST: Any = ["a"]
NUMBERS: Any = ("a", 3)
TEXT: Any = "ab"


def test_messages_start_with_the_location() -> None:
    assert (format_location(LOCATION), format_location(None)) == ("a.conll:7: ", "")


def test_tuples_of_words_are_accepted() -> None:
    check([TaggedSentence(("a",), None), TextPair(("a",), ("b", ""), None), Document("d", (("a",),), None)])
    check([])


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (TaggedSentence((), (), LOCATION), "a.conll:7: expected a sentence as a tuple of words; found an empty"),
        (TextPair(("a",), (), "yes"), "example 2: expected a sentence as a tuple of words; found an empty"),
        (Document("d", (), None, None, LOCATION), "a.conll:7: expected a tuple of sentences; found an empty"),
        (Document("d", (("a",), ()), None), "example 2: expected a sentence as a tuple of words"),
        (LabeledText(LIST, "x"), r"example 2: expected a sentence as a tuple of words; found list \['a'\]"),
        (LabeledText(TEXT, "x"), "example 2: expected a sentence as a tuple of words; found str 'ab'"),
        (LabeledText(NUMBERS, "x"), "example 2: expected words of type str; found int 3"),
    ],
)
def test_an_example_without_words_raises_an_error_with_its_location(example: Example, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check([LabeledText(("a",), "x"), example])
