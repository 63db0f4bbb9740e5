"""Models as published by bilm-tf, AllenNLP and NLPL are read exactly and written back bit by bit."""

from __future__ import annotations

import json
import resource
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from elmo.errors import ConfigError, FormatError, OutputError
from elmo.formats import bilm_hdf5
from elmo.text.ids import Vocabulary
from tests.formats.tiny import WORDS, assert_same_model, tiny_model
from tests.formats.write_published import arrays, options, publish, stored
from tests.shared import FIXTURES, needs_fixtures

CELL = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell"
COMBINATIONS = [
    options(
        dim=dim,
        n_layers=n_layers,
        filters=((1, 2), (2, 3)) if has_projection else ((1, 1), (3, 3)),  # 5 or 4 filters for a width of 4
        n_highway=n_highway,
        skip=skip,
        activation="relu" if skip else "tanh",
        clips=skip,
        n_characters=261 if skip else 262,
        chars=n_highway is not None,
    )
    for dim, n_layers, has_projection, n_highway, skip in product(
        (6, 4), (None, 1, 2, 3), (True, False), (0, 2, None), (True, False)
    )
    if n_highway is not None or has_projection
]


def assert_stored_again(source: Path, copy: Path) -> None:
    """Check that every dataset is bit-equal and only identities, which AllenNLP needs, are added."""
    before, after = stored(source), stored(copy)
    for name, array in before.items():
        assert after[name].dtype == np.float32
        assert after[name].shape == array.shape
        assert after[name].tobytes() == array.tobytes(), name
    for name in after.keys() - before.keys():
        expected = np.eye(len(after[name])) if after[name].ndim == 2 else np.zeros(len(after[name]))
        assert np.array_equal(after[name], expected), name


@pytest.mark.parametrize("values", COMBINATIONS, ids=range(len(COMBINATIONS)))
def test_every_combination_of_options_comes_back_bit_by_bit(tmp_path: Path, values: dict[str, Any]) -> None:
    publish(tmp_path / "a", values, words=WORDS)
    model = bilm_hdf5.read(tmp_path / "a")
    bilm_hdf5.write(model, tmp_path / "b")
    assert_stored_again(tmp_path / "a" / "weights.hdf5", tmp_path / "b" / "weights.hdf5")
    again = bilm_hdf5.read(tmp_path / "b")
    assert_same_model(again, model)
    assert again.config.lstm.n_layers == values["lstm"].get("n_layers", 1)
    assert again.config.lstm.has_skip == values["lstm"]["use_skip_connections"]
    assert (again.config.chars is None) == ("char_cnn" not in values)


@needs_fixtures
@pytest.mark.parametrize("name", ["allennlp", "bilm-tf"])
def test_the_published_fixtures_come_back_bit_by_bit(tmp_path: Path, name: str) -> None:
    model = bilm_hdf5.read(FIXTURES / name)
    bilm_hdf5.write(model, tmp_path / "copy")
    assert stored(tmp_path / "copy" / "weights.hdf5").keys() == stored(FIXTURES / name / "lm_weights.hdf5").keys()
    assert_stored_again(FIXTURES / name / "lm_weights.hdf5", tmp_path / "copy" / "weights.hdf5")
    before, after = FIXTURES / name / "vocab_test.txt", tmp_path / "copy" / "vocab.txt"
    assert after.read_bytes().rstrip(b"\n") == before.read_bytes().rstrip(b"\n")


@needs_fixtures
def test_a_token_cache_replaces_the_characters() -> None:
    folder = FIXTURES / "allennlp"
    model = bilm_hdf5.read_files(
        folder / "options.json",
        folder / "lm_weights.hdf5",
        vocab=folder / "vocab_test.txt",
        embedding=folder / "elmo_token_embeddings.hdf5",
    )
    assert model.config.chars is None
    table = model.weights["token_layer.word_embed.weight"].numpy()
    assert not table[0].any()
    assert np.array_equal(table[1:], stored(folder / "elmo_token_embeddings.hdf5")["embedding"])


