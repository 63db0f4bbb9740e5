"""Columns of TSV, CSV and JSON lines."""

from __future__ import annotations

from elmo.tasks.data.examples import Location
from elmo.tasks.data.files import WHITESPACE
from elmo.tasks.data.tables import Field, TableFormat, read_table
from elmo.text.lines import Line

TEXT = Field("text", None, ("text", "sentence"))
SCORE = Field("score", None, ("score",), is_required=False)


def cells(text: str, kind: TableFormat, *fields: Field, has_header: bool | None = None) -> list[dict[str, object]]:
    lines = [Line(one, number, "f") for number, one in enumerate(text.split("\n"), start=1)]
    return [dict(one.cells) for one in read_table(lines, fields, file_format=kind, has_header=has_header)]


def test_default_names_match_in_any_case_in_their_order() -> None:
    assert cells("Sentence\tTEXT\na\tb", "tsv", TEXT) == [{"text": "b"}]
    assert cells('{"Sentence": "a"}', "jsonl", TEXT) == [{"text": "a"}]


def test_an_optional_field_may_be_missing() -> None:
    assert cells("text\na", "tsv", TEXT, SCORE) == [{"text": "a"}]
    assert cells("text,score\na,1", "csv", TEXT, SCORE) == [{"text": "a", "score": "1"}]
    assert cells('{"text": "a"}\n{"text": "b", "score": 1}', "jsonl", TEXT, SCORE) == [{"text": "a"}, {"text": "b"}]


def test_rows_without_a_header_may_be_longer_than_needed() -> None:
    first = Field("text", 0, ())
    assert cells("a\tb\nc", "tsv", first) == [{"text": "a"}, {"text": "c"}]
    assert cells("text\tb\nc\td", "tsv", first, has_header=True) == [{"text": "c"}]


def test_a_quoted_cell_may_have_line_breaks() -> None:
    lines = [Line(text, number, "f") for number, text in enumerate(["text", '"a', 'b"', "", "c"], start=1)]
    found = list(read_table(lines, [TEXT], file_format="csv"))
    assert [(record.get_words("text", WHITESPACE), record.location) for record in found] == [
        (("a", "b"), Location("f", 2)),
        (("c",), Location("f", 5)),
    ]
