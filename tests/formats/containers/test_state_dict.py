from __future__ import annotations

import io
import pickle
import struct
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import FormatError
from elmo.formats.containers.state_dict import open_state_dict, read_pickle
from tests.formats.hostile_pickles import (
    MARK_OF_A_RUN,
    payloads,
    places,
    reference,
    state_dict,
    storage,
    stream,
    tensor,
    zipped,
)


def save(values: Any, path: Path, *, is_zipped: bool) -> Path:
    torch.save(values, path, _use_new_zipfile_serialization=is_zipped)
    return path


@pytest.fixture(params=[False, True], ids=["old stream", "zip"])
def is_zipped(request: pytest.FixtureRequest) -> bool:
    return request.param


class TestReading:
    """Files written by torch."""

    def test_every_tensor_of_a_module_is_read_as_it_was(self, is_zipped: bool, tmp_path: Path) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LSTM(4, 5), torch.nn.Embedding(7, 2))
        values = module.state_dict()
        file = open_state_dict(save(values, tmp_path / "weights.pkl", is_zipped=is_zipped))
        assert file.shapes == {name: tuple(value.shape) for name, value in values.items()}
        assert all(torch.equal(file.read(name), value) for name, value in values.items())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_all_floats_become_float32(self, dtype: torch.dtype, is_zipped: bool, tmp_path: Path) -> None:
        value = torch.randn(5, 3).to(dtype)
        file = open_state_dict(save({"a": value}, tmp_path / "weights.pkl", is_zipped=is_zipped))
        assert file.read("a").dtype == torch.float32
        assert torch.equal(file.read("a"), value.float())

    def test_integers_are_not_weights(self, is_zipped: bool, tmp_path: Path) -> None:
        file = open_state_dict(save({"a": torch.arange(3)}, tmp_path / "weights.pkl", is_zipped=is_zipped))
        assert file.tensors["a"].dtype == "int64"
        with pytest.raises(FormatError, match="a: expected floats, found int64"):
            file.read("a")

    def test_axes_may_be_stored_in_any_order(self, is_zipped: bool, tmp_path: Path) -> None:
        values = {
            "turned": torch.randn(2, 3, 4).permute(2, 0, 1),
            "transposed": torch.randn(3, 4).T,
            "with axes of one": torch.randn(1, 4, 1).transpose(0, 1),
            "last channel first": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            "scalar": torch.tensor(3.0),
            "empty": torch.zeros(0, 3),
            "parameter": torch.nn.Parameter(torch.randn(3)),
        }
        file = open_state_dict(save(values, tmp_path / "weights.pkl", is_zipped=is_zipped))
        for name, value in values.items():
            assert torch.equal(file.read(name), value.detach()), name
            assert file.read(name).is_contiguous()

    def test_tensors_may_be_parts_of_one_storage(self, is_zipped: bool, tmp_path: Path) -> None:
        whole = torch.randn(6, 3)
        values = {"head": whole[:2], "tail": whole[2:]}
        file = open_state_dict(save(values, tmp_path / "weights.pkl", is_zipped=is_zipped))
        assert torch.equal(file.read("head"), whole[:2])
        assert torch.equal(file.read("tail"), whole[2:])

    def test_reading_one_tensor_leaves_the_others_on_disk(self, is_zipped: bool, tmp_path: Path) -> None:
        both = {"a": torch.ones(100), "b": torch.ones(100)}
        path = save(both, tmp_path / "weights.pkl", is_zipped=is_zipped)
        file = open_state_dict(path)
        # the old stream orders storages by their addresses in memory
        first, last = sorted(both, key=lambda name: file.tensors[name].bytes.position)
        data = path.read_bytes()
        path.write_bytes(data[: file.tensors[last].bytes.position + 8])
        assert torch.equal(file.read(first), both[first])
        with pytest.raises(FormatError, match=f"{last}: expected 400 bytes, found 8"):
            file.read(last)

    def test_the_hand_made_files_are_valid_without_their_damage(self, tmp_path: Path) -> None:
        for data in (
            stream(state_dict(a=tensor(storage=reference(more=b"N"))), keys=["0"], storages=storage()),
            zipped(state_dict(a=tensor()), entries={"archive/data/0": bytes(16), "archive/version": b"3\n"}),
        ):
            (tmp_path / "weights.pkl").write_bytes(data)
            assert torch.equal(open_state_dict(tmp_path / "weights.pkl").read("a"), torch.zeros(4))
            assert torch.equal(torch.load(tmp_path / "weights.pkl")["a"], torch.zeros(4))


