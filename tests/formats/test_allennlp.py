from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import Elmo
from elmo.errors import FormatError
from elmo.formats import allennlp, native
from elmo.formats.pretrained import Pretrained, fingerprint, load
from elmo.text.ids import Vocabulary
from tests.formats.tiny import assert_same_model, tiny_model
from tests.formats.write_allennlp import SoftmaxForm, options, state_dict, write_folder
from tests.shared import FIXTURES, needs_fixtures

WORDS = ("@@UNKNOWN@@", "<S>", "</S>", "the", "new\nline", "café", "河岸")
ARCHIVE = FIXTURES / "allennlp-transformer"


def sound_model(**changes: Any) -> Pretrained:
    sizes = {"state_width": 8, "cell_width": 5, "is_transformer": True, "softmax": True, "words": WORDS} | changes
    model = tiny_model("chars", **sizes)
    # the number of heads is fixed in AllenNLP
    config = replace(model.config, encoder=replace(model.config.encoder, n_heads=allennlp.N_HEADS))
    vocab = None if model.vocab is None else Vocabulary(WORDS, unknown="@@UNKNOWN@@")
    return replace(model, config=config, vocab=vocab)


VARIANTS = {
    "as published": sound_model(has_norm=True, n_highway=2),
    "projection before the highways": sound_model(highway_width=8),
    "no projection": sound_model(filters=((1, 3), (2, 5))),
    "tanh, no highways": sound_model(n_highway=0, activation="tanh", n_layers=3),
}


