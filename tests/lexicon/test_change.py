"""Words ranked by change between usages, texts and files of uses; what appeared and went; the command."""

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
from elmo.lexicon.change import Changes, Counted, change, change_in_corpora, change_in_uses, frequent_words
from elmo.lexicon.usages import WordFilter, Usage, Usages, embed_usages, respell
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens

pytest.importorskip("sklearn")
from elmo.cli import change as cli_change
from elmo.cli.console import Console
from elmo.formats import native
from tests.formats.tiny import tiny_model


def usages(
    n: int, *, text: str = "a {} here", moved: float = 0.0, n_moved: int | None = None, seed: int = 0
) -> Usages:
    """Usages in a cloud, the last ``n_moved`` of them in another place."""
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
    return change(words(), ["old", "new"], permutations=200, per_million=frequencies)


def test_words_come_by_change_with_their_chance_and_the_rare_are_left_out(found: Changes) -> None:
    assert [word.word for word in found.words] == ["moved", "still"]
    moved, still = (word.whole for word in found.words)
    assert moved.p == 1 / 201
    assert moved.q == pytest.approx(2 / 201)
    assert still.q > 0.05
    assert moved.low < moved.value < moved.high
    assert [(one.word, one.reason) for one in found.left_out] == [
        ("rare", "expected 10 usages or more in each period, found 3 in new")
    ]
    assert found.with_frequency == pytest.approx(1.0)


def test_what_appeared_is_of_the_sense_that_grew_and_no_stray(found: Changes) -> None:
    step = found.words[0].whole
    assert len(step.appeared) == len(step.went) == 3
    for usage in step.appeared:
        assert usage.sentence.tokens[0] == "new"
        assert int(usage.place) >= 15  # the last 25 of 40 lie elsewhere
    assert {usage.sentence.tokens[0] for usage in step.went} == {"old"}


@pytest.mark.parametrize("measure", ["apd", "prt", "prt-inverted", "jsd"])
def test_every_measure_ranks_the_moved_word_first(measure: str) -> None:
    found = change(words(), ["old", "new"], measure=measure, permutations=50)
    assert [word.word for word in found.words] == ["moved", "still"]
    assert found.words[0].whole.p == 1 / 51


def test_more_periods_give_each_step_and_first_to_last() -> None:
    periods = {"a": usages(15, seed=1), "b": usages(15, seed=2), "c": usages(15, moved=9, seed=3)}
    found = change([("word", periods)], ["a", "b", "c"], permutations=100, keep_usages=True)
    steps = found.words[0].steps
    assert [(step.earlier, step.later) for step in steps] == [("a", "b"), ("b", "c"), ("a", "c")]
    assert steps[0].p > 0.02
    assert steps[1].p == steps[2].p == 1 / 101
    assert found.words[0].whole == steps[2]
    assert found.words[0].labels is not None
    assert len(found.words[0].labels) == 45
    assert len(list(found.rows())) == 3
    assert json.loads(json.dumps(found.to_json()))["words"][0]["steps"][2]["later"] == "c"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "cosine"}, "measure must be one of apd"),
        ({"min_count": 0}, "min_count must be at least 1, found 0"),
        ({"periods": ["old"]}, "two or more periods of different names, found 'old'"),
        ({"periods": ["old", "old"]}, "two or more periods of different names"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: dict[str, object], message: str) -> None:
    periods = options.pop("periods", ["old", "new"])
    with pytest.raises(ConfigError, match=message):
        change(words(), periods, **options)  # pyright: ignore[reportArgumentType]


def test_the_words_of_texts_are_frequent_in_each_long_enough_and_no_function_words() -> None:
    old = {"the": 90, "bank": 20, "river": 5, "of": 30, "x1": 30, "苹果": 12, "人": 40}
    new = {"the": 80, "bank": 10, "river": 50, "of": 20, "x1": 20, "苹果": 11, "gone": 90, "人": 40}
    assert frequent_words([old, new], min_count=10, max_words=9, skip=1) == ["bank", "苹果"]
    assert frequent_words([old, new], min_count=5, max_words=2, skip=0) == ["the", "river"]


