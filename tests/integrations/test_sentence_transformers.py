"""sentence-transformers: vectors equal to those of ``encode``, training, saving and loading."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import ConfigError, Elmo, FormatError
from tests.formats.tiny import tiny_model

pytest.importorskip("sentence_transformers")

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Dense, Pooling

from elmo.integrations import ElmoModule, build_sentence_transformer, load_sentence_transformer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TEXTS = ["I sat by the bank of the river.", "Hi", "", "The café closed early, and the 河岸 was empty."]


@pytest.fixture
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True))


@pytest.mark.parametrize("layers", ["average", "top", "concat", 0])
@pytest.mark.parametrize("trainable", [False, True])
def test_a_sentence_transformer_equals_encode_and_mean(elmo: Elmo, layers, trainable: bool) -> None:
    model = build_sentence_transformer(elmo, layers=layers, trainable=trainable)
    vectors = model.encode(TEXTS, batch_size=3)
    expected = np.stack([encoding.sentence() for encoding in elmo.encode(TEXTS, layers=layers)])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert model.get_embedding_dimension() == vectors.shape[1]
    # with gradients, the reference network computes the same vectors
    features = model(model.preprocess(TEXTS))["sentence_embedding"]
    assert features.requires_grad is trainable
    np.testing.assert_allclose(features.detach().numpy(), expected, atol=1e-6)


def test_prompts_are_part_of_the_text_and_long_texts_are_cut_off(elmo: Elmo) -> None:
    model = build_sentence_transformer(elmo, max_seq_length=4)
    vector = model.encode(["I sat by the bank of the river"])
    np.testing.assert_allclose(vector, [elmo.encode([["I", "sat", "by", "the"]])[0].sentence()], atol=1e-6)
    with_prompt = model.encode(["I sat by the bank"], prompt="so ")
    np.testing.assert_allclose(with_prompt, [elmo.encode([["so", "I", "sat", "by"]])[0].sentence()], atol=1e-6)


@pytest.mark.parametrize("trainable", [False, True])
def test_training_moves_the_right_weights_and_survives_saving(elmo: Elmo, tmp_path: Path, trainable: bool) -> None:
    words = ElmoModule(elmo, layers="mix", trainable=trainable)
    modules = [words, Pooling(words.get_embedding_dimension()), Dense(words.get_embedding_dimension(), 8)]
    model = SentenceTransformer(modules=modules, device="cpu", prompts={"query": "so "})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = Dataset.from_dict({"a": TEXTS[:2] * 4, "b": TEXTS[1:3] * 4, "score": [0.1, 0.9] * 4})
    options = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "logs"), num_train_epochs=1, per_device_train_batch_size=4, learning_rate=0.01,
        save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    SentenceTransformerTrainer(model=model, args=options, train_dataset=data, loss=CosineSimilarityLoss(model)).train()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {"0.encoder.mix.w", "0.encoder.mix.gamma", "2.linear.weight"} <= moved
    assert any(name.startswith("0.encoder.bilm.") for name in moved) is trainable

    model.save(str(tmp_path / "saved"), create_model_card=False)
    expected = model.encode(TEXTS, prompt_name="query")
    loaded = load_sentence_transformer(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.encode(TEXTS, prompt_name="query"), expected)
    trusted = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
    np.testing.assert_array_equal(trusted.encode(TEXTS, prompt_name="query"), expected)
    assert trusted[0].trainable is trainable


def test_foreign_modules_and_unknown_layers_are_one_line(elmo: Elmo, tmp_path: Path) -> None:
    build_sentence_transformer(elmo, layers="mix").save(str(tmp_path / "saved"), create_model_card=False)
    path = tmp_path / "saved" / "modules.json"
    entries = json.loads(path.read_text())

    def load(first: object, second: object) -> str:
        path.write_text(json.dumps([first, second]))
        with pytest.raises(FormatError) as caught:
            load_sentence_transformer(tmp_path / "saved")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    for kind in ("os.system", "sentence_transformers.base.model.pickle", "sentence_transformers.SentenceTransformer"):
        message = load(entries[0], entries[1] | {"type": kind})
        assert message.endswith(f": expected modules of elmo and sentence-transformers, found {kind!r}")
    for entry in (3, {"path": "1_Pooling"}, entries[1] | {"path": "../other"}, entries[1] | {"path": "/"}):
        assert "expected a type and a subfolder of a module, found" in load(entries[0], entry)
    assert "cannot load" in load(entries[0], entries[1] | {"path": "none"})
    path.write_text("{}")
    with pytest.raises(FormatError, match=r": expected a saved SentenceTransformer, found other values$"):
        load_sentence_transformer(tmp_path / "saved")
    options = tmp_path / "saved" / "0_ElmoModule" / "elmo_module.json"
    for mix in (None, {"w": [1.0], "gamma": 1.0}, {"w": [1.0, 2.0, "x"], "gamma": 1.0}, {"w": [1.0, 2.0, 3.0]}):
        options.write_text(json.dumps(json.loads(options.read_text()) | {"mix": mix}))
        assert "mix must have 3 numbers w and a number gamma; found " in load(*entries)
    with pytest.raises(ConfigError, match=r"^max_seq_length must be at least 1, or None; found 0$"):
        build_sentence_transformer(elmo, max_seq_length=0)
    with pytest.raises(ConfigError, match=r"^layers must be mix, average, top, concat or 0\.\.2; found 7$"):
        build_sentence_transformer(elmo, layers=7)
