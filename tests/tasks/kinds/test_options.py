"""Options that no network can be built with are refused."""

from __future__ import annotations

from typing import Any

import pytest

from elmo import ConfigError
from elmo.tasks.kinds.by_name import KINDS, task_options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dropout", 1.5, "option dropout: expected a share from 0 to below 1, found 1.5"),
        ("dropout", 1.0, "option dropout: expected a share from 0 to below 1, found 1.0"),
        ("dropout", float("nan"), "option dropout: expected a share from 0 to below 1, found nan"),
        ("hidden_width", 0, "option hidden_width: expected a whole number from 1, found 0"),
        ("hidden_width", 2.5, "option hidden_width: expected a whole number from 1, found 2.5"),
    ],
)
def test_every_kind_refuses_options_out_of_range(kind: str, name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_options(kind, {name: value})


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
    ],
)
def test_a_kind_refuses_its_own_options_out_of_range(kind: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"option {name}: expected .*, found {value!r}"):
        task_options(kind, {name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_the_usual_options_and_no_dropout_will_do(kind: str) -> None:
    task_options(kind, {})
    assert task_options(kind, {"dropout": 0}).dropout == 0
