"""Tokenizers by name, their offsets, and errors."""

from __future__ import annotations

import importlib.util
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.errors import ConfigError, DataError, MissingExtraError
from elmo.text.tokenizers import Tokens, WhitespaceTokenizer, load_tokenizer
from tests.text.hostile import assert_sound, texts

HAS_SPACY = importlib.util.find_spec("spacy") is not None


def test_the_default_is_english() -> None:
    assert load_tokenizer().name == load_tokenizer("default").name == load_tokenizer("en").name == "en"


@pytest.mark.parametrize("name", ["", "klingon", "EN", "spacy", "zh-cn", "x" * 1000, "a\nb"])
def test_an_unknown_name_gives_one_line_with_the_known_names(name: str) -> None:
    with pytest.raises(
        ConfigError, match="tokenizer must be one of en, whitespace, zh, characters, spacy:LANG, the code of"
    ) as caught:
        load_tokenizer(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["en", "whitespace"])
def test_tokenizers_can_be_pickled(name: str) -> None:
    copy = pickle.loads(pickle.dumps(load_tokenizer(name)))
    assert copy("do it").tokens == ("do", "it")


def test_words_of_the_caller_are_not_changed() -> None:
    words = ["a b", "", "<S>", "\ud800", "\u3000"]
    assert Tokens.from_words(words) == Tokens(None, tuple(words), None)
    assert len(Tokens.from_words(words)) == 5


@pytest.mark.parametrize("bad", ["one string", [b"bytes"], ["a", None], ["a", ["b"]]])
def test_words_of_the_caller_must_be_strings(bad: object) -> None:
    with pytest.raises(DataError, match="tokens: expected"):
        Tokens.from_words(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "inside", ["\u3000", "\xa0", "\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\u200b", "\x00"]
)
def test_unusual_white_space_stays_inside_tokens(inside: str) -> None:
    assert WhitespaceTokenizer()(f" a{inside}b\t{inside}  c\r\n").tokens == (f"a{inside}b", inside, "c")


@given(st.lists(st.text(st.characters(), min_size=1).filter(lambda w: not set(w) & set(" \t\n\r"))))
def test_tokens_joined_by_spaces_are_split_again(words: list[str]) -> None:
    assert WhitespaceTokenizer()(" ".join(words)).tokens == tuple(words)


@given(texts)
def test_whitespace_tokens_cover_every_text(text: str) -> None:
    assert_sound(WhitespaceTokenizer()(text), text)


@given(texts)
def test_characters_cover_every_text_and_each_is_a_token(text: str) -> None:
    tokens = load_tokenizer("characters")(text)
    assert_sound(tokens, text)
    assert all(len(token) == 1 for token in tokens.tokens)


def test_the_letters_of_a_protein_are_its_tokens() -> None:
    assert load_tokenizer("characters")("MKT AY\n").tokens == ("M", "K", "T", "A", "Y")


@pytest.mark.skipif(HAS_SPACY, reason="spaCy is installed")
def test_without_spacy_the_error_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'pyelmo\[spacy\]'"):
        load_tokenizer("spacy:de")


@pytest.mark.skipif(not HAS_SPACY, reason="spaCy is not installed")
class TestSpacy:
    @pytest.mark.slow
    def test_german_rules_know_german_abbreviations(self) -> None:
        assert load_tokenizer("spacy:de")("Das ist z.B. so.").tokens == ("Das", "ist", "z.B.", "so", ".")

    def test_an_unknown_language_gives_one_line(self) -> None:
        for code in ("nope", "en.punctuation"):
            with pytest.raises(ConfigError, match=f"spaCy has no tokenizer for '{code}'") as caught:
                load_tokenizer(f"spacy:{code}")
            assert "\n" not in str(caught.value)

    @pytest.mark.slow
    @settings(max_examples=50, deadline=None)
    @given(texts)
    def test_spacy_tokens_cover_every_text(self, text: str) -> None:
        assert_sound(load_tokenizer("spacy:fr")(text), text)

    def test_runs_of_any_length_are_tokenized(self) -> None:
        text = "x " + "a" * 20_000 + " (" * 3
        assert_sound(load_tokenizer("spacy:en")(text), text)
