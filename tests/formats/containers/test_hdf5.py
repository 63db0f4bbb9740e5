"""The pure Python HDF5 reader agrees with h5py and refuses unsupported features by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import FormatError
from elmo.formats.containers.hdf5 import Hdf5File
from tests.shared import FIXTURES, needs_fixtures

RANDOM = np.random.default_rng(0)


def read_all(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with Hdf5File(path) as file:

        def walk(group: str) -> None:
            for child in file.children(group):
                name = f"{group}/{child}".strip("/")
                address = file._find(name)
                assert address is not None
                if file._is_group(address):
                    walk(name)
                else:
                    dataset = file.dataset(name)
                    assert dataset is not None
                    file.check_together([dataset])
                    found[name] = file.read(dataset)

        walk("")
    return found


def assert_as_h5py(path: Path) -> None:
    found = read_all(path)
    with h5py.File(path, "r") as file:
        expected: dict[str, np.ndarray] = {}
        file.visititems(lambda k, v: expected.update({k: v[...]}) if isinstance(v, h5py.Dataset) else None)
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert found[name].dtype == np.float32
        assert found[name].tobytes() == array.astype(np.float32).tobytes()


@needs_fixtures
@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/*.hdf5")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_published_files_are_read_as_h5py_reads_them(path: Path) -> None:
    assert_as_h5py(path)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
@pytest.mark.parametrize(
    "storage",
    [
        {},
        {"chunks": (3, 5)},
        {"chunks": (3, 5), "compression": "gzip"},
        {"chunks": (4, 4), "shuffle": True},
        {"chunks": (5, 3), "fletcher32": True},
        {"chunks": (7, 5), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (64, 64), "maxshape": (None, None)},
        {"chunks": (1, 1)},
    ],
)
def test_every_way_to_store_floats_is_read(tmp_path: Path, dtype: str, storage: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file.create_dataset("deep/er/a", data=RANDOM.normal(size=(10, 7)).astype(dtype), **storage)
        file.create_dataset("b", data=RANDOM.normal(size=(61, 23)).astype(dtype), **storage)
    assert_as_h5py(tmp_path / "f")


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_tree_of_groups_with_ascii_names_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("tree") / "f"
    name = st.text("ab_ 0", min_size=1, max_size=8)
    names = data.draw(st.lists(st.lists(name, min_size=1, max_size=4), max_size=40, unique_by=tuple))
    with h5py.File(path, "w") as file:
        for i, parts in enumerate(names):
            try:
                file["/".join(parts)] = np.full((i % 3 + 1, 2), i, np.float32)
            except (ValueError, OSError):
                continue  # a dataset in place of a group, or the reverse
    assert_as_h5py(path)


def test_a_group_of_thousands_is_read_through_a_tree_of_nodes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        for i in range(3000):
            file[f"g/{i}"] = np.float32([i])
    with Hdf5File(tmp_path / "f") as file:
        assert sorted(file.children("g"), key=int) == [str(i) for i in range(3000)]
        dataset = file.dataset("g/2718")
        assert dataset is not None
        assert file.read(dataset).tolist() == [2718]


def test_long_and_many_attributes_are_skipped(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file["a"] = np.float32([1, 2])
        for i in range(100):
            file["a"].attrs[f"note {i}"] = "x" * 100
    assert_as_h5py(tmp_path / "f")


def test_a_missing_name_gives_none(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file["a/b"] = np.float32([1])
    with Hdf5File(tmp_path / "f") as file:
        assert file.dataset("c") is None
        assert file.dataset("a/b/c") is None
        assert file.children("c") == file.children("a/b") == []


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "a", (2,))
    file.create_virtual_dataset("a", layout)


def external(file: h5py.File) -> None:
    file.create_dataset("a", (2,), "f4", external=[("/etc/passwd", 0, 8)])


def soft_loop(file: h5py.File) -> None:
    file["a"] = h5py.SoftLink("/b")
    file["b"] = h5py.SoftLink("/a")


def external_link(file: h5py.File) -> None:
    file["a"] = h5py.ExternalLink("/etc/passwd", "/a")


def committed(file: h5py.File) -> None:
    file["type"] = np.dtype("f4")
    file.create_dataset("a", data=np.zeros(2, "f4"), dtype=file["type"])


def tracked(file: h5py.File) -> None:
    file.create_group("a", track_order=True)["b"] = np.zeros(2, "f4")


def compact(file: h5py.File) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((2,))
    h5py.h5d.create(file.id, b"a", h5py.h5t.IEEE_F32LE, space, dcpl=properties)


def bfloat(file: h5py.File) -> None:
    kind = h5py.h5t.IEEE_F16LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_ebias(127)
    h5py.h5d.create(file.id, b"a", kind, h5py.h5s.create_simple((2,)))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (virtual, "storage layout .* is not supported"),
        (external, "uses external files"),
        (soft_loop, "'a' is a soft link"),
        (external_link, "uses links to files, or a newer layout"),
        (committed, "truncated or shared"),
        (tracked, "newer"),
        (compact, "layout 3.0"),
        (bfloat, "found another floating-point type"),
        (lambda f: f.create_group("a"), "expected numbers, found a group"),
        (lambda f: f.create_dataset("a", data=["text"]), "found HDF5 type class 9"),
        (lambda f: f.create_dataset("a", data=np.arange(3)), "found HDF5 type class 0"),
        (lambda f: f.create_dataset("a", data=np.zeros(2, "c8")), "type class 6"),
        (lambda f: f.create_dataset("a", data=np.array([f.ref], h5py.ref_dtype)), "type class 7"),
        (lambda f: f.create_dataset("a", data=np.zeros(2, "S4")), "type class 3"),
        (lambda f: f.create_dataset("a", data=np.float32(1)), "expected an array of 1 to 8 axes, found 0"),
        (lambda f: f.create_dataset("a", data=h5py.Empty("f4")), "expected an array of 1 to 8 axes"),
        (lambda f: f.create_dataset("a", shape=(0, 3), dtype="f4"), "expected 0 bytes"),
        (lambda f: f.create_dataset("a", shape=(5, 3), dtype="f4"), "expected 60 bytes for .* found 0"),
        (lambda f: f.create_dataset("a", data=np.zeros(8, "f4"), compression="lzf"), r"found filter ids \[32000\]"),
        (lambda f: f.create_dataset("a", data=np.zeros(8, "f4"), scaleoffset=2), r"found filter ids \[6\]"),
        (lambda f: f.create_dataset("a", shape=(1 << 20, 1 << 20), dtype="f4", chunks=(64, 64)), "32768 chunks"),
        (lambda f: f.create_dataset("a", shape=(100, 100), dtype="f4", chunks=(64, 64)), "a B-tree node"),
    ],
)
def test_unsupported_features_are_refused_by_name(tmp_path: Path, write: Any, message: str) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        write(file)
    with pytest.raises(FormatError, match=message) as caught, Hdf5File(tmp_path / "f") as plain:
        plain.dataset("a")
    assert str(caught.value).startswith(f"{tmp_path / 'f'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("libver", ["latest", ("v108", "v108")])
def test_newer_layouts_are_refused_with_a_solution(tmp_path: Path, libver: Any) -> None:
    with h5py.File(tmp_path / "f", "w", libver=libver) as file:
        file["a"] = np.zeros(2, "f4")
    with pytest.raises(FormatError, match="copy the file with h5py's default settings"):
        Hdf5File(tmp_path / "f")


def test_a_user_block_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w", userblock_size=512) as file:
        file["a"] = np.zeros(2, "f4")
    with pytest.raises(FormatError, match="expected an HDF5 file, found another signature"):
        Hdf5File(tmp_path / "f")


def test_a_truncated_file_is_refused_at_its_first_bytes(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file["a"] = np.zeros(1000, "f4")
    data = (tmp_path / "f").read_bytes()
    (tmp_path / "f").write_bytes(data[:-1])
    with pytest.raises(FormatError, match=f"expected {len(data)} bytes, found {len(data) - 1}; download it again"):
        Hdf5File(tmp_path / "f")


def test_a_file_that_is_mostly_a_hole_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        h5py.h5d.create(file.id, b"a", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((1 << 28,)), dcpl=properties)
    if (tmp_path / "f").stat().st_blocks * 512 > 1 << 24:
        pytest.skip("this file system has no holes")
    with pytest.raises(FormatError, match="most were never written"):
        Hdf5File(tmp_path / "f")


def test_a_flip_under_a_checksum_is_caught(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file.create_dataset("a", data=np.arange(64, dtype="f4"), chunks=(64,), fletcher32=True)
    data = bytearray((tmp_path / "f").read_bytes())
    data[data.index(np.arange(64, dtype="f4").tobytes()) + 100] ^= 1
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FormatError, match="has a wrong checksum"):
        read_all(tmp_path / "f")


def test_datasets_on_the_same_bytes_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file["a"] = np.zeros(8, "f4")
        file["b"] = file["a"]  # a hard link
    with Hdf5File(tmp_path / "f") as file:
        both = [file.dataset(name) for name in "ab"]
        with pytest.raises(FormatError, match="datasets a and b share bytes"):
            file.check_together([d for d in both if d])


def test_a_chunk_without_filters_has_the_size_of_its_numbers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file.create_dataset("a", data=np.zeros(1000, "f4"), chunks=(1000,))
    data = bytearray((tmp_path / "f").read_bytes())
    at = data.index(b"TREE\1") + 24  # its first key begins with the chunk's size
    assert data[at : at + 4] == (4000).to_bytes(4, "little")
    data[at : at + 4] = (1).to_bytes(4, "little")  # such chunks would never overlap
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FormatError, match="expected chunks of 4000 bytes"):
        read_all(tmp_path / "f")


@pytest.mark.slow
def test_absurd_compression_is_refused_before_decompressing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file.create_dataset("a", data=np.zeros((1 << 12, 1 << 13), "f4"), chunks=(1 << 8, 1 << 13), compression="gzip")
    with Hdf5File(tmp_path / "f") as file:
        dataset = file.dataset("a")
        assert dataset is not None
        with pytest.raises(FormatError, match="expected at most 20-fold compression"):
            file.check_together([dataset])


def test_a_double_too_large_for_a_float_becomes_infinite_without_a_warning(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f", "w") as file:
        file["a"] = np.array([1e300, 1.5])
    assert read_all(tmp_path / "f")["a"].tolist() == [np.inf, 1.5]
