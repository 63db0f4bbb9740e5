"""A short run of the fault matrix, and the list of its commands and promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.arena import can_trace
from tests.faults.commands import COMMANDS
from tests.faults.faults import FAULTS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "elmo" / "cli"
linux = pytest.mark.skipif(sys.platform != "linux", reason="uses rlimits, capabilities and /proc of Linux")


@linux
@pytest.mark.slow
def test_commands_keep_their_promises_after_each_fault() -> None:
    command = [sys.executable, "-m", "tests.faults", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "no problems"
    rows = dict(re.findall(r"^(\S.*?)  +\d+ s  (.*)$", done.stdout, re.M))
    tested = {fault.name for fault in FAULTS if can_trace() or not fault.needs_strace}
    for name, row in rows.items():
        quick = next(command for command in COMMANDS if command.name == name)
        faults = {fault for fault in tested if f" {fault}" in f" {row}"}
        expected = {fault.name for fault in FAULTS if fault.name in tested and (quick.quick == "all" or fault.is_kill)}
        assert faults == expected - ({"input changed"} if quick.change is None else set()), name
    assert set(rows) == {command.name for command in COMMANDS if command.quick}


def test_every_command_that_writes_is_in_the_matrix() -> None:
    """A command writes if it has an option ``--out``, ``--picture`` or ``--export``, or an argument OUT."""
    writes = re.compile(r"\b(?:out|picture|export): |\"--(?:out|export)\"|check_picture_option")
    files = [
        path for path in SOURCE.glob("*.py") if path.stem not in ("__init__", "app", "options", "generate", "console")
    ]
    writers = {path.stem for path in files if writes.search(path.read_text(encoding="utf-8"))}
    writers |= {"warm", "download", "cache"}
    assert {command.line.split()[0] for command in COMMANDS} == writers


def test_the_documentation_states_the_promises() -> None:
    from tests.faults.__main__ import table

    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for row in table().splitlines():
        assert row in page, f"run: python -m tests.faults --table, and copy the tables to docs/reliability.md: {row}"
