"""Tag schemes that mark spans (IOB1, IOB2, BIOES), and plain tags, which mark no spans.

In IOB2, also called BIO, every span starts with B-. In IOB1, a span starts with B- only if the span directly before it
has the same label; other spans start with I-. In BIOES, a span of several tokens also ends with E-, and a span of one
token is tagged S-. BILOU (with L, U) and BMEWO (with M, E, W) are BIOES with other letters: they are converted to
BIOES, and ``replace_letters`` restores the original letters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Span

Scheme = Literal["IOB1", "IOB2", "BIOES", "plain"]
SplitTag = tuple[str, str]  # a letter (B, I, E, S or O) and a label

OUTSIDE = "O"
_OUTSIDE_TAG: SplitTag = (OUTSIDE, "")
_MEANINGS = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
_TAG = re.compile(r"([BIMELSUW])-(.+)", re.DOTALL)
_SCHEME_LETTERS = {"IOB1": "OBI", "IOB2": "OBI", "BIOES": "OBIES"}


@dataclass(frozen=True, eq=False)
class Transitions:
    """Which tags may follow each other, start a sentence or end it; the axes are indices in a list of tags."""

    between: NDArray[np.bool_]  # (tag, tag): whether the second may follow the first
    start: NDArray[np.bool_]  # (tag,): whether it may start a sentence
    end: NDArray[np.bool_]  # (tag,): whether it may end a sentence


def is_span_tag(tag: str) -> bool:
    """Whether a tag is O, or has the form of a span tag such as B-LOC."""
    return _split_tag(tag) is not None


def detect_scheme(tag_sequences: Sequence[Sequence[str]]) -> Scheme:
    """Detect the scheme of tag sequences; it is "plain" if any tag is not a span tag.

    If some spans start with I-, and others with a B- that IOB1 does not need, the scheme is IOB2 (with mistakes). The
    scheme is also IOB2 if all tags are O.
    """
    unique = {tag for tags in tag_sequences for tag in tags}
    if not unique:
        raise DataError("cannot detect a tag scheme: there are no tags")
    if not all(map(is_span_tag, unique)):
        return "plain"
    if any(tag != OUTSIDE and tag[0] not in "BI" for tag in unique):
        return "BIOES"
    starts_with_inside = False
    for tags in tag_sequences:
        previous = _OUTSIDE_TAG
        for letter, label in _split_tags(tags, "IOB2"):
            if letter != OUTSIDE and previous[1] != label:
                if letter == "B":  # IOB1 has I here
                    return "IOB2"
                starts_with_inside = True
            previous = (letter, label)
    return "IOB1" if starts_with_inside else "IOB2"


def detect_letters(tag_sequences: Sequence[Sequence[str]]) -> str:
    """Return the letters that the tags use for B, I, E and S: for example BIES, BILU or BMEW."""
    counts = Counter(tag[0] for tags in tag_sequences for tag in tags if tag != OUTSIDE and is_span_tag(tag))
    default = "BILU" if counts["L"] + counts["U"] > counts["E"] + counts["S"] + counts["W"] else "BIES"
    letters = ""
    for first, meaning in zip(default, "BIES", strict=True):
        synonyms = [letter for letter in _MEANINGS if _MEANINGS[letter] == meaning]
        letters += max([first, *synonyms], key=lambda letter: counts[letter])  # the first one if counts are equal
    return letters


def replace_letters(tags: Sequence[str], letters: str) -> tuple[str, ...]:
    """Replace B, I, E and S of BIOES tags by these letters."""
    table = dict(zip("BIES", letters, strict=True))
    return tuple(tag if tag == OUTSIDE else table[tag[0]] + tag[1:] for tag in tags)


def decode_spans(tags: Sequence[str], scheme: Scheme, *, is_strict: bool = False) -> tuple[Span, ...]:
    """Return the spans that tags mark, in order.

    Tags that break the scheme are read as in conlleval: a tag that cannot continue a span starts a new one.
    ``is_strict`` returns only spans that follow the scheme from the first tag to the last.
    """
    split = _split_tags(tags, scheme, is_strict=is_strict)
    spans: list[Span] = []
    start, previous = 0, _OUTSIDE_TAG
    for k, current in enumerate([*split, _OUTSIDE_TAG]):
        letter, label = current
        if letter in "IE" and previous[0] in "BI" and previous[1] == label:  # continues the span
            previous = current
            continue
        if previous != _OUTSIDE_TAG and (not is_strict or _follows_scheme(split, start, k, scheme)):
            spans.append(Span(start, k, previous[1]))
        start, previous = k, current
    return tuple(spans)


def _follows_scheme(split: Sequence[SplitTag], start: int, end: int, scheme: Scheme) -> bool:
    """Whether the span from ``start`` to ``end`` starts and ends with the letters that the scheme requires."""
    first, last = split[start][0], split[end - 1][0]
    if scheme == "IOB1":
        return first == "I" or (start > 0 and split[start - 1][1] == split[start][1])
    if scheme == "IOB2":
        return first == "B"
    return first == "S" or (first, last) == ("B", "E")


def encode_spans(spans: Sequence[Span], n: int, scheme: Scheme) -> tuple[str, ...]:
    """Return tags for ``n`` tokens that mark ``spans``, which may be in any order."""
    _check_span_scheme(scheme)
    tags = [OUTSIDE] * n
    previous: Span | None = None
    for span in sorted(spans):
        if not 0 <= span.start < span.end <= n:
            raise DataError(f"{_describe(span)}: start must be before the end, and both must be within {n} tokens")
        if previous is not None and span.start < previous.end:
            raise DataError(f"spans must not overlap; found {_describe(previous)} and {_describe(span)}")
        if not span.label:
            raise DataError(f"{_describe(span)}: cannot write a span without a label as tags")
        letters = ["I"] * (span.end - span.start)
        if scheme != "IOB1" or (previous and (previous.end, previous.label) == (span.start, span.label)):
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "E" if len(letters) > 1 else "S"
        tags[span.start : span.end] = [f"{letter}-{span.label}" for letter in letters]
        previous = span
    return tuple(tags)


def convert_tags(tags: Sequence[str], source: Scheme, target: Scheme) -> tuple[str, ...]:
    """Convert tags to another scheme; the result follows ``target`` even if the tags do not follow ``source``."""
    if source == target == "plain":
        return tuple(tags)
    return encode_spans(decode_spans(tags, source), len(tags), target)


def build_transitions(tags: Sequence[str], scheme: Scheme) -> Transitions:
    """Return the transitions between tags that a scheme allows; plain tags allow all transitions."""
    n = len(tags)
    if scheme == "plain":
        return Transitions(np.ones((n, n), bool), np.ones(n, bool), np.ones(n, bool))
    split = _split_tags(tags, scheme, is_strict=True)
    between = [[_may_follow(first, second, scheme) for second in split] for first in split]
    return Transitions(
        between=np.array(between, bool).reshape(n, n),
        # the start and the end of a sentence count as O
        start=np.array([_may_follow(_OUTSIDE_TAG, tag, scheme) for tag in split], bool),
        end=np.array([_may_follow(tag, _OUTSIDE_TAG, scheme) for tag in split], bool),
    )


def _may_follow(previous: SplitTag, current: SplitTag, scheme: Scheme) -> bool:
    is_same_label = previous[0] != OUTSIDE and previous[1] == current[1]
    if scheme == "IOB1":
        return current[0] != "B" or is_same_label
    if scheme == "IOB2":
        return current[0] != "I" or is_same_label
    if previous[0] in "BI":  # an open span of BIOES continues until its E
        return current[0] in "IE" and is_same_label
    return current[0] in "OBS"


def _split_tags(tags: Sequence[str], scheme: Scheme, *, is_strict: bool = False) -> list[SplitTag]:
    _check_span_scheme(scheme)
    letters = _SCHEME_LETTERS[scheme] if is_strict else "OBIES"
    split: list[SplitTag] = []
    for number, tag in enumerate(tags, start=1):
        pair = _split_tag(tag)
        if pair is None or pair[0] not in letters:
            expected = ", ".join(f"{letter}-" for letter in letters[1:])
            raise DataError(f"tag {number} must be {OUTSIDE}, or one of {expected} with a label; found {tag[:40]!r}")
        split.append(pair)
    return split


@lru_cache(maxsize=4096)  # a file has few different tags
def _split_tag(tag: str) -> SplitTag | None:
    """Split a tag into a letter and a label; return None for a plain tag."""
    if tag == OUTSIDE:
        return _OUTSIDE_TAG
    match = _TAG.fullmatch(tag)
    return None if match is None else (_MEANINGS[match[1]], match[2])


def _check_span_scheme(scheme: str) -> None:
    if scheme == "plain":
        raise ConfigError("tag scheme must be IOB1, IOB2 or BIOES; found plain tags, which mark no spans")
    if scheme not in _SCHEME_LETTERS:
        raise ConfigError(f"tag scheme must be one of {', '.join(get_args(Scheme))}; found {scheme!r}")


def _describe(span: Span) -> str:
    return f"span {span.start}-{span.end} {span.label[:40]!r}"
