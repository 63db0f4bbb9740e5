"""Chinese: words, positions, the guess of a tokenizer, and the missing extra."""

from __future__ import annotations

import importlib.util
import lzma
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import MissingExtraError
from elmo.text.chinese import guess_tokenizer
from elmo.text.tokenizers import load_tokenizer
from tests.shared import SHARED
from tests.text.hostile import assert_sound, texts

HAS_JIEBA = importlib.util.find_spec("jieba") is not None
needs_jieba = pytest.mark.skipif(not HAS_JIEBA, reason="jieba is not installed")

EXAMPLES = [
    ("我爱北京天安门。", "我|爱|北京|天安门|。"),
    ("小明硕士毕业于中国科学院计算所，后在日本深造", "小明|硕士|毕业|于|中国科学院|计算所|，|后|在|日本|深造"),
    ("他說：「清華大學在北京。」", "他|說|：|「|清華大學|在|北京|。|」"),
    ("价格是3.5万元（约50%）……", "价格|是|3.5|万元|（|约|50|%|）|……"),
    ("2011年10月4日——发布", "2011|年|10|月|4|日|——|发布"),
    ("全角　空格\u3000\u3000！！", "全角|空格|！！"),
    ("一件T恤", "一件|T恤"),
    ("访问google.com吧", "访问|google.com|吧"),
    ("I don't说中文 it's", "I|do|n't|说|中文|it|'s"),
    ("列奥纳多·达·芬奇", "列奥纳多|·|达|·|芬奇"),
    ("葛\U000e0100城\u0301", "葛\U000e0100|城\u0301"),
    ("𠮷野家", "𠮷|野家"),
    ("好👍🏽", "好|👍🏽"),
    ("<S>是词", "<S>|是|词"),
]


@needs_jieba
@pytest.mark.parametrize(("text", "cut"), EXAMPLES)
def test_examples_are_split_into_words(text: str, cut: str) -> None:
    assert load_tokenizer("zh")(text).tokens == tuple(cut.split("|"))


@needs_jieba
@given(texts)
@settings(max_examples=200, deadline=None)
def test_tokens_cover_every_text(text: str) -> None:
    assert_sound(load_tokenizer("zh")(text), text)


@needs_jieba
@pytest.mark.parametrize("unit", ["的", "a中", "一二三", "中a1"])
def test_text_without_punctuation_is_tokenized_in_linear_time(unit: str) -> None:
    text = unit * (10_000 // len(unit))
    assert_sound(load_tokenizer("zh")(text), text)


@needs_jieba
def test_a_long_latin_word_next_to_chinese_stays_whole() -> None:
    word = "a" * 1_000_000
    assert load_tokenizer("zh")(f"中文{word}中文").tokens == ("中文", word, "中文")


@needs_jieba
def test_the_tokenizer_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(load_tokenizer("zh")))
    assert copy("北京").tokens == ("北京",)


@pytest.mark.slow
@needs_jieba
def test_no_cache_is_read_or_written_and_nothing_is_printed(tmp_path: Path) -> None:
    planted = tmp_path / "jieba.cache"
    planted.write_bytes(b"planted")
    code = "from elmo.text.tokenizers import load_tokenizer; assert len(load_tokenizer('zh')('北京大学')) == 1"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]
    assert planted.read_bytes() == b"planted"


def test_without_jieba_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['jieba'] = None\n"
        "from elmo.errors import MissingExtraError\n"
        "from elmo.text.tokenizers import load_tokenizer\n"
        "try: load_tokenizer('zh')\n"
        "except MissingExtraError as error: sys.exit(str(error))\n"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert run.stderr.strip() == str(MissingExtraError("the Chinese tokenizer", extra="zh"))


CHINESE = "数学是研究数量、结构以及空间等概念的学科（英語：mathematics），透過抽象化和邏輯推理的使用。"
JAPANESE = "数学は、数・量・図形などに関する学問であり、理学の一種である。"


@pytest.mark.parametrize(
    ("text", "name", "is_fallback"),
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
def test_the_guess_depends_on_the_script_of_the_text(text: str, name: str, is_fallback: bool) -> None:
    choice = guess_tokenizer(text)
    assert choice is not None
    assert (choice.tokenizer, choice.is_fallback) == (name, is_fallback)


@pytest.mark.parametrize("text", ["", " \n", "12 + 30 = 42!", "。。。"])
def test_text_without_letters_gives_no_guess(text: str) -> None:
    assert guess_tokenizer(text) is None


@given(st.text(st.characters(), max_size=200))
def test_the_reason_has_one_line_for_any_text(text: str) -> None:
    choice = guess_tokenizer(text)
    assert choice is None or "\n" not in choice.reason


@pytest.mark.parametrize(
    ("part", "name"),
    [("lm-zh/dev.txt.xz", "zh"), ("lm-wikitext2/valid.txt.xz", "en"), ("lm-en/dev-novels.txt.xz", "en")],
)
def test_all_parts_of_a_real_corpus_give_the_same_guess(part: str, name: str) -> None:
    path = SHARED / "data" / part
    if not path.is_file():
        pytest.skip(f"no text at {path}")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        text = file.read(600_000)
    stretches = [text[first : first + 2000] for first in range(0, len(text), 2000)]
    chosen = [choice.tokenizer for choice in map(guess_tokenizer, stretches) if choice]
    assert chosen.count(name) >= 0.99 * len(stretches)
