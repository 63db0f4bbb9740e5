"""Training on another device than the processor: nothing is forgotten there, and the same comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmo.config import BiLmConfig, WordConfig
from elmo.train import options as train_options
from elmo.train.corpus import Corpus
from elmo.train.loop import StepReport, Trainer
from elmo.train.options import DropoutOptions, OptimizerOptions, TrainOptions
from tests.train.elsewhere import elsewhere
from tests.train.test_loop import CONFIG, OPTIONS, make_corpus

WORDS = BiLmConfig(None, WordConfig(OPTIONS.n_vocab, 8), CONFIG.lstm, alphabet=None)
BRIEF = replace(
    OPTIONS,
    n_steps=2,
    log_every=1,
    evaluate_every=2,
    evaluate_tokens=30,
    checkpoint_every=1,
    dropout=DropoutOptions(0.1, words=0.1, weights=0.1),
    optimizer=OptimizerOptions(),
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("devices"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "options"),
    [
        (CONFIG, BRIEF),
        (CONFIG, replace(BRIEF, n_samples=None, precision="bfloat16")),
        (CONFIG, replace(BRIEF, n_samples=None, cutoffs=(20,))),
        (WORDS, replace(BRIEF, is_tied=True, accumulation_steps=2)),
        (WORDS, replace(BRIEF, is_tied=True, n_samples=None, directions="forward")),
    ],
    ids=["sampled", "full in bfloat16", "adaptive", "tied sampled", "tied full"],
)
def test_a_run_elsewhere_is_the_run_on_the_processor(
    corpus: Corpus, tmp_path: Path, config: BiLmConfig, options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedError(Exception):
        pass

    def stop(report: StepReport) -> None:
        if report.step == 2:
            raise StoppedError

    monkeypatch.setattr(train_options, "_device_problems", lambda name: [])
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # elsewhere is one piece, too
    try:
        here = Trainer(corpus, config, options, tmp_path / "here")
        here.run()
        with elsewhere() as device:
            there = replace(options, device=device)
            with pytest.raises(StoppedError):
                Trainer(corpus, config, there, tmp_path / "there").run(stop)
            resumed = Trainer(corpus, config, there, tmp_path / "there")
            resumed.run()
            assert {weight.device.type for weight in resumed.objective.parameters()} == {device}
    finally:
        torch.set_num_threads(n_threads)
    # not to the bit: the processor's Adagrad is a fused one, which rounds otherwise
    expected, found = (run.checkpoints.load(2) for run in (here, resumed))
    for kind, tensors in expected.tensors.items():
        torch.testing.assert_close(dict(found.tensors[kind]), dict(tensors), rtol=1e-5, atol=1e-6)
    lines, others = (run.log.path.read_text().splitlines() for run in (here, resumed))
    for line, other in zip(lines, others, strict=True):
        assert json.loads(other) == pytest.approx(json.loads(line), rel=1e-5)
