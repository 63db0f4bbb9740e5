"""The runs that tables and curves need."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elmo import ConfigError
from elmo.evidence.runs import EvidenceRun, condition_features, curve_sizes, list_runs, run_options
from elmo.tasks.fit import FitOptions


def test_runs_shared_by_two_tables_are_listed_once() -> None:
    runs = list_runs({"ner": 100, "pos": 50}, tables=[1, 2, 3], has_curve=False, n_seeds=2)
    assert len(runs) == len(set(runs)) == 2 * 6 * 2
    assert [run.task for run in runs] == ["ner"] * 12 + ["pos"] * 12
    assert len(list_runs({"ner": 100}, tables=[1], has_curve=False, n_seeds=3)) == 2 * 3
    with_curve = list_runs({"ner": 100}, tables=[1], has_curve=True, n_seeds=1)
    assert len(with_curve) == 2 * len(curve_sizes(100))


def test_a_curve_has_growing_sizes_and_ends_with_all_examples() -> None:
    assert curve_sizes(1000) == [10, 20, 50, 100, 250, 500, 1000]
    assert curve_sizes(80) == [4, 8, 20, 40, 80]
    for n in range(1, 60):
        sizes = curve_sizes(n)
        assert sizes[-1] == n
        assert all(a < b for a, b in pairwise(sizes))


def test_conditions_differ_only_in_elmo() -> None:
    words = {"dropout": 0.25, "characters": 7}
    assert condition_features("baseline", words).elmo == "none"
    assert condition_features("top_only", words).top_only
    assert (condition_features("lambda_1", words).mix_penalty, condition_features("input", words).mix_penalty) == (
        1.0,
        0.001,
    )
    for name in ("baseline", "input", "top_only", "lambda_1", "output", "both"):
        assert (condition_features(name, words).dropout, condition_features(name, words).characters) == (0.25, 7)


def test_fewer_examples_have_more_epochs_up_to_a_bound() -> None:
    fit = FitOptions(epochs=10, patience=3)
    assert run_options(EvidenceRun("ner", "input", 5, 100, 100), fit) == FitOptions(epochs=10, patience=3, seed=5)
    quarter = run_options(EvidenceRun("ner", "input", 1, 25, 100), fit)
    assert (quarter.epochs, quarter.patience, quarter.decay_patience) == (20, 6, 4)
    assert run_options(EvidenceRun("ner", "input", 1, 1, 100), fit).epochs == 40


def test_table_4_lists_random_vectors_static_vectors_and_elmo_for_each_size() -> None:
    runs = list_runs({"mt": 90, "ner": 50}, tables=[4], has_curve=False, n_seeds=2, sizes={"mt": [10, 90]})
    assert runs == [
        EvidenceRun("mt", condition, seed, size, 90)
        for size in (10, 90)
        for condition in ("random", "baseline", "elmo_only")
        for seed in (1, 2)
    ]


def test_no_tables_and_unknown_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="tables must be among 1, 2, 3, 4; found 5"):
        list_runs({}, tables=[1, 5], has_curve=False, n_seeds=1)
    with pytest.raises(ConfigError, match="choose at least one table or the curve"):
        list_runs({}, tables=[], has_curve=False, n_seeds=1)
