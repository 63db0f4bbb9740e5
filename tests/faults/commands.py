"""The commands that write files, as data: arguments, inputs, and what a reader may find after a fault.

All commands run in a folder with their inputs, use a tiny model, and write below ``out``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmo.cli import main as shell
from elmo.errors import ElmoError
from elmo.formats import native
from elmo.train import CorpusOptions, build_corpus
from elmo.train.checkpoint import Checkpoints
from tests.cli.task_files import FAST, write_files
from tests.evidence.example_plan import write_plan
from tests.formats.tiny import tiny_model
from tests.lexicon.test_sharpen import text as sharpen_text
from tests.lexicon.test_word_pairs import DATA, GOLD
from tests.lexicon.test_wordnet import write_wordnet
from tests.lexicon.test_wsd import write_corpus, write_evaluation
from tests.train.logs import write_log

Write = Callable[[Path], None]
LINES = ["The river bank .", "", "A/b c", "The river bank .", "café 河岸 \x00 x", "one two three four five six"]
PROSE = "I sat by the bank of the river .\nThe bank lent me money .\nIt was kind .\n河岸 café 😀\n"

# resumes: the same command continues, and ends with the same bytes.
# creates: a new folder appears at once, when it is complete.
# replaces: a file is either the old one or the new one.
Kind = Literal["resumes", "creates", "replaces"]


@dataclass(frozen=True)
class Command:
    """A command that writes files."""

    name: str
    line: str  # arguments of ``elmo``; outputs are below ``out``
    kind: Kind
    files: tuple[Write, ...] = ()  # write the inputs into a folder
    before: Write | None = None  # write what the output folder contains at the start
    grows: tuple[str, ...] = ()  # patterns of files below ``out`` that grow while the command runs
    varies: tuple[str, ...] = ("cache/*",)  # patterns of files whose bytes or names vary: process ids, times
    check: Callable[[Path], list[str]] = lambda out: []  # return the problems of the output folder after a kill
    change: str | None = None  # input file that a user might change between two runs
    action: Callable[[], int] | None = None  # instead of ``elmo``: a function that ends like a command
    prepare: Callable[[], None] = lambda: None  # runs in the process of the command, before it
    quick: Literal["all", "kills"] | None = None  # faults of the short run: all of them, or only kills and full disks
    needs: tuple[str, ...] = ()  # libraries without which the command does not work

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``elmo``."""
        return [*shlex.split(self.line), "--quiet"]

    @property
    def outputs(self) -> list[str]:
        """The paths below ``out`` that the command is asked to write."""
        return [argument[4:] for argument in self.arguments if argument.startswith("out/")]

    def run(self) -> int:
        """Run the command in this process, in the current folder."""
        self.prepare()
        os.environ.update(ELMO_MODEL="model", ELMO_CACHE="out/cache", WNSEARCHDIR="dict")
        sys.argv = ["elmo", *self.arguments]  # without arguments, ``shell`` also sets up its process
        return shell() if self.action is None else self.action()


# --- inputs ---------------------------------------------------------------------------------------------


def model(folder: Path) -> None:
    """Write a tiny model."""
    native.write(tiny_model(softmax=True), folder / "model")


def lines(folder: Path) -> None:
    """Write a few sentences, with empty lines and unusual characters."""
    (folder / "lines.txt").write_text("\n".join(LINES * 4) + "\n", encoding="utf-8")


def unusable(folder: Path) -> None:
    """Write sentences, two of which have a token that is too long."""
    long = "x" * 70_000
    texts = [*LINES, f"a {long}", *LINES, "one two", f"{long} b", *LINES]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")


def rows(folder: Path) -> None:
    """Write a table with a column of text."""
    texts = ["number,text", *(f'{k},"the river bank {k} ."' for k in range(12))]
    (folder / "rows.csv").write_text("\n".join(texts) + "\n")


def prose(folder: Path) -> None:
    """Write two small texts."""
    for name in ("corpus.txt", "more.txt"):
        (folder / name).write_text(PROSE * 3, encoding="utf-8")


