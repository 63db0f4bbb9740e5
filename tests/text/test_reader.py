"""Sentences from text, token files and CoNLL-U, with their positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from elmo.errors import ConfigError, DataError, EncodingError, SentenceTooLongError
from elmo.text.english import EnglishTokenizer
from elmo.text.lines import Line, Tally
from elmo.text.reader import InputFormat, Sentence, align_words, read_conllu, read_sentences, require_words
from elmo.text.tokenizers import Tokens, load_tokenizer
from tests.text.hostile import assert_sound, texts

EN = load_tokenizer("en")


def test_each_line_is_a_sentence_and_empty_lines_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("I don't. You do.\n\n  \nlast", encoding="utf-8")
    found = list(read_sentences([file], tokenizer=EN))
    assert [sentence.tokens.tokens for sentence in found] == [
        ("I", "do", "n't", ".", "You", "do", "."),
        (),
        (),
        ("last",),
    ]
    assert [sentence.place for sentence in found] == [f"{file}:{k}" for k in (1, 2, 3, 4)]


@pytest.mark.parametrize("input_format", ["text", "tokens", "conllu"])
@pytest.mark.parametrize("token", ["a" * 70_000, "河" * 30_000])
def test_a_token_over_the_limit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, input_format: InputFormat
) -> None:
    file = tmp_path / "a.txt"
    row = "{}\t{}" + 8 * "\t_" + "\n"
    rows = row.format(1, "fine") + row.format(2, token) + "\n"
    file.write_text(rows if input_format == "conllu" else f"fine\n{token} .\n", encoding="utf-8")
    tokenizer = load_tokenizer("whitespace")  # the English one makes a token of each Han character

    def read() -> list[Sentence]:
        return list(read_sentences([file], tokenizer=tokenizer, input_format=input_format))

    with pytest.raises(DataError, match=r"a\.txt:\d: a token must have at most 65,536 bytes.*ELMO_MAX_TOKEN_BYTES"):
        read()
    monkeypatch.setenv("ELMO_MAX_TOKEN_BYTES", "90000")
    assert token in read()[-1].tokens.tokens


def test_a_line_of_a_million_tokens_is_rejected_before_memory_is_full(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("ok\n" + "a," * 2_000_000)
    with pytest.raises(SentenceTooLongError, match=r"a\.txt:2: a text must have at most 1,048,576 tokens"):
        list(read_sentences([file], tokenizer=EN))


def test_lines_are_split_on_request_and_no_line_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("One here.  Two there.\n\n今天下雨。我们回家。\n", encoding="utf-8")
    found = list(read_sentences([str(file)], tokenizer=EN, split=True))
    assert [(s.tokens.text, s.line, s.start) for s in found] == [
        ("One here.", 1, 0),
        ("Two there.", 1, 11),
        ("", 2, 0),
        ("今天下雨。", 3, 0),
        ("我们回家。", 3, 5),
    ]


def test_token_files_are_split_only_at_spaces(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("don't <S> a\u3000b\n", encoding="utf-8")
    (sentence,) = read_sentences([file], tokenizer=EN, input_format="tokens")
    assert sentence.tokens.tokens == ("don't", "<S>", "a\u3000b")
    assert sentence.tokens.offsets == ((0, 5), (6, 9), (10, 13))


def test_conllu_files_give_their_words(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text("# text = ab\n" + "".join(f"{k}\t{form}" + "\t_" * 8 + "\n" for k, form in ((1, "a"), (2, "b"))))
    (sentence,) = read_sentences([file], tokenizer=EN, input_format="conllu")
    assert (sentence.tokens.tokens, sentence.tokens.offsets, sentence.line) == (("a", "b"), ((0, 1), (1, 2)), 2)


def test_files_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    found = [sentence.tokens.text for sentence in read_sentences([tmp_path / "b.txt", tmp_path], tokenizer=EN)]
    assert found == ["b.txt", "a.txt", "b.txt"]


def test_a_typo_is_an_error_before_the_first_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: no such file"):
        read_sentences([tmp_path / "absent.txt"], tokenizer=EN)
    with pytest.raises(ConfigError, match="must be one of text, tokens, conllu; found 'xml'"):
        read_sentences([], tokenizer=EN, input_format="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="split requires input format text"):
        read_sentences([], tokenizer=EN, input_format="tokens", split=True)


def test_the_error_policy_reaches_every_format(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a\n\xff\n")
    for input_format in ("text", "tokens"):
        with pytest.raises(EncodingError, match=r"a\.txt:2: byte 1 of the line \(0xff\)"):
            list(read_sentences([file], tokenizer=EN, input_format=input_format))  # type: ignore[arg-type]
        tally = Tally()
        found = read_sentences([file], tokenizer=EN, input_format=input_format, errors="replace", tally=tally)  # type: ignore[arg-type]
        assert [sentence.tokens.tokens for sentence in found] == [("a",), ("\ufffd",)]
        assert tally.repaired == 1


def test_text_without_words_is_an_error_and_other_text_is_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    for text in ("", "\n \n"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"a\.txt: expected text, found no words$"):
            require_words(read_sentences([file], tokenizer=EN), inputs=[file])
    with pytest.raises(DataError, match=r"^<stdin>: expected text"):
        require_words([], inputs=["-"])
    file.write_text("\na\n\nb\n")
    expected = list(read_sentences([file], tokenizer=EN))
    assert list(require_words(read_sentences([file], tokenizer=EN), inputs=[file])) == expected


def read(text: str) -> list[Sentence]:
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


def test_words_are_read_and_ranges_and_empty_nodes_are_skipped() -> None:
    (sentence,) = read(DONT)
    assert sentence.tokens == Tokens("I don't .", ("I", "do", "n't", "."), ((0, 1), (2, 4), (4, 7), (8, 9)))
    assert (sentence.path, sentence.line) == ("f.conllu", 3)


def test_blank_lines_separate_sentences_and_the_last_needs_none() -> None:
    found = read(f"\n{row(1, 'a')}\n\n \t\n{row(1, 'b')}\n{row(2, 'c')}")
    assert [sentence.tokens.tokens for sentence in found] == [("a",), ("b", "c")]
    assert [sentence.line for sentence in found] == [2, 5]
    assert all(sentence.tokens.text is None and sentence.tokens.offsets is None for sentence in found)


def test_words_that_do_not_spell_the_text_have_no_offsets() -> None:
    (sentence,) = read(
        "\n".join(["# text = Voy al cine", row(1, "Voy"), row("2-3", "al"), row(2, "a"), row(3, "el"), row(4, "cine")])
    )
    assert sentence.tokens == Tokens("Voy al cine", ("Voy", "a", "el", "cine"), None)


def test_a_text_comment_belongs_to_one_sentence_only() -> None:
    found = read(f"# text = a\n{row(1, 'a')}\n\n{row(1, 'a')}")
    assert [sentence.tokens.text for sentence in found] == ["a", None]


def test_comments_alone_are_not_a_sentence() -> None:
    assert read("# newdoc\n\n# global\n") == []


def test_forms_may_contain_spaces_and_unusual_characters() -> None:
    (sentence,) = read("\n".join(["# text = 10 000 \u3000 x\x85y", row(1, "10 000"), row(2, "x\x85y")]))
    assert sentence.tokens.offsets == ((0, 6), (9, 12))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("1\tword", r"f\.conllu:2: expected 10 columns separated by tabs, found 2"),
        (row(1, "a").replace("\t", " "), r"f\.conllu:2: expected 10 columns separated by tabs, found 1"),
        (row(1, ""), r"f\.conllu:2: expected a word form in column 2, found an empty string"),
        (row(2, "a"), r"f\.conllu:2: expected word id 1, found '2'"),
        (row("x", "a"), r"f\.conllu:2: expected word id 1, found 'x'"),
        (row("١", "a"), r"f\.conllu:2: expected word id 1, found '١'"),
        (row(1, "a") + "\n" + row(1, "b"), r"f\.conllu:3: expected word id 2, found '1'"),
    ],
)
def test_a_bad_line_gives_an_error_with_its_number(bad: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(f"# comment\n{bad}\n")


@given(texts)
@settings(deadline=None)
def test_tokens_of_a_text_align_with_it(text: str) -> None:
    words = EnglishTokenizer()(text)
    assert align_words(words.tokens, text) == words.offsets


@given(texts, texts)
@settings(deadline=None)
def test_an_alignment_is_correct_or_none(text: str, other: str) -> None:
    words = EnglishTokenizer()(other).tokens
    if (places := align_words(words, text)) is not None:
        assert_sound(Tokens(text, words, places), text)


def test_missing_or_extra_words_do_not_align() -> None:
    assert align_words(["a"], "a b") is None
    assert align_words(["a", "b"], "a") is None
    assert align_words([], " ") == ()
