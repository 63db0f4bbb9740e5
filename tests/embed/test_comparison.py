"""``compare``: finding a word in several sentences, and how similar its vectors are."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo, similarity
from elmo.embed.comparison import compare
from tests.formats.tiny import tiny_model

RIVER, MONEY = "I sat by the bank of the river .", "The bank lent me money ."


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


def words(elmo: Elmo, word: str, *sentences: str) -> list[str]:
    """Return the word that was found in each sentence."""
    return [use.word for use in compare(elmo, word, sentences).uses]


def test_each_layer_and_the_average_have_a_matrix_of_cosines(elmo: Elmo) -> None:
    result = compare(elmo, "bank", [RIVER, MONEY], layers="all")
    assert list(result.matrices) == ["0", "1", "2", "average"]
    river, money = elmo.encode([RIVER, MONEY], layers="all")
    a, b = np.asarray(river.word("bank")), np.asarray(money.word("bank"))
    for layer in range(3):
        assert result.matrices[str(layer)][0, 1] == pytest.approx(similarity(a[layer], b[layer]), abs=1e-12)
    assert result.matrices["average"][0, 1] == pytest.approx(similarity(a.mean(0), b.mean(0)), abs=1e-6)
    for matrix in result.matrices.values():
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        np.testing.assert_allclose(np.diag(matrix), 1.0, atol=1e-12)


def test_only_the_token_layer_ignores_context(elmo: Elmo) -> None:
    result = compare(elmo, "bank", [RIVER, MONEY], layers="all")
    assert result.matrices["0"][0, 1] == pytest.approx(1.0, abs=1e-12)
    assert result.matrices["2"][0, 1] < 0.9999


def test_rows_name_every_pair_of_every_layer_once(elmo: Elmo) -> None:
    result = compare(elmo, "bank", [RIVER, MONEY, "a bank"], layers="all")
    rows = list(result.rows())
    assert [row[:3] for row in rows[:3]] == [("0", 0, 1), ("0", 0, 2), ("0", 1, 2)]
    assert len(rows) == 4 * 3
    assert rows[-1][3] == result.matrices["average"][1, 2]


@pytest.mark.parametrize(
    ("layers", "names"),
    [("sense", ["sense"]), ("top", ["2"]), ("average", ["average"]), ("concat", ["concat"]), (1, ["1"])],
)
def test_layers_can_be_selected(elmo: Elmo, layers: str, names: list[str]) -> None:
    result = compare(elmo, "bank", [RIVER, MONEY], layers=layers)
    assert list(result.matrices) == names
    if names[0].isdigit():
        expected = compare(elmo, "bank", [RIVER, MONEY], layers="all").matrices[names[0]]
        np.testing.assert_array_equal(result.matrices[names[0]], expected)


@pytest.mark.parametrize("layers", [3, -1, "bottom"])
def test_unknown_layers_are_errors(elmo: Elmo, layers: str) -> None:
    with pytest.raises(ConfigError, match=r"0\.\.2"):
        compare(elmo, "bank", [RIVER, MONEY], layers=layers)


def test_the_word_is_found_in_any_case_but_in_the_same_case_first(elmo: Elmo) -> None:
    assert words(elmo, "bank", "Bank and bank", "The BANK .") == ["bank", "BANK"]
    assert words(elmo, "İstanbul", "in İstanbul", "İSTANBUL") == ["İstanbul", "İSTANBUL"]


def test_a_word_is_not_found_inside_another(elmo: Elmo) -> None:
    assert words(elmo, "in", "the king in it", "in it") == ["in", "in"]
    with pytest.raises(DataError, match=r"cannot find 'bank' in sentence 2: 'the banker'"):
        compare(elmo, "bank", [RIVER, "the banker"])
    with pytest.raises(DataError, match="in sentence 1:"):
        compare(elmo, "cafe", ["cafe\u0301", "cafe"])


def test_composed_and_combining_accents_match(elmo: Elmo) -> None:
    assert words(elmo, "Männer", "Die Ma\u0308nner .", "Viele Männer .") == ["Ma\u0308nner", "Männer"]
    assert words(elmo, "Ma\u0308nner", "Die Männer .", "Ma\u0308nner !") == ["Männer", "Ma\u0308nner"]
    assert elmo.encode("Die Ma\u0308nner .").phrase("Männer").shape == (elmo.width,)


def test_a_model_of_simplified_chinese_finds_both_scripts() -> None:
    pytest.importorskip("jieba")
    pytest.importorskip("opencc")
    chinese = Elmo.from_pretrained("zh")
    assert words(chinese, "苹果", "蘋果發布了新手機。", "他每天吃一个苹果。") == ["蘋果", "苹果"]
    assert words(chinese, "蘋果", "苹果发布了新手机。", "他每天吃一個蘋果。") == ["苹果", "蘋果"]
    with pytest.raises(DataError, match="cannot find '水果' in sentence 1"):
        compare(chinese, "水果", ["蘋果發布了新手機。", "他每天吃一個蘋果。"])


def test_a_phrase_has_all_its_tokens(elmo: Elmo) -> None:
    result = compare(elmo, "New York", ["I love New  York !", ["new", "york"]], layers="all")
    assert [use.tokens for use in result.uses] == [("New", "York"), ("new", "york")]
    vectors = np.asarray(elmo.encode("I love New  York !", layers="top").span(2, 4))
    other = np.asarray(elmo.encode([["new", "york"]], layers="top")[0].span(0, 2))
    assert result.matrices["2"][0, 1] == pytest.approx(similarity(vectors, other), abs=1e-12)


def test_a_mark_selects_another_occurrence_or_another_word(elmo: Elmo) -> None:
    result = compare(elmo, "bank", ["the bank by the [[bank]]", "the river [[shore]] ."], layers="all")
    assert [(use.text, use.word, use.span) for use in result.uses] == [
        ("the bank by the bank", "bank", (16, 20)),
        ("the river shore .", "shore", (10, 15)),
    ]
    encoding = elmo.encode("the bank by the bank", layers=2)
    shore = elmo.encode("the river shore .", layers=2).word("shore")
    assert result.matrices["2"][0, 1] == pytest.approx(similarity(encoding.vectors[4], shore), abs=1e-12)


@pytest.mark.parametrize("sentence", ["[[a]] [[b]]", "a [[ ]] b"])
def test_errors_name_the_sentence_of_a_wrong_mark(elmo: Elmo, sentence: str) -> None:
    with pytest.raises(DataError, match=r"sentence 1: (only one word may be marked|a mark)"):
        compare(elmo, "a", [sentence, "a"])


def test_chinese_words_are_found_and_a_part_of_a_token_is_a_warning(
    elmo: Elmo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="elmo"):
        result = compare(elmo, "苹果", [["我", "吃", "苹果"], ["苹果树"]])
    assert [use.tokens for use in result.uses] == [("苹果",), ("苹果树",)]
    assert [record.getMessage() for record in caplog.records] == [
        "sentence 2: '苹果' is only part of the token '苹果树'; using the vector of the token; check the tokenizer"
    ]


@pytest.mark.parametrize(
    ("word", "sentences", "reason"),
    [
        ("bank", ["a bank"], "two or more sentences; found 1"),
        ("bank", "a bank", "two or more sentences"),
        ("bank", [], "found 0"),
        (" ", ["a", "b"], "must not be empty"),
        ("bank", ["a bank", ""], "in sentence 2"),
        ("bank", ["a bank", []], "in sentence 2"),
        ("b\nank", ["x\ny " * 50, ""], "in sentence 1"),
    ],
)
def test_invalid_comparisons_are_one_line_errors(elmo: Elmo, word: str, sentences: list[str], reason: str) -> None:
    with pytest.raises(DataError, match=reason) as caught:
        compare(elmo, word, sentences)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.slow
def test_unusual_characters_are_ordinary_text(elmo: Elmo) -> None:
    result = compare(elmo, "bank", ["\x00 bank \ud800", "<S> bank \u2028 (.*+[", "bank " * 3000])
    assert [use.word for use in result.uses] == ["bank"] * 3
    assert words(elmo, "(.*+[", "a (.*+[ b", "(.*+[") == ["(.*+["] * 2


def test_json_has_the_whole_comparison(elmo: Elmo) -> None:
    result = compare(elmo, "bank", [RIVER, MONEY], layers="all")
    values = json.loads(json.dumps(result.to_json()))
    assert values["word"] == "bank"
    assert values["uses"][0] == {"text": RIVER, "word": "bank", "span": [13, 17], "tokens": ["bank"]}
    np.testing.assert_array_equal(values["similarities"]["1"], result.matrices["1"])
