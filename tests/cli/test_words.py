"""What the commands about words share: lists of words, and files of results."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from elmo import DataError, OutputError
from elmo.cli.console import UsageProgress
from elmo.cli.options import parse_words
from elmo.cli.results import check_result_file, write_results
from tests.cli.conftest import Run


def test_words_are_a_list_or_the_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("bank\n\n 苹果 \nbank\n", encoding="utf-8")
    assert parse_words(str(path)) == ("bank", "苹果")
    assert parse_words("bank, New York,bank") == ("bank", "New York")
    assert parse_words("bank") == ("bank",)
    assert parse_words(None) is None
    for given in ("nowhere.txt", "a/b"):
        with pytest.raises(DataError, match="no such file; pass words as a file or as a,b,c"):
            parse_words(given)


def test_a_table_is_escaped_and_json_is_whole(tmp_path: Path) -> None:
    rows = [("x\ty", None), ("\\n", 0.5), ("苹\ud800", 1)]
    write_results(tmp_path / "x.tsv", columns=("a", "b"), rows=rows, values=None)
    assert (tmp_path / "x.tsv").read_text(encoding="utf-8") == "a\tb\nx\\ty\t\n\\\\n\t0.5\n苹\\ud800\t1\n"
    write_results(tmp_path / "x.json", columns=(), rows=[], values={"词": 1})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"词": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.tsv"]


def test_long_work_is_told_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.cli.console.LOG_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        UsageProgress("approximate index", is_quiet=True)(1, 2)
        assert caplog.messages == []
        UsageProgress("approximate index", is_quiet=False)(8192, 662_710)
    assert caplog.messages == ["approximate index: 8,192 of 662,710 usages"]


def test_what_cannot_be_written_is_refused_before_work_begins(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("tokenizer", "sentence", "is_told"),
    [
        ("en", "他每天吃一个苹果。", True),
        ("zh", "他每天吃一个苹果。", False),
        ("en", "an apple (苹果)", False),
    ],
)
def test_chinese_that_is_cut_by_english_rules_is_told(
    run: Run, here: Path, tokenizer: str, sentence: str, is_told: bool
) -> None:
    if tokenizer == "zh":
        pytest.importorskip("jieba")
    found = run("compare", "苹果", sentence, sentence, "--tokenizer", tokenizer, "--model", "model")
    assert ("--model zh" in found.err) is is_told
