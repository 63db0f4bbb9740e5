from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, OutputError, StateError, resume_bilm, similarity, train_bilm
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig, TransformerConfig
from elmo.engine.matmul import has_bfloat16
from elmo.text.ids import Vocabulary
from elmo.train.loop import StepReport
from elmo.train.options import GENTLE, PRESETS, OptimizerOptions

TINY = BiLmConfig(CharCnnConfig(char_width=4, filters=((1, 8), (2, 16))), None, LstmConfig(2, 32, 16))
FAST = {"optimizer": "adamw", "learning_rate": 0.01}


def text(path: Path) -> Path:
    chance = random.Random(0)
    subjects, verbs = ["The cat", "A dog", "The bank", "Our river"], ["sees", "likes", "crosses"]
    lines = [f"{chance.choice(subjects)} {chance.choice(verbs)} {chance.choice(subjects).lower()}." for _ in range(300)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_raw_text_becomes_a_model_that_loads_and_has_learned(tmp_path: Path) -> None:
    reports: list[StepReport] = []
    out = train_bilm(
        text(tmp_path / "text.txt"), tmp_path / "model", preset=TINY, epochs=6, samples=0,
        **FAST, on_report=reports.append,
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


@pytest.mark.slow
def test_a_transformer_is_trained_evaluated_and_trained_further(tmp_path: Path) -> None:
    reports: list[StepReport] = []
    source = text(tmp_path / "text.txt")
    shape = {"preset": "tiny", "encoder": "transformer", "layers": 1, "cells": 32, "width": 16}
    out = train_bilm(
        source, tmp_path / "model", **shape, n_steps=60, samples=0, window=32, **FAST, on_report=reports.append
    )
    heldout = [report.heldout_forward for report in reports if report.heldout_forward is not None]
    assert heldout[-1] < 0.5 * heldout[0]
    elmo = Elmo.from_pretrained(out)
    assert elmo.config.encoder == TransformerConfig(1, 16, n_heads=4, feed_forward_width=32)
    assert elmo.pretrained.warm is None
    with pytest.raises(StateError, match="a transformer keeps no state between sentences"):
        elmo.encode("The cat .", start="warm")
    further = train_bilm(source, tmp_path / "further", init_from=out, n_steps=2, window=32, batch_size=4)
    assert Elmo.from_pretrained(further).config == elmo.config
    with pytest.raises(ConfigError, match="cells and width of a transformer cannot be changed"):
        train_bilm(source, tmp_path / "wider", init_from=out, cells=64)


def test_a_transformer_has_at_most_as_many_turns_as_rows(tmp_path: Path) -> None:
    source, shape = text(tmp_path / "text.txt"), {"preset": "tiny", "encoder": "transformer", "cells": 32, "width": 16}
    train_bilm(source, tmp_path / "model", **shape, n_steps=1, samples=0, window=8, accumulate=100)
    (progress, *_) = (tmp_path / "model.training").glob("checkpoints/*/progress.json")
    options = json.loads(progress.read_text())["options"]
    assert options["accumulation_steps"] == options["batch_size"] <= 20


@pytest.mark.slow
def test_the_same_call_again_resumes_and_gives_the_same_bytes(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    settings = {"preset": TINY, "epochs": 2, "samples": 12, **FAST}
    train_bilm(source, tmp_path / "whole", **settings)

    class StoppedError(Exception):
        pass

    def stop(report: StepReport) -> None:
        if report.step > 10:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_bilm(source, tmp_path / "parts", **settings, on_report=stop)
    train_bilm(source, tmp_path / "parts", **settings)
    for name in ("model.safetensors", "softmax.safetensors", "warm.safetensors", "vocab.txt"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_chinese_trains_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    source = tmp_path / "zh.txt"
    source.write_text("苹果公司发布了新手机。我每天吃一个苹果。河岸上有一只狗！\n" * 40, encoding="utf-8")
    out = train_bilm(source, tmp_path / "zh", preset=TINY, epochs=1, samples=0, tokenizer="zh")
    elmo = Elmo.from_pretrained(out)  # remembers its tokenizer
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
    with pytest.raises(OutputError, match="already exists"):
        train_bilm(source, tmp_path / "there")
    with pytest.raises(DataError):
        train_bilm(tmp_path / "empty.txt", tmp_path / "m", preset=TINY)
    with pytest.raises(DataError):
        train_bilm(tmp_path / "none.txt", tmp_path / "m", preset=TINY)
    left = [path for path in sorted(tmp_path.iterdir()) if path not in before]
    assert [path.name for path in left] in ([], ["m.training"])
    assert not any(path.is_file() for path in tmp_path.glob("m.training/**/*"))


@pytest.mark.slow
def test_a_run_is_resumed_without_its_text_and_options(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    settings = {
        "preset": TINY, "width": 12, "epochs": 2, "samples": 12, **FAST,
        "dropout": 0.2, "weight_drop": 0.1, "seed": 4,
    }  # fmt: skip
    train_bilm(source, tmp_path / "whole", **settings)

    class StoppedError(Exception):
        pass

    def stop(report: StepReport) -> None:
        if report.step > 10:
            raise StoppedError

    with pytest.raises(StoppedError):
        train_bilm(source, tmp_path / "parts", **settings, on_report=stop)
    source.unlink()
    resume_bilm(tmp_path / "parts")
    for name in ("model.safetensors", "softmax.safetensors", "warm.safetensors", "vocab.txt"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert resume_bilm(tmp_path / "parts") == tmp_path / "parts"  # nothing is left to do
    with pytest.raises(DataError, match=r"cannot resume .*: there is no run with this output"):
        resume_bilm(tmp_path / "never")


def test_one_direction_of_tied_words_becomes_a_model_whose_other_half_is_zero(tmp_path: Path) -> None:
    out = train_bilm(
        text(tmp_path / "text.txt"), tmp_path / "model", preset=TINY, reads="words", epochs=1,
        samples=0, tied=True, direction="forward", **FAST,
    )  # fmt: skip
    elmo = Elmo.from_pretrained(out)
    top = elmo.encode("The cat sees a dog.", layers="top").vectors
    assert np.abs(top[:, :16]).max() > 0.01
    assert np.abs(top[:, 16:]).max() == 0
    softmax, table = elmo.softmax, elmo.pretrained.weights["token_layer.word_embed.weight"]
    assert softmax is not None
    np.testing.assert_array_equal(softmax.weight, table[1:])


def test_an_adaptive_softmax_trains_but_is_not_part_of_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = train_bilm(
        text(tmp_path / "text.txt"), tmp_path / "model", preset=TINY, epochs=1, adaptive=(5,),
        **FAST,
    )  # fmt: skip
    assert Elmo.from_pretrained(out).softmax is None
    assert "cannot predict words" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1, "hours": 1}, "epochs and hours both set how long"),
        ({"hours": -1}, "hours must be a positive number"),
        ({"hours": 0}, "hours must be a positive number"),
        ({"hours": math.nan}, "hours must be a positive number"),
        ({"hours": math.inf}, "hours must be a positive number"),
        ({"new_vocabulary": True}, "new_vocabulary needs a model to start from"),
        ({"init_from": "x", "preset": "tiny"}, "the run has the shape of the model"),
        ({"adaptive": (5,), "samples": 10}, "samples and adaptive choose different kinds of softmax"),
        ({"adaptive": (5,), "tied": True}, "cannot be tied"),
        ({"batch_size": 10, "accumulate": 11}, "a batch of 10 rows cannot be split into 11 parts"),
        ({"epochs": 1, "n_steps": 5}, "epochs and n_steps both set how long"),
        ({"hours": 1, "n_steps": 5}, "hours and n_steps both set how long"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"optimizer": "fast"}, "optimizer: name must be one of adagrad, adamw, sgd; found 'fast'"),
        ({"heldout": 0}, "a run needs held-out text"),
        (
            {"vocabulary": Vocabulary(("<S>",))},
            "must be a number of words or a file with one word per line; found a Vocabulary",
        ),
        ({"init_from": "x", "vocabulary": 9}, "the run has the vocabulary of the model"),
        ({"split": object()}, "split must be a value that can be stored as JSON"),
        ({"direction": "up"}, "directions must be one of both, forward, backward"),
        ({"precision": "half"}, "precision must be"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_is_written(
    tmp_path: Path, options: dict, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_bilm(text(tmp_path / "text.txt"), tmp_path / "model", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.slow
def test_a_run_starts_from_a_model_with_its_words_or_those_of_the_text(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    first = train_bilm(source, tmp_path / "first", preset=TINY, epochs=3, samples=0, **FAST)
    other = tmp_path / "other.txt"
    other.write_text("Our cat crosses a strange new bridge.\nThe dog sees it.\n" * 60, encoding="utf-8")
    known = Elmo.from_pretrained(first).vocab
    assert known is not None
    kept = Elmo.from_pretrained(train_bilm(other, tmp_path / "kept", init_from=first, epochs=1, samples=0))
    assert kept.vocab is not None
    assert kept.vocab.words == known.words
    renewed = Elmo.from_pretrained(
        train_bilm(other, tmp_path / "new", init_from=first, new_vocabulary=True, epochs=1, samples=0)
    )
    assert renewed.vocab is not None
    assert "bridge" in renewed.vocab.words
    assert "river" not in renewed.vocab.words


@pytest.mark.slow
def test_a_run_from_a_tied_model_can_use_an_adaptive_softmax(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    tied = train_bilm(source, tmp_path / "tied", preset=TINY, reads="words", epochs=1, samples=0, tied=True)
    out = train_bilm(source, tmp_path / "new", init_from=tied, epochs=1, adaptive=(5,))
    assert Elmo.from_pretrained(out).softmax is None


@pytest.mark.slow
def test_training_one_direction_of_a_model_warns_that_the_other_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = text(tmp_path / "text.txt")
    both = train_bilm(source, tmp_path / "both", preset=TINY, epochs=1, samples=0)
    assert "training only the" not in caplog.text
    train_bilm(source, tmp_path / "one", init_from=both, epochs=1, samples=0, direction="backward")
    assert "training only the backward direction; the new model will have no forward direction" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [3, 100])
def test_rows_that_follow_from_the_text_are_read_in_any_number_of_turns(tmp_path: Path, accumulate: int) -> None:
    source = text(tmp_path / "text.txt")
    train_bilm(source, tmp_path / "model", preset=TINY, epochs=0.5, samples=0, accumulate=accumulate)
    (progress, *_) = (tmp_path / "model.training").glob("checkpoints/*/progress.json")
    options = json.loads(progress.read_text())["options"]
    assert options["accumulation_steps"] == min(accumulate, options["batch_size"])


@pytest.mark.slow
def test_an_option_of_the_optimizer_changes_only_itself(tmp_path: Path) -> None:
    source = text(tmp_path / "text.txt")
    first = train_bilm(source, tmp_path / "first", preset=TINY, epochs=0.5, samples=0)
    train_bilm(source, tmp_path / "tuned", init_from=first, epochs=0.5, clip=1.0)
    (progress, *_) = (tmp_path / "tuned.training").glob("checkpoints/*/progress.json")
    found = OptimizerOptions(**json.loads(progress.read_text())["options"]["optimizer"])
    assert found == replace(GENTLE, clip=1.0)


@pytest.mark.slow
def test_hours_decide_size_and_schedule_and_are_kept_for_a_resumed_run(tmp_path: Path) -> None:
    reports: list[StepReport] = []
    source = text(tmp_path / "text.txt")
    train_bilm(source, tmp_path / "model", preset=TINY, hours=0.0005, on_report=reports.append)
    plan = json.loads((tmp_path / "model.training" / "plan.json").read_text())["plan"]
    assert plan["options"]["n_steps"] == reports[-1].n_steps
    assert plan["options"]["optimizer"]["name"] == "adamw"
    assert reports[-1].step == reports[-1].n_steps


@pytest.mark.slow
def test_automatic_precision_is_the_one_that_the_cpu_supports(tmp_path: Path) -> None:
    source, settings = text(tmp_path / "text.txt"), {"preset": TINY, "epochs": 1, "samples": 0, **FAST}
    expected = "bfloat16" if has_bfloat16() else "float32"
    automatic = train_bilm(source, tmp_path / "automatic", precision="auto", **settings)
    explicit = train_bilm(source, tmp_path / "explicit", precision=expected, **settings)
    assert (automatic / "model.safetensors").read_bytes() == (explicit / "model.safetensors").read_bytes()
