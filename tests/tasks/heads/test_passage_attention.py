from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo.tasks.heads import answers as passage_attention
from elmo.tasks.heads import layers as attention
from elmo.tasks.heads.answers import QuestionAttention, SelfAttention, TrilinearSimilarity
from tests.tasks.heads.test_attention import largest_kept

WIDTH = 5


def of_numpy(softmax_of: np.ndarray) -> np.ndarray:
    shares = np.exp(softmax_of - softmax_of.max())
    return shares / shares.sum()


def trilinear(similarity: TrilinearSimilarity, p: np.ndarray, q: np.ndarray) -> float:
    w1, w2, w3 = (one.detach().numpy() for one in similarity.parameters())
    return float(w1 @ p + w2 @ q + w3 @ (p * q))


def sequences(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random states (batch, time, width) with numbers in the padding, too, and their mask."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(*mask.shape, WIDTH, dtype=torch.float64), mask


def test_similarity_is_the_trilinear_form_without_a_tensor_of_four_axes() -> None:
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
        summary = of_numpy(scores.max(axis=1)) @ p
        for i in range(n):
            c = of_numpy(scores[i]) @ q
            expected = np.concatenate([p[i], c, p[i] * c, p[i] * summary])
            np.testing.assert_allclose(found[b, i].detach().numpy(), expected, rtol=1e-9)


def test_self_attention_agrees_with_a_slow_transcription_and_leaves_out_the_token_itself() -> None:
    torch.manual_seed(2)
    attention = SelfAttention(WIDTH).double()
    passage, mask = sequences(4, 2)
    found = attention(passage, mask)
    for b, n in enumerate([4, 2]):
        p = passage[b, :n].numpy()
        for i in range(n):
            others = [j for j in range(n) if j != i]
            scores = [trilinear(attention.similarity, p[i], p[j]) for j in others]
            weights = of_numpy(np.array([*scores, attention.none.item()]))[:-1]
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


def test_a_long_question_and_passage_are_attended_to_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    found = QuestionAttention(WIDTH).double()
    (passage, passage_mask), (question, question_mask) = sequences(9, 6), sequences(3, 2)
    masks = {"passage_mask": passage_mask, "question_mask": question_mask}
    whole = found(passage, question, **masks)
    monkeypatch.setattr(attention, "MAX_SCORES", 12)  # those of two rows
    torch.testing.assert_close(found(passage, question, **masks), whole)


def test_tokens_of_a_long_passage_attend_to_their_block_and_the_two_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(2)
    found = SelfAttention(WIDTH).double()
    passage, mask = sequences(11, 4)
    short = found(passage[1:, :4], mask[1:, :4])
    monkeypatch.setattr(passage_attention, "MAX_FULL_LENGTH", 4)
    read = found(passage, mask)
    p = passage[0].numpy()
    for i in range(11):
        seen = [j for j in range(11) if j != i and abs(j // 2 - i // 2) <= 1]
        scores = [trilinear(found.similarity, p[i], p[j]) for j in seen]
        c = of_numpy(np.array([*scores, found.none.item()]))[:-1] @ p[seen]
        np.testing.assert_allclose(
            read[0, i].detach().numpy(), np.concatenate([p[i], c, p[i] * c]), rtol=1e-9
        )
    torch.testing.assert_close(read[1:, :4], short)  # whole, whatever stands beside it in the batch


def test_self_attention_of_many_thousand_tokens_keeps_no_square() -> None:
    found = SelfAttention(2)
    passage = torch.randn(1, 5000, 2, requires_grad=True)
    kept = largest_kept(lambda: found(passage, torch.ones(1, 5000, dtype=torch.bool)))
    assert kept <= 512 * (3 * 512 + 1)
