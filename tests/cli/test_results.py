"""Files of results: tables, JSON, and the check before the work starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmo import OutputError
from elmo.cli.results import check_result_file, write_results


def test_tables_are_escaped_and_json_is_complete(tmp_path: Path) -> None:
    rows = [("x\ty", None), ("\\n", 0.5), ("苹\ud800", 1)]
    write_results(tmp_path / "x.tsv", columns=("a", "b"), rows=rows, values=None)
    assert (tmp_path / "x.tsv").read_text(encoding="utf-8") == "a\tb\nx\\ty\t\n\\\\n\t0.5\n苹\\ud800\t1\n"
    write_results(tmp_path / "x.json", columns=(), rows=[], values={"词": 1})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"词": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.tsv"]


def test_an_output_that_cannot_be_written_is_an_error_before_the_work_starts(tmp_path: Path) -> None:
    (tmp_path / "y.tsv").mkdir()
    (tmp_path / "z").touch()
    for name, message in (
        ("x.csv", "ends in .tsv or .json"),
        ("y.tsv", "found a folder"),
        ("z/no/x.tsv", "expected a folder, but .*z is a file"),
    ):
        with pytest.raises(OutputError, match=message):
            check_result_file(tmp_path / name)
    with pytest.raises(OutputError, match="is one of the inputs"):
        check_result_file(tmp_path / "x.tsv", inputs=["-", tmp_path / "." / "x.tsv"])
    check_result_file(tmp_path / "x.tsv")
    check_result_file(tmp_path / "new" / "x.tsv")
    assert not (tmp_path / "new").exists()
