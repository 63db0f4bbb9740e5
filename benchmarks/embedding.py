"""Measure the speed of encoding, compared with AllenNLP, simple_elmo and the limit of the hardware.

usage: embedding.py [TEXT] [--peers] [--sizes …]

TEXT has one tokenized sentence per line; by default, random words with Zipf-distributed frequencies.
``--peers`` adds AllenNLP and simple_elmo from .venvs/peers, where ``make conformance`` installs them, and
uses the models there; without it, models with random weights are created. A peer runs in
tests/conformance/peers/worker.py, with the same JSON lines as ``--serve`` here.

Every system runs in a separate process with two threads, and the systems take turns in each round. Peers read
sentences sorted by length, in their best batch size of a trial. A ratio is the median over rounds of our
result divided by that of the best peer in the same round. The cache of words is cleared before each text.

``limit`` is the share of the speed that the matrix products alone would allow: the multiplications of a token
(each distinct word once, no padding) at the rate of packed float32 products of 128 rows, measured in each
round. ``ms`` is the time of one sentence of twelve cached words, ``new`` that of twelve new words.
``--settings`` are precisions of the products; ``+compiled`` adds the compiled loops.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmo import Elmo

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venvs" / "peers"
WORKER = ROOT / "tests" / "conformance" / "peers" / "worker.py"
THREADS = 2
REPEATS = 9  # measurements of one sentence in every round
BATCHES = (32, 64, 128)  # batch sizes to try for peers
SENTENCE = ["The", "old", "bank", "by", "the", "river", "was", "closed", "on", "Sunday", ",", "too"]


def main() -> None:
    """Print one table per size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--peers", action="store_true", help="compare with AllenNLP and simple_elmo")
    parser.add_argument("--sizes", nargs="+", default=["small", "original"])
    parser.add_argument("--settings", nargs="+", default=["float32", "float32+compiled", "bfloat16", "int8"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=None, help="number of tokens of TEXT, one per size")
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "DTYPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Path(options.serve[0]), options.serve[1])
        return
    if options.peers and not (PEERS / "models").is_dir():
        parser.error(f"--peers: {PEERS} has no models; run make conformance first")
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        for number, size in enumerate(options.sizes):
            model = PEERS / "models" / size if options.peers else random_model(Path(folder) / size, size)
            max_tokens = options.tokens[number] if options.tokens else {"small": 40_000}.get(size, 8_000)
            text = Path(folder) / f"{size}.txt"
            n_tokens = write_text(options.text, text, max_tokens)
            print(f"{size}: {n_tokens:,} tokens, {THREADS} threads, {options.rounds} rounds", flush=True)
            compare(size, model, text, options)


@dataclass
class System:
    """A program in a separate process, controlled by JSON lines."""

    name: str
    command: list[str]
    is_compiled: bool = False
    batch: int = 0  # best batch size of a peer
    throughputs: list[float] = field(default_factory=list)  # tokens per second
    latencies: list[float] = field(default_factory=list)  # seconds
    new_latencies: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    load: float = 0.0

    def start(self) -> None:
        """Start the process and load the model."""
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"ELMO_COMPILED": "1" if self.is_compiled else "0"},
        )  # fmt: skip
        self.load = self._read_answer()["load"]

    def send(self, **command: Any) -> dict[str, Any]:
        """Send one command and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read_answer()

    def rate(self, text: Path, batch: int) -> float:
        """Measure the tokens per second of a whole text."""
        result = self.send(op="throughput", file=str(text), batch=batch, sort=True)
        return result["tokens"] / result["seconds"]

    def stop(self) -> None:
        """Stop the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read_answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: stopped without an answer; command: {' '.join(self.command)}")
        return json.loads(line)


