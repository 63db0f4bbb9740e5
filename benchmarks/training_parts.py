"""Measure how much faster the engine is than the reference in training, forward and backward.

usage: training_parts.py [--rounds N] [--threads N]

Batch size 128, windows of 20 tokens, 50,000 words, 8192 samples; mini (CNN 512, cell 512, projection 128) and
small (CNN 2048, cell 1024, projection 128). The variants of a part take turns in each round. A ratio is the
median over rounds of the time of the reference divided by that of the variant, so a busy machine affects
both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from elmo.engine.lstm import run_lstm_window
from elmo.engine.matmul import has_bfloat16
from elmo.engine.softmax import compute_loss
from elmo.engine.threads import ThreadPool
from elmo.engine.token_layer import run_char_cnn
from elmo.model.lstm import LstmState, ProjectedLstm
from elmo.model.softmax import LogUniformSampler, Softmax
from elmo.model.token_layer import CharCnn

BATCH, STEPS, STATE, N_WORDS, N_SAMPLES, N_DISTINCT = 128, 20, 128, 50_000, 8192, 900
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
SIZES = {"mini": (512, FILTERS[:5]), "small": (1024, FILTERS)}


def main() -> None:
    """Print the time and the ratio of each variant of each part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{options.threads} threads, {options.rounds} rounds, bfloat16 instructions: {has_bfloat16()}")
    with ThreadPool() as pool:
        for size, (cell, filters) in SIZES.items():
            compare(f"LSTM layer, {size}", lstm_variants(cell), options.rounds)
            compare(f"4 LSTM layers, 2 directions, {size}", stack_variants(cell, pool), options.rounds)
            compare(f"{N_DISTINCT} words through the CNN, {size}", cnn_variants(filters), options.rounds)
    compare(f"softmax, {N_SAMPLES} samples", softmax_variants(), options.rounds)


def compare(part: str, variants: dict[str, Callable[[], None]], rounds: int) -> None:
    """Print one line per variant; the first is the reference."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, run in variants.items():
            begin = time.perf_counter()
            run()
            if round_number:  # the first is a warm-up
                times[name].append(time.perf_counter() - begin)
    reference = next(iter(times.values()))
    for name, seconds in times.items():
        ratio = statistics.median(r / t for r, t in zip(reference, seconds, strict=True))
        print(f"{part:40} {name:24} {1000 * statistics.median(seconds):8.1f} ms {ratio:6.2f} ×", flush=True)


def random_lstm(cell: int) -> ProjectedLstm:
    """Build one layer with the published options."""
    return ProjectedLstm(
        input_width=STATE, state_width=STATE, cell_width=cell, cell_clip=3.0, state_clip=3.0, forget_bias=1.0
    )


def zero_state(cell: int) -> LstmState:
    """The state before the first window."""
    return LstmState(torch.zeros(BATCH, STATE), torch.zeros(BATCH, cell))


def lstm_variants(cell: int) -> dict[str, Callable[[], None]]:
    """Variants of one layer."""
    lstm, state = random_lstm(cell), zero_state(cell)
    inputs = torch.randn(BATCH, STEPS, STATE, requires_grad=True)
    gradient, mask = torch.randn(BATCH, STEPS, STATE), torch.ones(BATCH, STEPS, dtype=torch.bool)
    return {
        "ProjectedLstm": lambda: lstm(inputs, mask, state)[0].backward(gradient),
        "run_lstm_window": lambda: run_lstm_window(lstm, inputs, state)[0].backward(gradient),
        "run_lstm_window, bfloat16": lambda: run_lstm_window(lstm, inputs, state, has_bf16_products=True)[0].backward(
            gradient
        ),
    }


def stack_variants(cell: int, pool: ThreadPool) -> dict[str, Callable[[], None]]:
    """Variants of two layers per direction, the directions in turn or in parallel."""
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
        "run_lstm_window": lambda: [run(d, is_fast=True) for d in range(2)] and None,
        "run_lstm_window, 2 threads": lambda: (
            pool.run(lambda: run(0, is_fast=True), lambda: run(1, is_fast=True)) and None
        ),
    }


def cnn_variants(filters: tuple[tuple[int, int], ...]) -> dict[str, Callable[[], None]]:
    """Variants of the CNN for words of 1 to 10 letters between two boundaries, padded to 50."""
    cnn = CharCnn(n_characters=261, char_width=16, filters=filters, n_highway=1, activation="relu")
    lengths = torch.randint(3, 13, (N_DISTINCT, 1))
    char_ids = torch.where(torch.arange(50) < lengths, torch.randint(1, 257, (N_DISTINCT, 50)), 261)
    gradient = torch.randn(N_DISTINCT, sum(count for _, count in filters))
    return {
        "CharCnn (conv1d)": lambda: cnn(char_ids).backward(gradient),
        "run_char_cnn": lambda: run_char_cnn(cnn, char_ids).backward(gradient),
    }


def softmax_variants() -> dict[str, Callable[[], None]]:
    """Variants of the loss of one direction."""
    n = BATCH * STEPS
    softmax = Softmax(n_words=N_WORDS, width=STATE)
    states = torch.randn(n, STATE, requires_grad=True)
    targets = ((torch.rand(n) * torch.tensor(N_WORDS).log()).exp().long() - 1).clamp(0, N_WORDS - 1)
    sampler, generator = LogUniformSampler(N_WORDS, N_SAMPLES), torch.Generator().manual_seed(0)

    def reference() -> None:
        softmax.zero_grad()
        softmax.sampled_loss(states, targets, sampler.draw(generator)).backward()

    def run(*, is_sparse: bool) -> None:
        softmax.zero_grad()
        samples = sampler.draw(generator)
        loss = compute_loss(softmax, states, targets, samples=samples, has_sparse_gradient=is_sparse)
        loss.backward()

    return {
        "Softmax.sampled_loss": reference,
        "compute_loss": lambda: run(is_sparse=False),
        "compute_loss, sparse": lambda: run(is_sparse=True),
    }


if __name__ == "__main__":
    main()
