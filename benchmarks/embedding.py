"""Measure the speed of encoding, compared with AllenNLP, simple_elmo and the limit of the hardware.

usage: embedding.py [TEXT] [--peers] [--sizes …] [--settings …]

TEXT has one tokenized sentence per line; by default, random words with Zipf-distributed frequencies.
The size ``transformer`` is the published one: 6 layers, 512 wide, 8 heads, 2,048 hidden units.
``--peers`` adds AllenNLP and simple_elmo (for LSTMs) from the folder in which ``make conformance`` installs them
(.venvs/peers, or that of the environment variable ELMO_PEERS) and uses the models there; without it, models with
random weights are created. A peer runs in tests/conformance/peers/worker.py, with the same JSON lines as
``--serve`` here.

``--settings`` are precisions of the products. With the suffix ``+torch``, the engine computes with torch alone;
``+avx2`` and ``+avx512`` select other compiled kernels than the best for this CPU (ELMO_KERNELS).

Every system runs in a separate process with two threads, and the systems take turns in each round. Peers read
sentences sorted by length, in their best batch size of a trial. A ratio is the median over rounds of our
result divided by that of the best peer in the same round. The cache of words is cleared before each text.

``limit`` is the share of the speed that the matrix products alone would allow: the multiplications of a token
(each distinct word once, no padding) at the rate of large products of the same type, which product_rates.py
measures in each round. ``ms`` is the time of one sentence of twelve cached words, ``new`` that of twelve new words.
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

from product_rates import measure_rates, warn_if_busy

if TYPE_CHECKING:
    from elmo import Elmo

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(os.environ.get("ELMO_PEERS") or ROOT / ".venvs" / "peers").absolute()
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
    parser.add_argument("--settings", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=None, help="number of tokens of TEXT, one per size")
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "DTYPE"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=THREADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve, n_threads=options.threads)
        return
    warn_if_busy()
    if options.peers and not (PEERS / "models").is_dir():
        parser.error(f"--peers: {PEERS} has no models; run make conformance, or set ELMO_PEERS")
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
    kernels: str | None = None  # value of ELMO_KERNELS; None: the best for this CPU
    precision: str = "float32"
    batch: int = 0  # number of sentences of a call: the best of a trial for a peer; 0: all
    throughputs: list[float] = field(default_factory=list)  # tokens per second
    latencies: list[float] = field(default_factory=list)  # seconds
    new_latencies: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    load: float = 0.0

    def start(self) -> None:
        """Start the process and load the model."""
        pipe = subprocess.PIPE
        environment = os.environ | ({} if self.kernels is None else {"ELMO_KERNELS": self.kernels})
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.load = self._read_answer()["load"]

    def send(self, **command: Any) -> dict[str, Any]:
        """Send one command and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._read_answer()

    def rate(self, text: Path, batch: int, **command: Any) -> float:
        """Measure the tokens per second of a whole text."""
        result = self.send(op="throughput", file=str(text), batch=batch, sort=True, **command)
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
        ours.append(start_elmo(str(model), setting))
    venvs = {"allennlp": "allennlp", "simple_elmo": "tensorflow"}
    if size == "transformer":
        venvs = {"allennlp_transformer": "allennlp"}
    peers = [
        System(name, [f"{PEERS}/{venv}/bin/python", str(WORKER), name, str(PEERS), str(model)])
        for name, venv in (venvs.items() if options.peers else ())
    ]
    for peer in peers:
        peer.start()
        peer.batch = max(BATCHES, key=lambda batch, peer=peer: peer.rate(text, batch))
    for system in ours:
        system.rate(text, 0)  # warm-up
    work = ours[0].send(op="work", file=str(text))["multiplications"]
    limits: list[dict[str, float]] = []  # of each round: tokens per second of each type
    for number in range(options.rounds):
        for system in [*ours, *peers]:
            system.throughputs.append(system.rate(text, system.batch))
            latency = system.send(op="latency", sentence=SENTENCE, repeat=REPEATS)
            system.latencies.append(latency["seconds"])
            system.new_latencies.append(latency.get("new", latency["seconds"]))
        rates = measure_rates(n_threads=THREADS)
        limits.append({precision: rate / work for precision, rate in rates.items()})
        print(f"{size}, round {number + 1} of {options.rounds}", file=sys.stderr)
    for system in [*ours, *peers]:
        system.megabytes = system.send(op="memory")["megabytes"]
        system.stop()
    print(
        f"{'':21} {'tokens/s':>9} {'ratio':>18} {'limit':>6} {'ms':>7} {'ratio':>6} {'new':>7} {'MB':>6} {'load s':>7}"
    )
    for system in [*ours, *peers]:
        print(format_line(system, peers, limits, is_ours=system in ours), flush=True)
    middle = {name: statistics.median(limit[name] for limit in limits) for name in limits[0]}
    print("limits, tokens/s: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in middle.items()))
    if peers:
        least = min(peer.megabytes for peer in peers)
        fastest = min(peer.load for peer in peers)
        memory, load = ours[0].megabytes / least, ours[0].load / fastest
        print(f"memory {memory:.2f} x that of the smaller peer; load {load:.2f} x that of the faster peer")


def start_elmo(model: str, setting: str, *, n_threads: int = THREADS) -> System:
    """Start a process with one of our settings, such as ``int8`` or ``float32+torch``."""
    precision, _, kernels = setting.partition("+")
    command = [sys.executable, __file__, "--serve", model, precision, "--threads", str(n_threads)]
    system = System(f"elmo {setting}", command, {"": None, "torch": "0"}.get(kernels, kernels), precision=precision)
    system.start()
    return system


def format_line(system: System, peers: list[System], limits: list[dict[str, float]], *, is_ours: bool) -> str:
    """Format the figures of one system; ours with ratios to the best peer of the same round."""
    rate, latency = statistics.median(system.throughputs), statistics.median(system.latencies)
    ratio = time_ratio = share = ""
    if is_ours:
        type_limits = [limit.get(system.precision, limit["float32"]) for limit in limits]
        shares = [rate / limit for rate, limit in zip(system.throughputs, type_limits, strict=True)]
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


def serve(model: str, precision: str, *, n_threads: int) -> None:
    """Answer commands from standard input, one JSON line each."""
    import torch

    from elmo import Elmo

    torch.set_num_threads(n_threads)
    begin = time.perf_counter()
    elmo = Elmo.from_pretrained(model, dtype=precision)
    answer(load=time.perf_counter() - begin)
    for line in sys.stdin:
        command = json.loads(line)
        layers = command.get("layers", "all")
        if command["op"] == "throughput":
            sentences = read(command["file"])
            size = command["batch"] or len(sentences)
            elmo.clear_cache()
            begin = time.perf_counter()
            for first in range(0, len(sentences), size):
                elmo.encode(sentences[first : first + size], layers=layers)
            answer(tokens=sum(map(len, sentences)), seconds=time.perf_counter() - begin)
        elif command["op"] == "latency":
            times: dict[bool, list[float]] = {True: [], False: []}
            for is_new in (True, False):
                for _ in range(command["repeat"] + 1):
                    if is_new:
                        elmo.clear_cache()
                    begin = time.perf_counter()
                    elmo.encode([command["sentence"]], layers=layers)
                    times[is_new].append(time.perf_counter() - begin)
            answer(seconds=statistics.median(times[False][1:]), new=statistics.median(times[True][1:]))
        elif command["op"] == "work":
            answer(multiplications=count_multiplications(elmo, read(command["file"])))
        elif command["op"] == "memory":
            answer(megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def answer(**values: Any) -> None:
    """Print a JSON line to standard output."""
    print(json.dumps(values), flush=True)


def read(path: str) -> list[list[str]]:
    """Read tokenized sentences, one per line."""
    return [row.split() for row in Path(path).read_text(encoding="utf-8").splitlines() if row.strip()]


def count_multiplications(elmo: Elmo, sentences: list[list[str]]) -> float:
    """Count the multiplications per token of a text, each distinct word once and without padding."""
    encoder, chars = elmo.config.encoder, elmo.config.chars
    assert chars is not None
    n_tokens = sum(map(len, sentences))
    n_read = n_tokens + 2 * len(sentences)  # with boundaries
    width = encoder.state_width
    if elmo.config.encoder_name == "transformer":  # without attention, which is a few percent
        layer = 4 * width**2 + 2 * width * encoder.feed_forward_width
    else:
        layer = 9 * encoder.cell_width * width
    token_work = n_read * 2 * encoder.n_layers * layer
    filters = sum(width * count for width, count in chars.filters) * chars.char_width
    above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * width
    words = {token for sentence in sentences for token in sentence}
    word_work = sum(filters * (min(len(word.encode()), 48) + 3) + above for word in words)
    return (token_work + word_work) / n_tokens


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
    from elmo.train.options import PRESETS, TRANSFORMERS

    torch.manual_seed(0)
    config = TRANSFORMERS["original"] if size == "transformer" else PRESETS[size]
    weights = {name: weight.detach() for name, weight in BiLm.from_config(config).state_dict().items()}
    native.write(Pretrained(config=config, weights=weights, format="elmo"), folder)
    return folder


if __name__ == "__main__":
    main()
