"""Questions about passages in SQuAD files."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import DataError
from elmo.tasks.data.examples import Location, Question, Span
from elmo.tasks.data.squad import IMPOSSIBLE, NOT_LOCATED, UNANSWERED, _locate_answer, _Passage, read_squad
from elmo.text.tokenizers import load_tokenizer
from tests.tasks.data.corpora import DATA, needs_data


def read(*args: Any, **options: Any) -> list[Question]:
    return list(read_squad(*args, **options))


CONTEXT = "In 1919, Egypt's non-violence movement began. It ended in 1922."


def qa(id_: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    given_answers = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": "When was it?", "answers": given_answers, **more}


def squad(*questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": context, "qas": [*questions]}]}]}


def file(folder: Path, value: Any, *, indent: int | None = None) -> Path:
    path = folder / "a.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=indent), encoding="utf-8")
    return path


def test_a_question_has_its_passage_and_the_spans_of_its_answers(tmp_path: Path) -> None:
    path = file(tmp_path, squad(qa("a", ("1919", 3), ("In 1919", 0))))
    (question,) = read([path], tokenize=load_tokenizer("en"))
    assert question.id == "a"
    assert question.question == ("When", "was", "it", "?")
    assert question.passage[:4] == ("In", "1919", ",", "Egypt")
    assert question.text == CONTEXT
    assert [question.text[start:end] for start, end in question.offsets] == list(question.passage)
    assert question.answers == ("1919", "In 1919")
    assert question.spans == (Span(1, 2), Span(0, 2))
    assert question.location == Location(str(path), 1)


def test_a_part_of_a_token_is_covered_by_the_whole_token(tmp_path: Path) -> None:
    path = file(tmp_path, squad(qa("a", ("violence", CONTEXT.index("violence")), (" 1922. ", 57))))
    (question,) = read([path])
    assert [question.passage[span.start : span.end] for span in question.spans] == [("non-violence",), ("1922.",)]


def test_an_answer_is_located_near_its_offset_or_counted(tmp_path: Path) -> None:
    questions = [
        qa("near", ("Egypt", 11), ("1922", 57), ("1922", 0)),
        qa("nowhere", ("1999", 3), ("1919", -99), (" ", 2), ("1922", 10**9)),
    ]
    left_out: Counter[str] = Counter()
    found = read([file(tmp_path, squad(*questions))], tokenize=load_tokenizer("en"), left_out=left_out)
    assert [(one.id, one.answers) for one in found] == [
        ("near", ("Egypt", "1922", "1922")),
        ("nowhere", ("1999", "1919", "1922")),
    ]
    assert found[1].spans == ()
    assert [found[0].passage[span.start : span.end] for span in found[0].spans] == [("Egypt",), ("1922",)]
    assert left_out == {NOT_LOCATED: 5, UNANSWERED: 1}


def test_questions_without_an_answer_are_skipped_and_counted(tmp_path: Path) -> None:
    blank = qa("c", (" ", 2))
    value = squad(qa("a", is_impossible=True), qa("b", ("In", 0), is_impossible=False), blank)
    left_out: Counter[str] = Counter()
    assert [one.id for one in read([file(tmp_path, value)], left_out=left_out)] == ["b"]
    assert left_out == {IMPOSSIBLE: 2, NOT_LOCATED: 1}


def test_without_labels_every_question_is_kept(tmp_path: Path) -> None:
    value = squad(qa("a", is_impossible=True), {"id": "b", "question": "Why?"}, qa("c", ("1999", 0)))
    found = read([file(tmp_path, value)], is_labeled=False)
    assert [(one.id, one.answers, one.spans) for one in found] == [("a", (), ()), ("b", (), ()), ("c", (), ())]


def test_the_location_of_a_question_is_the_line_of_its_id(tmp_path: Path) -> None:
    path = file(tmp_path, squad(qa("a", ("In", 0)), qa("b", ("In", 0))), indent=1)
    lines = path.read_text(encoding="utf-8").split("\n")
    for question in read([path]):
        assert question.location
        assert f'"id": "{question.id}"' in lines[question.location.line - 1]


def broken(**change: Any) -> dict[str, Any]:
    return squad({**qa("q", ("In", 0)), **change})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", r"a.json:1: cannot parse JSON: the file is empty"),
        ('{"data": [\n}', r"a.json:2: cannot parse JSON: Expecting value at column 1"),
        ("[" * 200_000, r"a.json:1: cannot parse JSON: maximum recursion"),
        ("9" * 10_000, r"a.json:1: cannot parse JSON: Exceeds"),
        ([], r"a.json:1 \(the file\): expected a JSON object; found list"),
        ({}, r":1 \(the file\): expected a list 'data'; found nothing; is this a SQuAD file\?"),
        ({"data": []}, r":1: expected questions; found none"),
        ({"data": [{"paragraphs": 1}]}, r":1 \(data\[0\]\): expected a list 'paragraphs'; found int"),
        (squad(context=" "), r"paragraphs\[0\]\): expected words in the context; found none"),
        (broken(id=3), r"data\[0\].paragraphs\[0\].qas\[0\]\): expected a string 'id'; found int"),
        (broken(question=" "), r":1: expected words in the question; found ' '"),
        (broken(answers=[]), r"expected an answer to question 'q'; found none"),
        (broken(answers=None), r"expected a list 'answers'; found nothing"),
        (broken(answers=["x"]), r"expected a JSON object; found str"),
        (broken(answers=[{"text": "In"}]), r"expected a number 'answer_start'; found nothing"),
        (squad(qa("a", ("In", 0)), qa("a", ("In", 0))), r"qas\[1\]\): expected unique ids; found 'a' twice"),
    ],
)
def test_errors_name_the_line_and_the_json_path(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read([file(tmp_path, value)])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_too_large_raises_an_error_before_parsing(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_000 + json.dumps(squad()).encode()))
    with pytest.raises(DataError, match=r"a.json.gz: expected at most 1,000 bytes of JSON; found more"):
        read([path], max_bytes=1000)


def test_bytes_that_are_not_utf8_raise_an_error_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{\n"data": "\xff"}')
    with pytest.raises(DataError, match=r"a.json:2: byte 0xff is not UTF-8"):
        read([path])


def test_a_tokenizer_that_changes_characters_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected tokens that occur in the context; found .IN 1919,"):
        read([file(tmp_path, squad(qa("a", ("In", 0))))], tokenize=lambda text: text.upper().split())


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="ab ,'\u4e2d", min_size=1, max_size=40), st.data())
def test_the_span_is_the_shortest_that_covers_the_answer(text: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(begin + 1, len(text)))
    tokens = load_tokenizer("en")(text)
    offsets = tokens.offsets or ()
    span = _locate_answer(text[begin:end], begin, _Passage(text, tokens.tokens, offsets, []))
    if not text[begin:end].strip():
        assert span is None
        return
    touched = [k for k, (a, b) in enumerate(offsets) if a < end and b > begin]
    assert span == Span(touched[0], touched[-1] + 1)


@needs_data
def test_published_squad_has_the_expected_questions() -> None:
    left_out: Counter[str] = Counter()
    dev = read([DATA / "qa-squad" / "dev.json.xz"], tokenize=load_tokenizer("en"), left_out=left_out)
    assert len(dev) == 1970
    assert sum(len(one.answers) for one in dev) == 6910
    assert not left_out
    covered = [
        answer in one.text[one.offsets[span.start][0] : one.offsets[span.end - 1][1]]
        for one in dev
        for answer, span in zip(one.answers, one.spans, strict=True)
    ]
    assert all(covered)
