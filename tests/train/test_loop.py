from __future__ import annotations

import json
import math
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, TransformerConfig
from elmo.errors import ConfigError, DataError, FormatError, OutputError, TrainingError
from elmo.train.corpus import BOS, EOS, Corpus
from elmo.train.loop import CHECKPOINT_VERSION, StepReport, Trainer, check_version
from elmo.train.objective import StepRandom
from elmo.train.options import DropoutOptions, OptimizerOptions, TrainOptions
from tests.train.small_corpus import build
from tests.train.test_checkpoint import rewrite

CONFIG = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4), (3, 8))), None, LstmConfig(2, 12, 8))
TRANSFORMER = replace(CONFIG, encoder=TransformerConfig(2, 8, n_heads=2, feed_forward_width=12))
OPTIONS = TrainOptions(
    n_steps=24,
    n_vocab=60,
    batch_size=4,
    window=6,
    n_samples=20,
    log_every=3,
    evaluate_every=8,
    checkpoint_every=5,
    optimizer=OptimizerOptions(name="adamw", learning_rate=0.01, warmup_steps=4, decay="cosine"),
)


def make_corpus(folder: Path) -> Corpus:
    chance = random.Random(0)
    words = [f"w{i}" for i in range(80)]
    text = folder / "text.txt"
    lines = [" ".join(chance.choices(words, k=chance.randint(2, 9))) for _ in range(120)]
    text.write_text("".join(line + "\n" for line in lines))
    return build(text, folder / "corpus", input_format="tokens", heldout=10)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("loop"))


def outcome(trainer: Trainer) -> tuple[bytes, bytes]:
    """The bytes of the finished weights and of the log."""
    last = trainer.checkpoints.folder / f"step-{OPTIONS.n_steps:09d}"
    return (last / "weights.safetensors").read_bytes(), trainer.log.path.read_bytes()


@pytest.mark.slow
def test_a_run_learns_logs_and_keeps_its_best(corpus: Corpus, tmp_path: Path) -> None:
    options = replace(OPTIONS, n_steps=120, evaluate_every=40, checkpoint_every=40)
    reports: list[StepReport] = []
    trainer = Trainer(corpus, CONFIG, options, tmp_path / "run")
    trainer.run(reports.append)
    losses = [report.loss for report in reports if report.loss is not None]
    assert losses[-1] < losses[0]
    logged = [json.loads(line) for line in trainer.log.path.read_text().splitlines()]
    assert [line["step"] for line in logged] == [report.step for report in reports]
    heldout = [
        math.sqrt(line["heldout_forward"] * line["heldout_backward"]) for line in logged if "heldout_forward" in line
    ]
    assert trainer.best == pytest.approx(min(heldout), rel=1e-12)
    assert trainer.checkpoints.best() == 40 * (1 + heldout.index(min(heldout)))
    assert trainer.checkpoints.steps()[-1] == 120


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, TRANSFORMER], ids=["LSTM", "transformer"])
def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bytes(
    corpus: Corpus, config: BiLmConfig, tmp_path: Path
) -> None:
    whole = Trainer(corpus, config, OPTIONS, tmp_path / "whole")
    whole.run()

    class StoppedError(Exception):
        pass

    for stop_at in (3, 9, 16, 24):

        def stop(report: StepReport, stop_at: int = stop_at) -> None:
            if report.step >= stop_at:
                raise StoppedError

        with pytest.raises(StoppedError):
            Trainer(corpus, config, OPTIONS, tmp_path / "parts").run(stop)
        torch.manual_seed(99)  # what went on in between does not matter
    resumed = Trainer(corpus, config, OPTIONS, tmp_path / "parts")
    resumed.run()
    assert outcome(resumed) == outcome(whole)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    trainer = Trainer(corpus, CONFIG, OPTIONS, tmp_path / "run")

    def spoil(report: StepReport) -> None:
        if report.step == 9:
            with torch.no_grad():
                trainer.objective.softmax.get_parameter("bias").fill_(math.nan)

    with pytest.raises(TrainingError, match="the loss became nan at step 9"):
        trainer.run(spoil)
    found = trainer.checkpoints.latest()
    assert found is not None
    assert found[0] == 8  # the best so far
    assert all(tensor.isfinite().all() for tensor in found[1].tensors["weights"].values())


