"""Usages: found in a corpus, marked in a sentence, read from DWUG files, and embedded."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from elmo import ConfigError, DataError, ShapeError
from elmo.embed.elmo import Elmo
from elmo.lexicon.usages import (
    Usage,
    Usages,
    embed_usages,
    entry_key,
    find_marked_usage,
    find_marked_usages,
    find_usages,
    read_uses,
    respell,
    sort_periods,
    strip_part_of_speech,
    unit_rows,
)
from elmo.text.reader import Sentence
from elmo.text.tokenizers import Tokens, WhitespaceTokenizer, load_tokenizer
from tests.lexicon.conftest import LINES

SENTENCES = [Sentence(WhitespaceTokenizer()(line), "text", k) for k, line in enumerate(LINES, start=1)]


def test_words_and_phrases_are_found_in_any_case_with_their_spans(elmo: Elmo) -> None:
    found = find_usages(SENTENCES, ["bank", "New York", "sea"], key=entry_key(elmo))
    assert [(one.word, one.place, one.begin) for one in found["bank"]] == [
        ("bank", "text:1", 4),
        ("bank", "text:2", 1),
        ("Bank", "text:4", 0),
        ("bank", "text:4", 2),
        ("bank", "text:5", 5),
    ]
    assert [one.word for one in found["New York"]] == ["New York", "new york"]
    assert found["sea"] == []


def test_case_can_matter(elmo: Elmo) -> None:
    found = find_usages(SENTENCES, ["Bank", "RIVER"], key=entry_key(elmo, keep_case=True))
    assert [len(usages) for usages in found.values()] == [1, 1]


def test_a_sample_is_uniform_in_order_and_independent_of_other_words(elmo: Elmo) -> None:
    sentences = [Sentence(Tokens.from_words(["x", "y"]), "text", k) for k in range(1, 101)]
    one = find_usages(sentences, ["x"], key=entry_key(elmo), limit=10, seed=3)["x"]
    both = find_usages(sentences, ["y", "x"], key=entry_key(elmo), limit=10, seed=3)
    assert one == both["x"]
    lines = [int(usage.place.split(":")[1]) for usage in one]
    assert lines == sorted(lines)
    assert len(set(lines)) == 10
    assert max(lines) > 30  # not just the first ones
    chosen = np.zeros(100)
    for seed in range(300):
        for usage in find_usages(sentences, ["x"], key=entry_key(elmo), limit=10, seed=seed)["x"]:
            chosen[int(usage.place.split(":")[1]) - 1] += 1
    assert chosen.min() > 10
    assert chosen.max() < 60  # 30 expected of each


def test_a_usage_keeps_the_text_of_its_sentence(elmo: Elmo) -> None:
    usage = Usage(WhitespaceTokenizer()("The river  rose ."), 1, 2)
    assert usage.parts() == ("The ", "river", "  rose .")
    assert Usage(Tokens.from_words(["New", "York", "rose"]), 0, 2).parts() == ("", "New York", " rose")


def test_vectors_equal_encode_and_a_phrase_has_the_mean(elmo: Elmo) -> None:
    found = find_usages(SENTENCES, ["bank", "New York"], key=entry_key(elmo))
    usages = [usage for group in found.values() for usage in group]
    vectors = embed_usages(elmo, usages, layers="top").vectors
    for usage, vector in zip(usages, vectors, strict=True):
        whole = np.asarray(elmo.encode([usage.sentence], layers="top")[0].vectors)
        assert np.array_equal(vector, whole[usage.begin : usage.end].mean(axis=0))
    assert embed_usages(elmo, []).vectors.shape == (0, elmo.width)


def test_a_usage_can_be_respelled() -> None:
    usage = Usage(WhitespaceTokenizer()("The Banks failed ."), 1, 2, "here")
    found = respell(usage, "bank")
    assert (found.sentence.tokens, found.word, found.place) == (("The", "bank", "failed", "."), "bank", "here")
    longer = respell(usage, "New York")
    assert (longer.word, longer.parts()[2]) == ("New York", " failed .")
    assert respell(usage, "Banks") is usage


def test_invalid_arguments_are_rejected(elmo: Elmo) -> None:
    with pytest.raises(DataError, match=r"the span must be within 0\.\.1 and not empty; found 1\.\.2"):
        Usage(Tokens.from_words(["a"]), 1, 2)
    with pytest.raises(ShapeError, match=r"vectors must have the shape \(0, width\), one row per usage"):
        Usages((), np.zeros((1, 2)))
    with pytest.raises(DataError, match="found only white space"):
        find_usages(SENTENCES, [" "], key=entry_key(elmo))
    with pytest.raises(ConfigError, match="limit must be at least 1"):
        find_usages(SENTENCES, ["a"], key=entry_key(elmo), limit=0)
    with pytest.raises(ConfigError, match="several vectors per usage"):
        embed_usages(elmo, [], layers="all")


# --- Marked words -----------------------------------------------------------------------------------

SPACES = WhitespaceTokenizer()


@pytest.mark.parametrize(
    ("sentence", "word", "expected"),
    [
        ("the bank by the [[bank]] .", None, (4, 5)),
        ("the bank by the bank .", "bank", (1, 2)),
        ("in New York .", "New York", (1, 3)),
        ("in [[New York]] .", "York", (1, 3)),  # the mark has priority
        ("The Bank", "bank", (1, 2)),
    ],
)
def test_the_usage_is_the_mark_or_the_first_occurrence(
    sentence: str, word: str | None, expected: tuple[int, int]
) -> None:
    found = find_marked_usage(SPACES, sentence, word)
    assert (found.begin, found.end) == expected
    assert "[[" not in "".join(found.parts())


@pytest.mark.parametrize(
    ("sentence", "word", "warning"),
    [("the [[bank]]er", None, "'bank' is part of a token; using the whole token 'banker'"), ("a bank", "bank", "")],
)
def test_a_mark_inside_a_token_selects_the_token_with_a_warning(
    sentence: str, word: str | None, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    find_marked_usage(SPACES, sentence, word)
    assert warning in caplog.text
    assert bool(caplog.records) == bool(warning)


def test_a_sentence_can_be_a_list_of_tokens() -> None:
    assert find_marked_usage(SPACES, ["a", "New", "York"], "New York").word == "New York"


def test_chinese_words_are_found() -> None:
    pytest.importorskip("jieba")
    found = find_marked_usage(load_tokenizer("zh"), "他每天吃一个[[苹果]]。")
    assert found.parts() == ("他每天吃一个", "苹果", "。")


@pytest.mark.parametrize(
    ("sentence", "word", "message"),
    [
        ("the bank", None, "sentence 7: no word is marked"),
        ("the bank", "river", "sentence 7: 'river' does not occur in 'the bank'"),
        ("[[a]] [[b]]", None, "only one word may be marked"),
        ("", "x", "does not occur in"),
    ],
)
def test_a_missing_word_is_reported(sentence: str, word: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_marked_usage(SPACES, sentence, word, number=7)


def test_all_marked_words_of_a_sentence_are_found() -> None:
    found = find_marked_usages(load_tokenizer("en"), "By [[New York]]'s old [[banks]].", number=3)
    assert [usage.word for usage in found] == ["New York", "banks"]
    assert {usage.place for usage in found} == {"sentence 3"}
    assert {"".join(usage.parts()) for usage in found} == {"By New York's old banks."}
    assert found[0].sentence is found[1].sentence  # so it is encoded once


def test_one_mark_gives_the_same_usage_in_both_functions() -> None:
    for sentence in ("the bank by the [[bank]] .", "in [[New York]] ."):
        assert find_marked_usages(SPACES, sentence) == [find_marked_usage(SPACES, sentence)]


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("a bank", r"sentence 7: expected a word marked like \[\[this\]\], found none: 'a bank'"),
        ("[[a]] [[ ]]", r"sentence 7: a mark \[\[ \]\] must contain a word; found an empty mark"),
        ("a [[]] b", "found an empty mark"),
    ],
)
def test_an_empty_mark_is_reported(sentence: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_marked_usages(SPACES, sentence, number=7)
    with pytest.raises(DataError, match=r"sentence 7: (no word is marked|a mark \[\[ \]\] must contain a word)"):
        find_marked_usage(SPACES, sentence, number=7)


def test_a_mark_without_a_token_is_reported() -> None:
    class Cut(WhitespaceTokenizer):
        """A tokenizer that drops tokens, as some do with control characters."""

        def __call__(self, text: str) -> Tokens:
            found = super().__call__(text)
            pairs = zip(found.tokens, found.offsets or (), strict=True)
            tokens, places = zip(*(pair for pair in pairs if pair[0] != "-"), strict=True)
            return Tokens(text, tokens, places)

    with pytest.raises(DataError, match="sentence 7: expected a word at the marked characters, found '-'"):
        find_marked_usages(Cut(), "the [[-]] bank", number=7)


# --- DWUG files -------------------------------------------------------------------------------------

HEAD = "lemma\tpos\tdate\tgrouping\tidentifier\tcontext_tokenized\tindexes_target_token_tokenized\n"


def row(lemma: str, period: str, text: str, index: str = "1", identifier: str = "") -> str:
    return f"{lemma}\tnn\t1850\t{period}\t{identifier}\t{text}\t{index}\n"


def test_lemmas_periods_sentences_and_spans_are_read(tmp_path: Path) -> None:
    first = HEAD + row("bank", "10", 'the " bank', "2", "a-1") + row("bank", "2", "a bank ,", "1", "a-2")
    (tmp_path / "bank.uses.csv").write_text(first, encoding="utf-8")
    (tmp_path / "data" / "tree").mkdir(parents=True)
    with lzma.open(tmp_path / "data" / "tree" / "uses.csv.xz", "wt", encoding="utf-8") as file:
        file.write(HEAD + row("tree", "2", "old trees and 树 here", "1:3") + "\n")
    (tmp_path / "bank.clusters.csv").write_text("identifier\tcluster\n", encoding="utf-8")
    found = read_uses(tmp_path)
    assert {word: list(periods) for word, periods in found.items()} == {"bank": ["2", "10"], "tree": ["2"]}
    usage = found["bank"]["10"][0]
    assert (usage.sentence.tokens, usage.word, usage.place) == (("the", '"', "bank"), "bank", "a-1")
    assert found["tree"]["2"][0].word == "trees and"
    assert found["tree"]["2"][0].place.endswith("uses.csv.xz:2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.uses\.csv:1: expected the columns lemma, .*, found no column lemma, grouping"),
        (HEAD.replace("grouping", "period"), r":1: expected the columns .*, found no column grouping$"),
        (HEAD + "bank\tnn\n", r":2: expected 7 columns, found 2"),
        (HEAD + row("bank", "1", "a bank") + row("bank", "1", "a bank", "2"), r":3: .* below 2, .* found '2'"),
        (HEAD + row("bank", "1", "a bank", "x"), r":2: expected a token index such as 3 or 3:5, found 'x'"),
        (
            HEAD + row("bank", "1", "a bank", "1:1"),
            r":2: expected a token index below 2, or a range within 0:2, found '1:1'",
        ),
        (HEAD + row("", "1", "a bank"), r":2: expected a lemma and a grouping, found '' and '1'"),
    ],
)
def test_an_error_in_a_file_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.uses.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as error:
        read_uses(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_uses_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected files uses\.csv or WORD\.uses\.csv, found none"):
        read_uses(tmp_path)
    with pytest.raises(DataError, match="but it does not exist"):
        read_uses(tmp_path / "none")


def test_periods_are_sorted_as_numbers_if_all_are_numbers() -> None:
    assert sort_periods(["10", "9", "1"]) == ["1", "9", "10"]
    assert sort_periods(["late", "10", "9"]) == ["10", "9", "late"]


def test_the_part_of_speech_is_removed_from_a_lemma() -> None:
    assert [strip_part_of_speech(lemma) for lemma in ("head_nn", "pin_vb", "Schwarz", "_nn")] == [
        "head", "pin", "Schwarz", "_nn",
    ]  # fmt: skip


# --- Unit rows --------------------------------------------------------------------------------------

LEXICON = Path(__file__).parents[2] / "src" / "elmo" / "lexicon"
NUMBERS = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.floats(-1e3, -1e-3))
ROWS = arrays(np.float64, st.tuples(st.integers(0, 5), st.integers(1, 4)), elements=NUMBERS)


@given(ROWS)
def test_rows_get_unit_length_and_keep_their_direction(rows: np.ndarray) -> None:
    before = rows.copy()
    found = unit_rows(rows)
    is_zero = ~rows.any(axis=1)
    assert np.array_equal(rows, before)  # the vectors of an index on disk must not change
    assert found[is_zero].tolist() == before[is_zero].tolist()
    assert np.allclose(np.linalg.norm(found[~is_zero], axis=1), 1)
    assert np.allclose(found * np.linalg.norm(rows, axis=1, keepdims=True), rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_result_has_the_requested_dtype(dtype: type) -> None:
    half = np.array([[300.0, 400.0], [0.0, 0.0]], dtype=np.float16)
    found = unit_rows(half, dtype=dtype)
    assert found.dtype == dtype
    # 300² overflows float16
    assert found.tolist() == [[pytest.approx(0.6, abs=1e-6), pytest.approx(0.8, abs=1e-6)], [0, 0]]


def test_known_norms_are_used() -> None:
    found = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]]), norms=np.array([10.0, 0.0], dtype=np.float32))
    assert found.tolist() == [[pytest.approx(0.3), pytest.approx(0.4)], [0, 0]]


def test_no_other_file_of_the_package_normalizes_rows() -> None:
    for path in LEXICON.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"def _?(units|normali[sz]ed?)\b", text), path
        assert path.name == "usages.py" or "keepdims=True), 1e-" not in text, path
