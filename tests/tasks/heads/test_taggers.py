"""Heads for tagging and semantic roles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.errors import DataError, ShapeError
from elmo.tasks.data.schemes import Transitions
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from elmo.tasks.heads.taggers import RolesHead, TaggerHead, mean_cross_entropy

LENGTHS = (6, 1, 4, 5, 3, 6, 2, 5)
WORDS = 4
CYCLE = Transitions(  # the only allowed sequence is 1, 2, 0, 1, 2, …
    np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], bool), np.array([0, 1, 0], bool), np.ones(3, bool)
)


def sentences(seed: int, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
    """Return words (batch, time) as numbers, and their mask."""
    torch.manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(WORDS, mask.shape), mask


def build_features(words: Tensor, mask: Tensor) -> FeatureVectors:
    """Return a different vector for each word, and output features."""
    inputs = torch.eye(WORDS)[words] * mask[:, :, None]
    return FeatureVectors(inputs, mask, inputs[:, :, :2] * 0.5)


def tag_words(words: Tensor, mask: Tensor) -> Tensor:
    """Return 1 if the next word is 0 or 1, 2 at the end, else 0: the tag depends only on the next word."""
    after = torch.where(mask[:, 1:], words[:, 1:], WORDS)
    after = torch.cat([after, torch.full_like(words[:, :1], WORDS)], dim=1)
    tags = torch.where(after == WORDS, 2, (after < 2).long())
    return tags.masked_fill(~mask, -1)


def build_tagger(**options: object) -> TaggerHead:
    torch.manual_seed(3)
    given = {"n_tags": 3, "hidden_width": 12, "dropout": 0.1, **options}
    return TaggerHead(FeatureWidths(WORDS, 2), **given)  # pyright: ignore


@pytest.mark.parametrize("has_crf", [False, True])
def test_a_head_learns_tags_that_the_next_word_decides(has_crf: bool) -> None:
    head = build_tagger(has_crf=has_crf)
    words, mask = sentences(1, LENGTHS * 8)
    vectors, tags = build_features(words, mask), tag_words(words, mask)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = head.loss(vectors, tags)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    words, mask = sentences(2)
    found = [tag for one in head.eval().predict(build_features(words, mask)) for tag in one.tags]
    is_right = torch.tensor(found) == tag_words(words, mask)[mask]
    assert is_right.float().mean() >= 0.95


@pytest.mark.parametrize("has_crf", [False, True])
def test_predictions_do_not_depend_on_batch_mates_or_padding(has_crf: bool) -> None:
    head = build_tagger(has_crf=has_crf, n_layers=2).eval()
    torch.nn.init.normal_(head.crf.steps) if has_crf else None
    words, mask = sentences(4)
    vectors = build_features(words, mask)
    together = head.predict(vectors)
    assert together == head.predict(vectors)  # deterministic
    noisy = replace(vectors, inputs=vectors.inputs + 7 * ~mask[:, :, None])
    for k, length in enumerate(LENGTHS):
        (alone,) = head.predict(build_features(words[k : k + 1, :length], mask[k : k + 1, :length]))
        for other in (together[k], head.predict(noisy)[k]):
            assert other.tags == alone.tags
            assert len(other.confidences) == length
            assert other.confidences == pytest.approx(alone.confidences, abs=1e-6)
            assert other.probability == pytest.approx(alone.probability, abs=1e-6)


def test_confidences_are_probabilities_of_the_tags() -> None:
    head = build_tagger(has_crf=False).eval()
    words, mask = sentences(5, (3,))
    vectors = build_features(words, mask)
    softmax = head.scores(head.lstm(vectors.inputs, mask), vectors).softmax(dim=2)
    (found,) = head.predict(vectors)
    assert found.tags == tuple(softmax[0].argmax(dim=1).tolist())
    assert found.confidences == pytest.approx(softmax[0].amax(dim=1).tolist(), abs=1e-6)
    assert found.probability == pytest.approx(softmax[0].amax(dim=1).prod().item(), abs=1e-6)


@pytest.mark.parametrize("has_crf", [False, True])
def test_predictions_follow_the_rules(has_crf: bool) -> None:
    head = build_tagger(has_crf=has_crf, rules=CYCLE).eval()
    words, mask = sentences(6)
    for one, length in zip(head.predict(build_features(words, mask)), LENGTHS, strict=True):
        assert one.tags == tuple([1, 2, 0] * 2)[:length]  # the only allowed sequence
        assert one.probability == pytest.approx(1.0)
    loss = head.loss(build_features(words, mask), torch.zeros_like(words))  # breaks every rule
    assert torch.isfinite(loss)
    assert float(loss.detach()) < 100


def test_unknown_tags_are_ignored() -> None:
    scores = torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    tags = torch.tensor([[1, -1, 3], [0, 2, 2]])
    logs = scores.log_softmax(dim=2)
    expected = -(logs[0, 0, 1] + logs[0, 2, 3] + logs[1, 0, 0]) / 3
    torch.testing.assert_close(mean_cross_entropy(scores, tags, mask), expected)
    nothing = mean_cross_entropy(scores, torch.full_like(tags, -1), mask)
    nothing.backward()
    assert float(nothing.detach()) == 0.0
    assert scores.grad is not None
    assert not scores.grad.any()


def test_the_loss_of_a_crf_is_the_mean_of_sentences() -> None:
    head = build_tagger().eval()
    words, mask = sentences(7)
    tags = tag_words(words, mask)
    alone = [
        head.loss(build_features(words[k : k + 1, :n], mask[k : k + 1, :n]), tags[k : k + 1, :n])
        for k, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(head.loss(build_features(words, mask), tags), torch.stack(alone).mean())


def test_wrong_shapes_raise_an_error() -> None:
    head = build_tagger()
    words, mask = sentences(8)
    with pytest.raises(ShapeError, match="output features of this head must have width 2; found width 0"):
        head.predict(replace(build_features(words, mask), outputs=None))
    with pytest.raises(ShapeError, match=r"tags must have shape \(2, 3\); found \(2, 2\)"):
        mean_cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2, 2).long(), torch.ones(2, 3).bool())


LENGTHS = (6, 1, 4, 5, 3, 6, 2, 5)
N_ROLE_WORDS = 3
OUTSIDE, BEFORE, AFTER = range(3)


def role_features(seed: int) -> FeatureVectors:
    torch.manual_seed(seed)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    inputs = torch.eye(N_ROLE_WORDS)[torch.randint(N_ROLE_WORDS, mask.shape)] * mask[:, :, None]
    return FeatureVectors(inputs, mask, inputs[:, :, :2] * 0.5)


def all_predicates() -> tuple[Tensor, Tensor]:
    """Return sentence and position of every word, to use each as a predicate."""
    pairs = [(row, position) for row, length in enumerate(LENGTHS) for position in range(length)]
    rows, positions = torch.tensor(pairs).unbind(dim=1)
    return rows, positions


def tags_for(rows: Tensor, predicates: Tensor, *, time: int) -> Tensor:
    """Give roles to the neighbors of the predicate, independent of the words."""
    gap = torch.arange(time) - predicates[:, None]
    tags = torch.full_like(gap, OUTSIDE).masked_fill(gap == -1, BEFORE).masked_fill(gap == 1, AFTER)
    return tags.masked_fill(torch.arange(time) >= torch.tensor(LENGTHS)[rows][:, None], -1)


def build_roles_head(**options: object) -> RolesHead:
    torch.manual_seed(3)
    given = {"n_tags": 3, "hidden_width": 12, "n_layers": 2, "predicate_width": 4, "dropout": 0.05, **options}
    return RolesHead(FeatureWidths(N_ROLE_WORDS, 2), **given)  # pyright: ignore


def test_a_head_learns_roles_around_the_predicate() -> None:
    head = build_roles_head()
    vectors, (rows, predicates) = role_features(1), all_predicates()
    tags = tags_for(rows, predicates, time=6)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = head.loss(vectors, predicates, tags=tags, rows=rows)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]
    found = head.eval().predict(role_features(2), predicates, rows=rows)
    is_right = torch.tensor([tag for one in found for tag in one.tags]) == tags[tags >= 0]
    assert is_right.float().mean() >= 0.95


def test_predicted_roles_do_not_depend_on_batch_mates_or_padding() -> None:
    head = build_roles_head(n_layers=4, dropout=0.5).eval()
    vectors, (rows, predicates) = role_features(4), all_predicates()
    together = head.predict(vectors, predicates, rows=rows)
    assert together == head.predict(vectors, predicates, rows=rows)  # deterministic
    noisy = head.predict(replace(vectors, inputs=vectors.inputs + 7 * ~vectors.mask[:, :, None]), predicates, rows=rows)
    assert vectors.outputs is not None
    for k, (row, position) in enumerate(zip(rows.tolist(), predicates.tolist(), strict=True)):
        cut = (slice(row, row + 1), slice(LENGTHS[row]))
        single = FeatureVectors(vectors.inputs[cut], vectors.mask[cut], vectors.outputs[cut])
        (alone,) = head.predict(single, torch.tensor([position]))
        for other in (together[k], noisy[k]):
            assert other.tags == alone.tags
            assert len(other.tags) == LENGTHS[row]
            assert other.confidences == pytest.approx(alone.confidences, abs=1e-6)
            assert other.probability == pytest.approx(alone.probability, abs=1e-6)


def test_roles_depend_on_the_predicate() -> None:
    head = build_roles_head().eval()
    first, second = head.predict(role_features(5), torch.tensor([0, 4]), rows=torch.tensor([0, 0]))
    assert first.confidences != pytest.approx(second.confidences, abs=1e-4)


def test_gradients_of_all_predicates_reach_the_vectors_of_their_sentence() -> None:
    head = build_roles_head(dropout=0.0)
    vectors = role_features(6)
    inputs = vectors.inputs.clone().requires_grad_()
    predicates, tags = torch.tensor([0, 3]), torch.zeros(2, 6).long()

    def gradient(rows: list[int], which: list[int]) -> Tensor:
        loss = head.loss(replace(vectors, inputs=inputs), predicates[which], tags=tags[which], rows=torch.tensor(rows))
        return torch.autograd.grad(loss, inputs)[0]

    both = gradient([0, 0], [0, 1])
    assert not both[1:].any()
    torch.testing.assert_close(both, (gradient([0], [0]) + gradient([0], [1])) / 2, rtol=0, atol=1e-7)


def test_predicted_roles_follow_the_rules_with_confidences_of_the_softmax() -> None:
    head = build_roles_head(rules=CYCLE).eval()
    vectors, predicates = role_features(7), torch.tensor([2])
    (found,) = head.predict(vectors, predicates, rows=torch.tensor([0]))
    assert found.tags == (1, 2, 0, 1, 2, 0)  # the only allowed sequence
    assert found.probability == pytest.approx(1.0)
    (free,) = build_roles_head().eval().predict(vectors, predicates, rows=torch.tensor([0]))
    assert all(one <= other + 1e-7 for one, other in zip(found.confidences, free.confidences, strict=True))
    assert free.probability == pytest.approx(float(torch.tensor(free.confidences).prod()), abs=1e-6)
    assert [one for one in head.rules.parameters() if one.requires_grad] == []


def test_unknown_tags_of_roles_are_ignored() -> None:
    head = build_roles_head().eval()
    vectors, predicates = role_features(8), torch.zeros(len(LENGTHS)).long()
    tags = torch.ones(vectors.mask.shape).long()
    one_row = tags.masked_fill(torch.arange(len(LENGTHS))[:, None] != 2, -1)
    alone = head.loss(vectors, predicates[:1], tags=tags[:1], rows=torch.tensor([2]))
    torch.testing.assert_close(head.loss(vectors, predicates, tags=one_row), alone)


def test_a_predicate_outside_its_sentence_raises_an_error() -> None:
    head, vectors = build_roles_head(), role_features(9)
    with pytest.raises(DataError, match="position of predicate 1 must be within its sentence of 4 words; found 4"):
        head.predict(vectors, torch.tensor([0, 4]), rows=torch.tensor([1, 2]))
