"""Sentence ends: a table of examples, and hostile text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.text.sentences import split_sentences
from tests.text.hostile import texts

EXAMPLES = [
    ["It rained.", "We stayed in.", "Why not?", "Fine!"],
    ["He met Mr. Smith and Dr. Jones.", "They talked."],
    ["I live in the U.S. with J. R. Smith.", "You do not."],
    ["She left the U.S.", "The plane was late."],
    ["We met at 5 p.m. in Rome.", "It closed at 6 p.m.", "Nobody came."],
    ["Use tools, e.g. a saw, i.e. this one.", "Stop."],
    ["See No. 5 and Fig. 3.", "No.", "Yes."],
    ["Apple Inc. said so.", "It costs 3.14 dollars.", "Version 1.2.3 works."],
    ['"Stop!" he said.', '"Why?"', "He ran."],
    ['He said "no."', "Then (after a while.)", "He left."],
    ["Well... maybe not.", "I think so...", "Then again…", "Yes."],
    ["Visit a.com.", "Mail me@x.org!"],
    ["I shop at Yahoo! in town.", "Really?!", "yes."],
    ["1. First things.", "2. Second things."],
    ["So do I.", "He does."],
    ["lower case.", "then more."],
    ["Привет.", "Как дела?", "Хорошо."],
    ["مرحبا؟", "نعم."],
    ["यह है।", "वह है।"],
]


@pytest.mark.parametrize("sentences", EXAMPLES)
def test_sentences_joined_by_spaces_are_split_again(sentences: list[str]) -> None:
    text = " ".join(sentences)
    assert [text[start:end] for start, end in split_sentences(text)] == sentences


QUOTES = [
    ["Er sagte: „Ich weiß es nicht.“", "Die Straße war nass."],
    ["»Wer bist du?«, fragte sie.", "»Ich sagte: ›Nein.‹«", "Dann ging er."],
    ["„Halt!“ rief er.", "‚Gut.‘", "„Komm.“"],
    ["« Non. »", "Elle dort.", "« Oui. », dit-il.", "« Bon. »"],
    ["”Nej.”", "Hon gick."],
]


@pytest.mark.parametrize("sentences", QUOTES)
def test_closing_quotes_of_other_languages_end_a_sentence(sentences: list[str]) -> None:
    text = " ".join(sentences)
    assert [text[start:end] for start, end in split_sentences(text, "de")] == sentences
    assert [text[start:end] for start, end in split_sentences(text, "en")] == sentences


ENUMERATIONS = [
    ("ca", "Pomes, peres, etc. Després va marxar."),
    ("cs", "Jablka, hrušky atd. Potom odešel."),
    ("de", "Äpfel, Birnen usw. Dann ging er."),
    ("es", "Manzanas, peras, etc. Luego se fue."),
    ("fi", "Omenat, päärynät jne. Sitten hän lähti."),
    ("fr", "Des pommes, des poires, etc. Puis il part."),
    ("hr", "Jabuke, kruške itd. Zatim je otišao."),
    ("it", "Mele, pere, ecc. Poi se ne andò."),
    ("nb", "Epler, pærer osv. Så gikk han."),
    ("nl", "Appels, peren, enz. Daarna ging hij."),
    ("pl", "Jabłka, gruszki itd. Potem wyszedł."),
    ("pt", "Na Av. Paulista há bancos, lojas, etc. Depois saiu."),
    ("pt", "Maçãs, peras, etc. Depois saiu."),
    ("sv", "Äpplen, päron osv. Sedan gick han."),
    ("tr", "Elma, armut vb. Sonra gitti."),
]


@pytest.mark.parametrize(("language", "text"), ENUMERATIONS)
def test_an_abbreviation_of_and_so_on_may_end_a_sentence_in_other_languages(language: str, text: str) -> None:
    middle = text.rindex(". ") + 1
    assert split_sentences(text, language) == [(0, middle), (middle + 1, len(text))]
    continued = text[: middle + 1] + text[middle + 1 :].lower()
    assert split_sentences(continued, language) == [(0, len(text))]


def test_an_opening_quote_after_a_full_stop_starts_the_next_sentence() -> None:
    text = "他走了。“你好。”"
    assert [text[start:end] for start, end in split_sentences(text, "zh")] == ["他走了。", "“你好。”"]


CHINESE = [
    ["今天下雨。", "我们没有出去！", "为什么？"],
    ["他說：「清華大學在北京。」", "我知道。"],
    ["“真的吗？”", "她问。"],
    ["价格是3.5元。", "太贵了！！", "好吧……算了。"],
    ["你好吗?", "我很好.", "再见!"],
    ["全形空格。", "　下一句。"],
]


@pytest.mark.parametrize("language", ["en", "zh", "spacy:zh", "whitespace"])
@pytest.mark.parametrize("sentences", CHINESE)
def test_chinese_sentences_are_split_without_spaces_in_any_language(sentences: list[str], language: str) -> None:
    text = "".join(sentences)
    found = [text[start:end] for start, end in split_sentences(text, language)]
    assert found == [sentence.strip() for sentence in sentences]


def test_only_chinese_ends_sentences_at_its_semicolon() -> None:
    text = "春天来了；花开了。"
    assert len(split_sentences(text, "zh")) == 2
    assert len(split_sentences(text, "en")) == 1


def test_a_closing_quote_before_a_comma_does_not_end_a_sentence() -> None:
    assert len(split_sentences("「真的？」，她问。", "zh")) == 1


@pytest.mark.parametrize("gap", ["\n\n", "\n \t\n", "\r\n\r\n", "\n\n\n", "\u2029"])
def test_a_blank_line_always_ends_a_sentence(gap: str) -> None:
    assert split_sentences(f"A title{gap}and text") == [(0, 7), (7 + len(gap), 15 + len(gap))]


def test_a_single_line_break_does_not_end_a_sentence() -> None:
    assert split_sentences("one\nsentence") == [(0, 12)]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u3000"])
def test_text_without_words_has_no_sentences(text: str) -> None:
    assert split_sentences(text) == []


@given(texts, st.sampled_from(["en", "zh"]))
@settings(max_examples=200, deadline=None)
def test_no_character_is_lost(text: str, language: str) -> None:
    at = 0
    for start, end in split_sentences(text, language):
        assert at <= start < end <= len(text)
        assert not text[at:start].strip()
        assert text[start:end] == text[start:end].strip()
        at = end
    assert not text[at:].strip()


@pytest.mark.parametrize(
    "unit", [".", ". ", "a. ", "1. ", "Mr. ", '."', "\n ", "\n\n", "。”", "…", " ", "Yahoo! x", "no. "]
)
def test_repeated_pieces_are_split_in_linear_time(unit: str) -> None:
    text = unit * (60_000 // len(unit))  # quadratic rules would need minutes
    spans = split_sentences(text)
    assert sum(len(text[start:end].replace(" ", "")) for start, end in spans) == len("".join(text.split()))
