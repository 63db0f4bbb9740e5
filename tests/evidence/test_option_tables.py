"""Options given value by value, as a command line has them: typed, and told with what there is."""

from __future__ import annotations

from typing import Any

import pytest

from elmo.tasks.kinds.options import parse_assignments
from elmo.tasks.fit import FitOptions
from elmo.tasks.kinds.registry import KINDS

TABLES: dict[str, type[Any]] = {"head": KINDS["coreference"][1], "fit": FitOptions}


def test_values_are_typed_as_in_a_plan() -> None:
    given = [
        "head.max_span_width=12",
        "head.is_coarse = true",
        "fit.decay=.5",
        "fit.clip=1",
        "head.dropout=1e-1",
    ]
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
    ("given", "told"),
    [
        ("head.width=3", "[head] has no option 'width'; it has: hidden_width, max_span_width, kept_share"),
        ("head.max_span_width=wide", "[head] max_span_width: expected an integer, found 'wide'"),
        ("head.max_span_width=2.5", "[head] max_span_width: expected an integer, found 2.5"),
        ("head.max_span_width=2\nx=3", "[head] max_span_width: expected an integer, found '2\\nx=3'"),
        ("head.max_span_width=", "[head] max_span_width: expected an integer, found ''"),
        ("head.is_coarse=1", "[head] is_coarse: expected true or false, found 1"),
        ("tail.x=1", "expected TABLE.NAME=VALUE with one of the tables head, fit, found 'tail.x=1'"),
        ("max_span_width=3", "expected TABLE.NAME=VALUE with one of the tables head, fit, found 'max"),
        ("head.max_span_width", "expected TABLE.NAME=VALUE"),
        ("=", "expected TABLE.NAME=VALUE"),
    ],
)
def test_what_cannot_be_set_is_told_with_what_there_is(given: str, told: str) -> None:
    _, problems = parse_assignments([given], TABLES)
    assert len(problems) == 1
    assert problems[0].startswith(told)
    assert "\n" not in problems[0]


def test_one_option_has_one_value() -> None:
    _, problems = parse_assignments(["fit.clip=1", "fit.clip=2"], TABLES)
    assert problems == ["[fit] clip: expected one value, found a second: '2'"]
