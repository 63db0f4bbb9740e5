"""gensim: averages per word from a corpus and from an index."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo import ConfigError, DataError, Elmo
from elmo.lexicon import Index, IndexJob, build_index
from tests.formats.tiny import tiny_model

pytest.importorskip("gensim")

from gensim.models import KeyedVectors

from elmo.integrations import build_keyed_vectors

EXAMPLE = Path(__file__).parents[2] / "examples" / "gensim" / "types.py"
LINES = ["the bank of the river", "The bank lent money", "the river", ""]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    return Elmo(tiny_model())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.mark.parametrize("layers", ["average", "concat", 1])
def test_the_vector_of_a_word_is_the_mean_over_its_uses(elmo: Elmo, corpus: Path, layers: Any) -> None:
    encodings = elmo.encode(LINES, layers=layers)
    uses = {
        word: np.stack([v for e in encodings for token, v in zip(e.tokens, e.vectors, strict=True) if token == word])
        for word in ("the", "The", "bank", "river", "of", "lent", "money")
    }
    for source in (corpus, str(corpus), LINES, (line.split() for line in LINES)):
        vectors = build_keyed_vectors(source, elmo=elmo, layers=layers)
        assert vectors.index_to_key == ["the", "bank", "river", "The", "lent", "money", "of"]
        for word, rows in uses.items():
            np.testing.assert_allclose(vectors[word], rows.mean(axis=0), atol=1e-6)
            assert vectors.get_vecattr(word, "count") == len(rows)


def test_words_are_limited_and_lowered(elmo: Elmo) -> None:
    lowered = build_keyed_vectors(LINES, elmo=elmo, lowercase=True, min_count=2)
    assert [(word, lowered.get_vecattr(word, "count")) for word in lowered.index_to_key] == [
        ("the", 4), ("bank", 2), ("river", 2),
    ]  # fmt: skip
    assert build_keyed_vectors(LINES, elmo=elmo, max_words=2).index_to_key == ["the", "bank"]


def test_an_index_is_averaged_and_checked(elmo: Elmo, corpus: Path, tmp_path: Path) -> None:
    build_index(IndexJob((str(corpus),), tmp_path / "usages", layers=1), elmo)
    index = Index(tmp_path / "usages")
    vectors = build_keyed_vectors(tmp_path / "usages", elmo=elmo)
    assert set(vectors.index_to_key) == {word for word, (n_usages, _) in index.words.items() if n_usages}
    for word in ("river", "bank"):
        np.testing.assert_allclose(vectors[word], index.vectors(index.numbers(word)).mean(axis=0), atol=1e-6)
        assert vectors.get_vecattr(word, "count") == 2
    with pytest.raises(ConfigError, match="this index was built with another model") as caught:
        build_keyed_vectors(index, elmo=Elmo(tiny_model(seed=1)))
    assert "\n" not in str(caught.value)


def test_bad_options_give_one_line(elmo: Elmo, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no word occurs 9 times or more"):
        build_keyed_vectors(LINES, elmo=elmo, min_count=9)
    with pytest.raises(ConfigError, match="max_words must be at least 1; found 0"):
        build_keyed_vectors(LINES, elmo=elmo, max_words=0)
    with pytest.raises(ConfigError, match="found all; use concat"):
        build_keyed_vectors(LINES, elmo=elmo, layers="all")
    with pytest.raises(ConfigError, match=r"layer number in 0\.\.2; found 5"):
        build_keyed_vectors(LINES, elmo=elmo, layers=5)
    with pytest.raises(DataError, match="missing"):
        build_keyed_vectors(tmp_path / "missing.txt", elmo=elmo)


def test_the_example_runs(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["types.py", str(corpus), str(tmp_path / "words.kv")])
    runpy.run_path(str(EXAMPLE))
    assert capsys.readouterr().out.startswith("the 4 [")
    assert len(KeyedVectors.load(str(tmp_path / "words.kv"))) == 3