def test_gradients_that_are_no_numbers_stop_the_run_before_they_get_into_the_weights(
    corpus: Corpus, tmp_path: Path
) -> None:
    trainer = Trainer(corpus, CONFIG, OPTIONS, tmp_path / "run")
    before: dict[str, torch.Tensor] = {}

    def spoil(report: StepReport) -> None:
        if report.step == 9:
            before.update({name: value.clone() for name, value in trainer.objective.state_dict().items()})
            # the loss is finite, and its gradients are as large as is asked for
            trainer.options = replace(OPTIONS, loss_scale=1e30)

    with pytest.raises(TrainingError, match="the gradient norm became inf at step 9") as caught:
        trainer.run(spoil)
    assert "\n" not in str(caught.value)
    after = trainer.objective.state_dict()
    assert before
    assert all(torch.equal(after[name], value) for name, value in before.items())
    found = trainer.checkpoints.latest()
    assert found is not None
    assert found[0] == 8


@pytest.mark.slow
def test_weights_that_are_no_numbers_do_not_become_a_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    trainer = Trainer(corpus, CONFIG, OPTIONS, tmp_path / "run")

    def spoil(report: StepReport) -> None:
        if report.step == 24 and report.loss is not None:  # after the last step, before its checkpoint
            with torch.no_grad():
                trainer.objective.softmax.get_parameter("bias")[3] = math.inf

    with pytest.raises(TrainingError, match="the weights became inf at step 24"):
        trainer.run(spoil)
    assert trainer.checkpoints.steps()[-1] == 20


def test_a_trainer_that_is_closed_leaves_no_threads(corpus: Corpus, tmp_path: Path) -> None:
    n_threads = torch.get_num_threads()
    before = set(threading.enumerate())
    torch.set_num_threads(2)
    try:
        with Trainer(corpus, CONFIG, replace(OPTIONS, n_steps=1), tmp_path / "run") as trainer:
            trainer.run()
            assert set(threading.enumerate()) > before
    finally:
        torch.set_num_threads(n_threads)
    assert set(threading.enumerate()) == before


@pytest.mark.slow
def test_another_corpus_config_or_option_is_not_mixed_into_a_run(corpus: Corpus, tmp_path: Path) -> None:
    Trainer(corpus, CONFIG, OPTIONS, tmp_path / "run").run()
    with pytest.raises(ConfigError, match="options must be the same as before"):
        Trainer(corpus, CONFIG, replace(OPTIONS, dropout=DropoutOptions(0.2)), tmp_path / "run").run()
    other = replace(CONFIG, encoder=replace(CONFIG.lstm, has_skip=False))
    with pytest.raises(ConfigError, match="config must be the same as before"):
        Trainer(corpus, other, OPTIONS, tmp_path / "run").run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be a positive number"),
        ({"name": "sgdd"}, "name must be"),
        ({"weight_decay": 0.1}, "weight_decay is not supported with adagrad"),
        ({"decay": "steps"}, "decay must be"),
    ],
)
def test_optimizations_that_make_no_sense_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerOptions(**changes)


def test_the_learning_rate_follows_its_schedule() -> None:
    plan = OptimizerOptions(learning_rate=1.0, warmup_steps=4, decay="linear")
    assert [plan.rate(step, 12) for step in (0, 3, 4, 8, 12)] == [0.25, 1.0, 1.0, 0.5, 0.0]
    assert OptimizerOptions(learning_rate=0.3).rate(1000, 10) == 0.3


def test_more_rows_than_sentences_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="rows"):
        Trainer(corpus, CONFIG, replace(OPTIONS, batch_size=5000), tmp_path / "run").run()


def test_two_runs_in_one_folder_do_not_mix(corpus: Corpus, tmp_path: Path) -> None:
    def begin_another(report: StepReport) -> None:
        with pytest.raises(OutputError, match="another process is writing this output"):
            Trainer(corpus, CONFIG, OPTIONS, tmp_path / "run").run()

    Trainer(corpus, CONFIG, OPTIONS, tmp_path / "run").run(begin_another)