def compare(size: str, model: Path, text: Path, options: argparse.Namespace) -> None:
    """Print the table of one size."""
    ours = []
    for setting in options.settings:
        dtype, _, how = setting.partition("+")
        command = [sys.executable, __file__, "--serve", str(model), dtype]
        ours.append(System(f"elmo {setting}", command, is_compiled=how == "compiled"))
    venvs = {"allennlp": "allennlp", "simple_elmo": "tensorflow"} if options.peers else {}
    peers = [
        System(name, [f"{PEERS}/{venv}/bin/python", str(WORKER), name, str(PEERS), str(model)])
        for name, venv in venvs.items()
    ]
    for system in [*ours, *peers]:
        system.start()
    for peer in peers:
        peer.batch = max(BATCHES, key=lambda batch, peer=peer: peer.rate(text, batch))
    for system in ours:
        system.rate(text, 0)  # warm-up
    limits: list[float] = []
    for number in range(options.rounds):
        for system in [*ours, *peers]:
            system.throughputs.append(system.rate(text, system.batch))
            latency = system.send(op="latency", sentence=SENTENCE, repeat=REPEATS)
            system.latencies.append(latency["seconds"])
            system.new_latencies.append(latency.get("new", latency["seconds"]))
        limits.append(ours[0].send(op="limit", file=str(text))["rate"])
        print(f"{size}, round {number + 1} of {options.rounds}", file=sys.stderr)
    for system in [*ours, *peers]:
        system.megabytes = system.send(op="memory")["megabytes"]
        system.stop()
    print(
        f"{'':21} {'tokens/s':>9} {'ratio':>18} {'limit':>6} {'ms':>7} {'ratio':>6} {'new':>7} {'MB':>6} {'load s':>7}"
    )
    for system in [*ours, *peers]:
        print(format_line(system, peers, limits, is_ours=system in ours), flush=True)
    if peers:
        least = min(peer.megabytes for peer in peers)
        fastest = min(peer.load for peer in peers)
        memory, load = ours[0].megabytes / least, ours[0].load / fastest
        print(f"memory {memory:.2f} x that of the smaller peer; load {load:.2f} x that of the faster peer")


