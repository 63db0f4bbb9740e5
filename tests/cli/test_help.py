"""The help of every command: its panels, and its examples, which run without a change."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.example_files import prepare

PANELS = {
    "Embed:": ("embed", "compare", "demo", "info", "convert", "warm", "calibrate", "sharpen", "align"),
    "Published models:": ("models", "download", "cache"),
    "Train:": ("train", "perplexity", "curves"),
    "Words:": (
        "index",
        "neighbors",
        "substitutes",
        "explain",
        "senses",
        "change",
        "wsd",
        "probe",
        "similarity",
        "score",
    ),
    "Tasks:": ("evidence", "task"),
}
COMMANDS = tuple(command for commands in PANELS.values() for command in commands)


def examples(help_text: str) -> list[str]:
    """Return the lines below "Examples:"."""
    _, _, tail = help_text.partition("Examples:\n")
    return [line.strip() for line in tail.splitlines() if line.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_example_runs(run: Run, here: Path, command: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(*([command] if command else []), "--help")
    assert (shown.code, shown.err) == (0, "")
    lines = examples(shown.out)
    assert len(lines) >= 2
    if command != "demo":  # which needs the bundled models
        monkeypatch.setenv("ELMO_MODEL", "model")  # a tiny model instead of a bundled one
    prepare(command, here, run, monkeypatch)
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "elmo", line
        assert len(line) <= 78, line  # a terminal would break a longer line
        if "zh" in words and importlib.util.find_spec("jieba") is None:
            continue
        is_drawn = "--picture" in words or command == "curves"
        if is_drawn and importlib.util.find_spec("matplotlib") is None:
            continue
        stdin = None
        if "<" in words:
            stdin = (here / words.pop()).read_text(encoding="utf-8")
            words.remove("<")
        outcome = run(*words[1:], stdin=stdin)
        assert outcome.code == 0, (line, outcome.err)
        if "--out" in words and not {"--dry-run", "--estimate"} & {*words}:
            assert (here / words[words.index("--out") + 1]).exists(), line
        elif command in ("embed", "compare", "demo", "info", *PANELS["Words:"][1:]):
            assert outcome.out, line


def test_the_help_lists_every_command_in_its_panel(run: Run) -> None:
    lines = run("--help").out.splitlines()
    for panel, commands in PANELS.items():
        below = lines[lines.index(panel) + 1 :]
        listed = [line.split()[0] for line in below if line.startswith("  ") and line[2] != " "]
        assert tuple(listed[: len(commands)]) == commands


@pytest.mark.parametrize("command", COMMANDS)
def test_both_names_of_help_give_the_same_text_that_fits_a_terminal(
    run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(command, "-h")
    assert shown == run(command, "--help")
    assert max(map(len, shown.out.splitlines())) <= 80


def test_the_help_of_a_command_lists_its_options_in_panels(run: Run) -> None:
    lines = run("train", "--help").out.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles[:3] == ["Arguments:", "Options:", "Text:"]
    assert len(titles) > 3
    first = [line.split()[0] for line in lines[: lines.index("Text:")] if line.startswith("  -")]
    assert first == ["--out", "--resume", "-h,"]
