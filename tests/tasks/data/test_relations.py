"""Words with marks of entities between them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elmo.tasks.data.texts import MARK, keep_markers
from elmo.text.tokenizers import WhitespaceTokenizer, load_tokenizer

MARKS = st.sampled_from(["<e1>", "</e1>", "<e2>", "</e2>"])


def test_marks_do_not_change_how_the_rest_is_cut() -> None:
    plain = "The U.S. senator's trade-off, Mr. Smith said, can't last."
    marked = "The <e1>U.S. senator</e1>'s trade-off, <e2>Mr. Smith</e2> said, can't last."
    words = keep_markers(load_tokenizer("en"))(marked)
    assert [word for word in words if not MARK.fullmatch(word)] == list(load_tokenizer("en")(plain).tokens)
    assert " ".join(words[:6]) == "The <e1> U.S. senator </e1> 's"


def test_a_mark_within_a_token_cuts_it() -> None:
    cut = keep_markers(WhitespaceTokenizer())
    assert cut("tea<e1>pot</e1>s and") == ("tea", "<e1>", "pot", "</e1>", "s", "and")
    assert cut("a </e1><e2> b") == ("a", "</e1>", "<e2>", "b")


def test_a_tokeniser_that_changes_characters_is_asked_piece_by_piece() -> None:
    cut = keep_markers(lambda text: text.upper().split())
    assert cut("a <e1>big cat</e1>!") == ("A", "<e1>", "BIG", "CAT", "</e1>", "!")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(MARKS, st.text(alphabet="ab .'<e1/>", max_size=5)), max_size=12))
def test_no_mark_and_no_character_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    for name in ("whitespace", "en"):
        words = keep_markers(load_tokenizer(name))(text)
        assert "".join(words) == "".join(text.split())
        assert [word for word in words if MARK.fullmatch(word)][: len(MARK.findall(text))] == MARK.findall(
            text
        )
