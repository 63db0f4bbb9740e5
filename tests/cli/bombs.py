"""Hostile inputs of at most 1 MB for every command, and the memory that a command needs for them.

``python -m tests.cli.bombs`` runs every command with every input and prints the largest peaks; with ``--model en``, the
bundled model. ``tests/cli/test_bombs.py`` runs a part of them. Each case runs in a fork of this process, so that the
memory of imports does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 1_000_000
LIMIT = 600 * MEGABYTE  # beyond imports
SECONDS = 2.0  # after which a case is ended: inputs that are valid take longer, but memory grows at the start

_ROW = "{}\t{}\t_\tNOUN\t_\tNumber=Sing\t0\troot\t_\t_\n"


def texts() -> dict[str, bytes]:
    """Texts of 16 MB and more, which compress to less than 1 MB."""
    size = 400 * MEGABYTE // 16

    def fill(piece: bytes, n_bytes: int = size) -> bytes:
        return piece * (n_bytes // len(piece))

    sentence = b"the bank of the river lends money .\n"
    return {
        "one line": b"a" * 40 * MEGABYTE,
        "one line of 16 MB": b"a" * 16_000_000 + b"\n",
        "tokens in one line": fill(b"ab "),
        "15 MB of tokens in one line": fill(b"ab ", 15 * MEGABYTE) + b"\n",
        "15 MB of signs in one line": fill(b"a,", 15 * MEGABYTE) + b"\n",
        "emoji in one line": fill("a😀".encode(), 15 * MEGABYTE) + b"\n",
        "short sentences in one line": fill(b"a! ", 15 * MEGABYTE) + b"\n",
        "empty lines": fill(b"\n"),
        "short lines": fill(b"a\n"),
        "16 MB of short lines": fill(b"ab\n", 16 * MEGABYTE),
        "sentences": fill(sentence),
        "columns": fill(b"ab O\n"),
        "16 MB of columns": fill(b"ab O\n", 16 * MEGABYTE),
        "16 MB of sentences in columns": fill(b"ab O\n\n", 16 * MEGABYTE),
        "many columns": fill(b"a\t", 15 * MEGABYTE) + b"\n",
        "CoNLL-U": fill("".join(_ROW.format(k, f"w{k}") for k in range(1, 20)).encode() + b"\n", 16 * MEGABYTE),
        "a long CoNLL-U sentence": "".join(_ROW.format(k, "w") for k in range(1, 500_000)).encode()[: 16 * MEGABYTE],
        "TSV": b"label\ttext\n" + fill(b"good\tthe river is fine\n", 16 * MEGABYTE),
        "short TSV": b"label\ttext\n" + fill(b"a\tb\n", 16 * MEGABYTE),
        "JSON objects": b"[" + fill(b"{},", 16 * MEGABYTE) + b"{}]",
        "JSON lists": b'{"data": [' + fill(b"[],", 16 * MEGABYTE) + b"[]]}",
        "JSON brackets": b"[" * 16 * MEGABYTE,
        "JSON with an emoji": '{"data": ["😀'.encode() + b"a" * 16 * MEGABYTE + b'"]}',
        "JSON lines": fill(b'{"id": "a", "tokens": ["a"], "senses": []}\n', 16 * MEGABYTE),
        "vectors": fill(b"a 0.5 1.0 0.25\n", 16 * MEGABYTE),
        "a vector of numbers": b"a " + fill(b"1 ", 15 * MEGABYTE) + b"\n",
        "TOML": b"a = [" + fill(b"[],", 900_000) + b"]\n",
        "word pairs": fill(b"bank\tN\t0-0\tbank a\tbank b\n", 16 * MEGABYTE),
    }


def inputs() -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the suffix and the bytes of every input for a command that reads text."""
    seen: set[bytes] = set()
    for name, text in texts().items():
        if text[:MEGABYTE] not in seen:
            seen.add(text[:MEGABYTE])
            yield name, "", text[:MEGABYTE]
        data = gzip.compress(text, 6)
        if len(data) <= MEGABYTE:
            yield name, ".gz", data
    rng = random.Random(3)
    words = [f"{rng.getrandbits(30):x}" for _ in range(120_000)]
    rows = (f"{word} O\n" + "\n" * (k % 9 == 0) for k, word in enumerate(words))
    yield "distinct words", "", " ".join(words).encode()[:MEGABYTE]
    yield "distinct lines", "", "\n".join(words).encode()[:MEGABYTE]
    yield "distinct rows", "", "".join(rows).encode()[:MEGABYTE]
    yield "zeros", "", bytes(MEGABYTE)
    yield "noise", "", rng.randbytes(MEGABYTE)


