from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import json
import logging
import lzma
import os
import re
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ConfigError, DataError, ElmoError, EncodingError, MissingExtraError, OutputError
from elmo.text import chinese
from elmo.text.lines import read_blocks, read_lines
from elmo.text.reader import InputFormat, read_sentences
from elmo.text.tokenizers import Tokens, load_tokenizer
from elmo.train import corpus_builder, read_text
from elmo.train import vocabulary as word_types
from elmo.train.corpus import Corpus, hash_json
from elmo.train.corpus_builder import reopen_corpus, replace_folder
from elmo.train.read_text import BuildProgress, tokenize_block
from tests.shared import SHARED
from tests.train.small_corpus import TEXT, build, build_tokens, names


def words_of(corpus: Corpus, part: str = "train") -> list[list[str]]:
    stream = getattr(corpus, part)
    assert len(stream) == 0 or stream[-1] == 1
    words = corpus.types.spellings(stream)
    sentences: list[list[str]] = [[]]
    for number, word in zip(stream, words, strict=True):
        if number == 1:
            sentences.append([])
        else:
            sentences[-1].append(word)
    return sentences[:-1]


def expected_types(sentences: list[list[str]]) -> tuple[list[str], list[int]]:
    """By falling count, then by first appearance, as a dictionary has it."""
    counts = Counter(itertools.chain(*sentences))
    ranked = sorted(counts, key=lambda word: -counts[word])
    return ["<S>", "</S>", "<UNK>", *ranked], [len(sentences)] * 2 + [0] + [counts[word] for word in ranked]


def test_a_small_text_becomes_ids_by_falling_count(file: Path, tmp_path: Path) -> None:
    corpus = build_tokens(file, tmp_path / "corpus")
    sentences = [line.split() for line in TEXT.split("\n") if line]
    assert words_of(corpus) == sentences
    types, counts = expected_types(sentences)
    assert (list(corpus.types), corpus.counts.tolist()) == (types, counts)
    assert (corpus.n_tokens, corpus.n_sentences) == (14, 4)
    assert len(corpus.train) == 18
    assert corpus.vocab(6).words == ("<S>", "</S>", "<UNK>", "the", "cat", "sat")
    assert len(corpus.vocab()) == len(corpus.vocab(1000)) == len(types)
    assert not corpus.train.flags.writeable
    with pytest.raises(ConfigError, match="n_vocab must be above 3"):
        corpus.vocab(3)


def test_words_are_spelled_from_the_map(file: Path, tmp_path: Path) -> None:
    file.write_text("猫 naïve a\n猫 x\n", encoding="utf-8")
    types = build_tokens(file, tmp_path / "corpus").types
    assert [types[k] for k in (-1, 3, 4)] == ["x", "猫", "naïve"]
    padded, lengths = types.padded_bytes(np.array([4, 3, 5]), 4)
    assert lengths.tolist() == [4, 3, 1]
    assert padded.tolist() == [list("naïve".encode()[:4]), [*"猫".encode(), 0], [97, 0, 0, 0]]
    with pytest.raises(IndexError):
        types[7]


@pytest.mark.parametrize("limit", [3, 1 << 20])
def test_words_spelled_like_a_boundary_are_kept_and_count_as_unknown(
    file: Path, tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_text, "BLOCK_BYTES", 20)
    monkeypatch.setattr(read_text, "WordNumbering", lambda where: word_types.WordNumbering(where, max_in_memory=limit))
    file.write_text("<S> a <unk> </S> <S>\n<UNK> <s> </s>\n<S> <S>\n")
    corpus = build_tokens(file, tmp_path / "corpus")
    assert words_of(corpus) == [["<S>", "a", "<unk>", "</S>", "<S>"], ["<UNK>", "<s>", "</s>"], ["<S>"] * 2]
    assert list(corpus.types) == ["<S>", "</S>", "<UNK>", "a", "<unk>", "<s>", "</s>"]
    assert corpus.vocab().words == corpus.vocab(99).words == tuple(corpus.types)
    assert corpus.counts.tolist() == [3, 3, 6, 1, 1, 1, 1]
    assert corpus.train.tolist() == [7, 3, 4, 8, 7, 1, 2, 5, 6, 1, 7, 7, 1]


