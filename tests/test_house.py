"""The house rules that no linter knows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "elmo"


def test_every_file_name_says_what_is_inside() -> None:
    for path in SOURCE.rglob("*.py"):
        assert path.stem not in ("utils", "helpers", "common", "misc", "base"), path


def test_every_file_opens_with_a_sentence() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not text or text.lstrip("r").startswith('"""'), path


def test_only_the_shell_prints_or_exits() -> None:
    for path in SOURCE.rglob("*.py"):
        if "cli" not in path.parts and path.name != "__main__.py":
            assert not re.search(
                r"^\s*(print\(|sys\.exit\(|raise SystemExit)", path.read_text(encoding="utf-8"), re.M
            ), path


def test_imports_point_down() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout.decode()
