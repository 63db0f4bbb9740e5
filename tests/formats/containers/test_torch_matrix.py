"""Matrices written by ``torch.save``: tensors and NumPy arrays are read, everything else is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.errors import FormatError
from elmo.formats.containers.torch_matrix import read_matrix

pytestmark = pytest.mark.parametrize("is_zipped", [True, False], ids=["zip", "old stream"])
NUMBERS = np.random.default_rng(0).normal(size=(5, 7))


def save(value: Any, path: Path, *, is_zipped: bool) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=is_zipped)
    return path


@pytest.mark.parametrize(
    "value",
    [
        NUMBERS,
        NUMBERS.astype("f4"),
        NUMBERS.astype("f2"),
        np.asfortranarray(NUMBERS),
        torch.from_numpy(NUMBERS),
        torch.from_numpy(NUMBERS).half(),
        torch.from_numpy(NUMBERS).t(),
        torch.nn.Parameter(torch.from_numpy(NUMBERS)),
    ],
)
def test_a_matrix_is_read_as_float32(value: Any, is_zipped: bool, tmp_path: Path) -> None:
    found = read_matrix(save(value, tmp_path / "m.pth", is_zipped=is_zipped))
    expected = value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected.float())


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3.0),
        np.zeros((2, 2), int),
        np.zeros((2, 2), ">f4"),
        np.zeros((2, 2), object),
        torch.zeros(3),
        torch.zeros(2, 2).long(),
        {"matrix": torch.zeros(2, 2)},
        [torch.zeros(2, 2)],
        None,
    ],
)
def test_other_values_are_refused(value: Any, is_zipped: bool, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"m\.pth: "):
        read_matrix(save(value, tmp_path / "m.pth", is_zipped=is_zipped))


class Hostile:
    """Runs a command if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_code_is_run(is_zipped: bool, tmp_path: Path) -> None:
    path = save(Hostile(tmp_path / "made"), tmp_path / "m.pth", is_zipped=is_zipped)
    with pytest.raises(FormatError, match=r"mkdir' is not allowed"):
        read_matrix(path)
    assert not (tmp_path / "made").exists()


def test_an_array_whose_size_is_not_that_of_its_numbers_is_refused(is_zipped: bool, tmp_path: Path) -> None:
    path = save(np.zeros((200, 100), "f4"), tmp_path / "m.pth", is_zipped=is_zipped)
    raw = path.read_bytes()
    shape = pickle.dumps((200, 100), protocol=2)[2:-3]  # without the header, the memo and the end
    assert raw.count(shape) == 1
    path.write_bytes(raw.replace(shape, pickle.dumps((201, 100), protocol=2)[2:-3]))
    with pytest.raises(FormatError, match=r"expected 80400 bytes for shape \(201, 100\), found 80000"):
        read_matrix(path)
