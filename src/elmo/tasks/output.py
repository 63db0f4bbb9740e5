"""Write predictions to files: JSON lines, columns, tables, lines of text or SQuAD JSON.

The suffix of the file selects the format. ``.jsonl`` contains all information and works for every kind of task; the
other formats are those of common evaluation tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from elmo.errors import OutputError
from elmo.storage.atomic import atomic_file, check_output_file, make_parents
from elmo.storage.files import format_path
from elmo.tasks.data.coreference import write_coreference
from elmo.tasks.data.examples import (
    Document,
    LabeledText,
    Predicate,
    Question,
    SourceText,
    Span,
    TaggedSentence,
    TextPair,
)
from elmo.tasks.data.roles import VERB
from elmo.text.lines import escape_field

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "tagging": (".jsonl", ".conll", ".tsv"),
    "classification": (".jsonl", ".tsv"),
    "entailment": (".jsonl", ".tsv"),
    "similarity": (".jsonl", ".tsv"),
    "answers": (".jsonl", ".json", ".tsv"),
    "roles": (".jsonl", ".conll"),
    "coreference": (".jsonl", ".conll"),
    "translation": (".jsonl", ".txt", ".tsv"),
}
_COLUMNS = {  # the readers of tables recognize the names of labels, scores and texts
    "classification": ("label", "probability", "text"),
    "entailment": ("label", "probability", "sentence1", "sentence2"),
    "similarity": ("score", "sentence1", "sentence2"),
    "answers": ("id", "answer", "probability", "question"),
    "translation": ("source", "target"),
}
_INVALID_IN_CELL = re.compile("[\t\n\r\ud800-\udfff]")  # UTF-8 cannot encode lone surrogates


def check_output(path: Path, kind: str, *, inputs: Iterable[str | Path] = ()) -> None:
    """Raise ``OutputError`` if predictions for a kind of task cannot be written to ``path``."""
    known = SUFFIXES[kind]
    if path.suffix.lower() not in known:
        raise OutputError(
            f"{format_path(path)}: the file name for predictions of {kind} must end in {', '.join(known)}; "
            f"found {path.suffix!r}"
        )
    check_output_file(path, inputs=inputs)


def write_predictions(path: Path, kind: str, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Write examples with their predictions to a file, which appears only when it is complete.

    Args:
        path: The file; its suffix selects the format.
        kind: Kind of task, such as "tagging".
        pairs: Pairs of an example and its prediction.

    Example:
        >>> pairs = predict("tagger.safetensors", text=["She flew to Paris ."])
        >>> write_predictions(Path("tags.jsonl"), "tagging", pairs)
    """
    check_output(path, kind)
    make_parents(path)
    suffix = path.suffix.lower()
    if suffix == ".conll" and kind == "coreference":
        documents = (replace(document, clusters=prediction.clusters) for document, prediction in pairs)
        write_coreference(documents, path)
        return
    if suffix == ".jsonl":
        lines = (json.dumps(to_record(*pair), ensure_ascii=False) for pair in pairs)
    elif suffix == ".json":
        lines = _squad_lines(pairs)
    elif suffix == ".txt":
        lines = (prediction.text for _, prediction in pairs)
    elif kind == "tagging":
        lines = _tag_lines(pairs)
    elif kind == "roles":
        lines = _role_lines(pairs)
    else:
        rows = (_table_row(*pair) for pair in pairs)
        lines = ("\t".join(map(escape_field, cells)) for cells in chain([_COLUMNS[kind]], rows))
    with (
        atomic_file(path) as temporary,
        # a lone surrogate is written as in JSON, for example as \udc80
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        file.writelines(f"{line}\n" for line in lines)


def to_record(example: Any, prediction: Any) -> dict[str, Any]:
    """Return an example and its prediction as a JSON object; the correct result, if known, is stored as ``gold``."""
    match example:
        case TaggedSentence(words, tags):
            inputs, gold = {"words": words}, tags
        case LabeledText(words, label):
            inputs, gold = {"words": words}, label
        case TextPair(first, second, label, score):
            inputs, gold = ({"first": first, "second": second}, score if hasattr(prediction, "score") else label)
        case Question(id_, question, answers=answers):
            inputs, gold = {"id": id_, "question": question}, answers or None
        case Predicate(words, predicate, roles):
            inputs = {"words": words, "predicate": predicate}
            gold = None if roles is None else [_span(span) | {"role": span.label} for span in roles]
        case SourceText(source, target):
            inputs, gold = {"source": source}, target
        case Document(name, text, clusters):
            inputs = {"name": name, "sentences": text}
            gold = None if clusters is None else [[_span(span) for span in cluster] for cluster in clusters]
        case _:
            raise TypeError(f"expected an example of a task; found {type(example).__name__}")
    return {**inputs, **prediction.to_json(), **({} if gold is None else {"gold": gold})}


def _squad_lines(pairs: Iterable[tuple[Question, Any]]) -> Iterator[str]:
    """Yield one line: a JSON object that maps question ids to answers."""
    yield json.dumps({question.id: answer.text for question, answer in pairs}, ensure_ascii=False)


def _span(span: Span) -> dict[str, Any]:
    return {"start": span.start, "end": span.end}


def _tag_lines(pairs: Iterable[tuple[TaggedSentence, Any]]) -> Iterator[str]:
    """Yield a line with each word and its tag, and an empty line after each sentence."""
    for sentence, prediction in pairs:
        for word, tag in zip(sentence.words, prediction.tags, strict=True):
            yield f"{_cell(word)}\t{_cell(tag)}"
        yield ""


def _role_lines(pairs: Iterable[tuple[Predicate, Any]]) -> Iterator[str]:
    """Yield PropBank columns: word, tag, lemma, predicate, and one column of brackets per predicate.

    Tags and lemmas are not known and are written as ``-``. Sentences without a predicate are not written.
    """
    for group in _group_by_sentence(pairs):
        words = group[0][0].words
        predicates = {example.predicate for example, _ in group}
        columns = [_brackets(roles.roles, example.predicate, len(words)) for example, roles in group]
        for k, word in enumerate(words):
            predicate = _cell(word) if k in predicates else "-"
            yield "\t".join([_cell(word), "-", "-", predicate, *(column[k] for column in columns)])
        yield ""


def _group_by_sentence(pairs: Iterable[tuple[Predicate, Any]]) -> Iterator[list[tuple[Predicate, Any]]]:
    """Group consecutive pairs with the same sentence; each group is sorted by the position of the predicate."""
    group: list[tuple[Predicate, Any]] = []
    for pair in pairs:
        example = pair[0]
        if group and (
            (example.words, example.location) != (group[0][0].words, group[0][0].location)
            or any(example.predicate == other.predicate for other, _ in group)
        ):
            yield sorted(group, key=lambda pair: pair[0].predicate)
            group = []
        group.append(pair)
    if group:
        yield sorted(group, key=lambda pair: pair[0].predicate)


def _brackets(roles: Sequence[Span], predicate: int, n: int) -> list[str]:
    """Return cells such as ``(ARG0*``, ``*``, ``*)``, ``(V*)``; a span that contains the predicate is split."""
    cells = ["*"] * n
    for span in (*(part for role in roles for part in _split_at(role, predicate)),
                 Span(predicate, predicate + 1, VERB)):  # fmt: skip
        cells[span.start] = f"({_cell(span.label)}{cells[span.start]}"
        cells[span.end - 1] += ")"
    return cells


def _split_at(span: Span, predicate: int) -> list[Span]:
    if not span.start <= predicate < span.end:
        return [span]
    before, after = Span(span.start, predicate, span.label), Span(predicate + 1, span.end, span.label)
    if before.start < before.end:
        after = replace(after, label=f"C-{span.label}")
    return [part for part in (before, after) if part.start < part.end]


def _cell(text: str) -> str:
    if not text.strip(" ") or _INVALID_IN_CELL.search(text):
        raise OutputError(
            f"cannot write {text[:40]!r} to a column: it must not be blank or contain tabs, line breaks or lone "
            "surrogates; write a .jsonl file instead"
        )
    return text


def _table_row(example: Any, prediction: Any) -> tuple[str, ...]:
    if isinstance(example, Question):
        text, probability = prediction.answers[0]
        return example.id, text, f"{probability:.4f}", " ".join(example.question)
    if isinstance(example, SourceText):
        return " ".join(example.source), prediction.text
    texts = [" ".join(words) for words in example.sentences]
    if hasattr(prediction, "score"):
        return f"{prediction.score:.4f}", *texts
    return prediction.label, f"{prediction.probabilities[prediction.label]:.4f}", *texts
