from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmo.text.lines import escaped, unescaped


@given(st.text(st.characters(codec=None)))
def test_any_string_comes_back(text: str) -> None:
    field = escaped(text)
    assert unescaped(field) == text
    assert not set(field) & set("\t\n\r")
    field.encode("utf-8")


def test_a_field_that_was_never_escaped_is_refused() -> None:
    with pytest.raises(ValueError, match="escape"):
        unescaped("\\")
