"""Is our tagger worth its name? The same sentences and static vectors through spaCy's and Flair's trainers.

usage: task_peers.py TRAIN DEV VECTORS [--tags COLUMN] [--seeds N] [--systems NAME …] [--flair PYTHON]
                     [--json FILE]

TRAIN and DEV are tagged sentences (CoNLL, CoNLL-U with --tags upos; .xz is fine), VECTORS a text file of
GloVe's. spaCy (extra ``spacy``) trains the pipeline that ``spacy init config --optimize accuracy`` writes,
with its own schedule and early stopping; its words have these vectors beside its features of prefix, suffix
and shape. Flair trains in PYTHON, an interpreter that has ``flair[word-embeddings]`` (without --flair it is
left out), as its tutorial on sequence taggers says: an LSTM of 256 and a CRF over the vectors, SGD in batches
of 32 from a rate of 0.1, which is halved when more than 3 epochs bring no better DEV, until it is below
0.0001; but for 60 epochs at most, where the tutorial has 150, for the time that takes. "Flair, characters"
has its network of characters, too. Ours stand beside them: the tagger with the vectors alone, with its
characters' network as the counterpart of Flair's and of spaCy's features, and with ELMo (the bundled model).
All are scored by one function, on DEV, by which all chose their best epoch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elmo import Elmo
from elmo.tasks import (
    FitOptions,
    FeatureCache,
    Tagging,
    TaskModel,
    Features,
    FeatureStore,
    read_examples,
    read_static,
)
from elmo.tasks.data.examples import Span, TaggedSentence
from elmo.tasks.data.tagging import Scheme, scheme_of, spans_of, tags_of
from elmo.tasks.scores.labels import span_scores

OURS = {
    "vectors": Features(elmo="none"),
    "vectors, characters": Features(elmo="none", characters=64),
    "vectors, ELMo": Features(elmo="input"),
}
FIT = FitOptions.for_kind("tagging")
FLAIR = {"Flair": False, "Flair, characters": True}  # whether it has its network of characters
FLAIR_EPOCHS = 60
# What PYTHON runs: a task as JSON in on stdin, the marks of DEV's sentences as JSON out in a file. A mark is
# (start, end, label), of a span or of one token.
FLAIR_TRAINER = """
import json, sys
from pathlib import Path
import flair
from flair.data import Corpus, Dictionary, Sentence
from flair.datasets import FlairDatapointDataset
from flair.embeddings import CharacterEmbeddings, StackedEmbeddings, WordEmbeddings
from flair.models import SequenceTagger
from flair.trainers import ModelTrainer

task = json.load(sys.stdin)

def sentences(part):
    for words, marks in task[part]:
        sentence = Sentence(words)
        for start, end, label in marks:
            marked = sentence[start:end] if task["has_spans"] else sentence[start]
            marked.add_label("tag", label)
        yield sentence

def marks(sentence):
    for label in sentence.get_labels("tag"):
        tokens = label.data_point.tokens if task["has_spans"] else [label.data_point]
        yield tokens[0].idx - 1, tokens[-1].idx, label.value  # Flair counts from 1

flair.set_seed(task["seed"])
train, dev = (FlairDatapointDataset(list(sentences(part))) for part in ("train", "dev"))
corpus = Corpus(train=train, dev=dev, sample_missing_splits=False)
embeddings = [WordEmbeddings(task["vectors"])]
if task["characters"]:
    characters = Dictionary()  # Flair's own list of them would be downloaded
    for character in sorted({one for words, _ in task["train"] for word in words for one in word}):
        characters.add_item(character)
    embeddings.append(CharacterEmbeddings(characters))
