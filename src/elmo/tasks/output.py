"""Examples and what a task model says of them in, a file out: JSON lines, columns, a table or SQuAD's JSON.

The suffix is the format. ``.jsonl`` holds all that is known, for every kind; the others hold what the field's
own programs read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    LabelledText,
    Predicate,
    Question,
    Span,
    TaggedSentence,
    TextPair,
)
from elmo.tasks.data.roles import VERB
from elmo.text.lines import escaped

SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "tagging": (".jsonl", ".conll", ".tsv"),
    "classification": (".jsonl", ".tsv"),
    "entailment": (".jsonl", ".tsv"),
    "similarity": (".jsonl", ".tsv"),
    "answers": (".jsonl", ".json", ".tsv"),
    "roles": (".jsonl", ".conll"),
    "coreference": (".jsonl", ".conll"),
}
_UNWRITABLE = re.compile("[\t\n\r\ud800-\udfff]")  # in a column; UTF-8 has no lone surrogates


def check_output(path: Path, kind: str, *, inputs: Iterable[str | Path] = ()) -> None:
    """Refuse a name before anything is computed: one of no format that the kind has, or of an input."""
    known = SUFFIXES[kind]
    if path.suffix.lower() not in known:
        raise OutputError(f"{format_path(path)}: expected a name that ends in {', '.join(known)} for {kind}")
    if path.is_dir():
        raise OutputError(f"{format_path(path)}: expected a file name, found a folder")
    check_output_file(path)
    if path.resolve() in (Path(one).resolve() for one in inputs if one != "-"):
        raise OutputError(f"{format_path(path)}: is one of the inputs; put it elsewhere")


def write_predictions(path: Path, kind: str, *, examples: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Write what was said of each example, whole or not at all."""
    write_pairs(path, kind, zip(examples, predictions, strict=True))


