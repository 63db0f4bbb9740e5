"""The picture of the attention of a translation."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo import DataError
from elmo.plots.attention import MAX_CELLS, draw_attention

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

WORDS, UNITS = ["Two", "men", "河岸", "$x_1$"], ["▁Zwei", "▁Männer", "<copy>"]
ATTENTION = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.8, 0.0, 0.1], [0.0, 0.0, 0.0, 1.0]]


def test_the_picture_shows_every_word_and_unit(tmp_path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):  # text as text
        draw_attention(WORDS, UNITS, ATTENTION, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text("utf-8")
    for text in ("Two", "men", "河岸", "$x_1$", "▁Zwei", "▁Männer", "&lt;copy&gt;", "Attention to the source words"):
        assert f">{text}<" in drawn, text


def test_the_same_attention_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw_attention(WORDS, UNITS, ATTENTION, tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_an_empty_or_very_long_translation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot draw the attention: the translation has no words"):
        draw_attention(WORDS, [], [], tmp_path / "a.png")
    n = MAX_CELLS + 1
    with pytest.raises(DataError, match=rf"more than {MAX_CELLS} words; found 4 words and {n} units"):
        draw_attention(WORDS, ["x"] * n, [[0.25] * 4] * n, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
