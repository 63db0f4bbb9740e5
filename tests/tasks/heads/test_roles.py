from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elmo.errors import DataError, ShapeError
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from elmo.tasks.heads.taggers import RolesHead

LENGTHS = (6, 1, 4, 5, 3, 6, 2, 5)
WORDS = 3
OUTSIDE, BEFORE, AFTER = range(3)


def sentences(seed: int) -> FeatureVectors:
    torch.manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    inputs = torch.eye(WORDS)[torch.randint(WORDS, mask.shape)] * mask[:, :, None]
    return FeatureVectors(inputs, mask, inputs[:, :, :2] * 0.5)


def all_predicates() -> tuple[Tensor, Tensor]:
    """Each word of each sentence once: its sentence, its place."""
    pairs = [(row, place) for row, length in enumerate(LENGTHS) for place in range(length)]
    rows, places = torch.tensor(pairs).unbind(dim=1)
    return rows, places


def tags_for(rows: Tensor, predicates: Tensor, *, time: int) -> Tensor:
    """The neighbors of the predicate have roles; words as such tell nothing."""
    gap = torch.arange(time) - predicates[:, None]
    tags = torch.full_like(gap, OUTSIDE).masked_fill(gap == -1, BEFORE).masked_fill(gap == 1, AFTER)
    return tags.masked_fill(torch.arange(time) >= torch.tensor(LENGTHS)[rows][:, None], -1)


def a_head(**options: object) -> RolesHead:
    torch.manual_seed(3)
    given = {"n_tags": 3, "hidden_width": 12, "n_layers": 2, "predicate_width": 4, "dropout": 0.05, **options}
    return RolesHead(FeatureWidths(WORDS, 2), **given)  # pyright: ignore


def test_a_head_learns_roles_around_the_predicate() -> None:
    head = a_head()
    vectors, (rows, predicates) = sentences(1), all_predicates()
    tags = tags_for(rows, predicates, time=6)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = head.loss(vectors, predicates, tags=tags, rows=rows)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    found = head.eval().predict(sentences(2), predicates, rows=rows)
    is_right = torch.tensor([tag for one in found for tag in one.tags]) == tags[tags >= 0]
    assert is_right.float().mean() >= 0.95


def test_predictions_do_not_depend_on_batch_mates_or_padding() -> None:
    head = a_head(n_layers=4, dropout=0.5).eval()
    vectors, (rows, predicates) = sentences(4), all_predicates()
    together = head.predict(vectors, predicates, rows=rows)
    assert together == head.predict(vectors, predicates, rows=rows)  # nothing is left to chance
    noisy = head.predict(
        replace(vectors, inputs=vectors.inputs + 7 * ~vectors.mask[:, :, None]), predicates, rows=rows
    )
    assert vectors.outputs is not None
    for k, (row, place) in enumerate(zip(rows.tolist(), predicates.tolist(), strict=True)):
        cut = (slice(row, row + 1), slice(LENGTHS[row]))
        single = FeatureVectors(vectors.inputs[cut], vectors.mask[cut], vectors.outputs[cut])
        (alone,) = head.predict(single, torch.tensor([place]))
        for other in (together[k], noisy[k]):
            assert other.tags == alone.tags
            assert len(other.tags) == LENGTHS[row]
            assert other.confidences == pytest.approx(alone.confidences, abs=1e-6)
            assert other.probability == pytest.approx(alone.probability, abs=1e-6)


def test_the_same_sentence_has_other_roles_for_another_predicate() -> None:
    head = a_head().eval()
    first, second = head.predict(sentences(5), torch.tensor([0, 4]), rows=torch.tensor([0, 0]))
    assert first.confidences != pytest.approx(second.confidences, abs=1e-4)


def test_gradients_of_all_predicates_reach_the_vectors_of_their_sentence() -> None:
    head = a_head(dropout=0.0)
    vectors = sentences(6)
    inputs = vectors.inputs.clone().requires_grad_()
    predicates, tags = torch.tensor([0, 3]), torch.zeros(2, 6).long()

    def gradient(rows: list[int], which: list[int]) -> Tensor:
        loss = head.loss(
            replace(vectors, inputs=inputs), predicates[which], tags=tags[which], rows=torch.tensor(rows)
        )
        return torch.autograd.grad(loss, inputs)[0]

    both = gradient([0, 0], [0, 1])
    assert not both[1:].any()
    torch.testing.assert_close(both, (gradient([0], [0]) + gradient([0], [1])) / 2, rtol=0, atol=1e-7)


def test_rules_bind_predictions_and_confidences_are_of_the_softmax() -> None:
    allowed = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]]).bool()  # round and round
    head = a_head(allowed=allowed, starts=torch.tensor([0, 1, 0]).bool()).eval()
    vectors, predicates = sentences(7), torch.tensor([2])
    (found,) = head.predict(vectors, predicates, rows=torch.tensor([0]))
    assert found.tags == (1, 2, 0, 1, 2, 0)  # the only sequence there is
    assert found.probability == pytest.approx(1.0)
    (free,) = a_head().eval().predict(vectors, predicates, rows=torch.tensor([0]))
    assert all(one <= other + 1e-7 for one, other in zip(found.confidences, free.confidences, strict=True))
    assert free.probability == pytest.approx(float(torch.tensor(free.confidences).prod()), abs=1e-6)
    assert [one for one in head.rules.parameters() if one.requires_grad] == []


def test_unknown_tags_are_not_scored() -> None:
    head = a_head().eval()
    vectors, predicates = sentences(8), torch.zeros(len(LENGTHS)).long()
    tags = torch.ones(vectors.mask.shape).long()
    one_row = tags.masked_fill(torch.arange(len(LENGTHS))[:, None] != 2, -1)
    alone = head.loss(vectors, predicates[:1], tags=tags[:1], rows=torch.tensor([2]))
    torch.testing.assert_close(head.loss(vectors, predicates, tags=one_row), alone)


def test_a_predicate_outside_its_sentence_is_named() -> None:
    head, vectors = a_head(), sentences(9)
    with pytest.raises(
        DataError, match="predicate 1: expected a place within its sentence of 4 words, found 4"
    ):
        head.predict(vectors, torch.tensor([0, 4]), rows=torch.tensor([1, 2]))
    with pytest.raises(
        ShapeError, match=r"predicates: expected shape \(8,\), one for each row, found \(2,\)"
    ):
        head.predict(vectors, torch.tensor([0, 0]))