tagger = SequenceTagger(
    embeddings=StackedEmbeddings(embeddings),
    tag_dictionary=corpus.make_label_dictionary("tag", add_unk=False),
    tag_type="tag",
    hidden_size=256,
    use_crf=True,
)
ModelTrainer(tagger, corpus).train(
    task["place"],
    learning_rate=0.1,
    mini_batch_size=32,
    patience=3,
    anneal_factor=0.5,
    min_learning_rate=0.0001,
    max_epochs=task["epochs"],
    # "cpu", the default, would keep DEV's characters' vectors of the first epoch (Flair 0.15.1)
    embeddings_storage_mode="none" if task["characters"] else "cpu",
)
found = [Sentence(words) for words, _ in task["dev"]]
tagger.predict(found)  # the trainer left it at its best epoch
Path(task["found"]).write_text(json.dumps([list(marks(sentence)) for sentence in found]), encoding="utf-8")
"""


def main() -> None:
    """Print a line for each system."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("train", "dev", "vectors"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tags", help="the column of tags")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=["spaCy", *FLAIR, *OURS], help="all, if not given")
    parser.add_argument("--flair", metavar="PYTHON", help="an interpreter that has Flair")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    options.systems = options.systems or ["spaCy", *(FLAIR if options.flair else ()), *OURS]
    if not options.flair and FLAIR.keys() & set(options.systems):
        parser.error("Flair needs --flair PYTHON")
    parts = [
        read_examples("tagging", [path], options={"tags": options.tags}).examples
        for path in (options.train, options.dev)
    ]
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        trainers = _trainers(*parts, vectors=options.vectors, place=Path(place), flair=options.flair)
        scores: dict[str, list[float]] = {name: [] for name in options.systems}
        for seed in range(1, options.seeds + 1):
            for name in options.systems:
                begin = time.monotonic()
                scores[name].append(100 * score(parts[1], trainers[name](seed)))
                spent = time.monotonic() - begin
                print(f"{name:24}seed {seed}{scores[name][-1]:9.2f}{spent:8.0f} s", flush=True)
    for name, row in scores.items():
        spread = f" ± {statistics.stdev(row):.2f}" if len(row) > 1 else ""
        print(f"{name:24}{statistics.mean(row):9.2f}{spread}")
    if options.json:
        options.json.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


