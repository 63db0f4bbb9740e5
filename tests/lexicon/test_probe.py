"""Linear probes: what they find, what they are compared with, and the command with its picture."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from elmo.cli import probe as command
from elmo.cli.console import Console
from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, ElmoError, OutputError
from elmo.formats import native
from elmo.lexicon import probe as probes
from elmo.lexicon.probe import LabelledSentence, LabelledText, Measure, Probing, probe
from tests.formats.tiny import tiny_model

WORDS = ("the", "river", "bank", "café", "河岸", "xyz", "aa", "b")


def text_of(rows: list[list[tuple[str, str | None]]]) -> LabelledText:
    return LabelledText.of(
        LabelledSentence(tuple(word for word, _ in row), tuple(label for _, label in row), f"x:{k}")
        for k, row in enumerate(rows)
    )


def by_neighbour(n: int, *, seed: int) -> LabelledText:
    """The word ``bank`` has a label that the word after it decides; other words have none."""
    chance = random.Random(seed)
    rows = []
    for _ in range(n):
        after = chance.choice(["river", "café"])
        label = "WATER" if after == "river" else "MONEY"
        rows.append([(chance.choice(WORDS), None), ("bank", label), (after, None)])
    return text_of(rows)


def by_word(n: int, *, seed: int, words: tuple[str, ...] = WORDS) -> LabelledText:
    """A label that the word decides."""
    chance = random.Random(seed)
    rows = [[chance.choice(words) for _ in range(5)] for _ in range(n)]
    return text_of([[(word, "LONG" if len(word) > 2 else "短") for word in row] for row in rows])


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    """Enough for what is learned here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "MIN_STEPS", 100)
        yield


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model(cell_width=16, state_width=12))


@pytest.fixture(scope="module")
def found(elmo: Elmo) -> Probing:
    return probe(elmo, by_neighbour(150, seed=1), by_neighbour(60, seed=2))


def test_what_depends_on_the_context_is_in_the_upper_layers_only(found: Probing) -> None:
    token, first, second, mix = found.layers
    assert [layer.layer for layer in found.layers] == ["0", "1", "2", "mix"]
    assert token.accuracy.mean == found.majority.accuracy == found.per_word.accuracy < 0.7
    assert min(first.accuracy.mean, second.accuracy.mean, mix.accuracy.mean) > 0.95
    assert (found.n_train, found.n_dev, found.n_unseen) == (150, 60, 0)


def test_the_mix_learns_to_leave_the_token_layer_out(found: Probing) -> None:
    *single, mix = found.layers
    assert len(mix.shares) == 3
    assert sum(mix.shares) == pytest.approx(1.0)
    assert mix.shares[0] == min(mix.shares)
    assert mix.gamma is not None
    assert all(layer.shares == () and layer.gamma is None for layer in single)


def test_selectivity_is_what_accuracy_has_above_the_control(found: Probing) -> None:
    for layer in found.layers:
        assert layer.selectivity.mean == pytest.approx(layer.accuracy.mean - layer.control.mean)
        assert layer.control.mean == 1.0  # one word: its random label is learned by heart


def test_the_same_seed_gives_the_same_figures(elmo: Elmo, found: Probing) -> None:
    again = probe(elmo, by_neighbour(150, seed=1), by_neighbour(60, seed=2))
    assert again == found


def test_several_seeds_give_mean_and_spread(elmo: Elmo) -> None:
    train, dev = by_word(10, seed=1), by_word(20, seed=2)
    both = probe(elmo, train, dev, n_seeds=2, seed=5)
    alone = [probe(elmo, train, dev, seed=seed) for seed in (5, 6)]
    assert both.n_seeds == 2
    controls = [one.layers[1].control.mean for one in alone]
    assert len(set(controls)) > 1
    assert both.layers[1].control == Measure.of(controls)
    assert Measure.of([0.5, 0.7]).spread == pytest.approx(0.1 * 2**0.5)
    assert Measure.of([0.5]) == Measure(0.5, 0.0)


def test_labels_that_train_does_not_have_are_wrong_and_named(elmo: Elmo) -> None:
    dev = text_of([[("the", "LONG"), ("aa", "短"), ("river", "NEW")], [("bank", "NEW")]])
    found = probe(elmo, by_word(40, seed=1), dev)
    assert found.unknown_labels == {"NEW": 2}
    assert found.labels == {"NEW": 2, "LONG": 1, "短": 1}
    for layer in found.layers:
        assert layer.accuracy.mean <= 0.5
        assert layer.f1["NEW"].mean == 0.0
    assert found.per_word.accuracy == 0.5