def words(folder: Path) -> None:
    """Write random words, from which a model learns so fast that the best checkpoint is not one of the last."""
    chance, vocabulary = random.Random(0), [f"w{k}" for k in range(40)]
    sentences = (" ".join(chance.choices(vocabulary, k=chance.randint(2, 9))) for _ in range(120))
    (folder / "text.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))


def articles(folder: Path) -> None:
    """Write running text, long enough for ``elmo sharpen``."""
    (folder / "articles.txt").write_text("".join(f"{' '.join(s.tokens)}\n" for s in sharpen_text(n_texts=12)))


def tagged(folder: Path) -> None:
    """Write labeled data of the tasks."""
    write_files(folder)


def senses(folder: Path) -> None:
    """Write a WordNet, and corpora with senses."""
    write_corpus(folder / "semcor.jsonl")
    write_evaluation(folder)
    write_wordnet(folder / "dict")


def varied_prose(folder: Path) -> None:
    """Write different sentences, in which some words occur so often that they have statistics."""
    sentences = (f"the bank of the river number {k} is old .\n" for k in range(14))
    (folder / "corpus.txt").write_text("".join(sentences))


def word_pairs(folder: Path) -> None:
    """Write a dictionary in which every word is its own translation; it is also the corpus."""
    (folder / "pairs.txt").write_text("".join(f"word{k} word{k}\n" for k in range(40)))


def pairs(folder: Path) -> None:
    """Write pairs of sentences with a word."""
    (folder / "pairs.data.txt").write_text(DATA, encoding="utf-8")
    (folder / "pairs.gold.txt").write_text(GOLD)


def treebank(folder: Path) -> None:
    """Write columns of words and tags."""
    rows = "banks\tNOUN\nlend\tVERB\none\tNUM\nriver\tNOUN\n\n"
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text(rows * 6)


def plan(folder: Path) -> None:
    """Write a plan of experiments and its data."""
    write_plan(folder)


def log(folder: Path) -> None:
    """Write the log of a training run."""
    write_log(folder / "first.training")


def runtime(folder: Path) -> None:
    """Write a package with the names of onnxruntime-web."""
    dist = folder / "runtime" / "dist"
    dist.mkdir(parents=True)
    (folder / "runtime" / "package.json").write_text(json.dumps({"version": "1.30.0"}))
    (dist / "ort.wasm.bundle.min.mjs").write_text("export {};\n")
    (dist / "ort-wasm-simd-threaded.wasm").write_bytes(b"\0asm" * 50)


def made_by(line: str) -> Write:
    """Return a function that writes an input with another command, in a child process."""

    def write(folder: Path) -> None:
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(Command("", line, "creates").run())
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"elmo {line}: ended with {os.waitstatus_to_exitcode(status)}")

    return write


def copied_model(folder: Path) -> None:
    """Write a model into the output folder."""
    native.write(tiny_model(softmax=True), folder / "model")


def other_corpus(folder: Path) -> None:
    """Write a corpus of the same text with another option into the output folder."""
    build_corpus(folder.parent / "inputs" / "text.txt", folder / "corpus", CorpusOptions(heldout=7))


def build_deduplicated() -> int:
    """Build a corpus with two processes; end like a command."""
    try:
        build_corpus(Path("text.txt"), Path("out/corpus"), CorpusOptions(deduplicate=True, processes=2))
    except KeyboardInterrupt:
        print("elmo: interrupted", file=sys.stderr)
        return 130
    except ElmoError as error:
        print(f"elmo: {error}", file=sys.stderr)
        return 1
    return 0


def downloads(folder: Path) -> None:
    """Write what a server offers, and a folder of downloads with a model."""
    for name, content in PUBLISHED.items():
        (folder / "offered" / "allenai" / "small" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "offered" / "allenai" / "small" / name).write_bytes(content)


def downloaded(folder: Path) -> None:
    """Write a model into the folder of downloads, and a file that is kept."""
    from elmo.catalog.cache import FileRecord, ModelCache, write_record
    from elmo.catalog.models import get_model

    os.environ["ELMO_DOWNLOADS"] = str(folder / "downloads")
    cache = ModelCache(get_model("allenai/small"))
    cache.folder.mkdir(parents=True)
    for name, content in PUBLISHED.items():
        (cache.folder / name).write_bytes(content)
    (folder / "kept.txt").write_text("kept\n")
    records = {n: FileRecord(len(c), hashlib.sha256(c).hexdigest()) for n, c in PUBLISHED.items()}
    write_record(cache.record, cache.model, records)


