"""``elmo index`` and ``elmo neighbors``: a corpus, a word in a sentence, and what is near it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, assert_refused


@pytest.fixture
def indexed(run: Run, here: Path) -> Path:
    outcome = run("index", "corpus.txt", "--model", "model", "--out", "usages")
    assert outcome.code == 0
    assert "usages: 19 usages of 16 words in 23 tokens" in outcome.err
    return here / "usages"


def test_neighbours_are_shown_in_their_sentences(run: Run, indexed: Path) -> None:
    outcome = run("neighbors", indexed, "on the [[bank]] of it", "-n", "3", "--model", "model")
    lines = outcome.out.splitlines()
    assert (outcome.code, lines[0], len(lines)) == (0, "on the [bank] of it", 4)
    cosines = [float(line.split()[0]) for line in lines[1:]]
    assert cosines == sorted(cosines, reverse=True)
    assert all("[" in line for line in lines)


def test_table_json_and_file_say_the_same(run: Run, indexed: Path, here: Path) -> None:
    arguments = ("neighbors", indexed, "the bank", "a [[river]]", "--word", "bank", "--model", "model")
    values = json.loads(run(*arguments, "--json").out)
    assert [value["word"] for value in values] == ["bank", "river"]
    assert run(*arguments, "--out", "n.tsv").code == 0
    rows = [line.split("\t") for line in (here / "n.tsv").read_text("utf-8").splitlines()[1:]]
    found = [near for value in values for near in value["neighbours"]]
    assert [(row[4], float(row[3])) for row in rows] == [(n["word"], n["similarity"]) for n in found]
    assert run(*arguments, "--out", "n.json").code == 0
    assert json.loads((here / "n.json").read_text("utf-8")) == values


def test_words_come_from_a_list_or_a_file(run: Run, here: Path) -> None:
    (here / "words.txt").write_text("bank\nriver\n\n")
    for given, out in (("bank,river", "a"), ("words.txt", "b")):
        assert run("index", "corpus.txt", "--model", "model", "--words", given, "--out", out).code == 0
        assert (here / out / "words.tsv").read_text().splitlines()[1:] == ["bank\t2\t2", "river\t1\t1"]


def test_a_picture_is_drawn(run: Run, indexed: Path, here: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("neighbors", indexed, "the [[bank]]", "--model", "model", "--picture")
    assert run(*arguments, "n.svg").code == 0
    assert run(*arguments, "again.svg").code == 0
    assert (here / "n.svg").read_bytes() == (here / "again.svg").read_bytes()


def test_a_text_without_such_words_is_said_to_have_none(run: Run) -> None:
    outcome = run("index", "corpus.txt", "--model", "model", "--words", "sea", "--out", "none")
    assert outcome.code == 0
    assert "found no usages in 23 tokens" in outcome.err
    outcome = run("neighbors", "none", "the [[bank]]", "--model", "model")
    assert "no neighbors" in outcome.out


@pytest.mark.parametrize(
    ("stopped_at", "said"),
    [
        ("_UsageShardMaker.vectors", "nothing was kept yet: the same command begins anew"),
        ("_write_description", "give the same command again to go on after its last whole part"),
    ],
)
def test_ctrl_c_says_whether_a_part_was_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch, stopped_at: str, said: str
) -> None:
    def ctrl_c(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"elmo.lexicon.indexing.{stopped_at}", ctrl_c)
    stopped = run("index", "corpus.txt", "--model", "model", "--out", "usages", "--quiet")
    assert (stopped.code, stopped.err) == (130, f"elmo: interrupted; {said}\n")


def test_what_cannot_be_is_one_line(run: Run, indexed: Path, here: Path) -> None:
    model = ("--model", "model")
    assert_refused(run("neighbors", "nowhere", "[[a]]", *model), "no such folder; build an index")
    assert_refused(run("neighbors", "more", "[[a]]", *model), "expected an index")
    assert_refused(run("neighbors", indexed, "the bank", *model), "no word is marked")
    assert_refused(run("neighbors", indexed, "[[a]]", *model, "--out", "x.csv"), "ends in .tsv or .json")
    assert_refused(run("index", "corpus.txt", *model, "--words", "w.txt", "--out", "x"), "no such file")
    assert_refused(run("index", "corpus.txt", *model, "--words", ",", "--out", "x"), "found none")
    assert_refused(run("index", "corpus.txt", *model, "--out", "corpus.txt"), "expected a folder")
    assert_refused(
        run("index", "corpus.txt", *model, "--out", "usages", "--limit", "2"),
        "was started with other options",
    )
    assert not (here / "x").exists()
