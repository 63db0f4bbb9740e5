"""Keras 3: the layer trains frozen and fine-tuned, and a saved model predicts the same."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo import ConfigError, DataError, Elmo
from tests.formats.tiny import tiny_model

if find_spec("keras") is None:  # importing Keras here would choose its default backend, TensorFlow
    pytest.skip("Keras is not installed", allow_module_level=True)
from elmo.integrations.keras import ElmoLayer, keras
from elmo.integrations.token_encoder import TokenEncoder

# Keras calls NumPy in a deprecated way, and warns about its own containers when it loads a model.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Skipping nested container:UserWarning"),
]

TEXTS = ["a good film .", "bad", "", "such a good , good film", "very very bad film", "good"]
LABELS = np.array([1, 0, 0, 1, 0, 1])


@pytest.fixture
def elmo() -> Elmo:
    return Elmo(tiny_model(warm=True))


@pytest.mark.parametrize("layers", ["average", "top", "concat", 1, "mix"])
def test_the_layer_computes_the_vectors_of_encode(elmo: Elmo, layers) -> None:
    choice = "average" if layers == "mix" else layers  # a new mix has equal shares
    expected = elmo.encode(TEXTS, layers=choice)
    layer = ElmoLayer(elmo, layers=layers)
    ids = layer.prepare(TEXTS)
    vectors = keras.ops.convert_to_numpy(layer(ids))
    assert vectors.shape == layer.compute_output_shape(ids.shape)
    mask = keras.ops.convert_to_numpy(layer.compute_mask(keras.ops.convert_to_tensor(ids)))
    for row, is_token, encoding in zip(vectors, mask, expected, strict=True):
        np.testing.assert_allclose(row[is_token], encoding.vectors, atol=1e-6)
        assert not row[~is_token].any()
    for pooling in ("mean", "max"):
        pooled = keras.ops.convert_to_numpy(ElmoLayer(elmo, layers=layers, pooling=pooling)(ids))
        np.testing.assert_allclose(pooled, [encoding.sentence(pooling) for encoding in expected], atol=1e-6)


@pytest.mark.parametrize("train_bilm", [False, True])
def test_the_ten_lines_of_the_tutorials_train_and_survive_saving(elmo: Elmo, tmp_path: Path, train_bilm: bool) -> None:
    keras.utils.set_random_seed(1)
    before = {name: weight.clone() for name, weight in elmo.bilm.state_dict().items()}

    embedding = ElmoLayer(elmo, pooling="mean", train_bilm=train_bilm)  # hub.Module(…, trainable=True)
    input_ids = keras.Input((None, embedding.n_ids), dtype="int32")  # Input(shape=(1,), dtype=tf.string)
    dense = keras.layers.Dense(16, activation="relu")(embedding(input_ids))
    prediction = keras.layers.Dense(1, activation="sigmoid")(dense)
    model = keras.Model(input_ids, prediction)
    model.compile(optimizer=keras.optimizers.Adam(0.03), loss="binary_crossentropy", metrics=["accuracy"])
    ids = embedding.prepare(TEXTS)
    losses = model.fit(ids, LABELS, epochs=60, verbose=0).history["loss"]

    assert losses[-1] < 0.7 * losses[0]
    assert np.ptp(embedding.shares) > 0.01
    assert abs(sum(embedding.shares) - 1) < 1e-5
    changed = [name for name, weight in elmo.bilm.state_dict().items() if not torch.equal(weight, before[name])]
    assert bool(changed) is train_bilm
    assert len(model.trainable_variables) == (len(before) if train_bilm else 0) + 2 + 4

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    again = next(layer for layer in loaded.layers if isinstance(layer, ElmoLayer))
    np.testing.assert_array_equal(again.prepare(TEXTS), ids)
    assert again.shares == embedding.shares


@pytest.mark.parametrize("token", ["words", "both"])
def test_models_of_words_are_saved_with_their_vocabulary(tmp_path: Path, token) -> None:
    layer = ElmoLayer(Elmo(tiny_model(token, vocab=True)), pooling="mean")
    model = keras.Sequential([keras.Input((None, layer.n_ids), dtype="int32"), layer])
    ids = layer.prepare([["the", "river"], ["bank"]])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))


def test_wrong_options_are_one_line(elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match=r"^layers must be mix, average, top, concat or 0\.\.2; found 'best'$"):
        ElmoLayer(elmo, layers="best")
    with pytest.raises(ConfigError, match=r"^pooling must be 'mean', 'max' or None; found 'sum'$"):
        ElmoLayer(elmo, pooling="sum")
    with pytest.raises(DataError, match=r"^texts must be a list of texts; found one string$"):
        ElmoLayer(elmo).prepare("a text")
    with pytest.raises(DataError, match=r"^text 1 must be text or a list of tokens; found int$"):
        ElmoLayer(elmo).prepare(["a text", 3])
    with pytest.raises(ConfigError, match=r"^max_tokens must be at least 1, or None; found 0$"):
        ElmoLayer(elmo).prepare(["a text"], max_tokens=0)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_texts_without_tokens_have_zero_vectors(elmo: Elmo, pooling) -> None:
    layer = ElmoLayer(elmo, pooling=pooling)
    vectors = keras.ops.convert_to_numpy(layer(layer.prepare(["", ""])))
    np.testing.assert_array_equal(vectors, np.zeros((2, elmo.width)))


def test_no_sentences_have_no_vectors(elmo: Elmo) -> None:
    for layers in ("mix", "average"):
        vectors, mask = TokenEncoder(elmo, layers=layers)([])
        assert vectors.shape == (0, 0, elmo.width)
        assert mask.shape == (0, 0)


def test_another_backend_is_one_line() -> None:
    code = (
        "from elmo import ElmoError\ntry:\n    from elmo.integrations import ElmoLayer\n"
        "except ElmoError as error:\n    print(error)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}  # not installed
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == (
        "the backend of Keras must be torch; found tensorflow; set the environment variable KERAS_BACKEND=torch before "
        "Keras is imported\n"
    )
