"""``elmo compare``: tables, JSON and pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elmo import Elmo
from elmo.embed.comparison import compare
from tests.cli.conftest import Run

MODEL = ("--model", "model")
SENTENCES = ("I sat by the bank .", "the Bank of the river", "by the bank at the [[bank]]")


@pytest.mark.slow
def test_a_table_for_each_layer_and_the_average(run: Run) -> None:
    outcome = run("compare", "bank", *SENTENCES, *MODEL, "--layers", "all")
    assert (outcome.code, outcome.err) == (0, "")
    result = compare(Elmo.from_pretrained("model"), "bank", SENTENCES, layers="all")
    assert outcome.out.splitlines()[:3] == [
        "S1  I sat by the [bank] .",
        "S2  the [Bank] of the river",
        "S3  by the bank at the [bank]",
    ]
    tables = [table.splitlines() for table in outcome.out.split("\n\n")[1:]]
    assert [table[0].split("  ")[0].strip() for table in tables] == ["layer 0", "layer 1", "layer 2", "average"]
    for table, matrix in zip(tables, result.matrices.values(), strict=True):
        assert table[0].split()[-3:] == ["S1", "S2", "S3"]
        assert [line.split()[1:] for line in table[1:]] == [[f"{value:.3f}" for value in row] for row in matrix]


def test_by_default_one_table_of_sense_vectors_is_shown(run: Run) -> None:
    outcome = run("compare", "bank", *SENTENCES, *MODEL)
    (matrix,) = compare(Elmo.from_pretrained("model"), "bank", SENTENCES, layers="sense").matrices.values()
    _, table, note = outcome.out.split("\n\n")
    assert [line.split()[1:] for line in table.splitlines()[1:]] == [[f"{x:.3f}" for x in row] for row in matrix]
    assert note == "no ranks: this model has no similarity statistics; add them with: elmo calibrate MODEL TEXT\n"


def test_a_calibrated_model_ranks_each_pair(run: Run, here: Path) -> None:
    (here / "many.txt").write_text("".join(f"The bank number {k} is by the river .\n" for k in range(20)))
    outcome = run("calibrate", "model", "many.txt", "--out", "calibrated")
    assert (outcome.code, outcome.out) == (0, "")
    assert "added similarity statistics of 6 words to calibrated" in outcome.err
    outcome = run("compare", "bank", "a river", "the [[bank]] .", "by the [[bank]]", "--model", "calibrated")
    assert outcome.code == 1  # the first sentence has no bank
    outcome = run("compare", "bank", *SENTENCES, "--model", "calibrated")
    ranks = compare(Elmo.from_pretrained("calibrated"), "bank", SENTENCES).ranks
    assert outcome.out.splitlines()[-3:] == [f"S{a + 1}, S{b + 1}: {rank}" for (a, b), rank in ranks.items()]
    assert all(rank.word == "bank" for rank in ranks.values())


def test_json_equals_the_result_of_the_library(run: Run) -> None:
    outcome = run("compare", "bank", *SENTENCES, *MODEL, "--json")
    assert json.loads(outcome.out) == compare(Elmo.from_pretrained("model"), "bank", SENTENCES).to_json()


def test_one_layer_can_be_selected(run: Run) -> None:
    values = json.loads(run("compare", "bank", *SENTENCES, *MODEL, "--layers", "top", "--json").out)
    assert list(values["similarities"]) == ["2"]


@pytest.mark.slow
def test_chinese_is_split_into_words(run: Run) -> None:
    pytest.importorskip("jieba")
    outcome = run("compare", "苹果", "我喜欢吃苹果。", "她买了一斤苹果", *MODEL, "--tokenizer", "zh", "--json")
    assert [use["tokens"] for use in json.loads(outcome.out)["uses"]] == [["苹果"], ["苹果"]]


def test_control_characters_do_not_reach_the_terminal(run: Run) -> None:
    outcome = run("compare", "bank", "the \x1b[31m bank \r\n", "a bank \ud800", *MODEL)
    assert outcome.code == 0
    assert outcome.out.splitlines()[:2] == ["S1  the \\x1b[31m [bank] \\r\\n", "S2  a [bank] \\ud800"]


def test_a_picture_is_drawn_in_addition_to_the_table(run: Run, here: Path) -> None:
    pytest.importorskip("matplotlib")
    plain = run("compare", "bank", *SENTENCES, *MODEL)
    drawn = run("compare", "bank", *SENTENCES, *MODEL, "--picture", "bank.png")
    assert (drawn.out, drawn.err) == (plain.out, "elmo: wrote bank.png\n")
    assert (here / "bank.png").read_bytes().startswith(b"\x89PNG")
