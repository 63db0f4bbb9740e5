"""Sense-tagged corpora in both formats, errors in them, and scores of predictions."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import DataError
from elmo.lexicon.sense_corpora import Instance, SenseSentence, read_gold, read_sense_corpus, score_senses
from elmo.lexicon.usages import find_marked_usages
from elmo.text.tokenizers import load_tokenizer

WORDS: list[dict[str, Any]] = [
    {"w": "The", "pos": "DT"},
    {"w": "Fulton_County", "pos": "NNP", "lemma": "group", "sk": ["group%1:03:00::"], "pn": "group"},
    {"w": "``"},
    {"w": "primary_election", "pos": "NN", "lemma": "primary_election", "sk": ["primary_election%1:04:00::"]},
    {"w": "year", "pos": "NN", "lemma": "year", "sk": ["year%1:28:02::", "year%1:28:01::"]},
    {"w": "."},
]
XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="made up">
<text id="d0">
<sentence id="d0.s0">
<wf lemma="the" pos="DET">The</wf>
<instance id="d0.s0.t0" lemma="bank" pos="NOUN">banks</instance>
<wf lemma="&amp;" pos=".">&amp;</wf>
<instance id="d0.s0.t1" lemma="point_out" pos="VERB">pointed out</instance>
</sentence>
</text>
</corpus>
"""
GOLD = "d0.s0.t0 bank%1:17:01::\nd0.s0.t1 point_out%2:32:01:: point_out%2:32:00::\n"


def jsonl(path: Path, *sentences: object) -> Path:
    path.write_text("".join(json.dumps(sentence) + "\n" for sentence in sentences))
    return path


def xml(folder: Path, text: str = XML, gold: str = GOLD) -> tuple[Path, Path]:
    (folder / "d.xml").write_text(text)
    (folder / "d.txt").write_text(gold)
    return folder / "d.xml", folder / "d.txt"


def test_joined_words_are_separate_tokens_and_names_have_no_sense(tmp_path: Path) -> None:
    (found,) = read_sense_corpus(jsonl(tmp_path / "s.jsonl", {"doc": "a", "s": "7", "toks": WORDS}))
    assert found.tokens.tokens == ("The", "Fulton", "County", '"', "primary", "election", "year", ".")
    assert found.document == "a"
    assert found.instances == (
        Instance("a.s7.t3", 4, 6, "primary_election", "noun", ("primary_election%1:04:00::",)),
        Instance("a.s7.t4", 6, 7, "year", "noun", ("year%1:28:02::", "year%1:28:01::")),
    )
    assert [usage.word for usage in found.usages()] == ["primary election", "year"]


def test_instances_have_unique_ids(tmp_path: Path) -> None:
    bank = {"toks": [{"w": "bank", "lemma": "bank", "sk": ["bank%1:17:01::"]}]}
    found = [sentence.instances[0].id for sentence in read_sense_corpus(jsonl(tmp_path / "a.jsonl", bank, bank))]
    assert len(set(found)) == 2
    with pytest.raises(DataError, match=r"a\.jsonl:2: instance 'd\.s1\.t0' occurs twice"):
        list(read_sense_corpus(jsonl(tmp_path / "a.jsonl", *[bank | {"doc": "d", "s": "1"}] * 2)))


def test_a_compressed_corpus_is_read(tmp_path: Path) -> None:
    with lzma.open(tmp_path / "s.jsonl.xz", "wt") as file:
        file.write("\n" + json.dumps({"toks": WORDS}) + "\n\n")
    (found,) = read_sense_corpus(tmp_path / "s.jsonl.xz")
    assert found.place.endswith("s.jsonl.xz:2")
    assert len(found.instances) == 2


@pytest.mark.parametrize(
    ("sentence", "problem"),
    [
        ([], "expected an object with a list 'toks'"),
        ({"toks": 3}, "expected an object with a list 'toks'"),
        ({"toks": ["a"]}, "token 0: expected an object with a word 'w'"),
        ({"toks": [{"w": " "}]}, "token 0: expected an object with a word 'w'"),
        ({"toks": [{"w": "a", "sk": ["a"], "lemma": "a"}]}, "token 0: expected sense keys 'sk', found"),
        ({"toks": [{"w": "a", "sk": "a%1:01:01::", "lemma": "a"}]}, "token 0: expected sense keys 'sk', found"),
        ({"toks": [{"w": "a", "sk": ["a%1:01:01::"]}]}, "token 0: expected a 'lemma' next to 'sk'"),
    ],
)
def test_an_error_in_a_sentence_names_its_line(tmp_path: Path, sentence: object, problem: str) -> None:
    path = jsonl(tmp_path / "s.jsonl", {"toks": WORDS}, sentence)
    with pytest.raises(DataError, match=rf"s\.jsonl:2: {problem}"):
        list(read_sense_corpus(path))


def test_invalid_json_and_empty_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(DataError, match=r"s\.jsonl:1: expected a sentence in JSON"):
            list(read_sense_corpus(path))
    path.write_text("\n\n")
    with pytest.raises(DataError, match=r"s\.jsonl: expected sentences in JSON lines or XML, found none"):
        list(read_sense_corpus(path))
    with pytest.raises(DataError, match=r"s\.jsonl: a corpus with a file of gold keys must be XML"):
        list(read_sense_corpus(jsonl(path, {"toks": WORDS}), gold=path))


