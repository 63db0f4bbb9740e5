"""Our readers against TensorFlow's own files, bit by bit; and TensorFlow against the files of our tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from elmo.formats import bilm_checkpoint, bilm_hdf5, tf_hub
from elmo.formats.containers.tf_checkpoint import read_index
from tests.conformance.locations import SCRIPTS, needs_peer, peer_python
from tests.formats.tiny import assert_same_tensor, tiny_model
from tests.formats.write_bilm import write_training_folder
from tests.formats.write_bundle import write_bundle

pytestmark = [pytest.mark.conformance, needs_peer("tensorflow")]


def run(*arguments: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [peer_python("tensorflow"), SCRIPTS / "tensorflow_files.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tensorflow")
    run("write", folder)
    return folder


def assert_bit_equal(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("case", "n_shards", "n_sliced", "unread"),
    [
        ("types", 1, 0, {"string"}),
        ("many", 1, 0, set()),
        ("partitioned", 1, 4, set()),
        ("sharded", 2, 4, set()),
        ("merged", 2, 0, set()),
    ],
)
def test_every_tensor_is_bit_equal(written: Path, case: str, n_shards: int, n_sliced: int, unread: set[str]) -> None:
    bundle = read_index(written / "bundle" / case, "model.ckpt")
    expected = np.load(written / "bundle" / case / "expected.npz")
    assert bundle.n_shards == n_shards
    assert len(bundle.parts) == n_sliced
    assert set(bundle.names) == set(expected.files) | unread
    for name in expected.files:
        assert_bit_equal(bundle.read(name), expected[name])


@pytest.mark.parametrize("case", ["two-layers", "one-layer", "no-projection", "words", "shared"])
def test_a_training_run_of_simple_elmo_is_read_as_it_was_saved(written: Path, case: str) -> None:
    folder = written / "bilm" / case
    expected = np.load(folder.with_suffix(".npz"))
    bundle = read_index(folder, "model.ckpt-1")
    assert set(bundle.names) == set(expected.files)
    for name in expected.files:
        assert_bit_equal(bundle.read(name), expected[name])
    assert bool(bundle.parts) == (case == "one-layer")
    model = bilm_checkpoint.read(folder)
    assert model.metadata["global_step"] == 1
    assert model.softmax is not None
    table = "lm/embedding" if case == "shared" else "lm/softmax/W"
    assert_bit_equal(model.softmax.weight.numpy(), expected[table])
    assert_bit_equal(model.softmax.bias.numpy(), expected["lm/softmax/b"])


@pytest.mark.parametrize("case", ["two-layers", "no-projection", "words"])
def test_the_checkpoint_and_simple_elmos_own_dump_of_it_give_one_model(written: Path, case: str) -> None:
    folder = written / "bilm" / case
    ours = bilm_checkpoint.read(folder)
    dumped = bilm_hdf5.read_files(
        folder / "options.json", folder.with_suffix(".hdf5"), vocab=folder / "vocab.txt" if case == "words" else None
    )
    assert ours.config == dumped.config
    for name, weight in dumped.weights.items():
        assert_same_tensor(ours.weights[name], weight)


@pytest.mark.parametrize("case", ["saved-model", "partitioned"])
def test_a_saved_model_is_read_as_it_was_saved(written: Path, case: str) -> None:
    folder = written / "hub" / case
    expected = np.load(folder.with_suffix(".npz"))
    bundle = read_index(folder, "variables/variables")
    assert set(bundle.names) == set(expected.files)
    for name in expected.files:
        assert_bit_equal(bundle.read(name), expected[name])
    assert bool(bundle.parts) == (case == "partitioned")
    assert tf_hub.can_read(folder)
    model = tf_hub.read(folder)
    assert model.mix is not None
    assert model.mix.weights == tuple(expected["aggregation/weights"].tolist())
    kernel = expected["bilm/RNN_1/RNN/MultiRNNCell/Cell1/rnn/lstm_cell/kernel"]  # (state + state, i j f o)
    i, j, f, o = np.split(kernel, 4, axis=1)
    gates = np.concatenate([i, f, j, o], axis=1)
    assert_bit_equal(model.weights["backward_stack.1.input_weight"].numpy(), gates[:6].T.copy())
    assert_bit_equal(model.weights["backward_stack.1.state_weight"].numpy(), gates[6:].T.copy())


@pytest.mark.parametrize("snappy", [False, True])
def test_tensorflow_reads_what_the_tests_write(tmp_path: Path, snappy: bool) -> None:
    rng = np.random.default_rng(5)
    tensors = {
        "whole": rng.normal(size=(4, 3)).astype(np.float32),
        "half": rng.normal(size=5).astype(np.float16),
        "double": rng.normal(size=(2, 2)),
        "step": np.array(3, dtype=np.int64),
        "sliced": rng.normal(size=(100, 70)).astype(np.float32),
        "short": np.array([1.0, -2.5], dtype=np.float32),
    }
    slices = {"sliced": [[(0, 60), (0, None)], [(60, 40), (0, 65)], [(60, 40), (65, 5)]]}
    write_bundle(tmp_path, "made", tensors, slices=slices, n_shards=2, bfloat16=["short"], per_block=3, snappy=snappy)
    run("read", tmp_path / "made", tmp_path / "read.npz")
    read = np.load(tmp_path / "read.npz")
    assert set(read.files) == set(tensors)
    for name, array in tensors.items():
        assert_bit_equal(read[name], array)


def test_tensorflow_reads_the_training_folders_of_the_tests(tmp_path: Path) -> None:
    write_training_folder(tmp_path, tiny_model(softmax=True), n_shards=2)
    run("read", tmp_path / "model.ckpt-7", tmp_path / "read.npz")
    read, bundle = np.load(tmp_path / "read.npz"), read_index(tmp_path, "model.ckpt-7")
    assert set(read.files) == set(bundle.names)
    for name in read.files:
        assert_bit_equal(read[name], bundle.read(name))
