"""How much faster are the parts of training than the readable reference? Forward and backward, in one run.

usage: training_parts.py [--rounds N] [--threads N]

Batch 128, 20 steps, 50,000 words, 8192 samples; mini (CNN 512, cell 512, projection 128) and small (CNN 2048,
cell 1024, projection 128). The variants of a part take turns, round by round; each figure is the median over
rounds of reference time / variant time in the same round, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from elmo.engine.lstm import run_lstm_window
from elmo.engine.threads import ThreadPool
from elmo.engine.token_layer import run_char_cnn
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.softmax import LogUniformSampler, Samples, Softmax
from elmo.model.token_layer import CharCnn

BATCH, STEPS, STATE, N_WORDS, N_SAMPLES, N_DISTINCT = 128, 20, 128, 50_000, 8192, 900
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES = {"mini": (512, FILTERS[:5]), "small": (1024, FILTERS)}


def main() -> None:
    """Print a table: each part, each variant, milliseconds and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} threads, median of {options.rounds} rounds, bf16 in hardware: {has_bf16()}")
    with ThreadPool() as side:
        for size, (cell, filters) in SIZES.items():
            compare(f"LSTM layer, {size}", lstm_variants(cell), options.rounds)
            compare(f"4 LSTM layers, 2 directions, {size}", stack_variants(cell, side), options.rounds)
            compare(f"{N_DISTINCT} words through the CNN, {size}", cnn_variants(filters), options.rounds)
    compare(f"softmax, {N_SAMPLES} samples", softmax_variants(), options.rounds)


def compare(part: str, variants: dict[str, Callable[[], None]], rounds: int) -> None:
    """One line a variant; the first is the reference."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, run in variants.items():
            begin = time.perf_counter()
            run()
            if round_number:  # the first warms up
                times[name].append(time.perf_counter() - begin)
    reference = next(iter(times.values()))
    for name, found in times.items():
        ratio = statistics.median(r / t for r, t in zip(reference, found, strict=True))
        print(f"{part:40} {name:24} {1000 * statistics.median(found):8.1f} ms {ratio:6.2f} ×", flush=True)


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 by itself."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def random_lstm(cell: int) -> ProjectedLstm:
    """One layer as published."""
    return ProjectedLstm(
        input_width=STATE,
        state_width=STATE,
        cell_width=cell,
        cell_clip=3.0,
        state_clip=3.0,
        forget_bias=1.0,
    )


def zero_state(cell: int) -> LstmState:
    """Before the first window."""
    return LstmState(torch.zeros(BATCH, STATE), torch.zeros(BATCH, cell))


def lstm_variants(cell: int) -> dict[str, Callable[[], None]]:
    """One layer."""
    lstm, state = random_lstm(cell), zero_state(cell)
    inputs = torch.randn(BATCH, STEPS, STATE, requires_grad=True)
    gradient, mask = torch.randn(BATCH, STEPS, STATE), torch.ones(BATCH, STEPS, dtype=torch.bool)
    return {
        "ProjectedLstm": lambda: lstm(inputs, mask, state)[0].backward(gradient),
        "fast_lstm": lambda: run_lstm_window(lstm, inputs, state)[0].backward(gradient),
        "fast_lstm, bf16 products": lambda: run_lstm_window(lstm, inputs, state, has_bf16_products=True)[
            0
        ].backward(gradient),
    }


def stack_variants(cell: int, side: ThreadPool) -> dict[str, Callable[[], None]]:
    """Two layers of each direction, the directions in turn or side by side."""
    stacks, state = [[random_lstm(cell) for _ in range(2)] for _ in range(2)], zero_state(cell)
    tokens = [torch.randn(BATCH, STEPS, STATE, requires_grad=True) for _ in stacks]
    gradient, mask = torch.randn(BATCH, STEPS, STATE), torch.ones(BATCH, STEPS, dtype=torch.bool)

    def run(direction: int, *, is_fast: bool) -> None:
        x: Tensor = tokens[direction]
        for index, lstm in enumerate(stacks[direction]):
            y, _ = run_lstm_window(lstm, x, state) if is_fast else lstm(x, mask, state)
            x = x + y if index else y
        x.backward(gradient)

    return {
        "ProjectedLstm": lambda: [run(d, is_fast=False) for d in range(2)] and None,
        "fast_lstm": lambda: [run(d, is_fast=True) for d in range(2)] and None,
        "fast_lstm, side by side": lambda: (
            side.run(lambda: run(0, is_fast=True), lambda: run(1, is_fast=True)) and None
        ),
    }


def cnn_variants(filters: tuple[tuple[int, int], ...]) -> dict[str, Callable[[], None]]:
    """Words of 1 to 10 letters between two boundaries, padded to 50."""
    cnn = CharCnn(n_characters=261, char_width=16, filters=filters, n_highway=1, activation="relu")
    lengths = torch.randint(3, 13, (N_DISTINCT, 1))
    char_ids = torch.where(torch.arange(50) < lengths, torch.randint(1, 257, (N_DISTINCT, 50)), 261)
    gradient = torch.randn(N_DISTINCT, sum(count for _, count in filters))
    return {
        "CharCnn (conv1d)": lambda: cnn(char_ids).backward(gradient),
        "fast_char_cnn": lambda: run_char_cnn(cnn, char_ids).backward(gradient),
    }


def softmax_variants() -> dict[str, Callable[[], None]]:
    """One direction's loss."""
    n = BATCH * STEPS
    dense = Softmax(n_words=N_WORDS, width=STATE)
    sparse = Softmax(n_words=N_WORDS, width=STATE, has_sparse_gradient=True)
    states = torch.randn(n, STATE, requires_grad=True)
    targets = ((torch.rand(n) * torch.tensor(N_WORDS).log()).exp().long() - 1).clamp(0, N_WORDS - 1)
    sampler, generator = LogUniformSampler(N_WORDS, N_SAMPLES), torch.Generator().manual_seed(0)

    def fused(softmax: Softmax) -> None:
        softmax.weight.grad = None
        softmax.sampled(states, targets, sampler.draw(generator)).backward()

    def plain() -> None:
        dense.weight.grad = None
        plain_sampled_loss(dense, states, targets, sampler.draw(generator)).backward()

    return {
        "F.cross_entropy": plain,
        "chunked": lambda: fused(dense),
        "chunked, sparse gradient": lambda: fused(sparse),
    }


def plain_sampled_loss(softmax: Softmax, states: Tensor, targets: Tensor, samples: Samples) -> Tensor:
    """The same loss with all logits at once, as one would write it first."""
    n = len(samples.ids)
    ids = torch.cat([samples.ids, targets])
    rows, bias = softmax.rows()[ids], softmax.bias[ids] - samples.log_expected(ids).float()
    true = (states * rows[n:]).sum(dim=1) + bias[n:]
    logits = F.linear(states, rows[:n], bias[:n])
    logits[samples.hits(targets)] = -torch.inf
    logits = torch.cat([true[:, None], logits], dim=1)
    return F.cross_entropy(logits, torch.zeros_like(targets))


if __name__ == "__main__":
    main()
