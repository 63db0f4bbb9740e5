"""Measure the speed of encoding in many situations, and draw it with the limit of the hardware.

usage: speed_chart.py [TEXT] [--out docs/speed.png] [--rounds N] [--sentences N] [--draw]

TEXT has one tokenized sentence per line; by default, random words. One panel each:

- sentences per call: a text of 1,024 sentences, in calls of 1, 4, 16, … sentences
- tokens per sentence: the same tokens, cut into sentences of equal length
- threads: one and two
- model size: presets with random weights; the other panels use ``small``

The cache of words is cleared before each text. Each type has a process per size and number of threads, and the
processes take turns in each round. The limit of a type is the speed of its matrix products alone: the multiplications
of the text (each distinct word once, no padding) at the rate of large products, which product_rates.py measures in
each round. Writes the picture and the numbers, with the suffix .json; ``--draw`` draws the stored numbers again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embedding import ROOT, System, random_model, random_text, read, start_elmo
from product_rates import TYPES, measure_rates, warn_if_busy

BATCHES = (1, 4, 16, 64, 256, 1024)
LENGTHS = (5, 10, 20, 40, 80, 160)
SIZES = ("mini", "small", "medium", "original")
SHARES = {"medium": 4, "original": 16}  # these sizes read a part of the text
THREADS = 2
PANELS = {
    "batch": "Sentences per call",
    "length": "Tokens per sentence",
    "threads": "Threads",
    "size": "Model size (cells, width)",
}
COLORS = {"float32": "#0072B2", "bfloat16": "#D55E00", "int8": "#009E73"}  # Okabe and Ito: safe for color blindness
MARKERS = {"float32": "o", "bfloat16": "s", "int8": "^"}


@dataclass(frozen=True)
class Case:
    """A point on the x axis of a panel: which model reads which text, and how."""

    panel: str
    x: int | str
    size: str
    threads: int
    text: str
    batch: int  # sentences per call; 0: all


@dataclass(frozen=True)
class Point:
    """The speed of one type in one case, in tokens per second."""

    panel: str
    x: int | str
    precision: str
    rate: float
    limit: float
    share: float  # of the limit: the median over rounds


def main() -> None:
    """Measure and draw, or only draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "speed.png")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=1024)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--draw", action="store_true", help="draw the stored numbers, without measuring")
    options = parser.parse_args()
    numbers = options.out.with_suffix(".json")
    if not options.draw:
        warn_if_busy()
        points = measure(options)
        numbers.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n", encoding="utf-8")
    points = [Point(**row) for row in json.loads(numbers.read_text(encoding="utf-8"))]
    print_points(points)
    draw(points, options.out)
    print(f"wrote {options.out} and {numbers}")


def measure(options: argparse.Namespace) -> list[Point]:
    """Measure every case in every type, in rounds."""
    with tempfile.TemporaryDirectory(prefix="elmo-") as name:
        folder = Path(name)
        cases = plan_cases(folder, options)
        systems: dict[tuple[str, str, int], System] = {}
        for case in cases:
            for precision in TYPES:
                key = (precision, case.size, case.threads)
                if key not in systems:
                    model = folder / case.size
                    if not model.exists():
                        random_model(model, case.size)
                    systems[key] = start_elmo(str(model), precision, n_threads=case.threads)
        for (_, size, _), system in systems.items():
            system.rate(next(Path(case.text) for case in cases if case.size == size), 0)  # warm-up
        work = {
            case: systems["float32", case.size, case.threads].send(op="work", file=case.text)["multiplications"]
            for case in cases
        }
        speeds: dict[tuple[Case, str], list[tuple[float, float]]] = {}  # of each round: measured, limit
        for number in range(options.rounds):
            rates = {n: measure_rates(n_threads=n) for n in sorted({case.threads for case in cases})}
            for case in cases:
                for precision in TYPES:
                    limit = rates[case.threads].get(precision, rates[case.threads]["float32"]) / work[case]
                    rate = systems[precision, case.size, case.threads].rate(Path(case.text), case.batch)
                    speeds.setdefault((case, precision), []).append((rate, limit))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for system in systems.values():
            system.stop()
    return [
        Point(
            case.panel, case.x, precision, rate=statistics.median(rate for rate, _ in rounds),
            limit=statistics.median(limit for _, limit in rounds),
            share=statistics.median(rate / limit for rate, limit in rounds),
        )
        for (case, precision), rounds in speeds.items()
    ]  # fmt: skip


