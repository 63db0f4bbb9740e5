"""Measure the speed of bilm-tf's training graph, as simple_elmo ships it, on random ids.

usage: train.py mini|small     (with the Python of the tensorflow peer)

mini has filters [[1,32],[2,32],[3,64],[4,128],[5,256]], cell 512 and projection 128; small has the seven
published filter sizes, cell 1024 and projection 128. Both: batch 128, 20 steps, 50,000 words, 8192 samples,
Adagrad 0.2, clip 10, dropout 0.1. Prints the median of 6 steps in tokens/s, after one that does not count.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from simple_elmo.training import LanguageModel

BATCH, STEPS, N_WORDS, THREADS, CLIP_NORM = 128, 20, 50_000, 2, 10.0
FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
v1 = tf.compat.v1


def build_options(size: str) -> dict:
    """Return bilm-tf's training options."""
    return {
        "bidirectional": True,
        "dropout": 0.1,
        "batch_size": BATCH,
        "unroll_steps": STEPS,
        "n_tokens_vocab": N_WORDS,
        "n_negative_samples_batch": 8192,
        "all_clip_norm_val": CLIP_NORM,
        "char_cnn": {
            "activation": "relu",
            "embedding": {"dim": 16},
            "filters": FILTERS if size == "small" else FILTERS[:5],
            "max_characters_per_token": 50,
            "n_characters": 261,
            "n_highway": 1,
        },
        "lstm": {
            "cell_clip": 3,
            "dim": 1024 if size == "small" else 512,
            "n_layers": 2,
            "proj_clip": 3,
            "projection_dim": 128,
            "use_skip_connections": True,
        },
    }


def measure_speed(size: str) -> float:
    """Return the tokens per second of a training step."""
    v1.disable_eager_execution()
    model = LanguageModel(build_options(size), True)
    optimizer = v1.train.AdagradOptimizer(0.2, initial_accumulator_value=1.0)
    pairs = optimizer.compute_gradients(model.total_loss * STEPS)
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], CLIP_NORM)
    step = optimizer.apply_gradients(zip(clipped, [variable for _, variable in pairs], strict=True))
    config = v1.ConfigProto(intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS)
    session = v1.Session(config=config)
    session.run(v1.global_variables_initializer())
    random = np.random.default_rng(0)
    times = []
    for _ in range(7):
        ranks = np.exp(random.random((2, BATCH, STEPS)) * np.log(N_WORDS)) - 1  # Zipf's law
        targets = np.minimum(ranks.astype(int), N_WORDS - 1)
        characters = random.integers(0, 260, (2, BATCH, STEPS, 50))
        feed = {
            model.tokens_characters: characters[0],
            model.tokens_characters_reverse: characters[1],
            model.next_token_id: targets[0],
            model.next_token_id_reverse: targets[1],
        }
        begin = time.perf_counter()
        session.run([model.total_loss, step], feed)
        times.append(time.perf_counter() - begin)
    return BATCH * STEPS / statistics.median(times[1:])


if __name__ == "__main__":
    if sys.argv[1:] not in (["mini"], ["small"]):
        sys.exit(__doc__)
    print(f"bilm-tf graph, {sys.argv[1]}: {measure_speed(sys.argv[1]):.0f} tokens/s")