def test_gates_and_matrices_are_where_the_network_expects_them(tmp_path: Path) -> None:
    values = options()
    datasets = arrays(values)
    weights = bilm_hdf5.read(publish(tmp_path, values, datasets=datasets)).weights
    i, j, f, o = np.split(datasets[f"{CELL}/W_0"], 4, axis=1)  # TensorFlow's order
    expected = np.concatenate([i, f, j, o], axis=1)
    assert np.array_equal(weights["backward_stack.1.input_weight"].numpy(), expected[:4].T)
    assert np.array_equal(weights["backward_stack.1.state_weight"].numpy(), expected[4:].T)
    i, j, f, o = np.split(datasets[f"{CELL}/B"], 4)
    assert np.array_equal(weights["backward_stack.1.bias"].numpy(), np.concatenate([i, f, j, o]))
    assert np.array_equal(weights["backward_stack.1.projection"].numpy(), datasets[f"{CELL}/W_P_0"].T)
    cnn = "token_layer.cnn"
    assert np.array_equal(weights[f"{cnn}.highways.0.gate.weight"].numpy(), datasets["CNN_high_0/W_carry"].T)
    assert np.array_equal(weights[f"{cnn}.highways.0.transform.bias"].numpy(), datasets["CNN_high_0/b_transform"])
    assert np.array_equal(weights["token_layer.projection.weight"].numpy(), datasets["CNN_proj/W_proj"].T)
    convolution = weights[f"{cnn}.convolutions.1.weight"].numpy()  # (count, char width, width)
    assert convolution[2, 1, 0] == datasets["CNN/W_cnn_1"][0, 0, 1, 2]
    table = weights[f"{cnn}.char_embed.weight"].numpy()
    assert not table[0].any()
    assert np.array_equal(table[1:], datasets["char_embed"])
    assert all(weight.is_contiguous() and weight.dtype == torch.float32 for weight in weights.values())


@pytest.mark.parametrize("dtype", ["f2", "f8", ">f4"])
def test_other_precisions_become_float32(tmp_path: Path, dtype: str) -> None:
    datasets = arrays(options(), dtype=dtype)
    model = bilm_hdf5.read(publish(tmp_path, datasets=datasets))
    bias = model.weights["token_layer.cnn.convolutions.0.bias"]
    assert np.array_equal(bias.numpy(), datasets["CNN/b_cnn_0"].astype("f4"))


def test_compressed_weights_are_read(tmp_path: Path) -> None:
    plain = bilm_hdf5.read(publish(tmp_path / "a"))
    packed = bilm_hdf5.read(publish(tmp_path / "b", chunks=True, compression="gzip", shuffle=True))
    assert_same_model(packed, plain)


def test_file_names_vary_and_unrelated_files_are_ignored(tmp_path: Path) -> None:
    publish(tmp_path, weights="elmo_2x_weights.hdf5", options_name="elmo_2x_options.json")
    with h5py.File(tmp_path / "lm_embeddings_0.hdf5", "w") as file:
        file["0"] = np.zeros((2, 3, 4))
    (tmp_path / "broken.h5").write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    (tmp_path / "dir.hdf5").mkdir()
    assert bilm_hdf5.can_read(tmp_path)
    assert bilm_hdf5.read(tmp_path).vocab is None


def test_a_vocabulary_of_any_published_name_is_found(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "vocab-2016-09-10.txt").write_text("<S>\n</S>\n<UNK>\n!!!MAXTERMID\nriver\n")
    assert bilm_hdf5.read(tmp_path).vocab == Vocabulary(("<S>", "</S>", "<UNK>", "river"))
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    vocab = bilm_hdf5.read(tmp_path).vocab
    assert vocab is not None
    assert len(vocab) == 3


def test_several_vocabularies_without_a_plain_name_are_ignored(tmp_path: Path) -> None:
    publish(tmp_path)
    (tmp_path / "vocab_a.txt").write_text("a\n")
    (tmp_path / "vocab_b.txt").write_text("b\n")
    assert bilm_hdf5.read(tmp_path).vocab is None


def test_notes_of_the_publisher_and_of_training_are_kept(tmp_path: Path) -> None:
    publish(tmp_path / "a", options(n_epochs=10, reverse=None))
    (tmp_path / "a" / "meta.json").write_text('{"name": "Norwegian", "corpus": ["x"]}')
    model = bilm_hdf5.read(tmp_path / "a")
    assert model.metadata == {"training": {"n_epochs": 10, "reverse": None},
                              "meta": {"name": "Norwegian", "corpus": ["x"]}}  # fmt: skip
    bilm_hdf5.write(model, tmp_path / "b")
    assert bilm_hdf5.read(tmp_path / "b").metadata == model.metadata
    (tmp_path / "a" / "meta.json").write_text("no JSON")
    assert "meta" not in bilm_hdf5.read(tmp_path / "a").metadata


@pytest.mark.parametrize(
    ("name", "prefix"), [("x_softmax_weights.hdf5", "softmax/"), ("softmax.h5", ""), ("weights.hdf5", "softmax/")]
)
def test_a_softmax_is_found_in_every_layout(tmp_path: Path, name: str, prefix: str) -> None:
    publish(tmp_path, words=WORDS)
    weight, bias = np.random.default_rng(1).normal(size=(2, len(WORDS), 4)).astype("f4")
    with h5py.File(tmp_path / name, "a") as file:
        file[f"{prefix}W"], file[f"{prefix}b"] = weight, bias[:, 0]
    model = bilm_hdf5.read(tmp_path)
    assert model.softmax is not None
    assert np.array_equal(model.softmax.weight.numpy(), weight)
    assert np.array_equal(model.softmax.bias.numpy(), bias[:, 0])


