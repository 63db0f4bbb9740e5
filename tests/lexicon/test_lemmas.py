"""Lemmatizer: by the tables of a language, and without one the word itself."""

from __future__ import annotations

import builtins
import logging
from typing import Any

import pytest

from elmo.embed.elmo import Elmo
from elmo.lexicon.substitutes import Lemmatizer, tokenizer_language
from tests.formats.tiny import tiny_model


def test_forms_of_a_word_have_one_lemma_in_small_letters() -> None:
    pytest.importorskip("simplemma")
    lemmas = Lemmatizer("en")
    assert lemmas.has_table
    assert {lemmas(form) for form in ("bank", "banks", "Banks", "BANKS")} == {"bank"}
    assert [lemmas(form) for form in ("went", "children", "", "zzxq")] == ["go", "child", "", "zzxq"]
    assert Lemmatizer("de")("Häuser") == "haus"
    assert Lemmatizer("en-GB")("banks") == "bank"


def test_chinese_words_stay_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="elmo"):
        assert Lemmatizer("zh")("银行们") == "银行们"
    assert not caplog.records


@pytest.mark.parametrize(
    ("language", "said"), [("qq", "no table for the language 'qq'"), (None, "of no language")]
)
def test_a_language_without_a_table_is_told_once(
    caplog: pytest.LogCaptureFixture, language: str | None, said: str
) -> None:
    pytest.importorskip("simplemma")
    lemmas = Lemmatizer(language)
    assert [lemmas(word) for word in ("Banks", "banks")] == ["banks", "banks"]
    assert not lemmas.has_table
    (record,) = caplog.records
    assert said in record.getMessage()


def test_without_simplemma_a_word_is_its_own_lemma(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "simplemma":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert Lemmatizer("en")("Banks") == "banks"
    (record,) = caplog.records
    assert "pip install 'pyelmo[lexicon]'" in record.getMessage()


def test_the_language_is_that_of_the_tokeniser() -> None:
    model = tiny_model(softmax=True)
    found = [tokenizer_language(Elmo(model, tokenizer=name)) for name in ("en", "zh", "whitespace")]
    assert found == ["en", "zh", None]
    assert tokenizer_language(Elmo(model, tokenizer=str.split)) is None  # pyright: ignore[reportArgumentType]
