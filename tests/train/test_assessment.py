"""After training and in ``elmo info``: what the perplexity means and what would improve the model."""

from __future__ import annotations

from typing import Any

import pytest

from elmo.formats import bundled_models, describe
from elmo.train import assess_model


def assess(perplexity: Any, *, n_words: int = 20_000, **training: Any) -> Any:
    metadata = {"training": {"heldout_perplexity": perplexity, **training}}
    return assess_model(metadata, n_words=n_words, n_weights=5_000_000)


def test_the_level_depends_on_what_word_frequencies_predict() -> None:
    by_frequency = assess(100.0).by_frequency
    assert 500 < by_frequency < 5000
    shares = {1: "very weak", 1 / 3: "weak", 1 / 8: "usable", 1 / 15: "good"}
    assert {share: assess(by_frequency * share).level for share in shares} == shares
    assert assess(100.0, n_words=500).level == "very weak"  # the same number among fewer words
    for share, meaning in ((0.9, "little better than"), (1.1, "worse than")):
        assert f"very weak: it predicts {meaning} word frequencies do" in assess(by_frequency * share).lines["quality"]


def test_more_text_helps_more_than_more_time_if_a_small_text_was_read_often() -> None:
    result = assess(300.0, tokens=1_000_000, tokens_read=20_000_000)
    assert result.with_more_text < result.with_more_time < 300
    assert set(result.lines) == {"perplexity", "quality", "to improve"}
    once = assess(300.0, tokens=50_000_000, tokens_read=5_000_000)
    assert once.with_more_time < 300


def test_estimates_are_near_what_a_longer_run_reached() -> None:
    """Two runs of docs/training.md and docs/models.md: 2.75 and 47 million tokens of English."""
    result = assess(228.0, n_words=40_000, tokens=8_000_000, tokens_read=2_750_000)
    assert 50 < result.with_more_text < 150  # 94 after 47 million tokens of a text of 82 million
    assert result.with_more_text < result.with_more_time < 228


def test_a_short_run_gives_no_estimates() -> None:
    result = assess(4840.0, n_words=12_563, tokens=75_000, tokens_read=28_000)
    assert (result.with_more_text, result.with_more_time) == (None, None)
    assert result.lines["to improve"].endswith("this run was too short for estimates")


@pytest.mark.parametrize("perplexity", [None, float("nan"), float("inf"), 0.0, "12", -1])
def test_models_without_a_usable_perplexity_are_not_assessed(perplexity: Any) -> None:
    assert assess(perplexity) is None
    assert assess_model({}, n_words=10, n_weights=1) is None
    assert assess_model({"training": 3}, n_words=10, n_weights=1) is None
    assert assess_model({"training": {"heldout_perplexity": 9.0}}, n_words=None, n_weights=1) is None


def test_damaged_metadata_gives_no_estimates() -> None:
    assert "to improve" not in assess(50.0, tokens="many", tokens_read=-1).lines


@pytest.mark.slow
@pytest.mark.parametrize("name", bundled_models())
def test_the_bundled_models_are_not_called_weak(name: str) -> None:
    info = describe(name)
    result = assess_model(info.metadata, n_words=info.n_words, n_weights=info.n_parameters)
    assert result is not None
    assert result.level in ("usable", "good")
