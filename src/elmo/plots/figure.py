"""Create and save figures, find fonts for their text, and format their axes, values and sentences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elmo.errors import importing_extra
from elmo.storage.atomic import atomic_file, check_output_file, make_parents
from elmo.text.display import BOX, shorten, text_width, to_plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

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
INSTALL_FONTS = "install a font (apt install fonts-noto-cjk or fonts-wqy-zenhei) and draw again"
_BUNDLED_FILE = Path(__file__).parent / "fonts" / "cjk.ttf"


def check_picture(path: Path) -> None:
    """Check that matplotlib is installed and that ``path`` can be written; call this before the work starts."""
    with importing_extra("a picture", extra="plots"):
        import matplotlib  # noqa: F401
    check_output_file(path, suffixes=SUFFIXES)


def draw_figure(path: str | Path, build: Callable[[], Figure]) -> Path:
    """Check ``path``, build a figure and write it atomically; the suffix selects PNG, PDF or SVG."""
    path = Path(path)
    check_picture(path)
    from matplotlib import rc_context

    figure = build()
    # no dates and no random ids, so that the same figure gives the same bytes
    metadata: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    suffix = path.suffix.lower()
    make_parents(path)
    with atomic_file(path) as temporary, rc_context({"svg.hashsalt": "elmo"}):
        figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata[suffix])
    return path


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Create an empty white figure; the size is in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white", **options)


def style_axes(axes: Axes, *, grid: Literal["x", "y"], color: str, hidden: Sequence[str] = ("top", "right")) -> None:
    """Draw thin grid lines behind the data, and hide some sides of the frame."""
    axes.grid(axis=grid, color=color, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[list(hidden)].set_visible(False)


def write_values(axes: Axes, values: NDArray[np.floating[Any]], *, light: float, **style: Any) -> None:
    """Write the value of each cell of a heat map, in black if it is above ``light`` and in white otherwise."""
    for row, column in np.argwhere(~np.isnan(values)).tolist():
        value = float(values[row, column])
        color = "black" if value > light else "white"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, **style)


def format_in_context(before: str, word: str, after: str, width: int) -> str:
    """Format a sentence with a word in brackets, shortened on both sides to ``width`` Latin letters."""
    before, word, after = map(to_plain_text, (before, word, after))
    word = shorten(word, width // 2)
    available = width - text_width(word) - 2
    left = shorten(before[::-1], max(available // 2, available - text_width(after)))[::-1]
    return f"{left}[{word}]{shorten(after, available - text_width(left))}"


def find_fonts(text: str) -> tuple[list[str], str]:
    """Return fonts that together can draw ``text``, and the characters that none of them has.

    Installed fonts are preferred; the bundled Chinese font is used if they lack a character. If all of them lack one,
    fonts that were installed since matplotlib listed them are added.

    Example:
        >>> fonts, missing = find_fonts("bank 银行")
        >>> missing
        ''
    """
    fonts, missing = _choose_fonts(text)
    if missing and _add_new_fonts():
        fonts, missing = _choose_fonts(text)
    return fonts, missing


def _add_new_fonts() -> bool:
    """Add fonts that are missing from matplotlib's list, which it stores once and never updates."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.fname for entry in fontManager.ttflist}
    new = [path for path in map(str, findSystemFonts()) if path not in known and path not in _unreadable_fonts]
    for path in new:
        try:
            fontManager.addfont(path)
        except (OSError, RuntimeError, UnicodeDecodeError):  # not a font that matplotlib can read
            _unreadable_fonts.add(path)
    return any(path not in _unreadable_fonts for path in new)


_unreadable_fonts: set[str] = set()


def _choose_fonts(text: str) -> tuple[list[str], str]:
    from matplotlib.font_manager import fontManager, get_font

    missing = {c for c in text if not c.isspace()}
    files = {entry.name: entry.fname for entry in fontManager.ttflist}
    files[BUNDLED_FONT] = str(_BUNDLED_FILE)
    fonts: list[str] = []
    for name in (LATIN_FONT, *CJK_FONTS, BUNDLED_FONT):
        if not missing:
            break
        if name not in files or not Path(files[name]).is_file():  # the list may have fonts that were removed
            continue
        available = {c for c in missing if ord(c) in get_font(files[name]).get_charmap()}
        if available or name == LATIN_FONT:
            fonts.append(name)
            missing -= available
    if BUNDLED_FONT in fonts and all(entry.name != BUNDLED_FONT for entry in fontManager.ttflist):
        fontManager.addfont(_BUNDLED_FILE)
    return fonts, "".join(sorted(missing))


def prepare_lines(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return fonts for lines of text, and the lines; characters that no font has are replaced with boxes."""
    fonts, missing = find_fonts("".join(lines))
    if missing:
        logger.warning("no font can draw %s: showing boxes instead; %s", missing[:20], INSTALL_FONTS)
    boxes = dict.fromkeys(map(ord, missing), BOX)  # otherwise, matplotlib warns about each character
    return fonts, [line.translate(boxes) for line in lines]
