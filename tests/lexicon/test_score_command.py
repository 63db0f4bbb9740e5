"""``elmo score``: sentences and words from files and from the command line, as a table, JSON or a file."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from elmo.cli import score as command
from elmo.cli.console import Console
from elmo.errors import ConfigError, DataError, ElmoError, OutputError, StateError
from elmo.formats import native
from elmo.predict.evaluate import perplexity
from elmo.predict.scores import scores
from tests.formats.tiny import tiny_model

LINES = ["the river bank", "", "café 河岸 xyz"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    native.write(tiny_model(softmax=True), tmp_path / "model")
    (tmp_path / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ELMO_MODEL", raising=False)
    return tmp_path


def run(*arguments: str, stdin: str | None = None) -> str:
    """What the command prints; its errors are raised."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command.command)
    if "--model" not in arguments:
        arguments += ("--model", "model")
    done = CliRunner().invoke(app, list(arguments), obj=Console(), input=stdin)
    if isinstance(done.exception, ElmoError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_line_for_each_sentence_of_files_and_of_the_command_line(here: Path) -> None:
    lines = run("corpus.txt", "--text", "the bank").splitlines()
    assert lines[0].split() == ["forward", "backward", "perplexity", "unknown", "sentence"]
    found = list(scores("model", ["the river bank", "café 河岸 xyz", "the bank"]))
    assert len(lines) == 1 + len(found)
    for line, each in zip(lines[1:], found, strict=True):
        assert each.forward is not None
        assert each.backward is not None
        forward, backward, geometric, unknown, *words = line.split()
        assert float(forward) == pytest.approx(float(each.forward.sum()), abs=1e-3)
        assert float(backward) == pytest.approx(float(each.backward.sum()), abs=1e-3)
        exact = math.exp(-np.concatenate([each.forward, each.backward]).mean())
        assert float(geometric.replace(",", "")) == pytest.approx(exact, abs=1e-2)
        assert int(unknown) == int(each.is_unknown.sum())
        assert words == list(each.tokens)
    only = perplexity("model", ["the bank"], start="zero")
    assert float(lines[-1].split()[2]) == pytest.approx(only["zero"].geometric_mean, abs=1e-2)


def test_a_line_for_each_word_and_boundary(here: Path) -> None:
    rows = [line.split() for line in run("--text", "the xyz", "--tokens").splitlines()]
    (each,) = scores("model", ["the xyz"])
    assert each.forward is not None
    assert each.backward is not None
    assert rows[0] == ["sentence", "forward", "backward", "token"]
    assert [row[3] for row in rows[1:]] == ["<S>", "the", "xyz", "</S>"]
    assert [row[1] for row in rows[1:]] == ["-", *(f"{x:.3f}" for x in each.forward)]
    assert [row[2] for row in rows[1:]] == [*(f"{x:.3f}" for x in each.backward), "-"]
    assert [row[4:] for row in rows[1:]] == [[], [], ["(unknown)"], []]


def test_json_has_a_line_for_each_sentence(here: Path) -> None:
    first, second = map(json.loads, run("corpus.txt", "--json").splitlines())
    assert (first["text"], first["line"], first["unknown"]) == ("the river bank", 1, 0)
    assert (second["line"], second["text"]) == (3, "café 河 岸 xyz")  # the English tokeniser's
    mean = -(first["forward"] + first["backward"]) / 8
    assert first["perplexity"] == pytest.approx(math.exp(mean))
    (by_token,) = map(json.loads, run("--text", "the bank", "--tokens", "--json").splitlines())
    assert by_token["tokens"] == ["the", "bank"]
    assert len(by_token["forward"]) == 3


def test_scores_go_to_a_file_as_perplexity_writes_them(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        assert run("corpus.txt", "--tokens", "--out", "mine.tsv") == ""
    assert "mine.tsv: written" in caplog.text
    perplexity("model", Path("corpus.txt"), start="zero", out="other.tsv", by="token")
    assert Path("mine.tsv").read_bytes() == Path("other.tsv").read_bytes()


def test_text_comes_from_stdin_too_split_or_tokenised(here: Path) -> None:
    assert run("-", "--format", "tokens", stdin="a-b, c\n").splitlines()[1].split()[4:] == ["a-b,", "c"]
    assert run("--format", "tokens", "--text", "a-b, c").splitlines()[1].split()[4:] == ["a-b,", "c"]
    assert len(run("-", "--split", stdin="One bank. Two banks.\n").splitlines()) == 3


def test_chinese_is_cut_into_words(here: Path) -> None:
    pytest.importorskip("jieba")
    lines = run("--text", "我坐在河岸。", "--tokenizer", "zh", "--tokens").splitlines()
    assert "河岸" in [line.split()[3] for line in lines]
    assert run("--text", "我坐在河岸。", "--tokenizer", "zh").splitlines()[1].split()[4:].count("河岸") == 1


def test_control_characters_do_not_reach_the_terminal(here: Path) -> None:
    assert "\\x1b[31m" in run("--text", "the \x1b[31m bank", "--format", "tokens")


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        (["empty.txt"], DataError, "no sentence"),
        (["nothing.txt"], DataError, "nothing.txt"),
        (["corpus.txt", "--model", "bare"], ConfigError, "no softmax"),
        (["corpus.txt", "--start", "warm"], StateError, "no warm state"),
        (["corpus.txt", "--out", "scores.doc"], OutputError, "scores.doc"),
        (["corpus.txt", "--tokenizer", "klingon"], ConfigError, "klingon"),
    ],
)
def test_what_cannot_be_scored_is_refused_and_leaves_nothing(
    here: Path, arguments: list[str], kind: type[ElmoError], part: str
) -> None:
    (here / "empty.txt").write_text("\n\n")
    native.write(tiny_model(), here / "bare")
    before = sorted(here.rglob("*"))
    with pytest.raises(kind, match=part):
        run(*arguments)
    if "--out" not in arguments:
        with pytest.raises(kind, match=part):
            run(*arguments, "--out", "x.tsv")
    assert sorted(here.rglob("*")) == before


def test_nothing_to_score_is_wrong_usage(here: Path) -> None:
    with pytest.raises(AssertionError, match="--text"):
        run()
