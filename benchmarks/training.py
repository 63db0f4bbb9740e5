"""Measure training speed compared with the graph of bilm-tf, in one interleaved run on natural text.

usage: training.py [TEXT] [--peers] [--rounds N] [--steps N] [--threads N]

TEXT is a few megabytes of raw English; by default, random words with Zipf-distributed frequencies.
``--peers`` adds bilm-tf's training graph, run by tests/conformance/peers/train.py with the TensorFlow in
.venvs/peers (or the folder ELMO_PEERS), where ``make conformance`` installs it.

Batch size 128, windows of 20 tokens, 50,000 words (or all that TEXT has), Adagrad, dropout 0.1; sizes mini
(CNN 512, cell 512, projection 128) and small (CNN 2048, cell 1024, projection 128); products in float32 or bfloat16
with 8192 (as bilm-tf) or 2048 samples. ``transformer-mini`` and ``transformer-small`` are the presets of these names,
trained with AdamW in 20 rows of 128 tokens, the default for transformers; bilm-tf has none. The systems take turns,
each in a separate process; a ratio is the median over rounds of our speed divided by that of the peer in the same
round. ``Trainer.run`` is measured: windows read from the corpus on disk, steps, log and checkpoints. ``overhead`` is
the extra time compared with the steps alone, on one window in memory. ``limit`` is the speed of the matrix products
of a step alone: their multiplications (distinct words once, no padding) at the rate of large products of the same
type, which product_rates.py measures.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedding import PEERS
from product_rates import measure_rates, warn_if_busy

if TYPE_CHECKING:
    from elmo.train.loop import Trainer
    from elmo.train.windows import Window

ROOT = Path(__file__).resolve().parents[1]
PEER = (PEERS / "tensorflow/bin/python", ROOT / "tests/conformance/peers/train.py")
LARGE = {"n_rows": 2048, "shapes": ((1024, 4096),)}  # products of a whole window
TRANSFORMER = "transformer-"  # prefix of a size
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "float32", "n_samples": 8192},
    "fp32, 2048 samples": {"precision": "float32", "n_samples": 2048},
    "bf16": {"precision": "bfloat16", "n_samples": 8192},
    "bf16, 2048 samples": {"precision": "bfloat16", "n_samples": 2048},
}


def main() -> None:
    """Print a table of tokens per second and ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--peers", action="store_true", help="compare with bilm-tf's training graph")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", default=["mini", "small", f"{TRANSFORMER}mini", f"{TRANSFORMER}small"])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "SIZE", "SETTING"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, size, setting = options.measure
        print(json.dumps(measure(Path(folder), size, setting, options.steps, options.threads)))
        return
    warn_if_busy()
    if options.peers and not PEER[0].exists():
        parser.error(f"--peers: {PEER[0]} is missing; run make conformance, or set ELMO_PEERS")
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        folder = Path(place) / "corpus"
        from elmo.train import CorpusOptions, build_corpus

        text = options.text or write_random_text(Path(place) / "text.txt")
        corpus = build_corpus(text, folder, CorpusOptions(tokenizer="en"))
        print(f"{corpus.n_tokens:,} tokens, {len(corpus.types):,} types; {options.threads} threads")
        for size in options.sizes:
            compare(size, folder, options)


def write_random_text(path: Path) -> Path:
    """Write two million words in sentences of twenty; word k of 100,000 has a probability of about 1/k."""
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
    """Print one line per setting."""
    ours: dict[str, list[dict[str, float]]] = {setting: [] for setting in options.settings}
    peers: list[float] = []
    for number in range(options.rounds):
        for setting, results in ours.items():
            results.append(measure_in_process(folder, size, setting, options))
        if options.peers and not size.startswith(TRANSFORMER):
            output = subprocess.run([*PEER, size], capture_output=True, text=True, check=True).stdout
            peers.append(float(re.findall(r"([\d.]+) tokens/s", output)[-1]))
        print(f"{size}, round {number + 1} of {options.rounds}", file=sys.stderr)
    if peers:
        print(f"{size:17} {'bilm-tf graph':20} {statistics.median(peers):8,.0f} tokens/s")
    for setting, rounds in ours.items():
        rate = statistics.median(result["rate"] for result in rounds)
        overhead = statistics.median(result["overhead"] for result in rounds)
        limit = statistics.median(result["limit"] for result in rounds)
        ratio = ""
        if peers:
            ratios = [result["rate"] / peer for result, peer in zip(rounds, peers, strict=True)]
            ratio = f", {statistics.median(ratios):.2f} x ({min(ratios):.2f}–{max(ratios):.2f})"
        share = (
            f"{statistics.median(result['rate'] / result['limit'] for result in rounds):.0%} of the limit {limit:,.0f}"
        )
        print(f"{size:17} {setting:20} {rate:8,.0f} tokens/s{ratio}, {share}, overhead {overhead:.1%}", flush=True)


