"""A run that is killed again and again ends with the bytes of an undisturbed run."""

from __future__ import annotations

import multiprocessing
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.train.corpus import Corpus
from elmo.train.loop import Trainer
from elmo.train.options import TrainOptions
from tests.train.test_loop import OPTIONS, TRANSFORMER, make_corpus

N_KILLS = 50
RUN = replace(OPTIONS, n_steps=400, log_every=3, evaluate_every=100, checkpoint_every=2)


def train(corpus: Path, options: TrainOptions, folder: Path) -> None:
    Trainer(Corpus.open(corpus), TRANSFORMER, options, folder).run()


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


@pytest.mark.slow
def test_a_transformer_that_is_killed_fifty_times_ends_with_the_same_bytes(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path).folder
    train(corpus, RUN, tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["elmo.train.loop", "tests.train.test_loop"])
    chance, checkpoints = random.Random(0), tmp_path / "parts" / "checkpoints"
    n_kills = 0
    while n_kills < N_KILLS:
        before = {path.name for path in checkpoints.glob("step-*")}
        process = context.Process(target=train, args=(corpus, RUN, tmp_path / "parts"))
        process.start()
        while process.is_alive() and {path.name for path in checkpoints.glob("step-*")} == before:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.01))  # anywhere between checkpoints, or while one is written
        process.kill()
        process.join()
        assert process.exitcode == -9  # the run was not finished
        n_kills += 1
    train(corpus, RUN, tmp_path / "parts")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
