from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmo.engine.batches import BatchSchedule
from elmo.engine.matmul import Kernels

CPU = torch.device("cpu")
lengths = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(lengths, st.integers(1, 12))
def test_every_token_has_a_row_of_its_own_and_no_row_is_empty(sizes: list[int], max_lanes: int) -> None:
    lanes = BatchSchedule.of(sizes, max_lanes=max_lanes, device=CPU)
    for is_mirrored in (False, True):
        rows = np.concatenate(lanes.places(is_mirrored=is_mirrored))
        assert sorted(rows.tolist()) == list(range(sum(sizes)))
    assert lanes.n_tokens == sum(sizes)
    assert lanes.counts == sorted(lanes.counts, reverse=True)
    assert lanes.counts[0] <= max_lanes


@given(lengths, st.integers(1, 12))
def test_a_lane_reads_its_sentences_one_after_another_without_a_gap(sizes: list[int], max_lanes: int) -> None:
    lanes = BatchSchedule.of(sizes, max_lanes=max_lanes, device=CPU)
    now = dict(enumerate(lanes.opening.tolist()))  # the sentence that each lane reads
    read: dict[int, int] = dict.fromkeys(range(len(sizes)), 0)
    for step, count in enumerate(lanes.counts):
        switch = lanes.switches.get(step)
        if switch is not None:
            changes = (switch.lanes.tolist(), switch.ended.tolist(), switch.begun.tolist())
            for lane, ended, begun in zip(*changes, strict=True):
                assert now[lane] == ended
                assert read[ended] == sizes[ended]
                now[lane] = begun
        for lane in range(count):
            sentence = now[lane]
            assert lanes.begins[step] + lane == lanes.places(is_mirrored=False)[sentence][read[sentence]]
            read[sentence] += 1
    assert read == dict(enumerate(sizes))
    assert lanes.closing.tolist() == [now[lane] for lane in range(lanes.counts[0])]


def test_lanes_are_full_to_the_end_but_for_what_the_last_sentences_leave() -> None:
    sizes = [7, 31, 12, 25, 18, 3, 9] * 60
    lanes = BatchSchedule.of(sizes, max_lanes=16, device=CPU)
    n_full = sum(count == 16 for count in lanes.counts)
    assert n_full >= len(lanes.counts) - max(sizes)
    assert sum(sizes) / (16 * len(lanes.counts)) > 0.99


@pytest.mark.parametrize("n_short", [0, 3])
def test_a_long_sentence_has_no_more_lanes_beside_it_than_it_leaves_busy(n_short: int) -> None:
    lanes = BatchSchedule.of([100, *[10] * n_short], max_lanes=64, device=CPU)
    assert lanes.counts[0] == (2 if n_short else 1)
    assert len(lanes.counts) == 100


@given(lengths, st.sampled_from([Kernels("packed", "float32", ""), Kernels("plain", "float32", "")]))
def test_no_product_reaches_beyond_the_rows_that_are_there(sizes: list[int], kernels: Kernels) -> None:
    lanes = BatchSchedule.of(sizes, max_lanes=kernels.max_rows, device=CPU)
    n_rows, steps_read = lanes.n_rows(kernels), list[int]()
    assert n_rows >= lanes.n_tokens
    for steps, n_block in lanes.blocks(kernels):
        steps_read += steps
        assert lanes.begins[steps.start] + n_block <= n_rows
        for step in steps:
            first = lanes.begins[step] - lanes.begins[steps.start]
            assert first + kernels.rows(lanes.counts[step]) <= n_block
    assert steps_read == list(range(len(lanes.counts)))