def test_words_that_train_does_not_have_are_counted_apart(elmo: Elmo) -> None:
    train = by_word(60, seed=1, words=("the", "river", "aa", "b"))
    dev = by_word(20, seed=2, words=("the", "aa", "bb"))
    found = probe(elmo, train, dev)
    n = Counter(dev.words)["bb"]
    assert found.n_unseen == n
    assert found.per_word.accuracy == pytest.approx(1.0 if found.majority.unseen else 1 - n / len(dev.words))
    assert found.per_word.unseen == found.majority.unseen
    top = found.layers[0]
    assert top.unseen is not None
    n_right = top.accuracy.mean * 100 - top.unseen.mean * n
    assert n_right == pytest.approx(100 - n)  # all that it knows, it knows


def test_the_control_task_gives_each_word_one_label_of_the_tasks_distribution() -> None:
    rows = [[(f"w{k}", "A" if k % 4 else "B")] for k in range(4000)]
    task = probes._Task(text_of(rows), text_of([[("w3", "A"), ("new", "B"), ("w3", "A")]]))
    train, dev = task.controls(0)
    assert dev[0] == dev[2] == train[3]
    assert abs(float((train == task.number_of["A"]).mean()) - 0.75) < 0.03
    assert not np.array_equal(train, task.controls(1)[0])
    assert np.array_equal(train, task.controls(0)[0])


def test_f1_is_that_of_precision_and_recall() -> None:
    labels = ["A", "A", "B", "C", "A"]
    task = probes._Task(text_of([[("w", x) for x in labels]]), text_of([[("w", x) for x in labels]]))
    guessed = np.array([task.number_of[x] for x in "ABBAA"])
    # A: precision 2/3, recall 2/3; B: precision 1/2, recall 1; C: never said
    assert task.f1(guessed) == {"A": pytest.approx(2 / 3), "B": pytest.approx(2 / 3), "C": 0.0}


