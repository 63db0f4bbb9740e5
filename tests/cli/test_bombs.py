"""Hostile inputs of 1 MB: commands report them in one line, with little memory. ``tests.cli.bombs`` has all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import json, sys
from pathlib import Path
from tests.cli import bombs
commands, names, folder = json.loads(sys.argv[1])
bombs.import_everything()
place = bombs.write_folder(Path(folder))
data = [item for item in (*bombs.inputs(), *bombs.archives()) if item[0] + item[1] in names]
assert len(data) == len(names), [item[0] + item[1] for item in data]
peaks = [vars(bombs.measure(command, *[item[k] for k in (0, 2, 1)], place)) for command in commands for item in data]
print(json.dumps(peaks))
"""
TEXTS = ["one line.gz", "15 MB of signs in one line.gz", "16 MB of sentences in columns.gz", "JSON objects.gz"]
TEXT_COMMANDS = ["embed X --out out.npz", "embed X --split --out out.npz", "train X --out new --preset tiny",
                 "task train tagging X --out t.safetensors", "task train answers X --out t.safetensors",
                 "wsd --train X --out new.safetensors", "similarity X"]  # fmt: skip
MODELS = ["a bomb.zip", "many small bombs.zip", "a bomb.tar.gz", "a long header.safetensors", "h5.hdf5"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("commands", "names"), [(TEXT_COMMANDS, TEXTS), (["info X", "convert X new"], MODELS)], ids=["text", "models"]
)
def test_a_small_input_never_needs_much_memory(tmp_path: Path, commands: list[str], names: list[str]) -> None:
    import json

    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([commands, names, str(tmp_path)])],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    peaks = json.loads(done.stdout.splitlines()[-1])
    assert len(peaks) == len(commands) * len(names)
    large = [peak for peak in peaks if peak["n_bytes"] > 600_000_000]
    assert large == []
    failed = [peak for peak in peaks if peak["code"] not in (0, 1, -9) or "Traceback" in peak["message"]]
    assert failed == []