def format_line(system: System, peers: list[System], limits: list[float], *, is_ours: bool) -> str:
    """Format the figures of one system; ours with ratios to the best peer of the same round."""
    rate, latency = statistics.median(system.throughputs), statistics.median(system.latencies)
    ratio = time_ratio = share = ""
    if is_ours:
        shares = [rate / limit for rate, limit in zip(system.throughputs, limits, strict=True)]
        share = f"{statistics.median(shares):.0%}"
        if peers:
            best = [max(rates) for rates in zip(*(peer.throughputs for peer in peers), strict=True)]
            quickest = [min(times) for times in zip(*(peer.latencies for peer in peers), strict=True)]
            ratios = [rate / peer for rate, peer in zip(system.throughputs, best, strict=True)]
            times = [seconds / peer for seconds, peer in zip(system.latencies, quickest, strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
            time_ratio = f"{statistics.median(times):.2f}"
    name = system.name if is_ours else f"{system.name} ({system.batch})"
    return (
        f"{name:21} {rate:9,.0f} {ratio:>18} {share:>6} {1000 * latency:7.1f} {time_ratio:>6} "
        f"{1000 * statistics.median(system.new_latencies):7.1f} {system.megabytes:6,.0f} {system.load:7.2f}"
    )


# --- worker -----------------------------------------------------------------------------------------


def serve(model: Path, dtype: str) -> None:
    """Answer commands from standard input, one JSON line each."""
    import torch

    from elmo import Elmo

    torch.set_num_threads(THREADS)
    begin = time.perf_counter()
    elmo = Elmo.from_pretrained(model, dtype=dtype)
    answer(load=time.perf_counter() - begin)
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "throughput":
            sentences = read(command["file"])
            elmo.clear_cache()
            begin = time.perf_counter()
            elmo.encode(sentences, layers="all")
            answer(tokens=sum(map(len, sentences)), seconds=time.perf_counter() - begin)
        elif command["op"] == "latency":
            times: dict[bool, list[float]] = {True: [], False: []}
            for is_new in (True, False):
                for _ in range(command["repeat"] + 1):
                    if is_new:
                        elmo.clear_cache()
                    begin = time.perf_counter()
                    elmo.encode([command["sentence"]], layers="all")
                    times[is_new].append(time.perf_counter() - begin)
            answer(seconds=statistics.median(times[False][1:]), new=statistics.median(times[True][1:]))
        elif command["op"] == "limit":
            answer(rate=compute_limit(elmo, read(command["file"])))
        elif command["op"] == "memory":
            answer(megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def answer(**values: Any) -> None:
    """Print a JSON line to standard output."""
    print(json.dumps(values), flush=True)


def read(path: str) -> list[list[str]]:
    """Read tokenized sentences, one per line."""
    return [row.split() for row in Path(path).read_text(encoding="utf-8").splitlines() if row.strip()]


def compute_limit(elmo: Elmo, sentences: list[list[str]]) -> float:
    """Compute the tokens per second if only matrix products took time."""
    lstm, chars = elmo.config.lstm, elmo.config.chars
    assert chars is not None
    n_tokens = sum(map(len, sentences))
    n_read = n_tokens + 2 * len(sentences)  # with boundaries
    token_work = n_read * 2 * lstm.n_layers * 9 * lstm.cell_width * lstm.state_width
    filters = sum(width * count for width, count in chars.filters) * chars.char_width
    above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * lstm.state_width
    words = {token for sentence in sentences for token in sentence}
    word_work = sum(filters * (min(len(word.encode()), 48) + 3) + above for word in words)
    return n_tokens * measure_product_rate(lstm.state_width, 4 * lstm.cell_width) / (token_work + word_work)


def measure_product_rate(width: int, n_gates: int) -> float:
    """Measure the multiplications per second of a recurrent product of 128 rows, packed if possible."""
    import torch

    left, weight = torch.randn(128, width), torch.randn(n_gates, width)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 128)

        def product() -> Any:
            return torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")

        product()
    except (AttributeError, RuntimeError):

        def product() -> Any:
            return torch.nn.functional.linear(left, weight)

    times = []
    for _ in range(60):
        begin = time.perf_counter()
        product()
        times.append(time.perf_counter() - begin)
    return left.numel() * n_gates / statistics.median(times[10:])


# --- random text and models -------------------------------------------------------------------


def write_text(source: Path | None, target: Path, n_tokens: int) -> int:
    """Write about ``n_tokens`` tokens of the text in whole sentences; return their number."""
    lines, n_written = [], 0
    for row in random_text() if source is None else source.open(encoding="utf-8"):
        words = row.split()
        if words:
            lines.append(" ".join(words))
            n_written += len(words)
        if n_written >= n_tokens:
            break
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return n_written


def random_text() -> list[str]:
    """Draw sentences of 20 words on average; the k-th of 20,000 words has a frequency of about 1/k."""
    import numpy as np

    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = np.array(["".join(generator.choice(letters, size=1 + generator.poisson(5))) for _ in range(20_000)])
    odds = 1 / np.arange(1, len(words) + 1)
    lengths = 1 + generator.poisson(19, size=2500)
    return [" ".join(generator.choice(words, size=n, p=odds / odds.sum())) for n in lengths]


def random_model(folder: Path, size: str) -> Path:
    """Save a model of the given size with random weights."""
    import torch

    from elmo.formats import native
    from elmo.formats.pretrained import Pretrained
    from elmo.model.bilm import BiLm
    from elmo.train.options import PRESETS

    torch.manual_seed(0)
    weights = {name: weight.detach() for name, weight in BiLm.from_config(PRESETS[size]).state_dict().items()}
    native.write(Pretrained(config=PRESETS[size], weights=weights, format="elmo"), folder)
    return folder


if __name__ == "__main__":
    main()
