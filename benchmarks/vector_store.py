"""Measure Lance as a store of usages beyond memory: build time, memory, query time and recall.

    python benchmarks/vector_store.py TEXT --rows 1000000 5000000 --work FOLDER

TEXT is a text file, compressed or not, with one sentence per line; the first 200,000 token vectors of its sentences are
the real vectors. Rows are made up by noise around them: each is a real vector plus Gaussian noise, whose length is 30%
of that of the vector, so that a row has a cosine of about 0.96 to its origin. Queries are made in the same way. The
index and the search are those of ``elmo index --to lance`` and ``elmo neighbors --approximate``. The truth for recall
is exact search over all rows (``elmo.lexicon.search``).

Each stage runs in a process of its own, so that its peak memory can be measured, and is skipped if its result is in
FOLDER already; the results are in FOLDER/results.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

N_REAL, N_QUERIES, K, NOISE, BATCH = 200_000, 200, 10, 0.3, 1 << 16


def compute_real(text: str, work: Path) -> None:
    """Write the vectors of the first tokens of a text."""
    from elmo import Elmo
    from elmo.text.lines import read_lines

    elmo, parts, batch, n = Elmo.from_pretrained(), [], [], 0
    for line in read_lines(Path(text)):
        batch.append(line.text)
        if len(batch) == 1000:
            rows = [np.asarray(encoding.vectors) for encoding in elmo.encode(batch, dtype="float16")]
            parts += rows
            n, batch = n + sum(map(len, rows)), []
            if n >= N_REAL:
                break
    np.save(work / "real.npy", np.concatenate(parts)[:N_REAL])


def make_rows(real: np.ndarray, n: int, seed: list[int]) -> np.ndarray:
    """Make up vectors by noise around real ones."""
    rng = np.random.default_rng(seed)
    rows = real[rng.integers(len(real), size=n)].astype(np.float32)
    noise = rng.standard_normal(rows.shape, dtype=np.float32)
    noise *= NOISE * np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    return (rows + noise).astype(np.float16)


def write(work: Path, n_rows: int) -> dict[str, Any]:
    """Write the table without an index."""
    import lance
    import pyarrow as pa

    real, path = np.load(work / "real.npy"), work / f"{n_rows}.lance"

    def batches():
        for begin in range(0, n_rows, BATCH):
            rows = make_rows(real, min(BATCH, n_rows - begin), [1, begin])
            numbers = pa.array(np.arange(begin, begin + len(rows)))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
            yield pa.record_batch({"number": numbers, "vector": vectors})

    schema = next(batches()).schema
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), path, mode="overwrite")
    return {"bytes": _size(path)}


def index(work: Path, n_rows: int) -> dict[str, Any]:
    """Build the vector index."""
    import lance

    from elmo.lexicon.lance import build_vector_index

    path = work / f"{n_rows}.lance"
    before, began = _size(path), time.perf_counter()
    build_vector_index(lance.dataset(path))
    return {"bytes": _size(path) - before, "seconds": time.perf_counter() - began}


def truth(work: Path, n_rows: int) -> dict[str, Any]:
    """Find the nearest rows of each query by exact search."""
    import lance

    from elmo.lexicon.search import VectorBlock, find_nearest

    table = lance.dataset(work / f"{n_rows}.lance")

    def blocks():
        first = 0
        for batch in table.to_batches(columns=["vector"], batch_size=1 << 14, scan_in_order=True):
            rows = batch["vector"].flatten().to_numpy().reshape(-1, table.schema.field("vector").type.list_size)
            yield VectorBlock(first, rows, np.linalg.norm(rows.astype(np.float32), axis=1))
            first += len(rows)

    np.save(work / f"{n_rows}.truth.npy", find_nearest(_queries(work), blocks(), K).numbers)
    return {}


def query(work: Path, n_rows: int) -> dict[str, Any]:
    """Search with the index; the first query, which reads the index from disk, is reported separately."""
    import lance

    from elmo.lexicon.lance import search

    opened = time.perf_counter()
    table, expected, queries = (
        lance.dataset(work / f"{n_rows}.lance"),
        np.load(work / f"{n_rows}.truth.npy"),
        _queries(work),
    )
    search(table, queries[0], K)
    first = time.perf_counter() - opened
    times, recalls, cpu = [], [], time.process_time()
    for vector, numbers in zip(queries, expected, strict=True):
        began = time.perf_counter()
        found = search(table, vector, K)
        times.append(1000 * (time.perf_counter() - began))
        recalls.append(len(set(found.tolist()) & set(numbers.tolist())) / K)
    cpu = time.process_time() - cpu
    return {
        "cpu_ms": 1000 * cpu / len(queries),
        "recall": float(np.mean(recalls)), "first_s": first, "median_ms": float(np.median(times)),
        "p95_ms": float(np.percentile(times, 95)), "mean_ms": float(np.mean(times)),
    }  # fmt: skip


def _queries(work: Path) -> np.ndarray:
    return make_rows(np.load(work / "real.npy"), N_QUERIES, [2]).astype(np.float32)


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())


STAGES = {"write": write, "index": index, "truth": truth, "query": query}


def run_stage(name: str, work: Path, n_rows: int) -> None:
    """Run a stage in this process and print its figures."""
    began = time.perf_counter()
    result = STAGES[name](work, n_rows)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cost = {"cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_bytes": usage.ru_maxrss * 1024}
    print(json.dumps({"seconds": time.perf_counter() - began} | cost | result))


def main() -> None:
    """Run the stages that have no result yet, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--again", nargs="+", default=[], choices=list(STAGES), help="run these stages again")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work: Path = arguments.work
    if arguments.stage:
        run_stage(arguments.stage, work, arguments.rows[0])
        return
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "real.npy").exists():
        compute_real(arguments.text, work)
    path = work / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for n_rows in arguments.rows:
        done = results.setdefault(str(n_rows), {})
        for name in arguments.stages:
            if name not in done or name in arguments.again:
                command = [
                    sys.executable,
                    __file__,
                    arguments.text,
                    "--rows",
                    str(n_rows),
                    "--work",
                    str(work),
                    "--stage",
                    name,
                ]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                done[name] = json.loads(output.splitlines()[-1])
                path.write_text(json.dumps(results, indent=1) + "\n")
            print(f"{n_rows:>11,} {name:6}", {key: round(value, 3) for key, value in done[name].items()}, flush=True)


if __name__ == "__main__":
    main()
