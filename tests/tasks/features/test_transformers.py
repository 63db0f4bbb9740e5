"""Encoders: the layers of ELMo, and the pieces of a transformer averaged to words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import Carry, ConfigError, Elmo
from elmo.tasks.features.layer import Features
from elmo.tasks.features.store import ElmoEncoder, FeatureStore
from elmo.tasks.features.transformers import TransformerEncoder, match_encoders
from tests.formats.tiny import tiny_model

SENTENCES = [("the", "river", "bank"), ("the",), ("river",) * 30]


def test_the_layers_of_elmo_are_those_of_encode() -> None:
    elmo = Elmo(tiny_model())
    encoder = ElmoEncoder(elmo)
    found = encoder.layers(SENTENCES)
    for states, words in zip(found, SENTENCES, strict=True):
        expected = elmo.encode([list(words)], layers="all")[0].vectors
        np.testing.assert_array_equal(states, expected)
        assert states.shape == (encoder.n_layers, len(words), encoder.width)


def test_the_key_depends_on_weights_and_start_state() -> None:
    model = tiny_model(warm=True)
    keys = [ElmoEncoder(Elmo(model), start=start).key for start in ("zero", "warm")]
    keys.append(ElmoEncoder(Elmo(tiny_model(seed=3))).key)
    assert len(set(keys)) == 3
    assert ElmoEncoder(Elmo(tiny_model(warm=True))).key == keys[0]
    lazy = ElmoEncoder(Elmo(model))
    assert "fingerprint" not in vars(lazy)  # hashing all weights takes time: not without need
    assert lazy.key == keys[0]
    with pytest.raises(ConfigError, match="must be 'zero' or 'warm'"):
        ElmoEncoder(Elmo(model), start=Carry())


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert(tmp_path_factory.mktemp("berts") / "bert", seed=1)


def make_bert(folder: Path, *, seed: int) -> Path:
    """Write a tiny transformers model; another seed gives other weights."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    folder.mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ri", "##ver", "bank"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    transformers.set_seed(seed)
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.model_max_length = 16
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_words_vector_is_the_mean_of_its_pieces(bert: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer  # pyright: ignore[reportMissingImports]

    encoder = TransformerEncoder(str(bert))
    (found,) = encoder.layers([("the", "river", "bank")])
    ids = AutoTokenizer.from_pretrained(bert)("the river bank", return_tensors="pt")
    with torch.inference_mode():
        states = AutoModel.from_pretrained(bert).eval()(**ids).last_hidden_state[0].numpy()
    expected = [states[1], states[2:4].mean(axis=0), states[4]]  # after [CLS]; "ri", "##ver"
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_long_sentences_are_read_in_windows_and_batches_change_nothing(bert: Path) -> None:
    encoder = TransformerEncoder(str(bert))
    together = encoder.layers(SENTENCES)
    assert [one.shape for one in together] == [(1, 3, 8), (1, 1, 8), (1, 30, 8)]
    for words, states in zip(SENTENCES, together, strict=True):
        np.testing.assert_allclose(encoder.layers([words])[0], states, atol=1e-5)
    window = encoder.layers([("river",) * 7])[0]  # 14 pieces: what the model reads beside its two marks
    np.testing.assert_allclose(together[2][:, :7], window, atol=1e-5)
    assert np.abs(together[2]).min(axis=2).all()


def test_the_key_of_a_transformer_depends_on_its_tokenizer(bert: Path, tmp_path: Path) -> None:
    first = TransformerEncoder(str(bert))
    key = first.key
    first.layers(SENTENCES)
    assert TransformerEncoder(str(bert)).key == first.key == key
    other = tmp_path / "bert"
    shutil.copytree(bert, other)
    assert TransformerEncoder(str(other)).key == key  # wherever it lies
    tokenizer = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["the"], vocabulary["bank"] = vocabulary["bank"], vocabulary["the"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    assert TransformerEncoder(str(other)).key != key


def test_roberta_uses_the_positions_after_its_padding_index(bert: Path, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.RobertaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=18, pad_token_id=1,
    )  # fmt: skip
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    tokenizer.model_max_length = 10**9  # it tells nothing
    tokenizer.save_pretrained(tmp_path)
    encoder = TransformerEncoder(str(tmp_path))
    window, longer = encoder.layers([("bank",) * 14, ("bank",) * 30])  # 16 positions, two for marks
    np.testing.assert_allclose(longer[:, :14], window, atol=1e-5)
    np.testing.assert_allclose(longer[:, 14:28], window, atol=1e-5)


def test_a_transformer_is_concatenated_with_elmo(bert: Path) -> None:
    elmo, other = Elmo(tiny_model()), TransformerEncoder(str(bert))
    store = FeatureStore(Features(), elmo, others=(other,))
    vectors = store.build_layer().eval()
    found = vectors(store.prepare(SENTENCES)(SENTENCES))
    assert found.inputs.shape == (3, 30, elmo.width + 8)
    np.testing.assert_allclose(found.inputs[0, :3, :8].detach(), other.layers(SENTENCES[:1])[0][0], atol=1e-5)


def test_a_folder_that_is_not_a_transformer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ConfigError, match="as a transformers model with safetensors weights"):
        TransformerEncoder(str(tmp_path))


def test_encoders_are_loaded_by_name_and_checked_by_key(bert: Path, tmp_path: Path) -> None:
    one = TransformerEncoder(str(bert))
    assert one.name == str(bert.resolve())
    wanted = [(one.key, one.name)]
    (found,) = match_encoders(wanted, (), subject="x")
    assert found.key == one.key
    assert match_encoders(wanted, [one], subject="x") == (one,)
    assert match_encoders([], (), subject="x") == ()
    other = TransformerEncoder(str(make_bert(tmp_path / "other", seed=5)))
    for given, message in (
        (
            [other],
            r"x: encoder must be .*bert with the hash [0-9a-f]{12}…, as in training; found .*other with the hash",
        ),
        ([one, other], r"x: number of encoders must be 1, as in training \(.*bert\); found 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            match_encoders(wanted, given, subject="x")
    with pytest.raises(ConfigError, match=r"x: cannot load an encoder .*; use --also to pass it"):
        match_encoders([(one.key, str(tmp_path / "gone"))], (), subject="x")
    with pytest.raises(ConfigError, match="number of encoders must be 1, as in training; found 0"):
        match_encoders([(one.key, None)], (), subject="x")  # as earlier versions wrote it
    mine = ElmoEncoder(Elmo(tiny_model()))  # an encoder without a name
    with pytest.raises(ConfigError, match="found another encoder"):
        match_encoders(wanted, [mine], subject="x")
