from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.errors import FormatError
from elmo.formats import bilm_checkpoint
from tests.formats.tiny import assert_same_model, tiny_model
from tests.formats.write_bilm import bilm_cell, options, write_training_folder


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"n_layers": 1},
        {"n_layers": 3, "n_highway": 2},
        {"cell_width": 4},  # no projection of states
        {"filters": ((1, 2), (2, 2))},  # no projection of tokens
        {"activation": "tanh", "has_skip": False, "cell_clip": None, "state_clip": None, "n_highway": 0},
        {"token": "words"},
        {"softmax": False, "vocab": True},
        {"softmax": False, "vocab": False},
    ],
    ids=str,
)
def test_a_checkpoint_comes_back_bit_by_bit(tmp_path: Path, how: dict[str, Any]) -> None:
    model = tiny_model(**{"softmax": True, **how})
    write_training_folder(tmp_path, model)
    assert bilm_checkpoint.can_read(tmp_path)
    found = bilm_checkpoint.read(tmp_path)
    assert found.format == bilm_checkpoint.NAME
    assert_same_model(found, model)
    assert found.metadata["training"]["dropout"] == 0.1
    progress = {"checkpoint": "model.ckpt-7", "global_step": 7, "train_perplexity": 41.5}
    assert progress.items() <= found.metadata.items()