def test_a_share_of_the_rows_starts_a_window_from_zero_and_the_others_keep_their_state(
    corpus: Corpus, tmp_path: Path
) -> None:
    trainer = Trainer(corpus, CONFIG, replace(OPTIONS, window_resets=0.5), tmp_path / "run")
    trainer.run()
    n_zero = n_kept = 0
    for trainer.step in range(50):
        start = trainer._reset_rows(StepRandom(OPTIONS.seed, trainer.step))
        for row in range(OPTIONS.batch_size):
            parts = [(start.hidden[:, :, row], trainer.state.hidden[:, :, row])]
            parts.append((start.cell[:, :, row], trainer.state.cell[:, :, row]))
            if all(not found.any() for found, _ in parts):
                n_zero += 1
            elif all(torch.equal(found, before) for found, before in parts):
                n_kept += 1
    assert n_zero + n_kept == 50 * OPTIONS.batch_size
    assert 70 < n_zero < 130


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_rows_that_never_or_always_start_from_zero(share: float, corpus: Corpus, tmp_path: Path) -> None:
    trainer = Trainer(corpus, CONFIG, replace(OPTIONS, window_resets=share), tmp_path / "run")
    trainer.run()
    assert trainer.state.cell.any()
    start = trainer._reset_rows(StepRandom(OPTIONS.seed, trainer.step))
    assert bool(start.hidden.any()) == bool(start.cell.any()) == (share == 0.0)


def test_a_share_of_the_sentences_starts_from_zero(corpus: Corpus, tmp_path: Path) -> None:
    trainer = Trainer(corpus, CONFIG, replace(OPTIONS, sentence_resets=0.5), tmp_path / "run")
    n_resets = n_sentences = 0
    for trainer.step in range(50):
        random = StepRandom(OPTIONS.seed, trainer.step)
        window = trainer._reset_sentences(trainer.windows.at(trainer.position), random)
        for direction, first in ((window.forward, BOS), (window.backward, EOS)):
            assert direction.resets is not None
            assert not direction.resets[direction.inputs != first].any()
            n_resets += int(direction.resets.sum())
            n_sentences += int((direction.inputs == first).sum())
    assert 0.4 < n_resets / n_sentences < 0.6


def test_sentence_resets_change_what_is_learned(corpus: Corpus, tmp_path: Path) -> None:
    weights = []
    for share in (0.0, 1.0):
        trainer = Trainer(corpus, CONFIG, replace(OPTIONS, sentence_resets=share), tmp_path / f"run{share}")
        trainer.run()
        weights.append(torch.cat([weight.detach().flatten() for weight in trainer.objective.parameters()]))
    assert not torch.equal(*weights)


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_sentence_resets_must_be_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match=r"sentence_resets must be between 0 and 1"):
        replace(OPTIONS, sentence_resets=share)


@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan])
def test_window_resets_must_be_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match=r"window_resets must be between 0 and 1"):
        replace(OPTIONS, window_resets=share)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    check_version({"version": CHECKPOINT_VERSION}, tmp_path)
    with pytest.raises(ConfigError, match=r"must have version 2; found 1"):
        check_version({"step": 3}, tmp_path)


def test_a_checkpoint_with_other_content_is_refused_in_one_line(corpus: Corpus, tmp_path: Path) -> None:
    """Its checksums are correct, as a stranger would write them."""
    options = replace(OPTIONS, n_steps=5)
    trainer = Trainer(corpus, CONFIG, options, tmp_path / "run")
    trainer.run()
    folder = trainer.checkpoints.folder / "step-000000005"
    progress = json.loads((folder / "progress.json").read_text())
    messages: list[str] = []
    for key in progress:
        without = {name: value for name, value in progress.items() if name != key}
        for changed in (without, {**progress, key: "x"}, {**progress, key: [None]}):
            rewrite(folder, "progress.json", json.dumps(changed))
            try:
                Trainer(corpus, CONFIG, options, tmp_path / "run").run()
            except (ConfigError, FormatError) as error:  # any other error fails the test
                messages.append(str(error))
    assert len(messages) >= 2 * len(progress)
    assert [message for message in messages if "\n" in message] == []