def test_classifiers_that_are_fitted_together_do_not_touch_each_other() -> None:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(2, 200, 6, generator=chance).half()
    y = (x[0, :, 0] + x[1, :, 0] > 0).long().numpy()
    settings: dict[str, Any] = {"n_labels": 2, "seed": 3}
    both = probes._fit(x, np.stack([y, 1 - y]), penalties=[1e-2, 0.0], **settings)
    for head, (labels, penalty) in enumerate([(y, 1e-2), (1 - y, 0.0)]):
        one = probes._fit(x, labels[None], penalties=[penalty], **settings)
        torch.testing.assert_close(both.weight[head], one.weight[0], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(both.mixes[head].shares, one.mixes[0].shares, rtol=1e-3, atol=1e-3)
    assert float(both.weight[0].detach().norm()) < float(both.weight[1].detach().norm())
    assert (both.guesses(x)[1] == 1 - y).mean() > 0.85


def test_the_scale_of_the_vectors_does_not_matter(elmo: Elmo) -> None:
    small = tiny_model(cell_width=16, state_width=12)
    weights = {name: w * (1e-6 if "projection" in name else 1.0) for name, w in small.weights.items()}
    assert any("projection" in name for name in weights)
    from dataclasses import replace

    tiny = Elmo(replace(small, weights=weights))
    vectors, scale = probes._vectors(tiny, by_word(5, seed=1), "zero")
    assert vectors.dtype == torch.float16
    assert bool((vectors.float().abs().amax(dim=(1, 2)) > 1.0).all())
    assert scale.shape == (3, 1, 1)


def test_rows_and_json_hold_every_figure(found: Probing) -> None:
    rows = list(found.rows())
    assert ("majority", "accuracy", "", 60, found.majority.accuracy, 0.0) in rows
    top = found.layers[2]
    assert ("2", "f1", "WATER", found.labels["WATER"], top.f1["WATER"].mean, 0.0) in rows
    assert not any(row[1] == "unseen" for row in rows)
    told = json.loads(json.dumps(found.to_json()))
    assert told["layers"][2]["accuracy"]["mean"] == top.accuracy.mean
    assert told["unknown_labels"] == {}


def test_what_cannot_be_probed_is_refused(elmo: Elmo) -> None:
    good, one = by_word(3, seed=1), text_of([[("a", "X"), ("b", "X")]])
    with pytest.raises(DataError, match="expected 2 to 1,000 different labels, found 1;"):
        probe(elmo, one, good)
    many = text_of([[("a", f"label {k}")] for k in range(1001)])
    with pytest.raises(DataError, match="found 1,001; is it the right column"):
        probe(elmo, many, good)
    with pytest.raises(DataError, match="dev: expected words with labels, found none"):
        probe(elmo, good, text_of([]))
    with pytest.raises(ConfigError, match="n_seeds"):
        probe(elmo, good, good, n_seeds=0)


# --- the command and its picture ----------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``model``, ``train.tsv``, ``dev.tsv`` of a word and its label a line."""
    native.write(tiny_model(), tmp_path / "model")
    for name, seed in (("train", 1), ("dev", 2)):
        text = by_word(12, seed=seed)
        rows = [
            "".join(f"{w}\t{x}\n" for w, x in zip(s.tokens, s.labels, strict=True)) for s in text.sentences
        ]
        (tmp_path / f"{name}.tsv").write_text("\n".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> str:
    """What the command prints; its errors are raised."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(command.command)
    done = CliRunner().invoke(app, [*arguments, "--model", "model"], obj=Console())
    if isinstance(done.exception, ElmoError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_prints_tables_and_writes_figures(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    (here / "dev.tsv").write_text("the\tNEW\naa\t短\n", encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="elmo.cli"):
        lines = run(
            "train.tsv", "dev.tsv", "--column", "2", "--max-tokens", "30", "--out", "x.tsv"
        ).splitlines()
    assert lines[0] == "train     30 words"
    assert [line.split()[0] for line in lines[4:10]] == ["majority", "per", "0", "1", "2", "mix"]
    assert "the mix's shares: 0: " in lines[10]
    assert lines[-1].split()[:2] in (["短", "1"], ["NEW", "1"])
    assert "train.tsv: only the first 30 labelled words are taken; --max-tokens takes more" in caplog.text
    assert "counted as wrong: NEW 1" in caplog.text
    assert "mix: accuracy " in caplog.text
    rows = [line.split("\t") for line in (here / "x.tsv").read_text(encoding="utf-8").splitlines()]
    assert rows[0] == ["layer", "measure", "label", "n", "mean", "spread"]
    assert ["mix", "f1", "NEW", "1", "0.0", "0.0"] in rows


def test_the_command_prints_json_of_all_seeds(here: Path) -> None:
    told = json.loads(run("train.tsv", "dev.tsv", "-c", "2", "--seeds", "2", "--json"))
    assert (told["column"], told["n_seeds"], len(told["layers"])) == ("2", 2, 4)
    assert told["layers"][0]["control"]["spread"] >= 0


def test_the_command_refuses_before_it_works(here: Path) -> None:
    with pytest.raises(DataError, match=r"train\.tsv:1: expected 3 columns or more"):
        run("train.tsv", "dev.tsv", "--column", "3")
    with pytest.raises(OutputError, match="one of the inputs"):
        run("train.tsv", "dev.tsv", "--column", "2", "--out", "dev.tsv")
    with pytest.raises(OutputError, match=r"\.png"):
        run("train.tsv", "dev.tsv", "--column", "2", "--picture", "x.doc")


def test_the_picture_shows_labels_layers_and_figures(found: Probing, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    from elmo.plots.words import draw_probing

    for name in "ab":
        with rc_context({"svg.fonttype": "none"}):
            draw_probing(found, tmp_path / f"{name}.svg", column="feats:$x$")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for part in ("feats:$x$: F1 of linear probes", ">layer 0", ">mix", ">1.00<", "WATER", "MONEY"):
        assert part in text, part


def test_chinese_labels_are_drawn_or_told(
    elmo: Elmo, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from elmo.plots import figure
    from elmo.plots.words import draw_probing

    found = probe(elmo, by_word(12, seed=1), by_word(5, seed=2))
    draw_probing(found, tmp_path / "a.png", column="词性")
    has_font = not figure.fonts_for("短词性")[1]
    assert ("such labels are numbered" in caplog.text) == (not has_font)
    caplog.clear()
    monkeypatch.setattr(figure, "CJK_FONTS", ())
    draw_probing(found, tmp_path / "b.png", column="词性")
    assert "such labels are numbered" in caplog.text
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


def test_the_most_frequent_of_many_labels_are_drawn(found: Probing, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    from matplotlib import rc_context

    from elmo.plots.words import MAX_LABELS, draw_probing

    labels = {f"L{k:03}": 500 - k for k in range(100)}
    layers = tuple(replace(layer, f1=dict.fromkeys(labels, Measure(0.5))) for layer in found.layers)
    with rc_context({"svg.fonttype": "none"}):
        draw_probing(replace(found, labels=labels, layers=layers), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert f"the {MAX_LABELS} most frequent labels" in text
    assert f"L{MAX_LABELS - 1:03}" in text
    assert f"L{MAX_LABELS:03}" not in text
