"""Files into sentences: plain text, split text, tokens, CoNLL-U, with their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmo.errors import ConfigError, DataError, EncodingError
from elmo.text.reader import Tally, read_sentences, with_a_word
from elmo.text.tokenizers import tokenizer

EN = tokenizer("en")


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


def test_lines_are_split_on_request_and_no_line_vanishes(tmp_path: Path) -> None:
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


def test_tokens_are_cut_at_spaces_only_whatever_the_tokeniser(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("don't <S> a\u3000b\n", encoding="utf-8")
    (sentence,) = read_sentences([file], tokenizer=EN, input_format="tokens")
    assert sentence.tokens.tokens == ("don't", "<S>", "a\u3000b")
    assert sentence.tokens.offsets == ((0, 5), (6, 9), (10, 13))


def test_conllu_files_give_their_words(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    file.write_text(
        "# text = ab\n" + "".join(f"{k}\t{form}" + "\t_" * 8 + "\n" for k, form in ((1, "a"), (2, "b")))
    )
    (sentence,) = read_sentences([file], tokenizer=EN, input_format="conllu")
    assert (sentence.tokens.tokens, sentence.tokens.offsets, sentence.line) == (
        ("a", "b"),
        ((0, 1), (1, 2)),
        2,
    )


def test_files_follow_one_another(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    found = [
        sentence.tokens.text for sentence in read_sentences([tmp_path / "b.txt", tmp_path], tokenizer=EN)
    ]
    assert found == ["b.txt", "a.txt", "b.txt"]


def test_a_typo_is_known_before_work_begins(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt: no such file"):
        read_sentences([tmp_path / "absent.txt"], tokenizer=EN)
    with pytest.raises(ConfigError, match="expected one of text, tokens, conllu, found 'xml'"):
        read_sentences([], tokenizer=EN, input_format="xml")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="splitting into sentences goes with input format text"):
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


def test_a_text_without_a_word_is_refused_and_every_other_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    for text in ("", "\n \n"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"a\.txt: expected text, found no word in it$"):
            with_a_word(read_sentences([file], tokenizer=EN), named=[file])
    with pytest.raises(DataError, match=r"^<stdin>: expected text"):
        with_a_word([], named=["-"])
    file.write_text("\na\n\nb\n")
    expected = list(read_sentences([file], tokenizer=EN))
    assert list(with_a_word(read_sentences([file], tokenizer=EN), named=[file])) == expected
