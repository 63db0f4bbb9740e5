"""Pairs of texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, TextPair
from elmo.tasks.data.texts import WITHOUT_GOLD, read_pairs
from elmo.text.tokenizers import load_tokenizer
from tests.shared import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"published corpora are not at {DATA}")

SNLI = (
    '{"annotator_labels": ["neutral"], "gold_label": "neutral", "sentence1": "A man.", "sentence2": "Old."}\n'
    '{"gold_label": "-", "sentence1": "A man.", "sentence2": "No."}\n'
)
SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "4\tA boy\tNo boy\t3.6\tCONTRADICTION\n24\tA dog\tA cat runs\t1\tNEUTRAL\n"
)


def file(folder: Path, text: str, name: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def test_snli_pairs_without_agreement_are_left_out_and_counted(tmp_path: Path) -> None:
    path = file(tmp_path, SNLI, "snli_1.0_dev.jsonl")
    left_out: Counter[str] = Counter()
    assert read_pairs([path], tokenize=load_tokenizer("en"), left_out=left_out) == [
        TextPair(("A", "man", "."), ("Old", "."), "neutral", None, Location(str(path), 1))
    ]
    assert left_out == {WITHOUT_GOLD: 1}
    assert len(read_pairs([path, path])) == 2


def test_sick_has_labels_and_scores(tmp_path: Path) -> None:
    path = file(tmp_path, SICK, "train.txt")
    assert read_pairs([path]) == [
        TextPair(("A", "boy"), ("No", "boy"), "CONTRADICTION", 3.6, Location(str(path), 2)),
        TextPair(("A", "dog"), ("A", "cat", "runs"), "NEUTRAL", 1.0, Location(str(path), 3)),
    ]


def test_other_tables_are_read_by_name_or_number(tmp_path: Path) -> None:
    csv = file(tmp_path, 'score,sentence1,sentence2\n2.5,"a, b",c\n', "sts.csv")
    assert [(one.first, one.label, one.score) for one in read_pairs([csv])] == [(("a,", "b"), None, 2.5)]
    bare = file(tmp_path, "x\ta b\tc\tyes\n", "bare.tsv")
    found = read_pairs([bare], first=1, second=2, label=-1)
    assert [(one.first, one.second, one.label, one.score) for one in found] == [
        (("a", "b"), ("c",), "yes", None)
    ]
    named = file(tmp_path, '{"p": "a", "h": ["b c"], "gold": 2}', "x.txt")
    assert read_pairs([named], first="p", second="h", label="gold")[0].second == ("b c",)


def test_without_labels_every_pair_is_kept(tmp_path: Path) -> None:
    snli, sick = file(tmp_path, SNLI, "a.jsonl"), file(tmp_path, SICK, "b.txt")
    bare = file(tmp_path, '{"premise": "a", "hypothesis": "b"}', "c.jsonl")
    found = read_pairs([snli, sick, bare], is_labeled=False)
    assert len(found) == 5
    assert all(one.label is None and one.score is None for one in found)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "", "expected examples, found an empty file"),
        ("a.tsv", SICK.splitlines()[0] + "\n", "expected pairs, found none"),
        ("a.tsv", SICK.replace("3.6", "high"), r"a.tsv:2: expected a number as score, found 'high'"),
        ("a.tsv", SICK.replace("3.6", "nan"), r":2: expected a number as score, found 'nan'"),
        ("a.tsv", SICK.replace("A boy", ""), r":2: expected words in the first text, found ''"),
        ("a.tsv", SICK.replace("\tNEUTRAL", ""), r":3: expected 5 columns, as in the header, found 4"),
        ("a.tsv", "sentence1\tsentence2\na\tb\n", r":1: expected a label .* or a score .* found neither"),
        ("a.tsv", "x\ty\na\tb\n", r":1: expected a header with 'sentence1' or"),
        ("a.jsonl", SNLI.replace("sentence2", "s"), r":1: expected 'sentence2' or .* as second text, found"),
        ("a.jsonl", SNLI.replace('"neutral",', "null,"), r":1: expected a label, found nothing"),
        ("a.jsonl", SNLI.replace("gold_label", "score"), r":1: expected a number as score, found 'neutral'"),
        (
            "a.jsonl",
            '{"sentence1": "a", "sentence2": "b", "score": %s}' % ("9" * 400),
            r":1: expected a number",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_pairs([file(tmp_path, text, name)])
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file format: expected one of auto, tsv, csv, jsonl"):
        read_pairs([tmp_path], file_format="lines")  # pyright: ignore[reportArgumentType]


@needs_data
def test_published_sick_has_the_pairs_that_it_should() -> None:
    train, dev = (read_pairs([DATA / "nli-sick" / f"{part}.txt.xz"]) for part in ("train", "dev"))
    assert (len(train), len(dev)) == (4500, 500)
    assert Counter(one.label for one in dev) == {"NEUTRAL": 282, "ENTAILMENT": 144, "CONTRADICTION": 74}
    assert all(one.score is not None and 1 <= one.score <= 5 for one in train + dev)
