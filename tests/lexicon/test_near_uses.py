from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from elmo.errors import DataError
from elmo.lexicon import sharpen as module
from elmo.lexicon.sharpen import APART, N_COMMON, N_USES, REACH, SENTENCE, near_uses
from elmo.text.tokenizers import Tokens

COMMON = [f"{a}{b}" for a in "abcdefghijklmnop" for b in "klmnopqrst"]  # more than are left out as frequent
RARE = [f"sense{a}{b}" for a in "abcdefgh" for b in "abcdefghij"]
NAMES = ["Anna", "Berlin", "1848", "%"]
KINDS = ["money", "river", "church", "war", "music", "law", "sea", "game"]


def text(n_texts: int = 40, seed: int = 1) -> list[Tokens]:
    """Texts of eight kinds, about 2,500 tokens each: rare words come again and again."""
    chance = random.Random(seed)
    found = []
    for _ in range(n_texts):
        kind = chance.randrange(len(KINDS))
        around, beside = COMMON[kind :: len(KINDS)], KINDS[kind]  # which stands on both sides of them
        words = [*chance.sample(RARE, 50), *NAMES]
        for _ in range(100):
            sentence = chance.choices(around, k=chance.randint(1, 28))
            for word in chance.sample(words, 4):
                place = chance.randint(0, len(sentence))
                sentence[place:place] = [beside, word, beside]
            found.append(Tokens(None, tuple(sentence), None))
    return found


def test_uses_are_of_one_word_and_two_and_two_near_each_other() -> None:
    sentences = text()
    starts, n_read = {}, 0
    for sentence in sentences:
        starts[id(sentence)] = n_read
        n_read += len(sentence)
    usages = near_uses([sentences], key=str.lower, n_words=60)
    assert len(usages) == 60 * N_USES
    counts = Counter(token for sentence in sentences for token in sentence.tokens)
    common = {word for word, _ in counts.most_common(N_COMMON)}
    seen = set()
    for first in range(0, len(usages), N_USES):
        group = usages[first : first + N_USES]
        (word,) = {usage.word for usage in group}
        seen.add(word)
        places = [starts[id(usage.sentence)] + usage.begin for usage in group]
        for one, other, here, there in zip(group[::2], group[1::2], places[::2], places[1::2], strict=True):
            assert 0 < there - here <= REACH
            assert one.sentence is not other.sentence
        ends = sorted(places[1::2])
        assert min(b - a for a, b in pairwise(ends)) >= APART
        for usage in group:
            assert SENTENCE[0] <= len(usage.sentence) <= SENTENCE[1]
            assert 0 < usage.begin < len(usage.sentence) - 1, "something was read before it on both sides"
    assert len(seen) == 60
    assert seen & set(RARE)
    assert not seen & (common | set(NAMES))


def test_the_same_seed_draws_the_same_uses_and_another_draws_others() -> None:
    sentences = text()
    drawn = [near_uses([sentences], key=str.lower, n_words=20, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_words_that_the_key_makes_one_are_one() -> None:
    spelled = [
        Tokens(None, tuple(token.replace("sense", "sensé") for token in sentence.tokens), None)
        if number % 2
        else sentence
        for number, sentence in enumerate(text())
    ]
    usages = near_uses([spelled], key=lambda token: token.replace("é", "e"), n_words=80)
    groups = [usages[k : k + N_USES] for k in range(0, len(usages), N_USES)]
    assert all(len({usage.word.replace("é", "e") for usage in group}) == 1 for group in groups)
    assert sum(len({usage.word for usage in group}) == 2 for group in groups) > 60


def test_a_line_that_is_repeated_is_no_second_use() -> None:
    doubled = [line for sentence in text() for line in (sentence, Tokens(None, sentence.tokens, None))]
    usages = near_uses([doubled], key=str.lower, n_words=60)
    assert usages
    for one, other in zip(usages[::2], usages[1::2], strict=True):
        assert one.sentence.tokens != other.sentence.tokens


def test_two_texts_have_no_pair_between_them() -> None:
    sentences = text()
    assert near_uses([sentences], key=str.lower, n_words=60)
    assert near_uses(([sentence] for sentence in sentences), key=str.lower, n_words=60) == []


def test_words_of_too_few_places_and_the_most_frequent_do_not_count() -> None:
    few = near_uses([text(3)], key=str.lower, n_words=60)
    assert not {usage.word for usage in few} & set(RARE)
    only_common = [Tokens(None, tuple(COMMON[k % 100 : k % 100 + 20]), None) for k in range(5000)]
    assert near_uses([only_common], key=str.lower, n_words=60) == []


def test_no_more_is_read_than_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 3000)
    left = iter(text(8))
    near_uses([left], key=str.lower, n_words=9)
    assert len(list(left)) > 500


@pytest.mark.parametrize(
    ("texts", "found"), [(text(1), r"found a sentence: give \[text\]"), ([["a b"]], "found a str")]
)
def test_what_is_no_text_of_sentences_is_refused(texts: Any, found: str) -> None:
    with pytest.raises(DataError, match=found):
        near_uses(texts, key=str.lower, n_words=9)
