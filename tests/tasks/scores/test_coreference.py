"""The scores of coreference."""

from __future__ import annotations

import sys
import time
from random import Random

import pytest

from elmo.errors import MissingExtraError
from elmo.tasks.data.examples import Span
from elmo.tasks.scores.coreference import Clusters, CoreferenceScore, CoreferenceScores, coreference_scores

Partition = list[set[int]]


def clusters(partition: Partition, *, offset: int = 0) -> Clusters:
    """A mention for each number; numbers next to each other nest."""
    return tuple(tuple(Span(k // 2 + offset, k + 1 + offset) for k in sorted(one)) for one in partition)


def random_partition(random: Random, n: int, *, smallest: int = 1) -> Partition:
    """Some of n mentions in clusters."""
    found: dict[int, set[int]] = {}
    for k in range(n):
        if random.random() < 0.8:
            found.setdefault(random.randint(0, n // 2), set()).add(k)
    return [one for one in found.values() if len(one) >= smallest]


def random_pairs(seed: int, n: int, *, smallest: int = 1) -> list[tuple[Partition, Partition]]:
    random = Random(seed)
    pairs = []
    for _ in range(n):
        size = random.randint(0, 14)
        pairs.append(tuple(random_partition(random, size, smallest=smallest) for _ in range(2)))
    return pairs


def scores_of(gold: Partition, said: Partition, *, keep_singletons: bool = True) -> CoreferenceScores:
    return coreference_scores([clusters(gold)], [clusters(said)], keep_singletons=keep_singletons)


def values(score: CoreferenceScore) -> tuple[float, float, float]:
    return score.recall, score.precision, score.f1


# The example of Pradhan et al. 2014: {a b c} {d e f g} as {a b} {c d} {f g h i}.
GOLD: Partition = [{0, 1, 2}, {3, 4, 5, 6}]
SAID: Partition = [{0, 1}, {2, 3}, {5, 6, 7, 8}]


def test_the_worked_example_of_the_reference_scorer_comes_out() -> None:
    scores = scores_of(GOLD, SAID)
    assert values(scores.muc) == pytest.approx((0.4, 0.4, 0.4))
    assert values(scores.b_cubed)[:2] == pytest.approx((1 / 7 * 35 / 12, 1 / 8 * 4))
    assert values(scores.ceaf_m)[:2] == pytest.approx((4 / 7, 4 / 8))
    assert values(scores.ceaf_e)[:2] == pytest.approx((1.3 / 2, 1.3 / 3))
    assert values(scores.mentions)[:2] == pytest.approx((6 / 7, 6 / 8))
    # BLANC: of 9 links 2, of 12 gaps 8; of 8 predicted links and 20 gaps the same
    assert values(scores.blanc)[:2] == pytest.approx(((2 / 9 + 8 / 12) / 2, (2 / 8 + 8 / 20) / 2))
    # LEA by hand: 3 × 1/3 + 4 × 1/6 of 7 mentions; 2 × 1/1 + 2 × 0 + 4 × 1/6 of 8
    assert values(scores.lea)[:2] == pytest.approx(((1 + 2 / 3) / 7, (2 + 2 / 3) / 8))
    assert scores.conll == pytest.approx((scores.muc.f1 + scores.b_cubed.f1 + scores.ceaf_e.f1) / 3)


@pytest.mark.slow
@pytest.mark.parametrize("smallest", [1, 2], ids=["with singletons", "without"])
def test_scores_agree_with_scorch(smallest: int) -> None:
    theirs = pytest.importorskip("scorch.scores")
    for gold, said in random_pairs(8, 600, smallest=smallest):
        scores = scores_of(gold, said)
        if gold and said and set().union(*gold).isdisjoint(set().union(*said)):
            assert scores.conll == 0.0  # scorch stops here: it divides by -0
            continue
        for name in ("muc", "b_cubed", "ceaf_m", "ceaf_e"):
            expected = getattr(theirs, name)(gold, said)
            assert values(getattr(scores, name)) == pytest.approx(expected, abs=1e-9), (name, gold, said)
        # of truth with a single mention, which has no links at all, scorch gives some a full score
        if sum(map(len, gold)) > 1:
            assert values(scores.blanc) == pytest.approx(theirs.blanc(gold, said), abs=1e-9), (gold, said)


def test_lea_agrees_with_coreference_eval_over_documents() -> None:
    """It leaves singletons out; documents add up."""
    theirs = pytest.importorskip("corefeval")
    pairs = random_pairs(9, 1200)
    for k in range(0, len(pairs), 2):
        scorer = theirs.Scorer()
        documents = [(clusters(gold), clusters(said)) for gold, said in pairs[k : k + 2]]
        for gold, said in documents:
            mentions = [[[(s.start, s.end) for s in one] for one in side] for side in (said, gold)]
            scorer.update(theirs.Document(predicted=mentions[0], truth=mentions[1]))
        expected = scorer.detailed_score("", "", verbose=False)[1]
        scores = coreference_scores(*zip(*documents, strict=True), keep_singletons=False)
        for name in ("lea", "muc"):
            found = getattr(scores, name)
            for what in ("precision", "recall", "f1"):
                assert getattr(found, what) == pytest.approx(expected[name][what], abs=1e-9), name


def slow_lea(one: Partition, other: Partition) -> tuple[float, float]:
    """Moosavi & Strube 2016, link by link; a mention alone is linked to itself."""

    def links(cluster: set[int]) -> set[tuple[int, int]]:
        return {(a, b) for a in cluster for b in cluster if a < b or len(cluster) == 1}

    theirs = set().union(*(links(cluster) for cluster in other))
    return sum(len(one) * len(links(one) & theirs) / len(links(one)) for one in one), sum(map(len, one))


def test_lea_counts_a_mention_alone_as_linked_to_itself() -> None:
    assert values(scores_of([{0}, {1, 2}], [{0}, {1}, {2}]).lea)[:2] == pytest.approx((1 / 3, 1 / 3))
    for gold, said in random_pairs(10, 300):
        found = scores_of(gold, said).lea
        for value, (top, base) in ((found.recall, slow_lea(gold, said)), (found.precision, slow_lea(said, gold))):
            assert value == pytest.approx(top / base if base else 0.0, abs=1e-9)


def test_documents_add_up_as_if_they_were_one() -> None:
    pairs = random_pairs(11, 60)
    apart = coreference_scores([clusters(gold) for gold, _ in pairs], [clusters(said) for _, said in pairs])
    joined = coreference_scores(
        *([[one for k, pair in enumerate(pairs) for one in clusters(pair[side], offset=100 * k)]] for side in (0, 1))
    )
    for name in ("mentions", "muc", "b_cubed", "ceaf_m", "ceaf_e", "lea"):
        assert values(getattr(apart, name)) == pytest.approx(values(getattr(joined, name)), abs=1e-9)


def test_the_right_clusters_score_one_and_swapped_sides_swap_precision_and_recall() -> None:
    for score in (getattr(scores_of(GOLD, GOLD), name) for name in ("muc", "b_cubed", "ceaf_m", "lea", "blanc")):
        assert values(score) == pytest.approx((1.0, 1.0, 1.0))
    one, other = scores_of(GOLD, SAID), scores_of(SAID, GOLD)
    for name in ("muc", "b_cubed", "ceaf_m", "ceaf_e", "lea"):
        assert values(getattr(one, name)) == pytest.approx([values(getattr(other, name))[k] for k in (1, 0, 2)])


def test_sides_without_clusters_score_nought_and_leave_other_documents_alone() -> None:
    for gold, said in (([], []), (GOLD, []), ([], SAID), ([set()], [set()])):
        scores = scores_of(gold, said)
        assert scores.conll == scores.lea.f1 == scores.blanc.f1 == scores.mentions.f1 == 0.0
    with_empty = coreference_scores([clusters(GOLD), ()], [clusters(SAID), ()])
    assert with_empty == scores_of(GOLD, SAID)


def test_singletons_are_left_out_on_request() -> None:
    assert scores_of([*GOLD, {20}], [*SAID, {20}, {21}], keep_singletons=False) == scores_of(GOLD, SAID)
    assert scores_of([*GOLD, {20}], [*SAID, {20}]).b_cubed.f1 > scores_of(GOLD, SAID).b_cubed.f1


def test_each_document_must_have_predicted_clusters() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        coreference_scores([[]], [[], []])


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(
        MissingExtraError,
        match=r"scoring coreference \(CEAF\) requires an optional dependency: pip install 'pyelmo\[tasks\]'",
    ):
        scores_of(GOLD, SAID)


def test_a_document_of_20_000_mentions_is_scored_in_two_seconds() -> None:
    random = Random(12)
    gold = [set(range(k, k + 4)) for k in range(0, 20_000, 4)]
    moved = [mention if random.random() < 0.9 else mention + 4 for mention in range(20_000)]
    said: dict[int, set[int]] = {}
    for mention, place in enumerate(moved):
        said.setdefault(place // 4, set()).add(mention)
    sides = [clusters(gold)], [clusters([*said.values()])]
    scores_of(GOLD, SAID)  # imports
    begin = time.process_time()
    scores = coreference_scores(*sides)
    assert time.process_time() - begin < 2.0
    assert 0.5 < scores.conll < 1.0
