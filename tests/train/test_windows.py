"""Windows of a stream: what each direction reads, which sentences, in which order, from any position."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError
from elmo.train.windows import Position, Windows, both_directions, both_positions, evaluation_windows, sentence_windows

LAWS = settings(deadline=None, max_examples=60)
SENTENCES = st.lists(st.lists(st.integers(2, 40), max_size=12), min_size=1, max_size=60)
Case = tuple[NDArray[np.uint32], int, int, int | None, int]  # stream, rows, steps, seed, block
SEEDS = st.one_of(st.none(), st.integers(0, 1000))


def stream_of(sentences: list[list[int]]) -> NDArray[np.uint32]:
    return np.array([token for sentence in sentences for token in (*sentence, 1)], dtype=np.uint32)


def sentences_of(stream: NDArray[np.integer]) -> list[tuple[int, ...]]:
    ends = np.flatnonzero(stream == 1)
    assert len(ends)
    assert ends[-1] == len(stream) - 1
    return [tuple(part[:-1].tolist()) for part in np.split(stream, ends[:-1] + 1)]


def reversed_sentences(stream: NDArray[np.integer]) -> NDArray[np.integer]:
    """The stream as a slow loop reverses it: boundaries stay where they are."""
    return stream_of([list(sentence[::-1]) for sentence in sentences_of(stream)])


def shapes(draw: st.DrawFn, sentences: list[list[int]]) -> tuple[int, int]:
    return draw(st.integers(1, min(8, len(sentences)))), draw(st.integers(1, 9))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sentences = draw(SENTENCES)
    batch_size, window_size = shapes(draw, sentences)
    return stream_of(sentences), batch_size, window_size, draw(SEEDS), draw(st.integers(1, 100))


def run(windows: Windows, n: int, start: tuple[int, int] = (0, 0)) -> dict[str, NDArray[np.int64]]:
    """The first ``n`` windows side by side, (row, time) for each of the four arrays."""
    found = list(itertools.islice(windows.read(start), n))
    return {
        f"{name} {kind}": np.concatenate([getattr(getattr(window, name), kind) for window in found], axis=1)
        for name in ("forward", "backward")
        for kind in ("inputs", "targets")
    }


def test_both_directions_of_two_sentences() -> None:
    arrays = both_directions(np.array([5, 6, 7, 1, 8, 1, 1]))
    assert [array.tolist() for array in arrays] == [
        [0, 5, 6, 7, 0, 8, 0],
        [5, 6, 7, 1, 8, 1, 1],
        [1, 7, 6, 5, 1, 8, 1],
        [7, 6, 5, 0, 8, 0, 0],
    ]


def test_positions_count_from_the_start_of_each_sentence_in_both_directions() -> None:
    forward, backward = both_positions(np.array([5, 6, 7, 1, 8, 1, 1]))
    assert forward.tolist() == [0, 1, 2, 3, 0, 1, 0]
    assert backward.tolist() == [4, 3, 2, 1, 2, 1, 1]


@LAWS
@given(cases())
def test_windows_of_a_transformer_have_the_positions_of_whole_sentences(case: Case) -> None:
    stream, batch_size, window_size, seed, block = case
    options = {"batch_size": batch_size, "window": window_size, "seed": seed, "block_tokens": block}
    found = itertools.islice(Windows(stream, **options, has_positions=True).read(), 9)
    plain = itertools.islice(Windows(stream, **options).read(), 9)
    rows: list[list[np.ndarray]] = [[], [], []]  # targets, forward positions, backward positions
    for window, without in zip(found, plain, strict=True):
        assert window.forward.positions is not None
        assert window.backward.positions is not None
        assert without.forward.positions is None
        assert (window.backward.inputs == without.backward.inputs).all()
        for row, array in zip(
            rows, (window.forward.targets, window.forward.positions, window.backward.positions), strict=True
        ):
            row.append(array)
    targets, forward, backward = (np.concatenate(row, axis=1) for row in rows)
    for row in range(batch_size):
        whole = int(np.flatnonzero(np.append(1, targets[row]) == 1)[-1])  # the last sentence may continue
        if whole:
            expected = both_positions(targets[row, :whole])
            assert (forward[row, :whole] == expected[0]).all()
            assert (backward[row, :whole] == expected[1]).all()


@LAWS
@given(SENTENCES, st.integers(1, 30))
def test_windows_of_whole_sentences_read_every_sentence_once(sentences: list[list[int]], max_tokens: int) -> None:
    stream = stream_of(sentences)
    read = []
    for window in sentence_windows(stream, max_tokens=max_tokens):
        assert window.mask is not None
        assert window.mask.size <= max_tokens or len(window.mask) == 1
        assert ((window.forward.sentence_numbers() == 1) | ~window.mask).all()  # one sentence in each row
        for row, mask in enumerate(window.mask):
            tokens = window.forward.targets[row, mask]
            read += sentences_of(tokens)
            arrays = window.forward.inputs, window.forward.targets, window.backward.inputs, window.backward.targets
            for array, expected in zip(arrays, both_directions(tokens), strict=True):
                assert (array[row, mask] == expected).all()
    assert Counter(read) == Counter(sentences_of(stream))


@LAWS
@given(SENTENCES)
def test_the_backward_direction_of_reversed_sentences_is_the_forward_one(sentences: list[list[int]]) -> None:
    stream = stream_of(sentences).astype(np.int64)
    forward_inputs, forward_targets, _, _ = both_directions(stream)
    _, _, backward_inputs, backward_targets = both_directions(reversed_sentences(stream).astype(np.int64))
    swap = np.arange(50)
    swap[[0, 1]] = [1, 0]
    assert (swap[backward_inputs] == forward_inputs).all()
    assert (swap[backward_targets] == forward_targets).all()


@LAWS
@given(cases())
def test_rows_read_every_sentence_once_in_each_epoch(case: Case) -> None:
    stream, batch_size, window_size, seed, block = case
    windows = Windows(stream, batch_size=batch_size, window=window_size, seed=seed, block_tokens=block)
    n_epochs = 3
    ends = np.array([[windows.row_plan.part(e, r).end for r in range(batch_size)] for e in range(n_epochs)])
    targets = run(windows, -(-int(ends.max()) // window_size))["forward targets"]
    for epoch in range(n_epochs):
        starts = ends[epoch - 1] if epoch else np.zeros(batch_size, dtype=int)
        parts = [targets[row, starts[row] : ends[epoch, row]] for row in range(batch_size)]
        read = [sentences_of(part) for part in parts]  # a row's targets are whole sentences
        assert Counter(itertools.chain(*read)) == Counter(sentences_of(stream))
        if seed is None:
            assert list(itertools.chain(*read)) == sentences_of(stream)


@LAWS
@given(cases())
def test_the_directions_agree_and_never_read_their_own_ends(case: Case) -> None:
    stream, batch_size, window_size, seed, block = case
    windows = Windows(stream, batch_size=batch_size, window=window_size, seed=seed, block_tokens=block)
    n = 3 * len(stream) // (batch_size * window_size) + 2
    found = run(windows, n)
    assert not (found["forward inputs"] == 1).any()
    assert not (found["backward inputs"] == 0).any()
    assert not (found["forward targets"] == 0).any()
    assert not (found["backward targets"] == 1).any()
    for row in range(batch_size):
        targets = found["forward targets"][row]
        whole = int(np.flatnonzero(np.append(1, targets) == 1)[-1])  # the last sentence may continue
        if whole:
            expected = both_directions(targets[:whole])
            for name, array in zip(found, expected, strict=True):
                assert (found[name][row, :whole] == array).all()


@LAWS
@given(cases(), st.sampled_from([1, 2, 3, 4]))
def test_the_global_batch_is_the_same_for_every_world_size(case: Case, world: int) -> None:
    stream, batch_size, window_size, seed, block = case
    options = {"batch_size": batch_size, "window": window_size, "seed": seed, "block_tokens": block}
    together = run(Windows(stream, **options), 7)
    cuts = [rank * batch_size // world for rank in range(world + 1)]
    apart = [
        run(Windows(stream, **options, rows=slice(low, high)), 7)
        for low, high in itertools.pairwise(cuts)
        if low < high
    ]
    for name, array in together.items():
        assert (np.concatenate([part[name] for part in apart]) == array).all()


@LAWS
@given(cases(), st.integers(0, 80))
def test_a_restored_position_continues_as_if_nothing_had_happened(case: Case, at: int) -> None:
    stream, batch_size, window_size, seed, block = case
    options = {"batch_size": batch_size, "window": window_size, "seed": seed, "block_tokens": block}
    windows = Windows(stream, **options)
    found = list(itertools.islice(windows.read(), at + 4))
    positions = [window.position for window in found]
    assert positions == sorted(set(positions))
    epoch, window = windows.after(positions[at])
    again = list(itertools.islice(Windows(stream, **options).read((epoch, window)), 3))
    for one, other in zip(found[at + 1 :], again, strict=True):
        assert one.position == other.position
        assert (one.forward.inputs == other.forward.inputs).all()
        assert (one.backward.targets == other.backward.targets).all()


@LAWS
@given(cases())
def test_epochs_have_as_many_windows_as_the_stream_fills(case: Case) -> None:
    stream, batch_size, window_size, seed, block = case
    windows = Windows(stream, batch_size=batch_size, window=window_size, seed=seed, block_tokens=block)
    n_epochs = 5
    counts = [windows.n_windows(epoch) for epoch in range(n_epochs)]
    assert sum(counts) == n_epochs * len(stream) // (batch_size * window_size)
    assert max(counts) - min(counts) <= 1
    seen = Counter(window.position.epoch for window in itertools.islice(windows.read(), sum(counts)))
    assert [seen[epoch] for epoch in range(n_epochs)] == counts


def test_rows_stay_together_over_many_epochs() -> None:
    lengths = np.random.default_rng(0).integers(0, 40, size=3000)
    stream = stream_of([[5] * int(n) for n in lengths])
    for seed in (None, 3):
        windows = Windows(stream, batch_size=16, window=20, seed=seed)
        for epoch in (0, 20, 40):
            ends = [windows.row_plan.part(epoch, row).end for row in range(16)]
            assert max(ends) - min(ends) < 100


def test_a_seed_shuffles_blocks_differently_in_each_epoch() -> None:
    stream = stream_of([[k] * 9 for k in range(2, 1002)])
    orders = {}
    for seed in (None, 1, 2):
        windows = Windows(stream, batch_size=1, window=10, seed=seed, block_tokens=100)
        targets = run(windows, 2000)["forward targets"][0]
        orders[seed] = [tuple(targets[k * 10_000 : (k + 1) * 10_000 : 10].tolist()) for k in (0, 1)]
    assert orders[None][0] == orders[None][1] == tuple(range(2, 1002))
    assert len({order for found in orders.values() for order in found}) == 5
    neighbors = sum(b == a + 1 for a, b in itertools.pairwise(orders[1][0]))
    assert neighbors >= 880  # ten sentences of a block stay together


@LAWS
@given(SENTENCES, st.integers(1, 70), st.integers(1, 9))
def test_evaluation_reads_the_whole_stream_once_in_order(
    sentences: list[list[int]], batch_size: int, window_size: int
) -> None:
    stream = stream_of(sentences)
    found = list(evaluation_windows(stream, batch_size=batch_size, window=window_size))
    masks = [window.mask for window in found if window.mask is not None]
    assert len(masks) == len(found)
    mask = np.concatenate(masks, axis=1)
    for name in ("forward", "backward"):
        inputs, targets = (
            np.concatenate([getattr(getattr(window, name), kind) for window in found], axis=1)
            for kind in ("inputs", "targets")
        )
        own, other = (1, 0) if name == "forward" else (0, 1)
        assert not (inputs == own).any()
        assert not (targets == other).any()
        expected = both_directions(stream.astype(np.int64))[1 if name == "forward" else 3]
        assert (targets[mask] == expected).all()
    assert mask.any(axis=1).all()  # no row is idle throughout
    assert all(one.any() for one in masks)


def test_too_few_sentences_and_bad_sizes_are_refused() -> None:
    stream = stream_of([[5], [6, 7]])
    with pytest.raises(DataError, match=r"a batch of 3 rows needs at least 3 sentences; found 2; use a smaller batch"):
        Windows(stream, batch_size=3, window=4, seed=None)
    with pytest.raises(DataError, match="must contain at least one sentence and end in </S>"):
        Windows(stream[:-1], batch_size=1, window=4, seed=None)
    with pytest.raises(ConfigError, match="window must be at least 1; found 0"):
        Windows(stream, batch_size=1, window=0, seed=None)
    with pytest.raises(ConfigError, match="rows must contain at least one of the 2 rows of the batch"):
        Windows(stream, batch_size=2, window=4, seed=None, rows=slice(2, 4))
    with pytest.raises(ConfigError, match="found epoch -1, window 0"):
        Windows(stream, batch_size=2, window=4, seed=None).at(Position(-1, 0))
