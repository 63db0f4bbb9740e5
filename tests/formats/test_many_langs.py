from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.embed.elmo import Elmo
from elmo.errors import FormatError
from elmo.formats import many_langs
from elmo.formats.pretrained import SoftmaxWeights, load
from tests.formats.many_langs_folder import CHARACTERS, WORDS, architecture, random_weights, slow_vectors, write_folder

SENTENCES = [
    ["bank", "de", "河", "口", "é", "nacre"],
    ["a" * 47, "a" * 48, "a" * 49, "a" * 300],
    ["\u3000", "", "<pad>", "\N{GRINNING FACE}"],
    ["de"],
]
SHAPES = {
    "as published": {},
    "tanh": {"activation": "tanh"},
    "clips that cut": {"cell_clip": 0.4, "proj_clip": 0.2},
    "clips of 0, which are none": {"cell_clip": 0, "proj_clip": 0},
    "one layer": {"n_layers": 1, "n_highway": 0},
    "three layers": {"n_layers": 3, "n_highway": 1},
    "short words": {"max_characters_per_token": 7},
    "characters only": {"word": 0},
    "characters only, as wide as the states": {"word": 0, "state": 9, "cell": 12},
    "words only": {"char": 0},
    "cells as wide as the states": {"state": 8, "cell": 8},
    "cells narrower than the states": {"state": 8, "cell": 5},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_are_those_of_its_equations(shape: str, tmp_path: Path) -> None:
    values = architecture(**SHAPES[shape])
    weights = random_weights(values)
    elmo = Elmo.from_pretrained(write_folder(tmp_path / "m", values, weights=weights))
    for sentence in SENTENCES:
        found = elmo.encode([sentence], layers="all")[0].vectors
        expected = slow_vectors(values, weights, sentence).numpy()
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize(
    "shape",
    ["as published", "one layer", "three layers", "characters only", "words only", "cells as wide as the states"],
)
def test_without_an_architecture_the_shapes_of_the_weights_decide(shape: str, tmp_path: Path) -> None:
    values = architecture(**SHAPES[shape])
    weights = random_weights(values)
    explicit = load(write_folder(tmp_path / "explicit", values, weights=weights))
    inferred = load(write_folder(tmp_path / "inferred", values, weights=weights, is_architecture_there=False))
    assert inferred.config == explicit.config
    assert inferred.metadata["architecture"] == "inferred from the shapes of the weights"
    assert all(torch.equal(inferred.weights[name], explicit.weights[name]) for name in explicit.weights)


def test_both_layouts_of_a_state_dict_give_one_model(tmp_path: Path) -> None:
    old = load(write_folder(tmp_path / "old", is_zipped=False))
    new = load(write_folder(tmp_path / "new", is_zipped=True))
    assert all(torch.equal(old.weights[name], new.weights[name]) for name in old.weights)


def test_a_folder_is_known_by_its_weights(tmp_path: Path) -> None:
    assert many_langs.can_read(write_folder(tmp_path / "model"))
    assert not many_langs.can_read(tmp_path)
    assert not many_langs.can_read(tmp_path / "absent")


def test_a_literal_boundary_in_a_text_is_an_unknown_word(tmp_path: Path) -> None:
    indexer = Elmo.from_pretrained(write_folder(tmp_path / "m")).indexer
    word, edges = indexer.words(["<bos>"]), indexer.boundaries()
    assert word.word_ids is not None
    assert word.char_ids is not None
    assert edges.word_ids is not None
    assert edges.char_ids is not None
    assert word.word_ids.tolist() == [1 + WORDS.index("<oov>")]
    eow, bow, pad, oov = (1 + CHARACTERS.index(name) for name in ("<eow>", "<bow>", "<pad>", "<oov>"))
    spelled = [oov if letter not in CHARACTERS else 1 + CHARACTERS.index(letter) for letter in "<bos>"]
    assert word.char_ids[0].tolist() == [eow, *spelled, bow, *[pad] * 43]
    assert edges.word_ids.tolist() == [1 + WORDS.index("<bos>"), 1 + WORDS.index("<eos>")]
    assert edges.char_ids[0].tolist() == [eow, 1 + CHARACTERS.index("<bos>"), bow, *[pad] * 47]


def test_a_long_word_is_looked_up_by_the_part_that_is_read(tmp_path: Path) -> None:
    indexer = Elmo.from_pretrained(write_folder(tmp_path / "m")).indexer
    ids = indexer.words(["a" * 48, "a" * 49, "a" * 47]).word_ids
    assert ids is not None
    assert (ids - 1).tolist() == [WORDS.index("a" * 48), WORDS.index("a" * 48), WORDS.index("<oov>")]


class TestDictionaries:
    """``char.dic`` and ``word.dic``."""

    def test_too_many_tokens_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(many_langs, "_MAX_TOKENS", 3)  # for any number of rows
        with pytest.raises(FormatError, match="expected at most 3 lines, found"):
            load(write_folder(tmp_path / "m"))

    def test_a_line_of_one_field_is_the_ideographic_space(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        text = (folder / "char.dic").read_text()
        (folder / "char.dic").write_text(text.replace("\u3000\t", ""))
        characters = load(folder).characters
        assert characters == {character: i for i, character in enumerate(CHARACTERS)}

    @pytest.mark.parametrize("space", ["\u00a0", "\u0085", "\u2028", "\x1c", "\v", "\r", "\t", " "])
    def test_no_other_space_is_lost_or_ends_a_line(self, space: str, tmp_path: Path) -> None:
        characters = [*CHARACTERS[:-1], space]
        found = load(write_folder(tmp_path / "m", characters=characters)).characters
        assert found == {character: i for i, character in enumerate(characters)}

    def test_lines_may_end_as_on_windows(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        data = (folder / "word.dic").read_bytes()
        (folder / "word.dic").write_bytes(data.replace(b"\n", b"\r\n"))
        vocab = load(folder).vocab
        assert vocab is not None
        assert vocab.words == WORDS

    def test_two_words_may_share_a_row(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        sound = load(folder)
        text = (folder / "word.dic").read_text()
        (folder / "word.dic").write_text(text.replace("é\t7", "é\t6"))
        shared = load(folder)
        name = "token_layer.word_embed.weight"
        assert shared.vocab is not None
        assert len(shared.vocab) == len(WORDS)
        rows = {word: shared.weights[name][1 + shared.vocab.id(word)] for word in ("河", "é", "de")}
        assert torch.equal(rows["河"], rows["é"])
        assert torch.equal(rows["河"], sound.weights[name][1 + WORDS.index("河")])
        assert torch.equal(rows["de"], sound.weights[name][1 + WORDS.index("de")])

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("bank\t4", "bank\t10", r"line \d+: expected a token, a tab and an id below 10, found 'bank\\t10'"),
            ("bank\t4", "bank\t-4", "found 'bank\\\\t-4'"),
            ("bank\t4", "bank\t٤", "id below 10"),
            ("bank\t4", "bank", "id below 10, found 'bank'"),
            ("bank\t4", "bank\t99999999999999999999", "id below 10"),
            ("bank\t4\n", "\n", "found ''"),
            ("bank\t4", "de\t4", "'de' occurs twice"),
            ("bank\t4\n", "", "expected 10 tokens, one per row of the table, found 9"),
            ("bank\t4\n", "bank\t4\nbanks\t4\n", "expected 10 tokens, one per row of the table, found 11"),
            ("bank\t4\n", "bank\t4\nx\t1\ny\t1\nz\t1\n", "expected at most 11 lines, found 13"),
            ("<oov>\t0", "oov\t0", "missing <oov>"),
        ],
    )
    def test_what_does_not_fit_its_table_is_refused(self, old: str, new: str, message: str, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        text = (folder / "word.dic").read_text()
        assert old in text
        (folder / "word.dic").write_text(text.replace(old, new))
        with pytest.raises(FormatError, match=message) as caught:
            load(folder)
        assert "word.dic" in str(caught.value)

    def test_all_bad_lines_are_reported_at_once(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        text = (folder / "char.dic").read_text()
        (folder / "char.dic").write_text(text.replace("a\t6", "a\t66").replace("d\t9", "c\t9"))
        with pytest.raises(FormatError, match=r"line 9.*'c' occurs twice") as caught:
            load(folder)
        assert r"'a\t66'" in str(caught.value)


class TestArchitecture:
    """``config.json`` and the file that it names."""

    @pytest.mark.parametrize(
        ("config_path", "place"),
        [
            ("/home/author/efml/tiny.json", "tiny.json"),
            ("C:\\efml\\tiny.json", "tiny.json"),
            ("../../tiny.json", "tiny.json"),
            ("tiny.json", "configs/tiny.json"),
            ("deep/er/tiny.json", "deep/er/tiny.json"),
            ("gone.json", "cnn_50_100_512_4096_sample.json"),
            ("gone.json", "configs/cnn_50_100_512_4096_sample.json"),
        ],
    )
    def test_it_is_found_inside_the_folder(self, config_path: str, place: str, tmp_path: Path) -> None:
        values = architecture(activation="tanh")
        folder = write_folder(tmp_path / "m", values, is_architecture_there=False)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(json.dumps(values))
        (folder / "config.json").write_text(json.dumps({"config_path": config_path}))
        found = load(folder)
        assert found.metadata["architecture"] == place
        assert found.config.chars is not None
        assert found.config.chars.activation == "tanh"

    @pytest.mark.parametrize("config_path", [None, 5, "", "..", ".", "/", "config.json", "a\0b", "x" * 5000, "\ud800"])
    def test_without_a_valid_path_the_shapes_decide(self, config_path: Any, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", is_architecture_there=False)
        (folder / "config.json").write_text(json.dumps({"config_path": config_path}))
        assert load(folder).metadata["architecture"].startswith("inferred")

    def test_it_is_never_read_from_outside(self, tmp_path: Path) -> None:
        values = architecture(activation="tanh")
        (tmp_path / "outside.json").write_text(json.dumps(values))
        folder = write_folder(tmp_path / "m", values, is_architecture_there=False)
        for path in ("../outside.json", str(tmp_path / "outside.json"), "configs/../../outside.json"):
            (folder / "config.json").write_text(json.dumps({"config_path": path}))
            assert load(folder).metadata["architecture"].startswith("inferred")

    def test_a_link_out_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m")
        (folder / "tiny.json").rename(tmp_path / "tiny.json")
        (folder / "tiny.json").symlink_to(tmp_path / "tiny.json")
        with pytest.raises(FormatError, match="links to a file outside its folder"):
            load(folder)

    @pytest.mark.parametrize(
        ("part", "name"), [("token_embedder", "lstm"), ("encoder", "lstm"), ("encoder", None), ("encoder", 7)]
    )
    def test_another_kind_of_network_is_refused(self, part: str, name: Any, tmp_path: Path) -> None:
        values = architecture()
        values[part]["name"] = name
        with pytest.raises(FormatError, match=f"only the 'cnn' token embedder .* found '{name}'"):
            load(write_folder(tmp_path / "m", values))

    @pytest.mark.parametrize(("file", "name"), [("token_embedder.pkl", "char_lstm"), ("encoder.pkl", "encoder")])
    def test_the_weights_of_another_kind_of_network_are_refused(self, file: str, name: str, tmp_path: Path) -> None:
        weights = random_weights(architecture())
        weights[file][f"{name}.weight_ih_l0"] = torch.zeros(4, 4)
        with pytest.raises(FormatError, match="found an LSTM"):
            load(write_folder(tmp_path / "m", weights=weights, is_architecture_there=False))

    def test_every_mistake_is_reported_at_once(self, tmp_path: Path) -> None:
        values = architecture()
        del values["encoder"]["dim"]
        values["encoder"]["cell_clip"] = "3"
        values["token_embedder"]["filters"] = [[1, 2], 3]
        values["token_embedder"]["n_highway"] = True
        weights = random_weights(architecture())
        with pytest.raises(FormatError) as caught:
            load(write_folder(tmp_path / "m", values, weights=weights))
        for expected in (
            "expected dim of type int, found none",
            "expected cell_clip of type float or int or NoneType, found '3'",
            "filters must be a list",
            "expected n_highway of type int, found True",
        ):
            assert expected in str(caught.value)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "change", [{"n_layers": 10**9}, {"dim": -4}, {"projection_dim": 10**12}, {"activation": "gelu"},
                   {"max_characters_per_token": 10**9}, {"n_highway": 10**9}, {"word_dim": 10**9},
                   {"filters": [[1, 1]] * 100_000}, {"cell_clip": -3}, {"word_dim": 0, "char_dim": 0}]
    )  # fmt: skip
    def test_absurd_sizes_are_refused(self, change: dict[str, Any], tmp_path: Path) -> None:
        weights = random_weights(architecture())
        with pytest.raises(FormatError, match=r"must"):
            load(write_folder(tmp_path / "m", architecture(**change), weights=weights))

    def test_weights_of_another_size_are_all_named(self, tmp_path: Path) -> None:
        weights = random_weights(architecture())
        with pytest.raises(FormatError) as caught:
            load(write_folder(tmp_path / "m", architecture(cell=9, n_highway=1), weights=weights))
        message = str(caught.value)
        assert "token_embedder.pkl: unexpected 'highways._layers.1.weight'" in message
        assert "encoder.pkl: forward_layer_0.input_linearity.weight: expected (36, 6), found (32, 6)" in message
        assert "backward_layer_1.state_projection.weight" in message
        assert "\n" not in message

    def test_missing_and_odd_weights_are_all_named(self, tmp_path: Path) -> None:
        weights = random_weights(architecture())
        del weights["encoder.pkl"]["backward_layer_1.state_linearity.bias"]
        weights["token_embedder.pkl"]["projection.bias"] = torch.zeros(6, dtype=torch.int64)
        weights["token_embedder.pkl"]["surprise\n"] = torch.zeros(1)
        with pytest.raises(FormatError) as caught:
            load(write_folder(tmp_path / "m", weights=weights, is_architecture_there=False))
        message = str(caught.value)
        assert "encoder.pkl: missing backward_layer_1.state_linearity.bias (32,)" in message
        assert "projection.bias': expected floats, found int64" in message
        assert r"unexpected 'surprise\n'" in message


@pytest.mark.parametrize("name", ["token_embedder.pkl", "encoder.pkl", "config.json", "char.dic", "word.dic"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / name).unlink()
    with pytest.raises(FormatError, match=f"expected a file {name}, found none"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16])
def test_other_floats_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    weights = random_weights(architecture())
    stored = {file: {name: weight.to(dtype) for name, weight in part.items()} for file, part in weights.items()}
    found = load(write_folder(tmp_path / "m", weights=stored)).weights["token_layer.projection.bias"]
    assert found.dtype == torch.float32
    assert torch.equal(found, weights["token_embedder.pkl"]["projection.bias"].to(dtype).float())


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    weights = random_weights(architecture())
    weights["encoder.pkl"]["forward_layer_1.state_linearity.bias"][3] = float("nan")
    with pytest.raises(FormatError, match=r"forward_stack\.1\.bias contains values that are not finite"):
        load(write_folder(tmp_path / "m", weights=weights))


class TestSoftmax:
    """``classifier.pkl``."""

    @staticmethod
    def softmax_of(folder: Path, classifier: dict[str, torch.Tensor], **options: Any) -> SoftmaxWeights | None:
        values = architecture(**options)
        write_folder(folder, values, weights={**random_weights(values), "classifier.pkl": classifier})
        return load(folder).softmax

    @pytest.mark.parametrize("word", [0, 5])
    def test_a_full_and_a_sampled_softmax_are_kept(self, word: int, tmp_path: Path) -> None:
        weight, bias = torch.randn(len(WORDS), 6), torch.randn(len(WORDS))
        full = {"hidden2tag.weight": weight, "hidden2tag.bias": bias}
        sampled = {"column_emb.weight": weight, "column_bias.weight": bias[:, None], "oov_column": torch.zeros(6, 1)}
        for i, classifier in enumerate((full, sampled)):
            found = self.softmax_of(tmp_path / str(i), classifier, word=word)
            assert found is not None
            assert torch.equal(found.weight, weight)
            assert torch.equal(found.bias, bias)

    def test_a_softmax_that_does_not_use_the_top_layer_is_omitted(self, tmp_path: Path) -> None:
        full = {"hidden2tag.weight": torch.zeros(len(WORDS), 6), "hidden2tag.bias": torch.zeros(len(WORDS))}
        assert self.softmax_of(tmp_path / "three layers", full, n_layers=3) is None
        fewer = {"hidden2tag.weight": torch.zeros(4, 6), "hidden2tag.bias": torch.zeros(4)}
        assert self.softmax_of(tmp_path / "fewer words", fewer) is None
        cnn = {"M": torch.zeros(6, 2), "corr.weight": torch.zeros(len(WORDS), 2), "oov_column": torch.zeros(6, 1)}
        assert self.softmax_of(tmp_path / "another kind", cnn) is None

    def test_characters_alone_need_no_vocabulary(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "m", architecture(word=0))
        (folder / "word.dic").unlink()
        assert load(folder).vocab is None
