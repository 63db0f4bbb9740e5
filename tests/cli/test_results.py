"""Files of results: tables, JSON, and the check before the work starts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from elmo import OutputError
from elmo.cli.results import check_result_file, print_json, write_results
from tests.cli.conftest import Run

MODEL = ("--model", "model", "--tokenizer", "whitespace")


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
        ("x.csv", "must end in .tsv or .json"),
        ("y.tsv", "found a folder"),
        ("z/no/x.tsv", "cannot write .*z is a file, not a folder"),
    ):
        with pytest.raises(OutputError, match=message):
            check_result_file(tmp_path / name)
    with pytest.raises(OutputError, match="is one of the inputs"):
        check_result_file(tmp_path / "x.tsv", inputs=["-", tmp_path / "." / "x.tsv"])
    check_result_file(tmp_path / "x.tsv")
    check_result_file(tmp_path / "new" / "x.tsv")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "河岸", "河岸 café", "a 河岸", "--json"),
        ("embed", "corpus.txt"),
        ("score", "--text", "河岸 café", "--json"),
        ("score", "--text", "河岸 café", "--tokens", "--json"),
        ("substitutes", "the [[河岸]] café", "--json"),
        ("senses", "河岸", "corpus.txt", "--json"),
    ],
    ids=" ".join,
)
def test_json_on_stdout_is_not_escaped(run: Run, arguments: tuple[str, ...]) -> None:
    outcome = run(*arguments, *MODEL)
    assert outcome.code == 0
    assert "河岸" in outcome.out
    assert "caf\\u" not in outcome.out
    for line in outcome.out.splitlines():
        json.loads(line)


def test_json_is_escaped_if_stdout_cannot_show_the_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"词": "café 😀"})
    stream.seek(0)
    assert stream.read() == '{"\\u8bcd": "caf\\u00e9 \\ud83d\\ude00"}\n'


def test_vectors_on_stdout_are_valid_json_with_a_lone_surrogate(run: Run, here: Path) -> None:
    (here / "broken.txt").write_bytes("河岸 ".encode() + b"\xff\n")
    outcome = run("embed", "broken.txt", *MODEL, "--errors", "surrogateescape")
    assert "河岸" in outcome.out
    assert json.loads(outcome.out)["tokens"] == ["河岸", "\udcff"]
