"""``elmo align`` and the commands that take two models: output, messages and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from elmo import Elmo
from elmo.formats import native
from tests.cli.conftest import Run
from tests.cli.example_files import write_aligned
from tests.formats.tiny import tiny_model

WORDS = [f"w{a}{b}" for a in "abcdefgh" for b in "klmnopqrs"]


@pytest.fixture
def pairs(here: Path) -> Path:
    """A dictionary in which every word is its own translation; it is also a corpus."""
    path = here / "pairs.txt"
    path.write_text("".join(f"{word}\t{word}\n" for word in WORDS))
    return path


def test_it_writes_a_model_and_prints_scores_next_to_a_control(run: Run, here: Path, pairs: Path) -> None:
    line = [
        "align",
        "model",
        "model",
        "--dictionary",
        "pairs.txt",
        "--corpus",
        "pairs.txt",
        "pairs.txt",
        "--out",
        "aligned",
    ]
    outcome = run(*line)
    assert outcome.code == 0, outcome.err
    assert "54 word pairs; 18 held-out words, translated among 72 words" in outcome.out
    assert "shuffled" in outcome.out
    assert [row.split()[0] for row in outcome.out.splitlines()[4:]] == ["0", "1", "2", "sense"]
    assert "in the coordinates of another model, by elmo align" in run("info", "aligned").out
    assert "elmo align" not in run("info", "model").out
    values = json.loads(run(*line[:-1], "again", "--json").out)
    assert (values["pairs"], values["test"]) == (54, 18)
    assert values["layers"]["1"]["nearest"]["at_1"] > 0.8  # both languages are the same
    assert values["layers"]["1"]["shuffled"]["at_1"] < 0.5
    for name in ("config.json", "alignment.safetensors"):
        assert (here / "aligned" / name).read_bytes() == (here / "again" / name).read_bytes()


def test_published_matrices_replace_the_dictionary(run: Run, here: Path) -> None:
    matrices = torch.linalg.qr(torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0)))[0]
    for layer, matrix in enumerate(matrices):
        torch.save(matrix.numpy(), here / f"{layer}.pth", _use_new_zipfile_serialization=False)
    names = [part for layer in range(3) for part in ("--matrix", f"{layer}.pth")]
    outcome = run("align", "model", "model", *names, "--out", "aligned")
    assert (outcome.code, outcome.err) == (0, "elmo: wrote aligned\n")
    text = [["the", "river", "bank"]]
    before = Elmo.from_pretrained(here / "model").encode(text, layers="all", as_tensor=True)[0].vectors
    after = Elmo.from_pretrained(here / "aligned").encode(text, layers="all", as_tensor=True)[0].vectors
    torch.testing.assert_close(after, before @ matrices.transpose(1, 2))
    outcome = run("compare", "river", "the river", "a river", "--model", "aligned")
    assert outcome.code != 0
    assert "layers must not be 'sense' for this aligned model" in outcome.err
    for layer, factor in enumerate((2.0, torch.arange(1.0, 9.0), 0.0)):
        torch.save(factor * matrices[layer], here / f"{layer}.pth")
    warnings = run("align", "model", "model", *names, "--out", "other").err.splitlines()[:-1]
    assert [line.split()[2] for line in warnings if "the matrix is not orthogonal" in line] == ["1.pth:", "2.pth:"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dictionary pairs.txt --out new", "--corpus SOURCE_TEXT TARGET_TEXT is required"),
        ("--corpus pairs.txt pairs.txt --out new", "--dictionary is required"),
        ("--dictionary pairs.txt --corpus pairs.txt missing.txt --out new", "missing.txt"),
        ("--dictionary missing.txt --corpus pairs.txt pairs.txt --out new", "missing.txt"),
        ("--dictionary pairs.txt --corpus pairs.txt pairs.txt --out model", "model already exists"),
        ("--dictionary corpus.txt --corpus pairs.txt pairs.txt --out new", "corpus.txt:1: expected a word and its"),
        (
            "--dictionary pairs.txt --corpus corpus.txt corpus.txt --out new",
            "expected at least 20 pairs of the dictionary, which has 72, to occur in the corpora; found 1; ",
        ),
        ("--matrix corpus.txt --out new", "expected 3 matrices, one per layer of the model; found 1"),
        ("--matrix corpus.txt --matrix corpus.txt --matrix corpus.txt --out new", "expected a file written by torch"),
        ("--matrix corpus.txt --dictionary pairs.txt --out new", "--matrix cannot be used with --dictionary"),
        ("--pairs identical --corpus pairs.txt corpus.txt --out new", "expected at least 20 words to occur in both"),
        ("--dictionary phrases.txt --corpus pairs.txt pairs.txt --out new", "found only phrases (lines: 1)"),
        ("--pairs identical --corpus - - --out new", "stdin (-) can be the text of one language only"),
        ("--matrix 0.pth --json --out new", "--matrix cannot be used with --json"),
        ("--matrix 0.pth --words 9 --center --split --out new", "cannot be used with --center or --words or --split"),
    ],
)
def test_bad_input_is_reported_in_one_line(run: Run, here: Path, pairs: Path, arguments: str, message: str) -> None:
    (here / "phrases.txt").write_text("bank\tthe river bank\n")
    outcome = run("align", "model", "model", *arguments.split())
    assert outcome.code != 0
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (here / "new").exists()


def test_a_model_cannot_be_aligned_to_one_with_narrower_vectors(run: Run, here: Path, pairs: Path) -> None:
    native.write(tiny_model(softmax=True, state_width=5), here / "wide")
    rest = ["--dictionary", "pairs.txt", "--corpus", "pairs.txt", "pairs.txt", "--out", "new"]
    outcome = run("align", "wide", "model", *rest)
    assert outcome.code != 0
    assert "cannot align vectors of width 10 to vectors of width 8; align the other model" in outcome.err
    assert not (here / "new").exists()


def test_compare_takes_sentences_of_two_languages(run: Run, here: Path) -> None:
    write_aligned(here / "model", here / "zh-en")
    line = ["compare", "bank", "the bank", "--model", "model", "--other", "[[café]]", "--other-model"]
    outcome = run(*line, "zh-en", "--json")
    assert outcome.code == 0, outcome.err
    assert [use["word"] for use in json.loads(outcome.out)["uses"]] == ["bank", "café"]
    native.write(tiny_model(softmax=True, seed=1), here / "unrelated")
    outcome = run(*line, "unrelated")
    assert outcome.code != 0
    assert "neither is aligned to the other" in outcome.err


def test_senses_of_two_indexes_are_clustered_together(run: Run, here: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    write_aligned(here / "model", here / "zh-en")
    (here / "zh.txt").write_text("café the .\nthe café .\n", encoding="utf-8")
    native.write(tiny_model(softmax=True, seed=1), here / "unrelated")
    for text, model, out in (("corpus.txt", "model", "en"), ("zh.txt", "zh-en", "zh"), ("zh.txt", "unrelated", "x")):
        assert run("index", text, "--model", model, "--out", out).code == 0
    outcome = run("senses", "bank", "en", "--other-index", "zh", "--other-word", "café", "--json", "--clusters", "1")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["usages"] == 4
    outcome = run("senses", "bank", "en", "--other-index", "x", "--other-word", "café")
    assert "cannot compare the vectors of en and x" in outcome.err
    assert "go together" in run("senses", "bank", "en", "--other-index", "zh").err


def test_neighbors_are_found_in_an_index_of_the_other_language(run: Run, here: Path) -> None:
    write_aligned(here / "model", here / "zh-en")
    (here / "zh.txt").write_text("café the .\n", encoding="utf-8")
    assert run("index", "zh.txt", "--model", "zh-en", "--out", "zh").code == 0
    outcome = run("neighbors", "zh", "the [[bank]]", "--model", "model", "--json")
    assert outcome.code == 0, outcome.err
    assert {near["word"] for near in json.loads(outcome.out)[0]["neighbors"]} == {"café", "the"}
    native.write(tiny_model(softmax=True, seed=1), here / "unrelated")
    assert "built with another model" in run("neighbors", "zh", "the [[bank]]", "--model", "unrelated").err
