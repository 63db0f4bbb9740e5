"""Code that uses elmo passes a strict type checker without casts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = """
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elmo import BiLm, Elmo, Encoding, LayerMix, LayerMixes, Layers, similarities, similarity

Vectors = NDArray[np.floating[Any]]


def use(elmo: Elmo, mix: LayerMix, mixes: LayerMixes, texts: list[str], ids: Tensor, is_tensor: bool) -> float:
    encoding = elmo.encode("I sat by the bank.")
    assert_type(encoding, Encoding)
    assert_type(encoding.vectors, Vectors)
    assert_type(encoding.word("bank"), Vectors)
    assert_type(encoding.sentence("max"), Vectors)
    assert_type(elmo.encode(texts, layers="all", dtype="float16"), list[Encoding])
    assert_type(elmo.encode("a", as_tensor=True).word("a"), Tensor)
    assert_type(elmo.encode(texts, as_tensor=True, layers=mix)[0].vectors, Tensor)
    assert_type(elmo.encode(texts, as_tensor=is_tensor), list[Encoding[Any]])
    assert_type(similarities(encoding.vectors, encoding.vectors), NDArray[np.float64])
    layers = elmo.bilm(ids).layers
    assert_type(elmo.bilm, BiLm)
    assert_type(layers, Layers)
    assert_type(mix(layers), Tensor)
    assert_type(mixes(layers), list[Tensor])
    cosine = similarity(encoding.word("bank"), elmo.encode("A bank.", as_tensor=True).word("bank"))
    assert_type(cosine, float)
    return cosine - 0.5
"""


@pytest.mark.slow
def test_a_strict_type_checker_knows_the_types_of_results(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "use.py").write_text(CODE)
    config = '{"typeCheckingMode": "strict", "pythonVersion": "3.11", "reportPrivateImportUsage": false}'
    (tmp_path / "pyrightconfig.json").write_text(config)
    (tmp_path / "elmo").symlink_to(ROOT / "src" / "elmo")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(tmp_path), "use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
