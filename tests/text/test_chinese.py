"""Chinese words by jieba: simplified, traditional, mixed, hostile; and no cache from a shared folder."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from elmo.errors import MissingExtraError
from elmo.text.tokenizers import tokenizer
from tests.text.hostile import assert_sound, texts

HAS_JIEBA = importlib.util.find_spec("jieba") is not None
needs_jieba = pytest.mark.skipif(not HAS_JIEBA, reason="jieba is not installed")

EXAMPLES = [
    ("我爱北京天安门。", "我|爱|北京|天安门|。"),
    (
        "小明硕士毕业于中国科学院计算所，后在日本深造",
        "小明|硕士|毕业|于|中国科学院|计算所|，|后|在|日本|深造",
    ),
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
def test_examples_are_cut_into_words(text: str, cut: str) -> None:
    assert tokenizer("zh")(text).tokens == tuple(cut.split("|"))


@needs_jieba
@given(texts)
@settings(max_examples=200, deadline=None)
def test_every_text_keeps_the_law(text: str) -> None:
    assert_sound(tokenizer("zh")(text), text)


@needs_jieba
@pytest.mark.parametrize("unit", ["的", "a中", "一二三", "中a1"])
def test_a_text_without_punctuation_is_cut_without_a_stop(unit: str) -> None:
    text = unit * (10_000 // len(unit))
    assert_sound(tokenizer("zh")(text), text)


@needs_jieba
def test_a_long_latin_word_stays_whole_beside_chinese() -> None:
    word = "a" * 1_000_000
    assert tokenizer("zh")(f"中文{word}中文").tokens == ("中文", word, "中文")


@needs_jieba
def test_the_tokeniser_travels_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(tokenizer("zh")))
    assert copy("北京").tokens == ("北京",)


@needs_jieba
def test_no_cache_is_read_or_written_and_nothing_is_printed(tmp_path: Path) -> None:
    planted = tmp_path / "jieba.cache"
    planted.write_bytes(b"planted")
    code = "from elmo.text.tokenizers import tokenizer; assert len(tokenizer('zh')('北京大学')) == 1"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]
    assert planted.read_bytes() == b"planted"


def test_without_jieba_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['jieba'] = None\n"
        "from elmo.errors import MissingExtraError\n"
        "from elmo.text.tokenizers import tokenizer\n"
        "try: tokenizer('zh')\n"
        "except MissingExtraError as error: sys.exit(str(error))\n"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert run.stderr.strip() == str(MissingExtraError("the Chinese tokenizer", extra="zh"))
