"""``elmo index`` and ``elmo neighbors``: build an index and search it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_fails


@pytest.fixture
def indexed(run: Run, here: Path) -> Path:
    outcome = run("index", "corpus.txt", "--model", "model", "--out", "usages")
    assert outcome.code == 0
    assert "usages: 19 usages of 16 words in 23 tokens" in outcome.err
    return here / "usages"


def test_neighbors_are_shown_in_their_sentences(run: Run, indexed: Path) -> None:
    outcome = run("neighbors", indexed, "on the [[bank]] of it", "-n", "3", "--model", "model")
    lines = outcome.out.splitlines()
    assert (outcome.code, lines[0], len(lines)) == (0, "on the [bank] of it", 4)
    cosines = [float(line.split()[0]) for line in lines[1:]]
    assert cosines == sorted(cosines, reverse=True)
    assert all("[" in line for line in lines)


def test_neighbors_uses_the_model_of_the_index_and_says_which(run: Run, indexed: Path, here: Path) -> None:
    named = run("neighbors", indexed, "the [[bank]]", "--model", "model")
    found = run("neighbors", indexed, "the [[bank]]")
    assert (found.code, found.out) == (0, named.out)
    assert found.err == f"elmo: using the model of the index: {here / 'model'}\n"
    (here / "model").rename(here / "moved")
    assert_fails(run("neighbors", indexed, "the [[bank]]"), "no longer exists", "--model")
    assert run("neighbors", indexed, "the [[bank]]", "--model", "moved").out == named.out


def test_table_json_and_file_agree(run: Run, indexed: Path, here: Path) -> None:
    arguments = ("neighbors", indexed, "the bank", "a [[river]]", "--word", "bank", "--model", "model")
    values = json.loads(run(*arguments, "--json").out)
    assert [value["word"] for value in values] == ["bank", "river"]
    assert run(*arguments, "--out", "n.tsv").code == 0
    rows = [line.split("\t") for line in (here / "n.tsv").read_text("utf-8").splitlines()[1:]]
    found = [near for value in values for near in value["neighbors"]]
    assert [(row[4], float(row[3])) for row in rows] == [(n["word"], n["similarity"]) for n in found]
    assert run(*arguments, "--out", "n.json").code == 0
    assert json.loads((here / "n.json").read_text("utf-8")) == values


def test_words_come_from_a_list_or_a_file(run: Run, here: Path) -> None:
    (here / "words.txt").write_text("bank\nriver\n\n")
    for words, out in (("bank,river", "a"), ("words.txt", "b")):
        assert run("index", "corpus.txt", "--model", "model", "--words", words, "--out", out).code == 0
        assert (here / out / "words.tsv").read_text().splitlines()[1:] == ["bank\t2\t2", "river\t1\t1"]


def test_a_picture_is_drawn(run: Run, indexed: Path, here: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("neighbors", indexed, "the [[bank]]", "--model", "model", "--picture")
    assert run(*arguments, "n.svg").code == 0
    assert run(*arguments, "again.svg").code == 0
    assert (here / "n.svg").read_bytes() == (here / "again.svg").read_bytes()


def test_an_index_without_usages_is_reported(run: Run) -> None:
    outcome = run("index", "corpus.txt", "--model", "model", "--words", "sea", "--out", "none")
    assert outcome.code == 0
    assert "found no usages in 23 tokens" in outcome.err
    outcome = run("neighbors", "none", "the [[bank]]", "--model", "model")
    assert "no neighbors" in outcome.out


@pytest.mark.parametrize(
    ("stopped_at", "message"),
    [
        ("_UsageShardMaker.vectors", "nothing was saved, so the same command starts from the beginning"),
        ("_write_description", "run the same command again to resume after the last complete shard"),
    ],
)
def test_ctrl_c_reports_whether_a_shard_is_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch, stopped_at: str, message: str
) -> None:
    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"elmo.lexicon.indexing.{stopped_at}", ctrl_c)
    stopped = run("index", "corpus.txt", "--model", "model", "--out", "usages", "--quiet")
    assert (stopped.code, stopped.err) == (130, f"elmo: interrupted; {message}\n")


def test_errors_are_one_line(run: Run, indexed: Path, here: Path) -> None:
    model = ("--model", "model")
    assert_fails(run("neighbors", "nowhere", "[[a]]", *model), "no such folder; build an index")
    assert_fails(run("neighbors", "more", "[[a]]", *model), "expected an index")
    assert_fails(run("neighbors", indexed, "the bank", *model), "no word is marked")
    assert_fails(run("neighbors", indexed, "[[a]]", *model, "--out", "x.csv"), "must end in .tsv or .json")
    assert_fails(run("index", "corpus.txt", *model, "--words", "w.txt", "--out", "x"), "no such file")
    assert_fails(run("index", "corpus.txt", *model, "--words", ",", "--out", "x"), "found none")
    assert_fails(run("index", "corpus.txt", *model, "--out", "corpus.txt"), "expected a folder")
    assert_fails(
        run("index", "corpus.txt", *model, "--out", "usages", "--limit", "2"), "was started with other options"
    )
    assert not (here / "x").exists()
