"""Rules of the house style that no linter checks."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "elmo"
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
BRITISH = re.compile(r"\b\w*(?:[Nn]eighbour|[Tt]okenis|[Oo]ptimis[ei]|[Nn]ormalis|[Cc]olour|[Ll]abelled)\w*")


def test_file_names_describe_their_content() -> None:
    for path in FILES:
        assert path.stem not in ("utils", "helpers", "common", "misc", "base"), path


def test_every_module_has_a_docstring() -> None:
    for path, tree in TREES.items():
        assert ast.get_docstring(tree), path


def test_no_module_docstring_follows_the_formula_x_in_y_out() -> None:
    formula = re.compile(r"\bin[,;:]?\s.*\bout\b[.:;,]?", re.S)
    found = []
    for path, tree in TREES.items():
        first = (ast.get_docstring(tree) or "").split("\n\n")[0]
        if formula.search(first) and not re.search(r"\b(?:with|leave|left|without) ?out\b", first):
            found.append(f"{path.relative_to(SOURCE)}: {first}")
    assert not found, "\n".join(found)


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    assert not repeated, repeated


def test_spelling_is_american() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{k}: {match[0]}"
        for path in FILES
        for k, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := BRITISH.search(line))
    ]
    assert not found, "\n".join(found)


def test_only_the_command_line_prints_or_exits() -> None:
    for path, tree in TREES.items():
        if "cli" not in path.parts and path.name != "__main__.py":
            calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
            raised = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
            assert not {"print", "sys.exit", "exit", "SystemExit"} & calls, path
            assert "raise SystemExit" not in raised, path


def test_imports_point_down() -> None:
    done = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode()
