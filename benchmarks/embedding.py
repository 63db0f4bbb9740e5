"""How fast does text become vectors, beside AllenNLP and simple_elmo? In one run, taking turns.

usage: embedding.py [TEXT] [--peers] [--sizes …]

TEXT has a tokenised sentence a line; without it, words are made up, as often as Zipf's law says. ``--peers``
adds AllenNLP and simple_elmo from .venvs/peers, where ``make conformance`` installs them, and uses the models
there; without it, models with random weights are created. tests/conformance/peers/worker.py runs a peer, with
the same JSON lines as ``--serve`` here.

Every system runs in a process of its own, with two threads, and they take turns, round by round. Peers read
sentences sorted by length, in the batch size that was their best in a trial. A ratio is the median over
rounds of ours / best peer's in the same round. No word is known when a text begins: what was remembered of
it is forgotten first. ``limit`` is how fast the matrix products alone could be: the multiplications of a
token (each distinct word once, nothing padded) at the rate of packed float32 ones of 128 rows, measured in
each round. ``ms`` is one sentence of twelve tokens whose words are known, ``new`` one whose words are not.
``--settings`` are types of products, and ``float32+compiled`` has numba's loops where the others have none.
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
REPEATS = 9  # of one sentence, in every round
BATCHES = (32, 64, 128)  # that peers may like best
SENTENCE = ["The", "old", "bank", "by", "the", "river", "was", "closed", "on", "Sunday", ",", "too"]


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--peers", action="store_true", help="compare with AllenNLP and simple_elmo")
    parser.add_argument("--sizes", nargs="+", default=["small", "original"])
    parser.add_argument("--settings", nargs="+", default=["float32", "float32+compiled", "bfloat16", "int8"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=None, help="of TEXT, for each size")
    parser.add_argument("--serve", nargs=2, metavar=("MODEL", "DTYPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(Path(options.serve[0]), options.serve[1])
        return
    if options.peers and not (PEERS / "models").is_dir():
        parser.error(f"--peers: {PEERS} has no models; run make conformance first")
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        for number, size in enumerate(options.sizes):
            model = PEERS / "models" / size if options.peers else made_up_model(Path(place) / size, size)
            wanted = options.tokens[number] if options.tokens else {"small": 40_000}.get(size, 8_000)
            text = Path(place) / f"{size}.txt"
            n_tokens = cut(options.text, text, wanted)
            print(f"{size}: {n_tokens:,} tokens, {THREADS} threads, {options.rounds} rounds", flush=True)
            compare(size, model, text, options)


@dataclass
class System:
    """One program in a process of its own, driven by JSON lines."""

    name: str
    command: list[str]
    is_compiled: bool = False
    batch: int = 0  # the best of a peer
    throughputs: list[float] = field(default_factory=list)  # tokens a second
    latencies: list[float] = field(default_factory=list)  # seconds
    new_latencies: list[float] = field(default_factory=list)
    megabytes: float = 0.0
    load: float = 0.0

    def start(self) -> None:
        """Load the model."""
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            self.command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True,
            env=os.environ | {"ELMO_COMPILED": "1" if self.is_compiled else "0"},
        )  # fmt: skip
        self.load = self._answer()["load"]

    def ask(self, **command: Any) -> dict[str, Any]:
        """One command, one answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def rate(self, text: Path, batch: int) -> float:
        """Tokens a second of a whole text."""
        found = self.ask(op="throughput", file=str(text), batch=batch, sort=True)
        return found["tokens"] / found["seconds"]

    def stop(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: stopped without an answer: {' '.join(self.command)}")
        return json.loads(line)


def compare(size: str, model: Path, text: Path, options: argparse.Namespace) -> None:
    """The table of one size."""
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
        system.rate(text, 0)  # memory is touched
    limits: list[float] = []
    for number in range(options.rounds):
        for system in [*ours, *peers]:
            system.throughputs.append(system.rate(text, system.batch))
            found = system.ask(op="latency", sentence=SENTENCE, repeat=REPEATS)
            system.latencies.append(found["seconds"])
            system.new_latencies.append(found.get("new", found["seconds"]))
        limits.append(ours[0].ask(op="limit", file=str(text))["rate"])
        print(f"{size}, round {number + 1} of {options.rounds}", file=sys.stderr)
    for system in [*ours, *peers]:
        system.megabytes = system.ask(op="memory")["megabytes"]
        system.stop()
    print(
        f"{'':21} {'tokens/s':>9} {'ratio':>18} {'limit':>6} {'ms':>7} {'ratio':>6} {'new':>7} "
        f"{'MB':>6} {'load s':>7}"
    )
    for system in [*ours, *peers]:
        print(line(system, peers, limits, is_ours=system in ours), flush=True)
    if peers:
        least = min(peer.megabytes for peer in peers)
        fastest = min(peer.load for peer in peers)
        print(
            f"memory {ours[0].megabytes / least:.2f} x the leaner peer's; load {ours[0].load / fastest:.2f} x"
        )


def line(system: System, peers: list[System], limits: list[float], *, is_ours: bool) -> str:
    """One system's figures; ours beside the best peer's of the same round."""
    rate, latency = statistics.median(system.throughputs), statistics.median(system.latencies)
    ratio = time_ratio = share = ""
    if is_ours:
        shares = [mine / most for mine, most in zip(system.throughputs, limits, strict=True)]
        share = f"{statistics.median(shares):.0%}"
        if peers:
            best = [max(rates) for rates in zip(*(peer.throughputs for peer in peers), strict=True)]
            quickest = [min(times) for times in zip(*(peer.latencies for peer in peers), strict=True)]
            ratios = [mine / other for mine, other in zip(system.throughputs, best, strict=True)]
            times = [mine / other for mine, other in zip(system.latencies, quickest, strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
            time_ratio = f"{statistics.median(times):.2f}"
    name = system.name if is_ours else f"{system.name} ({system.batch})"
    return (
        f"{name:21} {rate:9,.0f} {ratio:>18} {share:>6} {1000 * latency:7.1f} {time_ratio:>6} "
        f"{1000 * statistics.median(system.new_latencies):7.1f} {system.megabytes:6,.0f} {system.load:7.2f}"
    )


# --- our own worker -----------------------------------------------------------------------------------------


def serve(model: Path, dtype: str) -> None:
    """Answer commands on standard input, one JSON line each."""
    import torch

    from elmo import Elmo

    torch.set_num_threads(THREADS)
    begin = time.perf_counter()
    elmo = Elmo.from_pretrained(model, dtype=dtype)
    answer(load=time.perf_counter() - begin)
    for given in sys.stdin:
        command = json.loads(given)
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
            answer(rate=limit(elmo, read(command["file"])))
        elif command["op"] == "memory":
            answer(megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def answer(**values: Any) -> None:
    """To standard output."""
    print(json.dumps(values), flush=True)


def read(path: str) -> list[list[str]]:
    """Tokenised sentences, one a line."""
    return [row.split() for row in Path(path).read_text(encoding="utf-8").splitlines() if row.strip()]


def limit(elmo: Elmo, sentences: list[list[str]]) -> float:
    """Tokens a second if only matrix products took time."""
    lstm, chars = elmo.config.lstm, elmo.config.chars
    assert chars is not None
    n_tokens = sum(map(len, sentences))
    n_read = n_tokens + 2 * len(sentences)  # the boundaries too
    of_tokens = n_read * 2 * lstm.n_layers * 9 * lstm.cell_width * lstm.state_width
    filters = sum(width * count for width, count in chars.filters) * chars.char_width
    above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * lstm.state_width
    words = {token for sentence in sentences for token in sentence}
    of_words = sum(filters * (min(len(word.encode()), 48) + 3) + above for word in words)
    return n_tokens * product_rate(lstm.state_width, 4 * lstm.cell_width) / (of_tokens + of_words)


def product_rate(width: int, n_gates: int) -> float:
    """Multiplications a second of the recurrent product of 128 rows, packed where torch can."""
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


# --- text and models where none are given -------------------------------------------------------------------


def cut(source: Path | None, target: Path, n_tokens: int) -> int:
    """About so many tokens of the text, in whole sentences."""
    lines, found = [], 0
    for row in made_up_text() if source is None else source.open(encoding="utf-8"):
        words = row.split()
        if words:
            lines.append(" ".join(words))
            found += len(words)
        if found >= n_tokens:
            break
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return found


def made_up_text() -> list[str]:
    """Sentences of twenty words on average; the k-th most frequent of 20,000 stands with chance 1/k."""
    import numpy as np

    chance = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = np.array(["".join(chance.choice(letters, size=1 + chance.poisson(5))) for _ in range(20_000)])
    odds = 1 / np.arange(1, len(words) + 1)
    lengths = 1 + chance.poisson(19, size=2500)
    return [" ".join(chance.choice(words, size=n, p=odds / odds.sum())) for n in lengths]


def made_up_model(folder: Path, size: str) -> Path:
    """A model of that size with random weights."""
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
