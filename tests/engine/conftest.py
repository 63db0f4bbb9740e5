from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from elmo.engine.matmul import choose_kernels
from tests.engine.cases import no_onednn


@pytest.fixture(params=["packed", "plain"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both kinds of kernels, independent of the choice for this machine."""
    if request.param == "plain":
        with no_onednn():
            yield "plain"
    elif choose_kernels(torch.ones(1)).is_packed:
        yield "packed"
    else:
        pytest.skip("no packed weights on this machine")
