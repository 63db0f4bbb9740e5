"""One rule for all commands decides whether lines are split into sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elmo.jobs.plan import EmbedJob
from elmo.text.reader import read_sentences
from elmo.text.sentences import SPLIT_SAMPLE, choose_split
from elmo.text.tokenizers import load_tokenizer
from elmo.train.corpus import Corpus
from tests.cli.conftest import Run

PARAGRAPH = "I sat by the bank of the river. The bank lent me money. It was kind. We left the house at noon."
CHINESE = "我坐在河岸上。银行借给我钱。他很好。我们中午离开了家。"
N_LINES = 6


def test_paragraphs_are_split_and_sentences_are_not() -> None:
    paragraphs = choose_split("\n\n".join([PARAGRAPH] * N_LINES))
    assert (paragraphs.is_split, paragraphs.n_lines, paragraphs.n_sentences) == (True, N_LINES, 4 * N_LINES)
    assert str(paragraphs) == "6 lines, paragraphs: splitting into 24 sentences; --no-split keeps lines"
    lines = choose_split("I sat by the bank of the river .\nNo. I do n't know .\nIt was kind .\nWe left .\n")
    assert (lines.is_split, lines.n_lines, lines.n_sentences) == (False, 4, 5)
    assert choose_split("\n".join([CHINESE] * 3), language="zh").is_split
    assert not choose_split("").is_split
    assert not choose_split("No. Yes!\n" * 10).is_split  # short lines


def test_chinese_sentences_with_quotes_and_clauses_are_not_paragraphs() -> None:
    for line in (
        "“你昨天晚上到底去了哪里？”他站在门口大声地问道。",
        "春天来了，河边的花都开了；夏天到了，孩子们都去游泳。",
    ):
        choice = choose_split(f"{line}\n" * 5, language="zh")
        assert (choice.is_split, choice.n_sentences) == (False, 10)


def test_a_large_text_is_judged_by_its_beginning() -> None:
    choice = choose_split(f"{PARAGRAPH}\n" * 10_000)
    assert choice.is_split
    assert not choice.is_whole
    assert choice.n_lines < 10_000
    assert str(choice).startswith(f"first {choice.n_lines:,} lines, ")
    assert not choose_split("One sentence.\n" * 10_000 + f"{PARAGRAPH}\n" * 10_000).is_split
    assert choose_split(f"{PARAGRAPH} " * 2000).is_split  # all on one line


@pytest.mark.parametrize("text", [PARAGRAPH, CHINESE])
def test_no_line_is_lost_or_reordered_while_the_beginning_is_read(tmp_path: Path, text: str) -> None:
    n = 2 * SPLIT_SAMPLE // len(text)
    for name, lines in (("a", [text]), ("b", [f"{k} {text}" for k in range(n)]), ("c", ["", "The end."])):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = load_tokenizer("en")
    automatic, always = (list(read_sentences([tmp_path], tokenizer=tokenizer, split=split)) for split in (None, True))
    assert automatic == always
    assert len(automatic) == 4 * (n + 1) + 2


@pytest.fixture
def paragraphs(here: Path) -> Path:
    path = here / "long.txt"
    path.write_text(f"{PARAGRAPH}\n" * N_LINES, encoding="utf-8")
    return path


LINE = "elmo: 6 lines, paragraphs: splitting into 24 sentences; --no-split keeps lines\n"
COMMANDS = {
    "embed": (["embed", "long.txt", "--model", "model", "--out", "v.jsonl"], 24, 6),
    "perplexity": (["perplexity", "model", "long.txt", "--json"], 24, 6),
    "score": (["score", "long.txt", "--model", "model", "--json"], 24, 6),
    "senses": (["senses", "bank", "long.txt", "--model", "model", "--json"], 12, 12),
    "index": (["index", "long.txt", "--model", "model", "--out", "usages"], 24, 6),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_splits_paragraphs_and_says_so_in_one_line(run: Run, paragraphs: Path, command: str) -> None:
    arguments, n_split, n_lines = COMMANDS[command]
    for options, expected in (([], n_split), (["--no-split"], n_lines)):
        outcome = run(*arguments, *options, *(["--restart"] if command in ("embed", "index") else []))
        assert outcome.code == 0, outcome.err
        assert outcome.err.count(LINE) == (not options)
        assert _count(command, outcome.out) == expected


def _count(command: str, out: str) -> Any:
    match command:
        case "embed":
            return len(Path("v.jsonl").read_text().splitlines())
        case "index":
            return json.loads(Path("usages/index.json").read_text())["sentences"]
        case "score":
            return len(out.splitlines())
        case "senses":
            return json.loads(out)["usages"]
        case _:
            return json.loads(out)["sentences"]


def test_a_quiet_command_does_not_say_it(run: Run, paragraphs: Path) -> None:
    assert run("--quiet", "perplexity", "model", "long.txt").err == ""


@pytest.mark.slow
@pytest.mark.parametrize("split", [None, False])
def test_training_follows_the_same_rule(run: Run, here: Path, paragraphs: Path, split: bool | None) -> None:
    paragraphs.write_text("".join(f"{k} {PARAGRAPH}\n" for k in range(20)), encoding="utf-8")
    options = ["--preset", "tiny", "--epochs", "0.1", "--heldout", "2", *([] if split is None else ["--no-split"])]
    outcome = run("train", "long.txt", "--out", "new", *options)
    assert outcome.code == 0, outcome.err
    assert ("paragraphs: splitting into 80 sentences" in outcome.err) == (split is None)
    corpus = Corpus.open(here / "new.training" / "corpus")
    assert corpus.n_sentences + 2 == (80 if split is None else 20)


def test_the_number_of_sentences_is_estimated_for_the_time_left(paragraphs: Path, here: Path) -> None:
    assert EmbedJob((str(paragraphs),)).count_lines() == 4 * N_LINES
    assert EmbedJob((str(paragraphs),), split=False).count_lines() == N_LINES
    assert EmbedJob((str(here / "corpus.txt"),)).count_lines() == 4
