"""Write the tables and draw the pictures of questions.py from the results of its steps.

usage: questions_report.py FOLDER

Writes FOLDER/tables.md, models.png, curves.png and tasks.png. Intervals are 95% intervals. They resample blocks of
sentences (perplexity), are Wilson intervals (parts of speech, WiC, senses), or t intervals over seeds (tasks). They do
not contain the effect of another seed in training the biLM: this is the spread of the reference model over its seeds.
A star marks a value outside of the 95% prediction interval of one more run of the reference, so that another seed
alone does not explain it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elmo.evidence.tables import ScoreSummary, compare, summarize, t_quantile
from elmo.lexicon.word_pairs import wilson_interval
from elmo.plots.figure import draw_figure, new_figure, style_axes
from elmo.plots.training import COLORS, GRID
from elmo.storage.atomic import atomic_file

REFERENCE = "lstm-2"
QUESTIONS = {
    "How many layers?": ("lstm-1", REFERENCE, "lstm-3", "lstm-4"),
    "Characters, words or both?": (REFERENCE, "words", "both"),
    "LSTM or transformer?": (REFERENCE, "transformer", "transformer-6"),
    "Skip connection or not?": (REFERENCE, "no-skip-2", "lstm-4", "no-skip-4"),
}
CURVES = "curves.png"
N_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 1 if self.value >= 100 else 2
        return f"{self.value:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def main() -> None:
    """Write tables and pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write_tables(folder)
    write_pictures(folder)
    print((folder / "tables.md").read_text(encoding="utf-8"))


# --- values --------------------------------------------------------------------------------------------------


class Results:
    """The results of the steps that have run."""

    def __init__(self, folder: Path) -> None:
        self.steps: dict[str, dict[str, Any]] = {}
        for path in sorted((folder / "steps").glob("*.json")):
            values = json.loads(path.read_text())
            self.steps[path.stem] = values["result"]
        self.settings = json.loads((folder / "settings.json").read_text())

    def labels(self, name: str) -> list[str]:
        """Return the models with this name, one per seed."""
        found = [title.removeprefix("train-") for title in self.steps if title.startswith(f"train-{name}-seed")]
        return sorted(found, key=lambda label: int(label.rpartition("seed")[2]))

    def scores(self, prefix: str) -> list[float]:
        """Return the scores of all seeds of a task."""
        return [step["score"] for title, step in self.steps.items() if title.rpartition("-")[0] == prefix]

    def task(self, name: str, condition: str) -> ScoreSummary | None:
        """Return the scores of a task with the reference model."""
        is_probe = (name, condition) == ("ner", "frozen")
        scores = self.scores(f"ner-{REFERENCE}-seed0" if is_probe else f"task-{name}-{condition}")
        return summarize(scores) if scores else None

    def tasks(self) -> dict[str, list[str]]:
        """Return the names of the tasks, with the conditions that have results."""
        found: dict[str, list[str]] = {}
        for title in self.steps:
            if title.startswith("task-"):
                name, condition = title.removeprefix("task-").rpartition("-")[0].split("-", 1)
                found.setdefault(name, [])
                if condition not in found[name]:
                    found[name].append(condition)
        for name, conditions in found.items():
            if self.task(name, "frozen") and "frozen" not in conditions:
                conditions.append("frozen")
        return found


