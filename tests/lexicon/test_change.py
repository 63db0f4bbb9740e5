"""Ranking words by change in usages, corpora and files of uses; measures and tests; the command."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from elmo import ConfigError, DataError
from elmo.embed.elmo import Elmo
from elmo.lexicon.change import (
    MEASURES,
    ChangeOptions,
    Changes,
    MeasureName,
    WordCounter,
    adjust_p_values,
    build_measure,
    change_in_corpora,
    change_in_uses,
    estimate_change,
    frequent_words,
    measure_change,
    rank_correlation,
)
from elmo.lexicon.usages import Usage, Usages, WordFilter, embed_usages, respell
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens

pytest.importorskip("sklearn")
from elmo.cli import change as cli_change
from elmo.cli.console import Console
from elmo.formats import native
from tests.formats.tiny import tiny_model


def usages(n: int, *, text: str = "a {} here", moved: float = 0.0, n_moved: int | None = None, seed: int = 0) -> Usages:
    """Return usages around one point, the last ``n_moved`` of them around another."""
    rows = 5 + np.random.default_rng(seed).normal(size=(n, 8))
    if n_moved != 0:
        rows[-(n_moved or n) :, 0] += moved
    items = tuple(Usage(Tokens(None, tuple(text.format(k).split()), None), 1, 2, f"{k}") for k in range(n))
    return Usages(items, rows)


def words() -> list[tuple[str, dict[str, Usages]]]:
    moved = usages(40, text="new {} x", moved=9, n_moved=25, seed=4)
    return [
        ("still", {"old": usages(30, seed=1), "new": usages(30, seed=2)}),
        ("moved", {"old": usages(30, text="old {} x", seed=3), "new": moved}),
        ("rare", {"old": usages(30), "new": usages(3)}),
    ]


@pytest.fixture(scope="module")
def found() -> Changes:
    frequencies = {word: {"old": 10.0, "new": 12.0 + k} for k, word in enumerate(("still", "moved", "rare"))}
    return measure_change(words(), ["old", "new"], per_million=frequencies, options=ChangeOptions(permutations=200))


def test_words_are_ranked_by_change_with_p_values_and_rare_words_are_skipped(found: Changes) -> None:
    assert [word.word for word in found.words] == ["moved", "still"]
    moved, still = (word.overall for word in found.words)
    assert moved.p == 1 / 201
    assert moved.q == pytest.approx(2 / 201)
    assert still.q > 0.05
    assert moved.low < moved.value < moved.high
    assert [(skipped.word, skipped.reason) for skipped in found.skipped] == [
        ("rare", "expected at least 10 usages in each period, found 3 in new")
    ]
    assert found.frequency_correlation == pytest.approx(1.0)


def test_appeared_usages_belong_to_the_growing_sense_and_are_no_outliers(found: Changes) -> None:
    step = found.words[0].overall
    assert len(step.appeared) == len(step.declined) == 3
    for usage in step.appeared:
        assert usage.sentence.tokens[0] == "new"
        assert int(usage.place) >= 15  # the last 25 of 40 lie elsewhere
    assert {usage.sentence.tokens[0] for usage in step.declined} == {"old"}


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_ranks_the_moved_word_first(measure: MeasureName) -> None:
    options = ChangeOptions(measure=measure, permutations=50)
    changes = measure_change(words(), ["old", "new"], options=options)
    assert [word.word for word in changes.words] == ["moved", "still"]
    assert changes.words[0].overall.p == 1 / 51


def test_more_than_two_periods_give_each_step_and_first_to_last() -> None:
    by_period = {"a": usages(15, seed=1), "b": usages(15, seed=2), "c": usages(15, moved=9, seed=3)}
    options = ChangeOptions(permutations=100, keep_usages=True)
    found = measure_change([("word", by_period)], ["a", "b", "c"], options=options)
    steps = found.words[0].steps
    assert [(step.earlier, step.later) for step in steps] == [("a", "b"), ("b", "c"), ("a", "c")]
    assert steps[0].p > 0.02
    assert steps[1].p == steps[2].p == 1 / 101
    assert found.words[0].overall == steps[2]
    assert found.words[0].labels is not None
    assert len(found.words[0].labels) == 45
    assert len(list(found.rows())) == 3
    assert json.loads(json.dumps(found.to_json()))["words"][0]["steps"][2]["later"] == "c"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "cosine"}, "measure must be one of apd"),
        ({"min_count": 0}, "min_count must be at least 1; found 0"),
        ({"periods": ["old"]}, "two or more different names; found 'old'"),
        ({"periods": ["old", "old"]}, "two or more different names"),
    ],
)
def test_wrong_options_and_periods_are_rejected(options: dict[str, object], message: str) -> None:
    periods = options.pop("periods", ["old", "new"])
    with pytest.raises(ConfigError, match=message):
        measure_change(words(), periods, options=ChangeOptions(**options))  # pyright: ignore[reportArgumentType]


def test_default_words_are_frequent_in_each_corpus_and_no_function_words() -> None:
    old = {"the": 90, "bank": 20, "river": 5, "of": 30, "x1": 30, "苹果": 12, "人": 40}
    new = {"the": 80, "bank": 10, "river": 50, "of": 20, "x1": 20, "苹果": 11, "gone": 90, "人": 40}
    assert frequent_words([old, new], min_count=10, max_words=9, skip=1) == ["bank", "苹果"]
    assert frequent_words([old, new], min_count=5, max_words=2, skip=0) == ["the", "river"]


def text(*lines: str) -> Callable[[], Iterable[Sentence]]:
    return lambda: (
        Sentence(Tokens(None, tuple(line.split()), None), "t", number) for number, line in enumerate(lines, start=1)
    )


OLD = text(*[f"the bank of the river {k}" for k in range(8)])
NEW = text(*[f"The Bank lent the money {k}" for k in range(8)], "", "no tree")


def test_corpora_are_read_counted_and_compared(elmo: Elmo) -> None:
    progress: list[tuple[int, int]] = []
    found = change_in_corpora(
        elmo, {"old": OLD, "new": NEW}, words=["bank", "tree", "the", "the bank"], limit=8,
        options=ChangeOptions(min_count=2, permutations=20),
        on_progress=lambda n, n_all: progress.append((n, n_all)),
    )  # fmt: skip
    assert {word.word for word in found.words} == {"bank", "the", "the bank"}
    by_word = {word.word: word for word in found.words}
    assert by_word["bank"].per_million == {"old": 8e6 / 48, "new": 8e6 / 50}
    assert by_word["the"].per_million == {"old": 16e6 / 48, "new": 16e6 / 50}
    assert by_word["the"].n_usages == {"old": 8, "new": 8}  # the limit
    assert [skipped.word for skipped in found.skipped] == ["tree"]
    assert progress[-1] == (48, 48)
    # vectors belong to their usages, in any order of encoding
    kept = change_in_corpora(
        elmo,
        {"old": OLD, "new": NEW},
        words=["bank", "the"],
        options=ChangeOptions(min_count=2, permutations=5, keep_usages=True),
    )
    for word in kept.words:
        for embedded in (word.usages or {}).values():
            read = [respell(usage, word.word) for usage in embedded.items]
            assert np.allclose(embedded.vectors, embed_usages(elmo, read).vectors, atol=1e-6)
    assert {usage.word for usage in (kept.words[0].usages or {})["new"].items} & {"Bank", "The"}


def test_spelling_is_a_change_only_as_written(elmo: Elmo) -> None:
    lines = [f"a bank {k}" for k in range(6)]
    corpora = {"old": text(*lines), "new": text(*(line.replace("bank", "BANK") for line in lines))}
    values = [
        change_in_corpora(
            elmo,
            corpora,
            words=["bank"],
            is_as_written=is_as_written,
            options=ChangeOptions(min_count=2, permutations=5),
        )
        .words[0]
        .overall.p
        for is_as_written in (False, True)
    ]
    assert values[0] == 1.0
    assert values[1] < 0.5


@pytest.mark.slow
def test_one_changed_word_among_many_is_significant(elmo: Elmo) -> None:
    words = [f"w{k}" for k in range(60)]
    old = [f"{word} x" for word in words for _ in range(16)]
    new = [f"w7 {'z' * 9}" if line == "w7 x" else line for line in old]
    found = change_in_corpora(
        elmo, {"old": text(*old), "new": text(*new)}, words=words, options=ChangeOptions(min_count=2)
    )
    assert [word.word for word in found.words if word.overall.q < 0.05] == ["w7"]


def test_words_of_other_scripts_count_as_words() -> None:
    counts = {"हिन्दी": 5, "ที่นี่": 5, "12": 5, "co-op": 5, "...": 5}
    assert set(frequent_words([counts], min_count=1, max_words=9, skip=0)) == {"हिन्दी", "ที่นี่", "co-op"}


def test_without_words_the_words_of_the_corpora_are_measured(elmo: Elmo) -> None:
    found = change_in_corpora(
        elmo, {"old": OLD, "new": NEW}, skip=1, options=ChangeOptions(min_count=2, permutations=5)
    )
    assert [word.word for word in found.words] == ["bank"]  # the is the most frequent
    with pytest.raises(DataError, match="not among the 150 most frequent, found none; use --words, or a smaller"):
        change_in_corpora(elmo, {"old": OLD, "new": NEW})


def test_an_empty_corpus_and_a_small_limit_are_rejected(elmo: Elmo) -> None:
    for listed in (["bank"], None):
        with pytest.raises(DataError, match="empty: expected text for this period, found no words"):
            change_in_corpora(elmo, {"old": OLD, "empty": text("", "")}, words=listed)
    with pytest.raises(ConfigError, match="limit must be at least min_count, which is 10; found 5"):
        change_in_corpora(elmo, {"old": OLD, "new": NEW}, limit=5)


def test_uses_are_compared_and_unknown_words_are_skipped(elmo: Elmo) -> None:
    uses = {
        word: {period: [Usage(Tokens.from_words(["a", word, str(k)]), 1, 2) for k in range(n)] for period in "12"}
        for word, n in {"bank": 5, "tree": 1}.items()
    }
    found = change_in_uses(
        elmo, uses, ["1", "2"], words=["bank", "tree", "house"], options=ChangeOptions(min_count=3, permutations=9)
    )
    assert [word.word for word in found.words] == ["bank"]
    assert found.words[0].overall.p == 1.0  # the same sentences
    assert found.frequency_correlation is None
    assert [skipped.word for skipped in found.skipped] == ["house", "tree"]


def test_tokens_and_words_are_counted() -> None:
    counted = WordCounter(NEW(), WordFilter(None, key=str.lower))
    assert len(list(counted)) == len(list(NEW()))
    assert (counted.n_tokens, counted.counts["the"], counted.per_million("the")) == (50, 16, 320_000)


@pytest.mark.slow
@pytest.mark.parametrize("n_periods", [2, 3])
def test_figures_show_words_and_periods(tmp_path: Path, n_periods: int) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    from elmo.plots.change import draw_changes

    periods = ["1850s", "1900s", "1950s"][:n_periods]
    by_word = [
        (word, {period: usages(12, text="the {} $x$", moved=moved * k, seed=k) for k, period in enumerate(periods)})
        for word, moved in (("银行", 4.0), ("$money", 0.0))
    ]
    ranked = measure_change(by_word, periods, options=ChangeOptions(permutations=50))
    options = ChangeOptions(permutations=50, keep_usages=True)
    single_word = measure_change(by_word[:1], periods, options=options)
    with rc_context({"svg.fonttype": "none"}):
        draw_changes(ranked, tmp_path / "many.svg")
        draw_changes(single_word, tmp_path / "one.svg")
    many, single = ((tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("many", "one"))
    for part in ("$money", "1850s → ", "may be chance", "12 → 12"):
        assert part in many, part
    for part in ("1850s: 12 usages", f"usages most typical of {periods[-1]}:", "$x$", "p = "):
        assert part in single, part
    assert ("from each period to the next" in many) == (n_periods == 3)
    with pytest.raises(DataError, match="there must be at least one word; found none"):
        draw_changes(Changes("apd", ("a", "b"), ()), tmp_path / "none.png")


# --- Measures and tests -----------------------------------------------------------------------------


def periods(n: int = 30, *, moved: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return vectors of two periods, which of them are later, and two senses by the sign of a feature."""
    chance = np.random.default_rng(seed)
    rows = chance.normal(size=(2 * n, 8)) + 1
    rows[n:, 0] += moved
    return rows, np.repeat([False, True], n), (rows[:, 0] > 1).astype(np.int64)