def test_xml_and_its_gold_keys_are_joined(tmp_path: Path) -> None:
    data, gold = xml(tmp_path)
    (found,) = read_sense_corpus(data, gold=gold)
    assert found.tokens.tokens == ("The", "banks", "&", "pointed", "out")
    assert found.place.endswith("d.xml:4")
    assert found.instances == (
        Instance("d0.s0.t0", 1, 2, "bank", "noun", ("bank%1:17:01::",)),
        Instance("d0.s0.t1", 3, 5, "point_out", "verb", ("point_out%2:32:01::", "point_out%2:32:00::")),
    )
    (without,) = read_sense_corpus(data)
    assert [instance.keys for instance in without.instances] == [(), ()]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("</wf>\n<inst", "</wg>\n<inst", r"d\.xml:5: cannot parse the XML: mismatched tag"),
        ("</corpus>\n", "", r"d\.xml:11: cannot parse the XML: no element found"),
        ("&amp;</wf>", "&lol;</wf>", r"d\.xml:7: cannot parse the XML: undefined entity"),
        ('pos="NOUN"', 'pos="X"', r"d\.xml:6: expected an instance with id, lemma and pos NOUN"),
        ("t1", "t0", r"d\.xml:8: instance 'd0\.s0\.t0' occurs twice"),
        ("<text id", "<page id", r"d\.xml:3: expected corpus > text > sentence.* found <page> in corpus"),
        ('">The</wf>', '"><b>The</b></wf>', r"d\.xml:5: .*found <b> in corpus/text/sentence/wf"),
        ('">The</wf>', '"/>', r"d\.xml:5: expected a word, found none"),
        ("<sentence", "stray<sentence", r"d\.xml:4: expected text only in <wf> and <instance>, found 'stray'"),
    ],
)
def test_an_error_in_xml_names_its_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    data, _ = xml(tmp_path, XML.replace(old, new))
    with pytest.raises(DataError, match=problem):
        list(read_sense_corpus(data))


def test_a_dtd_is_rejected_before_its_entities_expand(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE corpus [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    data, _ = xml(tmp_path, XML.replace("?>\n", f"?>\n{bomb}\n"))
    with pytest.raises(DataError, match=r"d\.xml:2: expected XML without a DTD, found a DTD"):
        list(read_sense_corpus(data))


@pytest.mark.parametrize(
    ("gold", "problem"),
    [
        ("", r"d\.txt: expected gold keys, found none"),
        ("d0.s0.t0\n", r"d\.txt:1: expected the id of an instance and its sense keys, found 'd0\.s0\.t0'"),
        ("d0.s0.t0 bank\n", r"d\.txt:1: expected the id of an instance"),
        (GOLD + GOLD, r"d\.txt:3: instance 'd0\.s0\.t0' occurs twice"),
        (GOLD.splitlines()[0], r"d\.txt: expected a key for the instance 'd0\.s0\.t1' \(.*d\.xml:8\)"),
        (GOLD + "d9 bank%1:17:01::\n", r"all instances must be in .*d\.xml; found 1 that are not, such as 'd9'"),
    ],
)
def test_gold_keys_that_do_not_match_the_corpus_are_rejected(tmp_path: Path, gold: str, problem: str) -> None:
    data, path = xml(tmp_path, gold=gold)
    with pytest.raises(DataError, match=problem):
        list(read_sense_corpus(data, gold=path))


def test_gold_keys_are_read_by_id(tmp_path: Path) -> None:
    _, path = xml(tmp_path)
    assert read_gold(path)["d0.s0.t1"] == ("point_out%2:32:01::", "point_out%2:32:00::")


def test_marked_words_are_instances_with_an_unknown_lemma() -> None:
    usages = find_marked_usages(load_tokenizer("en"), "By [[New York]]'s [[banks]].")
    found = SenseSentence.from_usages(usages, pos="noun")
    assert found.tokens.text == "By New York's banks."
    assert [found.usage(instance).word for instance in found.instances] == ["New York", "banks"]
    assert [(instance.lemma, instance.pos, instance.keys) for instance in found.instances] == [("", "noun", ())] * 2
    assert found.usages() == usages


def test_scores_are_those_of_the_unified_framework() -> None:
    gold = [
        Instance("a", 0, 1, "x", "noun", ("x%1:01:00::", "x%1:01:01::")),  # any of them is right
        Instance("b", 0, 1, "x", "noun", ("x%1:01:00::",)),
        Instance("c", 0, 1, "y", "verb", ("y%2:30:00::",)),
        Instance("d", 0, 1, "y", "verb", ("y%2:30:00::",)),  # no answer: recall falls, precision does not
    ]
    answers = {"a": "x%1:01:01::", "b": "x%1:01:02::", "c": "y%2:30:00::", "d": None, "other": "z%1:01:00::"}
    scores = score_senses(answers, gold)
    assert list(scores) == ["all", "noun", "verb"]
    whole = scores["all"]
    assert (whole.n_instances, whole.n_answered, whole.n_right) == (4, 3, 2)
    assert whole.precision == pytest.approx(2 / 3)
    assert whole.recall == pytest.approx(1 / 2)
    assert whole.f1 == pytest.approx(4 / 7)
    assert (scores["verb"].precision, scores["verb"].recall) == (1.0, 0.5)
    assert score_senses({}, gold)["all"].f1 == 0.0
    with pytest.raises(DataError, match="'e' has no gold key; add the file of gold keys"):
        score_senses(answers, [Instance("e", 0, 1, "x", "noun")])
