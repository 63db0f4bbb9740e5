"""Labelled columns of every kind of file, and what is refused in them."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from elmo.errors import ConfigError, DataError, EncodingError
from elmo.lexicon.probe import LabelledText, read_labelled

CONLLU = """\
# text = He doesn't .
1\tHe\the\tPRON\tPRP\tCase=Nom|Number=Sing\t3\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\tNumber=Sing|Tense=Pres\t0\troot\t_\t_
3\tn't\tnot\tPART\t_\t_\t2\tadvmod\t_\tSpaceAfter=No
3.1\tghost\t_\tVERB\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

1\t河岸\t_\tNOUN\tNN\tNumber=Plur\t0\troot\t_\t_
"""


@pytest.fixture
def conllu(tmp_path: Path) -> Path:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU, encoding="utf-8")
    return path


def columns(tmp_path: Path, text: str, name: str = "a.tsv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def pairs(text: LabelledText) -> list[tuple[str, str]]:
    return list(zip(text.words, text.labels, strict=True))


def test_a_conllu_column_goes_by_name_or_number_and_skips_what_is_no_word(conllu: Path) -> None:
    found = read_labelled(conllu, "upos")
    assert pairs(found) == [
        ("He", "PRON"),
        ("does", "AUX"),
        ("n't", "PART"),
        (".", "PUNCT"),
        ("河岸", "NOUN"),
    ]
    assert [sentence.place for sentence in found.sentences] == [f"{conllu}:2", f"{conllu}:9"]
    assert read_labelled(conllu, 4) == found == read_labelled(conllu, "UPOS")
    assert read_labelled(conllu, "deprel").labels[0] == "nsubj"


def test_words_without_the_feature_are_counted_and_kept_as_context(conllu: Path) -> None:
    found = read_labelled(conllu, "feats:Number")
    assert pairs(found) == [("He", "Sing"), ("does", "Sing"), ("河岸", "Plur")]
    assert (found.n_labels, found.n_without) == (3, 2)
    assert found.sentences[0].tokens == ("He", "does", "n't", ".")
    assert found.sentences[0].labels == ("Sing", "Sing", None, None)
    only = read_labelled(conllu, "feats:Tense")
    assert [sentence.tokens[0] for sentence in only.sentences] == ["He"]  # the other has no label at all
    assert read_labelled(conllu, "xpos").n_without == 1
    assert read_labelled(conllu, "misc:SpaceAfter").labels == ["No"]


def test_conllu_is_told_by_its_content_too_and_may_be_compressed(conllu: Path, tmp_path: Path) -> None:
    packed = tmp_path / "b.txt.xz"
    packed.write_bytes(lzma.compress(CONLLU.encode()))
    assert pairs(read_labelled(packed, "upos")) == pairs(read_labelled(conllu, "upos"))
    as_columns = read_labelled(packed, "4", tokens_column=2, file_format="columns")
    assert ("doesn't", "_") in pairs(as_columns)


def test_columns_are_parted_by_tabs_or_spaces_and_white_lines_end_sentences(tmp_path: Path) -> None:
    tabs = columns(tmp_path, "\n# a comment\nNew York\tB\n#\tO\n \t \n河岸\tB\n\n\n")
    found = read_labelled(tabs, 2)
    assert [sentence.tokens for sentence in found.sentences] == [("New York", "#"), ("河岸",)]
    spaces = columns(tmp_path, "#begin document x\n-DOCSTART- -X- O\n\nEU  NNP B\n# NN O\n\nrejects VB O\r\n")
    assert pairs(read_labelled(spaces, 3)) == [("EU", "B"), ("#", "O"), ("rejects", "O")]
    assert read_labelled(spaces, 1, tokens_column=2).labels == ["EU", "#", "rejects"]


def test_sentences_may_differ_in_columns_but_lines_of_one_may_not(tmp_path: Path) -> None:
    path = columns(tmp_path, "a\tX\n\nb\tY\t(V*)\nc\tZ\t*\n")
    assert read_labelled(path, 2).labels == ["X", "Y", "Z"]
    columns(tmp_path, "a\tX\n\nb\tY\t(V*)\nc\tZ\n")
    with pytest.raises(DataError, match=r"a\.tsv:4: expected 3 columns separated by tabs, .* found 2"):
        read_labelled(path, 2)


def test_a_header_names_the_columns(tmp_path: Path) -> None:
    path = columns(tmp_path, "id\tword\ttag\n1\tthe\tDET\n2\tbank\tNOUN\n")
    assert pairs(read_labelled(path, "tag", tokens_column="word")) == [("the", "DET"), ("bank", "NOUN")]
    assert pairs(read_labelled(path, 3, tokens_column=2, has_header=True)) == [
        ("the", "DET"),
        ("bank", "NOUN"),
    ]
    with pytest.raises(DataError, match=r"a\.tsv:1: expected a header with 'pos', found id, word, tag"):
        read_labelled(path, "pos")


def test_no_more_is_kept_than_asked_for_in_whole_sentences(tmp_path: Path) -> None:
    path = columns(tmp_path, "a\tX\nb\tY\n\n" * 5)
    found = read_labelled(path, 2, max_tokens=5)
    assert (found.n_labels, len(found.sentences), found.is_cut) == (4, 2, True)
    assert not read_labelled(path, 2, max_tokens=10).is_cut
    assert read_labelled(path, 2, max_tokens=1).n_labels == 2  # one sentence at least


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    columns(tmp_path, "a\tX", "1.tsv")
    columns(tmp_path, "b\tY", "2.tsv")
    assert [len(s) for s in read_labelled(tmp_path, 2).sentences] == [1, 1]


@pytest.mark.parametrize(
    ("text", "column", "error", "message"),
    [
        ("", 2, DataError, r"a\.tsv: expected labels in column 2, found no words"),
        ("\n \n", 2, DataError, "found no words"),
        ("\n \n", "upos", DataError, r"a\.tsv: expected labels in column upos, found no words"),
        ("a\tX\nb\n", 2, DataError, r"a\.tsv:2: expected 2 columns separated by tabs, .*, found 1"),
        ("a X\n\nb\n", 2, DataError, r"a\.tsv:3: expected 2 columns or more parted by spaces, found 1"),
        ("a\tX\nb\t\n", 2, DataError, r"a\.tsv:2: expected a label in column 2, found nothing"),
        ("\tX\n", 2, DataError, r"a\.tsv:1: expected a word in column 1, found nothing"),
        ("a\tX\n", 3, DataError, r"a\.tsv:1: expected 3 columns or more"),
        ("a\tX\n", 0, ConfigError, "count from 1"),
        ("a\tX\n", 1, ConfigError, "holds the words"),
        ("w\tt\na\tX\tY\n", "t", DataError, r"a\.tsv:2: expected 2 columns, as in the header, .* found 3"),
    ],
)
def test_what_has_no_labels_is_refused_with_its_place(
    tmp_path: Path, text: str, column: str | int, error: type[Exception], message: str
) -> None:
    path = columns(tmp_path, text)
    with pytest.raises(error, match=message) as caught:
        read_labelled(path, column)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("pos", ConfigError, "CoNLL-U has id, form, .* not 'pos'"),
        ("upos:Number", ConfigError, "only feats and misc have parts"),
        ("feats:Aspect", DataError, "expected labels in column feats:Aspect, found 5 words without one"),
        ("11", ConfigError, r"1\.\.10"),
    ],
)
def test_columns_that_conllu_has_not_are_named(
    conllu: Path, column: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_labelled(conllu, column)


def test_broken_conllu_is_refused_with_its_place(tmp_path: Path) -> None:
    path = columns(tmp_path, "1\tHe\tPRON\n", "b.conllu")
    with pytest.raises(DataError, match=r"b\.conllu:1: expected 10 columns separated by tabs, found 3"):
        read_labelled(path, "upos")
    columns(tmp_path, CONLLU.replace("\tPART\t", "\t\t"), "b.conllu")
    with pytest.raises(DataError, match=r"b\.conllu:5: expected a label or _ in column upos, found nothing"):
        read_labelled(path, "upos")


def test_options_and_bytes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.tsv"
    path.write_bytes(b"caf\xe9\tX\nthe\tY\n")
    with pytest.raises(EncodingError, match=r"latin\.tsv:1"):
        read_labelled(path, 2)
    assert read_labelled(path, 2, errors="replace").words == ["caf\ufffd", "the"]
    with pytest.raises(ConfigError, match="max_tokens"):
        read_labelled(path, 2, max_tokens=0)
    with pytest.raises(ConfigError, match="file format"):
        read_labelled(path, 2, file_format="xml")  # pyright: ignore[reportArgumentType]


def test_a_text_without_sentence_ends_is_refused(tmp_path: Path) -> None:
    path = columns(tmp_path, "a\tX\n" * 100_001)
    with pytest.raises(DataError, match=r"a\.tsv:1: expected an empty line within 100,000 words"):
        read_labelled(path, 2)
