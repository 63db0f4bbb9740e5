"""The requests in the guide to the service work as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from elmo import Client
from tests.serve.conftest import RunningServer

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "serve.md"


def test_every_curl_command_of_the_guide_is_answered(server: RunningServer) -> None:
    commands = re.findall(r"^curl http://127\.0\.0\.1:8000(\S+).*? -d '(.*?)'", GUIDE.read_text(), re.MULTILINE)
    assert len(commands) >= 6
    for path, body in commands:
        assert server.post(path, json.loads(body)).status == 200, path


def test_the_python_of_the_guide_runs(server: RunningServer) -> None:
    code = re.findall(r"^```py\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(code) >= 3
    names: dict[str, object] = {}
    try:
        for block in code:
            exec(block.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{server.port}"), names)
    finally:
        if isinstance(client := names.get("model"), Client):
            client.close()
    assert names["encodings"]
