from __future__ import annotations

from pathlib import Path

import pytest

from elmo import DataError
from elmo.plots.words import Panel, draw_bars

pytest.importorskip("matplotlib")


def test_every_label_and_number_is_drawn_except_missing_ones(tmp_path: Path) -> None:
    from matplotlib import rc_context

    panels = [
        Panel("I sat by the [bank] .", ["shore", "$side$"], [[0.5, 0.25]]),
        Panel("[x]", ["only forward", "neither"], [[1.5, None], [None, None]]),
        Panel("nothing", [], [[]]),
    ]
    with rc_context({"svg.fonttype": "none"}):
        draw_bars(panels, tmp_path / "a.svg", title="bars", names=("forward", "backward"))
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for part in ("shore", "$side$", "0.50", "0.25", "1.50", "neither", "I sat by the [bank] .", "■ backward"):
        assert part in text, part
    assert text.count(">0.") == 2  # no number for None


def test_characters_without_a_font_become_boxes_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    draw_bars([Panel("\U0001f9ff", ["\U0001f9ff x"], [[1.0]])], tmp_path / "a.png", title="t")
    assert "no font can draw \U0001f9ff: showing boxes instead" in caplog.text
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_empty_data_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there must be at least one panel; found none"):
        draw_bars([], tmp_path / "a.png", title="t")
