"""Semantic roles in columns of brackets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elmo.errors import ConfigError, DataError
from elmo.tasks.data.examples import Location, Predicate, Span
from elmo.tasks.data.roles import read_roles
from tests.tasks.data.corpora import DATA, needs_data, write_file


def read(*args: Any, **options: Any) -> list[Predicate]:
    return list(read_roles(*args, **options))


PROPBANK = """\
He PRP - - (ARG0*) (ARG0*)
might MD - - * (ARGM-MOD*)
come VB come come.03 (V*) *
and CC - - * *
mail NN - - * (V*
it VB mail mail.01 * *)
that WDT - - * (R-ARG1*)
way NN - - * (C-ARG1*
up RB - - * *)

Yes UH - -

Go VB go go.02 (V*)
""".replace(" ", "\t")

CONLL2005 = """\
The   DT  (S*  -   -     (A0*  *
cat   NN  *    -   -     *)    *
began VBD *    01  begin (V*)  *
to    TO  *    -   -     *     *
run   VB  *)   02  run   (A1*) (V*)

No    DT  (S*  -   -
"""

CONLL2012 = """\
#begin document (bc/cctv); part 000
bc/cctv 0 0 We PRP (TOP(S* - - - Speaker#1 * (ARG0*) * (0)
bc/cctv 0 1 did VBD * do 03 - Speaker#1 * (V*) * -
bc/cctv 0 2 the DT * - - - Speaker#1 * (ARG1* * (1
bc/cctv 0 3 run NN *)) run 01 - Speaker#1 * *) (V*) 1)

bc/cctv 0 0 Good JJ (TOP*) - - 1 - * -

#end document
"""


def test_propbank_columns_give_one_example_per_predicate(tmp_path: Path) -> None:
    path = write_file(tmp_path, PROPBANK)
    words = ("He", "might", "come", "and", "mail", "it", "that", "way", "up")
    assert read([path]) == [
        Predicate(words, 2, (Span(0, 1, "ARG0"),), Location(str(path), 1)),
        Predicate(
            words,
            5,  # of the verb "mail it" the token with a roleset
            (Span(0, 1, "ARG0"), Span(1, 2, "ARGM-MOD"), Span(6, 7, "R-ARG1"), Span(7, 9, "C-ARG1")),
            Location(str(path), 1),
        ),
        Predicate(("Go",), 0, (), Location(str(path), 13)),
    ]


def test_the_target_column_of_conll2005_is_detected(tmp_path: Path) -> None:
    found = read([write_file(tmp_path, CONLL2005)])
    assert [(one.predicate, one.roles) for one in found] == [(2, (Span(0, 2, "A0"), Span(4, 5, "A1"))), (4, ())]
    bare = "She - (A0*)\nran run (V*)\n"  # words, targets and roles only
    assert [one.predicate for one in read([write_file(tmp_path, bare)])] == [1]


def test_roles_of_conll2012_come_before_the_last_column(tmp_path: Path) -> None:
    for text in (CONLL2012, CONLL2012.replace(" ", "\t").replace("n\tdoc", "n doc").replace("d\tdoc", "d doc")):
        found = read([write_file(tmp_path, text)])
        assert [(one.words, one.predicate, one.roles) for one in found] == [
            (("We", "did", "the", "run"), 1, (Span(0, 1, "ARG0"), Span(2, 4, "ARG1"))),
            (("We", "did", "the", "run"), 3, ()),
        ]
        assert found[0].location == Location(str(tmp_path / "train.conll"), 2)


def test_the_predicate_of_conll2012_without_a_frameset_is_the_first_token_of_v(tmp_path: Path) -> None:
    (found,) = read(
        [write_file(tmp_path, "d 0 0 Go V * - - - - * (V* -\nd 0 1 on V * - - - - * *) -\n")], file_format="conll2012"
    )
    assert (found.predicate, found.roles) == (0, ())


def test_a_target_in_the_second_half_of_a_verb_is_the_predicate(tmp_path: Path) -> None:
    text = "They P - - (ARG0*)\nflip V - - (V*)\n- H - - *\nflopped V flop flipflop.01 (C-V*)\n"
    (found,) = read([write_file(tmp_path, text.replace(" ", "\t"))])
    assert (found.predicate, found.roles) == (3, (Span(0, 1, "ARG0"),))
    particle = "Look V look look_up.01 (V*)\nit P - - (ARG1*)\nup R - - (C-V*)\n"
    (found,) = read([write_file(tmp_path, particle.replace(" ", "\t"))])
    assert (found.predicate, found.roles) == (0, (Span(1, 2, "ARG1"), Span(2, 3, "C-V")))


@pytest.mark.parametrize(
    ("text", "predicates"),
    [
        (PROPBANK, [2, 5, 0]),
        ("\n".join("\t".join(row.split("\t")[:4]) for row in PROPBANK.split("\n")), [2, 5, 0]),
        (CONLL2005, [2, 4]),
        ("The -\ncat -\nran run\n", [2]),
        (CONLL2012, [1, 3]),
    ],
)
def test_without_labels_predicates_are_the_targets(tmp_path: Path, text: str, predicates: list[int]) -> None:
    found = read([write_file(tmp_path, text)], is_labeled=False)
    assert [one.predicate for one in found] == predicates
    assert all(one.roles is None for one in found)


def test_the_target_column_can_be_chosen(tmp_path: Path) -> None:
    path = write_file(tmp_path, "Go\tgo\tV\t(V*)\tx\n")
    with pytest.raises(DataError, match=r":1: expected \*, \(ROLE\*, \*\) or \(ROLE\*\) in column 5; found other text"):
        read([path])
    path = write_file(tmp_path, "Go\tgo\t(V*)\n")
    assert [one.predicate for one in read([path], target=1)] == [0]
    with pytest.raises(DataError, match=r":1: expected at least 4 columns; found 3"):
        read([path])
    with pytest.raises(ConfigError, match="target must be a column number of at least 1; found 0"):
        read([path], target=0)


def rows(*cells: str) -> str:
    """Build a sentence with these roles; the predicate is in the last row."""
    words = [f"w{k}\tX\t-\t-\t{cell}" for k, cell in enumerate(cells)]
    return "\n".join([*words, "go\tV\tgo\tgo.01\t(V*)"]) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"train.conll: expected examples; found an empty file"),
        ("#begin document (a); part 000\n\n#end document\n", r"expected sentences; found none"),
        (
            rows("(A0*", "(A1*", "*)"),
            r":2: expected the span A0 from line 1 to end before A1 starts in column 5; found overlapping spans",
        ),
        (rows("(A0(A1*", "*))"), r":1: expected .* in column 5; found nested spans: '\(A0\(A1\*'"),
        (rows("*", "*)"), r":2: expected an open span before '\)' in column 5; found none"),
        (rows("(A0*)", "A0"), r":2: expected \*, .* in column 5; found other text: 'A0'"),
        (
            rows("*").replace("(V*)", "(A0*"),
            r":2: expected the span A0 in column 5 to end in its sentence; found no closing",
        ),
        (rows("*").replace("(V*)", "*"), r":1: expected a span \(V\*\) in column 5; found none"),
        (rows("(V*)").replace("\t(V*)\n", "\t*\n", 2), r":1: expected a span \(V\*\)"),
        (
            rows("(V*)", "*").replace("go.01\t(V*)", "go.01\t*"),
            r":1: expected the span V of column 5 .*line 3\); found it in this row",
        ),
        (
            rows("*").replace("go\tgo.01", "-\t-"),
            r":1: expected one column of roles for each of the 0 predicates .* found 1",
        ),
        (rows("*\t*"), r":2: expected 6 columns separated by tabs, as in line 1; found 5"),
        (rows("*").replace("w0", ""), r":1: expected a word in column 1; found nothing"),
        ("a b\nc d\n", r":1: expected a target column with as many targets as columns after it; found none"),
        ("#begin document (a); part 0\na 0 0 b -\n", r":2: expected at least 12 columns; found 5"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read([write_file(tmp_path, text)])
    assert "\n" not in str(caught.value)


def test_an_unknown_format_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file_format must be one of auto, propbank"):
        read([tmp_path], file_format="conll2009")


@needs_data
def test_published_propbank_has_the_expected_predicates() -> None:
    dev = read([DATA / "srl-ewt" / "dev.conll.xz"])
    assert len(dev) == 4963
    assert all(role.label != "V" for one in dev for role in one.roles or ())
    # every bracket, but a V each and one C-V that is the target itself ("two - timing")
    assert sum(len(one.roles or ()) for one in dev) == 9719 + 4827 - 4963 - 1
    assert len({one.location for one in dev}) == 1531  # of 1,965 sentences: others have no predicate