def slow(name: str, a: np.ndarray, b: np.ndarray, shares: tuple[np.ndarray, np.ndarray]) -> float:
    """Compute a measure directly from its definition."""
    if name == "apd":
        return float(np.mean([1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x in a for y in b]))
    if name == "mmd":
        units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (a, b)]
        within = [np.mean([x @ y for i, x in enumerate(u) for j, y in enumerate(u) if i != j]) for u in units]
        return float(sum(within) - 2 * np.mean([x @ y for x in units[0] for y in units[1]]))
    x, y = a.mean(axis=0), b.mean(axis=0)
    cosine = x @ y / np.linalg.norm(x) / np.linalg.norm(y)
    if name.startswith("prt"):
        return float(1 - cosine if name == "prt" else 1 / cosine)
    p, q = shares
    middle = (p + q) / 2
    return sum(float(np.sum(s[s > 0] * np.log2(s[s > 0] / middle[s > 0]))) for s in (p, q)) / 2


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_agrees_with_its_definition(name: str) -> None:
    rows, is_later, labels = periods(9, moved=2.0)
    shares = tuple(np.bincount(labels[m], minlength=2) / 9 for m in (~is_later, is_later))
    found = estimate_change(build_measure(name, rows, labels), is_later, permutations=20)
    assert found.value == pytest.approx(slow(name, rows[~is_later], rows[is_later], (shares[0], shares[1])))
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("name", MEASURES)
def test_change_is_distinguished_from_chance(name: str) -> None:
    rows, is_later, labels = periods(40, moved=3.0)
    changed = estimate_change(build_measure(name, rows, labels), is_later, permutations=999)
    assert changed.p == 1 / 1000
    p_values = []
    for seed in range(25):
        rows, is_later, labels = periods(20, seed=seed + 100)
        p_values.append(estimate_change(build_measure(name, rows, labels), is_later, permutations=99, seed=seed).p)
    assert 0.2 < np.mean(p_values) < 0.8  # p-values are uniform without a change
    assert np.mean(np.array(p_values) <= 0.05) <= 0.2


