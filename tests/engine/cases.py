"""Models and sentences for tests of the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from elmo.engine import compiled
from tests.formats.tiny import tiny_model

SHAPES = {
    "characters": tiny_model("chars"),
    "words": tiny_model("words"),
    "both": tiny_model("both", alphabet="unicode", forget_bias=0.0),
    "three layers, no skip": tiny_model("chars", n_layers=3, has_skip=False, cell_clip=0.3, state_clip=0.2),
    "one layer, no projection": tiny_model("chars", n_layers=1, cell_width=4),
    "transformer": tiny_model("chars", is_transformer=True, highway_width=4, has_norm=True),
    "transformer, both": tiny_model("both", alphabet="unicode", is_transformer=True, n_layers=3),
}
FOLDER = Path(compiled.__file__).parent
# The variants of the compiled kernels that this CPU can run, best first.
BUILT_VARIANTS = [name for name in compiled._supported_variants() if (FOLDER / f"kernels.{name}.so").is_file()]
every_shape = pytest.mark.parametrize("model", SHAPES.values(), ids=SHAPES.keys())


def random_sentences(n: int, seed: int = 0, longest: int = 40) -> list[list[str]]:
    generator = random.Random(seed)
    letters = "abcdefgh éß中文字😀'-"

    def random_word() -> str:
        return "".join(generator.choices(letters, k=generator.randint(1, 12)))

    return [[random_word() for _ in range(generator.randint(0, longest))] for _ in range(n)]


@contextmanager
def no_onednn() -> Iterator[None]:
    """Disable oneDNN; torch.backends.mkldnn.flags would warn about unrelated settings."""
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


def is_compiled(variant: str, precision: str = "float32") -> bool:
    """Whether ``variant``, a value of ELMO_KERNELS, has compiled kernels of this precision."""
    return variant != "0" and precision in compiled.Library(FOLDER / f"kernels.{variant}.so").precisions


def autograd_functions(tensor: torch.Tensor) -> set[str]:
    """The names of the functions of elmo.engine that ``tensor`` was computed with."""
    names: set[str] = set()
    nodes: list[Any] = [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            nodes += [parent for parent, _ in node.next_functions]
            names.add(node.name())
    return {name.removesuffix("Backward") for name in names if name.startswith("_") and name.endswith("Backward")}


def assert_close_in_float32(result: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> None:
    """Compare float32 values and gradients with those in float64, relative to the largest number of each."""
    assert result.keys() == exact.keys()
    for name, x in exact.items():
        assert result[name].dtype == torch.float32
        tolerance = 1e-5 * max(1.0, float(x.abs().max()))
        torch.testing.assert_close(result[name].double(), x, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
