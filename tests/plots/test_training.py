"""Runs as a picture: what it says, what it leaves out, and what cannot be drawn."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, MissingExtraError, OutputError, draw_curves
from elmo.plots.training import _extract, _outline, format_short, moving_average, spread, summarize, write_curves
from elmo.train.log import read_log
from tests.train.logs import lines, write_log, write_times


@pytest.fixture(autouse=True)
def needs_matplotlib(request: pytest.FixtureRequest) -> None:
    if "missing" not in request.node.name:
        pytest.importorskip("matplotlib")


def drawn(path: Path, *runs: Path, **options: object) -> str:
    """The words of the picture."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        draw_curves(runs, path, **options)  # pyright: ignore[reportArgumentType]
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_suffix_says_the_format_and_the_same_run_gives_the_same_bytes(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    run = write_log(tmp_path / "m.training")
    raw = [draw_curves(run, tmp_path / f"{name}{suffix}").read_bytes() for name in "ab"]
    assert raw[0].startswith(magic)
    assert raw[0] == raw[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}", "m.training"]


def test_one_run_shows_its_name_both_directions_and_their_last_figures(tmp_path: Path) -> None:
    text = drawn(tmp_path / "x.svg", write_log(tmp_path / "first $try$.training"))
    last = math.exp(4 + 5 / 20)
    for part in ("Training loss", "Held-out perplexity", "first $try$  4.25", "tokens", "120k"):
        assert part in text, part
    for direction in ("forward", "backward"):
        assert f">{direction}  {last:.1f}<" in text
    assert ">best<" not in text  # it is the last


def test_several_runs_have_one_label_each(tmp_path: Path) -> None:
    runs = [write_log(tmp_path / f"{name}.training", lines(floor=k)) for k, name in enumerate("abcdefghi", 3)]
    two = drawn(tmp_path / "two.svg", *runs[:2], against="steps")
    assert "a  3.30" in two
    assert f"b  {math.exp(4.25):.1f} / {math.exp(4.25):.1f}" in two
    assert "forward solid, backward dashed" in two
    assert ">steps<" in two
    many = drawn(tmp_path / "many.svg", *runs)
    assert "mean of the directions" in many
    assert f">i  {math.exp(11 - 2 / 20):,.0f}<" in many


def test_a_run_without_heldout_text_or_of_one_direction_is_drawn(tmp_path: Path) -> None:
    text = drawn(tmp_path / "x.svg", write_log(tmp_path / "m", lines(directions=())))
    assert "Training loss" in text
    assert "Held-out" not in text
    one = drawn(tmp_path / "y.svg", write_log(tmp_path / "m", lines(directions=("backward",))))
    assert ">backward  " in one
    assert ">forward  " not in one
    both = drawn(tmp_path / "z.svg", tmp_path / "m", write_log(tmp_path / "n", lines(directions=("backward",))))
    assert ">backward, log scale<" in both


def test_a_run_that_became_worse_is_marked_at_its_best(tmp_path: Path) -> None:
    entries = [*lines(), {"step": 210, "n_tokens": 640, "epoch": 3, "heldout_forward": 500.0}]
    assert ">best<" in drawn(tmp_path / "x.svg", write_log(tmp_path / "m", entries))


def test_the_first_report_and_figures_that_are_no_numbers_are_drawn_too(tmp_path: Path) -> None:
    draw_curves(write_log(tmp_path / "one", lines(1)), tmp_path / "one.png")
    report = {"n_tokens": 640, "epoch": 0}
    odd = [
        {"step": 1, **report, "loss": math.nan},
        {"step": 1, **report, "heldout_forward": math.inf, "heldout_backward": 1e300},
        {"step": 2, **report, "loss": 0.0},
        {"step": 2, **report, "heldout_forward": 2e9, "heldout_backward": 2e9},
    ]
    text = drawn(tmp_path / "odd.svg", write_log(tmp_path / "odd", odd, tail=b'{"step": 3, "n_'))
    assert ">forward  2.0e+09<" in text
    write_log(tmp_path / "none", odd[:2])
    with pytest.raises(DataError, match="neither losses nor perplexities"):
        draw_curves(tmp_path / "none", tmp_path / "none.png")


def test_hours_are_drawn_where_they_were_measured(tmp_path: Path) -> None:
    run = write_log(tmp_path / "m.training")
    with pytest.raises(DataError, match=r"log\.jsonl against hours: it has no times; use tokens or steps"):
        draw_curves(run, tmp_path / "x.png", against="hours")
    for seconds, unit in ((0.1, "seconds"), (10, "minutes"), (100, "hours")):
        write_times(run, seconds)
        assert f">{unit} of training<" in drawn(tmp_path / "x.svg", run, against="hours")


def test_an_empty_run_is_left_out_with_a_warning_and_refused_if_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [write_log(tmp_path / "begun.training", []), write_log(tmp_path / "m.training")]
    with caplog.at_level(logging.WARNING, logger="elmo"):
        assert "begun" not in drawn(tmp_path / "x.svg", *runs)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ["it has no log entries yet"]
    with pytest.raises(DataError, match=r"begun\.training/log\.jsonl: it has no log entries yet"):
        draw_curves(runs[0], tmp_path / "y.svg")
    with pytest.raises(DataError, match="at least one run"):
        draw_curves([], tmp_path / "y.svg")
    assert not (tmp_path / "y.svg").exists()


def test_a_name_that_no_font_can_draw_is_a_number_and_one_line_of_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [write_log(tmp_path / f"{name}.training") for name in ("m", "\U00012000")]
    with caplog.at_level(logging.WARNING, logger="elmo"):
        text = drawn(tmp_path / "x.svg", *runs)
    assert "m  4.25" in text
    assert "run 2  4.25" in text
    (message,) = [record.getMessage() for record in caplog.records if record.name == "elmo.plots.training"]
    assert message.startswith("no font can draw \U00012000: showing the runs as run 2, in the given order; ")


def test_a_chinese_name_is_drawn_where_a_font_is_installed(tmp_path: Path) -> None:
    from elmo.plots.figure import find_fonts

    if find_fonts("中文小模型")[1]:
        pytest.skip("no font with Chinese characters is installed")
    assert "中文小模型  4.25" in drawn(tmp_path / "x.svg", write_log(tmp_path / "中文小模型.training"))


@pytest.mark.parametrize("options", [{"against": "days"}, {"smooth": 0}])
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        drawn(tmp_path / "x.svg", write_log(tmp_path / "m"), **options)


@pytest.mark.parametrize("name", ["x.bmp", "file/x.png"])
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="x"):
        draw_curves(write_log(tmp_path / "m"), tmp_path / name)


