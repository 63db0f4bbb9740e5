"""Where the published vectors and corpora stand; tests that need them skip where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
FIXTURES = SHARED / "fixtures"

needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"published vectors are not at {FIXTURES}")
