"""Flair: embeddings, and a tagger that is trained, saved and loaded; in its own environment (make integrations)."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import ConfigError, Elmo
from elmo.formats import native
from tests.formats.tiny import tiny_model

pytest.importorskip("flair", reason="Flair is in its own environment: make integrations")

import flair
from flair.data import Corpus, Sentence
from flair.datasets import FlairDatapointDataset
from flair.embeddings import DocumentPoolEmbeddings, StackedEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

from elmo.integrations import ElmoEmbeddings

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("default")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "flair" / "tagger.py"
WORDS = ["She", "flew", "to", "London", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("flair") / "model"
    native.write(tiny_model(warm=True), path)
    return str(path)


def sentences(n: int) -> list[Sentence]:
    found = []
    for _ in range(n):
        sentence = Sentence(list(WORDS))
        sentence[3:4].add_label("ner", "LOC")
        found.append(sentence)
    return found


@pytest.mark.parametrize(("mode", "layers"), [("all", "concat"), ("top", "top"), ("average", "average")])
def test_each_token_has_its_vector(folder: str, mode: Any, layers: Any) -> None:
    embeddings = ElmoEmbeddings(folder, embedding_mode=mode)
    sentence, other = Sentence(list(WORDS)), Sentence(["Paris", "is", "here"])
    embeddings.embed([sentence, other])
    vectors = np.stack([token.embedding.cpu().numpy() for token in sentence])
    np.testing.assert_array_equal(vectors, Elmo.from_pretrained(folder).encode([WORDS], layers=layers)[0].vectors)
    assert vectors.shape[1] == embeddings.embedding_length
    assert other[0].embedding.shape == (embeddings.embedding_length,)


def test_embeddings_can_be_stacked_pooled_copied_and_pickled(folder: str) -> None:
    embeddings = ElmoEmbeddings(folder, start="warm")
    stack = StackedEmbeddings([embeddings, ElmoEmbeddings(folder, embedding_mode="top")])
    sentence = Sentence(list(WORDS))
    stack.embed(sentence)
    assert sentence[0].embedding.shape == (stack.embedding_length,)
    document = Sentence(list(WORDS))
    DocumentPoolEmbeddings([embeddings]).embed(document)
    torch.testing.assert_close(document.embedding, torch.stack([token.embedding for token in document]).mean(0))
    for same in (copy.deepcopy(embeddings), pickle.loads(pickle.dumps(embeddings))):
        other = Sentence(list(WORDS))
        same.embed(other)
        torch.testing.assert_close(other[2].embedding, document[2].embedding, rtol=0, atol=0)


def test_a_tagger_learns_is_saved_and_loaded(folder: str, tmp_path: Path) -> None:
    flair.set_seed(1)
    corpus = Corpus(*(FlairDatapointDataset(sentences(8)) for _ in range(3)), name="cities")
    dictionary = corpus.make_label_dictionary("ner", add_unk=False)
    tagger = SequenceTagger(
        embeddings=ElmoEmbeddings(folder), tag_dictionary=dictionary, tag_type="ner", hidden_size=16
    )
    ModelTrainer(tagger, corpus).train(tmp_path / "out", learning_rate=0.2, mini_batch_size=2, max_epochs=15)
    path = tmp_path / "out" / "best-model.pt"  # whose weights the trainer has loaded at the end
    loaded = SequenceTagger.load(path)
    sentence, same = Sentence(list(WORDS)), Sentence(list(WORDS))
    tagger.predict(sentence)
    loaded.predict(same)
    assert [(span.text, span.tag) for span in sentence.get_spans("ner")] == [("London", "LOC")]
    assert [label.score for label in same.get_labels()] == [label.score for label in sentence.get_labels()]
    assert path.stat().st_size < 1_000_000  # without the biLM
    assert not [name for name in loaded.state_dict() if "bilm" in name]


def test_another_model_old_names_and_bad_options_give_one_line(folder: str, tmp_path: Path) -> None:
    native.write(tiny_model(seed=1), tmp_path / "other")
    params = ElmoEmbeddings(folder).to_params() | {"model": str(tmp_path / "other")}
    for call, match in [
        (lambda: ElmoEmbeddings.from_params(params), r"must have the fingerprint \w{12}…, as when the Flair model was"),
        (lambda: ElmoEmbeddings("original"), "'original' is a name of Flair's old ELMoEmbeddings; download its files"),
        (lambda: ElmoEmbeddings(folder, embedding_mode="first"), "embedding_mode must be all, top or average"),
        (lambda: ElmoEmbeddings(weight_file="w.hdf5"), "options_file and weight_file must be passed together"),
    ]:
        with pytest.raises(ConfigError, match=match) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_example_runs(tmp_path: Path) -> None:
    rows = "She O\nflew O\nto O\nLondon B-LOC\n. O\n\nParis B-LOC\nis O\nhere O\n\n"
    for name in ("train", "dev"):
        (tmp_path / f"{name}.conll").write_text(rows * 8)
    done = subprocess.run([sys.executable, EXAMPLE, tmp_path], capture_output=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr.decode()
    assert '"London"/LOC' in done.stdout.decode()
