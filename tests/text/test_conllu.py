"""CoNLL-U: words, what is skipped, alignment with the text, and errors that name file and line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from elmo.errors import DataError
from elmo.text.english import EnglishTokenizer
from elmo.text.lines import Line
from elmo.text.reader import ConlluSentence, align, read_conllu
from elmo.text.tokenizers import Tokens
from tests.text.hostile import assert_sound, texts


def read(text: str) -> list[ConlluSentence]:
    return list(read_conllu(Line(line, k, "f.conllu") for k, line in enumerate(text.split("\n"), 1)))


def row(number: object, form: str) -> str:
    return "\t".join([str(number), form, *"_" * 8])


DONT = "\n".join(
    [
        "# sent_id = 1",
        "# text = I don't .",
        row(1, "I"),
        row("2-3", "don't"),
        row(2, "do"),
        row(3, "n't"),
        row("3.1", "do"),
        row(4, "."),
    ]
)


def test_words_are_read_and_ranges_and_empty_nodes_skipped() -> None:
    (sentence,) = read(DONT)
    assert sentence.tokens == Tokens("I don't .", ("I", "do", "n't", "."), ((0, 1), (2, 4), (4, 7), (8, 9)))
    assert (sentence.path, sentence.line) == ("f.conllu", 3)


def test_blank_lines_part_sentences_and_the_last_needs_none() -> None:
    found = read(f"\n{row(1, 'a')}\n\n \t\n{row(1, 'b')}\n{row(2, 'c')}")
    assert [sentence.tokens.tokens for sentence in found] == [("a",), ("b", "c")]
    assert [sentence.line for sentence in found] == [2, 5]
    assert all(sentence.tokens.text is None and sentence.tokens.offsets is None for sentence in found)


def test_words_that_do_not_spell_the_text_have_no_offsets() -> None:
    (sentence,) = read(
        "\n".join(
            [
                "# text = Voy al cine",
                row(1, "Voy"),
                row("2-3", "al"),
                row(2, "a"),
                row(3, "el"),
                row(4, "cine"),
            ]
        )
    )
    assert sentence.tokens == Tokens("Voy al cine", ("Voy", "a", "el", "cine"), None)


def test_a_text_belongs_to_its_own_sentence_only() -> None:
    found = read(f"# text = a\n{row(1, 'a')}\n\n{row(1, 'a')}")
    assert [sentence.tokens.text for sentence in found] == ["a", None]


def test_comments_alone_are_no_sentence() -> None:
    assert read("# newdoc\n\n# global\n") == []


def test_forms_may_hold_spaces_and_hostile_characters() -> None:
    (sentence,) = read("\n".join(["# text = 10 000 \u3000 x\x85y", row(1, "10 000"), row(2, "x\x85y")]))
    assert sentence.tokens.offsets == ((0, 6), (9, 12))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("1\tword", r"f\.conllu:2: expected 10 columns parted by tabs, found 2"),
        (row(1, "a").replace("\t", " "), r"f\.conllu:2: expected 10 columns parted by tabs, found 1"),
        (row(1, ""), r"f\.conllu:2: expected a form in column 2, found nothing"),
        (row(2, "a"), r"f\.conllu:2: expected word 1, found id '2'"),
        (row("x", "a"), r"f\.conllu:2: expected word 1, found id 'x'"),
        (row("١", "a"), r"f\.conllu:2: expected word 1, found id '١'"),
        (row(1, "a") + "\n" + row(1, "b"), r"f\.conllu:3: expected word 2, found id '1'"),
    ],
)
def test_a_bad_line_is_named(bad: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(f"# comment\n{bad}\n")


@given(texts)
@settings(deadline=None)
def test_tokens_of_a_text_align_with_it(text: str) -> None:
    words = EnglishTokenizer()(text)
    assert align(words.tokens, text) == words.offsets


@given(texts, texts)
@settings(deadline=None)
def test_an_alignment_is_sound_or_none(text: str, other: str) -> None:
    words = EnglishTokenizer()(other).tokens
    if (places := align(words, text)) is not None:
        assert_sound(Tokens(text, words, places), text)


def test_words_left_over_on_either_side_do_not_align() -> None:
    assert align(["a"], "a b") is None
    assert align(["a", "b"], "a") is None
    assert align([], " ") == ()