def measure_in_process(folder: Path, size: str, setting: str, options: argparse.Namespace) -> dict[str, float]:
    """Run ``measure`` in its own process."""
    command = [sys.executable, __file__, "--measure", str(folder), size, setting]
    command += ["--steps", str(options.steps), "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measure(folder: Path, size: str, setting: str, n_steps: int, n_threads: int) -> dict[str, float]:
    """Measure tokens per second of ``Trainer.run``, its overhead and the limit."""
    import torch

    from elmo.train.corpus import Corpus
    from elmo.train.loop import StepReport, Trainer
    from elmo.train.options import FOR_TRANSFORMERS, PRESETS, TRANSFORMERS, TrainOptions
    from elmo.train.run import TRANSFORMER_ROWS, TRANSFORMER_WINDOW

    torch.set_num_threads(n_threads)
    warm = 3
    # A long run writes a checkpoint every 1,000 steps. In these few steps, one would count too much: it is
    # timed separately, and a thousandth is added.
    train = TrainOptions(
        n_steps=warm + n_steps, log_every=1, evaluate_every=10**8, checkpoint_every=10**8, **SETTINGS[setting]
    )
    config = TRANSFORMERS[size.removeprefix(TRANSFORMER)] if size.startswith(TRANSFORMER) else PRESETS[size]
    if size.startswith(TRANSFORMER):
        shape = {"batch_size": TRANSFORMER_ROWS, "window": TRANSFORMER_WINDOW}
        train = replace(train, optimizer=FOR_TRANSFORMERS, **shape)
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        trainer = Trainer(Corpus.open(folder), config, train, Path(place))
        times: list[float] = []

        class DoneError(Exception):
            pass

        def tick(report: StepReport) -> None:
            times.append(time.perf_counter())
            if report.step == train.n_steps - 1:  # the last step is followed by an evaluation
                raise DoneError

        with contextlib.suppress(DoneError):
            trainer.run(tick)
        steps = [after - before for before, after in zip(times[warm:-1], times[warm + 1 :], strict=True)]
        whole = statistics.median(steps)
        window = trainer.windows.at(trainer.position)
        trainer.windows.at = lambda position: window  # the steps alone: reads no text
        alone = []
        for _ in range(n_steps):
            begin = time.perf_counter()
            trainer.objective.train()
            trainer.train_step()
            alone.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        trainer.checkpoints.save(trainer._snapshot(), step=trainer.step)
        checkpoint = (time.perf_counter() - begin) / 1000  # per step
    tokens = train.batch_size * train.window
    overhead = (whole + checkpoint) / statistics.median(alone) - 1
    rates = measure_rates(n_threads=n_threads, types=("float32", train.precision), **LARGE)
    rate = rates.get(train.precision, rates["float32"])
    limit = tokens * rate / count_products(trainer, window)
    return {"rate": tokens / (whole + checkpoint), "overhead": overhead, "limit": limit}


def count_products(trainer: Trainer, window: Window) -> float:
    """Count the multiplications of one step: the backward pass has twice those of the forward pass."""
    from elmo.config import TransformerConfig

    encoder, chars = trainer.config.encoder, trainer.config.chars
    width = encoder.state_width
    types, index = trainer.objective.distinct_types(window)
    _, lengths = trainer.corpus.types.padded_bytes(types, 48)
    if isinstance(encoder, TransformerConfig):  # without attention, which is a few percent
        layer = 4 * width**2 + 2 * width * encoder.feed_forward_width
    else:
        layer = 9 * encoder.cell_width * width  # eight for the gates, one for the projection
    n_compared = trainer.sampler.n_samples if trainer.sampler else trainer.n_vocab
    token_products = index.size * (encoder.n_layers * layer + n_compared * width)
    word_products = 0.0
    if chars is not None:
        filters = sum(width * count for width, count in chars.filters) * chars.char_width
        above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * width
        word_products = float((filters * (lengths + 3)).sum()) + above * len(types)
    return 3 * (token_products + word_products)


if __name__ == "__main__":
    main()