def test_a_written_softmax_comes_back_and_no_other_file_looks_like_weights(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    bilm_hdf5.write(model, tmp_path / "m")
    assert_same_model(bilm_hdf5.read(tmp_path / "m"), model)
    # simple_elmo uses the first *.hdf5 in the listing
    assert [path.name for path in (tmp_path / "m").glob("*.hdf5")] == ["weights.hdf5"]


def test_a_single_layer_as_bilm_tf_dumps_it_is_read(tmp_path: Path) -> None:
    usual = bilm_hdf5.read(publish(tmp_path / "usual", options(n_layers=1)))
    path = publish(tmp_path / "dumped", options(n_layers=1)) / "weights.hdf5"
    with h5py.File(path, "r+") as file:
        for direction in (0, 1):
            group = file[f"RNN_{direction}/RNN"]
            group.move("MultiRNNCell/Cell0/LSTMCell", "LSTMCell")
            del group["MultiRNNCell"]
    assert_same_model(bilm_hdf5.read(path.parent), usual)
    (path.parent / "options.json").write_text(json.dumps(options(n_layers=2)))
    with pytest.raises(FormatError, match=r"missing dataset RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"):
        bilm_hdf5.read(path.parent)


def test_word_models_read_their_table(tmp_path: Path) -> None:
    model = tiny_model("words")
    bilm_hdf5.write(model, tmp_path / "m")
    assert_same_model(bilm_hdf5.read(tmp_path / "m"), model)
    assert "embedding" in stored(tmp_path / "m" / "weights.hdf5")


def test_a_folder_whose_weights_have_no_characters_uses_its_token_cache(tmp_path: Path) -> None:
    datasets = arrays(options())
    cache = np.random.default_rng(2).normal(size=(len(WORDS), 4)).astype("f4")
    lstm_only = {name: array for name, array in datasets.items() if name.startswith("RNN")}
    for folder, kept in ((tmp_path / "lstm", lstm_only), (tmp_path / "all", datasets)):
        publish(folder, datasets=kept, words=WORDS)
        with h5py.File(folder / "tokens.hdf5", "w") as file:
            file["embedding"] = cache
    words = bilm_hdf5.read(tmp_path / "lstm")
    assert np.array_equal(words.weights["token_layer.word_embed.weight"].numpy()[1:], cache)
    assert bilm_hdf5.read(tmp_path / "all").config.words is None  # characters cover every word


def test_a_projection_to_the_same_width_must_be_an_identity(tmp_path: Path) -> None:
    values = options(dim=4, projection_dim=4, filters=((1, 4),))
    datasets = arrays(values)
    for direction, layer in product(range(2), range(2)):
        datasets[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/W_P_0"] = np.eye(4, dtype="f4")
    plain = bilm_hdf5.read(publish(tmp_path / "a", values))
    assert_same_model(bilm_hdf5.read(publish(tmp_path / "b", values, datasets=datasets)), plain)
    datasets |= {"CNN_proj/W_proj": np.ones((4, 4), "f4"), "CNN_proj/b_proj": np.zeros(4, "f4")}
    with pytest.raises(FormatError, match="CNN_proj/W_proj projects to the same width: AllenNLP applies it"):
        bilm_hdf5.read(publish(tmp_path / "c", values, datasets=datasets))


def test_every_mismatch_is_reported_at_once(tmp_path: Path) -> None:
    datasets = arrays(options())
    del datasets[f"{CELL}/B"], datasets["CNN_high_0/b_carry"]
    datasets["char_embed"] = np.zeros((262, 3), "f4")
    datasets["CNN/W_cnn_2"] = np.zeros((1, 3, 3, 2), "f4")
    datasets["RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B"] = np.zeros(24, "f4")
    with pytest.raises(FormatError) as caught:
        bilm_hdf5.read(publish(tmp_path, datasets=datasets))
    for part in (
        f"missing dataset {CELL}/B (24,)",
        "missing dataset CNN_high_0/b_carry (5,)",
        "dataset char_embed: expected (261, 3), found (262, 3)",
        "unexpected CNN/W_cnn_2",
        "unexpected RNN_0/RNN/MultiRNNCell/Cell2",
    ):
        assert part in str(caught.value)


def test_layers_missing_from_the_options_are_not_silently_dropped(tmp_path: Path) -> None:
    publish(tmp_path, options(n_layers=2))
    (tmp_path / "options.json").write_text(json.dumps(options(n_layers=None)))
    with pytest.raises(FormatError, match="unexpected RNN_0/RNN/MultiRNNCell/Cell1"):
        bilm_hdf5.read(tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, bad: float) -> None:
    datasets = arrays(options())
    datasets[f"{CELL}/W_0"][1, 2] = bad
    with pytest.raises(FormatError, match=r"backward_stack\.1\.\w+_weight contains values that are not finite"):
        bilm_hdf5.read(publish(tmp_path, datasets=datasets))


def test_ambiguous_folders_are_refused_with_the_candidates(tmp_path: Path) -> None:
    publish(tmp_path)
    publish(tmp_path, weights="second.hdf5")
    with pytest.raises(FormatError, match=r"expected one HDF5 file with RNN_0, found second\.hdf5, weights\.hdf5"):
        bilm_hdf5.read(tmp_path)
    bilm_hdf5.read_files(tmp_path / "options.json", tmp_path / "second.hdf5")
    publish(tmp_path, options_name="b_options.json")
    with pytest.raises(FormatError, match=r"expected one \*options\.json, found b_options\.json, options\.json"):
        bilm_hdf5.read(tmp_path)


def test_a_table_of_words_needs_its_vocabulary(tmp_path: Path) -> None:
    publish(tmp_path, options(chars=False))
    with pytest.raises(FormatError, match="a word table of 9 rows needs a vocabulary of the same size; found none"):
        bilm_hdf5.read(tmp_path)


def test_a_folder_of_another_kind_is_not_matched(tmp_path: Path) -> None:
    assert not bilm_hdf5.can_read(tmp_path)
    assert not bilm_hdf5.can_read(tmp_path / "nothing")
    (tmp_path / "options.json").write_text("{}")
    assert not bilm_hdf5.can_read(tmp_path)
    (tmp_path / "model.ckpt-1.index").touch()
    with h5py.File(tmp_path / "vectors.hdf5", "w") as file:
        file["0"] = np.zeros(3)
    assert not bilm_hdf5.can_read(tmp_path)  # a checkpoint with vectors computed from it
    publish(tmp_path)
    assert bilm_hdf5.can_read(tmp_path)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (tiny_model(alphabet="unicode"), "it reads Unicode characters"),
        (tiny_model("both"), "it reads words and characters"),
        (tiny_model(has_norm=True), "it normalizes its token vectors"),
        (tiny_model(highway_width=5), "it projects the features before the highway layers"),
        (tiny_model(is_transformer=True), "it has transformer layers"),
        (tiny_model("both", alphabet="unicode"), "Unicode characters.*; it reads words and characters"),
        (tiny_model(vocab=True, words=("a\nb",)), "its word 'a.nb' cannot be written as a line of vocab.txt"),
        (tiny_model(vocab=True, words=("\ud800",)), "cannot be written as a line of vocab.txt"),
        (tiny_model(vocab=True, words=("!!!MAXTERMID",)), "cannot be written as a line of vocab.txt"),
    ],
)
def test_a_model_that_the_format_cannot_represent_is_refused(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(OutputError, match=message) as caught:
        bilm_hdf5.write(model, tmp_path / "m")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_another_forget_bias_is_added_to_the_forget_gates_only(tmp_path: Path) -> None:
    model = tiny_model(forget_bias=0.0)
    bilm_hdf5.write(model, tmp_path / "m")
    again = bilm_hdf5.read(tmp_path / "m")
    assert again.config.lstm.forget_bias == 1.0
    for stack, layer in product(("forward_stack", "backward_stack"), range(2)):
        before, after = model.weights[f"{stack}.{layer}.bias"], again.weights[f"{stack}.{layer}.bias"]
        change = torch.zeros(24)
        change[6:12] = -1  # i, f, j, o of 6 cells
        assert torch.equal(after, (before.double() + change).float())


def test_an_existing_folder_is_not_changed(tmp_path: Path) -> None:
    bilm_hdf5.write(tiny_model(seed=1), tmp_path / "m")
    before = (tmp_path / "m" / "weights.hdf5").read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        bilm_hdf5.write(tiny_model(seed=2), tmp_path / "m")
    assert (tmp_path / "m" / "weights.hdf5").read_bytes() == before


@pytest.mark.parametrize("limit", [100, 3000, 9000])
def test_a_full_disk_is_one_error_and_leaves_nothing_behind(tmp_path: Path, limit: int) -> None:
    """Limit the size of files; HDF5 alone may crash the process when it writes to a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OutputError, match=r"cannot write .*: File too large"):
            bilm_hdf5.write(tiny_model(), tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        bilm_hdf5.write(tiny_model(softmax=True), tmp_path / name)
    for file in ("options.json", "weights.hdf5", "softmax_weights.h5", "vocab.txt"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_wider_projection_than_cells_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, options(dim=4, projection_dim=4, filters=((1, 4),)))
    (tmp_path / "options.json").write_text(json.dumps(options(dim=2, projection_dim=4)))
    with pytest.raises((FormatError, ConfigError), match=r"lstm\.projection_dim 4 must not exceed lstm\.dim 2"):
        bilm_hdf5.read(tmp_path)
