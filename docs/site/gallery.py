"""Run the scripts of ``examples/gallery`` and save their pictures, small: ``python docs/site/gallery.py [FOLDER]``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples/gallery").glob("*.py"))
PICTURES = ROOT / "docs/gallery"


def draw(script: Path, picture: Path) -> None:
    """Run a script in a process of its own, and reduce the colors of its picture to keep the repository small."""
    subprocess.run([sys.executable, script, picture], env={**os.environ, "MPLBACKEND": "agg"}, check=True)
    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS:
        draw(script, folder / f"{script.stem}.png")
