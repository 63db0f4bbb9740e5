from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from elmo.errors import ConfigError, DataError, ShapeError
from elmo.tasks.heads.answers import AnswerBounds, AnswersHead, AnswerSpan, find_best_answers
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths

WIDTHS = FeatureWidths(6, 3)


def vectors(*lengths: int, seed: int = 0, padding: int = 0) -> FeatureVectors:
    """Random sentences whose words do not depend on the padding."""
    mask = torch.arange(max(lengths) + padding) < torch.tensor(lengths)[:, None]
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs = torch.zeros(*mask.shape, 6), torch.zeros(*mask.shape, 3)
    for row, length in enumerate(lengths):
        inputs[row, :length] = torch.randn(length, 6, generator=generator)
        outputs[row, :length] = torch.randn(length, 3, generator=generator)
    return FeatureVectors(inputs, mask, outputs)


def a_head(**options: float) -> AnswersHead:
    torch.manual_seed(0)
    return AnswersHead(WIDTHS, hidden_width=4, **options).eval()  # pyright: ignore


def flags(shape: tuple[int, int], *places: tuple[int, int]) -> Tensor:
    is_true = torch.zeros(shape, dtype=torch.bool)
    for place in places:
        is_true[place] = True
    return is_true


def test_padding_changes_nothing() -> None:
    head = a_head()
    tight = head(vectors(5, 3), vectors(2, 4, seed=1))
    loose = head(vectors(5, 3, padding=3), vectors(2, 4, seed=1, padding=2))
    for name in ("first", "last"):
        a, b = getattr(tight, name), getattr(loose, name)
        torch.testing.assert_close(a, b[:, :5], atol=1e-6, rtol=0)
        assert b[:, 5:].isneginf().all()
        torch.testing.assert_close(a.exp().sum(dim=1), torch.ones(2))


def test_a_question_has_the_same_answer_alone_and_in_a_batch() -> None:
    head = a_head()
    passages, questions = vectors(5, 3), vectors(2, 4, seed=1)
    together = head(passages, questions)
    one = [FeatureVectors(v.inputs[1:], v.mask[1:], v.outputs[1:]) for v in (passages, questions)]  # pyright: ignore
    torch.testing.assert_close(head(*one).last, together.last[1:], atol=1e-6, rtol=0)


def test_rows_let_questions_share_a_passage() -> None:
    head = a_head()
    passages, questions = vectors(5, 3), vectors(2, 4, 1, seed=1)
    rows = torch.tensor([1, 0, 1])
    written_out = FeatureVectors(passages.inputs[rows], passages.mask[rows], passages.outputs[rows])  # pyright: ignore
    shared, apart = head(passages, questions, rows=rows), head(written_out, questions)
    torch.testing.assert_close(shared.first, apart.first, atol=1e-6, rtol=0)
    torch.testing.assert_close(shared.last, apart.last, atol=1e-6, rtol=0)


def test_the_loss_sums_the_probabilities_of_all_right_tokens() -> None:
    head = a_head()
    passages, questions = vectors(5, 3), vectors(2, 4, seed=1)
    bounds = head(passages, questions)
    is_start, is_end = flags((2, 5), (0, 1), (0, 3), (1, 0)), flags((2, 5), (0, 4), (1, 2))
    found = head.loss(passages, questions, is_start=is_start, is_end=is_end)
    p, q = bounds.first.exp().tolist(), bounds.last.exp().tolist()
    expected = -math.log(p[0][1] + p[0][3]) - math.log(p[1][0]) - math.log(q[0][4]) - math.log(q[1][2])
    assert float(found.detach()) == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("max_length", [1, 3, 99])
def test_the_best_spans_agree_with_a_search_over_all(max_length: int) -> None:
    torch.manual_seed(4)
    scores = torch.randn(2, 2, 6).masked_fill(
        torch.tensor([[[0] * 6, [0, 0, 0, 0, 1, 1]]]).bool(), -torch.inf
    )
    bounds = AnswerBounds(scores[0].log_softmax(1), scores[1].log_softmax(1))
    found = find_best_answers(bounds, max_length=max_length, n_best=50)
    for row, n in enumerate((6, 4)):
        spans = [(i, j) for i, j in product(range(n), repeat=2) if i <= j < i + max_length]
        chance = {(i, j + 1): float((bounds.first[row, i] + bounds.last[row, j]).exp()) for i, j in spans}
        expected = sorted(chance, key=lambda span: -chance[span])
        assert [(one.start, one.end) for one in found[row]] == expected
        assert [one.probability for one in found[row]] == pytest.approx([chance[span] for span in expected])


def test_predictions_are_alike_each_time_and_within_the_passage() -> None:
    head = a_head()
    passages, questions = vectors(5, 1, padding=2), vectors(2, 4, seed=1)
    found = head.predict(passages, questions, n_best=3, max_length=2)
    assert found == head.predict(passages, questions, n_best=3, max_length=2)
    assert [len(answers) for answers in found] == [3, 1]
    assert all(0 <= one.start < one.end <= 5 and one.end - one.start <= 2 for one in found[0])
    (only,) = found[1]
    assert only == AnswerSpan(0, 1, only.probability)
    assert only.probability == pytest.approx(1.0)


def test_a_head_learns_to_find_the_span_that_the_question_names() -> None:
    """The question shows a word; the answer is that word of the passage and the one after."""
    torch.manual_seed(5)
    words = torch.stack([torch.randperm(6) for _ in range(32)])  # (batch, time)
    asked = torch.randint(5, (32,))
    passages = FeatureVectors(torch.eye(6)[words], torch.ones(32, 6, dtype=torch.bool))
    question = torch.eye(6)[words[torch.arange(32), asked]].unsqueeze(1)  # (batch, 1, width)
    questions = FeatureVectors(question, torch.ones(32, 1, dtype=torch.bool))
    is_start = torch.arange(6) == asked.unsqueeze(1)
    is_end = torch.arange(6) == asked.unsqueeze(1) + 1
    head = AnswersHead(FeatureWidths(6), hidden_width=12, dropout=0.0)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(70):
        optimiser.zero_grad()
        loss = head.loss(passages, questions, is_start=is_start, is_end=is_end)
        loss.backward()
        optimiser.step()
    found = head.eval().predict(passages, questions)
    right = sum(
        (one[0].start, one[0].end) == (place, place + 2)
        for one, place in zip(found, asked.tolist(), strict=True)
    )
    assert right >= 29
    assert all(weights.grad is not None for weights in head.parameters())


def test_what_does_not_fit_is_refused() -> None:
    head = a_head()
    passages, questions = vectors(5, 3), vectors(2, 4, seed=1)
    right = flags((2, 5), (0, 1), (1, 1))
    with pytest.raises(DataError, match="question 2: expected a token of its passage as end, found none"):
        head.loss(passages, questions, is_start=right, is_end=flags((2, 5), (0, 1), (1, 4)))
    with pytest.raises(ShapeError, match=r"is_start: expected .*\(2, 5\), found \(2, 4\)"):
        head.loss(passages, questions, is_start=right[:, :4], is_end=right)
    with pytest.raises(DataError, match="question 1: expected words, found none"):
        head(passages, FeatureVectors(questions.inputs, questions.mask & False, questions.outputs))
    with pytest.raises(ShapeError, match="rows: expected the passage of each of 2 questions"):
        head(vectors(5, 3, 2), questions)
    with pytest.raises(ConfigError, match="max_length and n_best must be at least 1, found 0 and 1"):
        head.predict(passages, questions, max_length=0)
