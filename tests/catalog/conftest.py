"""A cache folder of its own for every test, a server of files, and short waits between attempts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.catalog import transfer
from tests.catalog.file_server import FileServer, serving


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder; nothing else of the environment matters."""
    for name in ("ELMO_MIRROR", "ELMO_OFFLINE", "HF_HUB_OFFLINE", "http_proxy", "https_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ELMO_DOWNLOADS", str(tmp_path / "cache"))
    monkeypatch.setattr(transfer, "RETRY_SECONDS", 0.001)
    return tmp_path / "cache"


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A server without files."""
    with serving({}) as running:
        yield running
