"""Sharpening a model: the gain, the pairs of usages that it learns from, and the transformed model."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo import Elmo, perplexity
from elmo.errors import ConfigError, DataError, ShapeError
from elmo.formats import native
from elmo.formats.pretrained import Pretrained
from elmo.lexicon import sharpen as module
from elmo.lexicon.sharpen import (
    MAX_DISTANCE,
    MIN_GAP,
    N_COMMON,
    N_USAGES,
    SENTENCE_LENGTHS,
    SharpenedModel,
    find_usage_pairs,
    sharpen_model,
    transform_states,
)
from elmo.text.tokenizers import Tokens
from tests.formats.tiny import tiny_model

COMMON = [f"{a}{b}" for a in "abcdefghijklmnop" for b in "klmnopqrst"]  # more words than are skipped as frequent
RARE = [f"sense{a}{b}" for a in "abcdefgh" for b in "abcdefghij"]
NAMES = ["Anna", "Berlin", "1848", "%"]
KINDS = ["money", "river", "church", "war", "music", "law", "sea", "game"]
WORDS = ("<S>", "</S>", "<UNK>", *COMMON)
SENTENCES = [COMMON[k : k + 12] for k in range(0, 120, 12)]


def text(n_texts: int = 40, seed: int = 1) -> list[Tokens]:
    """Return texts of eight kinds, about 2,500 tokens each, with rare words that occur repeatedly."""
    chance = random.Random(seed)
    sentences = []
    for _ in range(n_texts):
        kind = chance.randrange(len(KINDS))
        common, neighbor = COMMON[kind :: len(KINDS)], KINDS[kind]  # the neighbor of all rare words
        words = [*chance.sample(RARE, 50), *NAMES]
        for _ in range(100):
            sentence = chance.choices(common, k=chance.randint(1, 28))
            for word in chance.sample(words, 4):
                k = chance.randint(0, len(sentence))
                sentence[k:k] = [neighbor, word, neighbor]
            sentences.append(Tokens(None, tuple(sentence), None))
    return sentences


def model(**options: Any) -> Elmo:
    made = tiny_model(words=WORDS, filters=((1, 4), (2, 16)), cell_width=48, state_width=24, char_width=4, **options)
    return Elmo(made)


@pytest.fixture(scope="module")
def long_text() -> list[Tokens]:
    return text()


@pytest.fixture(scope="module")
def found(long_text: list[Tokens]) -> SharpenedModel:
    return sharpen_model(model(softmax=True, warm=True), [long_text])


@pytest.mark.slow
def test_usages_near_each_other_become_more_similar(long_text: list[Tokens]) -> None:
    bundled = Elmo.from_pretrained()
    with_softmax = sharpen_model(bundled, [long_text])
    alone = sharpen_model(Elmo(replace(bundled.pretrained, softmax=None)), [long_text])
    for found in (with_softmax, alone):
        assert found.n_words >= 50
        assert found.before > 0.55
        assert found.after > found.before + 0.02
    assert with_softmax.before == alone.before
    assert with_softmax.after != alone.after, "the softmax is a second signal"


@pytest.mark.slow
def test_predictions_stay_the_same(found: SharpenedModel) -> None:
    both = (model(softmax=True, warm=True), Elmo(found.model))
    scores = [perplexity(elmo, SENTENCES)["zero"].geometric_mean for elmo in both]
    assert scores[1] == pytest.approx(scores[0], rel=1e-4)
    vectors = [elmo.encode(SENTENCES[:1])[0].vectors for elmo in both]
    assert not np.allclose(*vectors, atol=0.01)


@pytest.mark.slow
def test_it_is_reproducible_and_the_model_card_mentions_it(
    found: SharpenedModel, long_text: list[Tokens], tmp_path: Path
) -> None:
    again = sharpen_model(model(softmax=True, warm=True), [long_text])
    for name, weight in found.model.weights.items():
        assert torch.equal(again.model.weights[name], weight), name
    assert again.model.metadata["sharpened"] == {"words": found.n_words, "seed": 0}
    native.write(found.model, tmp_path / "model")
    assert "transformed by `elmo sharpen`" in (tmp_path / "model" / "README.md").read_text()
    native.write(model().as_pretrained(), tmp_path / "other")
    assert "sharpen" not in (tmp_path / "other" / "README.md").read_text()


@pytest.mark.slow
def test_current_weights_are_transformed_and_the_tokenizer_is_kept(long_text: list[Tokens]) -> None:
    elmo = Elmo(model(softmax=True).pretrained, tokenizer="whitespace").to(dtype="float64")
    with torch.no_grad():
        for weight in elmo.bilm.token_layer.parameters():
            weight.mul_(0.5)
    after = sharpen_model(elmo, [long_text]).model
    assert after.metadata["tokenizer"] == "whitespace"
    tokens = [model.encode(SENTENCES[:1], layers=0)[0].vectors for model in (elmo, Elmo(after))]
    assert np.allclose(*tokens, atol=1e-5)


@pytest.mark.slow
def test_a_model_of_one_direction_keeps_its_empty_half(long_text: list[Tokens]) -> None:
    whole = model(softmax=True).pretrained
    weights = {
        name: torch.zeros_like(weight) if name.startswith("backward") else weight
        for name, weight in whole.weights.items()
    }
    found = sharpen_model(Elmo(replace(whole, weights=weights)), [long_text])
    vectors = Elmo(found.model).encode(SENTENCES[:1], layers=2)[0].vectors
    assert not vectors[:, 24:].any()
    assert vectors[:, :24].any()


@pytest.mark.slow
def test_clipped_states_are_counted(found: SharpenedModel, long_text: list[Tokens]) -> None:
    assert found.clipped < 0.001
    clipped = sharpen_model(model(softmax=True, state_clip=0.2), [long_text]).clipped
    free = Elmo(replace_clip(model(softmax=True).pretrained))
    states = np.concatenate([encoding.vectors[1] for encoding in free.encode(SENTENCES, layers="all")])
    assert clipped == pytest.approx((np.abs(states) >= 0.2).mean(), abs=0.15)
    assert clipped > 0.01


def replace_clip(model: Pretrained) -> Pretrained:
    return replace(model, config=replace(model.config, encoder=replace(model.config.lstm, state_clip=None)))


def test_too_little_text_is_rejected(long_text: list[Tokens]) -> None:
    with pytest.raises(DataError, match=r"at least 50 words .* found 0; .*split longer lines .*use more text"):
        sharpen_model(model(), [long_text[:200]])


def test_a_model_without_projections_is_rejected_before_text_is_read() -> None:
    def never() -> Any:
        raise AssertionError
        yield

    with pytest.raises(ConfigError, match="LSTMs have no projections"):
        sharpen_model(Elmo(tiny_model(cell_width=4, state_width=4)), never())


# --- Pairs of usages --------------------------------------------------------------------------------


def test_the_usages_of_a_word_come_in_pairs_near_each_other() -> None:
    sentences = text()
    starts, n_read = {}, 0
    for sentence in sentences:
        starts[id(sentence)] = n_read
        n_read += len(sentence)
    usages = find_usage_pairs([sentences], key=str.lower, n_words=60)
    assert len(usages) == 60 * N_USAGES
    counts = Counter(token for sentence in sentences for token in sentence.tokens)
    common = {word for word, _ in counts.most_common(N_COMMON)}
    seen = set()
    for first in range(0, len(usages), N_USAGES):
        group = usages[first : first + N_USAGES]
        (word,) = {usage.word for usage in group}
        seen.add(word)
        places = [starts[id(usage.sentence)] + usage.begin for usage in group]
        for one, other, here, there in zip(group[::2], group[1::2], places[::2], places[1::2], strict=True):
            assert 0 < there - here <= MAX_DISTANCE
            assert one.sentence is not other.sentence
        ends = sorted(places[1::2])
        assert min(b - a for a, b in pairwise(ends)) >= MIN_GAP
        for usage in group:
            assert SENTENCE_LENGTHS[0] <= len(usage.sentence) <= SENTENCE_LENGTHS[1]
            assert 0 < usage.begin < len(usage.sentence) - 1, "both directions have context"
    assert len(seen) == 60
    assert seen & set(RARE)
    assert not seen & (common | set(NAMES))


@pytest.mark.slow
def test_the_seed_determines_the_usages() -> None:
    sentences = text()
    drawn = [find_usage_pairs([sentences], key=str.lower, n_words=20, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_tokens_with_the_same_key_are_one_word() -> None:
    spelled = [
        Tokens(None, tuple(token.replace("sense", "sensé") for token in sentence.tokens), None)
        if number % 2
        else sentence
        for number, sentence in enumerate(text())
    ]
    usages = find_usage_pairs([spelled], key=lambda token: token.replace("é", "e"), n_words=80)
    groups = [usages[k : k + N_USAGES] for k in range(0, len(usages), N_USAGES)]
    assert all(len({usage.word.replace("é", "e") for usage in group}) == 1 for group in groups)
    assert sum(len({usage.word for usage in group}) == 2 for group in groups) > 60


@pytest.mark.slow
def test_a_repeated_line_is_not_a_second_usage() -> None:
    doubled = [line for sentence in text() for line in (sentence, Tokens(None, sentence.tokens, None))]
    usages = find_usage_pairs([doubled], key=str.lower, n_words=60)
    assert usages
    for one, other in zip(usages[::2], usages[1::2], strict=True):
        assert one.sentence.tokens != other.sentence.tokens


@pytest.mark.slow
def test_the_usages_of_a_pair_are_in_one_text() -> None:
    sentences = text()
    assert find_usage_pairs([sentences], key=str.lower, n_words=60)
    assert find_usage_pairs(([sentence] for sentence in sentences), key=str.lower, n_words=60) == []


def test_words_in_few_passages_and_frequent_words_are_skipped() -> None:
    few = find_usage_pairs([text(3)], key=str.lower, n_words=60)
    assert not {usage.word for usage in few} & set(RARE)
    only_common = [Tokens(None, tuple(COMMON[k % 100 : k % 100 + 20]), None) for k in range(5000)]
    assert find_usage_pairs([only_common], key=str.lower, n_words=60) == []


def test_reading_stops_after_the_maximum_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 3000)
    left = iter(text(8))
    find_usage_pairs([left], key=str.lower, n_words=9)
    assert len(list(left)) > 500


@pytest.mark.parametrize(
    ("texts", "message"), [(text(1), r"found a single text; pass \[text\]"), ([["a b"]], "found str")]
)
def test_texts_must_have_tokenized_sentences(texts: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_usage_pairs(texts, key=str.lower, n_words=9)


# --- The transformed model --------------------------------------------------------------------------

BANK_SENTENCES = [["the", "river", "bank"], ["the", "bank"], ["café", "the", "the", "river", "of", "the", "bank"]]
OPTIONS = [
    {},
    {"has_skip": False, "state_clip": None},
    {"n_layers": 3, "cell_clip": None},
    {"n_layers": 1},
    {"token": "words"},
    {"token": "both", "alphabet": "unicode", "forget_bias": 0.0},
]


def build_matrix(width: int = 4) -> torch.Tensor:
    noise = torch.randn(width, width, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.eye(width, dtype=torch.float64) + 0.4 * noise


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("start", ["zero", "warm"])
def test_states_are_transformed_and_probabilities_stay_the_same(options: dict[str, Any], start: Any) -> None:
    model = tiny_model(softmax=True, warm=True, **options)
    before, after = Elmo(model), Elmo(transform_states(model, build_matrix()))
    for old, new in zip(
        before.encode(BANK_SENTENCES, layers="all", start=start),
        after.encode(BANK_SENTENCES, layers="all", start=start),
        strict=True,
    ):
        assert np.array_equal(new.vectors[0], old.vectors[0]), "the token layer stays the same"
        halves = np.split(old.vectors[1:], 2, axis=2)
        expected = np.concatenate([half @ build_matrix().numpy().T for half in halves], axis=2)
        assert np.allclose(new.vectors[1:], expected, atol=2e-6)
    scores = [perplexity(elmo, BANK_SENTENCES, start=start)[start] for elmo in (before, after)]
    assert scores[1].forward == pytest.approx(scores[0].forward, rel=1e-5)
    assert scores[1].backward == pytest.approx(scores[0].backward, rel=1e-5)


def test_a_transformed_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = transform_states(tiny_model(softmax=True, warm=True), build_matrix())
    native.write(model, tmp_path / "model")
    loaded = Elmo.from_pretrained(tmp_path / "model")
    assert loaded.config.lstm.state_clip is None
    assert np.array_equal(*(elmo.encode(BANK_SENTENCES[:1])[0].vectors for elmo in (loaded, Elmo(model))))


def test_the_inverse_matrix_restores_the_model() -> None:
    model = tiny_model(softmax=True, warm=True)
    again = transform_states(transform_states(model, build_matrix()), torch.linalg.inv(build_matrix()))
    for name, weight in model.weights.items():
        assert torch.allclose(again.weights[name], weight, atol=1e-6), name
    assert model.softmax is not None
    assert again.softmax is not None
    assert torch.allclose(again.softmax.weight, model.softmax.weight, atol=1e-6)


def test_states_without_projections_are_rejected() -> None:
    with pytest.raises(ConfigError, match="LSTMs have no projections"):
        transform_states(tiny_model(cell_width=4, state_width=4), build_matrix())


def test_a_matrix_of_another_size_is_rejected() -> None:
    with pytest.raises(ShapeError, match="matrix must be 4 x 4"):
        transform_states(tiny_model(), build_matrix(5))


def test_a_mix_and_tied_embeddings_stay_the_same() -> None:
    model = tiny_model("words", softmax=True, mix=True)
    after = transform_states(model, build_matrix())
    assert after.mix == model.mix
    assert torch.equal(after.weights["token_layer.word_embed.weight"], model.weights["token_layer.word_embed.weight"])
