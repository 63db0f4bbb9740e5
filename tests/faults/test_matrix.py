"""A short run of the fault matrix, and the list of its commands and promises."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from elmo.cli.app import _PANELS, build_app
from tests.faults.arena import can_trace
from tests.faults.commands import COMMANDS
from tests.faults.faults import FAULTS

ROOT = Path(__file__).parents[2]
OUTPUT = re.compile(r"out|picture|export|set_aside")
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


def find_writers() -> set[tuple[str, str]]:
    """Return the commands of ``elmo`` with each option or argument that names an output."""
    writers: set[tuple[str, str]] = set()
    groups: list[tuple[str, Any]] = [("", get_command(build_app(["task", *sum(_PANELS.values(), ())])))]
    while groups:
        prefix, group = groups.pop()
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                groups.append((f"{name} ", command))
            for option in command.params:
                if OUTPUT.fullmatch(option.name):
                    writers.add((prefix + name, max(option.opts, key=len)))
    return writers


def test_every_option_that_names_an_output_is_in_the_matrix() -> None:
    """Commands that change files in place have no such option, so they are listed here."""
    lines = [shlex.split(command.line) for command in COMMANDS]
    missing = []
    for command, option in find_writers():
        name = command.split()
        using = [line for line in lines if line[: len(name)] == name]
        if not using or (option.startswith("--") and not any(option in line for line in using)):
            missing.append(f"{command} {option}")
    assert missing == []
    written = {command.split()[0] for command, _ in find_writers()} | {"warm", "calibrate", "download", "cache"}
    assert {line[0] for line in lines} == written


def test_the_documentation_states_the_promises() -> None:
    from tests.faults.__main__ import table

    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for row in table().splitlines():
        assert row in page, f"run: python -m tests.faults --table, and copy the tables to docs/reliability.md: {row}"
