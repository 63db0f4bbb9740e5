"""``elmo task`` with pairs of texts, questions and documents: trained, measured and used on tiny data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.task_files import train

PAIRS = """sentence1\tsentence2\tlabel\tscore
the river\ta bank\tno\t1
fine\tfine .\tyes\t5
a bank\tBank\tyes\t4
"""
PASSAGE = "The Bank lends. London lends."
QUESTIONS = [
    {"id": k, "question": f"{k} lends?", "answers": [{"text": text, "answer_start": at}]}
    for k, text, at in (("Who", "The Bank", 0), ("What", "London", 16))
]
SQUAD = {"data": [{"paragraphs": [{"context": PASSAGE, "qas": QUESTIONS}]}]}
DOCUMENT = tuple(
    f"d\t0\t{k}\t{word}\t-\t-\t-\t-\t-\t-\t-\t{mark}\n"
    for k, (word, mark) in enumerate([("Ann", "(0)"), ("lends", "-"), ("her", "(0)"), ("money", "-")])
)
COREFERENCE = "#begin document (d); part 000\n" + "".join(DOCUMENT) + "\n#end document\n"


@pytest.mark.parametrize(
    ("kind", "score", "written", "asked", "said"),
    [
        (
            "entailment",
            "accuracy",
            "p.tsv",
            ("--text", "a", "--text", "b c"),
            r"(yes|no) +[\d.]+%  a \| b c\n",
        ),
        ("similarity", "pearson", "p.tsv", ("--text", "a", "--text", "b c"), r"[1-5]\.\d\d  a \| b c\n"),
        (
            "answers",
            "exact match",
            "p.json",
            ("--question", "Who?", "--passage", PASSAGE),
            r"Who \?\n(  +[\d.]+%  .+\n)+",
        ),
        (
            "coreference",
            "conll",
            "p.conll",
            ("--text", "Ann lends. She is kind."),
            r"text 1: \d+ clusters\n(?s:.*)",
        ),
    ],
)
def test_every_other_kind_is_trained_measured_and_used(
    run: Run, here: Path, kind: str, score: str, written: str, asked: tuple[str, ...], said: str
) -> None:
    files = {
        "entailment": ("x.tsv", PAIRS),
        "similarity": ("x.tsv", PAIRS),
        "answers": ("x.json", json.dumps(SQUAD)),
        "coreference": ("x.conll", COREFERENCE),
    }
    name, text = files[kind]
    (here / name).write_text(text)
    outcome = train(run, kind, name, "--dev", name, out="x.safetensors")
    assert outcome.code == 0, outcome.err
    measured = run("task", "evaluate", "x.safetensors", name, "--no-cache", "--out", written)
    assert measured.code == 0, measured.err
    assert re.search(rf"(?m)^{score} +-?\d+\.\d\d%$", measured.out)
    assert (here / written).stat().st_size
    if kind == "similarity":
        assert re.search(r"(?m)^mean squared error +\d+\.\d{4}$", measured.out)
    shown = run("task", "predict", "x.safetensors", *asked)
    assert re.fullmatch(said, shown.out), shown
