"""A vocabulary that the user gives: its words come first, and what is no vocabulary is refused."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import DataError
from elmo.text.ids import Vocabulary
from elmo.train import corpus_builder, read_text
from elmo.train import vocabulary as word_types
from elmo.train.corpus import Corpus
from elmo.train.vocabulary import read_vocabulary
from tests.shared import FIXTURES, needs_fixtures
from tests.train.small_corpus import build

TEXT = "the cat sat\nthe dog sat down\na cat and a dog\nthe end\n"
WORDS = ["<S>", "</S>", "<UNK>", "zebra", "dog", "the", "naïve"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def corpus_of(file: Path, folder: Path, **options: Any) -> Corpus:
    return build(file, folder, input_format="tokens", **{"heldout": 0, **options})


def words_of(corpus: Corpus) -> str:
    return " ".join(corpus.types.spellings(corpus.train)).replace(" </S>", "\n").replace("\n ", "\n")


def test_given_words_come_first_in_their_order_and_others_by_falling_count(file: Path, tmp_path: Path) -> None:
    corpus = corpus_of(file, tmp_path / "corpus", vocabulary=WORDS)
    assert corpus.types[:] == [*WORDS, "cat", "sat", "a", "down", "and", "end"]
    assert corpus.counts.tolist() == [4, 4, 0, 0, 2, 3, 0, 2, 2, 2, 1, 1, 1]
    assert corpus.n_given == 7
    assert corpus.vocab().words == tuple(WORDS)
    assert corpus.vocab(8).words == (*WORDS, "cat")
    assert words_of(corpus) == TEXT
    assert corpus_of(file, tmp_path / "other").n_given is None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_is_read_as_bilm_tf_reads_it(file: Path, tmp_path: Path, end: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(end.join(["!!!MAXTERMID", "dog", *WORDS[:3], "a\u3000b"]), encoding="utf-8", newline="")
    corpus = corpus_of(file, tmp_path / "corpus", vocabulary=path)
    assert corpus.vocab().words == ("<S>", "</S>", "<UNK>", "dog", "a\u3000b")


def test_another_publishers_special_words_are_ours(file: Path, tmp_path: Path) -> None:
    words = ("<oov>", "<bos>", "<eos>", "<pad>", "dog")
    given = Vocabulary(words, bos="<bos>", eos="<eos>", unknown="<oov>")
    corpus = corpus_of(file, tmp_path / "corpus", vocabulary=given)
    assert corpus.vocab().words == ("<S>", "</S>", "<UNK>", "<pad>", "dog")


def test_types_that_do_not_fit_in_memory_change_nothing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS[:3], *(f"w{k}" for k in range(30)), "dog"]
    file.write_text("".join(f"w{k % 50} dog w{k * 7 % 90}\n" for k in range(200)))
    whole = corpus_of(file, tmp_path / "whole", vocabulary=words, heldout=20)
    monkeypatch.setattr(read_text, "BLOCK_BYTES", 40)
    monkeypatch.setattr(corpus_builder, "_CHUNK", 16)
    monkeypatch.setattr(read_text, "WordNumbering", lambda where: word_types.WordNumbering(where, max_in_memory=12))
    pieces = corpus_of(file, tmp_path / "pieces", vocabulary=words, heldout=20)
    assert pieces.manifest.files == whole.manifest.files
    assert whole.vocab().words == tuple(words)
    assert sorted(whole.counts[len(words) :].tolist(), reverse=True) == whole.counts[len(words) :].tolist()


def test_another_vocabulary_builds_the_corpus_again(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="elmo")
    path, folder = tmp_path / "vocab.txt", tmp_path / "corpus"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    first = corpus_of(file, folder, vocabulary=path)
    assert corpus_of(file, folder, vocabulary=WORDS).manifest == first.manifest  # the words count, not the file
    assert "reusing the corpus" in caplog.text
    path.write_text("\n".join([*WORDS, "end"]), encoding="utf-8")
    assert corpus_of(file, folder, vocabulary=path).n_given == 8
    assert corpus_of(file, folder).n_given is None
    assert caplog.text.count("vocabulary changed since") == 2


SPECIAL = b"<S>\n</S>\n<UNK>\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"the\nof\n", "the special words <S>, </S>, <UNK> must be included; found no <S>, </S>, <UNK>"),
        (b"<S>\n</S>\n<unk>\nthe\n", "found no <UNK>"),
        (b"", "found no <S>, </S>, <UNK>"),
        (SPECIAL, "the vocabulary has only special words"),
        (SPECIAL + b"a\nb\na\n", "the word 'a' occurs twice, in line 4 and 6"),
        (SPECIAL + b"a\n<S>\n", "the word '<S>' occurs twice, in line 1 and 5"),
        (SPECIAL + b"a\n\nb\n", "line 5 is empty"),
        (SPECIAL + b"the\t3012\n", "vocab.txt must have one word per line; found a tab (a table"),
        (SPECIAL + b"a\0b\n", "vocab.txt must have one word per line; found a NUL byte (a binary file?) in line 4"),
        (SPECIAL + b"caf\xe9\n", "vocab.txt:4: byte 4 of the line (0xe9) is not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0", "this is a picture, not text"),
        (None, "vocab.txt must be a vocabulary file with one word per line; found a folder"),
    ],
)
def test_a_bad_vocabulary_is_one_line_and_leaves_nothing(
    file: Path, tmp_path: Path, data: bytes | None, message: str
) -> None:
    path = tmp_path / "vocab.txt"
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        corpus_of(file, tmp_path / "new" / "corpus", vocabulary=path)
    assert "\n" not in str(caught.value)
    assert "vocab.txt" in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere.txt", "cannot read nowhere.txt: No such file"),
        ([*WORDS, 7], "must be a file or a list of strings; found a list with other values"),
        ([*WORDS, "a\nb"], "word 8 contains a line break"),
        ([*WORDS, "\udcff"], r"words must be valid Unicode; found the lone surrogate '\udcff'"),
        (
            Vocabulary(("B", "E", "U", "<S>"), bos="B", eos="E", unknown="U"),
            "word 4 must be an ordinary word; found the special word <S>",
        ),
        (["a", "a", "", "b", ""], "found no <S>, </S>, <UNK>; the word 'a' occurs twice"),
    ],
)
def test_a_vocabulary_without_words_is_one_line(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_vocabulary(given)
    assert "\n" not in str(caught.value)


def test_a_vocabulary_that_no_model_can_hold_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.train.vocabulary.MAX_LINES", 6)
    monkeypatch.setattr("elmo.train.vocabulary._MAX_WORDS", 3)
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS), encoding="utf-8")
    for given in (path, WORDS):
        with pytest.raises(DataError, match="must have at most 6 words; found"):
            read_vocabulary(given)
    assert len(read_vocabulary(WORDS[:6])) == 3


@needs_fixtures
def test_a_published_vocabulary_is_taken_as_it_is() -> None:
    paths = sorted(FIXTURES.rglob("vocab*.txt"))
    assert paths
    taken = 0
    for path in paths:
        words = path.read_text(encoding="utf-8").split("\n")
        if "<UNK>" in words:
            assert read_vocabulary(path) == [w.encode() for w in words if w and w not in word_types.SPECIAL]
            taken += 1
        else:
            with pytest.raises(DataError, match="found no <UNK>"):
                read_vocabulary(path)
    assert taken
