"""Scores of every word: they match the equations, from every start state and in every batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.embed.elmo import Elmo
from elmo.errors import ConfigError, DataError, FormatError, StateError
from elmo.formats.pretrained import Pretrained
from elmo.predict import predictor, scores
from elmo.predict.evaluate import perplexity
from elmo.predict.scores import SentenceScores
from tests import oracle
from tests.formats.tiny import WORDS, tiny_model

TEXT: list[list[str]] = [
    ["the", "river", "bank"],
    ["the", "bank", "of", "the", "river", "."],
    ["河岸"],
    ["<S>", "café", "</S>", "<UNK>"],
    ["the"] * 300,  # longer than a window
    ["a", "b", "the"],
]


def score(model: Pretrained | Elmo, text: Sequence[Sequence[str]], **options: Any) -> list[SentenceScores]:
    return list(scores.score_sentences(model, text, **options))


def in_double(model: Pretrained) -> Elmo:
    return Elmo(model, dtype="float64")


def expected(
    model: Pretrained, sentence: Sequence[str], hidden: np.ndarray, cell: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compute the equations one word at a time: log p forward and backward, and the final state."""
    weights = {name: value.double().numpy() for name, value in model.weights.items()}
    assert model.softmax is not None
    assert model.vocab is not None
    weight, bias = (x.double().numpy() for x in (model.softmax.weight, model.softmax.bias))
    indexer = Elmo(model).indexer
    edges, words = indexer.boundaries(), indexer.words(sentence)

    def vectors(ids: Any) -> list[np.ndarray]:
        n = len(ids.char_ids if ids.char_ids is not None else ids.word_ids)
        return [
            oracle.token_vector(
                model.config,
                weights,
                characters=None if ids.char_ids is None else ids.char_ids[k].tolist(),
                word=None if ids.word_ids is None else int(ids.word_ids[k]),
            )
            for k in range(n)
        ]

    bos, eos = vectors(edges)
    inner = vectors(words)
    known = [word if word in WORDS and word not in ("<S>", "</S>") else "<UNK>" for word in sentence]
    ids = [WORDS.index(word) for word in known]
    width = model.config.lstm.state_width
    # the forward half never reads </S>, the backward half never <S>
    ahead, hidden_f, cell_f = oracle.layers(model.config, weights, [bos, *inner], hidden=hidden, cell=cell)
    behind, hidden_b, cell_b = oracle.layers(model.config, weights, [*inner, eos], hidden=hidden, cell=cell)

    def log_p(state: np.ndarray, target: int) -> float:
        logits = weight @ state + bias
        return float(logits[target] - np.log(np.exp(logits - logits.max()).sum()) - logits.max())

    targets_f, targets_b = [*ids, WORDS.index("</S>")], [WORDS.index("<S>"), *ids]
    forward = np.array([log_p(s[:width], t) for s, t in zip(ahead[-1], targets_f, strict=True)])
    backward = np.array([log_p(s[width:], t) for s, t in zip(behind[-1], targets_b, strict=True)])
    return forward, backward, np.stack([hidden_f[0], hidden_b[1]]), np.stack([cell_f[0], cell_b[1]])


