"""The lock files: complete, hashed, and in agreement with pyproject.toml and constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ["requirements.lock", "requirements-dev.lock"]
NOT_LOCKED = {"torch"}  # its build depends on the machine; see recipes/lock.sh


def read_lock(name: str) -> dict[str, set[str]]:
    """Return the locked versions of each package."""
    versions: dict[str, set[str]] = {}
    entry = re.compile(
        r"^([A-Za-z0-9._-]+)==([^ ;\\]+)( ; [^\\\n]+)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M
    )
    text = (ROOT / name).read_text()
    for match in entry.finditer(text):
        versions.setdefault(canonicalize_name(match[1]), set()).add(match[2])
    assert entry.sub("", text).strip() == "", "a package without a hash, or something else"
    return versions


def required(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines, seen = list(project["dependencies"]), set()
    queue = list(extras)
    while queue:
        extra = queue.pop()
        if extra not in seen:
            seen.add(extra)
            for line in project["optional-dependencies"][extra]:
                own = re.fullmatch(r"pyelmo\[(.+)\]", line)
                queue += own[1].split(",") if own else []
                lines += [] if own else [line]
    return [Requirement(line) for line in lines]


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_locked_with_a_version_that_fits(name: str) -> None:
    locked = read_lock(name)
    problems = []
    for requirement in required("all", *(["dev"] if "dev" in name else [])):
        package = canonicalize_name(requirement.name)
        versions = locked.get(package, set())
        if package in NOT_LOCKED:
            assert not versions
        elif not versions or not all(requirement.specifier.contains(version) for version in versions):
            problems.append(f"{requirement}: {versions or 'missing'}")
    assert problems == [], f"run make lock: {problems}"


@pytest.mark.parametrize("name", LOCKS)
def test_the_locked_versions_are_those_of_the_constraints(name: str) -> None:
    locked = read_lock(name)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert pins
    for package, _, version in pins:
        assert locked.get(canonicalize_name(package), {version}) == {version}, package


@pytest.mark.parametrize("name", LOCKS)
def test_no_library_for_a_kind_of_hardware_is_locked(name: str) -> None:
    assert [package for package in read_lock(name) if re.match("nvidia|cuda|triton|torch$", package)] == []