class TestRefusing:
    """Damaged and hostile files."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", payloads(Path("x")))
    def test_a_pickle_that_does_more_than_a_state_dict_needs(self, name: str, is_zipped: bool, tmp_path: Path) -> None:
        touched = tmp_path / MARK_OF_A_RUN
        pickled = payloads(touched)[name]
        path = tmp_path / "weights.pkl"
        path.write_bytes(
            zipped(pickled, entries={"archive/data/0": bytes(16)})
            if is_zipped
            else stream(pickled, keys=["0"], storages=storage())
        )
        with pytest.raises(FormatError) as caught:
            open_state_dict(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
        assert not touched.exists()

    @pytest.mark.parametrize("name", places())
    def test_a_tensor_that_is_not_where_its_numbers_are(self, name: str, is_zipped: bool, tmp_path: Path) -> None:
        path = tmp_path / "weights.pkl"
        pickled = places()[name]
        path.write_bytes(
            zipped(pickled, entries={"archive/data/0": bytes(16)})
            if is_zipped
            else stream(pickled, keys=["0"], storages=storage())
        )
        with pytest.raises(FormatError) as caught:
            open_state_dict(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500

    def test_an_expanded_tensor(self, is_zipped: bool, tmp_path: Path) -> None:
        path = save({"a": torch.zeros(1).expand(10**9)}, tmp_path / "weights.pkl", is_zipped=is_zipped)
        with pytest.raises(FormatError, match="1000000000 numbers at offset 0 do not fit into a storage of 1 numbers"):
            open_state_dict(path)

    def test_tied_tensors_with_a_solution(self, is_zipped: bool, tmp_path: Path) -> None:
        tied = torch.zeros(3)
        path = save({"a": tied, "b": tied}, tmp_path / "weights.pkl", is_zipped=is_zipped)
        with pytest.raises(FormatError, match=r"'a' and 'b' share memory; clone them before torch\.save"):
            open_state_dict(path)

    @pytest.mark.parametrize(
        "values", [torch.zeros(3), [torch.zeros(3)], {"a": 1}, {"a": {"b": torch.zeros(3)}}, {1: torch.zeros(3)}]
    )
    def test_values_other_than_a_dict_of_tensors(self, values: Any, is_zipped: bool, tmp_path: Path) -> None:
        path = save(values, tmp_path / "weights.pkl", is_zipped=is_zipped)
        with pytest.raises(FormatError, match=r"expected a state dict|expected a tensor|a key is not a string"):
            open_state_dict(path)

    def test_a_whole_module(self, is_zipped: bool, tmp_path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = save(torch.nn.Linear(2, 2), tmp_path / "weights.pkl", is_zipped=is_zipped)
        with pytest.raises(
            FormatError, match=r"the name 'torch\.nn\.modules\.linear\.Linear' is not allowed in a state dict"
        ):
            open_state_dict(path)

    def test_a_newer_pickle_with_a_solution(self, tmp_path: Path) -> None:
        torch.save({"a": torch.zeros(2)}, tmp_path / "weights.pkl", pickle_protocol=4)
        with pytest.raises(FormatError, match=r"the pickle protocol must be 2, the default of torch\.save; found 4"):
            open_state_dict(tmp_path / "weights.pkl")

    @pytest.mark.parametrize("data", [b"", b"PK", b"\x80\x02}.", pickle.dumps(OrderedDict(a=1)), b"\x89HDF\r\n\x1a\n"])
    def test_a_file_of_another_kind(self, data: bytes, tmp_path: Path) -> None:
        (tmp_path / "weights.pkl").write_bytes(data)
        with pytest.raises(FormatError, match=r"expected a file written by torch\.save, found"):
            open_state_dict(tmp_path / "weights.pkl")

    def test_a_stream_that_declares_more_than_it_contains(self, tmp_path: Path) -> None:
        path = tmp_path / "weights.pkl"
        pickled = state_dict(a=tensor())
        for declared in (5, 2**61, 2**64 - 1):
            path.write_bytes(stream(pickled, keys=["0"], storages=storage(declared=declared)))
            with pytest.raises(FormatError, match="bytes of numbers at"):
                open_state_dict(path)
        path.write_bytes(stream(pickled, keys=["0"], storages=storage(declared=3)))
        with pytest.raises(FormatError, match="4 numbers of 4 bytes, found 12 bytes"):
            open_state_dict(path)

    @pytest.mark.parametrize("keys", [["0", "0"], ["1"], ["0", "1"], [0]])
    def test_a_stream_of_other_storages(self, keys: list[Any], tmp_path: Path) -> None:
        (tmp_path / "weights.pkl").write_bytes(stream(state_dict(a=tensor()), keys=keys, storages=storage() * 2))
        with pytest.raises(FormatError, match=r"expected only the keys of the 1 storages|expected unique storage keys"):
            open_state_dict(tmp_path / "weights.pkl")


def sound_zip() -> bytes:
    return zipped(state_dict(a=tensor()), entries={"archive/data/0": bytes(16)})


def two_entries(first: str, second: str) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for name in (first, second, "archive/data/0"):
            archive.writestr(name, state_dict(a=tensor()) if name.endswith("pkl") else bytes(16))
    return buffer.getvalue()


def patched(data: bytes, magic: bytes, offset: int, value: bytes) -> bytes:
    """Overwrite a field in the last record of a kind in a zip file."""
    at = data.rindex(magic) + offset
    return data[:at] + value + data[at + len(value) :]


ZIPS = {
    "compressed": zipped(
        state_dict(a=tensor()), entries={"archive/data/0": bytes(16)}, compression=zipfile.ZIP_DEFLATED
    ),
    "a bomb": zipped(
        state_dict(a=tensor(storage=reference(length=2**25), shape=(2**25,))),
        entries={"archive/data/0": bytes(2**27)}, compression=zipfile.ZIP_DEFLATED,
    ),
    "a name twice": two_entries("archive/data.pkl", "archive/data.pkl"),
    "two pickles": two_entries("archive/data.pkl", "other/data.pkl"),
    "no pickle": two_entries("archive/a", "archive/b"),
    "big-endian": zipped(
        state_dict(a=tensor()), entries={"archive/data/0": bytes(16), "archive/byteorder": b"big"}
    ),
    "an entry that says it is huge": patched(sound_zip(), b"PK\1\2", 20, struct.pack("<II", 2**30, 2**30)),
    "an entry that is larger than packed": patched(sound_zip(), b"PK\1\2", 24, struct.pack("<I", 2**30)),
    "an entry outside the file": patched(sound_zip(), b"PK\1\2", 42, struct.pack("<I", 2**31)),
    "an entry at another's header": patched(sound_zip(), b"PK\1\2", 42, struct.pack("<I", 0)),
    "an encrypted entry": patched(sound_zip(), b"PK\1\2", 8, b"\1"),
    "a wide entry without its size": patched(sound_zip(), b"PK\1\2", 24, b"\xff" * 4),
    "a directory that says it is huge": patched(sound_zip(), b"PK\5\6", 12, struct.pack("<I", 2**31)),
    "a directory of too many entries": patched(sound_zip(), b"PK\5\6", 10, b"\xfe\xff"),
    "a directory outside the file": patched(sound_zip(), b"PK\5\6", 16, struct.pack("<I", 2**31)),
    "a wide directory that is not there": patched(sound_zip(), b"PK\5\6", 16, b"\xff" * 4),
    "a comment": patched(sound_zip(), b"PK\5\6", 20, b"\5\0") + b"hello",
    "cut off": sound_zip()[:-30],
    "cut short": b"PK\3\4",
    "followed by something": sound_zip() + b"more",
}  # fmt: skip


@pytest.mark.parametrize("name", ZIPS)
def test_a_zip_file_that_torch_did_not_write_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.pkl").write_bytes(ZIPS[name])
    with pytest.raises(FormatError) as caught:
        open_state_dict(tmp_path / "weights.pkl")
    assert "\n" not in str(caught.value)


OPCODES = [
    *(bytes([code]) for code in b"()}]tuQRbsae.N"),
    *(b"q\0", b"h\0", b"ccollections\nOrderedDict\n", b"X\1\0\0\0a", b"K\3"),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=4), st.sampled_from(OPCODES))))
def test_any_bytes_are_refused_safely(parts: list[bytes]) -> None:
    try:
        _, end = read_pickle(b"".join(parts), 0, subject="bytes")
    except FormatError:
        return
    assert 0 < end <= sum(map(len, parts))
