from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, n_parameters
from elmo.errors import ConfigError, FormatError
from elmo.train.corpus import Corpus
from elmo.train.loop import StepReport, Trainer
from elmo.train.options import PRESETS, DropoutOptions, ModelShape, OptimizerOptions, TrainOptions
from elmo.train.plan import (
    FILE_NAME,
    MAX_EPOCHS,
    PlanRequest,
    Speed,
    TrainingPlan,
    count_products,
    expected_loss,
    list_sizes,
    load_or_make_plan,
    make_plan,
)
from tests.train.small_corpus import build

OPTIONS = TrainOptions(n_steps=1, batch_size=4, window=10, n_samples=None)
TINY = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 8))), None, LstmConfig(1, 12, 8))
LAPTOP = {"tiny": 20_000.0, "mini": 6_000.0, "small": 1_700.0, "medium": 700.0, "original": 150.0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("plan")
    chance = random.Random(0)
    words = [f"w{i}" for i in range(60)]
    lines = [" ".join(chance.choices(words, k=chance.randint(2, 9))) for _ in range(200)]
    (folder / "text.txt").write_text("".join(line + "\n" for line in lines))
    return build(folder / "text.txt", folder / "corpus", input_format="tokens", heldout=20)


@pytest.fixture(scope="module")
def large(corpus: Corpus) -> Corpus:
    """Ten million tokens."""
    return replace(corpus, train=np.tile(corpus.train, 10_000_000 // len(corpus.train)))


class Laptop:
    """Speeds that are given, and which of them were asked for."""

    def __init__(self, speeds: dict[str, float] = LAPTOP) -> None:
        self.speeds, self.asked = speeds, list[str]()

    def __call__(self, config: BiLmConfig, options: TrainOptions) -> Speed:
        name = next(name for name, each in PRESETS.items() if each == config)
        self.asked.append(name)
        return Speed(self.speeds[name], 10 * self.speeds[name], 5.0)


@pytest.mark.parametrize(("hours", "preset"), [(0.1, "tiny"), (2, "mini"), (24, "small"), (24 * 30, "medium")])
def test_more_hours_buy_a_larger_model(large: Corpus, hours: float, preset: str) -> None:
    options = replace(OPTIONS, batch_size=128, window=20)
    found = make_plan(large, PlanRequest(hours, PRESETS, options), measure=Laptop())
    assert found.preset == preset
    assert found.config == PRESETS[preset]
    seconds = found.n_tokens / LAPTOP[preset]
    assert seconds <= 0.92 * 3600 * hours
    assert seconds > 0.7 * 3600 * hours or found.epochs > 0.99 * MAX_EPOCHS
    assert found.n_tokens == found.options.n_steps * 128 * 20


def test_sizes_that_are_far_out_of_reach_are_not_even_measured(large: Corpus) -> None:
    laptop = Laptop()
    found = make_plan(large, PlanRequest(2, PRESETS, OPTIONS), measure=laptop)
    assert found.preset == "mini"
    assert not {"medium", "original"} & set(laptop.asked)
    assert found.reasons[0].startswith("tiny: 20,000 tokens/s measured, ")
    assert "tokens/s estimated" in found.reasons[-1]


def test_a_size_set_by_the_user_is_kept(large: Corpus) -> None:
    laptop = Laptop()
    sizes = list_sizes(ModelShape("medium"), n_tokens=large.n_tokens, n_vocab=60)
    found = make_plan(large, PlanRequest(2, sizes, OPTIONS), measure=laptop)
    assert laptop.asked == ["medium"]
    assert found.line == "2 hours: preset medium, 4.63M tokens (0.46 epochs), 700 tokens/s measured"


def test_changes_to_a_shape_are_made_to_every_size(corpus: Corpus) -> None:
    sizes = list_sizes(ModelShape(n_layers=3, reads="words"), n_tokens=corpus.n_tokens, n_vocab=63)
    assert list(sizes) == list(PRESETS)
    assert {(each.lstm.n_layers, each.words and each.words.n_words) for each in sizes.values()} == {(3, 63)}
    assert list(list_sizes(ModelShape(TINY), n_tokens=9, n_vocab=9)) == ["custom"]
    fitting = list_sizes(ModelShape(encoder="transformer", state_width=128), n_tokens=9, n_vocab=9)
    assert list(fitting) == ["tiny", "mini", "medium", "original"]  # the six heads of small do not divide the width


def test_a_small_text_is_not_read_for_ever_and_is_read_with_more_dropout(corpus: Corpus) -> None:
    found = make_plan(corpus, PlanRequest(5, PRESETS, OPTIONS), measure=Laptop())
    assert found.epochs == pytest.approx(MAX_EPOCHS, rel=0.05)
    assert "the text is small: more than 40 epochs are not worth the time" in found.reasons
    assert found.options.dropout == DropoutOptions(0.5)
    assert "dropout 0.5: the text is read 40 times" in found.reasons


def test_a_budget_that_is_too_short_gives_a_warning(large: Corpus, caplog: pytest.LogCaptureFixture) -> None:
    found = make_plan(large, PlanRequest(0.0005, PRESETS, replace(OPTIONS, batch_size=128)), measure=Laptop())
    n_steps = found.options.n_steps
    assert f"{n_steps} steps are too few to learn much; use more hours" in caplog.text


def test_a_large_text_is_read_with_the_published_dropout(large: Corpus) -> None:
    found = make_plan(large, PlanRequest(1, PRESETS, OPTIONS), measure=Laptop())
    assert found.options.dropout == DropoutOptions(0.1)


def test_the_schedule_warms_up_and_ends_with_the_budget(large: Corpus) -> None:
    found = make_plan(large, PlanRequest(2, PRESETS, OPTIONS), measure=Laptop()).options
    rate, n_windows = found.optimizer.rate, found.n_steps
    assert found.optimizer.name == "adamw"
    assert rate(0, n_windows) < 0.01 * found.optimizer.learning_rate
    assert rate(found.optimizer.warmup_steps, n_windows) == found.optimizer.learning_rate
    assert rate(n_windows, n_windows) == pytest.approx(0.01 * found.optimizer.learning_rate)


def test_options_set_by_the_user_are_not_planned(large: Corpus) -> None:
    adagrad = OptimizerOptions()
    options = replace(OPTIONS, optimizer=adagrad, dropout=DropoutOptions(0.3), evaluate_every=7)
    changes = {"optimizer": asdict(adagrad), "dropout": asdict(DropoutOptions(0.3)), "evaluate_every": 7}
    found = make_plan(large, PlanRequest(2, PRESETS, options, changes=changes), measure=Laptop()).options
    assert (found.optimizer, found.dropout, found.evaluate_every) == (adagrad, DropoutOptions(0.3), 7)
    assert found.n_steps > 1000


def test_fields_set_by_the_user_are_kept_and_the_others_planned(corpus: Corpus) -> None:
    base = make_plan(corpus, PlanRequest(5, PRESETS, OPTIONS), measure=Laptop()).options
    changes = {"optimizer": {"clip": 1.0}, "dropout": {"is_variational": True, "words": 0.1}}
    found = make_plan(corpus, PlanRequest(5, PRESETS, OPTIONS, changes=changes), measure=Laptop()).options
    assert found.optimizer == replace(base.optimizer, clip=1.0)
    assert found.dropout == DropoutOptions(0.5, words=0.1, is_variational=True)
    changes = {"optimizer": {"name": "sgd"}}
    found = make_plan(corpus, PlanRequest(5, PRESETS, OPTIONS, changes=changes), measure=Laptop()).options
    assert found.optimizer == replace(base.optimizer, name="sgd", learning_rate=1.0)


def test_the_rate_of_a_model_that_has_learned_already_stays_low(large: Corpus) -> None:
    sizes = {"tiny": PRESETS["tiny"]}
    found = make_plan(large, PlanRequest(1, sizes, OPTIONS), measure=Laptop()).options
    gentle = make_plan(large, PlanRequest(1, sizes, OPTIONS, max_rate=0.001), measure=Laptop()).options
    assert (found.optimizer.learning_rate, gentle.optimizer.learning_rate) == (0.004, 0.001)


def test_evaluation_takes_its_share_of_the_time_and_no_more(large: Corpus) -> None:
    class Slow(Laptop):
        def __call__(self, config: BiLmConfig, options: TrainOptions) -> Speed:
            return replace(super().__call__(config, options), evaluate=5.0)

    for hours in (0.02, 1, 50):
        found = make_plan(large, PlanRequest(hours, {"mini": PRESETS["mini"]}, OPTIONS), measure=Slow()).options
        n_evaluations = math.ceil(found.n_steps / found.evaluate_every)
        n_tokens = min(len(large.heldout), found.evaluate_tokens or len(large.heldout))
        assert 5 <= n_evaluations <= 26
        assert n_evaluations * n_tokens / 5.0 <= 0.06 * 3600 * hours or n_tokens <= 2048
        assert found.checkpoint_every <= found.evaluate_every


def test_a_plan_is_kept_to_the_bit_and_not_made_again(corpus: Corpus, tmp_path: Path) -> None:
    sizes = list_sizes(ModelShape(), n_tokens=corpus.n_tokens, n_vocab=60)
    options = replace(OPTIONS, cutoffs=(10, 20), seed=3)
    laptop = Laptop()
    first = load_or_make_plan(tmp_path / "run", corpus, PlanRequest(1 / 3, sizes, options), measure=laptop)
    n_measured = len(laptop.asked)
    again = load_or_make_plan(tmp_path / "run", corpus, PlanRequest(1 / 3, sizes, options), measure=laptop)
    assert again == first
    assert len(laptop.asked) == n_measured
    assert json.loads((tmp_path / "run" / FILE_NAME).read_text())["line"] == first.line
    assert [path.name for path in (tmp_path / "run").iterdir()] == [FILE_NAME]


def test_another_plan_is_made_until_the_run_has_a_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    def planned(hours: float, options: TrainOptions = OPTIONS) -> TrainingPlan:
        return load_or_make_plan(tmp_path, corpus, PlanRequest(hours, PRESETS, options), measure=Laptop())

    assert planned(0.001).n_tokens < planned(0.002).n_tokens
    (tmp_path / "checkpoints" / "step-000000001").mkdir(parents=True)
    assert planned(0.002).hours == 0.002
    with pytest.raises(ConfigError, match=r"was started with hours=0\.002; use another folder"):
        planned(0.001)
    with pytest.raises(ConfigError, match="was started with other options or another text"):
        planned(0.002, replace(OPTIONS, seed=1))


def test_a_damaged_plan_is_named(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"version": 2, "request": 3}')
    with pytest.raises(FormatError, match="is not a valid training plan"):
        load_or_make_plan(tmp_path, corpus, PlanRequest(1, PRESETS, OPTIONS), measure=Laptop())


@pytest.mark.slow
def test_a_planned_run_measures_trains_and_resumes_with_the_same_options(corpus: Corpus, tmp_path: Path) -> None:
    """Measured for real, on a budget of a second."""

    def planned() -> TrainingPlan:
        return load_or_make_plan(tmp_path / "run", corpus, PlanRequest(1 / 3600, {"own": TINY}, OPTIONS))

    class StoppedError(Exception):
        pass

    def stop(report: StepReport) -> None:
        raise StoppedError

    found = planned()
    assert found.tokens_per_second > 0
    with pytest.raises(StoppedError):
        Trainer(corpus, found.config, found.options, tmp_path / "run").run(stop)
    trainer = Trainer(corpus, planned().config, planned().options, tmp_path / "run")
    trainer.run()
    assert trainer.step == found.options.n_steps


def test_the_law_wants_more_tokens_and_more_weights_and_less_of_the_same() -> None:
    base = expected_loss(n_weights=1e6, n_tokens=1e8, n_unique=1e9)
    assert expected_loss(n_weights=1e6, n_tokens=2e8, n_unique=1e9) < base
    assert expected_loss(n_weights=2e6, n_tokens=1e8, n_unique=1e9) < base
    assert expected_loss(n_weights=1e6, n_tokens=1e8, n_unique=1e7) > base
    losses = [expected_loss(n_weights=n, n_tokens=1e8, n_unique=2e6) for n in (3e6, 3e7, 3e8)]
    assert losses[0] - losses[1] < 0.2  # a text of two million words cannot feed them
    assert losses[1] == pytest.approx(losses[2], abs=1e-6)
    four_times = expected_loss(n_weights=1e6, n_tokens=1e8, n_unique=2.5e7)
    assert four_times - base < 0.05  # four epochs are nearly as good as so much new text


def test_arithmetic_counts_the_products_of_a_token() -> None:
    """A layer of 8 · 12 · 8 and 12 · 8 a direction, 50 words of width 8, half of the words distinct."""
    token = (1 * 4 + 3 * 8) * 3 * 50 + 2 * 12 * 12 + 12 * 8
    by_hand = 2 * (9 * 12 * 8 + 50 * 8) + 2 * 0.5 * token
    assert count_products(TINY, OPTIONS, n_vocab=50, distinct=0.5) == by_hand
    forward = replace(OPTIONS, directions="forward", n_samples=20)
    assert count_products(TINY, forward, n_vocab=50, distinct=0.5) == by_hand / 2 - 30 * 8


def test_presets_grow_in_work_and_weights() -> None:
    work = [count_products(each, OPTIONS, n_vocab=50_000, distinct=0.3) for each in PRESETS.values()]
    assert work == sorted(work)
    weights = [n_parameters(each) for each in PRESETS.values()]
    assert weights == sorted(weights)
