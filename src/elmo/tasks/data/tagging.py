"""The tags of a sentence in, its spans out, and back: IOB1, IOB2, BIOES, and plain tags, which have no spans.

IOB2 (BIO) opens every span with B-. IOB1 does so only where a span of the same label stands right before it;
others open with I-. BIOES ends a span of several tokens with E- and marks one of a single token S-. BILOU
(L, U) and BMEWO (M, E, W) are BIOES in other letters: they are read as such and written as BIOES, which
``replace_letters`` turns back.

Files with a word and its tag a line (CoNLL columns, CoNLL-U) in, tagged sentences out.

Columns are parted by tabs where the first row has any, else by spaces, and every row of a file has as many
as the first. CoNLL-U columns go by their names; its ranges and empty nodes are no words, and its ``_`` is a
tag as any other. ``-DOCSTART-`` rows are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, Span, TaggedSentence
from elmo.tasks.data.files import (
    WHITESPACE,
    Paths,
    Row,
    Separator,
    Tokenize,
    require_examples,
    by,
    cell,
    split_columns,
    find_files,
    is_blank,
    listed,
    opened,
    locate,
    read_rows,
    guess_separator,
    get_suffix,
    split_words,
)
from elmo.text.lines import Line, Source

Scheme = Literal["IOB1", "IOB2", "BIOES", "plain"]
Part = tuple[str, str]  # B, I, E, S or O, and the label

OUTSIDE = "O"
_OUT: Part = (OUTSIDE, "")
_LETTERS = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S", "W": "S"}
_TAG = re.compile(r"([BIMELSUW])-(.+)", re.DOTALL)
_USED = {"IOB1": "OBI", "IOB2": "OBI", "BIOES": "OBIES"}  # what a scheme's tags begin with


@dataclass(frozen=True, eq=False)
class Transitions:
    """Which tags of a scheme may stand where; "tag" counts them in the order they were given."""

    between: NDArray[np.bool_]  # (tag, tag): whether the second may follow the first
    start: NDArray[np.bool_]  # (tag,): whether it may open a sentence
    end: NDArray[np.bool_]  # (tag,): whether it may close a sentence


def detect_scheme(tag_sequences: Sequence[Sequence[str]]) -> Scheme:
    """The scheme that a file's tags follow; plain where one of them is neither O nor a letter, - and a label.

    Where some spans open with B- and some with I-, though IOB1 has no use for that B-, it is IOB2 with
    mistakes. Tags that are all O are IOB2.
    """
    found = {tag for tags in tag_sequences for tag in tags}
    if not found:
        raise DataError("expected tags to tell a scheme from, found none")
    parts = [_part(tag) for tag in found]
    if None in parts:
        return "plain"
    if any(tag != OUTSIDE and tag[0] not in "BI" for tag in found):
        return "BIOES"
    return _iob1_or_iob2(tag_sequences)


def is_span_tag(tag: str) -> bool:
    """Whether it is O, or a letter that schemes have, - and a label."""
    return _part(tag) is not None


def detect_letters(tag_sequences: Sequence[Sequence[str]]) -> str:
    """What tags have in place of B, I, E and S, the commonest of each: BIES, BILU or BMEW, say."""
    counts = Counter(tag[0] for tags in tag_sequences for tag in tags if tag != OUTSIDE and _part(tag))
    usual = "BILU" if counts["L"] + counts["U"] > counts["E"] + counts["S"] + counts["W"] else "BIES"
    groups = ([first, *_alike(letter)] for first, letter in zip(usual, "BIES", strict=True))
    return "".join(max(group, key=lambda letter: counts[letter]) for group in groups)  # the first of equals


def replace_letters(tags: Sequence[str], letters: str) -> tuple[str, ...]:
    """Tags of BIOES with those letters in place of B, I, E and S."""
    given = dict(zip("BIES", letters, strict=True))
    return tuple(tag if tag == OUTSIDE else given[tag[0]] + tag[1:] for tag in tags)


def decode_spans(tags: Sequence[str], scheme: Scheme, *, is_strict: bool = False) -> tuple[Span, ...]:
    """The spans that tags mark, in order.

    Tags that break the scheme are read as conlleval reads them: whatever cannot go on a span opens one.
    ``is_strict`` takes only spans that follow the scheme from their first tag to their last.
    """
    parts = _parts(tags, scheme, is_strict=is_strict)
    spans: list[Span] = []
    begin, before = 0, _OUT
    for k, part in enumerate([*parts, _OUT]):
        letter, label = part
        if letter in "IE" and before[0] in "BI" and before[1] == label:
            before = part  # goes on
            continue
        if before != _OUT and (not is_strict or _is_whole(parts, begin, k, scheme)):
            spans.append(Span(begin, k, before[1]))
        begin, before = k, part
    return tuple(spans)


def encode_spans(spans: Sequence[Span], n: int, scheme: Scheme) -> tuple[str, ...]:
    """The tags of ``n`` tokens that mark ``spans``, which may come in any order."""
    _known(scheme)
    tags = [OUTSIDE] * n
    before: Span | None = None
    for span in sorted(spans):
        if not 0 <= span.start < span.end <= n:
            raise DataError(f"{_shown(span)}: expected a start before an end within {n} tokens")
        if before is not None and span.start < before.end:
            raise DataError(f"{_shown(span)}: expected spans that do not overlap, found {_shown(before)}")
        if not span.label:
            raise DataError(f"{_shown(span)}: expected a label to write as a tag, found none")
        follows_its_like = before is not None and before.end == span.start and before.label == span.label
        letters = ["I"] * (span.end - span.start)
        if scheme != "IOB1" or follows_its_like:
            letters[0] = "B"
        if scheme == "BIOES":
            letters[-1] = "E" if len(letters) > 1 else "S"
        tags[span.start : span.end] = [f"{letter}-{span.label}" for letter in letters]
        before = span
    return tuple(tags)


def convert_tags(tags: Sequence[str], source: Scheme, target: Scheme) -> tuple[str, ...]:
    """The same spans in another scheme; tags that broke ``source`` keep to ``target``."""
    if source == target == "plain":
        return tuple(tags)
    return encode_spans(decode_spans(tags, source), len(tags), target)


def build_transitions(tags: Sequence[str], scheme: Scheme) -> Transitions:
    """What a decoder may do so that its tags always follow the scheme; plain tags may all follow another."""
    n = len(tags)
    if scheme == "plain":
        return Transitions(np.ones((n, n), bool), np.ones(n, bool), np.ones(n, bool))
    parts = _parts(tags, scheme, is_strict=True)
    between = [[_may_follow(first, second, scheme) for second in parts] for first in parts]
    return Transitions(
        between=np.array(between, bool).reshape(n, n),
        # before and after a sentence things are as beside an O
        start=np.array([_may_follow(_OUT, part, scheme) for part in parts], bool),
        end=np.array([_may_follow(part, _OUT, scheme) for part in parts], bool),
    )


def _may_follow(before: Part, here: Part, scheme: Scheme) -> bool:
    is_same = before[0] != OUTSIDE and before[1] == here[1]
    if scheme == "IOB1":
        return here[0] != "B" or is_same
    if scheme == "IOB2":
        return here[0] != "I" or is_same
    if before[0] in "BI":  # an open span of BIOES goes on until its E
        return here[0] in "IE" and is_same
    return here[0] in "OBS"


def _is_whole(parts: Sequence[Part], begin: int, end: int, scheme: Scheme) -> bool:
    """Whether a span that goes on from ``begin`` to ``end`` opens and closes as the scheme wants."""
    first, last = parts[begin][0], parts[end - 1][0]
    if scheme == "IOB1":
        is_after_its_like = begin > 0 and parts[begin - 1][1] == parts[begin][1]
        return first == "I" or is_after_its_like
    if scheme == "IOB2":
        return first == "B"
    return first == "S" or (first, last) == ("B", "E")


def _iob1_or_iob2(tag_sequences: Sequence[Sequence[str]]) -> Scheme:
    opens_with_inside = False
    for tags in tag_sequences:
        before = _OUT
        for part in _parts(tags, "IOB2"):
            if part[0] != OUTSIDE and before[1] != part[1]:
                if part[0] == "B":  # IOB1 would have written I
                    return "IOB2"
                opens_with_inside = True
            before = part
    return "IOB1" if opens_with_inside else "IOB2"


def _parts(tags: Sequence[str], scheme: Scheme, *, is_strict: bool = False) -> list[Part]:
    _known(scheme)
    letters = _USED[scheme] if is_strict else "OBIES"
    parts: list[Part] = []
    for k, tag in enumerate(tags):
        part = _part(tag)
        if part is None or part[0] not in letters:
            expected = ", ".join(f"{letter}-" for letter in letters[1:])
            raise DataError(
                f"tag {k + 1}: expected {OUTSIDE} or one of {expected} and a label, found {tag[:40]!r}"
            )
        parts.append(part)
    return parts


@lru_cache(maxsize=4096)  # a file has few tags, each of them often
def _part(tag: str) -> Part | None:
    """None: no tag of a scheme."""
    if tag == OUTSIDE:
        return _OUT
    match = _TAG.fullmatch(tag)
    return None if match is None else (_LETTERS[match[1]], match[2])


def _known(scheme: str) -> None:
    if scheme == "plain":
        raise ConfigError("plain tags mark no spans: expected IOB1, IOB2 or BIOES")
    if scheme not in _USED:
        raise ConfigError(f"expected one of {', '.join(get_args(Scheme))} as a scheme, found {scheme!r}")


def _alike(letter: str) -> list[str]:
    return [one for one, meant in _LETTERS.items() if meant == letter]


def _shown(span: Span) -> str:
    return f"span {span.start}-{span.end} {span.label[:40]!r}"


TaggedFormat = Literal["auto", "columns", "conllu", "text"]
Column = int | str
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_FIRST_ID = re.compile(r"1|1-[0-9]+|0\.1")
_NO_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a range that words spell out, or an empty node
_DOCSTART = "-DOCSTART-"


def read_tagged(
    paths: Paths,
    *,
    words: Column | None = None,
    tags: Column | None = None,
    separator: Separator | None = None,
    file_format: TaggedFormat = "auto",
    is_labeled: bool = True,
    tokenize: Tokenize = WHITESPACE,
) -> Iterator[TaggedSentence]:
    """The sentences of column files with the tags of one column.

    Columns count from 0, or from the end with -1; in CoNLL-U they have names (``upos``, ``xpos``,
    ``feats``, ``lemma``, ``deprel``, …). By default words stand in the first column and tags in the last,
    in CoNLL-U in ``form`` and ``upos``. A file is CoNLL-U if its name ends in ``.conllu`` or its first row
    has ten columns of which the first is the number 1.

    ``is_labeled=False`` needs no tags, and gives none. A file is then text with a sentence a line, cut by
    ``tokenize``, unless it is CoNLL-U, its name ends in ``.conll`` or the like, its first line has a tab or
    is ``-DOCSTART-``, ``separator`` or ``words`` is given, or ``file_format`` says otherwise.
    """
    if file_format not in get_args(TaggedFormat):
        expected = ", ".join(get_args(TaggedFormat))
        raise ConfigError(f"file format: expected one of {expected}, found {str(file_format)!r:.40}")
    if file_format == "text" and is_labeled:
        raise ConfigError("file format: text has no tags; read it with is_labeled=False, or give columns")
    if separator not in (None, "\t", " "):
        raise ConfigError(f"separator: expected a tab, a space or None, found {separator!r:.40}")
    for file in find_files(paths):
        first, lines = opened(file)
        kind = file_format
        if kind == "auto":
            has_columns = is_labeled or words is not None or separator is not None
            start = _up_to_a_row(lines)
            kind = _kind(file, start[-1].text, may_be_text=not has_columns)
            lines = chain(start, lines)
        if kind == "text":
            sentences = _of_text(lines, tokenize)
        elif kind == "conllu":
            wanted = _conllu_column(tags, "upos") if is_labeled else None
            sentences = _of_conllu(lines, _conllu_column(words, "form"), wanted)
        else:
            sentences = _of_columns(lines, words, tags, separator=separator, is_labeled=is_labeled)
        has_tags = False
        for sentence in require_examples(sentences, f"{first.path}: expected sentences, found none"):
            has_tags = has_tags or set(sentence.tags or "?") != {"_"}
            yield sentence
        if kind == "conllu" and not has_tags:
            raise DataError(f"{first.path}: expected tags in column {tags or 'upos'}, found only _")


read_tagged = listed(read_tagged)


def _up_to_a_row(lines: Iterator[Line]) -> list[Line]:
    """The lines that may be comments of CoNLL-U, and the one after them."""
    start: list[Line] = []
    for line in lines:
        start.append(line)
        if not is_blank(line.text) and ("\t" in line.text or not line.text.startswith("#")):
            break
    return start


def _kind(file: Source, first: str, *, may_be_text: bool) -> TaggedFormat:
    columns = first.split("\t")
    is_first_word = len(columns) == len(CONLLU) and _FIRST_ID.fullmatch(columns[0]) is not None
    if get_suffix(file) == ".conllu" or is_first_word:
        return "conllu"
    is_named = get_suffix(file) in (".conll", ".bio", ".iob", ".iob2", ".col")
    is_text = may_be_text and len(columns) == 1 and not first.startswith(_DOCSTART) and not is_named
    return "text" if is_text else "columns"


def _of_text(lines: Iterable[Line], tokenize: Tokenize) -> Iterator[TaggedSentence]:
    for line in lines:
        if not is_blank(line.text):
            place = locate(line)
            yield TaggedSentence(split_words(line.text, tokenize, what="line", place=place), None, place)


def _of_conllu(lines: Iterable[Line], words: int, tags: int | None) -> Iterator[TaggedSentence]:
    sentences = read_rows(
        lines, separator="\t", is_no_row=lambda text: text.startswith("#"), n_columns=len(CONLLU)
    )
    for all_rows in sentences:
        rows = [row for row in all_rows if not _NO_WORD.fullmatch(row.columns[0])]
        for number, row in enumerate(rows, start=1):
            if row.columns[0] != str(number):
                raise DataError(f"{row.place}: expected word {number}, found id {row.columns[0][:20]!r}")
        if rows:
            yield _sentence(rows, words, tags)


def _of_columns(
    lines: Iterator[Line],
    words: Column | None,
    tags: Column | None,
    *,
    separator: Separator | None,
    is_labeled: bool,
) -> Iterator[TaggedSentence]:
    first = next((line for line in lines if not _is_no_row(line.text)), None)
    if first is None:
        return
    separator = separator or guess_separator(first.text)
    n_columns = len(split_columns(first.text, separator))
    word_at = _column(0 if words is None else words, n_columns, what="words", place=locate(first))
    tag_at = None
    if is_labeled:
        tag_at = _column(-1 if tags is None else tags, n_columns, what="tags", place=locate(first))
    if word_at == tag_at:
        raise DataError(
            f"{locate(first)}: expected words and tags in two columns parted by {by(separator)}, found "
            f"both in column {word_at} of {n_columns}, counted from 0"
        )
    sentences = read_rows(
        chain([first], lines),
        separator=separator,
        is_no_row=_is_no_row,
        n_columns=n_columns,
        why=f", as in the file's first row (line {first.number})",
    )
    for rows in sentences:
        yield _sentence(rows, word_at, tag_at)


def _is_no_row(text: str) -> bool:
    return is_blank(text) or text.startswith(_DOCSTART)


def _column(column: Column, n: int, *, what: str, place: Location) -> int:
    if isinstance(column, str):
        raise DataError(
            f"{place}: expected CoNLL-U, whose columns have names, for {what} in {column[:40]!r}, found {n} "
            "columns; give a number"
        )
    if not -n <= column < n:
        raise DataError(f"{place}: expected a column {column}, counted from 0, of {what}, found {n} columns")
    return column % n


def _conllu_column(column: Column | None, usual: str) -> int:
    name = usual if column is None else column
    if isinstance(name, int) and -len(CONLLU) <= name < len(CONLLU):
        return name % len(CONLLU)
    if str(name).lower() not in CONLLU:
        raise ConfigError(f"column: CoNLL-U has {', '.join(CONLLU)} and 0..9, not {str(name)[:40]!r}")
    return CONLLU.index(str(name).lower())


def _sentence(rows: Sequence[Row], words: int, tags: int | None) -> TaggedSentence:
    return TaggedSentence(
        tuple(cell(row, words, what="word") for row in rows),
        None if tags is None else tuple(cell(row, tags, what="tag").strip() for row in rows),
        rows[0].place,
    )