def test_blank_lines_are_nothing_or_sentences_on_request(file: Path, tmp_path: Path) -> None:
    file.write_text("\n\na b\n \t\nc\n\n")
    assert words_of(build_tokens(file, tmp_path / "one")) == [["a", "b"], ["c"]]
    assert words_of(build_tokens(file, tmp_path / "two", blank_lines=True)) == [
        [], [], ["a", "b"], [], ["c"], [],
    ]  # fmt: skip


SPACES = st.text(alphabet=" \t\r\n\n", min_size=1, max_size=4)
WORDS = st.text(alphabet="ab\u3000\x85\u2028\xa0\x0bé猫\ufeff", min_size=1, max_size=3)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(SPACES, WORDS), min_size=4, max_size=60), st.integers(1, 20), st.booleans())
def test_the_fast_path_reads_what_the_text_room_reads(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, str]], block: int, blank: bool
) -> None:
    folder = tmp_path_factory.mktemp("fast")
    path = folder / "text.txt"
    path.write_bytes(b"a\nb" + "".join(itertools.chain(*parts)).encode())
    expected = [
        list(sentence.tokens.tokens)
        for sentence in read_sentences([path], tokenizer=load_tokenizer("whitespace"), input_format="tokens")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_text, "BLOCK_BYTES", block)
        corpus = build_tokens(path, folder / "corpus", blank_lines=blank)
    assert words_of(corpus) == [words for words in expected if words or blank]


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet="ab \r\né\ufeff", max_size=40), st.integers(1, 8))
def test_blocks_hold_the_lines_of_a_file(tmp_path_factory: pytest.TempPathFactory, text: str, n_bytes: int) -> None:
    path = tmp_path_factory.mktemp("blocks") / "text.txt"
    path.write_bytes(text.encode())
    data = b""
    for block in read_blocks(path, n_bytes=n_bytes, cut_after=4):
        assert block.line == data.count(b"\n") + 1
        data += block.data
        assert block.is_open != data.endswith(b"\n")
    lines = data.decode().split("\n")[:-1]
    assert [line.removesuffix("\r") for line in lines] == [line.text for line in read_lines(path)]


@pytest.mark.parametrize("errors", ["replace", "skip", "surrogateescape"])
def test_policies_for_other_bytes_are_those_of_the_text_room(file: Path, tmp_path: Path, errors: Any) -> None:
    file.write_bytes(b"a b\nc \xff d\ne\n" * 3)
    corpus = build_tokens(file, tmp_path / "corpus", errors=errors)
    expected = [
        list(sentence.tokens.tokens)
        for sentence in read_sentences([file], tokenizer=load_tokenizer("en"), input_format="tokens", errors=errors)
    ]
    assert words_of(corpus) == expected
    sizes = corpus.manifest.sizes
    assert (sizes.skipped_lines, sizes.repaired_lines) == ((3, 0) if errors == "skip" else (0, 3))


def test_bytes_that_are_not_utf_8_are_named_by_line_and_byte(file: Path, tmp_path: Path) -> None:
    file.write_bytes(b"a b\n" * 1000 + b"ab \xff\n")
    with pytest.raises(EncodingError, match=r"text\.txt:1001: byte 4 of the line \(0xff\) is not UTF-8"):
        build_tokens(file, tmp_path / "corpus")
    file.write_bytes(b"ab " * 2_000_000 + b"\xff")  # one line, which comes in pieces
    with pytest.raises(EncodingError, match=r"text\.txt:1: byte 6000001 of the line"):
        build_tokens(file, tmp_path / "corpus")
    assert names(tmp_path) == ["text.txt"]


@pytest.mark.slow
def test_a_text_on_one_line_is_cut_into_sentences(file: Path, tmp_path: Path) -> None:
    words = [f"w{k % 977}" for k in range(1_100_000)]
    file.write_text("x y\n" + " ".join(words) + "\nz")
    corpus = build_tokens(file, tmp_path / "corpus", max_sentence=1000)
    sentences = words_of(corpus)
    assert [len(sentence) for sentence in sentences] == [2, *[1000] * 1100, 1]
    assert list(itertools.chain(*sentences[1:-1])) == words


