"""What benchmarks of words in context and of tags count: by hand, and as scipy and scikit-learn do."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.lexicon.usages import Usage
from elmo.tasks.data.examples import TaggedSentence
from elmo.text.tokenizers import Tokens

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TOKENS = Tokens.from_words(["the", "bank", "lends", "money"])


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    """A benchmark by its name; they import each other as scripts do."""
    before = dict(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path.remove(str(BENCHMARKS))
    for name in sys.modules.keys() - before.keys():
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def target(benchmark: Any, judged: dict[str, float]) -> Any:
    return benchmark("substitutes").Target(Usage(TOKENS, 1, 2), "bank", judged, True)


# --- substitutes: F of the best ten, and generalised average precision ------------------------------


def test_f_counts_right_ones_over_all_targets_together(benchmark: Any) -> None:
    f_at_n = benchmark("substitutes").f_at_n
    targets = [target(benchmark, {"a": 1.0, "b": 0.6, "c": 0.1}), target(benchmark, {"d": 0.9})]
    generated = [["a", "x", "c"], ["y"]]
    # right: a of 3 + 1 given, 2 + 1 wanted
    assert f_at_n(targets, generated, 0.5 + 1e-4, is_lenient=False) == pytest.approx(2 * 1 / (4 + 3))
    # x and y, which nobody judged, do not count
    assert f_at_n(targets, generated, 0.5 + 1e-4, is_lenient=True) == pytest.approx(2 * 1 / (2 + 3))
    # c is conceivable, too
    assert f_at_n(targets, generated, 0.1, is_lenient=False) == pytest.approx(2 * 2 / (4 + 4))


def test_f_takes_the_best_ten_and_wants_no_more(benchmark: Any) -> None:
    f_at_n = benchmark("substitutes").f_at_n
    names = [f"w{k}" for k in range(12)]
    assert f_at_n([target(benchmark, dict.fromkeys(names, 1.0))], [names], 0.5, is_lenient=False) == 1.0
    late = [*(f"no{k}" for k in range(10)), *names]
    only = [target(benchmark, dict.fromkeys(names, 1.0))]
    assert f_at_n(only, [late], 0.5, is_lenient=False) == 0.0
    assert f_at_n(only, [late], 0.5, is_lenient=True) == 1.0


def test_average_precision_is_that_of_scikit_learn_where_gains_are_yes_or_no(benchmark: Any) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    average_precision = benchmark("substitutes").average_precision
    chance = np.random.default_rng(0)
    for _ in range(20):
        gains = chance.integers(0, 2, 8).astype(float)
        gains[chance.integers(8)] = 1.0
        names = [f"w{k}" for k in range(8)]
        order = chance.permutation(8)
        found = average_precision(dict(zip(names, gains, strict=True)), [names[k] for k in order])
        scores = -np.argsort(order).astype(float)  # first in the ranking: highest
        assert found == pytest.approx(metrics.average_precision_score(gains, scores))


def test_average_precision_weighs_gains_as_kishida_does(benchmark: Any) -> None:
    average_precision = benchmark("substitutes").average_precision
    gold = {"a": 0.8, "b": 0.4, "c": 0.0}
    ideal = 0.8 + (0.8 + 0.4) / 2
    assert average_precision(gold, ["a", "b", "c"]) == 1.0
    assert average_precision(gold, ["c", "b", "a"]) == pytest.approx((0.4 / 2 + 1.2 / 3) / ideal)
    assert average_precision({"a": 0.0}, ["a"]) is None


def test_warnings_are_counted_into_one_line(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("elmo.lexicon.substitutes")
    with benchmark("substitutes").WarningCounter("elmo.lexicon") as counter:
        for k in range(2000):
            logger.warning("%s: %r is not in the vocabulary; ranking by context only", k, "x")
        logger.info("not told")
    err = capsys.readouterr().err
    assert err == "2,000 × …: … is not in the vocabulary; ranking by context only\n"
    assert sum(counter.counts.values()) == 2000
    assert logging.getLogger("elmo.lexicon").handlers == []
    assert logging.getLogger("elmo.lexicon").propagate


# --- change and senses: Spearman with its interval, ARI, V, divergence ------------------------------


@pytest.mark.slow
def test_spearman_and_its_interval_are_those_of_scipy(benchmark: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    chance = np.random.default_rng(1)
    x = chance.normal(size=23)
    y = x + chance.normal(size=23)
    found, low, high = benchmark("change").with_interval(x, y)
    assert found == pytest.approx(stats.spearmanr(x, y).statistic)
    drawn = stats.bootstrap(
        (x, y), lambda a, b: stats.spearmanr(a, b).statistic, paired=True, vectorized=False,
        n_resamples=500, method="percentile", rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    assert (low, high) == (pytest.approx(drawn.low, abs=0.08), pytest.approx(drawn.high, abs=0.08))
    assert benchmark("change").with_interval(x, x * 2)[0] == pytest.approx(1.0)
    assert np.isnan(benchmark("change").with_interval(np.ones(len(x)), x)).all()  # a constant measure


def test_agreement_is_of_the_parting_and_not_of_its_names(benchmark: Any) -> None:
    pytest.importorskip("sklearn")
    agreement = benchmark("change").agreement
    gold, spelling = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 0, 1, 0, 1])
    assert agreement(gold, gold * -1 + 7, spelling)[:3] == (1.0, pytest.approx(1.0), 2)
    assert agreement(gold, gold * 0, spelling)[:3] == (0.0, 0.0, 1)
    # by hand, Hubert and Arabie 1985: 2 of the 15 pairs are together in both, 6 in gold, 7 in the guess
    ari, _, n, form = agreement(gold, np.array([0, 0, 1, 1, 1, 1]), spelling)
    expected = 6 * 7 / 15
    assert ari == pytest.approx((4 - expected) / ((6 + 7) / 2 - expected))
    assert n == 2
    assert form < ari


def test_v_measure_is_the_mean_of_homogeneity_and_completeness(benchmark: Any) -> None:
    pytest.importorskip("sklearn")
    stats = pytest.importorskip("scipy.stats")
    gold, guess = np.array([0, 0, 1, 1]), np.array([0, 1, 2, 2])
    together = stats.entropy([0.25, 0.25, 0.5])
    homogeneity, completeness = 1.0, stats.entropy([0.5, 0.5]) / together
    v = benchmark("change").agreement(gold, guess, gold)[1]
    assert v == pytest.approx(2 * homogeneity * completeness / (homogeneity + completeness))


def test_context_counts_tell_a_word_that_moved_from_one_that_stayed(benchmark: Any) -> None:
    def uses(*sentences: str) -> list[Usage]:
        return [Usage(Tokens.from_words(text.split()), 0, 1) for text in sentences for _ in range(6)]

    periods = {
        "stayed": {"1": uses("x ship sea"), "2": uses("x ship sea")},
        "moved": {"1": uses("x river water"), "2": uses("x money loan")},
    }
    stayed, moved = benchmark("change").ppmi_changes(periods)
    assert (stayed, moved) == (pytest.approx(0.0, abs=1e-9), pytest.approx(1.0))


def test_divergence_is_the_square_of_scipys_distance(benchmark: Any) -> None:
    pytest.importorskip("sklearn")
    distance = pytest.importorskip("scipy.spatial.distance")
    chance = np.random.default_rng(0)
    for _ in range(10):
        earlier, later = chance.integers(0, 4, 30), chance.integers(1, 6, 20)
        p, q = (np.bincount(one, minlength=6) / len(one) for one in (earlier, later))
        found = benchmark("synthetic_change").divergence(earlier, later)
        assert found == pytest.approx(distance.jensenshannon(p, q, base=2) ** 2)


# --- wsd: the gain over the first sense -------------------------------------------------------------


def test_the_interval_of_a_gain_is_that_of_paired_draws(benchmark: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    chance = np.random.default_rng(3)
    ours, theirs = chance.random(300) < 0.7, chance.random(300) < 0.6
    difference = 100 * (ours.astype(float) - theirs)
    low, high = benchmark("wsd")._interval(ours.tolist(), theirs.tolist())
    drawn = stats.bootstrap(
        (difference,), np.mean, n_resamples=1000, method="percentile", rng=np.random.default_rng(4)
    ).confidence_interval
    assert (low, high) == (pytest.approx(drawn.low, abs=1.0), pytest.approx(drawn.high, abs=1.0))
    assert benchmark("wsd")._interval([True] * 9, [True] * 9) == (0.0, 0.0)


def test_the_tenth_is_held_out_by_document(benchmark: Any) -> None:
    held_out = [benchmark("wsd")._is_held_out(f"br-{k}") for k in range(1000)]
    assert 60 < sum(held_out) < 140
    assert held_out == [benchmark("wsd")._is_held_out(f"br-{k}") for k in range(1000)]


# --- tagging: F1 of spans, or accuracy ---------------------------------------------------------------


def test_tags_are_scored_by_their_spans_where_they_mark_any(benchmark: Any) -> None:
    score = benchmark("task_peers").score
    words = ("Ann", "saw", "Bob")
    spans = [TaggedSentence(words, ("B-PER", "O", "B-PER"))]
    assert score(spans, [["B-PER", "O", "O"]]) == pytest.approx(2 / 3)  # precision 1, recall 1/2
    plain = [TaggedSentence(words, ("NOUN", "VERB", "NOUN"))]
    assert score(plain, [["NOUN", "NOUN", "NOUN"]]) == pytest.approx(2 / 3)
    assert score(plain, [["NOUN", "VERB", "NOUN"]]) == 1


# An interpreter of Flair's that finds in DEV what stands there, and needs the vectors it was promised.
STAND_IN = """#!{python}
import json, sys
from pathlib import Path
task = json.load(sys.stdin)
compile(sys.argv[2], "trainer", "exec")
assert Path(task["vectors"]).read_text().splitlines() == ["2 2", "ann 0.5 1.0", "00 2.0 3.0"]
Path(task["predictions"]).write_text(json.dumps([marks for _, marks in task["dev"]]))
"""


@pytest.mark.parametrize("tags", [("B-PER", "I-PER", "O"), ("NOUN", "O", "NOUN")])
def test_flair_is_given_and_gives_back_spans_and_plain_tags(
    benchmark: Any, tmp_path: Path, tags: tuple[str, ...]
) -> None:
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable))
    python.chmod(0o755)
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("the 9 9\nann 0.5 1\n00 2 3\n")  # Flair looks 42 up as 00
    data = [TaggedSentence(("Ann", "42", "."), tags)]
    found = benchmark("task_peers").flair_trained(1, data, data, vectors=vectors, place=tmp_path, python=str(python))
    assert found == [list(tags)]
