from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmo.engine.compiled import Library
from elmo.engine.matmul import Kernels
from elmo.engine.schedule import BatchSchedule
from tests.engine.cases import BUILT_VARIANTS, FOLDER

CPU = torch.device("cpu")
lengths = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@given(lengths, st.integers(1, 12))
def test_every_token_has_exactly_one_row_and_every_row_has_a_token(sizes: list[int], max_slots: int) -> None:
    schedule = BatchSchedule.build(sizes, max_slots=max_slots, device=CPU)
    assert sorted(schedule.token_rows.tolist()) == list(range(sum(sizes)))
    assert schedule.n_tokens == sum(sizes)
    assert schedule.batch_sizes == sorted(schedule.batch_sizes, reverse=True)
    assert schedule.batch_sizes[0] <= max_slots


@given(lengths, st.integers(1, 12))
def test_a_slot_reads_its_sentences_in_turn_without_a_gap(sizes: list[int], max_slots: int) -> None:
    schedule = BatchSchedule.build(sizes, max_slots=max_slots, device=CPU)
    token_rows = np.split(schedule.token_rows, np.cumsum(sizes)[:-1])
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
            assert schedule.offsets[step] + slot == token_rows[sentence][read[sentence]]
            read[sentence] += 1
    assert read == dict(enumerate(sizes))
    assert schedule.last_sentences.tolist() == [current[slot] for slot in range(schedule.batch_sizes[0])]


@given(lengths)
def test_reversed_tokens_are_the_tokens_of_each_sentence_from_its_end(sizes: list[int]) -> None:
    schedule = BatchSchedule.build(sizes, max_slots=3, device=CPU)
    tokens = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    assert schedule.reversed_tokens.tolist() == np.concatenate([sentence[::-1] for sentence in tokens]).tolist()


@pytest.mark.parametrize("is_compiled", [False, True])
@given(st.lists(st.integers(2, 12), min_size=1, max_size=20))
def test_layers_are_collected_in_the_order_of_the_sentences(is_compiled: bool, sizes: list[int]) -> None:
    if is_compiled and not BUILT_VARIANTS:
        pytest.skip("no compiled kernels on this machine")
    library = Library(FOLDER / f"kernels.{BUILT_VARIANTS[0]}.so") if is_compiled else None
    schedule = BatchSchedule.build(sizes, max_slots=3, device=CPU)
    n_layers, n_rows, width = 2, schedule.n_tokens + 3, 5
    values = torch.randn(2, n_layers, schedule.n_tokens, width)  # of each direction, by token
    layers = [torch.full((n_layers, size - 2, 2 * width), torch.nan) for size in sizes]
    for direction in range(2):
        states = torch.full((n_layers, n_rows, width), torch.nan)
        order = schedule.reversed_tokens if direction else np.arange(schedule.n_tokens)
        states[:, schedule.token_rows] = values[direction][:, order]
        schedule.collect(states, layers, direction, library=library)
    by_sentence = torch.cat([values[0], values[1]], dim=2).split(sizes, dim=1)
    for out, expected in zip(layers, by_sentence, strict=True):
        assert torch.equal(out, expected[:, 1:-1])


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
