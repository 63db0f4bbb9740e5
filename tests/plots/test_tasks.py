"""The picture of learned mixes: all weights and gammas of several models."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo import DataError, Elmo, OutputError
from elmo.plots.tasks import MAX_COLUMNS, LearnedMix, draw_mixes, learned_mixes
from elmo.tasks.features.layer import Features, TaskNetwork
from elmo.tasks.features.store import FeatureStore
from elmo.tasks.model import TaskModel
from tests.formats.tiny import tiny_model

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

MIXES = [
    LearnedMix("ner", "input", (0.2, 0.7, 0.1), 1.25),
    LearnedMix("ner", "output", (0.05, 0.15, 0.8), 0.5),
    LearnedMix("a_$name^ that is far too long", "input", (0.4, 0.6), 2.0),
]


def test_the_picture_shows_every_weight_and_gamma(tmp_path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):  # text as text
        draw_mixes(MIXES, tmp_path / "mix.svg")
    drawn = (tmp_path / "mix.svg").read_text("utf-8")
    for text in (
        "0.20",
        "0.70",
        "0.10",
        "0.05",
        "0.15",
        "0.80",
        "0.40",
        "0.60",
        "γ = 1.25",
        "γ = 0.50",
        "γ = 2.00",
        "at the input",
        "at the output",
        "tokens",
        "LSTM 1",
        "LSTM 2",
        "a_$name^ that",
    ):
        assert f">{text}" in drawn, text
    assert drawn.count(">ner<") == 2


def test_the_same_mixes_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw_mixes(MIXES[:1], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_mixes_are_read_from_every_position_of_elmo() -> None:
    for place, expected in (("both", ["input", "output"]), ("output", ["output"]), ("none", [])):
        store = FeatureStore(Features(elmo=place, characters=3), Elmo(tiny_model()))  # pyright: ignore
        words = store.build_layer()
        for mix in words.mixes.values():
            mix.w.data[:] = mix.w.new_tensor([0.0, 0.0, 2.0])
            mix.gamma.data[...] = 0.5
        found = learned_mixes(TaskModel(None, TaskNetwork(words, words), store), "x")
        assert [one.position for one in found] == expected
        for one in found:
            assert one.gamma == 0.5
            assert one.shares == pytest.approx((0.1065, 0.1065, 0.787), abs=1e-3)


def test_mixes_that_cannot_be_drawn_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model uses ELMo"):
        draw_mixes([], tmp_path / "mix.png")
    with pytest.raises(DataError, match="more than 40 models"):
        draw_mixes(MIXES[:1] * (MAX_COLUMNS + 1), tmp_path / "mix.png")
    with pytest.raises(OutputError, match=r"mix\.doc"):
        draw_mixes(MIXES, tmp_path / "mix.doc")
    assert not list(tmp_path.iterdir())