def test_raw_text_is_split_and_tokenized(file: Path, tmp_path: Path) -> None:
    file.write_text("I don't. You do.\r\n\nA third one.\n")
    corpus = build(file, tmp_path / "one", heldout=0, split=True)
    assert words_of(corpus) == [["I", "do", "n't", "."], ["You", "do", "."], ["A", "third", "one", "."]]
    assert len(words_of(build(file, tmp_path / "two", heldout=0, split=False))) == 2


@pytest.mark.parametrize("split", [False, True])
def test_a_line_that_comes_in_pieces_stays_one_line(split: bool) -> None:
    options: Any = {"tokenize": load_tokenizer("en"), "split": split}
    pieces = tokenize_block(b"a b\nc d ", is_open=True, **options) + tokenize_block(b"\n", is_open=False, **options)
    pieces += tokenize_block(b"e ", is_open=True, **options) + tokenize_block(b"f\n\n", is_open=False, **options)
    assert pieces.split(b"\t") == b"a b \n c d \n e f \n \n ".split(b" ")


def test_conllu_gives_its_words_with_their_spaces(file: Path, tmp_path: Path) -> None:
    forms = ["1 000", "cats", "."]
    block = "".join(f"{k}\t{form}" + "\t_" * 8 + "\n" for k, form in enumerate(forms, start=1)) + "\n"
    file.write_text(block * 3)
    assert words_of(build(file, tmp_path / "c", input_format="conllu", heldout=0)) == [forms] * 3


@pytest.mark.slow
def test_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_text, "_TEXT_BLOCK", 1 << 13)
    paths = []
    for k in range(3):
        paths.append(tmp_path / f"{k}.txt")
        paths[-1].write_text("".join(f"Line {k} of {j}, isn't it? Yes é猫.\n" for j in range(1000)))
    one, three = (build(paths, tmp_path / str(n), processes=n, split=True) for n in (1, 3))
    assert one.manifest.files == three.manifest.files
    assert one.n_sentences > 5000


