from __future__ import annotations

from collections.abc import Iterator

import pytest

from elmo.engine.compiled import VARIABLE
from elmo.engine.matmul import check_packed_support
from tests.engine.cases import BUILT_VARIANTS, no_onednn


@pytest.fixture(params=["compiled", "packed", "plain"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All kinds of kernels, independent of the choice for this machine."""
    if request.param == "compiled":
        if not BUILT_VARIANTS:
            pytest.skip("no compiled kernels on this machine")
        monkeypatch.setenv(VARIABLE, BUILT_VARIANTS[0])
        yield "compiled"
        return
    monkeypatch.setenv(VARIABLE, "0")
    if request.param == "plain":
        with no_onednn():
            yield "plain"
    elif check_packed_support() is None:
        yield "packed"
    else:
        pytest.skip("no packed weights on this machine")


@pytest.fixture(params=[*BUILT_VARIANTS, "0"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every variant of the compiled kernels that this CPU supports, and "0" for torch alone."""
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


@pytest.fixture(params=BUILT_VARIANTS or [pytest.param("", marks=pytest.mark.skip(reason="no compiled kernels"))])
def compiled_variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every variant of the compiled kernels that this CPU supports."""
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute with torch alone."""
    monkeypatch.setenv(VARIABLE, "0")
