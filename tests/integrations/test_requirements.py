"""A library that is missing or has an unsupported version gives one line with the command to install it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from elmo import MissingExtraError
from elmo.integrations import require

NAMES = {
    "ElmoVectorizer": ("scikit-learn", "sklearn"),
    "ElmoEmbeddings": ("flair", "flair"),
    "build_keyed_vectors": ("gensim", "gensim"),
    "use_elmo_vectors": ("spacy", "spacy"),
}


@pytest.mark.parametrize(
    ("found", "is_supported"),
    [("1.6", True), ("1.6.0rc1", True), ("1.10.2", True), ("1.5.9", False), ("2.0", False), ("2.0.1", False)],
)
def test_versions_are_compared_as_numbers(monkeypatch: pytest.MonkeyPatch, found: str, *, is_supported: bool) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    if is_supported:
        require("scikit-learn", extra="sklearn", at_least="1.6", below="2")
        return
    with pytest.raises(MissingExtraError) as caught:
        require("scikit-learn", extra="sklearn", at_least="1.6", below="2")
    assert str(caught.value) == (
        f"elmo.integrations.sklearn requires scikit-learn 1.6 or newer, below 2; found {found}: "
        "pip install -U 'pyelmo[sklearn]'"
    )


def test_a_missing_library_is_one_line_for_each_name() -> None:
    code = f"""
import sys
from importlib import metadata
from elmo import MissingExtraError
names, installed = {NAMES!r}, metadata.version
libraries = {{library for library, _ in names.values()}}

def version(library):
    if library in libraries:
        raise metadata.PackageNotFoundError(library)
    return installed(library)

metadata.version = version
sys.modules |= dict.fromkeys(("spacy", "sklearn", "gensim", "flair"))  # an import of these fails
import elmo.integrations
for name in names:
    try:
        getattr(elmo.integrations, name)
    except MissingExtraError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"elmo.integrations.{extra} requires an optional dependency: pip install 'pyelmo[{extra}]'"
        for _, extra in NAMES.values()
    ]


def test_public_names_are_sorted() -> None:
    from elmo import integrations

    assert integrations.__all__ == sorted(integrations.__all__)
