from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, OutputError, similarity, train_bilm
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.train.loop import Report
from elmo.train.recipe import PRESETS
from elmo.train.schedule import Optimisation

TINY = BiLmConfig(CharCnnConfig(char_width=4, filters=((1, 8), (2, 16))), None, LstmConfig(2, 32, 16))
FAST = Optimisation(optimiser="adamw", learning_rate=0.01)


def text(path: Path) -> Path:
    chance = random.Random(0)
    subjects, verbs = ["The cat", "A dog", "The bank", "Our river"], ["sees", "likes", "crosses"]
    lines = [
        f"{chance.choice(subjects)} {chance.choice(verbs)} {chance.choice(subjects).lower()}."
        for _ in range(300)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_raw_text_becomes_a_model_that_loads_and_has_learned(tmp_path: Path) -> None:
    reports: list[Report] = []
    out = train_bilm(
        text(tmp_path / "text.txt"), tmp_path / "model", preset=TINY, epochs=6, n_samples=None,
        optimisation=FAST, on_report=reports.append,
    )  # fmt: skip
    heldout = [report.heldout_forward for report in reports if report.heldout_forward is not None]
    assert heldout[-1] < 0.5 * heldout[0]
    elmo = Elmo.from_pretrained(out)
    assert elmo.vocab is not None
    assert elmo.softmax is not None
    assert elmo.vocab.words[:3] == ("<S>", "</S>", "<UNK>")
    assert len(elmo.vocab) == len(elmo.softmax.weight)
    cold, warm = (elmo.encode("The cat sees a dog.", start=start) for start in ("zero", "warm"))
    assert cold.tokens == ("The", "cat", "sees", "a", "dog", ".")
    assert 0 < float(similarity(cold.word("cat"), warm.word("cat"))) < 1
    assert elmo.pretrained.metadata["training"]["heldout_perplexity"] < 20


def test_the_same_call_again_goes_on_and_gives_the_same_bytes(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    settings = {"preset": TINY, "epochs": 2, "n_samples": 12, "optimisation": FAST}
    train_bilm(source, tmp_path / "whole", **settings)

    class StoppedError(Exception):
        pass

    def stop(report: Report) -> None:
        if report.step > 10:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_bilm(source, tmp_path / "parts", **settings, on_report=stop)
    train_bilm(source, tmp_path / "parts", **settings)
    for name in ("model.safetensors", "softmax.safetensors", "warm.safetensors", "vocab.txt"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_chinese_trains_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    source = tmp_path / "zh.txt"
    source.write_text("苹果公司发布了新手机。我每天吃一个苹果。河岸上有一只狗！\n" * 40, encoding="utf-8")
    out = train_bilm(source, tmp_path / "zh", preset=TINY, epochs=1, n_samples=None, tokenizer="zh")
    elmo = Elmo.from_pretrained(out)  # remembers its tokeniser
    assert elmo.encode("我吃苹果。").tokens == ("我", "吃", "苹果", "。")
    assert np.isfinite(elmo.encode("我吃苹果。").vectors).all()


def test_the_presets_are_the_published_sizes() -> None:
    from elmo.config import n_parameters

    millions = {name: n_parameters(config) / 1e6 for name, config in PRESETS.items()}
    assert [round(millions[name], 1) for name in ("small", "medium", "original")] == [13.6, 28.0, 93.6]
    assert millions["tiny"] < millions["mini"] < millions["small"]


def test_bad_calls_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    (tmp_path / "empty.txt").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="preset must be one of tiny, mini, small"):
        train_bilm(source, tmp_path / "m", preset="huge")
    with pytest.raises(ConfigError, match="epochs must be a positive number"):
        train_bilm(source, tmp_path / "m", epochs=0)
    with pytest.raises(OutputError, match="exists already"):
        train_bilm(source, tmp_path / "there")
    with pytest.raises(DataError):
        train_bilm(tmp_path / "empty.txt", tmp_path / "m", preset=TINY)
    with pytest.raises(DataError):
        train_bilm(tmp_path / "none.txt", tmp_path / "m", preset=TINY)
    left = [path for path in sorted(tmp_path.iterdir()) if path not in before]
    assert [path.name for path in left] in ([], ["m.training"])
    assert not any(path.is_file() for path in tmp_path.glob("m.training/**/*"))