def unfinished_download(folder: Path) -> None:
    """Write an unfinished download into the folder of downloads, and a file that is kept."""
    from elmo.catalog.cache import ModelCache
    from elmo.catalog.models import get_model

    os.environ["ELMO_DOWNLOADS"] = str(folder / "downloads")
    unfinished = ModelCache(get_model("allenai/small")).unfinished
    unfinished.mkdir(parents=True)
    (folder / "kept.txt").write_text("kept\n")
    for name, content in PUBLISHED.items():
        (unfinished / name).write_bytes(content[:40])


# --- what is different in the process of a command ------------------------------------------------------


def without_matplotlib() -> None:
    """Draw no curves: they take longer than everything else."""
    sys.modules["matplotlib"] = None  # pyright: ignore[reportArgumentType]


def small_shards() -> None:
    """Write an index in several shards."""
    from elmo.jobs import plan

    plan.SHARD_BYTES = 160


def keep_objects_in_folder() -> None:
    """Keep the objects of ``memory://`` below the output folder, and repeat requests at once."""
    from elmo.storage import remote
    from tests.faults.folder_store import use_folder_store

    remote.RETRY_SECONDS = 0.0
    use_folder_store(Path("out"))


def use_downloads() -> None:
    """Keep downloads in the output folder."""
    from elmo.catalog import models

    models._read_table.cache_clear()  # read the table again, as a new process does
    os.environ.update(ELMO_DOWNLOADS="out/downloads")


def serve_models() -> None:
    """Serve the files of a published model from a thread of this process, and keep downloads in the output folder."""
    from tests.catalog.file_server import start_server

    use_downloads()
    root = Path("offered")
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    os.environ["ELMO_MIRROR"] = start_server(files).address


def load_downloads(out: Path) -> list[str]:
    """Return the problems of downloaded files: each must have its name only if it is complete."""
    folder = out / "downloads" / "allenai" / "small"
    names = [path.name for path in folder.glob("*")]
    return [f"{name} is incomplete" for name in names if (folder / name).read_bytes() != PUBLISHED.get(name)]


def few_steps() -> None:
    """Train probes with few steps."""
    from elmo.lexicon import probe

    probe.MIN_STEPS = 10


def load_checkpoints(out: Path) -> list[str]:
    """Return the problems of the checkpoints of a training run; all of them must load at any time."""
    problems, checkpoints = [], Checkpoints(out / "model.training" / "checkpoints")
    for step in checkpoints.steps():
        try:
            checkpoints.load(step)
        except ElmoError as error:
            problems.append(f"checkpoint {step} does not load: {error}")
    return problems


def load_model(out: Path) -> list[str]:
    """Return the problems of a model that is changed in place; it must load at any time."""
    try:
        native.read(out / "model", is_mapped=False)
    except ElmoError as error:
        return [f"the model does not load: {error}"]
    return []


# --- the table ------------------------------------------------------------------------------------------

PUBLISHED = {
    "elmo_2x1024_128_2048cnn_1xhighway_options.json": b'{"lstm": {}}',
    "elmo_2x1024_128_2048cnn_1xhighway_weights.hdf5": b"\x89HDF\r\n\x1a\n" + random.Random(0).randbytes(9000),
}
TRAIN = (
    "train text.txt --out out/model --preset tiny --cells 12 --width 8 --format tokens --samples 20 --batch-size 8"
    " --window 10 --epochs 1.6 --evaluate-every 3 --checkpoint-every 2 --learning-rate 0.6 --seed 2"
)
EMBED = "embed lines.txt --layers all --shard-tokens 15 --batch-size 2 --tokenizer whitespace --out out/v"
TRANSLATE = (
    f"task train translation train.en train.de --dev train.en --dev train.de --set head.n_units=60 {' '.join(FAST[1:])}"
)
TASK = f"task train tagging train.conll --dev dev.conll {' '.join(FAST[1:])}"


def _embed(suffix: str, *, more: str = "", needs: tuple[str, ...] = (), quick: Literal["all"] | None = None) -> Command:
    return Command(
        f"embed {suffix}{more.replace(' --', ', ')}",
        EMBED + suffix + more,
        "resumes",
        (model, lines),
        change="lines.txt",
        grows=("*.manifest.json", "*.parts/*"),
        needs=needs,
        quick=quick,
    )


