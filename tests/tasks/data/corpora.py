"""Published corpora, and small files for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"published corpora are not at {DATA}")


def write_file(folder: Path, text: str, name: str = "train.conll") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path
