"""A comparison in, a picture of it out: one heat map per layer, the sentences listed below."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

from elmo.embed.atomic import replacing
from elmo.embed.compare import Comparison, Use
from elmo.errors import MissingExtraError, OutputError
from elmo.formats.files import shown

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
LINE_WIDTH = 92  # of a sentence below the maps, in Latin letters


def draw(comparison: Comparison, path: str | Path) -> None:
    """Write the picture; the suffix of ``path`` says whether as PNG, PDF or SVG."""
    target = Path(path)
    check(target)
    figure = _figure(comparison)
    from matplotlib import rc_context

    # no date, no random names inside: the same comparison gives the same bytes
    no_date: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    form = target.suffix.lower()
    with replacing(target) as part, rc_context({"svg.hashsalt": "elmo"}):
        figure.savefig(part, format=form[1:], dpi=150, metadata=no_date[form])


def check(path: Path) -> None:
    """Refuse what cannot be drawn, before any vector is computed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("a picture", extra="plots") from error
    if path.suffix.lower() not in SUFFIXES:
        raise OutputError(f"{shown(path)}: expected a name that ends in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise OutputError(f"{shown(path)}: there is no folder {shown(path.parent)}")


def _figure(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    labels = [f"S{k}" for k in range(1, len(comparison.uses) + 1)]
    lines = [f"{label}  {_line(use)}" for label, use in zip(labels, comparison.uses, strict=True)]
    title = f"“{_shortened(_plain(comparison.word), 60)}” in {len(labels)} sentences: cosine similarity"
    fonts, missing = _fonts("".join([*lines, title]))
    if missing:
        logger.warning(
            "no installed font can draw %s: the sentences are shown as numbers only; "
            "install one (apt install fonts-noto-cjk, or fonts-wqy-zenhei) and draw again", missing[:20],
        )  # fmt: skip
        lines = []
        title = f"one word in {len(labels)} sentences: cosine similarity"

    n, n_panels = len(labels), len(comparison.matrices)
    n_columns = min(n_panels, 4 if n <= 8 else 2)
    n_rows = math.ceil(n_panels / n_columns)
    panel = min(max(0.62 * n, 2.2), 7.0)  # inches
    width = max(n_columns * (panel + 0.5) + 1.1, 7.6)
    top, below, line_height = 0.55, 0.25, 0.235  # inches
    maps = n_rows * (panel + 0.65)
    height = top + maps + below + line_height * len(lines)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.02, 1 - 0.2 / height, title, va="top", family=fonts, fontsize=12, parse_math=False)
    for k, line in enumerate(lines):
        y = (below / 2 + line_height * (len(lines) - k)) / height
        figure.text(0.02, y, line, va="top", family=fonts, fontsize=10, parse_math=False)

    # one scale for all maps, so that layers can be compared; cosines of real models seldom come near 0
    least = min(float(matrix.min()) for matrix in comparison.matrices.values())
    low = min(0.9, math.floor(least * 10) / 10)
    cells = figure.subplots(
        n_rows, n_columns, squeeze=False,
        gridspec_kw={
            "left": 0.5 / width, "right": 1 - 1.1 / width, "wspace": 0.5 / panel, "hspace": 0.65 / panel,
            "top": 1 - (top + 0.35) / height, "bottom": (height - top - maps + 0.3) / height,
        },
    )  # fmt: skip
    image = None
    for axes, (name, matrix) in zip(cells.flat, comparison.matrices.items(), strict=False):
        # cividis runs evenly from dark to light, for readers with and without colour vision
        image = axes.imshow(matrix, cmap="cividis", vmin=low, vmax=1.0)
        axes.set_title(f"layer {name}" if name.isdigit() else name, fontsize=11)
        axes.set_xticks(range(n), labels, fontsize=_size(panel, n, 9))
        axes.set_yticks(range(n), labels, fontsize=_size(panel, n, 9))
        axes.tick_params(length=0)
        if panel / n >= 0.3:  # inches: below that nobody could read a number in a cell
            for i in range(n):
                for j in range(n):
                    is_light = (matrix[i, j] - low) / (1.0 - low) > 0.55
                    axes.text(
                        j, i, f"{matrix[i, j]:.2f}", ha="center", va="center",
                        color="black" if is_light else "white", fontsize=_size(panel, n, 10),
                    )  # fmt: skip
    for axes in cells.flat[n_panels:]:
        axes.set_visible(False)
    if image is not None:
        bar_height = min(panel * 0.85, 3.0)
        bar = figure.add_axes(
            (
                1 - 0.85 / width,
                1 - (top + 0.35 + panel / 2 + bar_height / 2) / height,
                0.16 / width,
                bar_height / height,
            )
        )
        figure.colorbar(image, cax=bar).ax.tick_params(labelsize=8)
    return figure


def _size(panel: float, n: int, largest: float) -> float:
    """A font size whose four digits fit a cell."""
    return min(largest, 72 * panel / n / 3)


def _fonts(text: str) -> tuple[list[str], str]:
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


def _line(use: Use) -> str:
    """The sentence with its word in brackets, shortened on both sides of it."""
    begin, end = use.span
    before, word, after = (_plain(part) for part in (use.text[:begin], use.text[begin:end], use.text[end:]))
    word = _shortened(word, LINE_WIDTH // 2)
    room = LINE_WIDTH - _width(word) - 2
    left = _shortened(before[::-1], max(room // 2, room - _width(after)))[::-1]
    return f"{left}[{word}]{_shortened(after, room - _width(left))}"


def _shortened(text: str, width: int) -> str:
    if _width(text) <= width:
        return text
    kept, used = [], 1
    for c in text:
        used += _width(c)
        if used > width:
            break
        kept.append(c)
    return "".join(kept) + "…"


def _width(text: Iterable[str]) -> int:
    """How wide a text is in Latin letters: Chinese characters count twice."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _plain(text: str) -> str:
    """The text in one line, what cannot be printed escaped."""
    text = " ".join(text.split(" ")).replace("\t", " ")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