def test_mmd_is_about_zero_for_any_number_of_senses_and_usages() -> None:
    values = {
        (n, spread): np.mean([
            estimate_change(build_measure("mmd", rows * [spread, *[1] * 7]), is_later, permutations=1).value
            for rows, is_later, _ in (periods(n, seed=seed) for seed in range(60))
        ])
        for n in (10, 80)
        for spread in (1, 8)
    }  # fmt: skip
    assert max(map(abs, values.values())) < 0.01, values


def test_the_p_value_is_the_share_of_permutations_that_change_as_much() -> None:
    # 2 of 6 assignments separate the usages like the observed one
    rows = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    found = estimate_change(build_measure("apd", rows), np.array([False, False, True, True]), permutations=3000)
    assert found.value == 1.0
    assert found.p == pytest.approx(1 / 3, abs=0.03)
    same = estimate_change(build_measure("apd", rows * 0 + 1), np.array([False, False, True, True]), permutations=10)
    assert (same.value, same.p) == (pytest.approx(0.0), 1.0)


@pytest.mark.slow
def test_the_interval_covers_the_true_change_at_about_its_nominal_rate() -> None:
    truth = estimate_change(
        build_measure("apd", periods(2000, moved=2.0, seed=99)[0]), periods(2000)[1], permutations=1
    )
    hits = 0
    for seed in range(40):
        rows, is_later, _ = periods(30, moved=2.0, seed=seed)
        found = estimate_change(build_measure("apd", rows), is_later, permutations=1, seed=seed)
        hits += found.low <= truth.value <= found.high
    assert hits >= 33


