"""``elmo embed``: results, resuming, progress and messages."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from elmo import Elmo
from elmo.cli import console
from elmo.jobs.plan import Progress
from tests.cli.conftest import TEXT, Run, assert_fails

MODEL = ("--model", "model")


def lines_of(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_hold_the_vectors_of_every_line(run: Run) -> None:
    outcome = run("embed", "corpus.txt", *MODEL)
    assert (outcome.code, outcome.err) == (0, "")
    result = lines_of(outcome.out)
    expected = Elmo.from_pretrained("model").encode(TEXT.splitlines())
    assert [one["tokens"] for one in result] == [list(one.tokens) for one in expected]
    for one, encoding in zip(result, expected, strict=True):
        np.testing.assert_allclose(np.reshape(one["vectors"], encoding.vectors.shape), encoding.vectors, rtol=1e-6)


def test_stdin_globs_and_compressed_files_are_read(run: Run, here: Path) -> None:
    plain = run("embed", "corpus.txt", *MODEL).out
    (here / "corpus.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert run("embed", "corpus.txt.gz", *MODEL).out == plain
    assert run("embed", "-", *MODEL, stdin=TEXT).out == plain
    both = lines_of(run("embed", "more/*.txt", *MODEL).out)
    assert [one["tokens"] for one in both] == [["the", "river", "a"], ["the", "river", "b"]]


def test_options_reach_the_job(run: Run) -> None:
    split = lines_of(run("embed", "corpus.txt", *MODEL, "--split").out)
    assert len(split) == 5
    spaces = lines_of(run("embed", "corpus.txt", *MODEL, "--format", "tokens").out)
    assert spaces[0]["tokens"] == TEXT.splitlines()[0].split()
    for layers, shape in (("all", (3, 9, 8)), ("concat", (9, 24)), ("top", (9, 8)), ("0", (9, 8))):
        first = lines_of(run("embed", "corpus.txt", *MODEL, "--layers", layers).out)[0]
        assert np.shape(first["vectors"]) == shape
    top, second = (run("embed", "corpus.txt", *MODEL, "--layers", layers).out for layers in ("top", "2"))
    assert top == second


def test_the_model_can_come_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMO_MODEL", "model")
    assert run("embed", "corpus.txt").code == 0
    assert_fails(run("embed", "corpus.txt", "--model", "nowhere"), "nowhere")


def test_a_complete_file_is_not_written_again(run: Run, here: Path) -> None:
    first = run("embed", "corpus.txt", *MODEL, "--out", "v.npz")
    assert (first.code, first.out, first.err) == (0, "", "elmo: wrote v.npz: 4 sentences, 23 tokens\n")
    raw = (here / "v.npz").read_bytes()
    again = run("embed", "corpus.txt", *MODEL, "--out", "v.npz")
    assert again.err == "elmo: v.npz is already complete: 4 sentences, 23 tokens\n"
    assert run("embed", "corpus.txt", *MODEL, "--out", "v.npz", "-q").err == ""
    assert_fails(run("embed", "corpus.txt", *MODEL, "--out", "v.npz", "--layers", "top"), "layers", "--restart")
    assert (here / "v.npz").read_bytes() == raw
    assert run("embed", "corpus.txt", *MODEL, "--out", "v.npz", "--layers", "top", "--restart").code == 0
    assert (here / "v.npz").read_bytes() != raw


def test_a_dry_run_counts_and_writes_nothing(run: Run, here: Path) -> None:
    before = sorted(here.rglob("*"))
    outcome = run("embed", "corpus.txt", *MODEL, "--out", "v.npz", "--shard-tokens", "10", "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    rows = [line.split(maxsplit=1) for line in outcome.out.splitlines()]
    assert ["sentences", "4"] in rows
    assert ["tokens", "23"] in rows
    named = {row[-1] for row in rows[5:]}
    assert sorted(here.rglob("*")) == before
    assert run("embed", "corpus.txt", *MODEL, "--out", "v.npz", "--shard-tokens", "10").code == 0
    assert {"v-00000.npz", "v.npz.manifest.json"} <= {path.name for path in here.glob("v*")}
    assert {Path(line).name for row in named for line in row.split()[-1:]} == {path.name for path in here.glob("v*")}


def test_lines_that_are_not_utf8_are_reported(run: Run, here: Path) -> None:
    (here / "odd.txt").write_bytes(b"the \xff bank\nthe river\n")
    assert_fails(run("embed", "odd.txt", *MODEL), "odd.txt:1", "0xff")
    skipped = run("embed", "odd.txt", *MODEL, "--errors", "skip")
    assert len(skipped.out.splitlines()) == 1
    assert skipped.err == "elmo: warning: skipped lines that are not UTF-8: 1\n"
    repaired = run("embed", "odd.txt", *MODEL, "--errors", "surrogateescape")
    assert lines_of(repaired.out)[0]["tokens"] == ["the", "\udcff", "bank"]
    assert "repaired lines that are not UTF-8: 1" in repaired.err


def test_progress_without_a_terminal_is_logged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LOG_SECONDS", 0.0)
    outcome = run("embed", "corpus.txt", *MODEL, "--out", "v.npz", "--batch-size", "2")
    lines = [line for line in outcome.err.splitlines() if "embedding:" in line]
    assert lines[0].startswith("elmo: embedding: 2 of 4 sentences, 9 tokens, ")
    assert lines[0].endswith(" left")
    again = run(
        "embed", "corpus.txt", *MODEL, "--restart", "--out", "v.npz", "--batch-size", "2", "--log-format", "json"
    )
    first = json.loads(again.err.splitlines()[0])
    assert (first["stage"], first["sentences"], first["tokens"], first["all_sentences"]) == ("embedding", 2, 9, 4)
    assert run("embed", "corpus.txt", *MODEL, "--restart", "--out", "v.npz", "--quiet").err == ""


def test_a_terminal_shows_the_shapes_of_the_first_sentences(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome = run("embed", "corpus.txt", *MODEL)
    assert outcome.out.splitlines() == [
        " 9 × 8  I sat by the bank of the river .",
        " 0 × 8",
        "10 × 8  The bank lent me money . It was kind .",
        " 4 × 8  河 岸 café 😀",
    ]
    hint = "on a terminal; use --out FILE or a pipe for the vectors\n"
    assert outcome.err == f"elmo: showing only the shapes {hint}"
    assert run("embed", "corpus.txt", *MODEL, "--quiet").err == ""
    (here / "long.txt").write_text("\n" * 10 + "the bank\n")
    outcome = run("embed", "long.txt", *MODEL, "--layers", "all")
    assert outcome.out == "3 × 0 × 8\n" * 10
    assert outcome.err == f"elmo: showing only the shapes of the first 10 sentences {hint}"


def test_a_terminal_does_not_change_the_file(run: Run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("embed", "corpus.txt", *MODEL, "--out", "a.npz").code == 0
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome = run("embed", "corpus.txt", *MODEL, "--out", "b.npz")
    assert (outcome.code, outcome.out) == (0, "")
    assert (here / "a.npz").read_bytes() == (here / "b.npz").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="opens a pseudo-terminal")
def test_progress_on_a_terminal_is_a_bar_that_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        patch.setenv("COLUMNS", "100")
        patch.setenv("TERM", "xterm")
        with console.show_progress(console.Console(), n_sentences=40, is_stdout_free=True) as show:
            assert show
            show(Progress(stage="embedding", sentences=20, tokens=500, shards=0, kept=0))
    read = b""
    with suppress(OSError):  # raised at the end, because the other side is closed
        while chunk := os.read(ours, 1 << 16):
            read += chunk
    os.close(ours)
    seen = read.decode()
    assert "20 sentences" in seen
    assert "tokens/s" in seen
    assert seen.rstrip().endswith("\x1b[2K")  # the line is erased


def test_log_records_have_fields(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        run("embed", "corpus.txt", *MODEL, "--out", "v.jsonl")
    (record,) = [one for one in caplog.records if one.name == "elmo.cli"]
    assert vars(record)["tokens"] == 23
