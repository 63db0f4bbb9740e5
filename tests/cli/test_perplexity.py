"""``elmo perplexity``: a table, JSON, and files of scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmo import perplexity
from elmo.formats import native
from tests.cli.conftest import TEXT, Run, assert_fails
from tests.formats.tiny import tiny_model


def test_the_table_has_every_start_with_and_without_unknown_words(run: Run) -> None:
    assert run("warm", "model", "corpus.txt").code == 0
    outcome = run("perplexity", "model", "corpus.txt", "--start", "all")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    result = perplexity("model", Path("corpus.txt"), start="all")
    assert lines[0] == "text      3 sentences, 23 tokens, 26 predictions per direction"
    assert lines[1] == "unknown   16 tokens (69.57%)"
    assert lines[2].startswith("          most frequent: . 3, I 1, It 1, ")
    assert lines[-2:] == [
        "",
        "for publication, report the geometric mean with unknown words as <UNK>: "
        "carry for running text (as in bilm-tf), zero for single sentences",
    ]
    table = [line.split() for line in lines[4:-2]]
    names = ["forward", "backward", "arithmetic", "geometric", "nats/token", "bits/char"]
    assert table[0] == ["start", "unknown", *names]
    shown = iter(table[1:])
    for start, both in result.by_start.items():
        for title, means in (([start, "as", "<UNK>"], both.with_unknown), (["left", "out"], both.without_unknown)):
            row = next(shown)
            perplexities = (means.forward, means.backward, means.arithmetic_mean, means.geometric_mean)
            assert row == [
                *title,
                *(f"{x:,.2f}" for x in perplexities),
                f"{means.nats_per_token:.4f}",
                f"{means.bits_per_character:.4f}",
            ]
    assert list(shown) == []
    assert list(result.by_start) == ["zero", "warm", "carry"]


def test_one_start_state_is_used_by_default_and_the_others_are_named(run: Run) -> None:
    assert list(perplexity("model", Path("corpus.txt")).by_start) == ["zero"]
    lines = run("perplexity", "model", "corpus.txt").out.splitlines()
    assert [line.split()[0] for line in lines[5:7]] == ["zero", "left"]
    assert lines[7] == ""
    assert "--start carry" in lines[8]
    assert "--start all" in lines[8]
    assert len(lines) == 9
    assert len(run("perplexity", "model", "corpus.txt", "--start", "zero").out.splitlines()) == 7


def test_a_transformer_has_no_other_start_states_to_name(run: Run, here: Path) -> None:
    native.write(tiny_model(softmax=True, is_transformer=True), here / "transformer")
    assert "--start" not in run("perplexity", "transformer", "corpus.txt").out
    outcome = run("perplexity", "transformer", "corpus.txt", "--start", "carry")
    assert_fails(outcome, "cannot use a carried state: a transformer keeps no state between sentences")


def test_json_equals_the_result_of_the_library(run: Run) -> None:
    outcome = run("perplexity", "model", "corpus.txt", "more", "--start", "carry", "--json")
    result = perplexity("model", [Path("corpus.txt"), Path("more")], start="carry")
    assert json.loads(outcome.out) == {"model": "model", **json.loads(json.dumps(result.to_json()))}


def test_text_can_come_from_stdin_in_every_format(run: Run) -> None:
    def tokens(*arguments: str, stdin: str) -> int:
        outcome = run("perplexity", "model", "-", *arguments, "--json", stdin=stdin)
        return json.loads(outcome.out)["tokens"]

    assert tokens(stdin=TEXT) == 23
    assert tokens("--format", "tokens", stdin="a-b, c\n") == 2
    conllu = "".join(f"{k}\tword\t_\t_\t_\t_\t_\t_\t_\t_\n" for k in (1, 2, 3)) + "\n"
    assert tokens("--format", "conllu", stdin=conllu) == 3


def test_lines_can_be_split_and_blank_lines_counted(run: Run) -> None:
    def sentences(*arguments: str) -> int:
        outcome = run("perplexity", "model", "corpus.txt", "--start", "zero", "--json", *arguments)
        return json.loads(outcome.out)["sentences"]

    assert [sentences(), sentences("--split"), sentences("--blank-lines")] == [3, 4, 4]


def test_chinese_is_split_into_words(run: Run, here: Path) -> None:
    pytest.importorskip("jieba")
    (here / "zh.txt").write_text("河岸上有一家银行。\n我坐在河岸。\n", encoding="utf-8")
    outcome = run("perplexity", "model", "zh.txt", "--tokenizer", "zh", "--by", "token", "--out", "zh.tsv")
    assert outcome.code == 0, outcome.err
    assert "\t河岸\t" in (here / "zh.tsv").read_text(encoding="utf-8")


def test_scores_are_written_to_a_file(run: Run, here: Path) -> None:
    outcome = run("perplexity", "model", "corpus.txt", "--start", "zero", "--out", "scores.tsv")
    assert (outcome.code, outcome.err) == (0, "elmo: wrote scores.tsv\n")
    assert (here / "scores.tsv").read_text(encoding="utf-8").count("\n") == 4
    run("perplexity", "model", "corpus.txt", "--start", "zero", "--by", "token", "--out", "tokens.tsv")
    assert (here / "tokens.tsv").read_text(encoding="utf-8").count("\n") == 1 + 23 + 2 * 3


def test_with_one_direction_the_other_column_is_empty(run: Run) -> None:
    outcome = run("perplexity", "model", "corpus.txt", "--start", "zero", "--directions", "backward")
    assert outcome.out.splitlines()[-1].split()[2] == "-"


def test_repaired_and_skipped_lines_are_reported(run: Run, here: Path) -> None:
    (here / "latin.txt").write_bytes(b"caf\xe9\nthe bank\n")
    assert "latin.txt:1" in run("perplexity", "model", "latin.txt").err
    assert "repaired" in run("perplexity", "model", "latin.txt", "--errors", "replace").err
    assert "skipped" in run("perplexity", "model", "latin.txt", "--errors", "skip").err


def test_control_characters_do_not_reach_the_terminal(run: Run, here: Path) -> None:
    (here / "odd.txt").write_text("the \x1b[31m bank\n", encoding="utf-8")
    outcome = run("perplexity", "model", "odd.txt", "--format", "tokens")
    assert "\\x1b[31m 1" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["model", "empty.txt"], "no sentence"),
        (["model", "nothing.txt"], "nothing.txt"),
        (["nowhere", "corpus.txt"], "nowhere"),
        (["bare", "corpus.txt"], "no softmax"),
        (["model", "corpus.txt", "--start", "warm"], "no warm state"),
        (["model", "corpus.txt", "--out", "scores.doc"], "scores.doc"),
        (["model", "corpus.txt", "--out", "more.tsv"], "folder"),
        (["model", "input.tsv", "--out", "input.tsv"], "one of the inputs"),
        (["model", "corpus.txt", "--split", "--format", "tokens"], "split requires"),
        (["model", "corpus.txt", "--tokenizer", "klingon"], "klingon"),
    ],
)
def test_errors_are_one_line(run: Run, here: Path, arguments: list[str], part: str) -> None:
    (here / "empty.txt").write_text("\n\n")
    (here / "input.tsv").write_text("the bank\n")
    (here / "more.tsv").mkdir()
    native.write(tiny_model(), here / "bare")
    before = sorted(here.rglob("*"))
    assert_fails(run("perplexity", *arguments), part)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["model"], "TEXT"),
        (["model", "corpus.txt", "--start", "hot"], "--start"),
        (["model", "corpus.txt", "--batch-size", "0"], "--batch-size"),
        (["model", "corpus.txt", "--by", "token"], "--out"),
    ],
)
def test_wrong_usage_is_an_error(run: Run, arguments: list[str], part: str) -> None:
    assert_fails(run("perplexity", *arguments), part, "--help)", code=2)