def archives() -> Iterator[tuple[str, str, bytes]]:
    """Yield inputs of commands that read a model: archives and single files."""

    def build_zip(names: list[str], data: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in names:
                archive.writestr(name, data)
        return out.getvalue()

    def build_tar(names: list[str], data: bytes, mode: str) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    large = 300 * MEGABYTE
    members = ["config.json", "model.safetensors", "vocab.txt", "SHA256SUMS"]
    yield "a bomb", ".zip", build_zip(["options.json", "weights.hdf5"], bytes(large))
    yield "many small bombs", ".zip", build_zip([f"{k}.json" for k in range(60)], bytes(15 * MEGABYTE))
    yield "vocabulary", ".zip", build_zip(members, b"a\n" * (8 * MEGABYTE))
    yield "lists", ".zip", build_zip(members, b"[" + b"[]," * 340_000 + b"[]]")
    yield "many members", ".zip", build_zip([f"{k}.json" for k in range(6000)], b"")
    yield "a bomb", ".tar.gz", build_tar(["options.json", "weights.hdf5"], bytes(large), "w:gz")
    yield "many members", ".tar.gz", build_tar([f"{k}.json" for k in range(20_000)], b"", "w:gz")
    yield "vocabulary", ".tar", build_tar(members, b"a\n" * 100_000, "w")
    header = json.dumps(
        {f"t{k}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for k in range(14_000)}
    ).encode()
    huge = json.dumps({"t": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    nested = b'{"a":' * 150_000
    for name, head in (("many tensors", header), ("a huge tensor", huge), ("nested", nested)):
        yield name, ".safetensors", len(head).to_bytes(8, "little") + head
    yield "a long header", ".safetensors", (1 << 40).to_bytes(8, "little") + b"{" * 900_000
    yield "pickle", ".pkl", b"\x80\x04" + b"]" * 900_000 + b"."
    yield "pickled lists", ".pkl", b"\x80\x04(" + b"K\x01" * 450_000 + b"l."
    yield "h5", ".hdf5", _huge_hdf5()


def _huge_hdf5() -> bytes:
    """An HDF5 file whose compressed dataset would have 4 GB."""
    import h5py

    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        data = file.create_dataset("CNN_proj/W_proj", (1 << 15, 1 << 15), "f4", chunks=(1024, 1024), compression=9)
        data[:1024, :1024] = 0
    return out.getvalue()[:MEGABYTE]


TEXT_COMMANDS = (
    "embed X --out out.h5",
    "embed X --split --out out.npz",
    "embed X --format conllu --out out.jsonl",
    "embed X --format tokens",
    "warm model X --out new",
    "sharpen model X --out new",
    "align model model --dictionary X --corpus corpus.txt corpus.txt --out new",
    "align model model --pairs identical --corpus X X --out new",
    "train X --out new --preset tiny --epochs 1 --samples 0",
    "train X --format conllu --out new --preset tiny --epochs 1 --samples 0",
    "train corpus.txt --vocabulary X --out new --preset tiny --epochs 1 --samples 0",
    "perplexity model X",
    "index X --out new",
    "index corpus.txt --words X --out new",
    "senses bank X",
    "change corpus.txt X --words bank",
    "change --uses .",
    "wsd --train X --out new.safetensors",
    "wsd --evaluate X --senses X",
    "probe X X --column upos",
    "similarity X",
    "score X --out out.tsv",
    "score X --tokens --out out.jsonl",
    "task train tagging X --out t.safetensors",
    "task train classification X --out t.safetensors",
    "task train answers X --out t.safetensors",
    "task train roles X --out t.safetensors",
    "task train coreference X --out t.safetensors",
    "task train entailment X --out t.safetensors",
    "task train translation X X --out t.safetensors",
    "task train tagging train.conll --vectors X --out t.safetensors",
    "evidence X --out new",
    "curves X",
)
MODEL_COMMANDS = (
    "info X", "convert X new", "embed corpus.txt --model X", "task evaluate X corpus.txt",
    "wsd 'the [[bank]] of' --senses X",
    "neighbors X 'the [[bank]] of'", "align X X --matrix X --out new", "align model model --matrix X --out new",
)  # fmt: skip


@dataclass(frozen=True)
class Peak:
    """What a case did: its exit code, the signal that ended it, its memory, and the last line of stderr."""

    command: str
    name: str
    code: int
    n_bytes: int
    seconds: float
    message: str


def measure(
    command: str, name: str, data: bytes, suffix: str, folder: Path, *, model: str = "model", seconds: float = SECONDS
) -> Peak:
    """Run a command in a fork of this process, in a copy of ``folder``, with the input as its file ``X``."""
    here = Path(tempfile.mkdtemp(prefix="bomb-"))
    try:
        shutil.copytree(folder, here, dirs_exist_ok=True)
        path = here / f"{'uses.csv' if '--uses' in command else 'input'}{suffix}"
        path.write_bytes(data)
        arguments = [str(path) if part == "X" else part for part in shlex.split(command)]
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            _run_child(arguments, here, model)
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < begin + seconds:
            time.sleep(0.01)
        if not ended[0]:
            _end_group(child)
            ended = os.waitpid(child, 0)
        _end_group(child)  # its workers
        code = os.waitstatus_to_exitcode(ended[1])
        report = here / "peak"
        peak = int(report.read_text() or 0) if report.is_file() else 0
        lines = (here / "stderr").read_text(errors="replace").splitlines() or [""]
        return Peak(command, f"{name}{suffix}", code, peak, time.monotonic() - begin, lines[-1][:200])
    finally:
        shutil.rmtree(here, ignore_errors=True)


def _end_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _run_child(arguments: list[str], here: Path, model: str) -> None:
    import threading

    code = 99
    try:
        os.setpgid(0, 0)
        os.chdir(here)
        os.environ.update(ELMO_MODEL=model, ELMO_CACHE=str(here / "cache"), HF_HUB_OFFLINE="1", WNSEARCHDIR=str(here))
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        before = _memory()

        def watch() -> None:
            highest = 0
            while True:
                now = _memory() - before
                if now > highest:
                    highest = now
                    Path(here / "peak").write_text(str(highest))
                time.sleep(0.01)

        threading.Thread(target=watch, daemon=True).start()
        from elmo.cli import main

        code = main(arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 98
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 97
    finally:
        Path(here / "peak").write_text(str(max(_memory() - before, int(Path(here / "peak").read_text() or 0))))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _memory() -> int:
    """Anonymous memory of this process; files that are mapped or cached do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def import_everything() -> None:
    """Import what the commands import, so that only their own memory is measured."""
    import importlib
    import pkgutil

    import elmo

    for module in pkgutil.walk_packages(elmo.__path__, "elmo."):
        if not module.name.startswith(("elmo.serve", "elmo.integrations", "elmo.__main__")):
            importlib.import_module(module.name)
    for name in (
        "h5py",
        "safetensors.torch",
        "sklearn",
        "scipy.sparse",
        "pyarrow",
        "matplotlib.pyplot",
        "huggingface_hub",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def write_folder(folder: Path) -> Path:
    """Write the files that the commands need besides the hostile one."""
    from elmo.formats import native
    from tests.cli.conftest import TEXT
    from tests.cli.task_files import write_files
    from tests.formats.tiny import tiny_model

    native.write(tiny_model(softmax=True), folder / "model")
    (folder / "corpus.txt").write_text(TEXT * 5, encoding="utf-8")
    write_files(folder)
    return folder


def main() -> None:
    """Run all cases and print those with the largest peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="model")
    parser.add_argument("--commands", default="", help="only commands that start with this text")
    parser.add_argument("--inputs", default="", help="only inputs whose name has this text")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time after which a case is ended")
    options = parser.parse_args()
    import_everything()
    peaks: list[Peak] = []
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name))
        cases = [(TEXT_COMMANDS, list(inputs())), (MODEL_COMMANDS, list(archives()))]
        for commands, data in cases:
            for command in commands:
                if not command.startswith(options.commands):
                    continue
                for kind, suffix, content in data:
                    if options.inputs in kind + suffix:
                        peaks.append(
                            measure(
                                command, kind, content, suffix, folder, model=options.model, seconds=options.seconds
                            )
                        )
                        peak = peaks[-1]
                        if peak.n_bytes > LIMIT or peak.code not in (0, 1, -signal.SIGKILL):
                            print(f"FAIL {peak}", flush=True)
                worst = max((p for p in peaks if p.command == command), key=lambda p: p.n_bytes, default=None)
                if worst:
                    size, about = worst.n_bytes / MEGABYTE, f"[{worst.name}] {worst.code} {worst.message[:90]}"
                    print(f"{size:6.0f} MB {worst.seconds:5.1f} s  {command}  {about}", flush=True)
    print(f"{len(peaks)} cases, largest peak {max(p.n_bytes for p in peaks) / MEGABYTE:.0f} MB")


if __name__ == "__main__":
    main()