def test_partitioned_variables_in_several_files_come_back(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    slices = {
        "lm/char_embed": [[(0, 131), (0, None)], [(131, 130), (0, None)]],
        "lm/softmax/W": [[(i, 3), (0, None)] for i in (0, 3, 6)],
        bilm_cell(1, 0, "kernel").join(("lm/", "")): [[(0, None), (0, 10)], [(0, None), (10, 14)]],
    }
    write_training_folder(tmp_path, model, slices=slices, n_shards=3)
    assert_same_model(bilm_checkpoint.read(tmp_path), model)


@pytest.mark.parametrize(
    "template",
    [
        "RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell/{new}",  # TensorFlow 1.2 and later
        "RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell/{old}",  # 1.0 and 1.1
        "RNN_{d}/RNN/MultiRNNCell/Cell{l}/LSTMCell/{oldest}",  # before, and in HDF5 files
    ],
)
def test_the_names_of_every_tensorflow_are_known(tmp_path: Path, template: str) -> None:
    def name(direction: int, layer: int, part: str) -> str:
        new = {"kernel": "kernel", "bias": "bias", "projection": "projection/kernel"}[part]
        old = {"kernel": "weights", "bias": "biases", "projection": "projection/weights"}[part]
        oldest = {"kernel": "W_0", "bias": "B", "projection": "W_P_0"}[part]
        return template.format(d=direction, l=layer, new=new, old=old, oldest=oldest)

    model = tiny_model()
    write_training_folder(tmp_path, model, cell_name=name)
    assert_same_model(bilm_checkpoint.read(tmp_path), model)


def test_one_layer_has_no_number_in_its_name(tmp_path: Path) -> None:
    def name(direction: int, layer: int, part: str) -> str:
        return bilm_cell(direction, layer, part).replace("multi_rnn_cell/cell_0/", "")

    model = tiny_model(n_layers=1)
    write_training_folder(tmp_path, model, cell_name=name)
    assert_same_model(bilm_checkpoint.read(tmp_path), model)


def test_a_softmax_may_share_the_table_of_words(tmp_path: Path) -> None:
    model = tiny_model("words", softmax=True)
    write_training_folder(tmp_path, model, without=("lm/softmax/W", "lm/softmax/W/Adagrad"))
    found = bilm_checkpoint.read(tmp_path)
    assert found.softmax is not None
    assert found.softmax.weight.equal(model.weights["token_layer.word_embed.weight"][1:])


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_become_float32(tmp_path: Path, dtype: type) -> None:
    model = tiny_model()
    array = model.weights["token_layer.cnn.char_embed.weight"][1:].numpy().astype(dtype)
    write_training_folder(tmp_path, model, more={"lm/char_embed": array})
    found = bilm_checkpoint.read(tmp_path).weights["token_layer.cnn.char_embed.weight"]
    assert found[1:].numpy().tobytes() == array.astype(np.float32).tobytes()


def test_options_for_inference_count_one_character_more(tmp_path: Path) -> None:
    model = tiny_model()
    write_training_folder(tmp_path, model)
    values = options(model)
    values["char_cnn"]["n_characters"] = 262
    (tmp_path / "options.json").unlink()
    (tmp_path / "run_options.json").write_text(json.dumps(values))
    assert_same_model(bilm_checkpoint.read(tmp_path), model)


def test_the_line_maxtermid_is_no_word(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    write_training_folder(tmp_path, model)
    path = tmp_path / "vocab.txt"
    path.write_text("!!!MAXTERMID\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert_same_model(bilm_checkpoint.read(tmp_path), model)


def two_checkpoints(folder: Path) -> None:
    for step in (9, 10):
        write_training_folder(folder, tiny_model(seed=step), step=step)


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (None, 10),  # by number, not by letter
        ('model_checkpoint_path: "model.ckpt-9"\nall_model_checkpoint_paths: "model.ckpt-10"', 9),
        ('model_checkpoint_path: "/home/somebody/else/model.ckpt-9"', 9),
        ('model_checkpoint_path: "C:\\\\runs\\\\model.ckpt-9"', 9),
        ('model_checkpoint_path: "../../model.ckpt-10"', 10),
    ],
)
def test_the_latest_checkpoint_is_read(tmp_path: Path, note: str | None, expected: int) -> None:
    two_checkpoints(tmp_path)
    (tmp_path / "checkpoint").unlink()
    if note:
        (tmp_path / "checkpoint").write_text(note)
    assert bilm_checkpoint.read(tmp_path).metadata["global_step"] == expected


@pytest.mark.parametrize("note", ['model_checkpoint_path: "model.ckpt-11"', 'model_checkpoint_path: ".."', "", "\xff"])
def test_a_note_that_names_no_checkpoint_here_is_refused(tmp_path: Path, note: str) -> None:
    two_checkpoints(tmp_path)
    (tmp_path / "checkpoint").write_text(note, encoding="latin-1")
    with pytest.raises(FormatError, match=r"such as 'model.ckpt-10', found .*remove this file"):
        bilm_checkpoint.read(tmp_path)


def test_two_checkpoints_without_a_step_are_ambiguous(tmp_path: Path) -> None:
    write_training_folder(tmp_path, tiny_model())
    (tmp_path / "checkpoint").unlink()
    for name in ("model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        for prefix in ("a", "b"):
            (tmp_path / name.replace("model.ckpt-7", prefix)).write_bytes(data)
    with pytest.raises(FormatError, match="expected one latest checkpoint, found a and b"):
        bilm_checkpoint.read(tmp_path)


def test_missing_unexpected_and_wrong_variables_are_reported_at_once(tmp_path: Path) -> None:
    model = tiny_model(softmax=True)
    more = {
        "lm/CNN_proj/b_proj": np.zeros(9, dtype=np.float32),
        "lm/CNN_high_1/W_carry": np.zeros((5, 5), dtype=np.float32),
        "lm/CNN/b_cnn_0": np.zeros(2, dtype=np.int32),
        "lm/softmax/b": np.zeros(4, dtype=np.float32),
    }
    missing = "lm/" + bilm_cell(1, 1, "bias")
    write_training_folder(tmp_path, model, more=more, without=(missing, f"{missing}/Adagrad"))
    with pytest.raises(FormatError) as caught:
        bilm_checkpoint.read(tmp_path)
    message = str(caught.value)
    assert "missing RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B (24,)" in message
    assert "unexpected 'lm/CNN_high_1/W_carry'" in message
    assert "lm/CNN_proj/b_proj: expected (4,), found (9,)" in message
    assert "lm/CNN/b_cnn_0: expected floating-point numbers, found int32" in message
    assert "lm/softmax/b: expected (9,), found (4,)" in message


def test_variables_of_no_known_role_or_of_one_role_twice_are_refused(tmp_path: Path) -> None:
    more = {
        "lm/attention/query": np.zeros(3, dtype=np.float32),
        "lm/RNN_0/rnn/multi_rnn_cell/cell_0/lstm_cell/weights": np.zeros(3, dtype=np.float32),
    }
    write_training_folder(tmp_path, tiny_model(), more=more)
    with pytest.raises(
        FormatError, match=r"both match RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0.*unexpected variable 'lm/attention"
    ):
        bilm_checkpoint.read(tmp_path)


def test_a_model_of_words_needs_its_table_and_its_vocabulary(tmp_path: Path) -> None:
    model = tiny_model("words")
    write_training_folder(tmp_path / "a", model, without=("lm/embedding", "lm/embedding/Adagrad"))
    with pytest.raises(FormatError, match=r"expected a table lm/embedding.*found none"):
        bilm_checkpoint.read(tmp_path / "a")
    write_training_folder(tmp_path / "b", model)
    (tmp_path / "b" / "vocab.txt").unlink()
    with pytest.raises(FormatError, match="needs a vocabulary of the same size; found none"):
        bilm_checkpoint.read(tmp_path / "b")


def test_a_vocabulary_of_another_length_than_the_softmax_is_refused(tmp_path: Path) -> None:
    write_training_folder(tmp_path, tiny_model(softmax=True))
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    with pytest.raises(FormatError, match="softmax has 9 rows, but the vocabulary has 3 words"):
        bilm_checkpoint.read(tmp_path)


def test_several_vocabularies_are_ambiguous(tmp_path: Path) -> None:
    write_training_folder(tmp_path, tiny_model(softmax=True))
    (tmp_path / "vocab.txt").rename(tmp_path / "vocab_a.txt")
    (tmp_path / "vocab_b.txt").write_text("")
    with pytest.raises(FormatError, match=r"expected one file vocab.txt, found \['vocab_a.txt', 'vocab_b.txt'\]"):
        bilm_checkpoint.read(tmp_path)


@pytest.mark.parametrize("name", ["lm/softmax/W", "lm/char_embed"])
def test_values_that_are_not_finite_are_refused(tmp_path: Path, name: str) -> None:
    model = tiny_model(softmax=True)
    wide = {"lm/softmax/W": (9, 4), "lm/char_embed": (261, 3)}
    write_training_folder(tmp_path, model, more={name: np.full(wide[name], 1e300)})  # beyond float32
    with pytest.raises(FormatError, match="not finite"):
        bilm_checkpoint.read(tmp_path)


def test_a_folder_without_options_names_what_is_missing(tmp_path: Path) -> None:
    write_training_folder(tmp_path, tiny_model())
    (tmp_path / "options.json").unlink()
    with pytest.raises(FormatError, match=r"expected a file options\.json, found none"):
        bilm_checkpoint.read(tmp_path)


def test_other_folders_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-1.index").touch()  # without data
    (tmp_path / ".index").touch()
    assert not bilm_checkpoint.can_read(tmp_path)
    assert not bilm_checkpoint.can_read(tmp_path / "nothing")
    assert not bilm_checkpoint.can_read(tmp_path / "model.ckpt-1.index")
