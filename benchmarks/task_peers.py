"""Compare our tagger with the trainers of spaCy and Flair on the same sentences and static vectors.

usage: task_peers.py TRAIN DEV VECTORS [--tags COLUMN] [--seeds N] [--systems NAME …] [--flair PYTHON]
                     [--json FILE]

TRAIN and DEV are tagged sentences (CoNLL, or CoNLL-U with --tags upos; may be compressed), VECTORS is a GloVe
text file. spaCy (extra ``spacy``) trains the pipeline of ``spacy init config --optimize accuracy`` with its
own schedule and early stopping; it also uses features of prefix, suffix and shape. Flair runs in PYTHON, an
interpreter with ``flair[word-embeddings]`` (skipped without --flair), with the settings of its sequence
tagging tutorial: an LSTM of width 256 and a CRF over the vectors, SGD with batches of 32 and a learning rate
of 0.1, which is halved after 3 epochs without a better DEV score, until it is below 0.0001; at most 60 epochs
instead of 150, to save time. "Flair, characters" also uses its character network. Ours are the tagger with
vectors only, with character vectors (compare with Flair's characters and spaCy's features), and with ELMo
(the bundled model). One function scores all systems on DEV, which also selected their best epochs.
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
from elmo.tasks import FeatureCache, Features, FeatureStore, FitOptions, Tagging, TaskModel, read_examples, read_static
from elmo.tasks.data.examples import Span, TaggedSentence
from elmo.tasks.data.schemes import Scheme, decode_spans, detect_scheme, encode_spans
from elmo.tasks.scores.labels import span_scores

OURS = {
    "vectors": Features(elmo="none"),
    "vectors, characters": Features(elmo="none", characters=64),
    "vectors, ELMo": Features(elmo="input"),
}
FIT = FitOptions.for_kind("tagging")
FLAIR = {"Flair": False, "Flair, characters": True}  # whether it uses its character network
FLAIR_EPOCHS = 60
# The program for PYTHON: reads a task as JSON from stdin, writes the spans of DEV as JSON to a file. A span
# is (start, end, label), of one or more tokens.
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
    characters = Dictionary()  # avoids the download of Flair's own list
    for character in sorted({c for words, _ in task["train"] for word in words for c in word}):
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
    # with "cpu", the default, Flair 0.15.1 keeps the character vectors of the first epoch for DEV
    embeddings_storage_mode="none" if task["characters"] else "cpu",
)
predicted = [Sentence(words) for words, _ in task["dev"]]
tagger.predict(predicted)  # the trainer restored the best epoch
Path(task["predictions"]).write_text(json.dumps([list(marks(one)) for one in predicted]), encoding="utf-8")
"""