def score(gold: Sequence[TaggedSentence], found: list[list[str]]) -> float:
    """F1 of spans where tags mark spans, else accuracy."""
    tags = [list(example.tags or ()) for example in gold]
    scheme = scheme_of(tags)
    if scheme != "plain":
        spans = ([spans_of(row, scheme) for row in rows] for rows in (tags, found))
        return span_scores(*spans).overall.f1
    pairs = [pair for a, b in zip(tags, found, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _trainers(
    train: list[TaggedSentence], dev: list[TaggedSentence], *, vectors: Path, place: Path, flair: str | None
) -> dict[str, Callable[[int], list[list[str]]]]:
    """By name, a function of the seed that trains a system and tags ``dev``."""
    words = {word for part in (train, dev) for example in part for word in example.words}
    static = read_static(vectors, words=words, max_words=0)
    elmo = Elmo.from_pretrained()

    def ours(choice: Features) -> Callable[[int], list[list[str]]]:
        def trained(seed: int) -> list[list[str]]:
            fit = FitOptions(**{**vars(FIT), "seed": seed})
            sources = FeatureStore(choice, elmo, static, cache=FeatureCache(place / "layers"))
            model = TaskModel.train(Tagging.from_examples(train), train, dev, store=sources, options=fit)
            return [list(found.tags) for found in model.predict(dev)]

        return trained

    found: dict[str, Callable[[int], list[list[str]]]] = {name: ours(choice) for name, choice in OURS.items()}
    found["spaCy"] = lambda seed: spacy_trained(seed, train, dev, vectors=vectors, place=place)
    if flair:
        for name, characters in FLAIR.items():
            found[name] = lambda seed, characters=characters: flair_trained(
                seed, train, dev, vectors=vectors, place=place, python=flair, characters=characters
            )
    return found


def spacy_trained(
    seed: int, train: list[TaggedSentence], dev: list[TaggedSentence], *, vectors: Path, place: Path
) -> list[list[str]]:
    """The tags of spaCy's best model for ``dev``."""
    import spacy
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train as spacy_train
    from spacy.tokens import Doc, DocBin
    from spacy.training.initialize import convert_vectors

    has_spans = any(tag.startswith("B-") for example in train for tag in example.tags or ())
    what = "ner" if has_spans else "tagger"
    if not (place / "vectors").exists():
        blank = spacy.blank("en")
        convert_vectors(blank, vectors, truncate=0, prune=-1, attr="LOWER")  # GloVe's are in small letters
        blank.to_disk(place / "vectors")
        for name, part in (("train", train), ("dev", dev)):
            docs = [
                Doc(
                    blank.vocab,
                    list(example.words),
                    **{"ents" if has_spans else "tags": list(example.tags or ())},
                )
                for example in part
            ]
            DocBin(docs=docs).to_disk(place / f"{name}.spacy")
        init_config(lang="en", pipeline=[what], optimize="accuracy", gpu=False).to_disk(place / "config.cfg")
    paths: dict[str, Any] = {f"paths.{name}": str(place / f"{name}.spacy") for name in ("train", "dev")}
    spacy_train(
        place / "config.cfg",
        place / f"model-{seed}",
        overrides={
            **paths,
            "paths.vectors": str(place / "vectors"),
            "training.seed": seed,
            "system.seed": seed,
        },
    )
    best = spacy.load(place / f"model-{seed}" / "model-best")
    tagged = best.pipe(Doc(best.vocab, list(example.words)) for example in dev)
    if not has_spans:
        return [[token.tag_ for token in doc] for doc in tagged]
    return [
        [token.ent_iob_ + (f"-{token.ent_type_}" if token.ent_type_ else "") for token in doc]
        for doc in tagged
    ]


def flair_trained(
    seed: int,
    train: list[TaggedSentence],
    dev: list[TaggedSentence],
    *,
    vectors: Path,
    place: Path,
    python: str,
    characters: bool = False,
) -> list[list[str]]:
    """The tags of Flair's best model for ``dev``, trained by the interpreter ``python``."""
    scheme = scheme_of([list(example.tags or ()) for example in train])
    few = place / "flair-vectors.txt"
    if not few.exists():
        _write_vectors(few, vectors, {word for part in (train, dev) for one in part for word in one.words})
    home = place / f"flair-{seed}{'-characters' * characters}"
    home.mkdir()
    task = {
        "seed": seed,
        "epochs": FLAIR_EPOCHS,
        "characters": characters,
        "has_spans": scheme != "plain",
        "vectors": str(few),
        "place": str(home),
        "found": str(home / "found.json"),
        "train": [(example.words, _marks(example, scheme)) for example in train],
        "dev": [(example.words, _marks(example, scheme)) for example in dev],
    }
    subprocess.run(
        [python, "-c", FLAIR_TRAINER],
        input=json.dumps(task),
        text=True,
        check=True,
        stdout=sys.stderr,  # its log is not our table
        env={**os.environ, "HF_HUB_OFFLINE": "1", "FLAIR_CACHE_ROOT": str(place / "flair")},
    )
    rows = json.loads((home / "found.json").read_text(encoding="utf-8"))
    found: list[list[str]] = []
    for example, row in zip(dev, rows, strict=True):
        spans = [Span(*mark) for mark in row]
        if scheme == "plain":
            labels = {span.start: span.label for span in spans}
            found.append([labels.get(k, "O") for k in range(len(example.words))])  # Flair says nothing for O
        else:
            found.append(list(tags_of(spans, len(example.words), scheme)))
    return found


def _marks(example: TaggedSentence, scheme: Scheme) -> list[tuple[int, int, str]]:
    """The spans of a sentence as (start, end, label); a plain tag is a span of one token."""
    tags = example.tags or ()
    if scheme == "plain":
        return [(k, k + 1, tag) for k, tag in enumerate(tags)]
    return [(span.start, span.end, span.label) for span in spans_of(tags, scheme)]


def _write_vectors(out: Path, vectors: Path, words: set[str]) -> None:
    """Those of ``vectors`` that Flair looks up for ``words``, as text with word2vec's first line."""
    # beside a word and its lower case, which we look up too, Flair tries # and 0 in place of digits
    masked = {re.sub(r"\d", digit, word.lower()) for word in words for digit in "#0"}
    static = read_static(vectors, words=words | masked, max_words=0)
    lines = [f"{len(static.words)} {static.width}"]
    for word, vector in zip(static.words, static.vectors.tolist(), strict=True):
        lines.append(" ".join([word, *map(str, vector)]))
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