@pytest.mark.slow
def test_many_usages_are_permuted_in_batches() -> None:
    rows, is_later, _ = periods(1000, moved=0.5)
    found = estimate_change(build_measure("apd", rows), is_later, permutations=2500)
    assert found.p == 1 / 2501
    assert found.low < found.value < found.high


def test_adjusted_p_values_are_those_of_benjamini_and_hochberg() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005, 0.9])
    assert adjust_p_values(p) == pytest.approx([0.025, 0.05, 0.05, 0.025, 0.9])
    scipy_stats = pytest.importorskip("scipy.stats")
    many = np.random.default_rng(0).uniform(size=50) ** 2
    assert adjust_p_values(many) == pytest.approx(scipy_stats.false_discovery_control(many))
    assert adjust_p_values(np.array([])).tolist() == []


def test_rank_correlation_is_spearman_with_ties() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    chance = np.random.default_rng(0)
    x, y = chance.integers(0, 6, 30).astype(float), chance.normal(size=30)
    assert rank_correlation(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic)
    assert rank_correlation(x, x * 0) is None
    assert rank_correlation(x[:1], y[:1]) is None


def test_wrong_arguments_of_measures_are_rejected() -> None:
    rows, is_later, _ = periods(5)
    with pytest.raises(ConfigError, match="one of apd, prt, prt-inverted, jsd, mmd; found 'cos'"):
        build_measure("cos", rows)
    with pytest.raises(ConfigError, match="pass the sense of each usage in labels"):
        build_measure("jsd", rows)
    with pytest.raises(ConfigError, match="permutations must be at least 1; found 0"):
        estimate_change(build_measure("apd", rows), is_later, permutations=0)
    with pytest.raises(DataError, match="but not all, of 10 usages; found 0 of 10 marked"):
        estimate_change(build_measure("apd", rows), is_later & False)


