"""Read and write documents with coreference clusters in the CoNLL-2012 format.

In the last column, brackets with the number of a cluster mark where its mentions start and end: ``(0``, ``0)``,
``(0)``, ``(0|(1)``. For other tokens, the column is ``-``, ``_`` or empty. The name of a document includes its part,
unless the part is 000: "bc/cctv_0001; part 003".
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
    Tokenize,
    TokenRow,
    find_files,
    guess_separator,
    is_blank,
    locate,
    open_lines,
    read_rows,
    split_words,
)
from elmo.text.lines import Line

_BEGIN = re.compile(r"#begin document\s*(?:\((.*)\)|(.*?))\s*(?:;\s*part\s+([0-9]{1,9}))?\s*")
_PART = re.compile(r"(.*); part ([0-9]{1,9})", re.DOTALL)
_FIRST_PART = "000"
_BRACKET = re.compile(r"(\()?([^()|\s]+)(\))?")
_EMPTY = ("", "-", "_", "*")
_UNWRITABLE = re.compile("[\t\n\r\ud800-\udfff]")  # UTF-8 cannot encode lone surrogates
_WORD, _SPEAKER, _MIN_COLUMNS = 3, 9, 12


def read_coreference(paths: Paths, *, is_labeled: bool = True, tokenize: Tokenize = WHITESPACE) -> Iterator[Document]:
    """Yield the documents of CoNLL-2012 files; each part of a document is a separate ``Document``.

    Args:
        paths: Files, folders or globs; "-" is stdin.
        is_labeled: Whether to read clusters. If false, a file that does not start with ``#begin document`` is read as
            one document: text with one sentence per line.
        tokenize: Function that splits the lines of a text into words.
    """
    for file in find_files(paths):
        with open_lines(file) as (first, lines):
            if is_labeled or first.text.startswith("#begin document"):
                for begin, inside in _split_documents(lines):
                    yield _read_document(begin, inside, is_labeled=is_labeled)
            else:
                filled = (line for line in lines if not is_blank(line.text))
                text = [split_words(line.text, tokenize, what="line", location=locate(line)) for line in filled]
                yield Document(first.path, tuple(text), None, None, locate(first))


def _split_documents(lines: Iterator[Line]) -> Iterator[tuple[Line, list[Line]]]:
    """Yield the ``#begin document`` line of each document, and the lines up to its ``#end document``."""
    begin: Line | None = None
    inside: list[Line] = []
    for line in lines:
        if line.text.startswith("#begin document"):
            if begin is not None:
                raise DataError(
                    f"{locate(line)}: expected #end document for the document in line {begin.number}; "
                    "found #begin document"
                )
            begin, inside = line, []
        elif line.text.startswith("#end document"):
            if begin is None:
                raise DataError(f"{locate(line)}: expected #begin document before #end document; found none")
            yield begin, inside
            begin = None
        elif begin is not None:
            inside.append(line)
        elif not is_blank(line.text):
            raise DataError(f"{locate(line)}: expected '#begin document (name); part 000'; found {line.text[:40]!r}")
    if begin is not None:
        raise DataError(f"{locate(begin)}: expected #end document; found the end of the file")


def _read_document(begin: Line, lines: Sequence[Line], *, is_labeled: bool) -> Document:
    location = locate(begin)
    match = _BEGIN.fullmatch(begin.text)
    if match is None or not (match[1] or match[2]):
        raise DataError(f"{location}: expected '#begin document (name); part 000'; found {begin.text[:60]!r}")
    name = match[1] or match[2]
    name = name if match[3] in (None, _FIRST_PART) else f"{name}; part {match[3]}"
    first = next((line for line in lines if not is_blank(line.text)), None)
    if first is None:
        raise DataError(f"{location}: expected sentences in document {name[:60]!r}; found none")
    sentences = list(read_rows(lines, separator=guess_separator(first.text)))
    n_needed = _MIN_COLUMNS if is_labeled else _WORD + 1
    for sentence in sentences:
        if (n := len(sentence[0].columns)) < n_needed:
            raise DataError(f"{sentence[0].location}: expected at least {n_needed} columns; found {n}")
    return Document(
        name,
        tuple(tuple(row.get(_WORD, what="word") for row in sentence) for sentence in sentences),
        _read_clusters(sentences) if is_labeled else None,
        _read_speakers([row for sentence in sentences for row in sentence]),
        location,
    )


def _read_speakers(rows: Sequence[TokenRow]) -> tuple[str, ...] | None:
    if any(len(row.columns) < _MIN_COLUMNS for row in rows):
        return None
    speakers = tuple(row.columns[_SPEAKER].strip() for row in rows)
    return None if {*speakers} <= {*_EMPTY} else speakers


