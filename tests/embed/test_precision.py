from __future__ import annotations

import pytest
import torch

from elmo import Elmo
from elmo.embed import precision
from elmo.engine.compiled import CompiledError, load_library
from tests.formats.tiny import tiny_model

SENTENCE = ["the", "river", "bank"]


@pytest.fixture
def precisions() -> list[str]:
    try:
        return load_library().precisions
    except CompiledError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("limit", [1e-9, 1e9])
def test_auto_chooses_the_fastest_precision_within_the_limit(
    limit: float, precisions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "MAX_ERROR", limit)
    elmo = Elmo(tiny_model(), dtype="auto")
    expected = next(name for name in ("int8", "bfloat16", "float32") if name in precisions) if limit > 1 else "float32"
    assert elmo.precision == expected
    same = Elmo(tiny_model(), dtype=expected)
    assert elmo.encode([SENTENCE])[0].vectors.tobytes() == same.encode([SENTENCE])[0].vectors.tobytes()


def test_auto_is_float32_without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELMO_KERNELS", "0")
    elmo = Elmo(tiny_model(), dtype="auto")
    assert elmo.precision == "float32"
    assert next(elmo.bilm.parameters()).dtype == torch.float32
