"""What a corpus is built from: files, globs, folders, stdin, compressed or not; and in which language."""

from __future__ import annotations

import bz2
import gzip
import itertools
import logging
import lzma
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import DataError, EncodingError, MissingExtraError, OutputError
from elmo.text import chinese
from elmo.train import read_text
from elmo.train.corpus import Corpus
from tests.train.small_corpus import build

TEXT = "".join(f"The {noun} crosses river {k}.\n" for k in range(9) for noun in ("cat", "dog"))
CHINESE = "苹果公司发布了新手机。我每天吃一个苹果。河岸上有一只狗！\n" * 4


def sentences(corpus: Corpus) -> list[str]:
    words = corpus.types.spellings(corpus.train)
    is_end = corpus.train == 1
    groups = itertools.groupby(zip(words, is_end, strict=True), key=lambda pair: bool(pair[1]))
    return [" ".join(word for word, _ in group) for is_boundary, group in groups if not is_boundary]


EXPECTED = [line.replace(".", " .") for line in TEXT.splitlines()]


def compressed(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        return pytest.importorskip("zstandard").compress(data)
    return {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "txt": bytes}[kind](data)


@pytest.mark.parametrize("kind", ["txt", "gz", "xz", "bz2", "zst"])
@pytest.mark.parametrize("is_stdin", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_compressed_text_gives_the_same_corpus_from_a_file_and_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_stdin: bool, processes: int
) -> None:
    path = tmp_path / f"text.{kind}"
    path.write_bytes(compressed(kind, TEXT.encode()))
    if is_stdin:
        with path.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            corpus = build("-", tmp_path / "corpus", heldout=0, processes=processes)
    else:
        corpus = build(path, tmp_path / "corpus", heldout=0, processes=processes)
    assert sentences(corpus) == EXPECTED
    assert corpus.tokenizer == "en"


def test_files_globs_and_folders_are_read_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = TEXT.splitlines(keepends=True)
    for k, name in enumerate(["b/2.txt", "b/1.txt", "b/c/3.txt", "a.txt", "b/.hidden", "z.log"]):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("".join(lines[3 * k : 3 * k + 3]))

    def found(*inputs: str) -> list[int]:
        corpus = build(inputs, tmp_path / "corpus" / "here", heldout=0)
        shutil.rmtree(tmp_path / "corpus")
        places = [EXPECTED.index(sentence) for sentence in sentences(corpus)]
        return [place // 3 for place in places[::3]]

    assert found("a.txt", "z.log") == [3, 5]
    assert found("b", "a.txt") == [1, 0, 2, 3]
    assert found("b/*.txt", "*.log") == [1, 0, 5]
    assert found("**/*.txt") == [3, 1, 0, 2]


@pytest.mark.parametrize("inputs", [["."], ["text"], ["*"], ["text", "corpus"], ["text/../corpus/*"]])
def test_a_corpus_does_not_become_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").mkdir()
    Path("text/a.txt").write_text(TEXT)
    place = "text/deep/corpus" if inputs == ["text"] else "corpus"
    build("text/a.txt", place)
    with pytest.raises(OutputError, match=f"{place}: expected a .* input.*use another") as caught:
        build(inputs, place)
    assert "\n" not in str(caught.value)
    build("text/a.txt", "text/deep/corpus")  # a single file beside it is no danger


@pytest.mark.parametrize("is_stdin", [False, True])
def test_chinese_is_cut_by_its_own_tokeniser_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_stdin: bool
) -> None:
    pytest.importorskip("jieba")
    caplog.set_level(logging.INFO, logger="elmo")
    path = tmp_path / "zh.txt"
    path.write_text("\n\n42\n" + CHINESE, encoding="utf-8")
    if is_stdin:
        with path.open(encoding="utf-8") as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            corpus = build("-", tmp_path / "corpus", heldout=0)
    else:
        corpus = build(path, tmp_path / "corpus", heldout=0)
    assert "using tokenizer zh: the text is mostly Chinese" in caplog.text
    assert sentences(corpus)[2] == "我 每天 吃 一个 苹果 。"
    assert Corpus.open(tmp_path / "corpus").tokenizer == "zh"
    named = build(path, tmp_path / "named", heldout=0, tokenizer="zh")
    assert named.manifest.files == corpus.manifest.files


def test_a_choice_by_the_text_is_made_once_and_reused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="elmo")
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    first = build(path, tmp_path / "corpus")
    assert build(path, tmp_path / "corpus").manifest == first.manifest
    assert "reusing the corpus" in caplog.text
    assert build(path, tmp_path / "corpus", tokenizer="whitespace").tokenizer == "whitespace"