@needs_fixtures
def test_the_published_vectors_are_reproduced() -> None:
    elmo = Elmo.from_pretrained(ARCHIVE / "model.tar.gz")
    sentences = json.loads((ARCHIVE / "sentences.json").read_text())
    with np.load(ARCHIVE / "vectors.npz") as published:
        for k, sentence in enumerate(sentences):
            (encoding,) = elmo.encode([sentence], layers="all")
            inner = slice(1, -1)  # without boundary tokens
            tokens = published[f"tokens_{k}"][inner]
            np.testing.assert_allclose(encoding.vectors[0], np.hstack([tokens, tokens]), rtol=0, atol=2e-6)
            for layer in range(1, elmo.n_layers):
                expected = published[f"layer{layer - 1}_{k}"][inner]
                np.testing.assert_allclose(encoding.vectors[layer], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("is_zipped", [False, True], ids=["old stream", "zip"])
@pytest.mark.parametrize("model", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_option_is_read_bit_for_bit(model: Pretrained, is_zipped: bool, tmp_path: Path) -> None:
    found = load(write_folder(tmp_path / "model", model, is_zipped=is_zipped))
    assert found.format == allennlp.NAME
    assert_same_model(found, model)


@pytest.mark.parametrize("softmax", ["sparse", "dense", "transposed"])
def test_every_form_of_the_softmax_is_read_without_the_row_of_no_word(softmax: SoftmaxForm, tmp_path: Path) -> None:
    model = VARIANTS["as published"]
    assert_same_model(load(write_folder(tmp_path / "model", model, softmax=softmax)), model)


def test_a_model_loads_without_softmax_or_vocabulary(tmp_path: Path) -> None:
    model = VARIANTS["as published"]
    found = load(write_folder(tmp_path / "no-softmax", model, softmax="none"))
    assert found.softmax is None
    assert found.vocab == model.vocab
    folder = write_folder(tmp_path / "no-vocabulary", model)
    for path in (folder / "vocabulary").iterdir():
        path.unlink()
    (folder / "vocabulary").rmdir()
    found = load(folder)
    assert (found.softmax, found.vocab) == (None, None)


def test_an_archive_and_a_native_copy_give_the_same_model(tmp_path: Path) -> None:
    model = VARIANTS["as published"]
    folder = write_folder(tmp_path / "model", model)
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(folder, arcname=".")
    found = load(tmp_path / "model.tar.gz")
    native.write(found, tmp_path / "native")
    copy = load(tmp_path / "native")
    assert_same_model(copy, model)
    assert fingerprint(copy) == fingerprint(found) == fingerprint(model)
    assert json.loads((tmp_path / "native" / "config.json").read_text())["format_version"] == 3
    assert "2 transformer layers" in (tmp_path / "native" / "README.md").read_text()


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = to

    return change


_EMBEDDERS = ("model", "text_field_embedder", "token_embedders")
_ENCODER = (*_EMBEDDERS, "characters", "encoder")
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another model": (_set("model", "type", to="simple_tagger"), "model.type: expected 'language_model'"),
    "one direction": (_set("model", "bidirectional", to=False), "only biLMs are supported"),
    "an LSTM": (_set("model", "contextualizer", "type", to="lstm"), "model.contextualizer.type: expected"),
    "no layers": (_set("model", "contextualizer", "num_layers", to=0), "num_layers: expected an integer in 1..64"),
    "an absurd width": (_set("model", "contextualizer", "input_dim", to=10**12), "input_dim: expected an integer"),
    "a width of text": (_set("model", "contextualizer", "hidden_dim", to="7"), "hidden_dim: expected an integer"),
    "two embedders": (_set(*_EMBEDDERS, "more", to={}), "expected one embedder, found 2"),
    "no embedder": (_set(*_EMBEDDERS, to={}), "expected one embedder, found 0"),
    "an embedder of words": (_set(*_EMBEDDERS, "characters", "type", to="embedding"), "'character_encoding'"),
    "other characters": (
        _set(*_EMBEDDERS, "characters", "embedding", "num_embeddings", to=300),
        "num_embeddings: expected an integer in 262..262, found 300",
    ),
    "another encoder": (_set(*_ENCODER, "type", to="cnn"), "'cnn-highway'"),
    "a projection elsewhere": (_set(*_ENCODER, "projection_location", to="before"), "projection_location: expected"),
    "a list as a place": (_set(*_ENCODER, "projection_location", to=[]), "projection_location: expected"),
    "another activation": (_set(*_ENCODER, "activation", to="swish"), "expected 'relu' or 'tanh', found 'swish'"),
    "filters of text": (_set(*_ENCODER, "filters", to="many"), "filters must be a list"),
    "filters wider than a word": (_set(*_ENCODER, "filters", to=[[99, 5]]), "filter width must be in 1..50; found 99"),
    "another token width": (_set(*_ENCODER, "projection_dim", to=6), "input_dim: expected 6, the width of a token"),
    "a norm of text": (_set(*_ENCODER, "do_layer_norm", to="yes"), "do_layer_norm: expected true or false"),
    "another indexer": (
        _set("dataset_reader", "base_reader", "token_indexers", "characters", "type", to="characters"),
        "expected the type elmo_characters without tokens_to_add",
    ),
    "special tokens": (
        _set("dataset_reader", "base_reader", "token_indexers", "characters", "tokens_to_add", to={"x": 1}),
        "expected the type elmo_characters without tokens_to_add",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_config_that_is_not_supported_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    model = VARIANTS["as published"]
    folder = write_folder(tmp_path / "model", model)
    values = options(model)
    change(values)
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(FormatError) as error:
        load(folder)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_that_do_not_fit_are_all_reported(tmp_path: Path) -> None:
    model = VARIANTS["as published"]
    folder = write_folder(tmp_path / "model", model)
    weights = state_dict(model)
    del weights["_contextualizer._forward_transformer.norm.gamma"]
    weights["_contextualizer._backward_transformer.norm.beta"] = torch.zeros(3)
    weights["extra"] = torch.zeros(1)
    torch.save(weights, folder / "weights.th")
    with pytest.raises(FormatError, match=r"missing _contextualizer\._forward_transformer\.norm\.gamma") as error:
        load(folder)
    assert "unexpected 'extra'" in str(error.value)
    assert "norm.beta: expected (8,), found (3,)" in str(error.value)


def test_other_positions_and_a_vocabulary_of_another_size_are_refused(tmp_path: Path) -> None:
    model = VARIANTS["as published"]
    folder = write_folder(tmp_path / "positions", model)
    weights = state_dict(model)
    weights["_contextualizer._position.positional_encoding"][0, 3, 1] = math.pi
    torch.save(weights, folder / "weights.th")
    with pytest.raises(FormatError, match="expected sines and cosines of positions, found other values"):
        load(folder)
    folder = write_folder(tmp_path / "words", model)
    with (folder / "vocabulary" / "tokens.txt").open("a") as file:
        file.write("\none more")
    with pytest.raises(FormatError, match=r"softmax_w.weight: expected \(9, 8\), found \(8, 8\)"):
        load(folder)
