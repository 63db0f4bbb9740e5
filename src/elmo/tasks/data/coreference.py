"""CoNLL-2012 files in, documents with their clusters out; and back.

The last column opens and ends mentions by their cluster's number: ``(0``, ``0)``, ``(0)``, ``(0|(1)``; ``-``,
``_`` or nothing where there are none. A name keeps a part that is not 000: "bc/cctv_0001; part 003".
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from elmo.errors import DataError, OutputError
from elmo.storage.atomic import atomic_file
from elmo.tasks.data.examples import Document, Location, Span
from elmo.tasks.data.files import (
    WHITESPACE,
    Paths,
    Row,
    Tokenize,
    cell,
    find_files,
    is_blank,
    listed,
    opened,
    locate,
    read_rows,
    guess_separator,
    split_words,
)
from elmo.text.lines import Line

_BEGIN = re.compile(r"#begin document\s*(?:\((.*)\)|(.*?))\s*(?:;\s*part\s+([0-9]{1,9}))?\s*")
_PART = re.compile(r"(.*); part ([0-9]{1,9})", re.DOTALL)
_FIRST_PART = "000"  # as CoNLL-2012 writes it
_MARK = re.compile(r"(\()?([^()|\s]+)(\))?")
_NONE = ("", "-", "_", "*")
_UNWRITABLE = re.compile("[\t\n\r\ud800-\udfff]")  # UTF-8 has no lone surrogates
_WORD, _SPEAKER, _N_COLUMNS = 3, 9, 12  # of CoNLL-2012, at least so many


def read_coreference(
    paths: Paths, *, is_labeled: bool = True, tokenize: Tokenize = WHITESPACE
) -> Iterator[Document]:
    """The documents of CoNLL-2012 files, each part a document; spans count tokens from its beginning.

    ``is_labeled=False`` passes over the last column, and gives no clusters. A file that does not begin with
    ``#begin document`` is then a document of its own: text with a sentence a line, cut by ``tokenize``.
    """
    for file in find_files(paths):
        first, lines = opened(file)
        if is_labeled or first.text.startswith("#begin document"):
            for one in _documents(lines):
                yield _document(*one, is_labeled=is_labeled)
        else:
            text = tuple(
                split_words(line.text, tokenize, what="line", place=locate(line))
                for line in lines
                if not is_blank(line.text)
            )
            yield Document(first.path, text, None, None, locate(first))


read_coreference = listed(read_coreference)


def write_coreference(documents: Iterable[Document], path: str | Path) -> None:
    """Write documents as CoNLL-2012 in twelve columns separated by tabs, whole or not at all."""
    with atomic_file(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for document in documents:
            file.writelines(f"{line}\n" for line in _lines(document))


def _documents(lines: Iterator[Line]) -> Iterator[tuple[Line, list[Line]]]:
    """The first line of each document, and the lines between it and its end."""
    begin: Line | None = None
    inside: list[Line] = []
    for line in lines:
        if line.text.startswith("#begin document"):
            if begin is not None:
                raise DataError(
                    f"{locate(line)}: expected #end document of line {begin.number}, found a new one"
                )
            begin, inside = line, []
        elif line.text.startswith("#end document"):
            if begin is None:
                raise DataError(f"{locate(line)}: expected #begin document before its end, found none")
            yield begin, inside
            begin = None
        elif begin is not None:
            inside.append(line)
        elif not is_blank(line.text):
            raise DataError(
                f"{locate(line)}: expected #begin document (name); part 000, found {line.text[:40]!r}"
            )
    if begin is not None:
        raise DataError(f"{locate(begin)}: expected #end document after it, found the end of the file")


def _document(begin: Line, lines: Sequence[Line], *, is_labeled: bool) -> Document:
    place = locate(begin)
    match = _BEGIN.fullmatch(begin.text)
    if match is None or not (match[1] or match[2]):
        raise DataError(f"{place}: expected #begin document (name); part 000, found {begin.text[:60]!r}")
    name = match[1] or match[2]
    name = name if match[3] in (None, _FIRST_PART) else f"{name}; part {match[3]}"
    first = next((line for line in lines if not is_blank(line.text)), None)
    if first is None:
        raise DataError(f"{place}: expected sentences in document {name[:60]!r}, found none")
    sentences = list(read_rows(lines, separator=guess_separator(first.text)))
    n_needed = _N_COLUMNS if is_labeled else _WORD + 1
    for sentence in sentences:
        if (n := len(sentence[0].columns)) < n_needed:
            raise DataError(f"{sentence[0].place}: expected {n_needed} columns or more, found {n}")
    return Document(
        name,
        tuple(tuple(cell(row, _WORD, what="word") for row in sentence) for sentence in sentences),
        _clusters(sentences) if is_labeled else None,
        _speakers([row for sentence in sentences for row in sentence]),
        place,
    )


def _speakers(rows: Sequence[Row]) -> tuple[str, ...] | None:
    if any(len(row.columns) < _N_COLUMNS for row in rows):
        return None
    speakers = tuple(row.columns[_SPEAKER].strip() for row in rows)
    return None if {*speakers} <= {*_NONE} else speakers


def _clusters(sentences: Sequence[Sequence[Row]]) -> tuple[tuple[Span, ...], ...]:
    """Mentions by their marks; of two that are open, the one that was opened last ends first."""
    open_at: defaultdict[str, list[tuple[int, Location]]] = defaultdict(list)
    clusters: defaultdict[str, set[Span]] = defaultdict(set)
    cluster_of: dict[Span, str] = {}
    token = 0
    for sentence in sentences:
        for row in sentence:
            marks = row.columns[-1].strip()
            for mark in [] if marks in _NONE else marks.split("|"):
                match = _MARK.fullmatch(mark.strip())
                if match is None or not (match[1] or match[3]):
                    raise DataError(
                        f"{row.place}: expected marks such as (0, 0) or (0|(1), found {marks[:40]!r}"
                    )
                if match[1]:
                    open_at[match[2]].append((token, row.place))
                if match[3]:
                    if not open_at[match[2]]:
                        raise DataError(
                            f"{row.place}: expected a mention ({match[2]} before {mark}, found none open"
                        )
                    start, _ = open_at[match[2]].pop()
                    span = Span(start, token + 1)
                    if (other := cluster_of.setdefault(span, match[2])) != match[2]:
                        raise DataError(
                            f"{row.place}: expected a mention in one cluster, found the same in {other} and "
                            f"{match[2]}: {marks[:40]!r}"
                        )
                    clusters[match[2]].add(span)
            token += 1
        for id_, places in open_at.items():
            if places:
                raise DataError(
                    f"{places[-1][1]}: expected the mention ({id_} to end in its sentence, found no {id_})"
                )
    return tuple(sorted(tuple(sorted(spans)) for spans in clusters.values()))


def _lines(document: Document) -> Iterator[str]:
    match = _PART.fullmatch(document.name)
    name, part = (match[1], match[2]) if match else (document.name, _FIRST_PART)
    _check(name, document)
    marks = _marks(document)
    token = 0
    yield f"#begin document ({name}); part {part}"
    for sentence in document.text:
        for number, word in enumerate(sentence):
            _check(word, document)
            speaker = document.speakers[token] if document.speakers else "-"
            _check(speaker, document)
            columns = [name, str(int(part)), str(number), word, *"-----", speaker, "-", marks[token]]
            yield "\t".join(columns)
            token += 1
        yield ""
    yield "#end document"


def _marks(document: Document) -> list[str]:
    """The last column: mentions that end, longest last; of one token; that begin, longest first."""
    _refuse_mentions_given_twice(document)
    _refuse_what_marks_cannot_say(document)
    cells: list[list[str]] = [[] for sentence in document.text for _ in sentence]
    mentions = [(span, id_) for id_, spans in enumerate(document.clusters or ()) for span in spans]
    longer = [(span, id_) for span, id_ in mentions if span.end - span.start > 1]
    for span, id_ in sorted(longer, key=lambda one: -one[0].start):
        cells[span.end - 1].append(f"{id_})")
    for span, id_ in mentions:
        if span.end - span.start == 1:
            cells[span.start].append(f"({id_})")
    for span, id_ in sorted(longer, key=lambda one: -one[0].end):
        cells[span.start].append(f"({id_}")
    return ["|".join(marks) or "-" for marks in cells]


def _refuse_mentions_given_twice(document: Document) -> None:
    """What no reader would take back."""
    cluster_of: dict[tuple[int, int], int] = {}
    for id_, spans in enumerate(document.clusters or ()):
        for span in spans:
            other = cluster_of.get((span.start, span.end))
            if other is not None:
                raise OutputError(
                    f"{document.name[:60]}: expected each mention once, found tokens {span.start} to "
                    f"{span.end} in cluster {other} and again in cluster {id_}"
                )
            cluster_of[span.start, span.end] = id_


def _refuse_what_marks_cannot_say(document: Document) -> None:
    """Mentions that leave a sentence, and two of one cluster that cross: their ends would be confused."""
    ends = list(accumulate(map(len, document.text)))
    for id_, spans in enumerate(document.clusters or ()):
        around: list[int] = []  # where mentions end that the next may stand in
        for span in sorted(spans, key=lambda one: (one.start, -one.end)):
            sentence = bisect_right(ends, span.start)
            problem = ""
            if not 0 <= span.start < span.end or sentence == len(ends) or span.end > ends[sentence]:
                problem = "a mention within one sentence"
            while around and around[-1] <= span.start + 1:
                around.pop()
            if around and around[-1] < span.end:
                problem = problem or "mentions that do not cross"
            if problem:
                raise OutputError(
                    f"{document.name[:60]}: expected {problem} in cluster {id_}, found tokens "
                    f"{span.start} to {span.end}"
                )
            around.append(span.end)


def _check(text: str, document: Document) -> None:
    if is_blank(text) or _UNWRITABLE.search(text):
        raise OutputError(
            f"{document.name[:60]!r}: expected words, speakers and a name without tabs and line ends, found "
            f"{text[:40]!r}"
        )