def test_letters_are_looked_for_beyond_the_first_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jieba")
    monkeypatch.setattr(read_text, "_TEXT_BLOCK", 64)
    (tmp_path / "1.txt").write_text("1 2 3 !\n" * 40)
    (tmp_path / "2.txt").write_text(CHINESE, encoding="utf-8")
    files = [tmp_path / "1.txt", tmp_path / "2.txt"]
    assert build(files, tmp_path / "corpus", heldout=0).n_sentences == 40 + 12
    assert build(files, tmp_path / "corpus", heldout=0).tokenizer == "zh"
    (tmp_path / "1.txt").write_text("1 2 3 !\n" * 400)
    assert build(files, tmp_path / "corpus", heldout=0).tokenizer == "en"  # it does not look for ever


def test_pre_tokenised_chinese_names_the_tokeniser_for_raw_text_like_it(tmp_path: Path) -> None:
    path = tmp_path / "zh.txt"
    path.write_text("我 每天 吃 一个 苹果 。\n" * 3, encoding="utf-8")
    corpus = build(path, tmp_path / "corpus", input_format="tokens", heldout=0)
    assert (sentences(corpus)[0], corpus.tokenizer) == ("我 每天 吃 一个 苹果 。", "zh")
    rows = "".join(f"{k}\t{word}" + "\t_" * 8 + "\n" for k, word in enumerate(["我", "吃"], start=1))
    path.write_text((rows + "\n") * 3, encoding="utf-8")
    assert build(path, tmp_path / "conllu", input_format="conllu", heldout=0).tokenizer == "zh"


def test_japanese_is_cut_by_makeshift_and_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ja.txt"
    path.write_text("猫はマットの上に座った。\n" * 3, encoding="utf-8")
    corpus = build(path, tmp_path / "corpus", heldout=0)
    assert sentences(corpus)[0] == "猫 はマットの 上 に 座 った 。"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "using tokenizer en: the text is Japanese" in caplog.text


def test_chinese_without_jieba_says_what_to_install_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chinese._import_jieba.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    path = tmp_path / "zh.txt"
    path.write_text(CHINESE, encoding="utf-8")
    message = "the text is mostly Chinese; the tokenizer zh needs an extra: pip install 'pyelmo[zh]'"
    with pytest.raises(MissingExtraError, match=re.escape(message)):
        build(path, tmp_path / "new" / "corpus")
    assert [item.name for item in tmp_path.iterdir()] == ["zh.txt"]
    by_character = build(path, tmp_path / "corpus", tokenizer="en", heldout=0)
    assert sentences(by_character)[1] == "我 每 天 吃 一 个 苹 果 。"


@pytest.mark.parametrize("kind", ["txt", "gz"])
def test_a_binary_file_is_called_one_even_where_a_byte_is_not_utf_8(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"data.{kind}"
    path.write_bytes(compressed(kind, b"ab\xff\xfecd\n" + bytes(9)))
    for options in ({}, {"errors": "replace"}):
        with pytest.raises(DataError, match=r"data\.\w+: expected text, found a NUL at byte") as caught:
            build(path, tmp_path / "corpus", **options)
        assert not isinstance(caught.value, EncodingError)
    path.write_bytes(compressed(kind, b"ab\xff\xfecd\n" * 20))
    with pytest.raises(EncodingError, match="is not UTF-8"):
        build(path, tmp_path / "corpus")


@pytest.mark.parametrize(("given", "n_heldout"), [(2.0, 2), (0.5, 9), (1.0, 1)])
def test_a_number_from_a_command_line_may_be_a_float(tmp_path: Path, given: Any, n_heldout: int) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    corpus = build(path, tmp_path / "corpus", heldout=given)
    assert corpus.manifest.sizes.heldout_sentences == n_heldout
