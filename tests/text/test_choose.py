"""Which tokeniser is chosen for which text."""

from __future__ import annotations

import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.text.chinese import choose_tokenizer
from tests.shared import SHARED

CHINESE = "数学是研究数量、结构以及空间等概念的学科（英語：mathematics），透過抽象化和邏輯推理的使用。"
JAPANESE = "数学は、数・量・図形などに関する学問であり、理学の一種である。"


@pytest.mark.parametrize(
    ("text", "name", "is_makeshift"),
    [
        ("The cat sat on the mat.", "en", False),
        ("Кошка сидит на ковре.", "en", False),
        ("고양이가 매트 위에 앉았다.", "en", False),
        ("القط يجلس على السجادة", "en", False),
        (CHINESE, "zh", False),
        ("他说 Python 3.11 比 Java 更好用，你觉得呢？", "zh", False),
        (CHINESE * 9 + "「の」是日語裡的助詞。", "zh", False),  # Chinese that quotes Japanese
        ("The word 河岸 (river bank) is written 河 and 岸 in Chinese and in Japanese.", "en", False),
        (JAPANESE, "en", True),
        ("แมวนั่งอยู่บนเสื่อ", "en", True),
    ],
)
def test_the_script_of_a_text_chooses_its_tokeniser(text: str, name: str, is_makeshift: bool) -> None:
    choice = choose_tokenizer(text)
    assert choice is not None
    assert (choice.tokenizer, choice.is_makeshift) == (name, is_makeshift)


@pytest.mark.parametrize("text", ["", " \n", "12 + 30 = 42!", "。。。"])
def test_a_text_without_letters_chooses_none(text: str) -> None:
    assert choose_tokenizer(text) is None


@given(st.text(st.characters(), max_size=200))
def test_any_text_has_one_line_of_reason(text: str) -> None:
    choice = choose_tokenizer(text)
    assert choice is None or "\n" not in choice.reason


@pytest.mark.parametrize(
    ("part", "name"),
    [("lm-zh/dev.txt.xz", "zh"), ("lm-wikitext2/valid.txt.xz", "en"), ("lm-en/dev-novels.txt.xz", "en")],
)
def test_any_stretch_of_a_real_corpus_chooses_the_same(part: str, name: str) -> None:
    path = SHARED / "data" / part
    if not path.is_file():
        pytest.skip(f"no text at {path}")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        text = file.read(600_000)
    stretches = [text[first : first + 2000] for first in range(0, len(text), 2000)]
    chosen = [choice.tokenizer for choice in map(choose_tokenizer, stretches) if choice]
    assert chosen.count(name) >= 0.99 * len(stretches)
