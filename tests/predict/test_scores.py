"""Scores of every word: those of the equations, whatever is read beside them, from every start."""

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


def found_in(model: Pretrained | Elmo, text: Sequence[Sequence[str]], **options: Any) -> list[SentenceScores]:
    return list(scores.scores(model, text, **options))


def in_double(model: Pretrained) -> Elmo:
    return Elmo(model, dtype="float64")


def expected(
    model: Pretrained, sentence: Sequence[str], hidden: np.ndarray, cell: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What the equations give, one word at a time: log p forward and backward, and the state after it."""
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


@pytest.mark.parametrize("token", ["chars", "words", "both"])
@pytest.mark.parametrize("start", ["zero", "warm", "carry"])
def test_scores_are_those_of_the_equations(token: Any, start: Any) -> None:
    model = tiny_model(token, softmax=True, warm=True)
    text = [sentence[:150] for sentence in TEXT]
    lstm = model.config.lstm
    hidden, cell = (np.zeros((2, lstm.n_layers, n)) for n in (lstm.state_width, lstm.cell_width))
    if start == "warm":
        assert model.warm is not None
        hidden, cell = model.warm.hidden.double().numpy(), model.warm.cell.double().numpy()
    found = found_in(in_double(model), text, start=start, n_rows=1)
    assert [each.tokens for each in found] == [tuple(sentence) for sentence in text]
    for each, sentence in zip(found, text, strict=True):
        forward, backward, *after = expected(model, sentence, hidden, cell)
        assert each.forward is not None
        assert each.backward is not None
        np.testing.assert_allclose(each.forward, forward, rtol=0, atol=1e-11)
        np.testing.assert_allclose(each.backward, backward, rtol=0, atol=1e-11)
        if start == "carry":
            hidden, cell = after


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sentence_by_itself_has_the_same_bits_among_others(dtype: str) -> None:
    model = Elmo(tiny_model(softmax=True, warm=True, words=(*WORDS, *map(str, range(700)))), dtype=dtype)
    chance = np.random.default_rng(0)
    text = [[str(k) for k in chance.integers(0, 900, n)] for n in chance.integers(1, 40, 100)]
    text[17] = [str(k) for k in chance.integers(0, 900, 200)]
    for start in ("zero", "warm"):
        together = found_in(model, text, start=start)
        for k in (0, 17, 50, 99):
            (alone,) = found_in(model, [text[k]], start=start)
            np.testing.assert_array_equal(together[k].forward, alone.forward)
            np.testing.assert_array_equal(together[k].backward, alone.backward)


@pytest.mark.parametrize("start", ["zero", "carry"])
def test_sizes_of_the_work_change_nothing(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    model = in_double(tiny_model(softmax=True))
    whole = found_in(model, TEXT * 5, start=start, n_rows=1)
    monkeypatch.setattr(scores, "BLOCK_TOKENS", 20)
    monkeypatch.setattr(predictor, "WINDOW", 8)
    monkeypatch.setattr(predictor, "CHUNK_LOGITS", 1)
    for one, other in zip(found_in(model, TEXT * 5, start=start, n_rows=1), whole, strict=True):
        np.testing.assert_allclose(one.forward, other.forward, rtol=0, atol=1e-12)  # pyright: ignore
        np.testing.assert_allclose(one.backward, other.backward, rtol=0, atol=1e-12)  # pyright: ignore


def test_blocks_end_by_distinct_words_and_by_characters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_double(tiny_model(softmax=True))
    whole = found_in(model, TEXT, start="carry", n_rows=1)
    for name, limit in (("BLOCK_WORDS", 3), ("BLOCK_CHARACTERS", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(scores, name, limit)
            found = found_in(model, TEXT, start="carry", n_rows=1)
        for one, other in zip(found, whole, strict=True):
            np.testing.assert_allclose(one.forward, other.forward, rtol=0, atol=1e-12)  # pyright: ignore


def test_rows_carry_from_block_to_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_double(tiny_model(softmax=True))
    text = [["the", "bank"], ["river"], ["café", "the"], ["bank", "bank"]] * 2
    monkeypatch.setattr(scores, "BLOCK_TOKENS", 11)  # four sentences
    found = found_in(model, text, start="carry", n_rows=2)
    # row 0 reads sentences 0, 1, 4, 5 and row 1 the others
    for row in ([0, 1, 4, 5], [2, 3, 6, 7]):
        alone = found_in(model, [text[k] for k in row], start="carry", n_rows=1)
        for k, each in zip(row, alone, strict=True):
            np.testing.assert_allclose(found[k].forward, each.forward, rtol=0, atol=1e-12)  # pyright: ignore
            np.testing.assert_allclose(found[k].backward, each.backward, rtol=0, atol=1e-12)  # pyright: ignore


def test_a_short_text_is_one_row_unless_asked() -> None:
    model = tiny_model(softmax=True)
    by_default, in_order, apart, cold = (
        found_in(model, TEXT, start=start, n_rows=n_rows)
        for start, n_rows in (("carry", None), ("carry", 1), ("carry", 99), ("zero", None))
    )
    for k in range(1, len(TEXT)):
        np.testing.assert_array_equal(by_default[k].forward, in_order[k].forward)
        np.testing.assert_array_equal(apart[k].forward, cold[k].forward)
        assert (by_default[k].forward != cold[k].forward).any()  # pyright: ignore


def test_what_the_softmax_does_not_know_is_marked() -> None:
    (each,) = found_in(tiny_model(softmax=True), [["<S>", "café", "dog", "<UNK>", "the"]])
    assert each.is_unknown.tolist() == [True, False, True, True, False]


def test_empty_sentences_are_left_out_unless_they_count() -> None:
    model = tiny_model(softmax=True)
    text: list[list[str]] = [[], ["the"], [], []]
    assert [each.tokens for each in found_in(model, text)] == [("the",)]
    counted = found_in(model, text, blank_lines_count=True)
    assert [len(each.tokens) for each in counted] == [0, 1, 0, 0]
    assert [len(each.forward) for each in counted] == [1, 2, 1, 1]  # pyright: ignore
    assert found_in(model, []) == []


def test_a_text_is_read_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "BLOCK_TOKENS", 30)
    taken = []

    def text() -> Any:
        for k in range(1000):
            taken.append(k)
            yield ["the", "bank"]

    first = next(iter(scores.scores(tiny_model(softmax=True), text())))
    assert first.tokens == ("the", "bank")
    assert len(taken) == 10


def test_strings_are_tokenised_and_paths_read(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the bank.\n\nthe river\n", encoding="utf-8")
    model = tiny_model(softmax=True)
    assert [each.tokens for each in scores.scores(model, "the bank.")] == [("the", "bank", ".")]
    found = list(scores.scores(model, tmp_path / "text.txt"))
    assert [each.tokens for each in found] == [("the", "bank", "."), ("the", "river")]
    assert [each.sentence.line for each in found] == [1, 3]
    found = scores.scores(model, ["the bank.", ["the", "river"]], tokenizer="whitespace")
    assert [each.tokens for each in found] == [("the", "bank."), ("the", "river")]


@pytest.mark.parametrize(
    ("model", "options", "kind", "part"),
    [
        (tiny_model(), {}, ConfigError, "no softmax"),
        (tiny_model(softmax=True, vocab=False), {}, ConfigError, "no vocabulary"),
        (tiny_model(softmax=True, words=("the", "bank")), {}, FormatError, "<S>"),
        (tiny_model(softmax=True, words=("<S>", "</S>", "the")), {}, DataError, "no <UNK>"),
        (tiny_model(softmax=True), {"start": "warm"}, StateError, "no warm state"),
        (tiny_model(softmax=True), {"start": "hot"}, ConfigError, "'hot'"),
        (tiny_model(softmax=True), {"n_rows": 0}, ConfigError, "n_rows"),
        (tiny_model(softmax=True), {"tokenizer": "klingon"}, ConfigError, "klingon"),
        (tiny_model(softmax=True), {"input_format": "xml"}, ConfigError, "xml"),
    ],
    ids=str,
)
def test_what_cannot_be_scored_is_refused(model: Any, options: Any, kind: Any, part: str) -> None:
    with pytest.raises(kind, match=part) as caught:
        found_in(model, [["the", "dog"]], **options)
    assert "\n" not in str(caught.value)