COMMANDS: tuple[Command, ...] = (
    Command("train", TRAIN, "resumes", (words,), change="text.txt", prepare=without_matplotlib,
            grows=("model.training/*",), check=load_checkpoints, quick="kills"),
    Command("corpus of train", "train text.txt --out out/corpus", "resumes", (words,), before=other_corpus,
            change="text.txt", action=build_deduplicated),
    _embed(".hdf5"),
    _embed(".jsonl"),
    _embed(".npz", quick="all"),
    _embed(".parquet", needs=("pyarrow",)),
    _embed(".safetensors"),
    _embed(".safetensors", more=" --workers 2"),
    Command("embed --set-aside", f"{EMBED}.npz --set-aside out/aside.jsonl", "resumes", (model, unusable),
            change="lines.txt", grows=("*.manifest.json", "*.parts/*", "v-*.npz")),
    Command("embed --column", "embed rows.csv --column text --tokenizer whitespace --shard-tokens 15"
            " --out out/rows.parquet", "resumes", (model, rows), change="rows.csv",
            grows=("*.manifest.json", "*.parts/*"), needs=("pyarrow",)),
    Command("embed to an object store", EMBED.replace("out/v", "memory://bucket/v.npz"), "resumes", (model, lines),
            change="lines.txt", grows=("*.manifest.json", "*.parts/*"), prepare=keep_objects_in_folder,
            needs=("upath",)),
    Command("index", "index corpus.txt --out out/usages", "resumes", (model, prose), change="corpus.txt",
            grows=("usages/*",), prepare=small_shards, quick="all"),
    Command("index --approximate", "index corpus.txt --out out/usages --approximate", "resumes", (model, prose),
            change="corpus.txt", grows=("usages/*",), prepare=small_shards, needs=("usearch",)),
    Command("index --to lance", "index corpus.txt --out out/usages --to lance", "resumes", (model, prose),
            change="corpus.txt", grows=("usages/*",), varies=("usages/*lance*",), prepare=small_shards,
            needs=("lance",)),
    Command("download", "download allenai/small", "resumes", (downloads,), prepare=serve_models, check=load_downloads,
            grows=("downloads/allenai/small.json",), quick="kills"),
    Command("cache --remove", "cache --remove allenai/small", "resumes", (), before=downloaded, prepare=use_downloads,
            grows=("downloads/allenai/small/*",)),
    Command("cache --forget", "cache --forget allenai/small", "resumes", (), before=downloaded,
            prepare=use_downloads, grows=("downloads/allenai/small/*",)),
    Command("cache --clean", "cache --clean", "resumes", (), before=unfinished_download, prepare=use_downloads),
    Command("convert --dtype", "convert model out/half --dtype float16", "creates", (model,), quick="all"),
    Command("convert --to hdf5", "convert model out/hdf5 --to hdf5", "creates", (model,)),
    Command("convert --to onnx", "convert model out/web --to onnx", "creates", (model,), needs=("onnx",)),
    Command("warm", "warm out/model corpus.txt", "replaces", (prose,), before=copied_model, check=load_model,
            quick="all"),
    Command("warm --out", "warm model corpus.txt --out out/warm", "creates", (model, prose), change="corpus.txt"),
    Command("calibrate", "calibrate out/model corpus.txt", "replaces", (varied_prose,), before=copied_model,
            check=load_model),
    Command("calibrate --out", "calibrate model corpus.txt --out out/calibrated", "creates", (model, varied_prose),
            change="corpus.txt"),
    Command("sharpen", "sharpen model articles.txt --out out/sharp", "creates", (model, articles)),
    Command("align", "align model model --dictionary pairs.txt --corpus pairs.txt pairs.txt --out out/aligned",
            "creates", (model, word_pairs)),
    Command("task train", f"{TASK} --out out/ner.safetensors", "resumes", (model, tagged), change="train.conll",
            grows=("ner.safetensors.training/*",), quick="kills"),
    Command("task train --adapt", f"{TASK} --adapt 1 --out out/ner.safetensors", "resumes", (model, tagged),
            change="train.conll", grows=("ner.safetensors.training/*",)),
    Command("task train --picture", f"{TASK} --out out/ner.safetensors --picture out/ner.png", "resumes",
            (model, tagged), change="train.conll", grows=("ner.safetensors.training/*",), needs=("matplotlib",)),
    Command("task evaluate --out", "task evaluate ner.safetensors dev.conll --out out/dev.conll", "replaces",
            (model, tagged, made_by(f"{TASK} --out ner.safetensors")), change="dev.conll"),
    Command("task predict --out", "task predict ner.safetensors corpus.txt --out out/tagged.conll", "replaces",
            (model, tagged, prose, made_by(f"{TASK} --out ner.safetensors")), change="corpus.txt"),
    Command("task train translation", f"{TRANSLATE} --out out/de.safetensors", "resumes", (model, tagged),
            change="train.en", grows=("de.safetensors.training/*",), needs=("sacrebleu",)),
    Command("task predict --picture", "task predict de.safetensors train.en --out out/de.txt --picture out/a.png",
            "replaces", (model, tagged, made_by(f"{TRANSLATE} --out de.safetensors")), change="train.en",
            needs=("sacrebleu",)),
    Command("evidence", "evidence plan.toml --out out/evidence --tasks ner --seeds 1 --tables 1", "resumes",
            (model, plan), change="ner/train.conll", grows=("evidence/*",),
            varies=("evidence/layers/*", "evidence/runs/*")),
    Command("wsd --train", "wsd --train semcor.jsonl --out out/s.safetensors", "replaces", (model, senses),
            change="semcor.jsonl"),
    Command("wsd --evaluate --out",
            "wsd --evaluate dev.xml --gold dev.txt --senses s.safetensors --out out/keys.txt", "replaces",
            (model, senses, made_by("wsd --train semcor.jsonl --out s.safetensors"))),
    Command("wsd --picture", "wsd 'a [[bank]]' --senses s.safetensors --picture out/s.png", "replaces",
            (model, senses, made_by("wsd --train semcor.jsonl --out s.safetensors")), needs=("matplotlib",)),
    Command("perplexity --out", "perplexity model corpus.txt --out out/scores.tsv", "replaces", (model, prose),
            change="corpus.txt"),
    Command("score --out", "score corpus.txt --out out/scores.jsonl", "replaces", (model, prose), change="corpus.txt",
            quick="all"),
    Command("score --picture", "score --text 'the river bank' --picture out/score.png", "replaces", (model,),
            needs=("matplotlib",)),
    Command("substitutes --out, --picture", "substitutes 'a [[bank]]' --out out/s.json --picture out/s.png",
            "replaces", (model,), needs=("matplotlib",)),
    Command("explain --out, --picture", "explain 'a river [[bank]]' --out out/e.tsv --picture out/e.png", "replaces",
            (model,), needs=("matplotlib",)),
    Command("neighbors --out, --picture", "neighbors usages 'a [[bank]]' --out out/n.tsv --picture out/n.png",
            "replaces", (model, prose, made_by("index corpus.txt --out usages")), needs=("matplotlib",)),
    Command("senses --out, --picture", "senses bank corpus.txt --out out/bank.tsv --picture out/bank.png", "replaces",
            (model, prose), change="corpus.txt", needs=("matplotlib", "sklearn")),
    Command("change --out, --picture",
            "change corpus.txt more.txt --min-count 1 --skip 0 --out out/c.tsv --picture out/c.svg", "replaces",
            (model, prose), change="more.txt", needs=("matplotlib", "sklearn")),
    Command("probe --out, --picture", "probe train.tsv dev.tsv --column 2 --out out/p.tsv --picture out/p.png",
            "replaces", (model, treebank), change="train.tsv", prepare=few_steps, needs=("matplotlib", "sklearn")),
    Command("similarity --out, --picture", "similarity pairs.data.txt --out out/pairs.tsv --picture out/pairs.png",
            "replaces", (model, pairs), change="pairs.data.txt", needs=("matplotlib",)),
    Command("compare --picture", "compare bank 'a bank' 'the bank' --picture out/bank.svg", "replaces", (model,),
            needs=("matplotlib",)),
    Command("demo --picture", "demo --model model --picture out/words.png", "replaces", (model,),
            needs=("matplotlib",)),
    Command("curves", "curves first.training --out out/curves.png", "replaces", (log,), needs=("matplotlib",)),
    Command("explore --export", "explore model --export out/site --onnxruntime runtime", "creates", (model, runtime),
            needs=("onnx",)),
)  # fmt: skip


def write_inputs(command: Command, folder: Path) -> None:
    """Write the inputs of a command."""
    folder.mkdir(parents=True)
    for write in command.files:
        write(folder)


def write_start(command: Command, folder: Path) -> None:
    """Write what the output folder contains at the start; an old file in the place of each output that is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if command.before is not None:
        command.before(folder)
    elif command.kind == "replaces":
        for name in command.outputs:
            (folder / name).write_bytes(b"old\n")