def plan_cases(folder: Path, options: argparse.Namespace) -> list[Case]:
    """Write the texts and list the cases of all panels."""
    sentences = read(str(options.text)) if options.text else [row.split() for row in random_text()]
    sentences = sentences[: options.sentences]
    tokens = [token for sentence in sentences for token in sentence]

    def write(name: str, rows: list[list[str]]) -> str:
        path = folder / f"{name}.txt"
        path.write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    whole = write("whole", sentences)
    cases = [Case("batch", n, "small", THREADS, whole, n) for n in BATCHES if n <= len(sentences)]
    for length in LENGTHS:
        rows = [tokens[k : k + length] for k in range(0, len(tokens) // length * length, length)]
        if rows:
            cases.append(Case("length", length, "small", THREADS, write(f"length-{length}", rows), 0))
    cases += [Case("threads", n, "small", n, whole, 0) for n in (1, THREADS)]
    for size in options.sizes:
        part = write(f"part-{size}", sentences[: max(1, len(sentences) // SHARES.get(size, 1))])
        cases.append(Case("size", size, size, THREADS, part, 0))
    return cases


def print_points(points: list[Point]) -> None:
    """Print the numbers of the picture."""
    for panel, title in PANELS.items():
        print(f"\n{title:26}" + "".join(f"{name:>22}" for name in TYPES))
        rows: dict[int | str, dict[str, Point]] = {}
        for point in points:
            if point.panel == panel:
                rows.setdefault(point.x, {})[point.precision] = point
        for x, row in rows.items():
            cells = (f"{row[name].rate:,.0f} ({row[name].share:.0%})" if name in row else "" for name in TYPES)
            print(f"{x!s:26}" + "".join(f"{cell:>22}" for cell in cells))


def draw(points: list[Point], path: Path) -> None:
    """Draw one panel per situation: the speed of each type as a line, its limit dashed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    style: dict[Any, Any] = {
        "font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#dddddd", "grid.linewidth": 0.7, "axes.axisbelow": True,
    }  # fmt: skip
    with mpl.rc_context(style):
        figure, axes = plt.subplots(2, 2, figsize=(11, 8.2))
        for axis, (panel, title) in zip(axes.flat, PANELS.items(), strict=True):
            shown = [point for point in points if point.panel == panel]
            values = list(dict.fromkeys(point.x for point in shown))
            for precision in TYPES:
                line = [point for point in shown if point.precision == precision]
                x = [values.index(point.x) for point in line]
                color = COLORS[precision]
                axis.plot(x, [point.limit for point in line], color=color, linestyle=(0, (4, 3)), linewidth=1.2)
                axis.plot(
                    x, [point.rate for point in line], color=color, marker=MARKERS[precision], markersize=7, linewidth=2
                )
            axis.set_xticks(range(len(values)), [label(panel, value) for value in values])
            axis.margins(x=0.12 if len(values) > 2 else 0.4)
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_title(title, loc="left", fontweight="bold")
            axis.set_ylabel("tokens per second")
        handles = [
            Line2D([], [], color=COLORS[name], marker=MARKERS[name], markersize=7, linewidth=2, label=name)
            for name in TYPES
        ]
        handles.append(
            Line2D(
                [], [], color="#555555", linestyle=(0, (4, 3)), linewidth=1.2, label="limit: its matrix products alone"
            )
        )
        figure.legend(handles=handles, loc="upper center", ncols=len(handles), frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.95), h_pad=2, w_pad=2)
        figure.savefig(path, dpi=150)
        plt.close(figure)


def label(panel: str, value: int | str) -> str:
    """The text of a tick; a model size has its number of cells and the width of a direction."""
    if panel != "size":
        return f"{value:,}"
    from elmo.train import PRESETS

    lstm = PRESETS[str(value)].lstm
    return f"{value}\n({lstm.cell_width:,}, {lstm.state_width})"


if __name__ == "__main__":
    main()
