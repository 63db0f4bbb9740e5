"""Target units: texts are restored, rare words are split or copied, and learning does not depend on the order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo import DataError
from elmo.tasks.data.units import COPY, SPACED_COPY, SPECIAL, UNKNOWN, TargetUnits, Unit, UnitKind, split_parts

pytest.importorskip("tokenizers", reason="tokenizers is not installed")

TEXTS = ["Zwei Männer gehen.", "Ein Mann geht, ein Hund rennt.", "Zwei Hunde rennen.", "Ein Mann rennt."] * 2


def learned(kind: UnitKind, n_units: int = 60) -> TargetUnits:
    return TargetUnits.learn(TEXTS, kind=kind, n_units=n_units)


@given(st.text(max_size=40))
def test_parts_restore_every_text(text: str) -> None:
    plain = " ".join(text.replace("▁", " ").split())
    assert "".join(split_parts(text)).replace("▁", " ").strip() == plain


def test_parts_are_words_numbers_marks_and_chinese_characters() -> None:
    assert list(split_parts("हिन्दी भाषा cafe\u0301")) == ["▁हिन्दी", "▁भाषा", "▁cafe\u0301"]
    assert list(split_parts("I don't pay 3.50, 我们 a_b")) == [
        "▁I", "▁don't", "▁pay", "▁3.50", ",", "▁我", "们", "▁a", "_", "b",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_training_texts_are_restored_from_their_units(kind: UnitKind) -> None:
    units = learned(kind)
    assert len(units.names) <= 60
    for text in TEXTS:
        assert units.decode(units.encode(text)) == text


def test_units_do_not_depend_on_the_order_of_texts() -> None:
    for kind in ("bpe", "words"):
        assert TargetUnits.learn(TEXTS[::-1], kind=kind, n_units=40) == learned(kind, 40)


def test_frequent_words_are_units_and_rare_words_are_split() -> None:
    units = learned("bpe", 45)
    assert [units.format(unit) for unit in units.encode("Zwei Mann.")][-1] == "."
    assert len(units.encode("Zwei")) < len(units.encode("gehnde"))
    assert units.decode(units.encode("gehnde")) == "gehnde"
    assert [unit.id for unit in learned("words").encode("Zwei Katzen")] == [
        learned("words").names.index("▁Zwei"),
        UNKNOWN,
    ]


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_a_word_that_is_not_a_unit_is_copied_from_the_source(kind: UnitKind) -> None:
    units = learned(kind)
    found = units.encode("Zwei (Qxy rennt.", ("two", "(", "Qxy", "run", "Zwei"))
    assert Unit(COPY, "Qxy") in found  # no space before it
    assert units.encode("Ein Qxy", ("Qxy",))[-1] == Unit(SPACED_COPY, "Qxy")
    assert Unit(SPACED_COPY, "Zwei") not in found  # a frequent word is predicted, not copied
    assert units.decode(units.encode("Ein Qxy rennt.", ("Qxy",))) == "Ein Qxy rennt."


def test_names_of_special_units_in_a_text_are_plain_text() -> None:
    units = TargetUnits.learn(["<copy> x </s> x <pad>"] * 3, kind="words", n_units=50)
    assert not {unit.id for unit in units.encode("<copy> </s>")} & set(range(len(SPECIAL)))
    assert units.decode(units.encode("<copy> </s> x")) == "<copy> </s> x"


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_units_are_restored_from_json(kind: UnitKind) -> None:
    assert TargetUnits.from_json(learned(kind).to_json()) == learned(kind)


@pytest.mark.parametrize(
    "change",
    [{"names": ["a"]}, {"names": [*SPECIAL, "a", "a"]}, {"merges": [["a", "b"]]}, {"merges": [["a"]]}, {"names": 3}],
)
def test_inconsistent_units_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        TargetUnits.from_json({"names": [*SPECIAL, "a", "b"], "merges": [], **change})


def test_texts_without_a_repeated_word_are_refused() -> None:
    with pytest.raises(DataError, match="no word of the target texts occurs 2 times; more training data is needed"):
        TargetUnits.learn(["a b c"], kind="words", n_units=50)


def test_merges_are_learned_from_more_characters_than_units() -> None:
    characters = [chr(code) for code in range(0x4E00, 0x4E00 + 100)]
    units = TargetUnits.learn(["".join(characters), "我们 我们 我们 ab ab ab"] * 2, kind="bpe", n_units=60)
    assert len(units.names) <= 60
    assert units.merges
    assert units.encode(characters[99]) == [Unit(UNKNOWN)]


def test_no_merges_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    TargetUnits.learn(["a"] * 4, kind="bpe", n_units=8)
    assert "joined no characters" in caplog.text