@pytest.mark.slow
@pytest.mark.parametrize("token", ["chars", "words", "both"])
@pytest.mark.parametrize("start", ["zero", "warm", "carry"])
def test_scores_match_the_equations(token: Any, start: Any) -> None:
    model = tiny_model(token, softmax=True, warm=True)
    text = [sentence[:150] for sentence in TEXT]
    lstm = model.config.lstm
    hidden, cell = (np.zeros((2, lstm.n_layers, n)) for n in (lstm.state_width, lstm.cell_width))
    if start == "warm":
        assert model.warm is not None
        hidden, cell = model.warm.hidden.double().numpy(), model.warm.cell.double().numpy()
    result = score(in_double(model), text, start=start, batch_size=1)
    assert [scored.tokens for scored in result] == [tuple(sentence) for sentence in text]
    for scored, sentence in zip(result, text, strict=True):
        forward, backward, *after = expected(model, sentence, hidden, cell)
        assert scored.forward is not None
        assert scored.backward is not None
        np.testing.assert_allclose(scored.forward, forward, rtol=0, atol=1e-11)
        np.testing.assert_allclose(scored.backward, backward, rtol=0, atol=1e-11)
        if start == "carry":
            hidden, cell = after


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_of_a_sentence_do_not_depend_on_its_batch(dtype: str) -> None:
    model = Elmo(tiny_model(softmax=True, warm=True, words=(*WORDS, *map(str, range(700)))), dtype=dtype)
    chance = np.random.default_rng(0)
    text = [[str(k) for k in chance.integers(0, 900, n)] for n in chance.integers(1, 40, 100)]
    text[17] = [str(k) for k in chance.integers(0, 900, 200)]
    for start in ("zero", "warm"):
        together = score(model, text, start=start)
        for k in (0, 17, 50, 99):
            (alone,) = score(model, [text[k]], start=start)
            np.testing.assert_array_equal(together[k].forward, alone.forward)
            np.testing.assert_array_equal(together[k].backward, alone.backward)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["zero", "carry"])
