"""Tagged sentences in columns, CoNLL-U and text."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import ConfigError, DataError, EncodingError
from elmo.tasks.data.examples import Location, TaggedSentence
from elmo.tasks.data.tagging import read_tagged
from elmo.text.tokenizers import load_tokenizer
from tests.tasks.data.corpora import DATA, needs_data, write_file


def read(*args: Any, **options: Any) -> list[TaggedSentence]:
    return list(read_tagged(*args, **options))


CONLLU = (
    "# sent_id = 1\n# text = del sol\n"
    "1-2\tdel\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "1\tde\tde\tADP\tIN\t_\t3\tcase\t_\t_\n"
    "2\tel\tel\tDET\tDT\tDefinite=Def\t3\tdet\t_\t_\n"
    "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "3\tsol y mar\tsol\tNOUN\tNN\tNumber=Sing\t0\troot\t_\t_\n\n"
    "# only a comment\n\n"
    "1\t#\t#\tSYM\tSYM\t_\t0\troot\t_\t_\n"
)


def test_the_first_column_has_words_and_the_last_has_tags(tmp_path: Path) -> None:
    path = write_file(tmp_path, "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n")
    assert read([path]) == [
        TaggedSentence(("EU", "rejects"), ("B-ORG", "O"), Location(str(path), 1)),
        TaggedSentence(("Peter",), ("B-PER",), Location(str(path), 4)),
    ]
    assert read(str(path), words=2, tags=1)[0].tags == ("NNP", "VBZ")


def test_blank_lines_end_sentences_and_docstart_is_skipped(tmp_path: Path) -> None:
    path = write_file(tmp_path, "\n-DOCSTART- -X- O\r\n\r\na\tO\r\n\t\r\nb\tO\n \t \nc\tO\n-DOCSTART-\n")
    assert [one.words for one in read([path])] == [("a",), ("b",), ("c",)]


def test_a_hash_is_a_word_and_words_keep_their_spaces(tmp_path: Path) -> None:
    path = write_file(tmp_path, "#\tO\nNew York\tB-LOC\n\u00a0\tO\n")
    assert read([path])[0].words == ("#", "New York", "\u00a0")


def test_files_are_read_in_order_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(b"a O\n"))
    (tmp_path / "b.conll.xz").write_bytes(lzma.compress(b"b O\n"))
    found = read([tmp_path / "b.conll.xz", tmp_path / "a.conll.gz"])
    assert [one.words for one in found] == [("b",), ("a",)]


@pytest.mark.parametrize(
    ("column", "tags"),
    [
        (None, ("ADP", "DET", "NOUN")),
        ("xpos", ("IN", "DT", "NN")),
        ("FEATS", ("_", "Definite=Def", "Number=Sing")),
        ("lemma", ("de", "el", "sol")),
        ("deprel", ("case", "det", "root")),
        (3, ("ADP", "DET", "NOUN")),
    ],
)
def test_conllu_columns_have_names(tmp_path: Path, column: str | None, tags: tuple[str, ...]) -> None:
    for name in ("a.conllu", "b.txt"):
        path = write_file(tmp_path, CONLLU, name)
        found = read([path], tags=column)
        assert found[0].words == ("de", "el", "sol y mar")
        assert found[0].tags == tags
        assert found[1].words == ("#",)
        assert [one.location and one.location.line for one in found] == [4, 11]


def test_without_labels_columns_and_text_give_words_only(tmp_path: Path) -> None:
    conllu = write_file(tmp_path, CONLLU, "a.conllu")
    tabs = write_file(tmp_path, "a\tO\nb\tO\n", "b.txt")
    text = write_file(tmp_path, "It 's here.\n\n# So?\n", "c.txt")
    found = read([conllu, tabs, text], is_labeled=False)
    assert [one.words for one in found][2:] == [("a", "b"), ("It", "'s", "here."), ("#", "So?")]
    assert all(one.tags is None for one in found)
    assert found[-1].location == Location(str(text), 3)
    cut = read([text], is_labeled=False, tokenize=load_tokenizer("en"))
    assert cut[0].words == ("It", "'s", "here", ".")
    assert read([text], is_labeled=False, tokenize=list)[0].words[:2] == ("I", "t")


def test_one_word_per_line_can_be_read_as_columns(tmp_path: Path) -> None:
    path = write_file(tmp_path, "one\ntwo\n\nthree\n")
    for found in (
        read([path], is_labeled=False, separator=" "),
        read([path], is_labeled=False, words=0),
        read([path], is_labeled=False, file_format="columns"),
    ):
        assert [one.words for one in found] == [("one", "two"), ("three",)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"train.conll: expected examples; found an empty file"),
        (" \n\t\n", r"expected examples; found an empty file"),
        ("-DOCSTART- O\n", r"expected sentences; found none"),
        (
            "a\tN\tO\n\nb\tO\n",
            r":3: expected 3 columns separated by tabs, as in the first row of the file \(line 1\); found 2$",
        ),
        ("-DOCSTART-\na O\nb N O\n", r":3: expected 2 columns separated by spaces, .* \(line 2\); found 3$"),
        ("a\tO\n\tO\n", r":2: expected a word in column 1; found nothing"),
        ("a\tO\nb\t \n", r":2: expected a tag in column 2; found nothing"),
        ("a\nb\n", r":1: expected words and tags in different columns .* found both in column 0 \(from 0\) of 1"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = write_file(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\tb\n", r":1: expected 10 columns separated by tabs; found 3"),
        (CONLLU.replace("3\tsol", "4\tsol"), r":7: expected the ID 3; found '4'"),
        (CONLLU.replace("\tde\tde", "\t\tde"), r":4: expected a word in column 2; found nothing"),
        ("1\ta\ta\t_\t_\t_\t_\t_\t_\t_\n", r"expected tags in column upos; found only _"),
        ("# a\n\n# b\n", r"expected sentences; found none"),
    ],
)
def test_broken_conllu_raises_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read([write_file(tmp_path, text, "a.conllu")])


def test_missing_columns_raise_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a\tO\n")
    with pytest.raises(DataError, match=r":1: expected tags in column 2 \(from 0\); found 2 columns"):
        read([path], tags=2)
    with pytest.raises(
        DataError, match=r"expected a column number for tags, because only CoNLL-U has column names; found 'upos'"
    ):
        read([path], tags="upos")
    with pytest.raises(ConfigError, match=r"column must be one of id, form.* found 'pos'"):
        read([write_file(tmp_path, CONLLU, "a.conllu")], tags="pos")


def test_wrong_options_and_files_raise_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, "a\tO\n")
    with pytest.raises(ConfigError, match="cannot read tags from text files"):
        read([path], file_format="text")
    with pytest.raises(ConfigError, match="file_format must be one of auto"):
        read([path], file_format="conll")
    with pytest.raises(ConfigError, match="separator"):
        read([path], separator=",")
    with pytest.raises(ConfigError, match="paths must contain at least one file"):
        read([])
    with pytest.raises(DataError, match="no such file"):
        read([tmp_path / "none"])
    path.write_bytes(b"a\tO\n\xff\tO\n")
    with pytest.raises(EncodingError, match=r":2: byte 1"):
        read([path])


@pytest.mark.slow
@needs_data
def test_published_corpora_have_the_expected_sentences() -> None:
    wnut = [read([DATA / "ner-wnut17" / f"{part}.conll.xz"]) for part in ("train", "dev")]
    assert [len(one) for one in wnut] == [3394, 1009]
    assert sum(len(one.words) for one in wnut[0]) == 62730
    assert len({tag for one in wnut[0] for tag in one.tags or ()}) == 13
    assert len(read([DATA / "pos-ewt" / "dev.conllu.xz"])) == 2001
    assert len(read([DATA / "pos-zh-gsd" / "dev.conllu.xz"], tags="xpos")) == 500