def test_a_smoothed_line_keeps_straight_lines_and_takes_noise_away() -> None:
    values = np.linspace(9.0, 4.0, 101)
    for n in (1, 2, 5, 1000):
        assert moving_average(values, n)[0] == values[0]
        assert np.abs(moving_average(values, n) - values)[: 101 - n // 2 if n < 100 else 51] == pytest.approx(0)
    noise = np.random.default_rng(0).normal(size=1000)
    assert np.std(moving_average(noise, 50)[25:]) < 0.3
    assert moving_average(noise, 1) == pytest.approx(noise)
    assert len(moving_average(noise[:0], 5)) == 0


@pytest.mark.slow
def test_a_very_long_run_is_drawn_small(tmp_path: Path) -> None:
    entries = [{"step": k, "n_tokens": 640, "loss": 5 + math.sin(k)} for k in range(1, 20_000)]
    run = write_log(tmp_path / "m", entries)
    assert len(drawn(tmp_path / "x.svg", run)) < 400_000
    (reports,) = [_outline(_extract(read_log(run), 0, "loss", "steps", 1.0))]
    assert (len(reports.x), reports.x[0] < 20, reports.x[-1] > 19_980) == (2 * 2222, True, True)
    assert (reports.y.min(), reports.y.max()) == pytest.approx((4, 6), abs=1e-4)


def test_labels_are_moved_apart_but_not_out_of_order() -> None:
    for places in ([0.5] * 4, [0.0, 0.01, 0.5, 1.0, 0.99], [0.2, 0.25, 0.1]):
        moved = spread(places, 0.1)
        assert min(np.diff(sorted(moved))) >= 0.1 - 1e-9
        assert np.argsort(moved, kind="stable").tolist() == np.argsort(places, kind="stable").tolist()
        assert min(moved) >= 0
        assert max(moved) <= 1 + 1e-9
    assert spread([0.1, 0.9], 0.1) == [0.1, 0.9]


def test_counts_are_short() -> None:
    assert [format_short(n) for n in (0, 950, 12_500, 3e6, 1.25e9)] == ["0", "950", "12.5k", "3M", "1.25B"]


def test_the_figures_of_a_run_are_its_last_and_its_best(tmp_path: Path) -> None:
    entries = [*lines(), {"step": 210, "n_tokens": 640, "epoch": 3, "heldout_forward": 500.0}]
    found = summarize(read_log(write_log(tmp_path / "m.training", entries)))
    assert (found.run, found.step, found.tokens, found.epoch) == ("m", 210, 134_400, 3)
    assert found.loss == pytest.approx(4.25)
    assert (found.heldout_forward, found.heldout_backward) == (500.0, None)
    assert found.best is not None
    assert found.best.step == 200


def test_a_run_leaves_its_curves_in_its_folder(tmp_path: Path) -> None:
    folder = write_log(tmp_path / "m.training")
    assert write_curves(folder) == folder / "curves.png"
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_continues_with_a_warning_if_its_curves_cannot_be_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_log(tmp_path / "m.training")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # a broken installation
    with caplog.at_level(logging.WARNING, logger="elmo"):
        assert write_curves(folder) is None
    assert len(caplog.records) == 1


def test_a_missing_library_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = write_log(tmp_path / "m.training")
    with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[plots\]'"):
        draw_curves(folder, tmp_path / "x.png")
    with caplog.at_level(logging.WARNING, logger="elmo"):
        assert write_curves(folder) is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "skipping the picture of the curves: a picture requires an optional dependency: pip install 'pyelmo[plots]'"
    )
