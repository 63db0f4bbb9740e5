"""A short run of the fuzzer: every reader refuses or loads mutated inputs, within its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

for name in ("orjson", "zstandard", "pyarrow"):
    pytest.importorskip(name, reason=f"{name} is not installed")

ROOT = Path(__file__).parents[1]
CORPORA = ROOT / "fuzz" / "corpora"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="measures memory and time as Linux does")


@pytest.mark.slow
def test_mutated_inputs_of_every_reader_are_refused_or_loaded() -> None:
    command = [sys.executable, "-m", "fuzz", "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert {row[0] for row in rows} == {path.name for path in CORPORA.iterdir()}
    for name, n_inputs, n_refused, n_loaded, n_problems, *_ in rows:
        refused, loaded = (int(n.replace(",", "")) for n in (n_refused, n_loaded))
        assert refused > 0, name
        assert loaded > 0, name
        assert refused + loaded == int(n_inputs.replace(",", "")), name
        assert n_problems == "0", name


def test_the_kept_inputs_are_small() -> None:
    assert sum(path.stat().st_size for path in CORPORA.rglob("*") if path.is_file()) < 1_000_000


def test_the_documentation_lists_all_targets() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert [path.name for path in sorted(CORPORA.iterdir()) if f"`{path.name}`" not in page] == []
