"""How fast does a biLM train, beside bilm-tf's own graph? In one interleaved run, on natural text.

usage: training.py [TEXT] [--peers] [--rounds N] [--windows N] [--threads N]

TEXT is a few megabytes of raw English; by default, random words with Zipf-distributed frequencies.
``--peers`` adds bilm-tf's training graph, run by tests/conformance/peers/train.py with the TensorFlow in
.venvs/peers, where ``make conformance`` installs it.

Batch 128, 20 steps, 50,000 words (or all that TEXT has), Adagrad, dropout 0.1; sizes mini (CNN 512, cell 512,
projection 128) and small (CNN 2048, cell 1024, projection 128). Systems take turns, round by round, each in a
process of its own; a figure is the median over rounds of ours / peer's in the same round. What is measured is
``Trainer.run``: windows cut from the corpus on disk, steps, log and checkpoints. ``overhead`` is how much
longer that takes than the steps alone, on one window that is in memory. ``limit`` is how fast the matrix
products of a step alone could be: their multiplications, distinct words once and nothing padded, at the rate
of one large product in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elmo.train.loop import Trainer
    from elmo.train.windows import Window

ROOT = Path(__file__).resolve().parents[1]
PEER = (ROOT / ".venvs/peers/tensorflow/bin/python", ROOT / "tests/conformance/peers/train.py")
SETTINGS = {
    "fp32": {},
    "fp32, 2048 samples": {"n_samples": 2048},
    "bf16": {"precision": "bfloat16"},
}


def main() -> None:
    """Print a table of tokens per second and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--peers", action="store_true", help="compare with bilm-tf's training graph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", default=["mini", "small"])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "SIZE", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, size, setting = options.measure
        print(json.dumps(measure(Path(folder), size, setting, options.windows, options.threads)))
        return
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        folder = Path(place) / "corpus"
        from elmo.train import build_corpus

        corpus = build(options.text or made_up(Path(place) / "text.txt"), folder, tokenizer="en")
        print(f"{corpus.n_tokens:,} tokens, {len(corpus.types):,} types; {options.threads} threads")
        for size in options.sizes:
            compare(size, folder, options)


def made_up(path: Path) -> Path:
    """Two million words in sentences of twenty; the k-th most frequent of 100,000 stands with chance 1/k."""
    import numpy as np

    chance = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = ["".join(chance.choice(letters, size=1 + chance.poisson(5))) for _ in range(100_000)]
    odds = 1 / np.arange(1, len(words) + 1)
    drawn = chance.choice(len(words), size=2_000_000, p=odds / odds.sum())
    lines = (" ".join(words[k] for k in drawn[i : i + 20]) for i in range(0, len(drawn), 20))
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(size: str, folder: Path, options: argparse.Namespace) -> None:
    """One line a setting."""
    ours: dict[str, list[dict[str, float]]] = {setting: [] for setting in options.settings}
    peers: list[float] = []
    for number in range(options.rounds):
        for setting, found in ours.items():
            found.append(in_own_process(folder, size, setting, options))
        if options.peers:
            output = subprocess.run([*PEER, size], capture_output=True, text=True, check=True).stdout
            peers.append(float(re.findall(r"([\d.]+) tokens/s", output)[-1]))
        print(f"{size}, round {number + 1} of {options.rounds}", file=sys.stderr)
    if peers:
        print(f"{size:6} {'bilm-tf graph':20} {statistics.median(peers):8,.0f} tokens/s")
    for setting, rounds in ours.items():
        rate = statistics.median(each["rate"] for each in rounds)
        overhead = statistics.median(each["overhead"] for each in rounds)
        limit = statistics.median(each["limit"] for each in rounds)
        ratio = ""
        if peers:
            ratios = [each["rate"] / peer for each, peer in zip(rounds, peers, strict=True)]
            ratio = f", {statistics.median(ratios):.2f} x ({min(ratios):.2f}–{max(ratios):.2f})"
        share = f"{rate / limit:.0%} of the limit {limit:,.0f}"
        print(
            f"{size:6} {setting:20} {rate:8,.0f} tokens/s{ratio}, {share}, overhead {overhead:.1%}",
            flush=True,
        )


