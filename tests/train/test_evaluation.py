"""Perplexities of a stream."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.model.bilm import BiLm
from elmo.model.softmax import Softmax
from elmo.train.corpus import TypeIds
from elmo.train.evaluation import HeldoutPerplexity, evaluate
from elmo.train.objective import BiLmObjective
from tests.train.small_corpus import build

CONFIG = BiLmConfig(CharCnnConfig(char_width=3, filters=((1, 4),)), None, LstmConfig(1, 6, 4))


def test_a_loss_beyond_all_numbers_is_an_infinite_perplexity(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a b\n" * 9)
    corpus = build(tmp_path / "text.txt", tmp_path / "corpus", input_format="tokens", heldout=2)
    objective = BiLmObjective(BiLm.from_config(CONFIG), Softmax(n_words=5, width=4))
    with torch.no_grad():
        objective.softmax.get_parameter("bias")[4] = 9000.0  # one word, and it is not always the right one
    found = evaluate(objective, TypeIds(corpus, CONFIG, 5), corpus.heldout)
    assert found.forward == found.backward == found.geometric_mean == found.arithmetic_mean == math.inf


def test_means_of_huge_perplexities_are_numbers() -> None:
    for huge in (1e300, math.inf):
        assert HeldoutPerplexity(huge, huge, 1).geometric_mean == pytest.approx(huge, rel=1e-9)
    largest = sys.float_info.max
    assert HeldoutPerplexity(largest, largest, 1).geometric_mean > 1.79e308
