"""The translation head: gradients, padding and copies; beam search finds the best translation in any batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from elmo.tasks.data.units import BEGIN, COPY, END, PADDING, SPACED_COPY, SPECIAL, UNKNOWN, Unit
from elmo.tasks.heads.beam_search import BeamOptions, Hypothesis, search_beam
from elmo.tasks.heads.translation import IGNORED, TargetBatch, TranslationHead
from tests.tasks.heads.toy_words import WIDTHS, Sentences, assert_all_learn, build_features, train

N_UNITS = len(SPECIAL) + 12
FIRST = len(SPECIAL)  # unit FIRST + k translates word k


def make_head(seed: int = 0, *, width: int = 16, dropout: float = 0.0) -> TranslationHead:
    torch.manual_seed(seed)
    head = TranslationHead(WIDTHS, n_units=N_UNITS, hidden_width=width, dropout=dropout, label_smoothing=0.0)
    torch.nn.init.normal_(head.bias)
    torch.nn.init.normal_(head.units.weight, std=2.0)  # an untrained head would choose the same unit at each step
    return head.eval()


def make_targets(rows: Sequence[Sequence[int]], copied: torch.Tensor | None = None) -> TargetBatch:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[IGNORED] * (longest - len(row))] for row in rows])
    previous = torch.cat([torch.full((len(rows), 1), BEGIN), ids[:, :-1]], dim=1)
    return TargetBatch(previous.masked_fill(previous == IGNORED, PADDING), ids, copied)


def search(head: TranslationHead, sentences: Sentences, **options: float) -> list[Hypothesis]:
    """Translate toy sentences; a source word is named by its number."""
    sources = [(tuple(map(str, one)), head.encode(build_features([one]))) for one in sentences]
    return search_beam(head, sources, BeamOptions(**options))  # type: ignore[arg-type]


@torch.no_grad()
def translate_greedily(head: TranslationHead, sentence: Sequence[int]) -> tuple[list[Unit], float]:
    """Choose the most probable unit at each step, with the decoder that training uses."""
    encoded = head.encode(build_features([sentence]))
    names = [str(word) for word in sentence]
    units, total = [Unit(BEGIN)], 0.0
    while len(units) <= 2 * len(sentence) + 20:
        logits, attention = head(encoded, torch.tensor([[unit.id for unit in units]]))
        log_probs, weights = logits[0, -1].log_softmax(0), attention[0, -1]
        pointed = {name: sum(float(w) for w, n in zip(weights, names, strict=True) if n == name) for name in names}
        name = max(pointed, key=pointed.__getitem__)
        log_probs[[COPY, SPACED_COPY]] += math.log(pointed[name])
        log_probs[[PADDING, UNKNOWN, BEGIN]] = -torch.inf
        best = int(log_probs.argmax())
        total += float(log_probs[best])
        if best == END:
            break
        units.append(Unit(best, name if best in (COPY, SPACED_COPY) else ""))
    return units[1:], total


def test_the_gradient_reaches_every_weight() -> None:
    head = make_head().train()
    copied = torch.zeros(2, 3, 4, dtype=torch.bool)
    copied[0, 1, 2] = True
    targets = make_targets([[FIRST, COPY, END], [FIRST + 1, END]], copied)
    assert_all_learn(head, head.loss(build_features([[1, 2, 3, 4], [5, 6]]), targets))


@torch.no_grad()
def test_padding_does_not_change_the_loss() -> None:
    head = make_head()
    sentences, rows = [[1, 2, 3, 4], [5, 6]], [[FIRST, FIRST + 1, FIRST + 2, END], [FIRST + 3, END]]
    copied = torch.zeros(2, 4, 6, dtype=torch.bool)
    copied[1, 0, 1] = True
    padded = head.loss(build_features(sentences, garbage=7.0, extra=2), make_targets(rows, copied))
    alone = [
        float(head.loss(build_features([one]), make_targets([row], copied[k : k + 1, : len(row), : len(one)])))
        for k, (one, row) in enumerate(zip(sentences, rows, strict=True))
    ]
    assert float(padded) == pytest.approx((4 * alone[0] + 2 * alone[1]) / 6, abs=1e-5)


@torch.no_grad()
def test_a_step_reads_no_later_unit() -> None:
    head = make_head()
    encoded = head.encode(build_features([[1, 2, 3]]))
    long = head(encoded, torch.tensor([[BEGIN, FIRST, FIRST + 1]]))[0]
    short = head(encoded, torch.tensor([[BEGIN, FIRST]]))[0]
    torch.testing.assert_close(long[:, :2], short)


@pytest.mark.parametrize("seed", range(6))
def test_width_one_is_greedy_search(seed: int) -> None:
    head = make_head(seed)
    for sentence in ([1], [2, 3, 3], [4, 5, 6, 7, 8, 9, 10]):
        (found,) = search(head, [sentence], width=1)
        units, total = translate_greedily(head, sentence)
        assert list(found.units) == units
        if len(units) < 2 * len(sentence) + 20:
            assert found.log_probability == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_translation_is_the_same_alone_and_in_a_batch(width: int) -> None:
    sentences = [[k % 12, *range(1, 2 + k % 9)] for k in range(40)]
    head = make_head(3, width=24)
    together = search(head, sentences, width=width)
    for sentence, one in zip(sentences, together, strict=True):
        (alone,) = search(head, [sentence], width=width)
        assert (alone.units, alone.log_probability, alone.score) == (one.units, one.log_probability, one.score)
        assert torch.equal(alone.attention, one.attention)
        assert one.attention.shape == (len(one.units), len(sentence))
    assert len({one.units for one in together}) > 3


@torch.no_grad()
def test_the_score_is_the_log_probability_of_the_training_decoder() -> None:
    head = make_head(1)
    head.bias[END] += 2.0  # short translations are likely
    for power in (0.0, 1.0):
        (found,) = search(head, [[1, 2, 3]], width=4, length_power=power)
        ids = [unit.id for unit in found.units]
        encoded = head.encode(build_features([[1, 2, 3]]))
        logits, attention = head(encoded, torch.tensor([[BEGIN, *ids]]))
        chosen = logits[0].log_softmax(1).gather(1, torch.tensor([[*ids, END]]).t())[:, 0]
        for step, unit in enumerate(found.units):
            if unit.word:
                chosen[step] += math.log(attention[0, step, int(unit.word) - 1])
        assert found.log_probability == pytest.approx(float(chosen.sum()), abs=1e-4)
        assert found.score == pytest.approx(found.log_probability / (len(ids) + 1) ** power)
        torch.testing.assert_close(found.attention, attention[0, :-1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_short_translations() -> None:
    head = make_head(2)
    head.bias[END] += 2.0  # short translations are likely
    encoded = head.encode(build_features([[1, 2]]))

    def log_probability(ids: Sequence[int]) -> float:
        logits, attention = head(encoded, torch.tensor([[BEGIN, *ids]]))
        total = float(logits[0].log_softmax(1).gather(1, torch.tensor([[*ids, END]]).t()).sum())
        return total + sum(math.log(attention[0, k].max()) for k, id_ in enumerate(ids) if id_ in (COPY, SPACED_COPY))

    allowed = [id_ for id_ in range(N_UNITS) if id_ not in (PADDING, UNKNOWN, BEGIN, END)]
    scores = {ids: log_probability(ids) for n in range(3) for ids in itertools.product(allowed, repeat=n)}
    (found,) = search(head, [[1, 2]], width=20, length_power=0.0)
    best = max(scores, key=scores.__getitem__)
    assert tuple(unit.id for unit in found.units) == best
    assert found.log_probability == pytest.approx(scores[best], abs=1e-4)


def test_a_translation_that_does_not_end_is_cut() -> None:
    head = make_head()
    with torch.no_grad():
        head.bias[END] = -1000.0
    for width in (1, 3):
        (found,) = search(head, [[1, 2, 3]], width=width)
        assert len(found.units) == 2 * 3 + 20
        assert math.isfinite(found.score)


@pytest.mark.slow
def test_words_are_translated_in_order_and_unknown_words_are_copied() -> None:
    """The words 9 to 11 have no unit: the decoder must copy them."""
    random = torch.Generator().manual_seed(1)
    sentences = [torch.randint(0, 12, (int(n),), generator=random).tolist() for n in torch.randint(2, 6, (60,))]
    features = build_features(sentences)
    rows = [[SPACED_COPY if word > 8 else FIRST + word for word in one] + [END] for one in sentences]
    copied = torch.zeros(60, max(map(len, rows)), features.mask.size(1), dtype=torch.bool)
    for k, one in enumerate(sentences):
        for step, word in enumerate(one):
            if word > 8:
                copied[k, step, : len(one)] = torch.tensor([other == word for other in one])
    head = make_head(width=32)
    train(head, lambda: head.loss(features, make_targets(rows, copied)), n_steps=250)
    found = search(head, sentences, width=3)
    expected = [[Unit(SPACED_COPY, str(word)) if word > 8 else Unit(FIRST + word) for word in one] for one in sentences]
    right = sum(list(one.units) == units for one, units in zip(found, expected, strict=True))
    assert right >= 57