# --- The command ------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    native.write(tiny_model(softmax=True), tmp_path / "model")
    for name, read in {"1850s": OLD, "1950s": NEW}.items():
        lines = [" ".join(sentence.tokens.tokens) + "\n" for sentence in read()]
        (tmp_path / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command("change")(cli_change.command)
    app.callback()(lambda: None)
    return app


def run(app: typer.Typer, *arguments: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, ["change", *arguments, "--model", "model"], obj=Console())
    return done.exit_code, done.stdout, done.exception


def test_the_command_prints_warns_and_writes(app: typer.Typer, caplog: pytest.LogCaptureFixture) -> None:
    Path("words.txt").write_text("bank\nthe\ntree\n", encoding="utf-8")
    arguments = ("1850s.txt", "1950s.txt", "--words", "words.txt", "--min-count", "5", "--permutations", "20")
    code, out, error = run(app, *arguments, "--out", "c.tsv")
    assert (code, error) == (0, None)
    assert out.startswith("1850s → 1950s\nword")
    assert re.search(r"rank correlation of change with frequency: [+-][01]\.\d\d \(2 words\)", out)
    assert "bank: usages most typical of 1950s\n  + The [Bank] lent" in out
    assert "skipping tree: expected at least 5 usages in each period, found 0 in 1850s, 1 in 1950s" in caplog.text
    assert len(Path("c.tsv").read_text(encoding="utf-8").splitlines()) == 3
    code, out, _ = run(app, *arguments, "--json", "--by", "substitutes")
    assert json.loads(out)["periods"] == ["1850s", "1950s"]


def test_the_command_reads_uses_and_rejects_incomplete_inputs(app: typer.Typer) -> None:
    Path("uses").mkdir()
    head = "lemma\tgrouping\tidentifier\tcontext_tokenized\tindexes_target_token_tokenized\n"
    rows = [f"bank\t{p}\ti{k}\tthe bank {k}\t1\n" for p in (1, 2) for k in range(4)]
    Path("uses/bank.uses.csv").write_text(head + "".join(rows), encoding="utf-8")
    code, out, error = run(app, "--uses", "uses", "--min-count", "2", "--permutations", "9")
    assert (code, error) == (0, None)
    assert "1 → 2" in out
    assert run(app, "1850s.txt")[0] == 2
    assert run(app, "1850s.txt", "1950s.txt", "--uses", "uses")[0] == 2
    assert run(app, "1850s.txt", "-")[0] == 2
    _, _, error = run(app, "1850s.txt", "1950s.txt", "--words", "tree")
    assert isinstance(error, DataError)
    assert "no word has enough usages in each period" in str(error)
