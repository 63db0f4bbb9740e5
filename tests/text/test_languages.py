"""Languages are detected, and their tokens and sentences follow their own rules."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from elmo.errors import ConfigError
from elmo.text.languages import LANGUAGES, RULES, detect_language
from elmo.text.sentences import split_sentences
from elmo.text.tokenizers import load_tokenizer
from elmo.train.read_text import _guess_language

GERMAN = "Ich saß am 3. Mai mit Dr. Müller am Ufer des Flusses. Dort geht's z.B. der Bank gut."


def test_the_language_of_a_sentence_is_detected() -> None:
    sentences = {
        "de": GERMAN,
        "en": "I sat by the bank of the river and read a book.",
        "fr": "Je lisais un livre au bord de la rivière.",
        "zh": "我坐在河岸上读一本书，银行借给我一些钱，他的朋友都很好。",
        "fi": "Istuin joen rannalla ja luin kirjaa.",
    }
    assert {code: detect_language(text) for code, text in sentences.items()} == {code: code for code in sentences}
    assert detect_language("Hallo!") is None
    assert detect_language("1984 … 2001") is None


@pytest.mark.slow
def test_languages_are_detected_in_short_and_long_texts() -> None:
    """The examples of spaCy: sentences of about ten words, and all sentences of a language together."""
    pytest.importorskip("spacy")
    results: list[bool] = []
    for code in sorted(LANGUAGES):
        try:
            sentences = importlib.import_module(f"spacy.lang.{code}.examples").sentences
        except ImportError:
            continue
        results += [language == code for s in sentences if (language := detect_language(s)) is not None]
        assert code in {detect_language(" ".join(sentences)), "nb"}, code  # Bokmål is sometimes taken for Nynorsk
    assert len(results) > 200
    assert sum(results) / len(results) > 0.95


def test_german_keeps_ordinals_and_abbreviations() -> None:
    tokens = load_tokenizer("de")(GERMAN).tokens
    assert tokens == (
        "Ich", "saß", "am", "3.", "Mai", "mit", "Dr.", "Müller", "am", "Ufer", "des", "Flusses", ".",
        "Dort", "geht's", "z.B.", "der", "Bank", "gut", ".",
    )  # fmt: skip
    assert [GERMAN[a:b][:4] for a, b in split_sentences(GERMAN, "de")] == ["Ich ", "Dort"]
    assert len(split_sentences(GERMAN, "en")) > 2


def test_french_and_italian_words_are_separated_from_elided_articles() -> None:
    assert load_tokenizer("fr")("L'homme qu'elle aime s’appelle Jean.").tokens == (
        "L'", "homme", "qu'", "elle", "aime", "s’", "appelle", "Jean", ".",
    )  # fmt: skip
    assert load_tokenizer("it")("L'acqua dell'isola").tokens == ("L'", "acqua", "dell'", "isola")
    assert load_tokenizer("en")("It's John's").tokens == ("It", "'s", "John", "'s")


@pytest.mark.parametrize("code", sorted(LANGUAGES))
def test_every_language_has_a_tokenizer_that_keeps_all_characters(code: str) -> None:
    tokenizer = load_tokenizer(code)
    tokens = tokenizer(f"{GERMAN} L'homme 50 % (ca. 3. ) don't 😀 苹果")
    assert tokenizer.name == code
    assert tokens.text is not None
    assert "".join(tokens.tokens) == "".join(tokens.text.split())


def test_rules_are_for_known_languages() -> None:
    assert set(RULES) <= LANGUAGES
    with pytest.raises(ConfigError, match="the code of another language"):
        load_tokenizer("xx")


def test_the_tokenizer_of_a_training_text_follows_its_language() -> None:
    def name(text: str) -> str:
        guess = _guess_language(text)
        assert guess is not None
        return guess.tokenizer

    assert name(GERMAN) == "de"
    assert name("I sat by the bank of the river and read a book.") == "en"
    assert name("我坐在河岸上读一本书。") == "zh"
    assert name("Ngồi bên bờ sông tôi đọc một quyển sách rất hay và dài.") == "en"  # no rules for Vietnamese


def test_detection_does_not_slow_the_import_or_the_use_of_a_model() -> None:
    code = "import sys, elmo, elmo.cli, elmo.text.languages, elmo.embed.elmo; assert 'py3langid' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("language", "text", "n"),
    [
        ("ru", "Он родился в 1990 г. Она тоже.", 2),
        ("ru", "Он живёт в г. Москва.", 1),
        ("pl", "Urodził się w 1990 r. Ona też.", 2),
        ("pl", "W 1990 r. wyjechał.", 1),
        ("sv", "Den kostar 100 kr. Det är dyrt.", 2),
        ("sv", "Bilar, t.ex. Volvo, och bl.a. Saab.", 1),
        ("de", "Ein Tier dieser Art. Es ist klein.", 2),
        ("de", "Siehe Art. 5 des Gesetzes.", 1),
        ("de", "Das ist z. B. schön, d. h. gut, u. a. in Berlin. Es regnet.", 2),
        ("ru", "Это правда, т. е. не ложь, и т. д. Он ушёл.", 2),
        ("nb", "Det er f. eks. bra.", 1),
        ("fr", "Ils étaient sept. Puis ils partirent.", 2),
    ],
)
def test_some_abbreviations_may_end_a_sentence(language: str, text: str, n: int) -> None:
    assert len(split_sentences(text, language)) == n


def test_abbreviations_of_two_letters_keep_their_periods() -> None:
    assert load_tokenizer("de")("Das gilt z. B. im Haus. I. d. R. ja.").tokens == (
        "Das", "gilt", "z.", "B.", "im", "Haus", ".", "I.", "d.", "R.", "ja", ".",
    )  # fmt: skip
    assert load_tokenizer("ru")("и т. д. Он").tokens == ("и", "т.", "д.", "Он")
    assert load_tokenizer("es")("el punto a. Luego").tokens == ("el", "punto", "a", ".", "Luego")


def test_swedish_abbreviations_of_two_words_are_one_token() -> None:
    assert load_tokenizer("sv")("t.ex. bl.a.").tokens == ("t.ex.", "bl.a.")
