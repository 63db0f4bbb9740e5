"""A library that is missing or too old is one line with the command that installs it."""

from __future__ import annotations

import runpy
import sys
from importlib import metadata
from pathlib import Path

import pytest

import elmo.integrations
from elmo import MissingExtraError
from elmo.lexicon.lance import check_library

FOLDER = Path(elmo.integrations.__file__).parent
MODULES = [("sentence_transformers.py", "sentence-transformers"), ("keras.py", "keras")]


@pytest.mark.parametrize(("name", "library"), MODULES)
def test_a_missing_library_is_named_with_its_extra(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(asked: str) -> str:
        raise metadata.PackageNotFoundError(asked)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(MissingExtraError) as error:
        runpy.run_path(str(FOLDER / name))
    assert f"pip install 'pyelmo[{library}]'" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "library"), MODULES)
def test_an_old_library_is_named_with_its_version(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda asked: "2.7.1" if asked == library else "99")
    with pytest.raises(MissingExtraError) as error:
        runpy.run_path(str(FOLDER / name))
    assert "2.7.1" in str(error.value)
    assert f"{library} " in str(error.value)
    assert "\n" not in str(error.value)


def test_lance_and_arrow_are_named_with_their_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtraError, match=r"^a Lance table requires .*pip install 'pyelmo\[lance\]'$"):
        check_library()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"^Arrow requires .*pip install 'pyelmo\[parquet\]'$"):
        runpy.run_path(str(FOLDER / "arrow.py"))