def text(*lines: str) -> Callable[[], Iterable[Sentence]]:
    return lambda: (
        Sentence(Tokens(None, tuple(line.split()), None), "t", number)
        for number, line in enumerate(lines, start=1)
    )


OLD = text(*[f"the bank of the river {k}" for k in range(8)])
NEW = text(*[f"The Bank lent the money {k}" for k in range(8)], "", "no tree")


def test_texts_are_read_counted_and_compared(elmo: Elmo) -> None:
    told: list[tuple[int, int]] = []
    found = change_in_corpora(
        elmo, {"old": OLD, "new": NEW}, words=["bank", "tree", "the", "the bank"], limit=8, min_count=2,
        permutations=20, on_progress=lambda n, n_all: told.append((n, n_all)),
    )  # fmt: skip
    assert {word.word for word in found.words} == {"bank", "the", "the bank"}
    by_word = {word.word: word for word in found.words}
    assert by_word["bank"].per_million == {"old": 8e6 / 48, "new": 8e6 / 50}
    assert by_word["the"].per_million == {"old": 16e6 / 48, "new": 16e6 / 50}
    assert by_word["the"].n_usages == {"old": 8, "new": 8}  # the limit
    assert [one.word for one in found.left_out] == ["tree"]
    assert told[-1] == (48, 48)
    # vectors come back to their usages, in whatever order sentences were read
    kept = change_in_corpora(
        elmo, {"old": OLD, "new": NEW}, words=["bank", "the"], min_count=2, permutations=5, keep_usages=True
    )
    for word in kept.words:
        for one in (word.usages or {}).values():
            read = [respell(usage, word.word) for usage in one.items]
            assert np.allclose(one.vectors, embed_usages(elmo, read).vectors, atol=1e-6)
    assert {usage.word for usage in (kept.words[0].usages or {})["new"].items} & {"Bank", "The"}


def test_spelling_is_no_change_unless_words_are_read_as_written(elmo: Elmo) -> None:
    lines = [f"a bank {k}" for k in range(6)]
    corpora = {"old": text(*lines), "new": text(*(line.replace("bank", "BANK") for line in lines))}
    values = [
        change_in_corpora(
            elmo, corpora, words=["bank"], min_count=2, permutations=5, is_as_written=is_as_written
        )
        .words[0]
        .whole.p
        for is_as_written in (False, True)
    ]
    assert values[0] == 1.0
    assert values[1] < 0.5


def test_one_word_of_many_can_be_shown_to_have_changed(elmo: Elmo) -> None:
    words = [f"w{k}" for k in range(60)]
    old = [f"{word} x" for word in words for _ in range(16)]
    new = [f"w7 {'z' * 9}" if line == "w7 x" else line for line in old]
    found = change_in_corpora(elmo, {"old": text(*old), "new": text(*new)}, words=words, min_count=2)
    assert [word.word for word in found.words if word.whole.q < 0.05] == ["w7"]


def test_words_of_other_scripts_count_as_words() -> None:
    counts = {"हिन्दी": 5, "ที่นี่": 5, "12": 5, "co-op": 5, "...": 5}
    assert set(frequent_words([counts], min_count=1, max_words=9, skip=0)) == {"हिन्दी", "ที่นี่", "co-op"}


def test_without_words_those_of_the_texts_are_taken(elmo: Elmo) -> None:
    found = change_in_corpora(elmo, {"old": OLD, "new": NEW}, min_count=2, skip=1, permutations=5)
    assert [word.word for word in found.words] == ["bank"]  # the is the most frequent
    with pytest.raises(
        DataError, match="not among the 150 most frequent, found none; give --words, or a smaller"
    ):
        change_in_corpora(elmo, {"old": OLD, "new": NEW})


