"""Options of tasks: ranges, types, and values from --set."""

from __future__ import annotations

from typing import Any

import pytest

from elmo import ConfigError
from elmo.tasks.fit import FitOptions
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.kinds.options import parse_assignments
from elmo.tasks.kinds.registry import KINDS, build_options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dropout", 1.5, "option dropout must be a number of at least 0 and below 1; found 1.5"),
        ("dropout", 1.0, "option dropout must be a number of at least 0 and below 1; found 1.0"),
        ("dropout", float("nan"), "option dropout must be a number of at least 0 and below 1; found nan"),
        ("hidden_width", 0, "option hidden_width must be an integer of at least 1; found 0"),
        ("hidden_width", 2.5, "option hidden_width must be an integer of at least 1; found 2.5"),
    ],
)
def test_every_kind_refuses_options_out_of_range(kind: str, name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_options(kind, {name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("tagging", "n_layers", 0),
        ("tagging", "has_crf", 1),
        ("roles", "predicate_width", -1),
        ("answers", "max_length", 0),
        ("answers", "by_character", "yes"),
        ("coreference", "kept_share", 0),
        ("coreference", "kept_share", float("inf")),
        ("coreference", "max_antecedents", 0),
        ("coreference", "has_singletons", 1),
        ("coreference", "is_coarse", 1),
        ("coreference", "feature_width", 0),
        ("coreference", "input_dropout", 1),
        ("classification", "final_layers", "softmax"),
        ("classification", "use_max", "yes"),
        ("similarity", "encoder", "gru"),
    ],
)
def test_a_kind_refuses_its_own_options_out_of_range(kind: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"option {name} must be .*; found {value!r}"):
        build_options(kind, {name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_default_options_and_no_dropout_are_valid(kind: str) -> None:
    build_options(kind, {})
    assert build_options(kind, {"dropout": 0}).dropout == 0


CHOSEN: dict[str, Any] = {
    "coreference": {"is_coarse": True, "feature_width": 3, "input_dropout": 0.1},
    "classification": {"network": "linear", "use_max": True},
    "similarity": {"encoder": "mean"},
}
GIVEN: dict[str, dict[str, Any]] = {
    "coreference": {"has_singletons": True},
    "classification": {"labels": ["a", "b"]},
    "similarity": {"low": 1, "high": 5},
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_later_options_are_saved_only_if_they_differ_from_the_default(kind: str) -> None:
    task = KINDS[kind][0]
    usual = {**GIVEN[kind], "options": {"dropout": 0.1}}  # as models were saved before
    old = task.from_json(usual)
    assert not set(CHOSEN[kind]) - {"network"} & set(old.to_json()["options"])
    new = task.from_json({**usual, "options": {"dropout": 0.1, **CHOSEN[kind]}})
    assert CHOSEN[kind].items() <= new.to_json()["options"].items()
    assert task.from_json(new.to_json()) == new
    widths = FeatureWidths(4, 2)
    assert (
        dict(new.build_head(widths).named_parameters()).keys() != dict(old.build_head(widths).named_parameters()).keys()
    )


def test_an_option_of_the_other_network_is_refused() -> None:
    with pytest.raises(ConfigError, match="option use_max needs network linear; found network biattentive"):
        build_options("classification", {"use_max": True})
    with pytest.raises(ConfigError, match="final_layers needs network biattentive; found network linear"):
        build_options("classification", {"network": "linear", "final_layers": "maxout"})
    assert build_options("classification", {"final_layers": "maxout"}).final_layers == "maxout"


TABLES: dict[str, type[Any]] = {"head": KINDS["coreference"][1], "fit": FitOptions}


def test_values_are_typed_as_in_a_plan() -> None:
    given = ["head.max_span_width=12", "head.is_coarse = true", "fit.decay=.5", "fit.clip=1", "head.dropout=1e-1"]
    found, problems = parse_assignments(given, TABLES)
    assert not problems
    assert found == {
        "head": {"max_span_width": 12, "is_coarse": True, "dropout": 0.1},
        "fit": {"decay": 0.5, "clip": 1},
    }
    assert found["head"]["is_coarse"] is True
    text, problems = parse_assignments(["head.encoder=mean"], {"head": KINDS["similarity"][1]})
    assert (text, problems) == ({"head": {"encoder": "mean"}}, [])
    assert parse_assignments(['head.encoder="mean"'], {"head": KINDS["similarity"][1]})[0] == text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("head.width=3", "[head] has no option 'width'; it has: hidden_width, max_span_width, kept_share"),
        ("head.max_span_width=wide", "[head] max_span_width must be an integer; found 'wide'"),
        ("head.max_span_width=2.5", "[head] max_span_width must be an integer; found 2.5"),
        ("head.max_span_width=2\nx=3", "[head] max_span_width must be an integer; found '2\\nx=3'"),
        ("head.max_span_width=", "[head] max_span_width must be an integer; found ''"),
        ("head.is_coarse=1", "[head] is_coarse must be true or false; found 1"),
        ("tail.x=1", "each setting must be TABLE.NAME=VALUE, with one of the tables head, fit; found 'tail.x=1'"),
        ("max_span_width=3", "each setting must be TABLE.NAME=VALUE, with one of the tables head, fit; found 'max"),
        ("head.max_span_width", "each setting must be TABLE.NAME=VALUE"),
        ("=", "each setting must be TABLE.NAME=VALUE"),
    ],
)
def test_invalid_settings_are_reported_with_the_known_names(given: str, message: str) -> None:
    _, problems = parse_assignments([given], TABLES)
    assert len(problems) == 1
    assert problems[0].startswith(message)
    assert "\n" not in problems[0]


def test_one_option_has_one_value() -> None:
    _, problems = parse_assignments(["fit.clip=1", "fit.clip=2"], TABLES)
    assert problems == ["[fit] clip must be set once; found a second value: '2'"]
