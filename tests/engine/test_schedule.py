from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmo.engine.matmul import Kernels
from elmo.engine.schedule import BatchSchedule

CPU = torch.device("cpu")
lengths = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(lengths, st.integers(1, 12))
def test_every_token_has_exactly_one_row_and_every_row_has_a_token(sizes: list[int], max_slots: int) -> None:
    schedule = BatchSchedule.build(sizes, max_slots=max_slots, device=CPU)
    for is_reversed in (False, True):
        rows = np.concatenate(schedule.token_rows(is_reversed=is_reversed))
        assert sorted(rows.tolist()) == list(range(sum(sizes)))
    assert schedule.n_tokens == sum(sizes)
    assert schedule.batch_sizes == sorted(schedule.batch_sizes, reverse=True)
    assert schedule.batch_sizes[0] <= max_slots


@given(lengths, st.integers(1, 12))
def test_a_slot_reads_its_sentences_in_turn_without_a_gap(sizes: list[int], max_slots: int) -> None:
    schedule = BatchSchedule.build(sizes, max_slots=max_slots, device=CPU)
    current = dict(enumerate(schedule.first_sentences.tolist()))  # the sentence in each slot
    read: dict[int, int] = dict.fromkeys(range(len(sizes)), 0)
    for step, batch_size in enumerate(schedule.batch_sizes):
        change = schedule.slot_changes.get(step)
        if change is not None:
            changes = (change.slots.tolist(), change.ended.tolist(), change.started.tolist())
            for slot, ended, started in zip(*changes, strict=True):
                assert current[slot] == ended
                assert read[ended] == sizes[ended]
                current[slot] = started
        for slot in range(batch_size):
            sentence = current[slot]
            assert schedule.offsets[step] + slot == schedule.token_rows(is_reversed=False)[sentence][read[sentence]]
            read[sentence] += 1
    assert read == dict(enumerate(sizes))
    assert schedule.last_sentences.tolist() == [current[slot] for slot in range(schedule.batch_sizes[0])]


def test_all_slots_are_busy_until_the_last_sentences() -> None:
    sizes = [7, 31, 12, 25, 18, 3, 9] * 60
    schedule = BatchSchedule.build(sizes, max_slots=16, device=CPU)
    n_full = sum(size == 16 for size in schedule.batch_sizes)
    assert n_full >= len(schedule.batch_sizes) - max(sizes)
    assert sum(sizes) / (16 * len(schedule.batch_sizes)) > 0.99


@pytest.mark.parametrize("n_short", [0, 3])
def test_a_long_sentence_limits_the_number_of_slots(n_short: int) -> None:
    schedule = BatchSchedule.build([100, *[10] * n_short], max_slots=64, device=CPU)
    assert schedule.batch_sizes[0] == (2 if n_short else 1)
    assert len(schedule.batch_sizes) == 100


@given(lengths, st.sampled_from([Kernels("packed", "float32", ""), Kernels("plain", "float32", "")]))
def test_no_product_reaches_beyond_the_last_row(sizes: list[int], kernels: Kernels) -> None:
    schedule = BatchSchedule.build(sizes, max_slots=kernels.max_rows, device=CPU)
    n_rows, seen_steps = schedule.n_rows(kernels), list[int]()
    assert n_rows >= schedule.n_tokens
    for steps, n_block in schedule.blocks(kernels):
        seen_steps += steps
        assert schedule.offsets[steps.start] + n_block <= n_rows
        for step in steps:
            first = schedule.offsets[step] - schedule.offsets[steps.start]
            assert first + kernels.padded_rows(schedule.batch_sizes[step]) <= n_block
    assert seen_steps == list(range(len(schedule.batch_sizes)))
