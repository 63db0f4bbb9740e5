"""Chinese in either script is read alike: one character for one, by word and by model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from elmo import ConfigError, DataError, Elmo, MissingExtraError, OutputError, convert, perplexity, train_bilm
from elmo.config import BiLmConfig, CharCnnConfig, LstmConfig
from elmo.formats import bilm_hdf5, native
from elmo.text import chinese as room
from elmo.text.chinese import simplify, simplify_word
from elmo.text.ids import ByteAlphabet, SimplifiedAlphabet
from elmo.text.tokenizers import load_tokenizer
from elmo.train.build_corpus import build
from tests.formats.tiny import tiny_model
from tests.text.hostile import texts

pytest.importorskip("opencc", reason="opencc is not installed")
pytest.importorskip("jieba", reason="jieba is not installed")

TINY = BiLmConfig(CharCnnConfig(char_width=4, filters=((1, 8), (2, 16))), None, LstmConfig(2, 32, 16))
PAIRS = [
    ("蘋果發布了新款手機。", "苹果发布了新款手机。"),
    ("乾隆皇帝的頭髮很乾燥。", "乾隆皇帝的头发很干燥。"),
]


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
        new == old
        for old, new in zip(text, found, strict=True)
        if old < "\u2e80" or "\ud800" <= old <= "\udfff"
    )


def test_a_converter_that_changes_lengths_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer:
        def convert(self, text: str) -> str:
            return text.replace("頭", "头").replace("髮", "头发")

    monkeypatch.setattr(room, "_load_opencc", Longer)
    assert simplify("頭髮") == "头髮"


@pytest.mark.parametrize(("traditional", "expected"), PAIRS)
def test_both_scripts_are_cut_at_the_same_places(traditional: str, expected: str) -> None:
    cut = load_tokenizer("zh")(traditional)
    assert cut.offsets == load_tokenizer("zh")(expected).offsets
    assert "".join(cut.tokens) == traditional


def test_an_alphabet_reads_both_scripts_alike() -> None:
    alphabet = SimplifiedAlphabet(50)
    assert alphabet.ids("蘋果") == alphabet.ids("苹果") == ByteAlphabet(50).ids("苹果")
    assert alphabet.lookup_form("蘋果") == "苹果"
    assert alphabet.begin() == ByteAlphabet(50).begin()


def test_without_opencc_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    room._load_opencc.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "opencc", None)
    with pytest.raises(MissingExtraError, match=r"pyelmo\[zh\]"):
        simplify("是")
    assert simplify("plain") == "plain"
    room._load_opencc.cache_clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zh")
    lines = [line for pair in PAIRS for line in pair] * 30
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return train_bilm(
        folder / "text.txt", folder / "model", preset=TINY, epochs=1, n_samples=None,
        corpus_options={"is_simplified": True},
    )  # fmt: skip


def test_a_model_trained_so_gives_both_scripts_the_same_vectors(model: Path) -> None:
    elmo = Elmo.from_pretrained(model)
    assert elmo.config.alphabet == "simplified"
    assert elmo.vocab is not None
    assert "苹果" in elmo.vocab.words
    assert "蘋果" not in elmo.vocab.words
    for traditional, expected in PAIRS:
        ours, other = elmo.encode([traditional, expected])
        assert "".join(ours.tokens) == traditional
        assert np.array_equal(ours.vectors, other.vectors)
        given = elmo.encode([list(ours.tokens)])[0]
        assert np.array_equal(given.vectors, other.vectors)


def test_both_scripts_are_predicted_alike(model: Path) -> None:
    found = [perplexity(model, [text]) for text in PAIRS[0]]
    assert found[0].n_unknown == 0
    assert found[0]["zero"].geometric_mean == found[1]["zero"].geometric_mean


def test_it_goes_on_from_such_a_model_in_the_same_way(model: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{PAIRS[0][0]}\n" * 40, encoding="utf-8")
    out = train_bilm(tmp_path / "text.txt", tmp_path / "tuned", start=model, epochs=1, n_samples=None)
    tuned = Elmo.from_pretrained(out)
    assert tuned.config.alphabet == "simplified"
    ours, other = tuned.encode(list(PAIRS[0]))
    assert np.array_equal(ours.vectors, other.vectors)


def test_a_model_that_reads_words_as_they_are_does_not_go_on_so(tmp_path: Path) -> None:
    native.write(tiny_model(), tmp_path / "bytes")
    with pytest.raises(ConfigError, match="was not trained on simplified"):
        train_bilm(
            "a.txt", tmp_path / "m", start=tmp_path / "bytes", corpus_options={"is_simplified": True}
        )  # before the text is looked at


def test_a_shape_that_reads_simplified_characters_gets_such_a_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{PAIRS[0][0]}\n" * 40, encoding="utf-8")
    preset = replace(TINY, alphabet="simplified")
    out = train_bilm(tmp_path / "text.txt", tmp_path / "m", preset=preset, epochs=1, n_samples=None)
    vocab = Elmo.from_pretrained(out).vocab
    assert vocab is not None
    assert "苹果" in vocab.words


def test_a_vocabulary_of_the_other_script_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"{PAIRS[0][0]}\n" * 40, encoding="utf-8")
    (tmp_path / "words.txt").write_text("<S>\n</S>\n<UNK>\n蘋果\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"expected simplified words, found '蘋果' .*write '苹果'"):
        build(tmp_path / "text.txt", tmp_path / "c", vocabulary=tmp_path / "words.txt", is_simplified=True)


def test_words_of_any_length_are_read_and_long_ones_not_kept() -> None:
    before = room._simplify_cached.cache_info().currsize
    assert simplify_word("頭" * 1000) == "头" * 1000
    assert room._simplify_cached.cache_info().currsize == before


def test_formats_that_cannot_say_so_refuse_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="simplifies Chinese"):
        convert(model, tmp_path / "hdf5", to="hdf5")


def test_words_alone_have_no_script_to_choose(tmp_path: Path) -> None:
    from elmo.train.options import Shape

    with pytest.raises(ConfigError, match="reads characters"):
        train_bilm(
            "a.txt", tmp_path / "m", preset=Shape(reads="words"), corpus_options={"is_simplified": True}
        )


def test_a_format_without_tokenizers_says_what_it_loses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        bilm_hdf5.write(replace(tiny_model(), metadata={"tokenizer": "zh"}), tmp_path / "zh")
        bilm_hdf5.write(tiny_model(), tmp_path / "en")
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(": ", 1)[1] for message in messages] == [
        "this format has no place for the model's tokenizer (zh): left out"
    ]
