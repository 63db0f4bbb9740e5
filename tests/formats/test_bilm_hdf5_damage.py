"""Damaged and hostile HDF5 models are refused with our error or load; none hangs or escapes its folder."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from elmo.errors import ElmoError
from elmo.formats import bilm_hdf5
from elmo.formats.containers.hdf5 import Hdf5File
from tests.formats.damage import assert_refused_or_sound, flips_and_cuts, load_all
from tests.formats.tiny import WORDS, tiny_model
from tests.formats.write_published import arrays, options, publish, shapes

pytestmark = pytest.mark.slow

W_0 = "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0"
BIG = {"dim": 65536, "projection_dim": 65536, "n_layers": 64}


def test_flips_and_cuts_of_any_file_are_refused_or_sound(tmp_path: Path) -> None:
    bilm_hdf5.write(tiny_model(softmax=True, metadata={"meta": {"name": "tiny"}}), tmp_path / "plain")
    publish(tmp_path / "packed", chunks=True, compression="gzip", shuffle=True, fletcher32=True)
    cases = flips_and_cuts(tmp_path / "plain", n=330, seed=0, into=tmp_path / "a")
    cases += flips_and_cuts(tmp_path / "packed", n=100, seed=1, into=tmp_path / "b", names=["weights.hdf5"])
    assert_refused_or_sound(load_all(cases))


@pytest.mark.parametrize("storage", [{}, {"chunks": True, "compression": "gzip"}], ids=["plain", "gzip"])
def test_hundreds_of_damaged_headers_raise_only_our_errors(tmp_path: Path, storage: dict[str, Any]) -> None:
    publish(tmp_path, **storage)
    path = tmp_path / "weights.hdf5"
    data, chance = path.read_bytes(), random.Random(2)
    with h5py.File(path) as file:
        raw = [] if storage else [(d.id.get_offset(), d.id.get_storage_size()) for d in _datasets(file)]
    is_header = np.ones(len(data), bool)
    for start, size in raw:
        is_header[start : start + size] = False
    headers = np.flatnonzero(is_header & (np.frombuffer(data, np.uint8) != 0)).tolist()  # zeros are mostly unused space
    words = [b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", *(struct.pack("<Q", n) for n in (1, 96, len(data) - 8))]
    messages = []
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 3, 10))):
            at = chance.choice(headers)
            if chance.random() < 0.6:
                changed[at] ^= 1 << chance.randrange(8)
            else:
                changed[at : at + 8] = chance.choice(words)
        path.write_bytes(changed[: len(data)])
        try:
            bilm_hdf5.read(tmp_path)
        except ElmoError as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert not any("\n" in message for message in messages)


def _datasets(file: h5py.File) -> list[h5py.Dataset]:
    found: list[h5py.Dataset] = []
    file.visititems(lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
    return found


# --- hostile models: each function spoils a sound folder --------------------------------------------

HOSTILE: list[Callable[[Path], None]] = []


def hostile(spoil: Callable[[Path], None]) -> Callable[[Path], None]:
    HOSTILE.append(spoil)
    return spoil


def edit(folder: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        change(file)


def replace(folder: Path, name: str, **create: Any) -> None:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, **create)

    edit(folder, change)


def set_options(folder: Path, text: str | bytes) -> None:
    (folder / "options.json").write_bytes(text.encode() if isinstance(text, str) else text)


@hostile
def external_link(folder: Path) -> None:
    def change(file: h5py.File) -> None:
        del file[W_0]
        file[W_0] = h5py.ExternalLink("/etc/passwd", "/x")

    edit(folder, change)


@hostile
def external_link_to_a_sound_model(folder: Path) -> None:
    shutil.copy(folder / "weights.hdf5", folder.parent / "elsewhere.hdf5")

    def change(file: h5py.File) -> None:
        del file["RNN_0"]
        file["RNN_0"] = h5py.ExternalLink("../elsewhere.hdf5", "/RNN_0")

    edit(folder, change)


@hostile
def external_storage(folder: Path) -> None:
    (folder.parent / "raw").write_bytes(b"\0" * 768)
    replace(folder, W_0, shape=(8, 24), dtype="f4", external=[(str(folder.parent / "raw"), 0, 768)])


@hostile
def virtual_dataset(folder: Path) -> None:
    def change(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((8, 24), "f4")
        layout[:] = h5py.VirtualSource("/etc/hostname", "a", (8, 24))
        del file[W_0]
        file.create_virtual_dataset(W_0, layout)

    edit(folder, change)


@hostile
def soft_link_loop(folder: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["RNN_0"]
        file["RNN_0"] = h5py.SoftLink("/x")
        file["x"] = h5py.SoftLink("/RNN_0")

    edit(folder, change)


@hostile
def group_that_holds_itself(folder: Path) -> None:
    def change(file: h5py.File) -> None:
        del file["RNN_0/RNN"]
        file["RNN_0/RNN"] = file["RNN_0"]

    edit(folder, change)


@hostile
def one_dataset_under_every_name(folder: Path) -> None:
    def change(file: h5py.File) -> None:
        for direction, layer in ((0, 1), (1, 0), (1, 1)):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/W_0"
            del file[name]
            file[name] = file[W_0]

    edit(folder, change)


@hostile
def strings_for_floats(folder: Path) -> None:
    replace(folder, W_0, data=[["x"] * 24] * 8)


@hostile
def references_for_floats(folder: Path) -> None:
    replace(folder, W_0, shape=(8, 24), dtype=h5py.ref_dtype)


@hostile
def integers_for_floats(folder: Path) -> None:
    replace(folder, W_0, data=np.ones((8, 24), "i4"))


@hostile
def not_a_number(folder: Path) -> None:
    replace(folder, W_0, data=np.full((8, 24), np.nan, "f4"))


@hostile
def infinite_as_a_float(folder: Path) -> None:
    replace(folder, W_0, data=np.full((8, 24), 1e300))


@hostile
def transposed(folder: Path) -> None:
    replace(folder, W_0, data=np.ones((24, 8), "f4"))


@hostile
def never_written(folder: Path) -> None:
    replace(folder, W_0, shape=(8, 24), dtype="f4")


@hostile
def huge_declared_size(folder: Path) -> None:
    set_options(folder, json.dumps(options(**BIG)))
    replace(folder, W_0, shape=(131072, 262144), dtype="f4", chunks=(512, 512), compression="gzip")


@hostile
def huge_declared_size_without_chunks(folder: Path) -> None:
    set_options(folder, json.dumps(options(**BIG)))
    replace(folder, W_0, shape=(131072, 262144), dtype="f4")


@hostile
def holes_for_numbers(folder: Path) -> None:
    values = options(dim=8192, projection_dim=2048)  # 2.4 GB, not on disk
    set_options(folder, json.dumps(values))
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, shape in shapes(values).items():
            space = h5py.h5s.create_simple(shape)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.IEEE_F32LE, space, dcpl=properties, lcpl=links)


@hostile
def bomb_of_zeros(folder: Path) -> None:
    values = options(dim=2048, projection_dim=1024)
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes(values).items()}
    publish(folder, values, datasets=zeros, chunks=True, compression="gzip")


# The largest network that options allow: its 641 datasets can share parts that are slow to read.
LARGEST = options(n_layers=64, filters=((1, 1),) * 64, n_highway=64)


def publish_largest(folder: Path, **create: Any) -> dict[str, tuple[int, ...]]:
    """Publish every name of the largest network as the same dataset."""
    set_options(folder, json.dumps(LARGEST))
    first, *rest = shapes(LARGEST)
    with h5py.File(folder / "weights.hdf5", "w") as file:
        file.create_dataset(first, **create)
        for name in rest:
            file[name] = file[first]
    return shapes(LARGEST)


@hostile
def many_chunks_under_every_name(folder: Path) -> None:
    publish_largest(folder, data=np.zeros((150, 200), "f4"), chunks=(1, 1))


@hostile
def many_header_messages_under_every_name(folder: Path) -> None:
    publish_largest(folder, data=np.zeros(4, "f4"))
    path = folder / "weights.hdf5"
    data = bytearray(path.read_bytes())
    with Hdf5File(path) as file:
        at = file._find("char_embed")
    assert at is not None
    (size,) = struct.unpack_from("<I", data, at + 8)
    block = bytes(data[at + 16 : at + 16 + size]) + bytes(8 * 30_000)  # empty messages of type 0
    struct.pack_into("<HxxxxI", data, at + 2, 32_000, 24)
    data[at + 16 : at + 40] = struct.pack("<HHB3xQQ", 16, 16, 0, len(data), len(block))  # continues at the end
    path.write_bytes(data + block)


@hostile
def many_names_in_every_group(folder: Path) -> None:
    set_options(folder, json.dumps(LARGEST))
    path, cells = folder / "weights.hdf5", [f"RNN_0/RNN/MultiRNNCell/Cell{i}" for i in range(64)]
    with h5py.File(path, "w") as file:
        for cell in cells:
            file.create_group(cell)
        file["a"] = np.zeros(1, "f4")
        for i in range(20_000):
            file[f"{cells[0]}/{i}"] = file["a"]
    data = bytearray(path.read_bytes())
    with Hdf5File(path) as file:
        tables = []
        for cell in cells:
            at = file._find(cell)
            assert at is not None
            tables.append((at, file._message(file._messages(at), 17, cell)))
    for at, table in tables:
        begin = data.index(table, at)
        data[begin : begin + 16] = tables[0][1]
    path.write_bytes(data)


@hostile
def many_layers_that_the_options_do_not_tell_of(folder: Path) -> None:
    publish_largest(folder, data=np.zeros(4, "f4"))
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        for i in range(64, 12_000):
            file[f"CNN/W_cnn_{i}"] = file["char_embed"]


@hostile
def chunks_far_larger_than_their_dataset(folder: Path) -> None:
    packed = zlib.compress(bytes(1 << 26), 9)

    def change(file: h5py.File) -> None:
        for name, shape in shapes(options()).items():
            del file[name]
            edges = (1 << 24, *(1,) * (len(shape) - 1))
            dataset = file.create_dataset(
                name, shape, "f4", maxshape=(None,) * len(shape), chunks=edges, compression="gzip"
            )
            for column in np.ndindex(*shape[1:]):
                dataset.id.write_direct_chunk((0, *column), packed)

    edit(folder, change)


@hostile
def newest_layout(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "w", libver="latest") as file:
        for name, array in arrays(options()).items():
            file[name] = array


@hostile
def user_block(folder: Path) -> None:
    with h5py.File(folder / "weights.hdf5", "w", userblock_size=1024) as file:
        for name, array in arrays(options()).items():
            file[name] = array


@hostile
def missing_direction(folder: Path) -> None:
    edit(folder, lambda file: file.pop("RNN_1") and None)


@hostile
def one_layer_more(folder: Path) -> None:
    edit(folder, lambda file: file.copy(file["RNN_0/RNN/MultiRNNCell/Cell0"], "RNN_0/RNN/MultiRNNCell/Cell2"))


@hostile
def weights_that_are_a_folder(folder: Path) -> None:
    (folder / "weights.hdf5").unlink()
    (folder / "weights.hdf5").mkdir()


@hostile
def weights_that_are_empty(folder: Path) -> None:
    (folder / "weights.hdf5").write_bytes(b"")


@hostile
def weights_that_are_a_pickle(folder: Path) -> None:
    (folder / "weights.hdf5").write_bytes(b"cos\nsystem\n(S'touch /tmp/elmo-was-here'\ntR.")


@hostile
def weights_linked_from_outside(folder: Path) -> None:
    shutil.move(folder / "weights.hdf5", folder.parent / "outside.hdf5")
    (folder / "weights.hdf5").symlink_to("../outside.hdf5")


@hostile
def options_linked_from_outside(folder: Path) -> None:
    (folder / "options.json").unlink()
    (folder / "options.json").symlink_to("/etc/hostname")


@hostile
def options_that_are_a_pipe(folder: Path) -> None:
    (folder / "options.json").unlink()
    os.mkfifo(folder / "options.json")


@hostile
def weights_that_are_a_pipe(folder: Path) -> None:
    (folder / "weights.hdf5").unlink()
    os.mkfifo(folder / "weights.hdf5")


@hostile
def vocabulary_that_is_a_device(folder: Path) -> None:
    (folder / "vocab.txt").symlink_to("/dev/zero")


@hostile
def vocabulary_of_newlines(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes(b"\n" * (1 << 23))


@hostile
def vocabulary_that_is_not_utf8(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes(b"<S>\n</S>\ncaf\xe9\n")


@hostile
def softmax_of_another_width(folder: Path) -> None:
    with h5py.File(folder / "softmax_weights.hdf5", "w") as file:
        file["softmax/W"], file["softmax/b"] = np.zeros((9, 5), "f4"), np.zeros(9, "f4")


@hostile
def softmax_without_its_bias(folder: Path) -> None:
    with h5py.File(folder / "softmax_weights.hdf5", "w") as file:
        file["softmax/W"] = np.zeros((9, 4), "f4")


@hostile
def softmax_that_is_not_finite(folder: Path) -> None:
    with h5py.File(folder / "softmax_weights.hdf5", "w") as file:
        file["W"], file["b"] = np.full((9, 4), np.inf, "f4"), np.zeros(9, "f4")


OPTIONS: dict[str, str | bytes] = {
    "nothing": "",
    "a list": "[]",
    "null": "null",
    "a deep nest": '{"lstm":' * 50_000,
    "a closed nest": '{"lstm": ' + "[" * 500 + "]" * 500 + "}",
    "not a number": json.dumps(options()).replace('"dim": 6', '"dim": NaN'),
    "a huge number": json.dumps(options()).replace('"dim": 6', '"dim": ' + "9" * 4000),
    "a huger number": json.dumps(options()).replace('"dim": 6', '"dim": ' + "9" * 5000),
    "an infinite clip": json.dumps(options()).replace('"cell_clip": 3', '"cell_clip": 1e999'),
    "a clip beyond floats": json.dumps(options()).replace('"cell_clip": 3', '"cell_clip": 1' + "0" * 400),
    "the largest network": json.dumps(options(**BIG)),
    "text for a size": json.dumps(options()).replace('"dim": 6', '"dim": "6"'),
    "a negative size": json.dumps(options(dim=-6)),
    "twice the key": json.dumps(options()).replace('"dim": 6', '"dim": 6, "dim": 7'),
    "not UTF-8": b'{"lstm": "\xff\xfe"}',
    "UTF-16": json.dumps(options()).encode("utf-16"),
    "two megabytes": json.dumps(options()) + " " * (2 << 20),
    "a million filters": json.dumps(options(filters=((1, 1),) * 100_000)),
    "other filters": json.dumps(options(filters=((1, 3), (2, 2)))),
}


def test_every_hostile_model_is_refused_in_time_and_memory(tmp_path: Path) -> None:
    cases = []
    for spoil in HOSTILE:
        cases.append(publish(tmp_path / spoil.__name__ / "model"))
        spoil(cases[-1])
    for name, text in OPTIONS.items():
        cases.append(publish(tmp_path / f"options are {name}" / "model"))
        set_options(cases[-1], text)
    assert len(cases) >= 50
    *outcomes, unspoiled = load_all([*cases, publish(tmp_path / "sound" / "model", words=WORDS)])
    assert unspoiled.result == "loaded"
    assert_refused_or_sound(outcomes, every_one_refused=True)
    assert not Path("/tmp/elmo-was-here").exists()