def test_an_empty_text_and_a_small_limit_are_refused(elmo: Elmo) -> None:
    for given in (["bank"], None):
        with pytest.raises(DataError, match="empty: expected text of this period, found no words"):
            change_in_corpora(elmo, {"old": OLD, "empty": text("", "")}, words=given)
    with pytest.raises(ConfigError, match="limit must be at least min_count, which is 10, found 5"):
        change_in_corpora(elmo, {"old": OLD, "new": NEW}, limit=5)


def test_uses_are_compared_and_unknown_words_told(elmo: Elmo) -> None:
    uses = {
        word: {
            period: [Usage(Tokens.from_words(["a", word, str(k)]), 1, 2) for k in range(n)] for period in "12"
        }
        for word, n in {"bank": 5, "tree": 1}.items()
    }
    found = change_in_uses(
        elmo, uses, ["1", "2"], words=["bank", "tree", "house"], min_count=3, permutations=9
    )
    assert [word.word for word in found.words] == ["bank"]
    assert found.words[0].whole.p == 1.0  # the same sentences
    assert found.with_frequency is None
    assert [one.word for one in found.left_out] == ["house", "tree"]


def test_counts_are_of_what_was_read() -> None:
    counted = Counted(NEW(), WordFilter(None, key=str.lower))
    counted.read()
    assert (counted.n_tokens, counted.counts["the"], counted.per_million("the")) == (50, 16, 320_000)


@pytest.mark.parametrize("n_periods", [2, 3])
def test_pictures_hold_words_intervals_and_periods(tmp_path: Path, n_periods: int) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    from elmo.plots.change import draw_changes

    periods = ["1850s", "1900s", "1950s"][:n_periods]
    given = [
        (
            word,
            {
                period: usages(12, text="the {} $x$", moved=moved * k, seed=k)
                for k, period in enumerate(periods)
            },
        )
        for word, moved in (("银行", 4.0), ("$money", 0.0))
    ]
    ranked = change(given, periods, permutations=50)
    one = change(given[:1], periods, permutations=50, keep_usages=True)
    with rc_context({"svg.fonttype": "none"}):
        draw_changes(ranked, tmp_path / "many.svg")
        draw_changes(one, tmp_path / "one.svg")
    many, single = ((tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("many", "one"))
    for part in ("$money", "1850s → ", "may be chance", "12 → 12"):
        assert part in many, part
    for part in ("1850s: 12 usages", f"uses most typical of {periods[-1]}:", "$x$", "p = "):
        assert part in single, part
    assert ("from each period to the next" in many) == (n_periods == 3)
    with pytest.raises(DataError, match="one word or more to draw, found none"):
        draw_changes(Changes("apd", ("a", "b"), ()), tmp_path / "none.png")


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


def test_the_command_ranks_tells_and_writes(app: typer.Typer, caplog: pytest.LogCaptureFixture) -> None:
    Path("words.txt").write_text("bank\nthe\ntree\n", encoding="utf-8")
    given = ("1850s.txt", "1950s.txt", "--words", "words.txt", "--min-count", "5", "--permutations", "20")
    code, out, error = run(app, *given, "--out", "c.tsv")
    assert (code, error) == (0, None)
    assert out.startswith("1850s → 1950s\nword")
    assert re.search(r"rank correlation of change with frequency: [+-][01]\.\d\d \(2 words\)", out)
    assert "bank: uses most typical of 1950s\n  + The [Bank] lent" in out
    assert (
        "tree: left out: expected 5 usages or more in each period, found 0 in 1850s, 1 in 1950s"
        in caplog.text
    )
    assert len(Path("c.tsv").read_text(encoding="utf-8").splitlines()) == 3
    code, out, _ = run(app, *given, "--json", "--by", "substitutes")
    assert json.loads(out)["periods"] == ["1850s", "1950s"]


def test_the_command_reads_uses_and_refuses_half_a_comparison(app: typer.Typer) -> None:
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
