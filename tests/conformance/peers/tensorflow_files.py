"""Write checkpoints and SavedModels with TensorFlow, each with an npz file of its tensors; read checkpoints.

usage: tensorflow_files.py write FOLDER | read PREFIX NPZ     (with the Python of the tensorflow peer)
"""

import hashlib
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_eager_execution()

VOCABULARY = ["<S>", "</S>", "<UNK>", "the", "river", "bank", "café", "河岸", "of", "a", "b"]


def options(*, n_layers: int, cell: int, state: int, chars: bool = True, **more: object) -> dict:
    """Return the options that bilm-tf's training scripts write, with tiny sizes."""
    values = {
        "bidirectional": True,
        "lstm": {
            "dim": cell,
            "projection_dim": state,
            "n_layers": n_layers,
            "cell_clip": 3,
            "proj_clip": 3,
            "use_skip_connections": True,
        },
        "dropout": 0.1,
        "all_clip_norm_val": 10.0,
        "n_epochs": 1,
        "n_train_tokens": 100,
        "batch_size": 2,
        "n_tokens_vocab": len(VOCABULARY),
        "unroll_steps": 3,
        "n_negative_samples_batch": 4,
        **more,
    }
    if chars:
        values["char_cnn"] = {
            "activation": "relu",
            "embedding": {"dim": 4},
            "filters": [[1, 4], [2, 4], [3, 8]],
            "max_characters_per_token": 50,
            "n_characters": 261,
            "n_highway": 2,
        }
    return values


def save_tensors(session: v1.Session, path: Path) -> None:
    """Save every variable by name, as TensorFlow reads it."""
    tensors = {}
    for variable in v1.global_variables():
        info = variable._save_slice_info
        name = info.full_name if info else variable.op.name
        value = session.run(tf.cast(variable, tf.float32) if variable.dtype.base_dtype == tf.bfloat16 else variable)
        if info:
            whole = tensors.setdefault(name, np.full(info.full_shape, np.nan, dtype=value.dtype))
            extents = zip(info.var_offset, info.var_shape, strict=True)
            whole[tuple(slice(start, start + length) for start, length in extents)] = value
        else:
            tensors[name] = value
    np.savez(path, **tensors)


def write_types(folder: Path) -> None:
    """One variable of every type, a scalar and an empty one among them."""
    folder.mkdir(parents=True)
    with tf.Graph().as_default(), v1.Session() as session:
        rng = np.random.default_rng(0)
        for kind in (tf.float16, tf.float32, tf.float64, tf.bfloat16):
            v1.Variable(tf.cast(rng.normal(size=(3, 5)), kind), name=f"types/{kind.name}")
        v1.Variable(np.int32(-7), name="types/int32")
        v1.Variable(np.array([1, -(2**40)]), name="types/int64")
        v1.Variable(np.zeros((0, 3), np.float32), name="empty")
        v1.Variable(np.array(["text", "more"]), name="string")
        v1.Variable(rng.normal(size=(300, 1000)).astype(np.float32), name="large")
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model.ckpt"))
        variables = v1.global_variables()
        v1.get_default_graph().clear_collection("variables")
        for variable in variables:
            if variable.dtype.base_dtype != tf.string:
                v1.add_to_collection("variables", variable)
        save_tensors(session, folder / "expected.npz")


def write_many(folder: Path) -> None:
    """Write thousands of unrelated names, so that the index has several blocks."""
    folder.mkdir(parents=True)
    names = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(9000)]
    values = np.arange(len(names), dtype=np.float32)
    with tf.Graph().as_default(), v1.Session() as session:
        tensors = tf.unstack(tf.constant(values))
        save = tf.raw_ops.SaveV2(
            prefix=str(folder / "model.ckpt"), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
        )
        session.run(save)
    np.savez(folder / "expected.npz", **dict(zip(names, values, strict=True)))


def write_partitioned(folder: Path, *, two_files: bool) -> None:
    """Write variables in slices along either axis; with two devices, a sharded Saver writes two files."""
    folder.mkdir(parents=True)
    config = v1.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        random = v1.random_normal_initializer(seed=1)

        def device(operation: tf.Operation) -> str:
            return f"/cpu:{hash_of(operation.name) % 2}" if two_files else "/cpu:0"

        with v1.device(device):
            for axis, n_parts in ((0, 3), (1, 2)):
                v1.get_variable(
                    f"axis_{axis}",
                    shape=(7, 200),
                    initializer=random,
                    partitioner=v1.fixed_size_partitioner(n_parts, axis=axis),
                )
            v1.get_variable("long", (9000, 2), initializer=random, partitioner=v1.fixed_size_partitioner(70))
            v1.get_variable("bias", (30,), initializer=random, partitioner=v1.fixed_size_partitioner(4))
            v1.get_variable("whole", (4, 4), initializer=random)
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(sharded=two_files)
        saver.save(session, str(folder / "model.ckpt"))
        save_tensors(session, folder / "expected.npz")


def hash_of(name: str) -> int:
    """Return a hash that is the same in every process, unlike ``hash``."""
    return sum(name.encode())


