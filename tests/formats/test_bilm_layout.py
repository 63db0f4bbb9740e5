"""Published options files: what is accepted, the defaults, and errors, which are reported all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elmo.config import CharCnnConfig, LstmConfig
from elmo.errors import FormatError, OutputError
from elmo.formats.bilm_layout import BilmOptions, format_options, parse_options, read_options
from tests.formats.write_published import options

SMALL = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 128,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 1024,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 1,
        "embedding": {"dim": 16},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}


def read(values: Any) -> BilmOptions:
    return parse_options(values, subject="options.json")


def without(part: str, key: str) -> dict[str, Any]:
    values = json.loads(json.dumps(SMALL))
    del values[part][key]
    return values


def changed(part: str, key: str, value: object) -> dict[str, Any]:
    values = json.loads(json.dumps(SMALL))
    values[part][key] = value
    return values


def test_the_options_of_the_published_small_model_are_read(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps(SMALL))
    found = read_options(tmp_path / "options.json")
    assert found.chars == CharCnnConfig()
    assert found.lstm == LstmConfig(n_layers=2, cell_width=1024, state_width=128)
    assert found.config().alphabet == "bytes"


@pytest.mark.parametrize("n_characters", [261, 262])
def test_both_counts_of_characters_mean_the_same_table(n_characters: int) -> None:
    found = read(changed("char_cnn", "n_characters", n_characters))
    assert found.chars is not None
    assert found.chars.n_characters == 261


@pytest.mark.parametrize(
    ("part", "key", "attribute", "expected"),
    [
        ("lstm", "n_layers", "n_layers", 1),
        ("lstm", "cell_clip", "cell_clip", None),
        ("lstm", "proj_clip", "state_clip", None),
        ("lstm", "use_skip_connections", "has_skip", False),
        ("char_cnn", "n_highway", "n_highway", 0),
        ("char_cnn", "max_characters_per_token", "max_characters", 50),
        ("char_cnn", "n_characters", "n_characters", 261),
    ],
)
def test_a_missing_option_takes_the_default_of_bilm_tf(part: str, key: str, attribute: str, expected: object) -> None:
    for values in (without(part, key), changed(part, key, None)):
        found = read(values)
        assert getattr(found.lstm if part == "lstm" else found.chars, attribute) == expected


def test_unknown_and_training_keys_are_kept() -> None:
    found = read({**SMALL, "reverse": True, "n_train_tokens": 768648884, "dropout": 0.1, "bidirectional": True})
    assert found.training == {"reverse": True, "n_train_tokens": 768648884, "dropout": 0.1, "bidirectional": True}
    assert format_options(found)["n_train_tokens"] == 768648884


def test_without_a_character_network_the_model_reads_words() -> None:
    found = read({"lstm": SMALL["lstm"]})
    assert found.chars is None
    words = found.config(n_words=7).words
    assert words is not None
    assert (words.n_words, words.word_width) == (7, 128)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "the file: expected a JSON object, found []"),
        (None, "the file: expected a JSON object"),
        ({}, "lstm: expected a JSON object, found None"),
        ({"lstm": 3}, "lstm: expected a JSON object, found 3"),
        ({**SMALL, "char_cnn": [1]}, r"char_cnn: expected a JSON object"),
        ({**SMALL, "bidirectional": False}, "bidirectional is false"),
        (without("lstm", "dim"), "lstm.dim: expected an integer in 1..65536, found none"),
        (changed("lstm", "dim", 0), "lstm.dim: .* found 0"),
        (changed("lstm", "dim", 1e3), "lstm.dim: .* found 1000.0"),
        (changed("lstm", "dim", True), "lstm.dim: .* found True"),
        (changed("lstm", "dim", 10**30), "lstm.dim: .* found 1000000"),
        (changed("lstm", "dim", 64), "lstm.projection_dim 128 must not exceed lstm.dim 64"),
        (changed("lstm", "n_layers", 65), "lstm.n_layers: .* found 65"),
        (changed("lstm", "n_layers", "2"), "lstm.n_layers: .* found '2'"),
        (changed("lstm", "cell_clip", 0), "lstm.cell_clip: expected a positive number or null, found 0"),
        (changed("lstm", "cell_clip", 10**400), "lstm.cell_clip: expected a positive number"),
        (changed("lstm", "proj_clip", False), "lstm.proj_clip: expected a positive number or null, found False"),
        (changed("lstm", "use_skip_connections", "yes"), "use_skip_connections: expected true or false"),
        (changed("char_cnn", "n_characters", 260), "char_cnn.n_characters: .* in 261..262, found 260"),
        (changed("char_cnn", "activation", "gelu"), "char_cnn.activation: expected 'relu' or 'tanh', found 'gelu'"),
        (without("char_cnn", "activation"), "char_cnn.activation: .* found None"),
        (changed("char_cnn", "embedding", 16), "char_cnn.embedding: expected a JSON object, found 16"),
        (changed("char_cnn", "filters", []), "char_cnn.filters: expected"),
        (changed("char_cnn", "filters", [[1, 2, 3]]), "char_cnn.filters: expected"),
        (changed("char_cnn", "filters", [[51, 2]]), "char_cnn.filters: expected"),
        (changed("char_cnn", "filters", [[1, 65536], [1, 1]]), "char_cnn.filters: expected"),
        (changed("char_cnn", "filters", {"1": 2}), "char_cnn.filters: expected"),
        (changed("char_cnn", "max_characters_per_token", 2), "max_characters_per_token: .* in 3..1024, found 2"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_found(values: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message.replace("[]", r"\[\]")) as caught:
        read(values)
    assert "\n" not in str(caught.value)


def test_every_wrong_option_is_named_in_one_error() -> None:
    with pytest.raises(FormatError) as caught:
        read({"lstm": {"dim": -1, "cell_clip": "x"}, "char_cnn": {"n_characters": 5, "embedding": None}})
    for name in ("lstm.dim", "lstm.projection_dim", "lstm.cell_clip", "char_cnn.n_characters", "char_cnn.filters"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        options(),
        options(n_characters=261, skip=False, activation="tanh", clips=False, n_layers=None),
        options(dim=4, projection_dim=4, filters=((1, 4),), n_highway=0),
        options(chars=False),
    ],
)
def test_writing_what_was_read_gives_the_same_options(values: dict[str, Any]) -> None:
    found = read(values)
    again = format_options(found)
    assert read(json.loads(json.dumps(again))) == found
    if "char_cnn" in again:
        assert again["char_cnn"]["n_characters"] == 262  # required by AllenNLP and simple_elmo
    assert {"cell_clip", "proj_clip", "n_layers"} <= set(again["lstm"])  # AllenNLP has no default for them


def test_other_characters_than_bytes_have_no_options() -> None:
    with pytest.raises(OutputError, match="expected 261 characters, found 99"):
        format_options(BilmOptions(CharCnnConfig(n_characters=99), LstmConfig()))