def test_scores_do_not_depend_on_block_and_window_sizes(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    model = in_double(tiny_model(softmax=True))
    whole = score(model, TEXT * 5, start=start, batch_size=1)
    monkeypatch.setattr(scores, "BLOCK_TOKENS", 20)
    monkeypatch.setattr(predictor, "WINDOW", 8)
    monkeypatch.setattr("elmo.engine.softmax.CHUNK_LOGITS", 1)
    for one, other in zip(score(model, TEXT * 5, start=start, batch_size=1), whole, strict=True):
        np.testing.assert_allclose(one.forward, other.forward, rtol=0, atol=1e-12)  # pyright: ignore
        np.testing.assert_allclose(one.backward, other.backward, rtol=0, atol=1e-12)  # pyright: ignore


@pytest.mark.slow
def test_blocks_are_limited_by_distinct_words_and_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_double(tiny_model(softmax=True))
    whole = score(model, TEXT, start="carry", batch_size=1)
    for name, limit in (("BLOCK_WORDS", 3), ("BLOCK_CHARACTERS", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(scores, name, limit)
            result = score(model, TEXT, start="carry", batch_size=1)
        for one, other in zip(result, whole, strict=True):
            np.testing.assert_allclose(one.forward, other.forward, rtol=0, atol=1e-12)  # pyright: ignore


def test_rows_carry_their_state_from_block_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_double(tiny_model(softmax=True))
    text = [["the", "bank"], ["river"], ["café", "the"], ["bank", "bank"]] * 2
    monkeypatch.setattr(scores, "BLOCK_TOKENS", 11)  # four sentences
    result = score(model, text, start="carry", batch_size=2)
    # row 0 reads sentences 0, 1, 4, 5 and row 1 the others
    for row in ([0, 1, 4, 5], [2, 3, 6, 7]):
        alone = score(model, [text[k] for k in row], start="carry", batch_size=1)
        for k, scored in zip(row, alone, strict=True):
            np.testing.assert_allclose(result[k].forward, scored.forward, rtol=0, atol=1e-12)  # pyright: ignore
            np.testing.assert_allclose(result[k].backward, scored.backward, rtol=0, atol=1e-12)  # pyright: ignore


@pytest.mark.slow
def test_a_short_text_is_one_row_by_default() -> None:
    model = tiny_model(softmax=True)
    by_default, in_order, apart, cold = (
        score(model, TEXT, start=start, batch_size=batch_size)
        for start, batch_size in (("carry", None), ("carry", 1), ("carry", 99), ("zero", None))
    )
    for k in range(1, len(TEXT)):
        np.testing.assert_array_equal(by_default[k].forward, in_order[k].forward)
        np.testing.assert_array_equal(apart[k].forward, cold[k].forward)
        assert (by_default[k].forward != cold[k].forward).any()  # pyright: ignore


def test_words_outside_the_vocabulary_are_marked_as_unknown() -> None:
    (scored,) = score(tiny_model(softmax=True), [["<S>", "café", "dog", "<UNK>", "the"]])
    assert scored.is_unknown.tolist() == [True, False, True, True, False]


def test_empty_sentences_are_skipped_unless_blank_lines() -> None:
    model = tiny_model(softmax=True)
    text: list[list[str]] = [[], ["the"], [], []]
    assert [scored.tokens for scored in score(model, text)] == [("the",)]
    counted = score(model, text, blank_lines=True)
    assert [len(scored.tokens) for scored in counted] == [0, 1, 0, 0]
    assert [len(scored.forward) for scored in counted] == [1, 2, 1, 1]  # pyright: ignore
    assert score(model, []) == []


def test_text_is_read_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "BLOCK_TOKENS", 30)
    taken = []

    def text() -> Any:
        for k in range(1000):
            taken.append(k)
            yield ["the", "bank"]

    first = next(iter(scores.score_sentences(tiny_model(softmax=True), text())))
    assert first.tokens == ("the", "bank")
    assert len(taken) == 10


def test_strings_are_tokenized_and_paths_are_read(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the bank.\n\nthe river\n", encoding="utf-8")
    model = tiny_model(softmax=True)
    assert [scored.tokens for scored in scores.score_sentences(model, "the bank.")] == [("the", "bank", ".")]
    result = list(scores.score_sentences(model, tmp_path / "text.txt"))
    assert [scored.tokens for scored in result] == [("the", "bank", "."), ("the", "river")]
    assert [scored.sentence.line for scored in result] == [1, 3]
    result = scores.score_sentences(model, ["the bank.", ["the", "river"]], tokenizer="whitespace")
    assert [scored.tokens for scored in result] == [("the", "bank."), ("the", "river")]


def test_results_have_a_short_repr() -> None:
    model = tiny_model(softmax=True)
    (scored,) = scores.score_sentences(model, "the bank")
    assert repr(scored) == f"SentenceScores('the bank', start='zero', perplexity={scored.perplexity:,.2f})"
    result = perplexity(model, ["the bank"], start=["zero", "carry"])
    zero, carry = (result[start].geometric_mean for start in ("zero", "carry"))
    assert repr(result) == f"Perplexity(zero {zero:,.2f}, carry {carry:,.2f}; 2 tokens, 0.0% unknown)"
    assert repr(result["zero"]).startswith("Means(forward=")


@pytest.mark.parametrize(
    ("model", "options", "kind", "part"),
    [
        (tiny_model(), {}, ConfigError, "no softmax"),
        (tiny_model(softmax=True, vocab=False), {}, ConfigError, "no vocabulary"),
        (tiny_model(softmax=True, words=("the", "bank")), {}, FormatError, "<S>"),
        (tiny_model(softmax=True, words=("<S>", "</S>", "the")), {}, DataError, "no <UNK>"),
        (tiny_model(softmax=True), {"start": "warm"}, StateError, "no warm state"),
        (tiny_model(softmax=True), {"start": "hot"}, ConfigError, "'hot'"),
        (tiny_model(softmax=True), {"batch_size": 0}, ConfigError, "batch_size"),
        (tiny_model(softmax=True), {"tokenizer": "klingon"}, ConfigError, "klingon"),
        (tiny_model(softmax=True), {"input_format": "xml"}, ConfigError, "xml"),
    ],
    ids=str,
)
def test_invalid_models_and_options_are_errors(model: Any, options: Any, kind: Any, part: str) -> None:
    with pytest.raises(kind, match=part) as caught:
        score(model, [["the", "dog"]], **options)
    assert "\n" not in str(caught.value)
