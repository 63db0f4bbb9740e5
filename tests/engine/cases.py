"""Models and sentences for tests of the engine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.formats.tiny import tiny_model

SHAPES = {
    "characters": tiny_model("chars"),
    "words": tiny_model("words"),
    "both": tiny_model("both", alphabet="unicode", forget_bias=0.0),
    "three layers, no skip": tiny_model("chars", n_layers=3, has_skip=False, cell_clip=0.3, state_clip=0.2),
    "one layer, no projection": tiny_model("chars", n_layers=1, cell_width=4),
}
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
