"""Compute in many threads and forks while the model is converted, saved and copied; count wrong results and hangs.

``python benchmarks/concurrency.py`` runs a minute; ``--sentences 100000 --forks 1000`` is the full size. Every result
must have exactly the bits that the model gives alone, in one of the precisions that it has meanwhile.

- threads: 8 threads encode, while another calls ``to``, ``clear_cache``, ``save_pretrained`` and ``set_num_threads``.
- forks: a process with busy threads forks; each child encodes and scores.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
import warnings
from pathlib import Path

import torch

from elmo import Elmo
from elmo.predict import score_sentences

WORDS = ["the", "a", "river", "bank", "of", "money", "lends", "crosses", "old", "new", "in", "on", "河岸", "café"]
HUNG_SECONDS = 60.0


def build_sentences(n: int, *, seed: int) -> list[list[str]]:
    """Build random sentences with new words now and then, so that the cache of words changes."""
    rng = random.Random(seed)
    return [
        [rng.choice(WORDS) if rng.random() < 0.9 else f"w{rng.randrange(5000)}" for _ in range(rng.randint(1, 12))]
        for _ in range(n)
    ]


def encode(elmo: Elmo, sentences: list[list[str]]) -> list[bytes]:
    """Return the bits of all layers of each sentence."""
    encodings = elmo.encode(sentences, layers="all", dtype="float32", batch_size=4)
    return [encoding.vectors.tobytes() for encoding in encodings]


def find_precisions(model: str) -> list[str]:
    """Return the precisions that this machine supports."""
    supported = []
    for dtype in ("float32", "bfloat16", "int8"):
        try:
            Elmo.from_pretrained(model, dtype=dtype)
        except Exception:
            continue
        supported.append(dtype)
    return supported


def run_threads(model: str, n_sentences: int, n_threads: int) -> tuple[int, int, int]:
    """Return how many sentences were encoded, how many were wrong, and how many threads hung."""
    precisions = find_precisions(model)
    groups = [build_sentences(20, seed=seed) for seed in range(20)]
    expected = [
        {tuple(encode(Elmo.from_pretrained(model, dtype=dtype), group)) for dtype in precisions} for group in groups
    ]
    elmo, is_over, lock = Elmo.from_pretrained(model), threading.Event(), threading.Lock()
    counts = {"done": 0, "wrong": 0}

    def work(seed: int) -> None:
        rng = random.Random(seed)
        while not is_over.is_set():
            k = rng.randrange(len(groups))
            is_wrong = tuple(encode(elmo, groups[k])) not in expected[k]
            with lock:
                counts["done"] += len(groups[k])
                counts["wrong"] += len(groups[k]) * is_wrong

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(n_threads)]
    for thread in threads:
        thread.start()
    with tempfile.TemporaryDirectory() as name:
        number, last, since = 0, -1, time.monotonic()
        while counts["done"] < n_sentences and time.monotonic() - since < HUNG_SECONDS:
            elmo.to(dtype=precisions[number % len(precisions)])
            if number % 3 == 0:
                elmo.clear_cache()
            if number % 20 == 0:
                elmo.save_pretrained(Path(name, str(number)))
            torch.set_num_threads(1 + number % 2)
            number += 1
            time.sleep(0.02)
            if counts["done"] != last:
                last, since = counts["done"], time.monotonic()
    is_over.set()
    for thread in threads:
        thread.join(HUNG_SECONDS)
    torch.set_num_threads(1)
    return counts["done"], counts["wrong"], sum(thread.is_alive() for thread in threads)


def run_forks(model: str, n_forks: int) -> tuple[int, int]:
    """Return how many forked children computed something else, and how many hung."""
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks of a process with threads
    elmo, sentences = Elmo.from_pretrained(model), build_sentences(6, seed=1)

    def compute() -> list[bytes]:
        scores = score_sentences(elmo, sentences)
        return [*encode(elmo, sentences), *(part.forward.tobytes() for part in scores if part.forward is not None)]

    expected, is_over = compute(), threading.Event()

    def work(seed: int) -> None:
        while not is_over.is_set():
            seed += 4
            encode(elmo, build_sentences(6, seed=seed))
            if seed % 8 == 0:
                elmo.clear_cache()

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    n_wrong = n_hung = 0
    for number in range(n_forks):
        time.sleep(0.001 * (number % 7))
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = int(compute() != expected)
            finally:
                os._exit(code)
        end = time.monotonic() + HUNG_SECONDS
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
            time.sleep(0.001)
        if not ended[0]:
            os.kill(child, 9)
            os.waitpid(child, 0)
            n_hung += 1
        elif ended[1]:
            n_wrong += 1
    is_over.set()
    for thread in threads:
        thread.join(HUNG_SECONDS)
    return n_wrong, n_hung + sum(thread.is_alive() for thread in threads)


def main() -> None:
    """Run both parts and print the counts; exit with 1 if anything was wrong or hung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="en")
    parser.add_argument("--sentences", type=int, default=4000, help="sentences that the threads encode")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--forks", type=int, default=50)
    options = parser.parse_args()
    done, wrong, hung = run_threads(options.model, options.sentences, options.threads)
    is_short = done < options.sentences
    print(f"{done:,} sentences in {options.threads} threads: {wrong} wrong, {hung} threads hung")
    n_wrong = n_hung = 0
    if options.forks and hasattr(os, "fork"):
        n_wrong, n_hung = run_forks(options.model, options.forks)
        print(f"{options.forks:,} forks: {n_wrong} wrong, {n_hung} hung")
    raise SystemExit(int(bool(wrong or hung or is_short or n_wrong or n_hung)))


if __name__ == "__main__":
    main()
