"""Progress and warnings on stderr."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from elmo.cli.console import UsageProgress
from tests.cli.conftest import Run


def test_progress_of_usages_is_logged_unless_quiet(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.cli.console.LOG_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        UsageProgress("approximate index", is_quiet=True)(1, 2)
        assert caplog.messages == []
        UsageProgress("approximate index", is_quiet=False)(8192, 662_710)
    assert caplog.messages == ["approximate index: 8,192 of 662,710 usages"]


@pytest.mark.parametrize(
    ("tokenizer", "sentence", "is_warned"),
    [("en", "他每天吃一个苹果。", True), ("zh", "他每天吃一个苹果。", False), ("en", "an apple (苹果)", False)],
)
def test_chinese_text_with_english_rules_gives_a_warning(
    run: Run, here: Path, tokenizer: str, sentence: str, is_warned: bool
) -> None:
    if tokenizer == "zh":
        pytest.importorskip("jieba")
    outcome = run("compare", "苹果", sentence, sentence, "--tokenizer", tokenizer, "--model", "model")
    assert ("--model zh" in outcome.err) is is_warned
