"""Save figures as picture files, and find fonts for their text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import MissingExtraError
from elmo.storage.atomic import atomic_file, check_output_file, make_parents
from elmo.text.display import BOX

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

SUFFIXES = (".png", ".pdf", ".svg")
# Fonts with Chinese, Japanese and Korean characters on Linux, macOS and Windows.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK TC", "Noto Sans CJK KR", "Noto Sans SC",
    "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
    "Droid Sans Fallback", "PingFang SC", "PingFang HK", "Hiragino Sans GB", "Heiti SC", "Heiti TC",
    "STHeiti", "Arial Unicode MS", "Microsoft YaHei", "SimHei", "SimSun", "Malgun Gothic", "Yu Gothic",
    "MS Gothic", "AR PL UMing CN", "Unifont",
)  # fmt: skip
LATIN_FONT = "DejaVu Sans"  # comes with matplotlib
BUNDLED_FONT = "elmo CJK"  # comes with elmo: 7,000 common Chinese characters, see recipes/subset_font.sh
INSTALL_FONTS = "install one (apt install fonts-noto-cjk, or fonts-wqy-zenhei) and draw again"
_BUNDLED_FILE = Path(__file__).parent / "fonts" / "cjk.ttf"


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn and written; call this before the work starts."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a picture", extra="plots") from error
    check_output_file(path, suffixes=SUFFIXES)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture atomically; the suffix is the format: PNG, PDF or SVG."""
    from matplotlib import rc_context

    # no date and no random ids: the same figure gives the same bytes
    metadata: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    suffix = path.suffix.lower()
    make_parents(path)
    with atomic_file(path) as temporary, rc_context({"svg.hashsalt": "elmo"}):
        figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata[suffix])


def find_fonts(text: str) -> tuple[list[str], str]:
    """Find fonts that together can draw ``text``, and the characters that none of them has.

    Installed fonts are preferred; the bundled Chinese font is used if they lack a character.
    """
    from matplotlib.font_manager import fontManager, get_font

    missing = {c for c in text if not c.isspace()}
    files = {entry.name: entry.fname for entry in fontManager.ttflist}
    files[BUNDLED_FONT] = str(_BUNDLED_FILE)
    fonts: list[str] = []
    for name in (LATIN_FONT, *CJK_FONTS, BUNDLED_FONT):
        if not missing:
            break
        if name not in files:
            continue
        available = {c for c in missing if ord(c) in get_font(files[name]).get_charmap()}
        if available or name == LATIN_FONT:
            fonts.append(name)
            missing -= available
    if BUNDLED_FONT in fonts and all(entry.name != BUNDLED_FONT for entry in fontManager.ttflist):
        fontManager.addfont(_BUNDLED_FILE)
    return fonts, "".join(sorted(missing))


def prepare_lines(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Find fonts for lines of text; replace characters that no font has by boxes, with a warning."""
    fonts, missing = find_fonts("".join(lines))
    if missing:
        logger.warning("no font can draw %s, shown as boxes; %s", missing[:20], INSTALL_FONTS)
    boxes = dict.fromkeys(map(ord, missing), BOX)  # otherwise matplotlib warns about each
    return fonts, [line.translate(boxes) for line in lines]
