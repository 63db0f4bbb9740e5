"""A comparison as a picture: whole files, every font at hand, and a word to the user where one is missing."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from elmo import DataError, OutputError
from elmo.embed.comparison import Comparison, Use

pytest.importorskip("matplotlib")
from elmo.plots.compare import _line, draw, draw_words
from elmo.plots.figure import find_fonts


def comparison(*texts: str, word: str = "bank", layers: int = 3) -> Comparison:
    uses = tuple(Use(text, (text.index(word), text.index(word) + len(word)), (word,)) for text in texts)
    matrix = np.linspace(-0.2, 1.0, len(uses) ** 2).reshape(len(uses), len(uses))
    names = [*map(str, range(layers)), "average"]
    return Comparison(word, uses, dict.fromkeys(names, matrix))


BANKS = comparison("I sat by the bank of the river .", "The bank lent me $5, then $6 .")


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")]
)
def test_the_suffix_says_the_format_and_the_same_comparison_gives_the_same_bytes(
    tmp_path: Path, suffix: str, magic: bytes
) -> None:
    for name in "ab":
        draw(BANKS, tmp_path / f"{name}{suffix}")
    raw = (tmp_path / f"a{suffix}").read_bytes()
    assert raw.startswith(magic)
    assert (tmp_path / f"b{suffix}").read_bytes() == raw
    assert len(list(tmp_path.iterdir())) == 2


def test_sentences_values_and_layers_are_in_the_picture(tmp_path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        draw(BANKS, tmp_path / "x.svg")
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
def test_what_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.png").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="x"):
        draw(BANKS, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "x.png"]


def test_one_panel_and_many_sentences_fit(tmp_path: Path) -> None:
    draw(comparison("a bank", "the bank", layers=0), tmp_path / "one.png")
    draw(comparison(*[f"bank {k}" for k in range(30)], layers=1), tmp_path / "many.png")
    assert len(list(tmp_path.iterdir())) == 2


def test_characters_without_a_font_give_numbers_and_one_line_of_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="elmo"):
        draw(comparison("a bank \U00012000", "the bank"), tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()
    messages = [record.getMessage() for record in caplog.records if record.name == "elmo.plots.compare"]
    assert len(messages) == 1
    assert messages[0].startswith(
        "no font can draw \U00012000: the sentences are shown as numbers only; "
    )
    assert "apt install fonts-noto-cjk" in messages[0]


def test_chinese_is_drawn_where_a_font_is_installed_and_else_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fonts, missing = find_fonts("苹果 bank")
    assert fonts[0] == "DejaVu Sans"
    with caplog.at_level(logging.WARNING, logger="elmo.plots.compare"):
        draw(comparison("我吃苹果", "苹果公司", word="苹果"), tmp_path / "x.png")
    told = [record for record in caplog.records if record.name == "elmo.plots.compare"]
    assert bool(told) == bool(missing)
    assert bool(missing) == (len(fonts) == 1)


def test_a_long_sentence_is_shortened_around_its_word() -> None:
    (use,) = comparison("word " * 60 + "the bank of " + "more " * 60).uses
    line = _line(use)
    assert len(line) <= 92
    assert line.startswith("…")
    assert line.endswith("…")
    assert "the [bank] of" in line
    (short,) = comparison("a\tbank\n" + "字" * 80).uses
    assert _line(short).startswith("a [bank]\\n字")
    assert len(_line(short)) < 60


def test_several_words_share_one_picture_and_one_scale(tmp_path: Path) -> None:
    from matplotlib import rc_context

    other = comparison("We play .", "a long play", "plays", word="play", layers=0)
    with rc_context({"svg.fonttype": "none"}):
        draw_words([BANKS, other], tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    for part in ("“bank”", "“play”", "by the [bank] of", "a long [play]", "[play]s", ">5<", ">-0.20<"):
        assert part in text, part
    assert ">6<" not in text  # sentences are counted through


def test_a_word_that_no_font_has_is_left_to_its_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from matplotlib import rc_context

    strange = comparison("a \U00012000", "the \U00012000", word="\U00012000", layers=0)
    with caplog.at_level("WARNING"), rc_context({"svg.fonttype": "none"}):
        draw_words([BANKS, strange], tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert "“bank”" in text
    assert "a word" in text
    assert "\U00012000" not in text
    assert any("no installed font" in record.getMessage() for record in caplog.records)


def test_a_title_is_no_formula_and_words_need_their_average(tmp_path: Path) -> None:
    draw_words([comparison(r"a $\foo$", r"the $\foo$", word=r"$\foo$", layers=0)], tmp_path / "x.png")
    bare = Comparison("bank", BANKS.uses, {"0": BANKS.matrices["0"]})
    for words in ([], [bare]):
        with pytest.raises(DataError, match="average of their layers"):
            draw_words(words, tmp_path / "y.png")
