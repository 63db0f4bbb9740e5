"""``elmo score``: sentences and words as a table, JSON or a file."""

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
from elmo.predict.scores import score_sentences
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
    """Run the command and return its output; errors are raised."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command.command)
    if "--model" not in arguments:
        arguments += ("--model", "model")
    done = CliRunner().invoke(app, list(arguments), obj=Console(), input=stdin)
    if isinstance(done.exception, ElmoError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_each_sentence_of_files_and_options_has_a_line(here: Path) -> None:
    lines = run("corpus.txt", "--text", "the bank").splitlines()
    assert lines[0].split() == ["forward", "backward", "perplexity", "unknown", "sentence"]
    expected = list(score_sentences("model", ["the river bank", "café 河岸 xyz", "the bank"]))
    assert len(lines) == 1 + len(expected)
    for line, scores in zip(lines[1:], expected, strict=True):
        assert scores.forward is not None
        assert scores.backward is not None
        forward, backward, geometric, unknown, *words = line.split()
        assert float(forward) == pytest.approx(float(scores.forward.sum()), abs=1e-3)
        assert float(backward) == pytest.approx(float(scores.backward.sum()), abs=1e-3)
        exact = math.exp(-np.concatenate([scores.forward, scores.backward]).mean())
        assert float(geometric.replace(",", "")) == pytest.approx(exact, abs=1e-2)
        assert int(unknown) == int(scores.is_unknown.sum())
        assert words == list(scores.tokens)
    only = perplexity("model", ["the bank"], start="zero")
    assert float(lines[-1].split()[2]) == pytest.approx(only["zero"].geometric_mean, abs=1e-2)


def test_with_tokens_each_word_and_boundary_has_a_line(here: Path) -> None:
    rows = [line.split() for line in run("--text", "the xyz", "--tokens").splitlines()]
    (scores,) = score_sentences("model", ["the xyz"])
    assert scores.forward is not None
    assert scores.backward is not None
    assert rows[0] == ["sentence", "forward", "backward", "token"]
    assert [row[3] for row in rows[1:]] == ["<S>", "the", "xyz", "</S>"]
    assert [row[1] for row in rows[1:]] == ["-", *(f"{x:.3f}" for x in scores.forward)]
    assert [row[2] for row in rows[1:]] == [*(f"{x:.3f}" for x in scores.backward), "-"]
    assert [row[4:] for row in rows[1:]] == [[], [], ["(unknown)"], []]


def test_json_has_a_line_per_sentence(here: Path) -> None:
    first, second = map(json.loads, run("corpus.txt", "--json").splitlines())
    assert (first["text"], first["line"], first["unknown"]) == ("the river bank", 1, 0)
    assert (second["line"], second["text"]) == (3, "café 河 岸 xyz")  # from the English tokenizer
    mean = -(first["forward"] + first["backward"]) / 8
    assert first["perplexity"] == pytest.approx(math.exp(mean))
    (by_token,) = map(json.loads, run("--text", "the bank", "--tokens", "--json").splitlines())
    assert by_token["tokens"] == ["the", "bank"]
    assert len(by_token["forward"]) == 3


def test_files_of_scores_equal_those_of_perplexity(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        assert run("corpus.txt", "--tokens", "--out", "mine.tsv") == ""
    assert "wrote mine.tsv" in caplog.text
    perplexity("model", Path("corpus.txt"), start="zero", out="other.tsv", by="token")
    assert Path("mine.tsv").read_bytes() == Path("other.tsv").read_bytes()


def test_text_can_come_from_stdin_split_or_tokenized(here: Path) -> None:
    assert run("-", "--format", "tokens", stdin="a-b, c\n").splitlines()[1].split()[4:] == ["a-b,", "c"]
    assert run("--format", "tokens", "--text", "a-b, c").splitlines()[1].split()[4:] == ["a-b,", "c"]
    assert len(run("-", "--split", stdin="One bank. Two banks.\n").splitlines()) == 3


def test_chinese_is_split_into_words(here: Path) -> None:
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
def test_errors_leave_no_files(here: Path, arguments: list[str], kind: type[ElmoError], part: str) -> None:
    (here / "empty.txt").write_text("\n\n")
    native.write(tiny_model(), here / "bare")
    before = sorted(here.rglob("*"))
    with pytest.raises(kind, match=part):
        run(*arguments)
    if "--out" not in arguments:
        with pytest.raises(kind, match=part):
            run(*arguments, "--out", "x.tsv")
    assert sorted(here.rglob("*")) == before


def test_no_text_is_wrong_usage(here: Path) -> None:
    with pytest.raises(AssertionError, match="--text"):
        run()


def test_minimal_pairs_are_counted_by_phenomenon(here: Path) -> None:
    rows = "the river bank\tbank the river\torder\ncafé 河岸\t河岸 café\tscripts\n"
    (here / "pairs").mkdir()
    (here / "pairs" / "a.tsv").write_text(f"sentence_good\tsentence_bad\tphenomenon\n{rows}", encoding="utf-8")
    lines = run("--pairs", "pairs").splitlines()
    assert lines[0].split() == ["pairs", "forward", "backward", "both", "phenomenon"]
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:]] == [
        ("1", "order"),
        ("1", "scripts"),
        ("2", "all"),
    ]
    values = json.loads(run("--pairs", "pairs", "--json"))
    right = [pair["is_right"]["both"] for pair in values["pairs"]]
    assert values["accuracy"]["all"]["both"] == sum(right) / 2
    with pytest.raises(AssertionError, match="--pairs cannot be combined with INPUT"):
        run("corpus.txt", "--pairs", "pairs")
