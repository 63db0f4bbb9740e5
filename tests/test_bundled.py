"""The bundled models: small, whole, offline, and able to tell the senses of a word apart."""

from __future__ import annotations

import socket
from collections import defaultdict
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, Elmo, perplexity, similarity
from elmo.formats import bundled_folder, bundled_models
from elmo.formats.pretrained import describe
from elmo.lexicon.substitutes import embed_substitutes
from elmo.lexicon.usages import Usage

DATA = Path(__file__).parent / "data"
LANGUAGES: dict[str, str | None] = {"en": None, "zh": "jieba"}  # with the library that its tokeniser needs
MAX_BYTES = 25_000_000


@pytest.fixture(scope="module", params=LANGUAGES)
def elmo(request: pytest.FixtureRequest) -> Elmo:
    name = request.param
    if library := LANGUAGES[name]:
        pytest.importorskip(library, reason=f"{library} is not installed")
    return Elmo.from_pretrained(name)


def test_they_are_there_and_the_english_one_is_the_default() -> None:
    assert bundled_models() == tuple(LANGUAGES)
    assert describe(None).fingerprint == describe("en").fingerprint
    with pytest.raises(ConfigError, match="bundled model must be one of en, zh; found 'fr'"):
        bundled_folder("fr")


@pytest.mark.parametrize("name", LANGUAGES)
def test_each_is_small_and_has_its_card(name: str) -> None:
    folder = bundled_folder(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    card = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("## Data", "## Recipe", "## Scores", "## Limits", "CC BY-SA", f"recipes/{name}.sh"):
        assert part in card, part


def test_no_network_is_asked(elmo: Elmo, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a bundled model went to the network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    again = Elmo.from_pretrained(bundled_folder(elmo.tokenizer.name))
    text = "I sat by the bank." if elmo.tokenizer.name == "en" else "我坐在河边。"
    assert np.array_equal(again.encode(text).vectors, elmo.encode(text).vectors)


@pytest.mark.slow
def test_it_predicts_words(elmo: Elmo) -> None:
    assert elmo.vocab is not None
    assert len(elmo.vocab) >= 40_000
    text = "The king of France died in Paris ." if elmo.tokenizer.name == "en" else "他出生于北京，毕业于清华大学。"
    assert perplexity(elmo, [text])["zero"].geometric_mean < 1000


@pytest.mark.slow
def test_sense_vectors_and_expected_words_tell_senses_apart_far_better_than_layers(elmo: Elmo) -> None:
    lines = (DATA / f"senses.{elmo.tokenizer.name}.tsv").read_text(encoding="utf-8").splitlines()[1:]
    words, senses, sentences = zip(*(line.split("\t") for line in lines), strict=True)
    tokens = [elmo.tokenizer(sentence) for sentence in sentences]
    places = [found.tokens.index(word) for found, word in zip(tokens, words, strict=True)]
    usages = [Usage(found, place, place + 1, "") for found, place in zip(tokens, places, strict=True)]
    layers = [found.word(word) for found, word in zip(elmo.encode(sentences), words, strict=True)]
    views = [found.word(word) for found, word in zip(elmo.encode(sentences, layers="sense"), words, strict=True)]
    assert _share_right(words, senses, layers) >= 0.62  # measured: en 0.694, zh 0.662
    assert _share_right(words, senses, views) >= 0.78  # measured: en 0.912, zh 0.825
    assert _share_right(words, senses, list(embed_substitutes(elmo, usages).vectors)) >= 0.80  # 0.888, 0.838


def test_the_chinese_one_reads_both_scripts_as_one() -> None:
    pytest.importorskip("jieba", reason="jieba is not installed")
    elmo = Elmo.from_pretrained("zh")
    simplified, traditional = elmo.encode(["苹果发布了新款手机。", "蘋果發布了新款手機。"])
    assert traditional.tokens[0] == "蘋果"
    assert np.array_equal(simplified.vectors, traditional.vectors)


def _share_right(words: tuple[str, ...], senses: tuple[str, ...], vectors: list[Any]) -> float:
    """Of three sentences with a word, how often the two of one sense are nearer; 0.5 is chance."""
    by_word = defaultdict(list)
    for number, word in enumerate(words):
        by_word[word].append(number)
    right = [
        similarity(vectors[a], vectors[b]) > similarity(vectors[a], vectors[c])
        for numbers in by_word.values()
        for a, b, c in permutations(numbers, 3)
        if senses[a] == senses[b] != senses[c]
    ]
    assert len(right) == 8 * len(by_word)
    return float(np.mean(right))
