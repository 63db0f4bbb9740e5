"""Adapting a biLM to the text of a task: lower perplexity, resumable, and dev is never used."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import ConfigError, Elmo
from elmo.tasks.adapt import Adaptation, adapt_bilm
from elmo.tasks.data.examples import TaggedSentence
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import ElmoEncoder, FeatureCache, FeatureStore
from elmo.tasks.kinds.tagging import Tagging
from elmo.tasks.model import TaskModel
from elmo.train.loop import StepReport
from tests.formats.tiny import tiny_model
from tests.tasks.test_fit import DEV, HEAD, OPTIONS, TRAIN, Killed

pytestmark = pytest.mark.slow

SHORT = replace(OPTIONS, epochs=1)
SENTENCES = [one.words for one in TRAIN]


def lm(**made: object) -> Elmo:
    return Elmo(tiny_model(softmax=True, **made))  # pyright: ignore[reportArgumentType]


def learned(
    elmo: Elmo | None, *, folder: Path | None = None, adapt: float = 0.5, dev: list[TaggedSentence] = DEV,
    choice: Features | None = None, **given: object,
) -> TaskModel:  # fmt: skip
    store = FeatureStore(choice or Features(), elmo, **given)  # pyright: ignore[reportArgumentType]
    task = Tagging.from_examples(TRAIN, HEAD)
    return TaskModel.train(task, TRAIN, dev, store=store, options=SHORT, adapt=adapt, folder=folder)


def weights(elmo: Elmo | None) -> dict[str, torch.Tensor]:
    assert elmo is not None
    return elmo.bilm.state_dict()


def test_adaptation_lowers_perplexity_and_keeps_tokenizer_and_config() -> None:
    message: list[StepReport] = []
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    elmo = Elmo(tiny_model(softmax=True, warm=True), tokenizer="whitespace")
    found = adapt_bilm(elmo, SENTENCES, options=Adaptation(2, start="warm"), on_report=message.append)
    assert torch.equal(torch.rand(2), expected)  # the user's own random numbers are left alone
    measured = [one.heldout_forward for one in message if one.heldout_forward is not None]
    assert measured[-1] < 0.95 * measured[0]
    assert found.config == elmo.config
    assert found.tokenizer is elmo.tokenizer
    assert found.pretrained.warm is not None
    assert not any(weight.requires_grad for weight in found.bilm.parameters())


def test_the_task_uses_the_adapted_layers_and_the_file_contains_the_bilm(tmp_path: Path) -> None:
    elmo, before, cache = lm(), weights(lm()), FeatureCache(tmp_path / "cache")
    model = learned(elmo, folder=tmp_path / "run", cache=cache)
    after = weights(model.store.elmo)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(elmo).items())
    assert not all(torch.equal(weight, before[name]) for name, weight in after.items())
    # its text is that of the training examples, each sentence once, and nothing of dev
    text = (tmp_path / "run" / "adapt" / "text.txt").read_text(encoding="utf-8").splitlines()
    assert text == list(dict.fromkeys(" ".join(words) for words in SENTENCES))
    assert not {" ".join(one.words) for one in DEV} <= set(text)
    # layers are kept under the adapted model's name
    assert model.store.elmo is not None
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.name == ElmoEncoder(model.store.elmo).key != ElmoEncoder(elmo).key

    model.save(tmp_path / "tagger.safetensors")
    again = TaskModel.load(tmp_path / "tagger.safetensors")
    assert again.adapted_epochs == 0.5
    assert all(torch.equal(weight, after[name]) for name, weight in weights(again.store.elmo).items())
    plain = replace(model.store, cache=FeatureCache(None))
    model.store = plain
    for one, two in zip(model.predict(DEV), again.predict(DEV), strict=True):
        np.testing.assert_array_equal(one.confidences, two.confidences)
    again.save(tmp_path / "again.safetensors")
    first, second = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("tagger", "again"))
    assert first == second


@pytest.mark.parametrize("at", ["adapting", "the task"])
def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, at: str) -> None:
    whole = learned(lm(), folder=tmp_path / "whole", choice=Features(is_bilm_tuned=True))
    message: list[StepReport] = []

    def kill(report: object) -> None:
        message.append(report)  # pyright: ignore[reportArgumentType]
        if at == "the task" or len(message) == 5:
            raise Killed

    def run(**given: object) -> TaskModel:
        store = FeatureStore(Features(is_bilm_tuned=True), lm())
        return TaskModel.train(
            Tagging.from_examples(TRAIN, HEAD), TRAIN, DEV, store=store, options=SHORT, adapt=0.5,
            folder=tmp_path / "run", **given,  # pyright: ignore[reportArgumentType]
        )  # fmt: skip

    with pytest.raises(Killed):
        run(**{"on_adapt" if at == "adapting" else "on_epoch": kill})
    again: list[StepReport] = []
    found = run(on_adapt=again.append)
    if at == "adapting":
        assert again[0].step > 1  # not from the beginning
    else:
        assert not again
    assert found.epochs == whole.epochs
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, found.network.state_dict()[name]), name


def test_a_run_does_not_resume_with_other_options(tmp_path: Path) -> None:
    learned(lm(), folder=tmp_path)
    for checkpoint in tmp_path.glob("step-*"):
        shutil.rmtree(checkpoint)  # killed after the biLM was done, before the first epoch was
    for elmo, adapt in ((lm(seed=5), 0.5), (lm(), 0.25)):
        with pytest.raises(ConfigError, match="adapt: the run was started with other data or options"):
            learned(elmo, adapt=adapt, folder=tmp_path)


@pytest.mark.parametrize(
    ("elmo", "epochs", "message"),
    [
        (Elmo(tiny_model()), 1, "cannot adapt this tiny model: it has no softmax and no vocabulary"),
        (
            Elmo(tiny_model(vocab=True)),
            1,
            r"cannot adapt this tiny model: it has no softmax; .*elmo train TEXT --from MODEL",
        ),
        (lm(alphabet="unicode"), 1, "has its own character dictionary"),
        (lm(), 0, "must be a number of epochs above 0; found 0"),
        (lm(), float("nan"), "must be a number of epochs above 0; found nan"),
    ],
)
def test_a_model_that_is_not_a_language_model_is_refused_in_one_line(elmo: Elmo, epochs: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        learned(elmo, adapt=epochs)
    assert "\n" not in str(caught.value)


def test_without_a_bilm_there_is_nothing_to_adapt() -> None:
    with pytest.raises(ConfigError, match="cannot adapt the biLM"):
        learned(lm(), choice=Features(elmo="none", characters=4))


def test_few_long_texts_are_enough_and_a_word_may_contain_a_space() -> None:
    elmo = lm()
    text = [f"word{k % 7}" for k in range(300)]
    found = adapt_bilm(elmo, [(f"text{k}", *text, "10 000") for k in range(6)], options=Adaptation(0.5))
    pairs = zip(weights(found).values(), weights(elmo).values(), strict=True)
    assert any(not torch.equal(new, old) for new, old in pairs)
