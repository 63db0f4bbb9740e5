"""Function words and adverbs, which are left out of the words whose change is measured by default."""

from __future__ import annotations

from elmo.lexicon.function_words import is_function_word


def test_adverbs_are_words_whose_adjective_is_known() -> None:
    known = {"slow", "happy", "possible", "shy", "f", "y", "ho"}
    words = ["the", "我们", "slowly", "happily", "possibly", "shyly", "bank", "family", "fly", "holy"]
    assert [word for word in words if is_function_word(word, known)] == words[:6]
