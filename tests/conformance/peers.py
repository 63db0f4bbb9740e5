"""Where `make conformance` put the other systems; the tests skip where it has not run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PEERS = Path(os.environ.get("ELMO_PEERS", "/nonexistent"))
SCRIPTS = Path(os.environ.get("ELMO_PEER_SCRIPTS", "/nonexistent"))

needs_peers = pytest.mark.skipif(
    not (PEERS / "allennlp/bin/python").exists() or not (SCRIPTS / "worker.py").exists(),
    reason="ELMO_PEERS and ELMO_PEER_SCRIPTS do not name the other systems (make conformance sets them)",
)
