"""Scores of context words: their definitions, checked against encodings of changed sentences and finite differences."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
import torch

import elmo as package
from elmo import ConfigError, DataError, Elmo, LayerMix, similarity
from elmo.lexicon import Explainer, Explanation
from elmo.lexicon.explain import MAX_REACH, Method, change_words, explain, find_scope
from elmo.lexicon.usages import Usage
from elmo.text.tokenizers import Tokens
from tests.embed.sentences import tiny_elmo

SENTENCE = "the river [[bank]] the café"
OTHER = "a [[bank]] the river"
METHODS: tuple[Method, ...] = get_args(Method)


@pytest.fixture(scope="module")
def model() -> Elmo:
    return tiny_elmo(softmax=True, warm=True)


def vector(model: Elmo, tokens: list[str], at: int, **options: Any) -> Any:
    return model.encode([tokens], **options)[0].vectors[at]


def test_leaving_out_a_word_is_scored_by_the_change_of_the_vector(model: Elmo) -> None:
    result = explain(model, SENTENCE)
    own = vector(model, ["the", "river", "bank", "the", "café"], 2)
    without = {
        0: vector(model, ["river", "bank", "the", "café"], 1),
        1: vector(model, ["the", "bank", "the", "café"], 1),
        3: vector(model, ["the", "river", "bank", "café"], 2),
        4: vector(model, ["the", "river", "bank", "the"], 2),
    }
    for k, changed in without.items():
        assert result.scores[k] == pytest.approx(1 - similarity(own, changed), abs=1e-9)
    assert result.scores[2] == 0.0
    assert result.scores[0] != result.scores[3]  # the same word in two positions has two scores
    assert (result.similarity, result.other, result.target, result.word) == (None, None, (2, 3), "bank")


def test_the_score_of_a_word_is_what_the_similarity_loses_without_it(model: Elmo) -> None:
    result = explain(model, SENTENCE, other=OTHER)
    assert result.other is not None
    own = vector(model, ["the", "river", "bank", "the", "café"], 2)
    other = vector(model, ["a", "bank", "the", "river"], 1)
    cosine = similarity(own, other)
    assert result.similarity == result.other.similarity == pytest.approx(cosine)
    without_river = vector(model, ["the", "bank", "the", "café"], 1)
    assert result.scores[1] == pytest.approx(cosine - similarity(without_river, other), abs=1e-9)
    without_a = vector(model, ["bank", "the", "river"], 0)
    assert result.other.scores[0] == pytest.approx(cosine - similarity(own, without_a), abs=1e-9)
    assert result.other.scores[1] == 0.0


def test_a_replaced_word_is_scored_by_the_expected_change(model: Elmo) -> None:
    from elmo.lexicon.explain import _ExpectedWords

    result = explain(model, "river [[bank]]", method="replace")
    usage = Usage(Tokens.from_words(["river", "bank"]), 1, 2)
    variants = _ExpectedWords(model, start="zero").replace_each(usage, (0, 2))
    words = [variant.usage.sentence.tokens[0] for variant in variants]
    assert "river" not in words
    assert not {"<S>", "</S>", "<UNK>"} & set(words)
    assert sum(variant.weight for variant in variants) == pytest.approx(1.0)
    own = vector(model, ["river", "bank"], 1)
    expected = sum(
        v.weight * (1 - similarity(vector(model, [w, "bank"], 1), own)) for v, w in zip(variants, words, strict=True)
    )
    assert result.scores == (pytest.approx(expected, abs=1e-9), 0.0)


@pytest.mark.slow  # the first derivative imports parts of torch
@pytest.mark.parametrize("layers", ["average", "top", 1, "concat"])
@pytest.mark.parametrize("other", [None, OTHER])
def test_gradient_scores_are_derivatives_along_the_token_vectors(layers: Any, other: str | None) -> None:
    model = tiny_elmo().to(dtype="float64")
    result = explain(model, SENTENCE, other=other, method="gradient", layers=layers)
    batch = model.batch([["the", "river", "bank", "the", "café"]])
    inputs = model.bilm.token_layer(torch.as_tensor(batch.char_ids), None)
    lengths = torch.tensor([7])

    def target(scale: float, position: int) -> Any:
        changed = inputs.clone()
        changed[0, position + 1] *= scale
        states = model.bilm.contextualize(changed, lengths).layers.states[0, :, 3]
        if layers == "average":
            return states.mean(dim=0).numpy()
        return states.flatten().numpy() if layers == "concat" else states[-1 if layers == "top" else layers].numpy()

    step = 1e-4
    reference = target(1.0, 0) if other is None else vector(model, ["a", "bank", "the", "river"], 1, layers=layers)
    for k in (0, 1, 3, 4):
        if other is None:  # 1 − cosine, to second order
            expected = sum((1 - similarity(target(1 + sign * step, k), reference)) / step**2 for sign in (-1, 1)) / 2
        else:
            up, down = (similarity(target(1 + sign * step, k), reference) for sign in (1, -1))
            expected = (up - down) / (2 * step)
        assert result.scores[k] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_gradient_follows_a_layer_mix_and_a_warm_start(model: Elmo) -> None:
    mix = LayerMix(3, weights=[-50.0, 50.0, -50.0])
    by_mix = explain(model, SENTENCE, method="gradient", layers=mix)
    by_layer = explain(model, SENTENCE, method="gradient", layers=1)
    assert by_mix.scores == pytest.approx(by_layer.scores, rel=1e-4)
    warm = explain(model, SENTENCE, method="gradient", layers=1, start="warm")
    assert warm.scores != by_layer.scores


def test_gradient_in_half_precision_is_computed_in_float32() -> None:
    exact = explain(tiny_elmo(), SENTENCE, method="gradient")
    rounded = explain(tiny_elmo().to(dtype="bfloat16"), SENTENCE, method="gradient")
    assert np.allclose(exact.scores, rounded.scores, rtol=0.3, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_phrases_single_words_and_tokens_can_be_explained(model: Elmo, method: Method) -> None:
    alone = explain(model, "[[bank]]", method=method, other="[[bank]]")
    assert (alone.scores, alone.context, alone.top()) == ((0.0,), (), ())
    assert alone.similarity == pytest.approx(1.0)
    phrase = explain(model, "the [[river bank]] the", method=method)
    assert (phrase.target, phrase.word) == ((1, 3), "river bank")
    assert [score != 0 for score in phrase.scores] == [True, False, False, True]
    by_tokens = explain(model, ["the", "river", "bank", "the"], word="river bank", method=method)
    assert by_tokens.scores == phrase.scores
    assert by_tokens.offsets is None


@pytest.mark.parametrize("method", ["leave-out", "gradient"])
def test_the_token_layer_does_not_depend_on_the_context(model: Elmo, method: Method) -> None:
    assert explain(model, SENTENCE, method=method, layers=0).scores == pytest.approx([0.0] * 5, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_only_the_nearest_words_of_a_long_sentence_are_explained(model: Elmo, method: Method) -> None:
    tokens = ["the", "river", "café", "a"] * 1250
    usage = Usage(Tokens.from_words([*tokens[:3000], "bank", *tokens[3001:]]), 3000, 3001)
    result = Explainer(model, method=method, max_words=10).explain(usage)
    assert len(result.scores) == len(result.tokens) == 5000
    assert result.scope == (2995, 3006)
    assert [word.position for word in result.context] == [*range(2995, 3000), *range(3001, 3006)]
    assert {k for k, score in enumerate(result.scores) if score} <= {word.position for word in result.context}
    part = Usage(
        Tokens.from_words(usage.sentence.tokens[3000 - MAX_REACH : 3001 + MAX_REACH]), MAX_REACH, MAX_REACH + 1
    )
    clipped = Explainer(model, method=method, max_words=10).explain(part)
    assert [w.score for w in result.context] == [w.score for w in clipped.context]


def test_the_window_uses_the_other_side_if_one_side_is_short() -> None:
    usage = Usage(Tokens.from_words(list("abcdefgh")), 1, 2)
    assert find_scope(usage, 4) == (0, 5)
    assert find_scope(usage, 100) == (0, 8)
    assert find_scope(Usage(usage.sentence, 7, 8), 3) == (4, 8)
    assert find_scope(Usage(usage.sentence, 4, 5), 3) == (2, 6)


def test_words_are_removed_and_replaced_without_moving_the_target() -> None:
    usage = Usage(Tokens.from_words(list("abcde")), 2, 4)
    changed = change_words(usage, {0: None, 1: "x", 4: None})
    assert (changed.sentence.tokens, changed.begin, changed.end) == (("x", "c", "d"), 1, 3)


def test_the_json_has_one_score_and_one_span_per_token(model: Elmo) -> None:
    value = json.loads(json.dumps(explain(model, SENTENCE, other=OTHER).to_json()))
    assert value["tokens"] == ["the", "river", "bank", "the", "café"]
    assert value["offsets"] == [[0, 3], [4, 9], [10, 14], [15, 18], [19, 23]]
    assert (value["target"], value["scope"], value["method"]) == ([2, 3], [0, 5], "leave-out")
    assert len(value["scores"]) == 5
    assert value["other"].keys() == value.keys()
    assert value["other"]["other"] is None


def test_the_top_words_have_the_largest_scores_of_either_sign() -> None:
    result = Explanation(tuple("abcd"), None, (1, 2), "leave-out", (0.1, 0.0, -0.3, 0.2), (0, 4), similarity=0.5)
    assert [word.token for word in result.top(2)] == ["c", "d"]
    assert len(result.top(9)) == 3
    with pytest.raises(ConfigError, match="n must be at least 0; found -1"):
        result.top(-1)


def test_replacing_needs_a_softmax(elmo: Elmo) -> None:
    with pytest.raises(ConfigError, match="has no softmax"):
        explain(elmo, SENTENCE, method="replace")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "method must be one of leave-out, replace, gradient; found 'magic'"),
        ({"layers": "all"}, "several vectors"),
        ({"layers": 7}, "layer number in 0..2; found 7"),
        ({"max_words": 0}, "max_words must be at least 1; found 0"),
        ({"start": "cold"}, "start must be zero or warm; found 'cold'"),
    ],
)
def test_wrong_options_are_errors(model: Elmo, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain(model, SENTENCE, **options)


def test_a_sentence_without_the_word_is_an_error(model: Elmo) -> None:
    with pytest.raises(DataError, match="sentence 2: no word is marked"):
        explain(model, SENTENCE, other="the river")
    with pytest.raises(DataError, match="sentence 1: 'sea' does not occur"):
        explain(model, "the river", word="sea")


def test_the_package_exports_the_function() -> None:
    assert package.explain is explain
