"""Labeled texts, entity markers, and pairs of texts."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import LabeledText, Location, TextPair
from elmo.tasks.data.texts import MARKER, WITHOUT_GOLD, TextFormat, keep_markers, read_pairs, read_texts
from elmo.text.tokenizers import WhitespaceTokenizer, load_tokenizer
from tests.tasks.data.corpora import DATA, needs_data, write_file


def texts(*args: Any, **options: Any) -> list[LabeledText]:
    return list(read_texts(*args, **options))


def pairs(*args: Any, **options: Any) -> list[TextPair]:
    return list(read_pairs(*args, **options))


def test_lines_start_with_a_label(tmp_path: Path) -> None:
    path = write_file(tmp_path, "3 a fine film .\n\n0\tbad\n__label__pos  so __label__ good\n", "train.txt")
    assert texts([path]) == [
        LabeledText(("a", "fine", "film", "."), "3", Location(str(path), 1)),
        LabeledText(("bad",), "0", Location(str(path), 3)),
        LabeledText(("so", "__label__", "good"), "pos", Location(str(path), 4)),
    ]


TSV = "id\tsentence\tlabel\n1\tIt 's \"good\t1\n\n2\tbad\\n\t0\n"


def test_tables_are_read_by_the_names_in_their_header(tmp_path: Path) -> None:
    path = write_file(tmp_path, TSV, "a.tsv")
    assert texts([path]) == [
        LabeledText(("It", "'s", '"good'), "1", Location(str(path), 2)),
        LabeledText(("bad\\n",), "0", Location(str(path), 4)),
    ]
    assert [one.label for one in texts([path], label="id")] == ["1", "2"]
    assert [one.label for one in texts([path], text=1, label=0, has_header=True)] == ["1", "2"]


def test_a_table_without_a_header_is_read_by_numbers(tmp_path: Path) -> None:
    path = write_file(tmp_path, "x\t0\tone two\ny\t1\tthree\n", "a.tsv")
    found = texts([path], text=-1, label=1)
    assert [(one.words, one.label) for one in found] == [(("one", "two"), "0"), (("three",), "1")]


def test_csv_cells_may_be_quoted_and_have_line_breaks(tmp_path: Path) -> None:
    text = 'Label,Text\npos,"one, ""two""\nthree"\n\nneg,four\n'
    path = write_file(tmp_path, text, "a.csv")
    assert texts([path]) == [
        LabeledText(("one,", '"two"', "three"), "pos", Location(str(path), 2)),
        LabeledText(("four",), "neg", Location(str(path), 5)),
    ]


def test_json_lines_are_read_by_name(tmp_path: Path) -> None:
    text = '{"sentence": "One two.", "label": 1, "x": null}\n{"label": false, "sentence": ["a b", "c"]}\n'
    path = write_file(tmp_path, text, "a.json")
    found = texts([path], tokenize=load_tokenizer("en"))
    assert [(one.words, one.label) for one in found] == [(("One", "two", "."), "1"), (("a b", "c"), "False")]
    other = write_file(tmp_path, '{"body": "a", "stars": "5"}', "b.jsonl")
    assert texts([other], text="body", label="stars")[0].label == "5"


def test_the_suffix_sets_the_format_unless_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(TSV.encode()))
    assert len(texts([path])) == 2
    assert len(texts([write_file(tmp_path, TSV, "a.txt")], file_format="tsv")) == 2


@pytest.mark.parametrize(
    ("name", "text", "n"),
    [
        ("a.tsv", TSV.replace("label", "x"), 2),
        ("a.jsonl", '{"text": "a"}\n', 1),
        ("a.txt", "5 stars\n\nbad\n", 2),
        ("a.csv", "text\na\n", 1),
    ],
)
def test_labels_may_be_missing_if_they_are_not_read(tmp_path: Path, name: str, text: str, n: int) -> None:
    found = texts([write_file(tmp_path, text, name)], is_labeled=False)
    assert len(found) == n
    assert all(one.label is None for one in found)
    if name == "a.txt":
        assert found[0].words == ("5", "stars")


def test_entity_markers_are_words_in_every_format(tmp_path: Path) -> None:
    path = write_file(tmp_path, "text\tlabel\nThe <e1>audit</e1>, by <e2>Ann</e2>.\tX\n", "a.tsv")
    assert texts([path], tokenize=load_tokenizer("en"))[0].words == (
        *("The", "<e1>", "audit", "</e1>", ","),
        *("by", "<e2>", "Ann", "</e2>", "."),
    )


SEMEVAL = (
    '1\t"The <e1>child</e1> was in the <e2>U.S.</e2>"\nOther\nComment: no\n\n'
    '2\t"<e1>Fire</e1> from "the" <e2>gas</e2>."\nCause-Effect(e2,e1)\nComment:\n\n'
)


def test_semeval_files_are_detected_from_the_first_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, SEMEVAL, "TRAIN_FILE.TXT")
    found = texts([path], tokenize=load_tokenizer("en"))
    assert [(one.label, one.location and one.location.line) for one in found] == [
        ("Other", 1),
        ("Cause-Effect(e2,e1)", 5),
    ]
    assert found[0].words[-3:] == ("<e2>", "U.S.", "</e2>")
    assert found[1].words[:4] == ("<e1>", "Fire", "</e1>", "from")
    test = write_file(tmp_path, SEMEVAL.partition("\n")[0] + "\n", "TEST_FILE.txt")
    assert [one.label for one in texts([path, test], is_labeled=False)] == [None, None, None]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "expected examples; found an empty file"),
        ("a.txt", "3 good\nbad\n", r"a.txt:2: expected a label, a space and a text; found 'bad'"),
        ("a.txt", "__label__a __label__b x\n", r":1: expected one label and a text; found"),
        ("a.tsv", "text\tlabel\n", "expected texts; found none"),
        ("a.tsv", "text\tlabel\na\t1\nb\n", r":3: expected 2 columns, as in the header; found 1"),
        ("a.tsv", "text\tlabel\n \t1\n", r":2: expected words in the text; found ' '"),
        ("a.tsv", "text\tlabel\na\t \n", r":2: expected a label; found"),
        ("a.tsv", "body\tlabel\na\t1\n", r":1: expected a header with 'text' or 'sentence'; found none"),
        ("a.csv", 'text,label\n"a,1\nb\n', r":2: cannot parse CSV: unexpected end of data"),
        ("a.csv", 'text,label\n"a"b,1\n', r":2: cannot parse CSV"),
        ("a.csv", "text,label\n" + 200_000 * "a" + ",1\n", r":2: .* field larger than field limit"),
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "a"}\n', r":2: expected the key 'label'; found 'text'"),
        (
            "a.jsonl",
            '{"txt": "a", "label": 1}\n',
            r":1: expected a column 'text' or 'sentence' for text; found 'txt', ",
        ),
        ("a.jsonl", '{"text": 1, "label": 1}\n', r":1: expected a text or a list of words as text; found int"),
        ("a.jsonl", '{"text": [], "label": 1}\n', r":1: .* found nothing"),
        ("a.jsonl", '{"text": "a", "label": null}\n', r":1: expected a label; found nothing"),
        ("a.jsonl", '{"text": "a"\n', r":1: expected a JSON object; found invalid JSON"),
        ("a.jsonl", "[\n{}]\n", r":1: expected a JSON object; found a list; write one object per line"),
        ("a.jsonl", "3\n", r":1: expected a JSON object; found int"),
        ("a.jsonl", '{"a":' * 100_000 + "\n", r":1: expected a JSON object; found invalid JSON"),
        ("a.txt", '1\t"<e1>a</e1> <e2>b</e2>"\n', r":1: expected a relation such as Other in the next line"),
        ("a.txt", '1\t"<e1>a</e1> <e2>b</e2>"\n\n2\t"c"\nOther\n', r":1: expected a relation"),
        ("a.txt", '1\t"<e1>a</e1> <e2>b"\nOther\n', r":1: expected <e1>, .* found <e1> </e1> <e2>$"),
        ("a.txt", SEMEVAL + "Other\n", r":9: expected a number, a tab and a sentence in quotes; found 'Other'"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        texts([write_file(tmp_path, text, name)])
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_wrong_columns_raise_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, TSV, "a.tsv")
    with pytest.raises(DataError, match=r":1: expected a column 'body'; found 'id', 'sentence', 'label'"):
        texts([path], text="body")
    with pytest.raises(DataError, match=r":1: expected text in column 7 \(from 0\); found 3 columns"):
        texts([path], text=7, label=0)
    with pytest.raises(ConfigError, match="cannot choose columns by name in a table without a header"):
        texts([path], text="sentence", has_header=False)
    with pytest.raises(ConfigError, match="column of text must be a name in JSON lines; found 0"):
        texts([write_file(tmp_path, '{"text": "a"}', "a.jsonl")], text=0)
    with pytest.raises(ConfigError, match="cannot choose columns in lines with a label and a text"):
        texts([write_file(tmp_path, "1 a", "a.txt")], label=0)
    unknown: TextFormat = "xml"  # pyright: ignore[reportAssignmentType]
    with pytest.raises(ConfigError, match="file_format must be one of auto"):
        texts([path], file_format=unknown)


@needs_data
def test_the_published_sentiment_treebank_has_the_expected_sentences() -> None:
    train, dev = (texts([DATA / "sentiment-sst5" / f"{part}.txt.xz"]) for part in ("train", "dev"))
    assert (len(train), len(dev)) == (8544, 1101)
    assert Counter(one.label for one in dev) == {"1": 289, "3": 279, "2": 229, "4": 165, "0": 139}


MARKERS = st.sampled_from(["<e1>", "</e1>", "<e2>", "</e2>"])


def test_markers_do_not_change_the_other_tokens() -> None:
    plain = "The U.S. senator's trade-off, Mr. Smith said, can't last."
    marked = "The <e1>U.S. senator</e1>'s trade-off, <e2>Mr. Smith</e2> said, can't last."
    words = keep_markers(load_tokenizer("en"))(marked)
    assert [word for word in words if not MARKER.fullmatch(word)] == list(load_tokenizer("en")(plain).tokens)
    assert " ".join(words[:6]) == "The <e1> U.S. senator </e1> 's"


def test_a_marker_inside_a_token_splits_it() -> None:
    cut = keep_markers(WhitespaceTokenizer())
    assert cut("tea<e1>pot</e1>s and") == ("tea", "<e1>", "pot", "</e1>", "s", "and")
    assert cut("a </e1><e2> b") == ("a", "</e1>", "<e2>", "b")


def test_a_tokenizer_that_changes_characters_gets_each_part_separately() -> None:
    cut = keep_markers(lambda text: text.upper().split())
    assert cut("a <e1>big cat</e1>!") == ("A", "<e1>", "BIG", "CAT", "</e1>", "!")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(MARKERS, st.text(alphabet="ab .'<e1/>", max_size=5)), max_size=12))
def test_no_marker_and_no_character_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    for name in ("whitespace", "en"):
        words = keep_markers(load_tokenizer(name))(text)
        assert "".join(words) == "".join(text.split())
        assert [word for word in words if MARKER.fullmatch(word)][: len(MARKER.findall(text))] == MARKER.findall(text)


SNLI = (
    '{"annotator_labels": ["neutral"], "gold_label": "neutral", "sentence1": "A man.", "sentence2": "Old."}\n'
    '{"gold_label": "-", "sentence1": "A man.", "sentence2": "No."}\n'
)
SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "4\tA boy\tNo boy\t3.6\tCONTRADICTION\n24\tA dog\tA cat runs\t1\tNEUTRAL\n"
)


def test_snli_pairs_without_a_gold_label_are_skipped_and_counted(tmp_path: Path) -> None:
    path = write_file(tmp_path, SNLI, "snli_1.0_dev.jsonl")
    left_out: Counter[str] = Counter()
    assert pairs([path], tokenize=load_tokenizer("en"), left_out=left_out) == [
        TextPair(("A", "man", "."), ("Old", "."), "neutral", None, Location(str(path), 1))
    ]
    assert left_out == {WITHOUT_GOLD: 1}
    assert len(pairs([path, path])) == 2


def test_sick_has_labels_and_scores(tmp_path: Path) -> None:
    path = write_file(tmp_path, SICK, "train.txt")
    assert pairs([path]) == [
        TextPair(("A", "boy"), ("No", "boy"), "CONTRADICTION", 3.6, Location(str(path), 2)),
        TextPair(("A", "dog"), ("A", "cat", "runs"), "NEUTRAL", 1.0, Location(str(path), 3)),
    ]


def test_other_tables_are_read_by_name_or_number(tmp_path: Path) -> None:
    csv = write_file(tmp_path, 'score,sentence1,sentence2\n2.5,"a, b",c\n', "sts.csv")
    assert [(one.first, one.label, one.score) for one in pairs([csv])] == [(("a,", "b"), None, 2.5)]
    bare = write_file(tmp_path, "x\ta b\tc\tyes\n", "bare.tsv")
    found = pairs([bare], first=1, second=2, label=-1)
    assert [(one.first, one.second, one.label, one.score) for one in found] == [(("a", "b"), ("c",), "yes", None)]
    named = write_file(tmp_path, '{"p": "a", "h": ["b c"], "gold": 2}', "x.txt")
    assert pairs([named], first="p", second="h", label="gold")[0].second == ("b c",)


def test_without_labels_every_pair_is_kept(tmp_path: Path) -> None:
    snli, sick = write_file(tmp_path, SNLI, "a.jsonl"), write_file(tmp_path, SICK, "b.txt")
    bare = write_file(tmp_path, '{"premise": "a", "hypothesis": "b"}', "c.jsonl")
    found = pairs([snli, sick, bare], is_labeled=False)
    assert len(found) == 5
    assert all(one.label is None and one.score is None for one in found)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "", "expected examples; found an empty file"),
        ("a.tsv", SICK.splitlines()[0] + "\n", "expected pairs; found none"),
        ("a.tsv", SICK.replace("3.6", "high"), r"a.tsv:2: expected a number as score; found 'high'"),
        ("a.tsv", SICK.replace("3.6", "nan"), r":2: expected a number as score; found 'nan'"),
        ("a.tsv", SICK.replace("A boy", ""), r":2: expected words in the first text; found ''"),
        ("a.tsv", SICK.replace("\tNEUTRAL", ""), r":3: expected 5 columns, as in the header; found 4"),
        ("a.tsv", "sentence1\tsentence2\na\tb\n", r":1: expected a label .* or a score .* found neither"),
        ("a.tsv", "x\ty\na\tb\n", r":1: expected a header with 'sentence1' or"),
        ("a.jsonl", SNLI.replace("sentence2", "s"), r":1: expected a column 'sentence2' or .* for second text; found"),
        ("a.jsonl", SNLI.replace('"neutral",', "null,"), r":1: expected a label; found nothing"),
        ("a.jsonl", SNLI.replace("gold_label", "score"), r":1: expected a number as score; found 'neutral'"),
        ("a.jsonl", '{"sentence1": "a", "sentence2": "b", "score": %s}' % ("9" * 400), r":1: expected a number"),
    ],
)
def test_errors_in_pairs_name_the_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        pairs([write_file(tmp_path, text, name)])
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_unknown_formats_of_pairs_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file_format must be one of auto, tsv, csv, jsonl"):
        pairs([tmp_path], file_format="lines")


@needs_data
def test_published_sick_has_the_expected_pairs() -> None:
    train, dev = (pairs([DATA / "nli-sick" / f"{part}.txt.xz"]) for part in ("train", "dev"))
    assert (len(train), len(dev)) == (4500, 500)
    assert Counter(one.label for one in dev) == {"NEUTRAL": 282, "ENTAILMENT": 144, "CONTRADICTION": 74}
    assert all(one.score is not None and 1 <= one.score <= 5 for one in train + dev)