def test_a_tokenizer_of_the_callers_own_may_be_used(file: Path, tmp_path: Path) -> None:
    class Halves:
        name = "halves"

        def __call__(self, text: str) -> Tokens:
            return Tokens.from_words([text[: len(text) // 2].strip() or "-", text[len(text) // 2 :].strip() or "-"])

    corpus = build(file, tmp_path / "corpus", tokenizer=Halves(), split=False, heldout=0)
    assert words_of(corpus)[0] == ["the c", "at sat"]

    class Tabs(Halves):
        def __call__(self, text: str) -> Tokens:
            return Tokens.from_words(["a\tb"])

    with pytest.raises(DataError, match="tokens of the tokenizer halves must not contain tabs"):
        build(file, tmp_path / "other", tokenizer=Tabs(), heldout=0)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=8), min_size=12, max_size=80),
    st.integers(6, 30),
    st.booleans(),
)
def test_types_that_do_not_fit_in_memory_give_the_same_corpus(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[list[int]], limit: int, deduplicate: bool
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    path = folder / "text.txt"
    path.write_text("".join(" ".join(f"w{k}" for k in line) + "\n" for line in numbers))
    whole = build_tokens(
        path, folder / "whole", heldout=3, deduplicate=deduplicate and len(set(map(tuple, numbers))) > 3
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_text, "BLOCK_BYTES", 40)
        patch.setattr(corpus_builder, "_CHUNK", 16)
        patch.setattr(read_text, "WordNumbering", lambda where: word_types.WordNumbering(where, max_in_memory=limit))
        pieces = build_tokens(path, folder / "pieces", heldout=3, deduplicate=whole.manifest.options["deduplicate"])
    assert pieces.manifest.files == whole.manifest.files
    sentences = words_of(whole)
    types, counts = expected_types(sentences)
    assert sorted(whole.counts[3:].tolist()) == sorted([0] * (len(whole.types) - len(types)) + counts[3:])
    assert whole.counts[: len(counts)].tolist() == counts
    assert sum(map(len, sentences)) == whole.n_tokens


def many(path: Path, n: int) -> list[str]:
    lines = [f"sentence number {k} of {n}" for k in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return lines


@pytest.mark.parametrize(
    ("n", "heldout", "n_heldout"),
    [(10, None, 2), (50, None, 5), (3000, None, 30), (400, 0.1, 40), (400, 7, 7), (400, 0, 0)],
)
def test_sentences_are_held_out_and_none_is_lost(
    file: Path, tmp_path: Path, n: int, heldout: Any, n_heldout: int
) -> None:
    lines = many(file, n)
    corpus = build_tokens(file, tmp_path / "corpus", heldout=heldout)
    held, kept = ([" ".join(words) for words in words_of(corpus, part)] for part in ("heldout", "train"))
    assert len(held) == n_heldout == corpus.manifest.sizes.heldout_sentences
    assert [line for line in lines if line in set(held)] == held  # in the order of the text
    assert [line for line in lines if line not in set(held)] == kept
    assert corpus.counts[1] == len(kept)
    assert corpus.counts[3:].sum() == corpus.n_tokens  # what is held out is not counted


def test_another_seed_holds_out_others_and_order_is_kept_in_runs(file: Path, tmp_path: Path) -> None:
    many(file, 2000)
    held = {
        (seed, keep): [
            int(words[2])
            for words in words_of(
                build_tokens(file, tmp_path / f"{seed}{keep}", heldout=128, seed=seed, keep_order=keep), "heldout"
            )
        ]
        for seed in (0, 1)
        for keep in (False, True)
    }
    assert len({tuple(numbers) for numbers in held.values()}) == 4
    for (_, keep), numbers in held.items():
        n_runs = 1 + sum(b != a + 1 for a, b in itertools.pairwise(numbers))
        assert n_runs <= 3 if keep else n_runs > 100


def test_what_is_held_out_by_default_stays_small(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_builder, "_DEFAULT_TOKENS", 2000)
    file.write_text(("word " * 90 + "\n") * 4000)
    corpus = build_tokens(file, tmp_path / "corpus", heldout=None)
    assert 1900 < len(corpus.heldout) <= 2000


def test_other_files_may_be_held_out(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "dev.txt"
    other.write_text("the zebra sat\n")
    corpus = build_tokens(file, tmp_path / "corpus", heldout=None, heldout_file=other)
    assert words_of(corpus, "heldout") == [["the", "zebra", "sat"]]
    assert len(words_of(corpus)) == 4
    assert corpus.types[-1] == "zebra"
    assert corpus.counts[-1] == 0
    with pytest.raises(ConfigError, match="heldout and heldout_file cannot be combined"):
        build_tokens(file, tmp_path / "corpus", heldout=0.1, heldout_file=other)
    other.write_text("\n\n")
    with pytest.raises(DataError, match="the held-out files must contain text"):
        build_tokens(file, tmp_path / "other", heldout=None, heldout_file=other)


def test_duplicates_are_left_out_on_request(file: Path, tmp_path: Path) -> None:
    file.write_text("a b\nb a\na b\nc\na b \nb a a\nc\n")
    corpus = build_tokens(file, tmp_path / "corpus", deduplicate=True)
    assert words_of(corpus) == [["a", "b"], ["b", "a"], ["c"], ["b", "a", "a"]]
    assert corpus.manifest.sizes.duplicates == 3
    assert corpus.counts[3:].tolist() == [4, 3, 1]


def test_progress_counts_bytes_and_tokens(file: Path, tmp_path: Path) -> None:
    file.write_text(TEXT * 100_000)
    seen: list[BuildProgress] = []
    corpus = build_tokens(file, tmp_path / "corpus", on_progress=seen.append)
    reads = [one for one in seen if one.step == "read"]
    assert [one.done for one in reads] == sorted(one.done for one in reads)
    assert reads[-1].done == reads[-1].total == file.stat().st_size
    assert reads[-1].n_tokens == seen[-1].done == seen[-1].total == len(corpus.train)
    assert len(reads) > 3


WIKITEXT = SHARED / "data" / "lm-wikitext2"


@pytest.mark.slow
@pytest.mark.skipif(not WIKITEXT.is_dir(), reason=f"no corpus at {WIKITEXT}")
def test_wikitext_2_has_the_published_numbers_of_predictions(tmp_path: Path) -> None:
    corpus = build(
        WIKITEXT / "train.txt.xz",
        tmp_path / "corpus",
        heldout_file=WIKITEXT / "valid.txt.xz",
        input_format="tokens",
        blank_lines=True,
    )
    assert (len(corpus.train), len(corpus.heldout)) == (2_088_628, 217_646)
    # 33,278 published ones, of which one is our </S>, and the <S> and <UNK> that this text does not have
    assert len(corpus.types) == 33_278 + 2


CHINESE_FILE = SHARED / "data" / "lm-zh" / "dev.txt.xz"


@pytest.mark.skipif(not CHINESE_FILE.is_file(), reason=f"no text at {CHINESE_FILE}")
def test_raw_chinese_is_parted_into_sentences_and_words(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    lines = [line.text for line in itertools.islice(read_lines(CHINESE_FILE), 60)]
    path = tmp_path / "zh.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    corpus = build(path, tmp_path / "corpus", tokenizer="zh", heldout=0)
    assert "".join(itertools.chain(*words_of(corpus))) == "".join("".join(lines).split())
    assert corpus.n_sentences > 1.5 * len(lines)
    assert corpus.n_tokens / corpus.n_sentences < 100


RAW_TEXT = "".join(f"The {noun} crosses river {k}.\n" for k in range(9) for noun in ("cat", "dog"))
CHINESE = "苹果公司发布了新手机。我每天吃一个苹果。河岸上有一只狗！\n" * 4


def sentences(corpus: Corpus) -> list[str]:
    words = corpus.types.spellings(corpus.train)
    is_end = corpus.train == 1
    groups = itertools.groupby(zip(words, is_end, strict=True), key=lambda pair: bool(pair[1]))
    return [" ".join(word for word, _ in group) for is_boundary, group in groups if not is_boundary]


EXPECTED = [line.replace(".", " .") for line in RAW_TEXT.splitlines()]


def compressed(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        return pytest.importorskip("zstandard").compress(data)
    return {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "txt": bytes}[kind](data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["txt", "gz", "xz", "bz2", "zst"])
@pytest.mark.parametrize("is_stdin", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_compressed_text_gives_the_same_corpus_from_a_file_and_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_stdin: bool, processes: int
) -> None:
    path = tmp_path / f"text.{kind}"
    path.write_bytes(compressed(kind, RAW_TEXT.encode()))
    if is_stdin:
        with path.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            corpus = build("-", tmp_path / "corpus", heldout=0, processes=processes)
    else:
        corpus = build(path, tmp_path / "corpus", heldout=0, processes=processes)
    assert sentences(corpus) == EXPECTED
    assert corpus.tokenizer == "en"


def test_files_globs_and_folders_are_read_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = RAW_TEXT.splitlines(keepends=True)
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
    Path("text/a.txt").write_text(RAW_TEXT)
    place = "text/deep/corpus" if inputs == ["text"] else "corpus"
    build("text/a.txt", place)
    with pytest.raises(OutputError, match=f"{place} must not .* input.*use another") as caught:
        build(inputs, place)
    assert "\n" not in str(caught.value)
    build("text/a.txt", "text/deep/corpus")  # a single file next to it is fine


@pytest.mark.slow
@pytest.mark.parametrize("is_stdin", [False, True])
def test_the_chinese_tokenizer_is_chosen_automatically(
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
    assert "using the tokenizer zh: the text is mostly Chinese" in caplog.text
    assert sentences(corpus)[2] == "我 每天 吃 一个 苹果 。"
    assert Corpus.open(tmp_path / "corpus").tokenizer == "zh"
    named = build(path, tmp_path / "named", heldout=0, tokenizer="zh")
    assert named.manifest.files == corpus.manifest.files


def test_a_choice_by_the_text_is_made_once_and_reused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="elmo")
    path = tmp_path / "text.txt"
    path.write_text(RAW_TEXT)
    first = build(path, tmp_path / "corpus")
    assert build(path, tmp_path / "corpus").manifest == first.manifest
    assert "reusing the corpus" in caplog.text
    assert build(path, tmp_path / "corpus", tokenizer="whitespace").tokenizer == "whitespace"


def test_letters_are_looked_for_beyond_the_first_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jieba")
    monkeypatch.setattr(read_text, "_TEXT_BLOCK", 64)
    (tmp_path / "1.txt").write_text("1 2 3 !\n" * 40)
    (tmp_path / "2.txt").write_text(CHINESE, encoding="utf-8")
    files = [tmp_path / "1.txt", tmp_path / "2.txt"]
    assert build(files, tmp_path / "corpus", heldout=0, split=True).n_sentences == 40 + 12
    assert build(files, tmp_path / "corpus", heldout=0).tokenizer == "zh"
    (tmp_path / "1.txt").write_text("1 2 3 !\n" * 400)
    assert build(files, tmp_path / "corpus", heldout=0).tokenizer == "en"  # it does not look for ever


def test_pre_tokenized_chinese_names_the_tokenizer_for_raw_text_like_it(tmp_path: Path) -> None:
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
    assert "using the tokenizer en: the text is Japanese" in caplog.text


def test_chinese_without_jieba_says_what_to_install_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chinese._import_jieba.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    path = tmp_path / "zh.txt"
    path.write_text(CHINESE, encoding="utf-8")
    message = "the text is mostly Chinese; the tokenizer zh requires an optional dependency: pip install 'pyelmo[zh]'"
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
        with pytest.raises(DataError, match=r"data\.\w+: found a NUL at byte") as caught:
            build(path, tmp_path / "corpus", **options)
        assert not isinstance(caught.value, EncodingError)
    path.write_bytes(compressed(kind, b"ab\xff\xfecd\n" * 20))
    with pytest.raises(EncodingError, match="is not UTF-8"):
        build(path, tmp_path / "corpus")


@pytest.mark.parametrize(("given", "n_heldout"), [(2.0, 2), (0.5, 9), (1.0, 1)])
def test_a_number_from_a_command_line_may_be_a_float(tmp_path: Path, given: Any, n_heldout: int) -> None:
    path = tmp_path / "text.txt"
    path.write_text(RAW_TEXT)
    corpus = build(path, tmp_path / "corpus", heldout=given)
    assert corpus.manifest.sizes.heldout_sentences == n_heldout


@pytest.mark.parametrize("kind", ["txt", "gz", "xz", "bz2", "zst"])
@pytest.mark.parametrize("input_format", ["text", "tokens", "conllu"])
def test_a_text_that_changes_but_keeps_its_size_and_time_is_read_again(
    tmp_path: Path, kind: str, input_format: InputFormat
) -> None:
    file, folder = tmp_path / "text", tmp_path / "corpus"

    def write(word: str) -> Path:
        rows = f"1\t{word}\t" + "\t".join("_" * 8) + "\n\n"
        data = (rows if input_format == "conllu" else f"{word} crosses the river .\n").encode() * 40
        file.write_bytes(
            compressed(kind, data) + bytes(3) * (kind == "gz")
        )  # padding after the compressed data belongs to the file
        os.utime(file, ns=(10**18, 10**18))
        return file

    first = build(write("cat"), folder, input_format=input_format)
    entry = first.manifest.inputs[0]
    assert entry == {"part": "train", "path": "text", "size": file.stat().st_size,
                     "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}  # fmt: skip
    second = build(write("dog"), folder, input_format=input_format)
    assert kind != "txt" or file.stat().st_size == entry["size"]
    assert "dog" in list(second.types)
    stamp = (folder / "train.u32").stat().st_mtime_ns
    os.utime(file)  # the content is the same
    moved = file.rename(tmp_path / "moved")
    assert build(moved, folder, input_format=input_format).manifest == second.manifest
    assert (folder / "train.u32").stat().st_mtime_ns == stamp


def test_a_corpus_does_not_reveal_the_folder_of_its_text(file: Path, tmp_path: Path) -> None:
    build(file, tmp_path / "corpus", input_format="tokens", heldout_file=(file,))
    contents = b"".join(path.read_bytes() for path in (tmp_path / "corpus").iterdir())
    assert str(tmp_path).encode() not in contents


def test_a_corpus_of_version_1_is_reused_by_size_and_time(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    build_tokens(file, folder)
    values = json.loads((folder / "manifest.json").read_text())
    status = file.stat()
    entry = {"part": "train", "path": str(file), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    del values["sha256"]
    values |= {"version": 1, "inputs": [entry]}
    (folder / "manifest.json").write_text(json.dumps({**values, "sha256": hash_json(values)}))
    assert build_tokens(file, folder).manifest.inputs == [entry]
    os.utime(file, ns=(5, 5))
    assert "sha256" in build_tokens(file, folder).manifest.inputs[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for number in range(2):
        writer = threading.Thread(target=pipe.write_text, args=(f"run {number} of the river\n" * 30,))
        writer.start()
        corpus = build(pipe, tmp_path / "corpus")
        writer.join()
        assert corpus.manifest.inputs == [{"part": "train", "path": "-"}]
        assert str(number) in list(corpus.types)


def test_an_unchanged_text_is_not_read_again(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="elmo")
    folder = tmp_path / "corpus"
    first = build_tokens(file, folder)
    stamp = (folder / "train.u32").stat().st_mtime_ns
    assert build_tokens(file, folder).manifest == first.manifest
    assert "which was built from the same text" in caplog.text
    assert (folder / "train.u32").stat().st_mtime_ns == stamp
    assert build_tokens(file, folder, max_sentence=2).n_sentences > first.n_sentences
    assert "max_sentence changed since" in caplog.text
    file.write_text(TEXT * 2)
    assert build_tokens(file, folder, max_sentence=2).n_tokens == 2 * first.n_tokens
    assert "the text has changed" in caplog.text
    assert names(tmp_path) == ["corpus", "text.txt"]


@pytest.mark.parametrize("name", ["manifest.json", "types.txt", "type_ends.u64", "counts.u64", "train.u32"])
def test_a_damaged_corpus_is_refused_and_built_again(file: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "corpus"
    sound = build_tokens(file, folder).manifest
    data = (folder / name).read_bytes()
    for at in range(0, len(data), 7):
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(DataError, match="corpus"):
            Corpus.open(folder)
    for length in (0, len(data) // 2, len(data) - 2):
        (folder / name).write_bytes(data[:length])
        with pytest.raises(DataError, match="corpus"):
            Corpus.open(folder, verify=name == "types.txt")
    (folder / name).unlink()
    with pytest.raises(DataError, match="corpus"):
        Corpus.open(folder)
    assert build_tokens(file, folder).manifest == sound
    assert (folder / name).read_bytes() == data


def test_a_folder_with_other_files_is_left_alone(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the corpus"):
        Corpus.open(tmp_path)
    with pytest.raises(DataError, match="cannot read the corpus"):
        Corpus.open(tmp_path / "absent")
    with pytest.raises(OutputError, match=r"must not contain input files; found text\.txt"):
        build_tokens(file, tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "other"}))
    with pytest.raises(DataError, match="must be the manifest of a corpus"):
        Corpus.open(tmp_path)
    with pytest.raises(OutputError, match="must be a folder for the corpus"):
        build_tokens(file, file)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "at least 2 sentences to train on; found 0"),
        (b"\n \n\t\n", "at least 2 sentences to train on; found 0"),
        (b"one sentence only\n", "must contain at least 2 sentences to train on; found 1"),
        (b"\x00\x01\x02\n" * 99, "found a NUL at byte 1; the file is binary"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "this is a picture, not text"),
        ("héllo\nyou".encode("utf-16"), "this file is UTF-16"),
        (b"PK\x03\x04" + bytes(40), "this is a zip archive"),
        (lzma.compress(b"a b\n" * 99)[:-9], "cannot read"),
    ],
)
@pytest.mark.parametrize("input_format", ["text", "tokens"])
def test_bad_text_is_refused_in_one_line_and_leaves_nothing(
    file: Path, tmp_path: Path, data: bytes, message: str, input_format: Any
) -> None:
    file.write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        build(file, tmp_path / "new" / "corpus", input_format=input_format)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["text.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_format": "xml"}, "input_format must be one of text, tokens, conllu; found 'xml'"),
        ({"split": True}, "split is only possible for the input format text; found 'tokens'"),
        ({"errors": "ignore"}, "errors must be one of strict"),
        ({"heldout": 1.5}, "heldout must be a share between 0 and 1"),
        ({"heldout": -1}, "heldout must be a share between 0 and 1"),
        ({"heldout": 4}, "cannot hold out 4 of 4 sentences"),
        ({"max_sentence": 0}, "max_sentence must be at least 1; found 0"),
        ({"processes": 0}, "processes must be at least 1; found 0"),
        ({"blank_lines": True, "deduplicate": True}, "cannot be combined"),
        ({"tokenizer": "klingon"}, "tokenizer must be one of"),
        ({"heldout_file": "absent.txt", "heldout": None}, r"absent\.txt: no such file"),
    ],
)
def test_bad_options_are_refused_and_leave_nothing(
    file: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ElmoError, match=message):
        build_tokens(file, tmp_path / "corpus", **options)
    assert names(tmp_path) == ["text.txt"]


def test_a_place_that_cannot_be_written_is_refused_in_one_line(file: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write") as caught:
        build_tokens(file, file / "corpus")
    assert "\n" not in str(caught.value)
    with pytest.raises(OutputError, match="cannot write"):
        build_tokens(file, Path("/proc/corpus"))


def test_a_full_disk_leaves_the_old_corpus(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus"
    old = build_tokens(file, folder).manifest

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpus_builder._HashedFile, "write", full)
    with pytest.raises(OutputError, match="No space left on device"):
        build_tokens(file, folder, max_sentence=2)
    assert Corpus.open(folder).manifest == old
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_what_a_killed_run_left_is_cleared_away(file: Path, tmp_path: Path) -> None:
    for name in (".corpus.part", ".corpus.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.u32").write_bytes(b"half")
    build_tokens(file, tmp_path / "corpus")
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_a_build_killed_before_it_removed_the_old_corpus_is_tidied_up_by_whoever_opens_the_new_one(
    file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "corpus"
    for opened in (lambda: build_tokens(file, folder), lambda: reopen_corpus(folder)):
        built = build_tokens(file, folder).manifest
        shutil.copytree(folder, tmp_path / ".corpus.old")
        (tmp_path / ".corpus.lock").touch()
        assert opened().manifest == built
        assert names(tmp_path) == ["corpus", "text.txt"]


def test_a_build_killed_between_two_renames_is_finished_by_the_next_one(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    build_tokens(file, tmp_path / "new")
    stamp = (tmp_path / "new" / "train.u32").stat().st_mtime_ns
    (tmp_path / "new").rename(tmp_path / ".corpus.part")
    build_tokens(file, tmp_path / "other", max_sentence=2)
    (tmp_path / "other").rename(tmp_path / ".corpus.old")
    build_tokens(file, folder)
    assert (folder / "train.u32").stat().st_mtime_ns == stamp  # it was not built again
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_files_of_a_running_build_are_left_alone(file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    built = build_tokens(file, folder).manifest
    with replace_folder(folder) as temporary:
        assert build_tokens(file, folder).manifest == built
        assert temporary.is_dir()
        with pytest.raises(OutputError, match="another process is writing"):
            build_tokens(file, folder, max_sentence=2)
    assert names(tmp_path) == ["corpus", "text.txt"]


def test_stdin_is_read_again_each_time(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (TEXT, TEXT * 3):
        file.write_text(text)
        with file.open(encoding="utf-8") as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            assert build_tokens(Path("-"), tmp_path / "corpus").n_sentences == 4 * (len(text) // len(TEXT))