def in_own_process(folder: Path, size: str, setting: str, options: argparse.Namespace) -> dict[str, float]:
    """What ``measure`` finds, in a process of its own."""
    command = [sys.executable, __file__, "--measure", str(folder), size, setting]
    command += ["--windows", str(options.windows), "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measure(folder: Path, size: str, setting: str, n_windows: int, n_threads: int) -> dict[str, float]:
    """Tokens per second of ``Trainer.run``, and how much longer it takes than the steps alone."""
    import torch

    from elmo.train.corpus import Corpus
    from elmo.train.loop import StepReport, Trainer
    from elmo.train.options import PRESETS, TrainOptions

    torch.set_num_threads(n_threads)
    warm = 3
    # As often as in a long run: a log line for 50 windows, a checkpoint for 1,000. So few are measured here
    # that one of each would weigh too much; the checkpoint is timed by itself and counted by its share.
    train = TrainOptions(
        n_steps=warm + n_windows,
        log_every=1,
        evaluate_every=10**8,
        checkpoint_every=10**8,
        **SETTINGS[setting],
    )
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        trainer = Trainer(Corpus.open(folder), PRESETS[size], train, Path(place))
        times: list[float] = []

        class DoneError(Exception):
            pass

        def tick(report: StepReport) -> None:
            times.append(time.perf_counter())
            if report.step == train.n_steps - 1:  # the last window is followed by an evaluation
                raise DoneError

        with contextlib.suppress(DoneError):
            trainer.run(tick)
        steps = [after - before for before, after in zip(times[warm:-1], times[warm + 1 :], strict=True)]
        whole = statistics.median(steps)
        window = trainer.windows.at(trainer.position)
        trainer.windows.at = lambda position: window  # the steps alone: no text is read
        alone = []
        for _ in range(n_windows):
            begin = time.perf_counter()
            trainer.objective.train()
            trainer._train_one_window()
            alone.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        trainer.checkpoints.save(trainer._snapshot(), step=trainer.step)
        checkpoint = (time.perf_counter() - begin) / 1000  # of each window
    tokens = train.batch_size * train.window
    overhead = (whole + checkpoint) / statistics.median(alone) - 1
    limit = tokens * product_rate() / multiplications(trainer, window)
    return {"rate": tokens / (whole + checkpoint), "overhead": overhead, "limit": limit}


def multiplications(trainer: Trainer, window: Window) -> float:
    """Of one step: forward once, backward twice as many."""
    lstm, chars = trainer.config.lstm, trainer.config.chars
    distinct, places = trainer.objective.distinct_words(window)
    _, lengths = trainer.corpus.types.padded_bytes(distinct, 48)
    layer = 9 * lstm.cell_width * lstm.state_width  # eight of the gates, one of the projection
    n_compared = trainer.sampler.n_samples if trainer.sampler else trainer.n_vocab
    of_tokens = places.size * (lstm.n_layers * layer + n_compared * lstm.state_width)
    of_words = 0.0
    if chars is not None:
        filters = sum(width * count for width, count in chars.filters) * chars.char_width
        above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * lstm.state_width
        of_words = float((filters * (lengths + 3)).sum()) + above * len(distinct)
    return 3 * (of_tokens + of_words)


def product_rate() -> float:
    """Multiplications per second of a large matrix product, in float32."""
    import torch

    left, right = torch.randn(2048, 1024), torch.randn(1024, 4096)
    out = torch.empty(2048, 4096)
    times = []
    for _ in range(8):
        begin = time.perf_counter()
        torch.mm(left, right, out=out)
        times.append(time.perf_counter() - begin)
    return left.numel() * right.size(1) / statistics.median(times[2:])


if __name__ == "__main__":
    main()