def pool_blocks(step: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return the sums of all blocks of all texts: nats and number of predictions (block, 2)."""
    return np.array([block for text in step.values() for block in text["blocks"]])


def estimate_perplexity(blocks: np.ndarray[Any, Any]) -> Estimate:
    """Return the perplexity with an interval from resampled blocks."""
    return estimate_from_blocks(blocks, lambda sums: np.exp(sums[..., 0] / sums[..., 1]))


def estimate_ratio(blocks: np.ndarray[Any, Any], reference: np.ndarray[Any, Any]) -> Estimate:
    """Return the change of the perplexity compared with the reference, in percent, on the same blocks."""
    both = np.column_stack([blocks[:, 0] - reference[:, 0], blocks[:, 1]])
    return estimate_from_blocks(both, lambda sums: 100 * (np.exp(sums[..., 0] / sums[..., 1]) - 1))


def estimate_from_blocks(blocks: np.ndarray[Any, Any], function: Callable[[Any], Any]) -> Estimate:
    """Apply a function to the sum of all blocks, and to that of each resample."""
    generator = np.random.default_rng(0)
    drawn = generator.integers(len(blocks), size=(N_RESAMPLES, len(blocks)))
    low, high = np.percentile(function(blocks[drawn].sum(axis=1)), [2.5, 97.5])
    return Estimate(float(function(blocks.sum(axis=0))), float(low), float(high))


def estimate_share(share: float, n: int) -> Estimate:
    """Return a share in percent, with its Wilson interval."""
    low, high = wilson_interval(round(share * n), n)
    return Estimate(100 * share, 100 * low, 100 * high)


def estimate_mean(scores: Sequence[float]) -> Estimate:
    """Return the mean of scores in percent, with its t interval over seeds."""
    mean = 100 * statistics.fmean(scores)
    margin = math.nan
    if len(scores) > 1:
        margin = 100 * t_quantile(len(scores) - 1) * statistics.stdev(scores) / math.sqrt(len(scores))
    return Estimate(mean, mean - margin, mean + margin)


def choose_layer(layers: Mapping[str, Mapping[str, float]], by: str) -> str:
    """Return the name of the best layer, chosen on data that are not reported."""
    return max(layers, key=lambda name: layers[name][by])


def select_rows(step: Mapping[str, Any], method: str, part: str) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a method of word sense disambiguation, by layer."""
    return {row["layer"]: row for row in step["rows"] if (row["method"], row["part"]) == (method, part)}


def estimate_senses(step: Mapping[str, Any], method: str, *, layer: str | None = None) -> Estimate:
    """Return the F1 on the tenth of SemCor, of one layer or of the best one."""
    rows = select_rows(step, method, "tenth")
    row = rows[layer or max(rows, key=lambda name: rows[name]["f1"])]
    return estimate_share(row["f1"], row["n"])


def measure(results: Results, label: str) -> dict[str, Estimate]:
    """Return all measures of a model."""
    steps, found = results.steps, {}
    if f"perplexity-{label}" in steps:
        found["perplexity"] = estimate_perplexity(pool_blocks(steps[f"perplexity-{label}"]))
    if f"pos-{label}" in steps:
        step = steps[f"pos-{label}"]
        found["parts of speech, %"] = estimate_share(step["layers"]["mix"]["accuracy"], step["n"])
    if f"wic-{label}" in steps:
        step = steps[f"wic-{label}"]
        layer = choose_layer(step["layers"], by="tuned")
        found["WiC, %"] = estimate_share(step["layers"][layer]["accuracy"], step["n"])
    if f"wsd-{label}" in steps:
        found["senses by centroid, F1"] = estimate_senses(steps[f"wsd-{label}"], "centroid")
        found["senses by neighbors, F1"] = estimate_senses(steps[f"wsd-{label}"], "knn")
    if scores := results.scores(f"ner-{label}"):
        found["entities, F1"] = estimate_mean(scores)
    return found


def predict_runs(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% prediction interval for one more run, from at least two."""
    if len(values) < 2:
        return None
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    margin = t_quantile(len(values) - 1) * spread * math.sqrt(1 + 1 / len(values))
    return mean - margin, mean + margin


# --- tables --------------------------------------------------------------------------------------------------


def write_tables(folder: Path) -> None:
    """Write tables.md from the results so far."""
    with atomic_file(folder / "tables.md") as temporary:
        temporary.write_text("\n".join(format_report(Results(folder))) + "\n", encoding="utf-8")


def format_report(results: Results) -> Iterator[str]:
    """Yield the lines of the report."""
    measures = {label: measure(results, label) for name in all_models(results) for label in results.labels(name)}
    settings = ", ".join(f"{name} {value}" for name, value in results.settings.items())
    yield from (f"Settings: {settings}.", "")
    yield from format_speeds(results)
    yield from format_seeds(results, measures)
    intervals = {
        name: predict_runs([measures[label][name].value for label in results.labels(REFERENCE)])
        for name in next(iter(measures.values()), {})
        if all(name in measures[label] for label in results.labels(REFERENCE))
    }
    for question, names in QUESTIONS.items():
        shown = [name for name in names if results.labels(name)]
        if len(shown) > 1:
            yield from format_question(results, question, shown, measures, intervals)
    yield from format_layers(results)
    yield from format_tasks(results)


def all_models(results: Results) -> list[str]:
    """Return the names of the models that were trained, in the order of the questions."""
    names = dict.fromkeys(name for names in QUESTIONS.values() for name in names)
    return [name for name in names if results.labels(name)]


def format_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield from (f"## {title}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|")
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def format_speeds(results: Results) -> Iterator[str]:
    """Yield the tables of speeds and learning rates."""
    if "speeds" in results.steps:
        step = results.steps["speeds"]
        rows = [
            [
                name,
                f"{speed:,.0f}",
                f"{speed / step['speeds'][REFERENCE]:.2f}",
                f"{spread_of(step['rounds'][name]):.1%}",
            ]
            for name, speed in step["speeds"].items()
        ]
        header = ["model", "tokens per second", "compared with the reference", "spread of the rounds"]
        yield from format_table("Training speed", header, rows)
    rates = [
        [title.removeprefix("rate-").rpartition("-")[0], title.rpartition("-")[2], f"{step['heldout']:.1f}"]
        for title, step in results.steps.items()
        if title.startswith("rate-")
    ]
    if rates:
        yield from format_table("Learning rates", ["model", "rate", "held-out perplexity"], rates)


def spread_of(values: Sequence[float]) -> float:
    """Return the standard deviation as a share of the mean."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def format_seeds(results: Results, measures: Mapping[str, Mapping[str, Estimate]]) -> Iterator[str]:
    """Yield the table of the reference model with several seeds."""
    labels = results.labels(REFERENCE)
    names = list(measures[labels[0]]) if labels else []
    rows = [
        [name, *(f"{measures[label][name].value:.2f}" for label in labels),
         *([f"{statistics.stdev([measures[label][name].value for label in labels]):.2f}"] if len(labels) > 1 else [])]
        for name in names
        if all(name in measures[label] for label in labels)
    ]  # fmt: skip
    if rows:
        header = ["measure", *(f"seed {label.rpartition('seed')[2]}" for label in labels)]
        yield from format_table("The reference model", [*header, *(["spread"] if len(labels) > 1 else [])], rows)


def format_question(
    results: Results,
    question: str,
    names: Sequence[str],
    measures: Mapping[str, Mapping[str, Estimate]],
    intervals: Mapping[str, tuple[float, float] | None],
) -> Iterator[str]:
    """Yield the table of one question."""
    shown = {name: results.labels(name)[0] for name in names}
    columns = list(dict.fromkeys(column for label in shown.values() for column in measures[label]))
    reference = results.steps.get(f"perplexity-{shown.get(REFERENCE)}")
    rows = []
    for label in shown.values():
        train, cells = results.steps[f"train-{label}"], []
        for column in columns:
            estimate, interval = measures[label].get(column), intervals.get(column)
            text = "" if estimate is None else str(estimate)
            if estimate is not None and interval is not None and not interval[0] <= estimate.value <= interval[1]:
                text += " *"
            cells.append(text)
        change = ""
        if reference is not None and f"perplexity-{label}" in results.steps and label != shown[REFERENCE]:
            ratio = estimate_ratio(pool_blocks(results.steps[f"perplexity-{label}"]), pool_blocks(reference))
            change = f"{ratio.value:+.1f}% ({ratio.low:+.1f} to {ratio.high:+.1f})"
        rows.append([train["title"], f"{train['tokens'] / 1e6:.2f}", change, *cells])
    yield from format_table(question, ["model", "million tokens", "perplexity compared", *columns], rows)


def format_layers(results: Results) -> Iterator[str]:
    """Yield the tables of single layers and of their combinations, for the reference, a transformer and MiniLM."""
    labels = [*results.labels(REFERENCE)[:1], *results.labels("transformer")[:1], "minilm"]
    concatenated = results.steps.get("pos-concatenated")
    for label in labels:
        rows: dict[str, list[str]] = {}
        pos, wic, senses = (results.steps.get(f"{kind}-{label}") for kind in ("pos", "wic", "wsd"))
        probes = dict(pos["layers"]) if pos else {}
        if label == labels[0] and label != "minilm" and concatenated:
            probes["concat"] = concatenated["layers"]["0"]
        layers = dict.fromkeys((*probes, *(wic["layers"] if wic else ()),
                                *(select_rows(senses, "knn", "tenth") if senses else ())))  # fmt: skip
        for layer in layers:
            n_pos, n_wic = (step["n"] if step else 0 for step in (pos, wic))
            found = [
                estimate_share(probes[layer]["accuracy"], n_pos) if layer in probes else None,
                estimate_share(wic["layers"][layer]["accuracy"], n_wic) if wic and layer in wic["layers"] else None,
            ]
            for method in ("centroid", "knn"):
                is_found = senses and layer in select_rows(senses, method, "tenth")
                found.append(estimate_senses(senses, method, layer=layer) if senses and is_found else None)
            rows[layer] = ["" if estimate is None else str(estimate) for estimate in found]
        if rows:
            header = ["layer", "parts of speech, %", "WiC, %", "senses by centroid, F1", "senses by neighbors, F1"]
            yield from format_table(f"Layers: {label}", header, [[layer, *cells] for layer, cells in rows.items()])


def format_tasks(results: Results) -> Iterator[str]:
    """Yield the table of ways to use the reference model in tasks."""
    rows = []
    for name, conditions in results.tasks().items():
        frozen = results.task(name, "frozen")
        for condition in conditions:
            summary = results.task(name, condition)
            assert summary is not None
            gain = ""
            if frozen is not None and condition != "frozen":
                difference = compare(summary, frozen)
                gain = f"{100 * difference.difference:+.2f}"
                if difference.interval is not None:
                    gain += f" ({100 * difference.interval[0]:+.2f} to {100 * difference.interval[1]:+.2f})"
            rows.append([name, condition, str(estimate_mean(summary.scores)), str(len(summary.scores)), gain])
    if rows:
        header = ["task", "condition", "score, %", "seeds", "compared with frozen layers, mixed"]
        yield from format_table("Concatenated, trained with the task, adapted, or MiniLM", header, rows)


# --- pictures ------------------------------------------------------------------------------------------------


def write_pictures(folder: Path) -> None:
    """Draw the pictures for which there are results."""
    results = Results(folder)
    names = all_models(results)
    measures = {name: measure(results, results.labels(name)[0]) for name in names}
    columns = list(dict.fromkeys(column for found in measures.values() for column in found))
    if names:
        draw_figure(folder / CURVES, lambda: build_curves(results, names))
    if columns:
        seeds = {column: [found[column].value for label in results.labels(REFERENCE)
                          if column in (found := measure(results, label))] for column in columns}  # fmt: skip
        titles = {name: results.steps[f"train-{results.labels(name)[0]}"]["title"] for name in names}
        rows = {titles[name]: measures[name] for name in names}
        draw_figure(folder / "models.png", lambda: build_panels(rows, columns, seeds))
    tasks = results.tasks()
    if tasks:
        conditions = list(dict.fromkeys(condition for found in tasks.values() for condition in found))
        rows = {
            condition: {
                name: estimate_mean(summary.scores) for name in tasks if (summary := results.task(name, condition))
            }
            for condition in conditions
        }
        draw_figure(folder / "tasks.png", lambda: build_panels(rows, list(tasks), {}))


def build_curves(results: Results, names: Sequence[str]) -> Any:
    """Draw the held-out perplexity of each model against its training time."""
    figure = new_figure(7.2, 4.4, layout="constrained")
    axes = figure.add_subplot()
    for k, name in enumerate(names):
        train = results.steps[f"train-{results.labels(name)[0]}"]
        minutes, perplexities = zip(*train["curve"], strict=True)
        style = ("-", "--")[k // len(COLORS) % 2]
        axes.plot(minutes, perplexities, style, color=COLORS[k % len(COLORS)], label=train["title"], linewidth=1.6)
    axes.set_yscale("log")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("held-out perplexity")
    axes.legend(frameon=False, fontsize=8)
    style_axes(axes, grid="y", color=GRID)
    return figure


def build_panels(
    rows: Mapping[str, Mapping[str, Estimate]], columns: Sequence[str], seeds: Mapping[str, Sequence[float]]
) -> Any:
    """Draw a panel for each measure, with a point and an interval for each row; a band shows the reference's seeds."""
    figure = new_figure(2.2 + 2.1 * len(columns), 1.2 + 0.32 * len(rows), layout="constrained")
    panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for axes, column in zip(panels, columns, strict=True):
        if len(seeds.get(column, ())) > 1:
            axes.axvspan(min(seeds[column]), max(seeds[column]), color="#d9d9d9", linewidth=0)
        for y, estimates in enumerate(rows.values()):
            if (estimate := estimates.get(column)) is not None:
                if not math.isnan(estimate.low):
                    axes.plot([estimate.low, estimate.high], [y, y], color=COLORS[0], linewidth=1.4)
                axes.plot([estimate.value], [y], "o", color=COLORS[0], markersize=4.5)
        axes.set_title(column, fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        style_axes(axes, grid="x", color=GRID)
    panels[0].set_yticks(range(len(rows)), list(rows), fontsize=8)
    panels[0].invert_yaxis()
    return figure


if __name__ == "__main__":
    main()
