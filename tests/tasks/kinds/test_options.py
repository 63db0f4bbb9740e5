"""Options that no network can be built with are refused."""

from __future__ import annotations

from typing import Any

import pytest

from elmo import ConfigError
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.kinds.registry import KINDS, build_options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dropout", 1.5, "option dropout: expected a number from 0 to below 1, found 1.5"),
        ("dropout", 1.0, "option dropout: expected a number from 0 to below 1, found 1.0"),
        ("dropout", float("nan"), "option dropout: expected a number from 0 to below 1, found nan"),
        ("hidden_width", 0, "option hidden_width: expected an integer from 1, found 0"),
        ("hidden_width", 2.5, "option hidden_width: expected an integer from 1, found 2.5"),
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
    with pytest.raises(ConfigError, match=f"option {name}: expected .*, found {value!r}"):
        build_options(kind, {name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_the_usual_options_and_no_dropout_will_do(kind: str) -> None:
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
def test_options_that_came_later_are_kept_where_they_were_chosen(kind: str) -> None:
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
    with pytest.raises(
        ConfigError, match="option use_max needs the linear network, found network biattentive"
    ):
        build_options("classification", {"use_max": True})
    with pytest.raises(ConfigError, match="final_layers needs the biattentive network, found network linear"):
        build_options("classification", {"network": "linear", "final_layers": "maxout"})
    assert build_options("classification", {"final_layers": "maxout"}).final_layers == "maxout"
