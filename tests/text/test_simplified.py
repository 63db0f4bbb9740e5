"""Traditional and simplified Chinese: the same offsets, ids and vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from elmo import ConfigError, DataError, Elmo, MissingExtraError, OutputError, convert, perplexity, train_bilm
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.formats import bilm_hdf5, native
from elmo.text import chinese
from elmo.text.chinese import simplify, simplify_word
from elmo.text.ids import ByteAlphabet, SimplifiedAlphabet
from elmo.text.tokenizers import load_tokenizer
from elmo.train import CorpusOptions, build_corpus
from tests.formats.tiny import tiny_model
from tests.text.hostile import texts

pytest.importorskip("opencc", reason="opencc is not installed")
pytest.importorskip("jieba", reason="jieba is not installed")

TINY = BiLmConfig(CharCnnConfig(char_width=4, filters=((1, 8), (2, 16))), None, LstmConfig(2, 32, 16))
PAIRS = [("蘋果發布了新款手機。", "苹果发布了新款手机。"), ("乾隆皇帝的頭髮很乾燥。", "乾隆皇帝的头发很干燥。")]


@pytest.mark.parametrize(("traditional", "expected"), PAIRS)
def test_words_are_simplified_by_their_context(traditional: str, expected: str) -> None:
    assert simplify(traditional) == expected
    assert simplify(expected) == expected


@given(texts)
@settings(max_examples=200, deadline=None)
def test_any_text_keeps_its_length_and_its_surrogates(text: str) -> None:
    found = simplify(text)
    assert len(found) == len(text)
    assert all(
        new == old for old, new in zip(text, found, strict=True) if old < "\u2e80" or "\ud800" <= old <= "\udfff"
    )


def test_a_conversion_that_changes_the_length_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer:
        def convert(self, text: str) -> str:
            return text.replace("頭", "头").replace("髮", "头发")

    monkeypatch.setattr(chinese, "_load_opencc", Longer)
    assert simplify("頭髮") == "头髮"


@pytest.mark.parametrize(("traditional", "expected"), PAIRS)
def test_both_scripts_have_the_same_offsets(traditional: str, expected: str) -> None:
    cut = load_tokenizer("zh")(traditional)
    assert cut.offsets == load_tokenizer("zh")(expected).offsets
    assert "".join(cut.tokens) == traditional


def test_both_scripts_have_the_same_character_ids() -> None:
    alphabet = SimplifiedAlphabet(50)
    assert alphabet.ids("蘋果") == alphabet.ids("苹果") == ByteAlphabet(50).ids("苹果")
    assert alphabet.lookup_form("蘋果") == "苹果"
    assert alphabet.begin() == ByteAlphabet(50).begin()


def test_without_opencc_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    chinese._load_opencc.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "opencc", None)
    with pytest.raises(MissingExtraError, match=r"pyelmo\[zh\]"):
        simplify("是")
    assert simplify("plain") == "plain"
    chinese._load_opencc.cache_clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zh")
    lines = [line for pair in PAIRS for line in pair] * 30
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return train_bilm(
        folder / "text.txt", folder / "model", preset=TINY, epochs=1, samples=0,
        simplified=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_simplified_model_gives_both_scripts_the_same_vectors(model: Path) -> None:
    elmo = Elmo.from_pretrained(model)
    assert elmo.config.alphabet == "simplified"
    assert elmo.vocab is not None
    assert "苹果" in elmo.vocab.words
    assert "蘋果" not in elmo.vocab.words
    for traditional, expected in PAIRS:
        ours, other = elmo.encode([traditional, expected])
        assert "".join(ours.tokens) == traditional
        assert np.array_equal(ours.vectors, other.vectors)
        from_words = elmo.encode([list(ours.tokens)])[0]
        assert np.array_equal(from_words.vectors, other.vectors)


def test_both_scripts_have_the_same_perplexity(model: Path) -> None:
    found = [perplexity(model, [text]) for text in PAIRS[0]]
    assert found[0].n_unknown == 0
    assert found[0]["zero"].geometric_mean == found[1]["zero"].geometric_mean


@pytest.mark.slow
def test_training_from_a_simplified_model_stays_simplified(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{PAIRS[0][0]}\n" * 40, encoding="utf-8")
    out = train_bilm(tmp_path / "text.txt", tmp_path / "tuned", init_from=model, epochs=1, samples=0)
    tuned = Elmo.from_pretrained(out)
    assert tuned.config.alphabet == "simplified"
    ours, other = tuned.encode(list(PAIRS[0]))
    assert np.array_equal(ours.vectors, other.vectors)


def test_training_from_another_model_cannot_become_simplified(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "bytes")
    with pytest.raises(ConfigError, match="the model to start from must have been trained on simplified"):
        train_bilm("a.txt", tmp_path / "m", init_from=tmp_path / "bytes", simplified=True)  # before the text is read


def test_a_simplified_config_simplifies_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{PAIRS[0][0]}\n" * 40, encoding="utf-8")
    preset = replace(TINY, alphabet="simplified")
    out = train_bilm(tmp_path / "text.txt", tmp_path / "m", preset=preset, epochs=1, samples=0)
    vocab = Elmo.from_pretrained(out).vocab
    assert vocab is not None
    assert "苹果" in vocab.words


def test_a_vocabulary_in_traditional_characters_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{PAIRS[0][0]}\n" * 40, encoding="utf-8")
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\n蘋果\n", encoding="utf-8")
    options = CorpusOptions(vocabulary=tmp_path / "words.txt", simplified=True)
    with pytest.raises(DataError, match=r"must contain simplified words; found '蘋果' .*instead of '苹果'"):
        build_corpus(tmp_path / "text.txt", tmp_path / "c", options)


def test_long_words_are_not_cached() -> None:
    before = chinese._simplify_cached.cache_info().currsize
    assert simplify_word("頭" * 1000) == "头" * 1000
    assert chinese._simplify_cached.cache_info().currsize == before


def test_formats_without_simplified_characters_reject_the_model(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="simplifies Chinese"):
        convert(model, tmp_path / "hdf5", to="hdf5")


def test_a_word_model_cannot_be_simplified(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reads characters"):
        train_bilm("a.txt", tmp_path / "m", reads="words", simplified=True)


def test_a_format_without_tokenizers_gives_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        bilm_hdf5.write(replace(tiny_model(), metadata={"tokenizer": "zh"}), tmp_path / "zh")
        bilm_hdf5.write(tiny_model(), tmp_path / "en")
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(": ", 1)[1] for message in messages] == [
        "the hdf5 format cannot store the model's tokenizer (zh)"
    ]
