from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.small_corpus import TEXT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A text of four sentences."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path
