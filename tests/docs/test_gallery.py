"""The gallery: every script runs and saves a picture, and the page shows all of them."""

from __future__ import annotations

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples/gallery").glob("*.py"))
PAGE = ROOT / "docs/gallery.md"
PICTURES = ROOT / "docs/gallery"
MAX_BYTES = 700_000
REQUIREMENTS = ("jieba", "matplotlib", "scipy", "sklearn")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_checks_its_claims_and_saves_a_picture(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = script.read_text(encoding="utf-8")
    for library in REQUIREMENTS:
        if library in code or (library == "jieba" and '"zh"' in code):
            pytest.importorskip(library)
    pytest.importorskip("matplotlib")
    import matplotlib
    import matplotlib.pyplot as plt
    from PIL import Image

    picture = tmp_path / "picture.png"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("sys.argv", [str(script), str(picture)])
    with matplotlib.rc_context():
        matplotlib.use("agg")
        runpy.run_path(str(script), run_name="__main__")  # warnings, such as a missing glyph, are errors
        plt.close("all")
    with Image.open(picture) as image:
        width, height = image.size
        assert 500 < width < 1300
        assert 200 < height < 1400
        assert len(image.convert("RGB").getcolors(width * height) or []) > 20, "the picture is blank"
    assert list(tmp_path.iterdir()) == [picture]


def test_every_script_claims_something() -> None:
    assert len(SCRIPTS) == 12
    for script in SCRIPTS:
        code = script.read_text(encoding="utf-8")
        assert re.match(r'"""[A-Z][^\n]*[.?]("""|\n)', code), f"{script.name} has no docstring"
        assert re.search(r"^\s*assert ", code, re.MULTILINE), f"{script.name} checks nothing"


def test_the_page_shows_every_script_and_its_picture() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = [script.stem for script in SCRIPTS]
    assert sorted(re.findall(r"\]\(\.\./examples/gallery/(\w+)\.py\)", text)) == names
    assert sorted(re.findall(r"^!\[[^\]]{20,}\]\(gallery/(\w+)\.png\)", text, re.MULTILINE)) == names
    assert sorted(path.stem for path in PICTURES.iterdir()) == names


def test_the_pictures_are_small() -> None:
    assert sum(path.stat().st_size for path in PICTURES.glob("*.png")) < MAX_BYTES


def test_one_command_redraws_all_pictures() -> None:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs/site/gallery.py")
    assert spec is not None
    assert spec.loader is not None
    pytest.importorskip("PIL")
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    assert gallery.SCRIPTS == SCRIPTS
    assert gallery.PICTURES == PICTURES
    assert "docs/site/gallery.py" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "make gallery" in PAGE.read_text(encoding="utf-8")
