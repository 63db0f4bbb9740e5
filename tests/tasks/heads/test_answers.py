"""The head for questions about a passage."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.errors import DataError
from elmo.tasks.heads import answers, layers
from elmo.tasks.heads.answers import (
    AnswerBounds,
    AnswersHead,
    AnswerSpan,
    QuestionAttention,
    SelfAttention,
    TrilinearSimilarity,
    find_best_answers,
)
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from tests.tasks.heads.toy_words import largest_kept, random_features

WIDTHS = FeatureWidths(6, 3)


def build_head(**options: float) -> AnswersHead:
    torch.manual_seed(0)
    return AnswersHead(WIDTHS, hidden_width=4, **options).eval()  # pyright: ignore


def flags(shape: tuple[int, int], *positions: tuple[int, int]) -> Tensor:
    is_true = torch.zeros(shape, dtype=torch.bool)
    for position in positions:
        is_true[position] = True
    return is_true


def test_padding_changes_nothing() -> None:
    head = build_head()
    tight = head(random_features(5, 3), random_features(2, 4, seed=1))
    loose = head(random_features(5, 3, padding=3), random_features(2, 4, seed=1, padding=2))
    for name in ("first", "last"):
        a, b = getattr(tight, name), getattr(loose, name)
        torch.testing.assert_close(a, b[:, :5], atol=1e-6, rtol=0)
        assert b[:, 5:].isneginf().all()
        torch.testing.assert_close(a.exp().sum(dim=1), torch.ones(2))


def test_a_question_has_the_same_answer_alone_and_in_a_batch() -> None:
    head = build_head()
    passages, questions = random_features(5, 3), random_features(2, 4, seed=1)
    together = head(passages, questions)
    one = [FeatureVectors(v.inputs[1:], v.mask[1:], v.outputs[1:]) for v in (passages, questions)]  # pyright: ignore
    torch.testing.assert_close(head(*one).last, together.last[1:], atol=1e-6, rtol=0)


def test_questions_can_share_a_passage() -> None:
    head = build_head()
    passages, questions = random_features(5, 3), random_features(2, 4, 1, seed=1)
    rows = torch.tensor([1, 0, 1])
    written_out = FeatureVectors(passages.inputs[rows], passages.mask[rows], passages.outputs[rows])  # pyright: ignore
    shared, apart = head(passages, questions, rows=rows), head(written_out, questions)
    torch.testing.assert_close(shared.first, apart.first, atol=1e-6, rtol=0)
    torch.testing.assert_close(shared.last, apart.last, atol=1e-6, rtol=0)


def test_the_loss_sums_the_probabilities_of_all_true_tokens() -> None:
    head = build_head()
    passages, questions = random_features(5, 3), random_features(2, 4, seed=1)
    bounds = head(passages, questions)
    is_start, is_end = flags((2, 5), (0, 1), (0, 3), (1, 0)), flags((2, 5), (0, 4), (1, 2))
    found = head.loss(passages, questions, is_start=is_start, is_end=is_end)
    p, q = bounds.first.exp().tolist(), bounds.last.exp().tolist()
    expected = -math.log(p[0][1] + p[0][3]) - math.log(p[1][0]) - math.log(q[0][4]) - math.log(q[1][2])
    assert float(found.detach()) == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize("max_length", [1, 3, 99])
def test_the_best_spans_agree_with_a_search_over_all(max_length: int) -> None:
    torch.manual_seed(4)
    scores = torch.randn(2, 2, 6).masked_fill(torch.tensor([[[0] * 6, [0, 0, 0, 0, 1, 1]]]).bool(), -torch.inf)
    bounds = AnswerBounds(scores[0].log_softmax(1), scores[1].log_softmax(1))
    found = find_best_answers(bounds, max_length=max_length, n_best=50)
    for row, n in enumerate((6, 4)):
        spans = [(i, j) for i, j in product(range(n), repeat=2) if i <= j < i + max_length]
        chance = {(i, j + 1): float((bounds.first[row, i] + bounds.last[row, j]).exp()) for i, j in spans}
        expected = sorted(chance, key=lambda span: -chance[span])
        assert [(one.start, one.end) for one in found[row]] == expected
        assert [one.probability for one in found[row]] == pytest.approx([chance[span] for span in expected])


def test_predictions_are_deterministic_and_inside_the_passage() -> None:
    head = build_head()
    passages, questions = random_features(5, 1, padding=2), random_features(2, 4, seed=1)
    found = head.predict(passages, questions, n_best=3, max_length=2)
    assert found == head.predict(passages, questions, n_best=3, max_length=2)
    assert [len(answers) for answers in found] == [3, 1]
    assert all(0 <= one.start < one.end <= 5 and one.end - one.start <= 2 for one in found[0])
    (only,) = found[1]
    assert only == AnswerSpan(0, 1, only.probability)
    assert only.probability == pytest.approx(1.0)


@pytest.mark.slow
def test_a_head_learns_to_find_the_span_that_the_question_names() -> None:
    """The question is one word; the answer is this word in the passage and the next one."""
    torch.manual_seed(5)
    words = torch.stack([torch.randperm(6) for _ in range(32)])  # (batch, time)
    targets = torch.randint(5, (32,))
    passages = FeatureVectors(torch.eye(6)[words], torch.ones(32, 6, dtype=torch.bool))
    question = torch.eye(6)[words[torch.arange(32), targets]].unsqueeze(1)  # (batch, 1, width)
    questions = FeatureVectors(question, torch.ones(32, 1, dtype=torch.bool))
    is_start = torch.arange(6) == targets.unsqueeze(1)
    is_end = torch.arange(6) == targets.unsqueeze(1) + 1
    head = AnswersHead(FeatureWidths(6), hidden_width=12, dropout=0.0)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
    for _ in range(70):
        optimizer.zero_grad()
        loss = head.loss(passages, questions, is_start=is_start, is_end=is_end)
        loss.backward()
        optimizer.step()
    found = head.eval().predict(passages, questions)
    right = sum(
        (one[0].start, one[0].end) == (position, position + 2)
        for one, position in zip(found, targets.tolist(), strict=True)
    )
    assert right >= 29
    assert all(weights.grad is not None for weights in head.parameters())


def test_an_answer_outside_its_passage_raises_an_error() -> None:
    passages, questions = random_features(5, 3), random_features(2, 4, seed=1)
    right = flags((2, 5), (0, 1), (1, 1))
    with pytest.raises(DataError, match="question 2: the end of the answer must be in the passage; found none"):
        build_head().loss(passages, questions, is_start=right, is_end=flags((2, 5), (0, 1), (1, 4)))


WIDTH = 5


def softmax(scores: np.ndarray) -> np.ndarray:
    shares = np.exp(scores - scores.max())
    return shares / shares.sum()


def trilinear(similarity: TrilinearSimilarity, p: np.ndarray, q: np.ndarray) -> float:
    w1, w2, w3 = (one.detach().numpy() for one in similarity.parameters())
    return float(w1 @ p + w2 @ q + w3 @ (p * q))


def sequences(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random states (batch, time, width), also for padding, and their mask."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(*mask.shape, WIDTH, dtype=torch.float64), mask


def test_similarity_is_the_trilinear_form() -> None:
    torch.manual_seed(0)
    similarity = TrilinearSimilarity(WIDTH).double()
    (p, _), (q, _) = sequences(4, 4), sequences(3, 3)
    scores = similarity(p, q)
    for b, i, j in np.ndindex(2, 4, 3):
        expected = trilinear(similarity, p[b, i].numpy(), q[b, j].numpy())
        np.testing.assert_allclose(scores[b, i, j].item(), expected, rtol=1e-10)


def test_question_attention_agrees_with_a_slow_transcription() -> None:
    torch.manual_seed(1)
    attention = QuestionAttention(WIDTH).double()
    (passage, passage_mask), (question, question_mask) = sequences(4, 6), sequences(3, 2)
    found = attention(passage, question, passage_mask=passage_mask, question_mask=question_mask)
    for b, (n, m) in enumerate([(4, 3), (6, 2)]):
        p, q = passage[b, :n].numpy(), question[b, :m].numpy()
        scores = np.array([[trilinear(attention.similarity, one, other) for other in q] for one in p])
        summary = softmax(scores.max(axis=1)) @ p
        for i in range(n):
            c = softmax(scores[i]) @ q
            expected = np.concatenate([p[i], c, p[i] * c, p[i] * summary])
            np.testing.assert_allclose(found[b, i].detach().numpy(), expected, rtol=1e-9)


def test_self_attention_agrees_with_a_slow_transcription() -> None:
    torch.manual_seed(2)
    attention = SelfAttention(WIDTH).double()
    passage, mask = sequences(4, 2)
    found = attention(passage, mask)
    for b, n in enumerate([4, 2]):
        p = passage[b, :n].numpy()
        for i in range(n):
            others = [j for j in range(n) if j != i]
            scores = [trilinear(attention.similarity, p[i], p[j]) for j in others]
            weights = softmax(np.array([*scores, attention.none.item()]))[:-1]
            c = weights @ p[others]
            expected = np.concatenate([p[i], c, p[i] * c])
            np.testing.assert_allclose(found[b, i].detach().numpy(), expected, rtol=1e-9)


def test_a_passage_of_one_token_attends_to_nothing_and_has_gradients() -> None:
    attention = SelfAttention(WIDTH)
    passage = torch.randn(1, 3, WIDTH, requires_grad=True)
    found = attention(passage, torch.tensor([[True, False, False]]))
    assert torch.equal(found[0, 0, WIDTH:], torch.zeros(2 * WIDTH))
    found.sum().backward()
    assert passage.grad is not None
    assert passage.grad.isfinite().all()


def test_question_attention_in_chunks_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    found = QuestionAttention(WIDTH).double()
    (passage, passage_mask), (question, question_mask) = sequences(9, 6), sequences(3, 2)
    masks = {"passage_mask": passage_mask, "question_mask": question_mask}
    whole = found(passage, question, **masks)
    monkeypatch.setattr(layers, "MAX_SCORES", 12)  # those of two rows
    torch.testing.assert_close(found(passage, question, **masks), whole)


def test_tokens_of_a_long_passage_attend_to_neighboring_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    found = SelfAttention(WIDTH).double()
    passage, mask = sequences(11, 4)
    short = found(passage[1:, :4], mask[1:, :4])
    monkeypatch.setattr(answers, "MAX_FULL_LENGTH", 4)
    read = found(passage, mask)
    p = passage[0].numpy()
    for i in range(11):
        seen = [j for j in range(11) if j != i and abs(j // 2 - i // 2) <= 1]
        scores = [trilinear(found.similarity, p[i], p[j]) for j in seen]
        c = softmax(np.array([*scores, found.none.item()]))[:-1] @ p[seen]
        np.testing.assert_allclose(read[0, i].detach().numpy(), np.concatenate([p[i], c, p[i] * c]), rtol=1e-9)
    torch.testing.assert_close(read[1:, :4], short)  # a short passage has full attention in any batch


def test_self_attention_of_a_long_passage_does_not_store_all_scores() -> None:
    found = SelfAttention(2)
    passage = torch.randn(1, 5000, 2, requires_grad=True)
    kept = largest_kept(lambda: found(passage, torch.ones(1, 5000, dtype=torch.bool)))
    assert kept <= 512 * (3 * 512 + 1)