def _read_clusters(sentences: Sequence[Sequence[TokenRow]]) -> tuple[tuple[Span, ...], ...]:
    """Read the clusters from the last column; a closing bracket ends the mention that its cluster opened last."""
    opened: defaultdict[str, list[tuple[int, Location]]] = defaultdict(list)
    clusters: defaultdict[str, set[Span]] = defaultdict(set)
    cluster_of: dict[Span, str] = {}
    token = 0
    for sentence in sentences:
        for row in sentence:
            cell = row.columns[-1].strip()
            for bracket in [] if cell in _EMPTY else cell.split("|"):
                match = _BRACKET.fullmatch(bracket.strip())
                if match is None or not (match[1] or match[3]):
                    raise DataError(
                        f"{row.location}: expected brackets such as '(0', '0)' or '(0|(1)'; found {cell[:40]!r}"
                    )
                id_ = match[2]
                if match[1]:
                    opened[id_].append((token, row.location))
                if match[3]:
                    if not opened[id_]:
                        raise DataError(
                            f"{row.location}: expected an opening bracket {f'({id_[:40]}'!r} before "
                            f"{bracket[:40]!r}; found none"
                        )
                    start, _ = opened[id_].pop()
                    span = Span(start, token + 1)
                    if (other := cluster_of.setdefault(span, id_)) != id_:
                        raise DataError(
                            f"{row.location}: expected each mention in one cluster; found the same mention in the "
                            f"clusters {other[:40]!r} and {id_[:40]!r}: {cell[:40]!r}"
                        )
                    clusters[id_].add(span)
            token += 1
        for id_, starts in opened.items():
            if starts:
                raise DataError(
                    f"{starts[-1][1]}: expected the mention {f'({id_[:40]}'!r} to end in the same sentence; found no "
                    f"{f'{id_[:40]})'!r}"
                )
    return tuple(sorted(tuple(sorted(spans)) for spans in clusters.values()))


def write_coreference(documents: Iterable[Document], path: str | Path) -> None:
    """Write documents atomically to a CoNLL-2012 file with twelve columns separated by tabs."""
    with atomic_file(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for document in documents:
            file.writelines(f"{line}\n" for line in _format_document(document))


def _format_document(document: Document) -> Iterator[str]:
    match = _PART.fullmatch(document.name)
    name, part = (match[1], match[2]) if match else (document.name, _FIRST_PART)
    _check_text(name, document)
    _check_mentions(document)
    brackets = _format_brackets(document)
    token = 0
    yield f"#begin document ({name}); part {part}"
    for sentence in document.text:
        for number, word in enumerate(sentence):
            _check_text(word, document)
            speaker = document.speakers[token] if document.speakers else "-"
            _check_text(speaker, document)
            columns = [name, str(int(part)), str(number), word, *"-----", speaker, "-", brackets[token]]
            yield "\t".join(columns)
            token += 1
        yield ""
    yield "#end document"


def _format_brackets(document: Document) -> list[str]:
    """Return the content of the last column for each token.

    The order of the brackets in a column is: mentions that end (the longest last), mentions of one token, mentions
    that start (the longest first).
    """
    cells: list[list[str]] = [[] for sentence in document.text for _ in sentence]
    mentions = [(span, id_) for id_, spans in enumerate(document.clusters or ()) for span in spans]
    longer = [(span, id_) for span, id_ in mentions if span.end - span.start > 1]
    for span, id_ in sorted(longer, key=lambda mention: -mention[0].start):
        cells[span.end - 1].append(f"{id_})")
    for span, id_ in mentions:
        if span.end - span.start == 1:
            cells[span.start].append(f"({id_})")
    for span, id_ in sorted(longer, key=lambda mention: -mention[0].end):
        cells[span.start].append(f"({id_}")
    return ["|".join(cell) or "-" for cell in cells]


def _check_mentions(document: Document) -> None:
    """Raise ``OutputError`` for mentions that brackets cannot represent.

    These are mentions that occur twice, that cross the end of a sentence, or that cross another mention of the same
    cluster, because it is then unclear which bracket closes which mention.
    """
    sentence_ends = list(accumulate(map(len, document.text)))
    cluster_of: dict[tuple[int, int], int] = {}
    for id_, spans in enumerate(document.clusters or ()):
        open_ends: list[int] = []  # ends of the mentions that may contain the next one
        for span in sorted(spans, key=lambda span: (span.start, -span.end)):
            sentence = bisect_right(sentence_ends, span.start)
            while open_ends and open_ends[-1] <= span.start + 1:
                open_ends.pop()
            rule = ""
            if (span.start, span.end) in cluster_of:
                rule = f"occur once (this one is also in cluster {cluster_of[span.start, span.end]})"
            elif not 0 <= span.start < span.end or sentence == len(sentence_ends) or span.end > sentence_ends[sentence]:
                rule = "be inside one sentence"
            elif open_ends and open_ends[-1] < span.end:
                rule = "not cross another mention of the same cluster"
            if rule:
                tokens = f"tokens {span.start} to {span.end}"
                raise OutputError(f"{document.name[:60]}: mentions must {rule}; found {tokens} in cluster {id_}")
            cluster_of[span.start, span.end] = id_
            open_ends.append(span.end)


def _check_text(text: str, document: Document) -> None:
    if is_blank(text) or _UNWRITABLE.search(text):
        raise OutputError(
            f"{document.name[:60]!r}: words, speakers and names must not be blank or contain tabs, line breaks or "
            f"lone surrogates; found {text[:40]!r}"
        )