def write_pairs(path: Path, kind: str, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Write examples, each with what was said of it, as they come; the file is whole or not there at all."""
    check_output(path, kind)
    make_parents(path)
    suffix = path.suffix.lower()
    if suffix == ".conll" and kind == "coreference":
        write_coreference((replace(document, clusters=one.clusters) for document, one in pairs), path)
        return
    if suffix == ".jsonl":
        lines = (json.dumps(record(*pair), ensure_ascii=False) for pair in pairs)
    elif suffix == ".json":
        lines = _answers(pairs)
    elif kind == "tagging":
        lines = _tagged(pairs)
    elif kind == "roles":
        lines = _roles(pairs)
    else:
        columns, row = _TABLES[kind]
        rows = (row(*pair) for pair in pairs)
        lines = ("\t".join(map(escaped, cells)) for cells in chain([columns], rows))
    with (
        atomic_file(path) as temporary,
        # a lone surrogate becomes \udc80, which is its escape in JSON, too
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        file.writelines(f"{line}\n" for line in lines)


def record(example: Any, prediction: Any) -> dict[str, Any]:
    """One example and what was said of it as JSON values; what is right under ``gold``, where it is known."""
    match example:
        case TaggedSentence(words, tags):
            asked, gold = {"words": words}, tags
        case LabelledText(words, label):
            asked, gold = {"words": words}, label
        case TextPair(first, second, label, score):
            asked, gold = {"first": first, "second": second}, score if hasattr(prediction, "score") else label
        case Question(id_, question, answers=answers):
            asked, gold = {"id": id_, "question": question}, answers or None
        case Predicate(words, predicate, roles):
            asked = {"words": words, "predicate": predicate}
            gold = None if roles is None else [_span(span) | {"role": span.label} for span in roles]
        case Document(name, text, clusters):
            asked = {"name": name, "sentences": text}
            gold = None if clusters is None else [[_span(one) for one in cluster] for cluster in clusters]
        case _:
            raise TypeError(f"expected an example of a task, found {type(example).__name__}")
    return {**asked, **prediction.to_json(), **({} if gold is None else {"gold": gold})}


def _answers(pairs: Iterable[tuple[Question, Any]]) -> Iterator[str]:
    """One object in one line: answers by the ids of their questions, which are little beside the passages."""
    found = {question.id: one.text for question, one in pairs}
    yield json.dumps(found, ensure_ascii=False)


def _span(span: Span) -> dict[str, Any]:
    return {"start": span.start, "end": span.end}


def _tagged(pairs: Iterable[tuple[TaggedSentence, Any]]) -> Iterator[str]:
    """A word and its tag a line, an empty line after each sentence."""
    for sentence, one in pairs:
        yield from (
            f"{_cell(word)}\t{_cell(tag)}" for word, tag in zip(sentence.words, one.tags, strict=True)
        )
        yield ""


def _roles(pairs: Iterable[tuple[Predicate, Any]]) -> Iterator[str]:
    """PropBank's columns: word, tag, lemma, the predicate's word in its row, brackets per predicate.

    Tags and lemmas are not known here: ``-``. A sentence without a predicate is no example, and not here.
    """
    for together in _by_sentence(pairs):
        words = together[0][0].words
        targets = {example.predicate for example, _ in together}
        brackets = [_brackets(one.roles, example.predicate, len(words)) for example, one in together]
        for k, word in enumerate(words):
            target = _cell(word) if k in targets else "-"
            yield "\t".join([_cell(word), "-", "-", target, *(column[k] for column in brackets)])
        yield ""


def _by_sentence(pairs: Iterable[tuple[Predicate, Any]]) -> Iterator[list[tuple[Predicate, Any]]]:
    """The predicates of each sentence, in the order of their words."""
    together: list[tuple[Predicate, Any]] = []
    for pair in pairs:
        example = pair[0]
        if together and (
            (example.words, example.place) != (together[0][0].words, together[0][0].place)
            or any(example.predicate == other.predicate for other, _ in together)
        ):
            yield sorted(together, key=lambda one: one[0].predicate)
            together = []
        together.append(pair)
    if together:
        yield sorted(together, key=lambda one: one[0].predicate)


def _brackets(roles: Sequence[Span], predicate: int, n: int) -> list[str]:
    """``(ARG0*``, ``*``, ``*)``, ``(V*)``; spans cannot stand in each other, so one around V is cut there."""
    cells = ["*"] * n
    for span in (*(part for role in roles for part in _around(role, predicate)),
                 Span(predicate, predicate + 1, VERB)):  # fmt: skip
        cells[span.start] = f"({_cell(span.label)}{cells[span.start]}"
        cells[span.end - 1] += ")"
    return cells


def _around(span: Span, predicate: int) -> list[Span]:
    if not span.start <= predicate < span.end:
        return [span]
    before, after = Span(span.start, predicate, span.label), Span(predicate + 1, span.end, span.label)
    if before.start < before.end:
        after = replace(after, label=f"C-{span.label}")
    return [part for part in (before, after) if part.start < part.end]


def _cell(text: str) -> str:
    if not text.strip(" ") or _UNWRITABLE.search(text):
        raise OutputError(
            f"expected words without tabs and line ends for columns, found {text[:40]!r}; write .jsonl"
        )
    return text


def _of_text(example: LabelledText, one: Any) -> tuple[str, ...]:
    return one.label, f"{one.probabilities[one.label]:.4f}", " ".join(example.words)


def _of_pair(example: TextPair, one: Any) -> tuple[str, ...]:
    texts = (" ".join(example.first), " ".join(example.second))
    return one.label, f"{one.probabilities[one.label]:.4f}", *texts


def _of_alike(example: TextPair, one: Any) -> tuple[str, ...]:
    return f"{one.score:.4f}", " ".join(example.first), " ".join(example.second)


def _of_question(example: Question, one: Any) -> tuple[str, ...]:
    text, probability = one.answers[0]
    return example.id, text, f"{probability:.4f}", " ".join(example.question)


_Row = Callable[[Any, Any], tuple[str, ...]]
# names that the readers know
_TABLES: dict[str, tuple[tuple[str, ...], _Row]] = {
    "classification": (("label", "probability", "text"), _of_text),
    "entailment": (("label", "probability", "sentence1", "sentence2"), _of_pair),
    "similarity": (("score", "sentence1", "sentence2"), _of_alike),
    "answers": (("id", "answer", "probability", "question"), _of_question),
}
