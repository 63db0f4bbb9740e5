"""A matplotlib figure in, a picture file out; text in, the fonts that can draw it out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import MissingExtraError, OutputError
from elmo.storage.atomic import atomic_file, check_output_file, make_parents
from elmo.storage.files import format_path
from elmo.text.display import BOX

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

SUFFIXES = (".png", ".pdf", ".svg")
# Fonts with Chinese, Japanese and Korean characters, as Linux, macOS and Windows have them.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Sans SC",
    "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
    "Droid Sans Fallback", "PingFang SC", "PingFang HK", "Hiragino Sans GB", "Heiti SC", "Heiti TC",
    "STHeiti", "Arial Unicode MS", "Microsoft YaHei", "SimHei", "SimSun", "Malgun Gothic", "Yu Gothic",
    "MS Gothic", "AR PL UMing CN", "Unifont",
)  # fmt: skip
LATIN_FONT = "DejaVu Sans"  # comes with matplotlib
INSTALL_FONTS = "install one (apt install fonts-noto-cjk, or fonts-wqy-zenhei) and draw again"


def check(path: Path) -> None:
    """Refuse what cannot be drawn, before anything is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a picture", extra="plots") from error
    if path.suffix.lower() not in SUFFIXES:
        raise OutputError(f"{format_path(path)}: expected a name that ends in {', '.join(SUFFIXES)}")
    check_output_file(path)


def save(figure: Figure, path: Path) -> None:
    """Write the picture, whole or not at all; the suffix says whether as PNG, PDF or SVG."""
    from matplotlib import rc_context

    # no date, no random names inside: the same figure gives the same bytes
    no_date: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    form = path.suffix.lower()
    make_parents(path)
    with atomic_file(path) as part, rc_context({"svg.hashsalt": "elmo"}):
        figure.savefig(part, format=form[1:], dpi=150, metadata=no_date[form])


def fonts_for(text: str) -> tuple[list[str], str]:
    """Fonts that together can draw ``text``, and the characters that none of them has."""
    from matplotlib.font_manager import fontManager, get_font

    wanted = {c for c in text if not c.isspace()}
    installed = {entry.name: entry.fname for entry in fontManager.ttflist}
    chosen: list[str] = []
    for name in (LATIN_FONT, *CJK_FONTS):
        if not wanted:
            break
        if name in installed:
            has = {c for c in wanted if ord(c) in get_font(installed[name]).get_charmap()}
            if has or name == LATIN_FONT:
                chosen.append(name)
                wanted -= has
    return chosen, "".join(sorted(wanted))


def drawable(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Fonts for these lines, and the lines; what no font has is told, and shown as boxes."""
    fonts, missing = fonts_for("".join(lines))
    if missing:
        logger.warning("no installed font can draw %s: shown as boxes; %s", missing[:20], INSTALL_FONTS)
    boxes = dict.fromkeys(map(ord, missing), BOX)  # matplotlib would warn of each
    return fonts, [line.translate(boxes) for line in lines]
