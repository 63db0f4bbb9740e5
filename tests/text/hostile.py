"""Hostile text as a hypothesis strategy: any code point, and pieces that are hard for tokenizers."""

from __future__ import annotations

from hypothesis import strategies as st

from elmo.text.tokenizers import Tokens

PIECES = [
    *("", " ", "\t", "\n", "\r\n", "\x00", "\x0b", "\x1c", "\x85", "\xa0", "\u2028", "\u2029", "\u3000"),
    *("\u200b", "\ufeff", "\u200d", "\u200f", "\u202e", "\u0301", "\u093f", "\U000e0100"),
    *("\ud800", "\udfff", "\udc80", "\uffff", "\U0010ffff"),
    *("👩‍👩‍👧‍👦", "👍🏽", "🇫🇷", "🏴\U000e0067\U000e007f", "1\ufe0f\u20e3"),
    *("中文", "繁體", "。", "！」", "……", "——", "カナ", "ภาษา", "é"),
    *("n't", "don't", "'s", "’", "''", "``", "...", "--", "U.S.", "Mr.", "J. ", "e.g.", "No. 5"),
    *("3.14", "1,000", "10:30", "$", "%", "http://", "www.", "a@b.co", "a.com", "@", "#", "<S>", "</S>"),
    *("&amp;", ":-)", "-LRB-", "_", "\\", "(", ")", '"', "a", "Z"),
]

texts = st.one_of(
    st.text(st.characters(), max_size=60),  # includes surrogates
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(st.characters(), max_size=2)), max_size=30).map("".join),
)


def assert_sound(found: Tokens, text: str) -> None:
    """Check that tokens are exact, in order, do not overlap and cover the text."""
    assert found.text == text
    assert found.offsets is not None
    assert len(found.tokens) == len(found.offsets)
    at = 0
    for token, (start, end) in zip(found.tokens, found.offsets, strict=True):
        assert at <= start < end <= len(text)
        assert token == text[start:end]
        assert not text[at:start].strip()  # only white space is between tokens
        at = end
    assert not text[at:].strip()
