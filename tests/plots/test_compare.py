"""Pictures of comparisons: formats, content, and fonts for Chinese."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from elmo import DataError, OutputError
from elmo.embed.comparison import Comparison, Use

pytest.importorskip("matplotlib")
from elmo.plots import figure
from elmo.plots.compare import _format_use, draw_comparison, draw_words
from elmo.plots.figure import BUNDLED_FONT, find_fonts


def comparison(*texts: str, word: str = "bank", layers: int = 3) -> Comparison:
    uses = tuple(Use(text, (text.index(word), text.index(word) + len(word)), (word,)) for text in texts)
    matrix = np.linspace(-0.2, 1.0, len(uses) ** 2).reshape(len(uses), len(uses))
    names = [*map(str, range(layers)), "average", "sense"]
    return Comparison(word, uses, dict.fromkeys(names, matrix))


BANKS = comparison("I sat by the bank of the river .", "The bank lent me $5, then $6 .")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")]
)
def test_the_suffix_is_the_format_and_the_same_comparison_gives_the_same_bytes(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    for name in "ab":
        draw_comparison(BANKS, tmp_path / f"{name}{suffix}")
    raw = (tmp_path / f"a{suffix}").read_bytes()
    assert raw.startswith(magic)
    assert (tmp_path / f"b{suffix}").read_bytes() == raw
    assert len(list(tmp_path.iterdir())) == 2


def test_sentences_values_and_layers_are_in_the_picture(tmp_path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        draw_comparison(BANKS, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    for part in (
        "layer 0",
        "layer 2",
        "average",
        ">S1<",
        ">-0.20<",
        ">1.00<",
        "lent me $5, then $6",
        "by the [bank] of",
    ):
        assert part in text, part


@pytest.mark.parametrize("name", ["x.bmp", "x", "file/x.png", "x.png/"])
def test_invalid_paths_are_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.png").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="x"):
        draw_comparison(BANKS, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "x.png"]


@pytest.mark.slow
def test_one_panel_and_many_sentences_fit(tmp_path: Path) -> None:
    draw_comparison(comparison("a bank", "the bank", layers=0), tmp_path / "one.png")
    draw_comparison(comparison(*[f"bank {k}" for k in range(30)], layers=1), tmp_path / "many.png")
    assert len(list(tmp_path.iterdir())) == 2


def test_characters_without_a_font_give_numbers_and_a_one_line_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="elmo"):
        draw_comparison(comparison("a bank \U00012000", "the bank"), tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()
    messages = [record.getMessage() for record in caplog.records if record.name == "elmo.plots.compare"]
    assert len(messages) == 1
    assert messages[0].startswith("no font can draw \U00012000: showing numbers instead of sentences; ")
    assert "apt install fonts-noto-cjk" in messages[0]


def test_chinese_is_drawn_with_an_installed_font_or_the_bundled_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fonts, missing = find_fonts("苹果 bank")
    assert fonts[0] == "DejaVu Sans"
    assert (len(fonts), missing) == (2, "")
    with caplog.at_level(logging.WARNING):
        draw_comparison(comparison("我吃苹果", "苹果公司", word="苹果"), tmp_path / "x.png")
    assert not caplog.records  # matplotlib warns about characters that it cannot draw


def test_without_installed_fonts_the_bundled_one_has_common_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from matplotlib import font_manager

    monkeypatch.setattr("elmo.plots.figure.CJK_FONTS", ())
    simplified, traditional = ("我们每天在学校里学习汉语，读书看报。", "我們每天在學校裡學習漢語，讀書看報。「臺灣」")
    assert find_fonts(simplified + traditional) == (["DejaVu Sans", BUNDLED_FONT], "")
    assert Path(font_manager.findfont(BUNDLED_FONT, fallback_to_default=False)).name == "cjk.ttf"
    with caplog.at_level(logging.WARNING):
        draw_comparison(comparison("我吃苹果", "蘋果 苹果", word="苹果"), tmp_path / "x.pdf")
    assert not caplog.records
    assert find_fonts("苹\U00012000")[1] == "\U00012000"


def test_a_font_that_was_installed_after_matplotlib_listed_the_fonts_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from matplotlib import font_manager

    sign = "\ua000"  # a syllable of Yi, which no font of the list has
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    monkeypatch.setattr(font_manager, "X11FontDirectories", [str(tmp_path)])
    monkeypatch.setattr(font_manager, "OSXFontDirectories", [str(tmp_path)])
    assert find_fonts(sign)[1] == sign
    _write_font(tmp_path / "new.ttf", family="Unifont", character=sign)
    assert find_fonts(sign) == (["DejaVu Sans", "Unifont"], "")
    with caplog.at_level(logging.WARNING):
        draw_comparison(comparison(f"{sign} bank", "the bank"), tmp_path / "x.png")
    assert not caplog.records


def _write_font(path: Path, *, family: str, character: str) -> None:
    """Write a font that has one character, under a family name that elmo knows."""
    from fontTools.ttLib import TTFont

    font = TTFont(Path(figure.__file__).parent / "fonts" / "cjk.ttf")
    for table in font["cmap"].tables:
        table.cmap[ord(character)] = table.cmap[ord("书")]
    for record in font["name"].names:
        if record.nameID in (1, 4, 16):
            record.string = family
    font.save(path)


def test_a_font_that_was_removed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import font_manager

    gone = font_manager.FontEntry(fname=str(tmp_path / "gone.ttf"), name="Noto Sans CJK SC")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [gone])
    assert find_fonts("书") == ([BUNDLED_FONT], "")


def test_a_long_sentence_is_shortened_around_its_word() -> None:
    (use,) = comparison("word " * 60 + "the bank of " + "more " * 60).uses
    line = _format_use(use)
    assert len(line) <= 92
    assert line.startswith("…")
    assert line.endswith("…")
    assert "the [bank] of" in line
    (short,) = comparison("a\tbank\n" + "字" * 80).uses
    assert _format_use(short).startswith("a [bank]\\n字")
    assert len(_format_use(short)) < 60


def test_several_words_share_one_picture_and_one_scale(tmp_path: Path) -> None:
    from matplotlib import rc_context

    other = comparison("We play .", "a long play", "plays", word="play", layers=0)
    with rc_context({"svg.fonttype": "none"}):
        draw_words([BANKS, other], tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    for part in ("“bank”", "“play”", "by the [bank] of", "a long [play]", "[play]s", ">5<", ">-0.20<"):
        assert part in text, part
    assert ">6<" not in text  # sentences are numbered across words


def test_a_word_without_a_font_is_shown_by_numbers_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from matplotlib import rc_context

    cuneiform = comparison("a \U00012000", "the \U00012000", word="\U00012000", layers=0)
    with caplog.at_level("WARNING"), rc_context({"svg.fonttype": "none"}):
        draw_words([BANKS, cuneiform], tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "“bank”" in text
    assert "a word" in text
    assert "\U00012000" not in text
    assert any("no font can draw" in record.getMessage() for record in caplog.records)


def test_a_title_is_not_parsed_as_math_and_words_need_sense_vectors(tmp_path: Path) -> None:
    draw_words([comparison(r"a $\foo$", r"the $\foo$", word=r"$\foo$", layers=0)], tmp_path / "x.png")
    bare = Comparison("bank", BANKS.uses, {"0": BANKS.matrices["0"]})
    for words in ([], [bare]):
        with pytest.raises(DataError, match="must have layers='sense'"):
            draw_words(words, tmp_path / "y.png")