def write_merged(folder: Path) -> None:
    """Merge two checkpoints into one with two data files, with the op that a sharded Saver uses."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(2)
    tensors = [{f"part_{k}/{i}": rng.normal(size=(k + 1, i)).astype(np.float32) for i in range(5)} for k in range(2)]
    with tf.Graph().as_default(), v1.Session() as session:
        prefixes = [str(folder / f"part{k}") for k in range(2)]
        for prefix, part in zip(prefixes, tensors, strict=True):
            names = list(part)
            session.run(
                tf.raw_ops.SaveV2(
                    prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=list(part.values())
                )
            )
        session.run(
            tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=prefixes, destination_prefix=str(folder / "model.ckpt"), delete_old_dirs=False
            )
        )
    np.savez(folder / "expected.npz", **tensors[0], **tensors[1])


def write_bilm(folder: Path, values: dict, *, partitioned: bool = False) -> None:
    """Train simple_elmo's graph (bilm-tf's for TensorFlow 2) for one step and save it as simple_elmo does."""
    from simple_elmo import training

    training.DTYPE = tf.float32  # its string "float32" does not work with partitioned variables
    folder.mkdir(parents=True)
    (folder / "options.json").write_text(json.dumps(values))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(3)
        step = v1.get_variable("global_step", [], tf.int64, v1.zeros_initializer(), trainable=False)
        v1.get_variable("train_perplexity", [], initializer=v1.constant_initializer(41.5), trainable=False)
        with v1.variable_scope("lm", partitioner=v1.fixed_size_partitioner(2) if partitioned else None):
            model = training.LanguageModel(values, True)
        optimizer = v1.train.AdagradOptimizer(0.2, initial_accumulator_value=1.0)
        train = optimizer.minimize(model.total_loss, global_step=step)
        session.run(v1.global_variables_initializer())
        zeros = {
            tensor: np.ones(tensor.shape.as_list(), np.int64)
            for operation in v1.get_default_graph().get_operations()
            if operation.type == "Placeholder"
            for tensor in operation.outputs
        }
        session.run(train, feed_dict=zeros)
        v1.train.Saver(v1.global_variables(), max_to_keep=2).save(session, str(folder / "model.ckpt"), global_step=step)
        save_tensors(session, folder.with_suffix(".npz"))
    if values["lstm"]["n_layers"] > 1:  # simple_elmo's dump supports only models with several layers
        with tf.Graph().as_default(), redirect_stdout(io.StringIO()):
            training.dump_weights(str(folder), str(folder.with_suffix(".hdf5")))


def hub_variables(*, partitioned: bool) -> None:
    """Create the variables of TF-Hub's elmo, with known or likely names."""
    random = v1.random_normal_initializer(seed=4, stddev=0.3)
    char, state, cell, filters = 4, 6, 8, ((1, 4), (2, 4), (3, 8))
    n_filters = sum(count for _, count in filters)
    partitioner = v1.fixed_size_partitioner(2) if partitioned else None

    def variable(name: str, *shape: int) -> None:
        v1.get_variable(name, shape, initializer=random, partitioner=partitioner if len(shape) == 2 else None)

    with v1.variable_scope("bilm"):
        variable("char_embed", 261, char)
        for i, (width, count) in enumerate(filters):
            variable(f"CNN/W_cnn_{i}", 1, width, char, count)
            variable(f"CNN/b_cnn_{i}", count)
        for k in range(2):
            for part in ("carry", "transform"):
                variable(f"CNN_high_{k}/W_{part}", n_filters, n_filters)
                variable(f"CNN_high_{k}/b_{part}", n_filters)
        variable("CNN_proj/W_proj", n_filters, state)
        variable("CNN_proj/b_proj", state)
        for direction in range(2):
            for layer in range(2):
                scope = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/rnn/lstm_cell"
                variable(f"{scope}/kernel", 2 * state, 4 * cell)
                variable(f"{scope}/bias", 4 * cell)
                variable(f"{scope}/projection/kernel", cell, state)
    variable("aggregation/weights", 3)
    variable("aggregation/scaling")


def write_hub(folder: Path, *, partitioned: bool) -> None:
    """Write a SavedModel of a version 1 graph, like TF-Hub's modules of 2018; it contains no LSTM."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), v1.Session() as session:
        hub_variables(partitioned=partitioned)
        text = v1.placeholder(tf.string, [None])
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(folder), {"text": text}, {"text": tf.identity(text)})
        save_tensors(session, folder.with_suffix(".npz"))


def write(folder: Path) -> None:
    """Write everything that the conformance tests read."""
    write_types(folder / "bundle" / "types")
    write_many(folder / "bundle" / "many")
    write_partitioned(folder / "bundle" / "partitioned", two_files=False)
    write_partitioned(folder / "bundle" / "sharded", two_files=True)
    write_merged(folder / "bundle" / "merged")
    write_bilm(folder / "bilm" / "two-layers", options(n_layers=2, cell=8, state=6))
    write_bilm(folder / "bilm" / "one-layer", options(n_layers=1, cell=8, state=6), partitioned=True)
    write_bilm(folder / "bilm" / "no-projection", options(n_layers=2, cell=6, state=6))
    write_bilm(folder / "bilm" / "words", options(n_layers=2, cell=8, state=6, chars=False))
    shared = options(n_layers=1, cell=8, state=6, chars=False, share_embedding_softmax=True)
    write_bilm(folder / "bilm" / "shared", shared)
    write_hub(folder / "hub" / "saved-model", partitioned=False)
    write_hub(folder / "hub" / "partitioned", partitioned=True)


def read(prefix: str, npz: str) -> None:
    """Save what TensorFlow reads from a checkpoint; bfloat16 becomes float32."""
    reader = v1.train.NewCheckpointReader(prefix)
    tensors = {}
    for name, kind in reader.get_variable_to_dtype_map().items():
        value = reader.get_tensor(name)
        tensors[name] = value.astype(np.float32) if kind == tf.bfloat16 else value
    np.savez(npz, **tensors)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        read(sys.argv[2], sys.argv[3])
