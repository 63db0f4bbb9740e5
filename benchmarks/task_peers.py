"""Is our tagger worth its name? The same sentences and the same static vectors through spaCy's own trainer.

usage: task_peers.py TRAIN DEV VECTORS [--tags COLUMN] [--seeds N] [--systems NAME …] [--json FILE]

TRAIN and DEV are tagged sentences (CoNLL, CoNLL-U with --tags upos; .xz is fine), VECTORS a text file of
GloVe's. spaCy (extra ``spacy``) trains the pipeline that ``spacy init config --optimize accuracy`` writes,
with its own schedule and early stopping; its words have these vectors beside its features of prefix, suffix
and shape. Ours stand beside it: the tagger with the vectors alone, with its characters' network as the
counterpart of spaCy's features, and with ELMo (the bundled model). All are scored by one function, on DEV,
which all stopped early on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from elmo import Elmo
from elmo.tasks import (
    FitOptions,
    LayerCache,
    Tagging,
    TaskModel,
    VectorChoice,
    WordSources,
    read_examples,
    read_static,
)
from elmo.tasks.data.examples import TaggedSentence
from elmo.tasks.data.tag_schemes import scheme_of, spans_of
from elmo.tasks.scores.spans import span_scores

OURS = {
    "vectors": VectorChoice(elmo="none"),
    "vectors, characters": VectorChoice(elmo="none", characters=64),
    "vectors, ELMo": VectorChoice(elmo="input"),
}
FIT = FitOptions(epochs=40, patience=6)


def main() -> None:
    """Print a line for each system."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("train", "dev", "vectors"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tags", help="the column of tags")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", default=["spaCy", *OURS], choices=["spaCy", *OURS])
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    parts = [
        read_examples("tagging", [path], options={"tags": options.tags}).examples
        for path in (options.train, options.dev)
    ]
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        trainers = _trainers(*parts, vectors=options.vectors, place=Path(place))
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
    train: list[TaggedSentence], dev: list[TaggedSentence], *, vectors: Path, place: Path
) -> dict[str, Callable[[int], list[list[str]]]]:
    """By name, a function of the seed that trains a system and tags ``dev``."""
    words = {word for part in (train, dev) for example in part for word in example.words}
    static = read_static(vectors, wanted=words, max_words=0)
    elmo = Elmo.from_pretrained()

    def ours(choice: VectorChoice) -> Callable[[int], list[list[str]]]:
        def trained(seed: int) -> list[list[str]]:
            fit = FitOptions(**{**vars(FIT), "seed": seed})
            sources = WordSources(choice, elmo, static, cache=LayerCache(place / "layers"))
            model = TaskModel.train(Tagging.of(train), train, dev, sources=sources, options=fit)
            return [list(found.tags) for found in model.predict(dev)]

        return trained

    found: dict[str, Callable[[int], list[list[str]]]] = {name: ours(choice) for name, choice in OURS.items()}
    found["spaCy"] = lambda seed: spacy_trained(seed, train, dev, vectors=vectors, place=place)
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
        convert_vectors(blank, vectors, truncate=0, prune=-1)
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


if __name__ == "__main__":
    main()
