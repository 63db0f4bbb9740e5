"""Train spaCy's named entity recognizer on GloVe vectors and on ELMo vectors, with the same trainer and steps.

    python benchmarks/spacy_ner.py $DATA/ner-wnut17/train.conll.xz $DATA/ner-wnut17/dev.conll.xz glove.6B.50d.txt

The systems differ only in the layer that computes the vectors of the tokens:

- ``glove``: spaCy's default, ``spacy.MultiHashEmbed.v2`` with static vectors, and ``spacy.MaxoutWindowEncoder.v2``;
- ``elmo``: ``elmo.Tok2Vec.v1``, frozen, in the place of the embedding;
- ``elmo-only``: ``elmo.Tok2Vec.v1``, frozen, without an encoder.

The network, the batches, the optimizer and the number of steps are the same. The score is the best F1 on the dev set
among the evaluations every 250 steps. Results are appended to a file of JSON lines; runs that it contains are skipped,
so that the benchmark can be run in pieces.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.iob_utils import biluo_to_iob, iob_to_biluo
from spacy.training.loop import train
from spacy.vocab import Vocab
from thinc.api import Config

from elmo.tasks.data.tagging import read_tagged

EVERY = 250  # steps between evaluations
ENCODER = """
[components.tok2vec.model.encode]
@architectures = "spacy.MaxoutWindowEncoder.v2"
width = 96
depth = 4
window_size = 1
maxout_pieces = 3
"""
TOK2VEC = {
    "glove": """
[components.tok2vec.model]
@architectures = "spacy.Tok2Vec.v2"

[components.tok2vec.model.embed]
@architectures = "spacy.MultiHashEmbed.v2"
width = 96
attrs = ["NORM", "PREFIX", "SUFFIX", "SHAPE"]
rows = [5000, 1000, 2500, 2500]
include_static_vectors = true
"""
    + ENCODER,
    "elmo": """
[components.tok2vec.model]
@architectures = "spacy.Tok2Vec.v2"

[components.tok2vec.model.embed]
@architectures = "elmo.Tok2Vec.v1"
model = "en"
layers = "mix"
tune = false
width = 96
"""
    + ENCODER,
    "elmo-only": """
[components.tok2vec.model]
@architectures = "elmo.Tok2Vec.v1"
model = "en"
layers = "mix"
tune = false
dropout = 0.3
""",
}
CONFIG = """
[nlp]
lang = "en"
pipeline = ["tok2vec", "ner"]

[components]

[components.tok2vec]
factory = "tok2vec"
{tok2vec}
[components.ner]
factory = "ner"

[components.ner.model]
@architectures = "spacy.TransitionBasedParser.v2"
state_type = "ner"
extra_state_tokens = false
hidden_width = 64
maxout_pieces = 2
use_upper = true

[components.ner.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = {width}

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"
path = {train}

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = {dev}

[training]
train_corpus = "corpora.train"
dev_corpus = "corpora.dev"
seed = {seed}
dropout = 0.1
max_steps = {steps}
patience = 0
eval_frequency = {every}

[training.optimizer]
@optimizers = "Adam.v1"

[training.batcher]
@batchers = "spacy.batch_by_words.v1"
discard_oversize = false
tolerance = 0.2

[training.batcher.size]
@schedules = "compounding.v1"
start = 100
stop = 1000
compound = 1.001

[training.logger]
@loggers = "elmo.Silent.v1"

[initialize]
vectors = {vectors}
"""


@spacy.registry.loggers("elmo.Silent.v1")
def silent_logger() -> Any:
    """Build a logger that keeps the scores and prints nothing."""

    def setup(nlp: Any, stdout: Any = None, stderr: Any = None) -> tuple[Any, Any]:
        del nlp, stdout, stderr
        return log_step, lambda: None

    return setup


SCORES: list[float] = []


def log_step(info: dict[str, Any] | None) -> None:
    """Keep the F1 of an evaluation."""
    if info is not None:
        SCORES.append(100 * info["other_scores"]["ents_f"])


def write_docs(conll: Path, out: Path) -> None:
    """Convert CoNLL columns to spaCy's binary format, with the tokens as they are."""
    vocab, docs = Vocab(), []
    for sentence in read_tagged([conll]):
        tags = biluo_to_iob(iob_to_biluo(list(sentence.tags)))
        docs.append(Doc(vocab, words=list(sentence.words), ents=tags))
    DocBin(docs=docs).to_disk(out)


def write_vectors(glove: Path, out: Path) -> None:
    """Convert GloVe's text to a folder of spaCy with vectors for lower-case words."""
    nlp = spacy.blank("en")
    words, rows = [], []
    with glove.open(encoding="utf-8") as file:
        for line in file:
            word, *values = line.rstrip().split(" ")
            words.append(word)
            rows.append(np.array(values, dtype=np.float32))
    vectors = spacy.vectors.Vectors(data=np.stack(rows), keys=words, strings=nlp.vocab.strings, attr="LOWER")
    nlp.vocab.vectors = vectors
    nlp.to_disk(out)


def run(system: str, seed: int, steps: int, folder: Path) -> list[float]:
    """Train once; return the F1 of each evaluation."""
    quoted = {name: json.dumps(str(folder / name)) for name in ("train.spacy", "dev.spacy", "glove")}
    text = CONFIG.format(
        tok2vec=TOK2VEC[system], width=320 if system == "elmo-only" else 96, seed=seed, steps=steps, every=EVERY,
        train=quoted["train.spacy"], dev=quoted["dev.spacy"],
        vectors=quoted["glove"] if system == "glove" else "null",
    )  # fmt: skip
    nlp = init_nlp(spacy.blank("en").config.merge(Config().from_str(text)))
    SCORES.clear()
    train(nlp, stdout=io.StringIO())
    return list(SCORES)


def main() -> None:
    """Train the missing systems and seeds, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("glove", type=Path, help="glove.6B.50d.txt")
    parser.add_argument("--systems", nargs="+", default=list(TOK2VEC), choices=list(TOK2VEC))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--results", type=Path, default=Path("spacy-ner.jsonl"))
    options = parser.parse_args()
    done: dict[tuple[str, int, int], list[float]] = {}
    if options.results.exists():
        for line in options.results.read_text().splitlines():
            record = json.loads(line)
            done[record["system"], record["seed"], record["steps"]] = record["f1"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in options.seeds:
            for system in options.systems:
                key = system, seed, options.steps
                if key in done:
                    continue
                if not (folder / "train.spacy").exists():
                    write_docs(options.train, folder / "train.spacy")
                    write_docs(options.dev, folder / "dev.spacy")
                if system == "glove" and not (folder / "glove").exists():
                    write_vectors(options.glove, folder / "glove")
                begin = time.monotonic()
                done[key] = run(system, seed, options.steps, folder)
                record = {"system": system, "seed": seed, "steps": options.steps, "f1": done[key]}
                with options.results.open("a") as file:
                    file.write(json.dumps(record | {"seconds": round(time.monotonic() - begin)}) + "\n")
    for system in options.systems:
        best = [max(done[system, seed, options.steps]) for seed in options.seeds]
        spread = f" ± {statistics.stdev(best):.1f}" if len(best) > 1 else ""
        print(f"{system:10} {statistics.mean(best):5.1f}{spread}  {' '.join(f'{f1:.1f}' for f1 in best)}")


if __name__ == "__main__":
    main()
