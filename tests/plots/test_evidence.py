"""Pictures of evidence: drawn if there is data, for any task names."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.evidence.tables import (
    Curve,
    CurvePoint,
    Evidence,
    Gain,
    MixSummary,
    ScoreTable,
    TableRow,
    TaskSummary,
    compare,
    format_evidence,
    summarize,
)
from elmo.plots.evidence import CURVES, GAINS, MIXES, _curves_figure, draw_pictures

NAMES = ("ner", "河岸 $x^2$ with a very, very long name that goes on and on", "qa", "srl")


def evidence(n_seeds: int = 3) -> Evidence:
    """Build evidence for four tasks without any run."""

    def scores(mean: float) -> list[float]:
        return [mean + 0.01 * k for k in range(n_seeds)]

    rows, curves, mixes = [], [], []
    for k, name in enumerate(NAMES):
        cells = {"baseline": summarize(scores(0.6 + 0.05 * k)), "input": summarize(scores(0.65 + 0.05 * k))}
        gain = compare(cells["input"], cells["baseline"])
        rows.append(TableRow(name, cells, (Gain("input", "baseline", gain),)))
        points = []
        for step, size in enumerate((12, 24, 60, 120, 300, 600, 1200)):
            one, two = summarize(scores(0.1 * step)), summarize(scores(0.1 * step + 0.15))
            points.append(CurvePoint(size * (k + 1), one, two, compare(two, one)))
        curves.append(Curve(name, tuple(points)))
        mixes.append(MixSummary(name, "input", "input", (0.2, 0.5, 0.3), None, 1.25))
        mixes.append(MixSummary(name, "both", "output", (0.1, 0.2, 0.7), (0.1, 0.1, 0.1), 0.5))
    return Evidence(
        tasks=tuple(TaskSummary(name, "tagging", "f1", "dev", 1200, 300, {}) for name in NAMES),
        n_seeds=n_seeds,
        sources={},
        tables=(ScoreTable(1, tuple(rows)),),
        curves=tuple(curves),
        mixes=tuple(mixes),
        runs=(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_seeds", [1, 3])
def test_all_pictures_are_drawn(tmp_path: Path, n_seeds: int) -> None:
    pytest.importorskip("matplotlib")
    drawn, left_out = draw_pictures(evidence(n_seeds), tmp_path)
    assert (sorted(drawn), left_out) == (sorted([CURVES, GAINS, MIXES]), [])
    for name in drawn:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_missing_evidence_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert draw_pictures(replace(evidence(), curves=(), mixes=()), tmp_path) == ([GAINS], [])


def test_without_matplotlib_pictures_are_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    drawn, left_out = draw_pictures(evidence(), tmp_path)
    assert (drawn, sorted(left_out)) == ([], sorted([CURVES, GAINS, MIXES]))
    assert not list(tmp_path.iterdir())


def test_the_curve_reports_how_few_examples_elmo_needs() -> None:
    text = "\n".join(format_evidence(evidence()))
    assert "With ELMo, 600 examples are as good as 1,200 without it (50%)." in text
    ahead = evidence().curves[0]
    behind = replace(ahead, points=tuple(replace(one, elmo=summarize([0.0])) for one in ahead.points))
    assert (ahead.n_enough, behind.n_enough) == (600, None)


def test_one_seed_has_no_intervals_in_the_text() -> None:
    text = "\n".join(format_evidence(evidence(1)))
    assert "±" not in text
    assert "[" not in text
    assert "one seed." in text


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_the_legend_is_inside_the_picture(n_tasks: int) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    curves = evidence().curves[:n_tasks]
    figure = _curves_figure(curves, {curve.task: "f1" for curve in curves})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,) = figure.legends
    box = legend.get_title().get_window_extent(canvas.get_renderer())
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width
