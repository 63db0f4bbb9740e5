"""Run the Python of pages and write what it prints and draws back: ``python docs/site/refresh.py docs/guide/*.md``.

Each ```python block that is followed by a ```text block gets its output there. Pictures that the page saves are copied
next to it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?P<output>\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def refresh(page: Path) -> None:
    """Run the blocks of a page from top to bottom, and update its output and its pictures."""
    names: dict[str, object] = {}

    def run(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match["code"], page.name, "exec"), names)
        output = "\n".join(line.rstrip() for line in printed.getvalue().splitlines())
        return f"```python\n{match['code']}```\n" + (f"\n```text\n{output}\n```\n" if match["output"] else "")

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        text = _BLOCK.sub(run, page.read_text(encoding="utf-8"))
        for picture in Path(folder).glob("*.png"):
            shutil.copyfile(picture, page.parent / picture.name)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "agg")
    for name in sys.argv[1:]:
        refresh(Path(name).resolve())
