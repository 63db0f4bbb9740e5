"""Where ``make conformance`` installs the peer systems; tests that need a peer skip if it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / ".venvs" / "peers"
SCRIPTS = Path(__file__).with_name("peers")


def peer_python(name: str) -> Path:
    """Return the Python of a peer's venv."""
    return PEERS / name / "bin" / "python"


def needs_peer(*names: str) -> pytest.MarkDecorator:
    """Skip a test unless ``setup.sh`` has completed these peers."""
    missing = [name for name in names if not (PEERS / name / "ready").exists()]
    return pytest.mark.skipif(bool(missing), reason=f"{PEERS} has no {', '.join(missing)}; run make conformance")