def main() -> None:
    """Train all systems and print their scores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("train", "dev", "vectors"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tags", help="column of the tags")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=["spaCy", *FLAIR, *OURS], help="default: all")
    parser.add_argument("--flair", metavar="PYTHON", help="interpreter with Flair")
    parser.add_argument("--json", type=Path, help="write all scores to this file")
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


def score(gold: Sequence[TaggedSentence], predicted: list[list[str]]) -> float:
    """Return F1 over spans if tags mark spans, else accuracy."""
    tags = [list(example.tags or ()) for example in gold]
    scheme = detect_scheme(tags)
    if scheme != "plain":
        spans = ([decode_spans(row, scheme) for row in rows] for rows in (tags, predicted))
        return span_scores(*spans).overall.f1
    pairs = [pair for a, b in zip(tags, predicted, strict=True) for pair in zip(a, b, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _trainers(
    train: list[TaggedSentence], dev: list[TaggedSentence], *, vectors: Path, place: Path, flair: str | None
) -> dict[str, Callable[[int], list[list[str]]]]:
    """Return a function by system name that takes a seed, trains the system and tags ``dev``."""
    words = {word for part in (train, dev) for example in part for word in example.words}
    static = read_static(vectors, words=words, max_words=0)
    elmo = Elmo.from_pretrained()

    def ours(features: Features) -> Callable[[int], list[list[str]]]:
        def trained(seed: int) -> list[list[str]]:
            fit = FitOptions(**{**vars(FIT), "seed": seed})
            store = FeatureStore(features, elmo, static, cache=FeatureCache(place / "layers"))
            model = TaskModel.train(Tagging.from_examples(train), train, dev, store=store, options=fit)
            return [list(prediction.tags) for prediction in model.predict(dev)]

        return trained

    trainers: dict[str, Callable[[int], list[list[str]]]] = {name: ours(features) for name, features in OURS.items()}
    trainers["spaCy"] = lambda seed: spacy_trained(seed, train, dev, vectors=vectors, place=place)
    if flair:
        for name, characters in FLAIR.items():
            trainers[name] = lambda seed, characters=characters: flair_trained(
                seed, train, dev, vectors=vectors, place=place, python=flair, characters=characters
            )
    return trainers


def spacy_trained(
    seed: int, train: list[TaggedSentence], dev: list[TaggedSentence], *, vectors: Path, place: Path
) -> list[list[str]]:
    """Train spaCy and return the tags of its best model for ``dev``."""
    import spacy
    from spacy.cli.init_config import init_config
    from spacy.cli.train import train as spacy_train
    from spacy.tokens import Doc, DocBin
    from spacy.training.initialize import convert_vectors

    has_spans = any(tag.startswith("B-") for example in train for tag in example.tags or ())
    what = "ner" if has_spans else "tagger"
    if not (place / "vectors").exists():
        blank = spacy.blank("en")
        convert_vectors(blank, vectors, truncate=0, prune=-1, attr="LOWER")  # GloVe is lowercase
        blank.to_disk(place / "vectors")
        for name, part in (("train", train), ("dev", dev)):
            docs = [
                Doc(blank.vocab, list(example.words), **{"ents" if has_spans else "tags": list(example.tags or ())})
                for example in part
            ]
            DocBin(docs=docs).to_disk(place / f"{name}.spacy")
        init_config(lang="en", pipeline=[what], optimize="accuracy", gpu=False).to_disk(place / "config.cfg")
    paths: dict[str, Any] = {f"paths.{name}": str(place / f"{name}.spacy") for name in ("train", "dev")}
    spacy_train(
        place / "config.cfg",
        place / f"model-{seed}",
        overrides={**paths, "paths.vectors": str(place / "vectors"), "training.seed": seed, "system.seed": seed},
    )
    best = spacy.load(place / f"model-{seed}" / "model-best")
    tagged = best.pipe(Doc(best.vocab, list(example.words)) for example in dev)
    if not has_spans:
        return [[token.tag_ for token in doc] for doc in tagged]
    return [[token.ent_iob_ + (f"-{token.ent_type_}" if token.ent_type_ else "") for token in doc] for doc in tagged]


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
    """Train Flair with the interpreter ``python`` and return the tags of its best model for ``dev``."""
    scheme = detect_scheme([list(example.tags or ()) for example in train])
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
        "predictions": str(home / "predictions.json"),
        "train": [(example.words, _marks(example, scheme)) for example in train],
        "dev": [(example.words, _marks(example, scheme)) for example in dev],
    }
    subprocess.run(
        [python, "-c", FLAIR_TRAINER],
        input=json.dumps(task),
        text=True,
        check=True,
        stdout=sys.stderr,  # keeps its log out of our table
        env={**os.environ, "HF_HUB_OFFLINE": "1", "FLAIR_CACHE_ROOT": str(place / "flair")},
    )
    rows = json.loads((home / "predictions.json").read_text(encoding="utf-8"))
    tags: list[list[str]] = []
    for example, row in zip(dev, rows, strict=True):
        spans = [Span(*mark) for mark in row]
        if scheme == "plain":
            labels = {span.start: span.label for span in spans}
            tags.append([labels.get(k, "O") for k in range(len(example.words))])  # Flair leaves out O
        else:
            tags.append(list(encode_spans(spans, len(example.words), scheme)))
    return tags


def _marks(example: TaggedSentence, scheme: Scheme) -> list[tuple[int, int, str]]:
    """Return the spans of a sentence as (start, end, label); a plain tag is a span of one token."""
    tags = example.tags or ()
    if scheme == "plain":
        return [(k, k + 1, tag) for k, tag in enumerate(tags)]
    return [(span.start, span.end, span.label) for span in decode_spans(tags, scheme)]


def _write_vectors(out: Path, vectors: Path, words: set[str]) -> None:
    """Write the vectors that Flair looks up for ``words``, as text with the first line of word2vec."""
    # like us, Flair tries a word and its lower case, but also # and 0 instead of digits
    masked = {re.sub(r"\d", digit, word.lower()) for word in words for digit in "#0"}
    static = read_static(vectors, words=words | masked, max_words=0)
    lines = [f"{len(static.words)} {static.width}"]
    for word, vector in zip(static.words, static.vectors.tolist(), strict=True):
        lines.append(" ".join([word, *map(str, vector)]))
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
