from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elmo.errors import ShapeError
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from elmo.tasks.heads.taggers import TaggerHead, mean_cross_entropy

LENGTHS = (6, 1, 4, 5, 3, 6, 2, 5)
WORDS = 4


def sentences(seed: int, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, Tensor]:
    """Words (batch, time) as numbers, and their mask."""
    torch.manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randint(WORDS, mask.shape), mask


def vectors_of(words: Tensor, mask: Tensor) -> FeatureVectors:
    """A vector of its own for each word, and a second one for the output."""
    inputs = torch.eye(WORDS)[words] * mask[:, :, None]
    return FeatureVectors(inputs, mask, inputs[:, :, :2] * 0.5)


def encode_spans(words: Tensor, mask: Tensor) -> Tensor:
    """1 where the word after is 0 or 1, 2 where none follows, else 0: no word tells its own tag."""
    after = torch.where(mask[:, 1:], words[:, 1:], WORDS)
    after = torch.cat([after, torch.full_like(words[:, :1], WORDS)], dim=1)
    tags = torch.where(after == WORDS, 2, (after < 2).long())
    return tags.masked_fill(~mask, -1)


def a_head(**options: object) -> TaggerHead:
    torch.manual_seed(3)
    given = {"n_tags": 3, "hidden_width": 12, "dropout": 0.1, **options}
    return TaggerHead(FeatureWidths(WORDS, 2), **given)  # pyright: ignore


@pytest.mark.parametrize("has_crf", [False, True])
def test_a_head_learns_tags_that_the_next_word_decides(has_crf: bool) -> None:
    head = a_head(has_crf=has_crf)
    words, mask = sentences(1, LENGTHS * 8)
    vectors, tags = vectors_of(words, mask), encode_spans(words, mask)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = head.loss(vectors, tags)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    words, mask = sentences(2)
    found = [tag for one in head.eval().predict(vectors_of(words, mask)) for tag in one.tags]
    is_right = torch.tensor(found) == encode_spans(words, mask)[mask]
    assert is_right.float().mean() >= 0.95


@pytest.mark.parametrize("has_crf", [False, True])
def test_predictions_do_not_depend_on_batch_mates_or_padding(has_crf: bool) -> None:
    head = a_head(has_crf=has_crf, n_layers=2).eval()
    torch.nn.init.normal_(head.crf.steps) if has_crf else None
    words, mask = sentences(4)
    vectors = vectors_of(words, mask)
    together = head.predict(vectors)
    assert together == head.predict(vectors)  # nothing is left to chance
    noisy = replace(vectors, inputs=vectors.inputs + 7 * ~mask[:, :, None])
    for k, length in enumerate(LENGTHS):
        (alone,) = head.predict(vectors_of(words[k : k + 1, :length], mask[k : k + 1, :length]))
        for other in (together[k], head.predict(noisy)[k]):
            assert other.tags == alone.tags
            assert len(other.confidences) == length
            assert other.confidences == pytest.approx(alone.confidences, abs=1e-6)
            assert other.probability == pytest.approx(alone.probability, abs=1e-6)


def test_confidences_are_probabilities_of_the_tags() -> None:
    head = a_head(has_crf=False).eval()
    words, mask = sentences(5, (3,))
    vectors = vectors_of(words, mask)
    softmax = head.scores(head.lstm(vectors.inputs, mask), vectors.outputs).softmax(dim=2)
    (found,) = head.predict(vectors)
    assert found.tags == tuple(softmax[0].argmax(dim=1).tolist())
    assert found.confidences == pytest.approx(softmax[0].amax(dim=1).tolist(), abs=1e-6)
    assert found.probability == pytest.approx(softmax[0].amax(dim=1).prod().item(), abs=1e-6)


@pytest.mark.parametrize("has_crf", [False, True])
def test_predictions_keep_the_rules(has_crf: bool) -> None:
    allowed = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]]).bool()  # round and round
    starts = torch.tensor([0, 1, 0]).bool()
    head = a_head(has_crf=has_crf, allowed=allowed, starts=starts).eval()
    words, mask = sentences(6)
    for one, length in zip(head.predict(vectors_of(words, mask)), LENGTHS, strict=True):
        assert one.tags == tuple([1, 2, 0] * 2)[:length]  # the only sequence there is
        assert one.probability == pytest.approx(1.0)
    loss = head.loss(vectors_of(words, mask), torch.zeros_like(words))  # breaks every rule
    assert torch.isfinite(loss)
    assert float(loss.detach()) < 100


def test_unknown_tags_are_not_scored() -> None:
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
    head = a_head().eval()
    words, mask = sentences(7)
    tags = encode_spans(words, mask)
    alone = [
        head.loss(vectors_of(words[k : k + 1, :n], mask[k : k + 1, :n]), tags[k : k + 1, :n])
        for k, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(head.loss(vectors_of(words, mask), tags), torch.stack(alone).mean())


def test_vectors_for_the_output_must_be_those_that_were_announced() -> None:
    head = a_head()
    words, mask = sentences(8)
    with pytest.raises(ShapeError, match="output vectors: expected 2 numbers a word, found 0"):
        head.predict(replace(vectors_of(words, mask), outputs=None))
    with pytest.raises(ShapeError, match=r"tags: expected shape \(2, 3\), found \(2, 2\)"):
        mean_cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2, 2).long(), torch.ones(2, 3).bool())
