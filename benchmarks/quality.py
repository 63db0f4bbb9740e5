"""Measure what a model has learned: perplexity, senses, part-of-speech tags and words in context.

usage: quality.py [MODEL] [--texts FILE …] [--senses FILE …] [--tags TRAIN DEV] [--wic FOLDER]
                  [--raw] [--words MODEL] [--glove FOLDER] [--transformer FOLDER] [--untrained] [--unrounded N]
                  [--storage DTYPE] [--json FILE]

--texts        perplexity with the full softmax, from a zero, warm and carried state. Files have one tokenized
               sentence per line, or raw text with --raw.
--words        another model: words that it does not know count as ``<UNK>`` in --texts, so that models with
               different vocabularies can be compared.
--senses       files with the columns word, sense and sentence: of three sentences with a word, the two with
               the same sense should have the closest vectors.
--tags         CoNLL-U files: accuracy of a linear classifier of part-of-speech tags on each layer.
--wic          folder of Words in Context (train and dev, .data.txt and .gold.txt): two usages have the same
               sense if their cosine reaches a threshold, tuned on train. AUC is the share of pairs with the same
               sense that have a higher cosine than one with different senses; it needs no threshold.
--glove        folder of static vectors (``*emb.npy`` and ``*index.parquet``) to compare with, for senses and
               tags.
--untrained    compare with a model of the same shape with random weights, for senses, tags and WiC.
--transformer  folder of a transformers model (which must be installed) to compare with, for senses and WiC.
               The pieces of a word are averaged. For senses, it also reads the text before and after the word
               separately, like a biLM.
--unrounded    effect of half precision on disk: N models in single precision, drawn at random among those
               that round to the weights of MODEL.
--storage      effect of the type of the weights on disk, such as int8: convert MODEL to DTYPE, repeat all measurements
               and print every change. Perplexity may change by 0.2%, and every other measure by 0.2 points.

Files can be compressed (.xz). Without arguments: the bundled English model, or one with random weights if
there is none, and the sentences of the tests.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedding import random_model
from precision import MAX_CHANGE, accuracy, read, triples

from elmo import Elmo, perplexity, similarity
from elmo.engine.softmax import FrozenSoftmax
from elmo.formats import bundled_models, convert, describe
from elmo.lexicon.substitutes import embed_substitutes
from elmo.lexicon.usages import Usage
from elmo.storage.tensors import DTYPES

HERE = Path(__file__).resolve().parent
SENSES = [HERE.parent / "tests" / "data" / name for name in ("senses.en.tsv", "senses-2.en.tsv")]
STARTS = ("zero", "warm", "carry")
CHUNK = 256  # tokens whose probabilities of all words are in memory
Vectors = np.ndarray[Any, Any]
Embed = Callable[[Sequence[list[str]], Any], list[Vectors]]  # sentences and layers to vectors (time, width)


def main() -> None:
    """Print a table for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--texts", type=Path, nargs="+", default=[])
    parser.add_argument("--senses", type=Path, nargs="+", default=[])
    parser.add_argument("--tags", type=Path, nargs=2)
    parser.add_argument("--wic", type=Path)
    parser.add_argument("--glove", type=Path)
    parser.add_argument("--raw", action="store_true", help="--texts are not tokenized")
    parser.add_argument("--words", metavar="MODEL", help="predict only words that this model knows")
    parser.add_argument("--transformer", type=Path)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--unrounded", type=int, default=0, metavar="N")
    parser.add_argument("--storage", choices=DTYPES, metavar="DTYPE")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elmo-") as place:
        is_random = options.model is None and not bundled_models()
        model = random_model(Path(place) / "small", "small") if is_random else options.model
        elmo, stored = Elmo.from_pretrained(model), None
        if options.storage:
            convert(model, Path(place) / "stored", dtype=options.storage)
            stored = Elmo.from_pretrained(Path(place) / "stored")
            sizes = [sum(describe(folder).files.values()) for folder in (model, Path(place) / "stored")]
            print(f"{sizes[0]:,} bytes on disk, as {options.storage} {sizes[1]:,}\n")
        results = measure(elmo, options)
        if stored is not None:
            print(f"\n--- stored as {options.storage} ---\n")
            results[options.storage] = measure(stored, options)
            print_changes(results, results[options.storage], options.storage)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def measure(elmo: Elmo, options: argparse.Namespace) -> dict[str, Any]:
    """Print the tables of one model; return their numbers."""
    systems = [System.of(elmo)]
    if options.untrained:
        systems.append(System.of(untrained(elmo), "untrained"))
    drawn = [unrounded(elmo, seed) for seed in range(1, options.unrounded + 1)]
    systems += [System.of(model, f"unrounded {number}") for number, model in enumerate(drawn, start=1)]
    ours = list(systems)
    others = [transformer(options.transformer)] if options.transformer else []
    glove = Glove(options.glove) if options.glove else None
    if glove is not None:
        systems.append(System("GloVe", lambda rows, _: [glove(words) for words in rows], ("static",)))
    results: dict[str, Any] = {"model": str(options.model)}
    if options.texts:
        with only_words_of(elmo, options.words):
            results["perplexity"] = perplexities(elmo, options.texts, is_raw=options.raw)
        for number, model in enumerate(drawn, start=1):
            print(f"unrounded {number}")
            results[f"perplexity, unrounded {number}"] = perplexities(model, options.texts, is_raw=options.raw)
    if not (options.texts or options.senses or options.tags or options.wic):
        options.senses = SENSES
    for path in options.senses:
        results[f"senses {path.name}"] = senses(path, ours, elmo=elmo, glove=glove, others=others)
    if options.tags:
        results["tags"] = tags(*options.tags, systems)
    if options.wic:
        results["wic"] = words_in_context(options.wic, [*ours, *others])
    return results


def print_changes(before: dict[str, Any], after: dict[str, Any], name: str) -> None:
    """Print every measure before and after a conversion, and whether the change is within the limit."""
    print(f"\n{'':44}{'before':>9}{name:>9}{'change':>10}")
    for group in [group for group in after if group != "model"]:
        is_perplexity = group.startswith("perplexity")
        rows = after[group].items()
        if is_perplexity:  # one row per text and start state
            rows = [((text, start), value) for text, row in rows for start, value in row.items() if start != "unknown"]
        for key, value in rows:
            old = before[group][key[0]][key[1]] if is_perplexity else before[group][key]
            factor = 100 if group.startswith("senses") else 1
            change = 100 * (value / old - 1) if is_perplexity else factor * (value - old)
            label = f"{group}, {', '.join(key) if is_perplexity else key}"
            figures = f"{factor * old:9.2f}{factor * value:9.2f}{change:+9.2f}{'%' if is_perplexity else ' '}"
            print(f"{label:44}{figures}{'' if abs(change) <= MAX_CHANGE else f'  more than {MAX_CHANGE}'}")


@dataclass(frozen=True)
class System:
    """A source of word vectors."""

    name: str
    embed: Embed
    layers: tuple[Any, ...]
    views: tuple[Any, ...] = ()  # vectors for comparing usages, for senses and WiC only

    @classmethod
    def of(cls, elmo: Elmo, name: str = "elmo") -> System:
        """Use the layers of a model."""

        def embed(rows: Sequence[list[str]], layers: Any) -> list[Vectors]:
            return [encoding.vectors for encoding in elmo.encode(rows, layers=layers)]

        return cls(name, embed, ("average", *range(elmo.n_layers)), ("sense",))


class Glove:
    """Static vectors of words in lower case; unknown words are zero."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet

        self.vectors = np.load(next(folder.rglob("*emb.npy")), mmap_mode="r")
        table = pyarrow.parquet.read_table(next(folder.rglob("*index.parquet")))
        words = next(c for c in table.columns if "string" in str(c.type)).to_pylist()
        self.rows = {word: row for row, word in enumerate(words)}

    def __call__(self, words: list[str]) -> Vectors:
        """Return the vectors (word, width)."""
        rows = [self.rows.get(word.lower()) for word in words]
        nothing = np.zeros(self.vectors.shape[1], np.float32)
        return np.stack([nothing if row is None else np.asarray(self.vectors[row]) for row in rows])


def untrained(elmo: Elmo) -> Elmo:
    """Return a model of the same shape with random weights."""
    from dataclasses import replace

    from elmo import BiLm

    torch.manual_seed(0)
    return Elmo(replace(elmo.pretrained, weights=BiLm.from_config(elmo.config).state_dict()))


def unrounded(elmo: Elmo, seed: int) -> Elmo:
    """Draw a model in single precision that rounds to this one in half precision."""
    from dataclasses import replace

    from elmo.formats.pretrained import SoftmaxWeights

    generator = np.random.default_rng(seed)

    def before(weight: torch.Tensor) -> torch.Tensor:
        halves = weight.numpy().astype(np.float16)
        if not np.array_equal(halves.astype(np.float32), weight.numpy()):
            raise SystemExit("--unrounded: expected a model in half precision, found more digits")
        gap = np.abs(np.spacing(halves)).astype(np.float32)  # to the next float16 number
        drawn = weight.numpy() + gap * generator.uniform(-0.5, 0.5, gap.shape).astype(np.float32)
        # zeros are padding, and below a power of two the gap is half as wide
        is_same = (drawn.astype(np.float16) == halves) & (halves != 0)
        return torch.from_numpy(np.where(is_same, drawn, weight.numpy()))

    weights = {name: before(weight) for name, weight in elmo.pretrained.weights.items()}
    softmax = elmo.pretrained.softmax
    if softmax is not None:
        softmax = SoftmaxWeights(before(softmax.weight), before(softmax.bias))
    # the warm state belongs to the rounded model
    return Elmo(replace(elmo.pretrained, weights=weights, softmax=softmax, warm=None))


def transformer(folder: Path) -> System:
    """Use the last layer of a transformers model, and the mean of all layers."""
    import transformers  # pyright: ignore[reportMissingImports] -- for this comparison only

    tokenize = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def embed(rows: Sequence[list[str]], layers: Any) -> list[Vectors]:
        results: list[Vectors] = []
        for words in rows:
            read = tokenize(words, is_split_into_words=True, return_tensors="pt", truncation=True)
            states = network(**read, output_hidden_states=True).hidden_states
            vectors = states[-1][0] if layers == "last" else torch.stack(states).mean(dim=0)[0]
            word_of = torch.tensor([-1 if word is None else word for word in read.word_ids()])
            pooled = [
                vectors[word_of == k].mean(dim=0) if (word_of == k).any() else vectors[0] for k in range(len(words))
            ]
            results.append(torch.stack(pooled).numpy())
        return results

    return System(folder.name, embed, ("last", "average"))


@contextmanager
def only_words_of(elmo: Elmo, other: str | None) -> Iterator[None]:
    """Count words that another model does not know as ``<UNK>``: all of them together have one probability."""
    if other is None:
        yield
        return
    vocab, known = elmo.vocab, Elmo.from_pretrained(other).vocab
    assert vocab is not None
    assert known is not None
    is_merged = torch.tensor([word not in known or word == vocab.unknown for word in vocab.words])
    merged = is_merged.nonzero()[:, 0]
    print(f"{len(vocab) - len(merged):,} of {len(vocab):,} words are known to {other}; the others count as unknown")
    original = FrozenSoftmax.target_log_probabilities

    def target_log_probabilities(self: FrozenSoftmax, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        parts = []
        for part, ids in zip(states.split(CHUNK), targets.split(CHUNK), strict=True):
            log_p = self.log_probabilities(part)
            own = log_p.gather(1, ids[:, None])[:, 0]
            parts.append(torch.where(is_merged[ids], log_p[:, merged].logsumexp(1), own))
        return torch.cat(parts)

    FrozenSoftmax.target_log_probabilities = target_log_probabilities
    try:
        yield
    finally:
        FrozenSoftmax.target_log_probabilities = original


def perplexities(elmo: Elmo, texts: list[Path], *, is_raw: bool) -> dict[str, Any]:
    """Measure the perplexity of each text by start state."""
    print(f"{'perplexity':24}{''.join(f'{start:>9}' for start in STARTS)}{'unknown':>9}")
    results: dict[str, Any] = {}
    for path in texts:
        report = perplexity(elmo, path, start="all", input_format="text" if is_raw else "tokens", split=is_raw)
        row: dict[str, float] = {start: report[start].geometric_mean for start in report.by_start}
        row["unknown"] = report.unknown_rate
        results[path.name] = row
        figures = "".join(f"{row[start]:9.1f}" if start in row else f"{'':9}" for start in STARTS)
        print(f"{path.name:24}{figures}{row['unknown']:9.2%}", flush=True)
    return results


def senses(
    path: Path, systems: list[System], *, elmo: Elmo, glove: Glove | None, others: list[System]
) -> dict[str, float]:
    """Measure how often the sentence with the same sense is closer than one with the other sense."""
    rows = [line.split("\t") for line in _lines(path)[1:]]
    tokens = [elmo.tokenizer(text) for _, _, text in rows]
    cut = [list(sentence.tokens) for sentence in tokens]
    results: dict[str, float] = {}

    def show(name: str, vectors: list[Vectors]) -> None:
        right, n = [], 0
        for a, b, c in triples(rows):
            near, far = similarity(vectors[a], vectors[b]), similarity(vectors[a], vectors[c])
            right.append((near > far) + 0.5 * (near == far))  # always equal in the token layer
            n += 1
        results[name] = float(np.mean(right))
        print(f"{name:24}{np.mean(right):9.1%} of {n} triples")

    print(f"\nsenses, {path.name}")
    for system in systems:
        for layers in (*system.layers, *system.views):
            embedded = system.embed(cut, layers)
            show(
                f"{system.name}, {layers}",
                [vectors[words.index(row[0])] for vectors, words, row in zip(embedded, cut, rows, strict=True)],
            )
    places = [words.index(row[0]) for words, row in zip(cut, rows, strict=True)]
    static = [System("elmo, 0", System.of(elmo).embed, (0,))]  # in any language
    if glove is not None:
        static.append(System("GloVe", lambda rows, _: [glove(words) for words in rows], (0,)))
    for system in static:  # context words only: together, and left and right separate, like in a biLM
        of_words = system.embed(cut, 0)
        contexts = [_sides(vectors, place) for vectors, place in zip(of_words, places, strict=True)]
        show(f"{system.name}, other words", [_mean(np.concatenate(sides)) for sides in contexts])
        show(f"{system.name}, left; right", [np.concatenate([_mean(s) for s in sides]) for sides in contexts])
    for system in others:  # the word in the whole sentence, and in its start and its end separately
        for layers in system.layers:
            whole = system.embed(cut, layers)
            show(f"{system.name}, {layers}", [vectors[place] for vectors, place in zip(whole, places, strict=True)])
            to = system.embed([words[: k + 1] for words, k in zip(cut, places, strict=True)], layers)
            on = system.embed([words[k:] for words, k in zip(cut, places, strict=True)], layers)
            apart = [np.concatenate([_unit(a[-1]), _unit(b[0])]) for a, b in zip(to, on, strict=True)]
            show(f"{system.name}, {layers}, apart", apart)
    last = System.of(elmo).embed(cut, elmo.n_layers - 1)  # both directions share a softmax, so a space
    pairs = [np.split(vectors[place], 2) for vectors, place in zip(last, places, strict=True)]
    show("elmo, halves added", [ahead + back for ahead, back in pairs])
    if elmo.vocab is not None:
        usages = [Usage(sentence, place, place + 1) for sentence, place in zip(tokens, places, strict=True)]
        show("elmo, expected words", list(embed_substitutes(elmo, usages).vectors))
    return results


def _sides(vectors: Vectors, place: int) -> tuple[Vectors, Vectors]:
    """Split vectors at a position: before and after it."""
    return vectors[:place], vectors[place + 1 :]


def _unit(vector: Vectors) -> Vectors:
    return vector / np.linalg.norm(vector)


def _mean(vectors: Vectors) -> Vectors:
    """Return the mean; zeros without any vector."""
    return vectors.mean(axis=0) if len(vectors) else np.zeros(vectors.shape[1], vectors.dtype)


def tags(train: Path, dev: Path, systems: list[System]) -> dict[str, float]:
    """Measure the accuracy of a linear classifier on each layer."""
    parts = [read(path) for path in (train, dev)]
    names = sorted({tag for _, row in parts[0] for tag in row})
    place = {tag: number for number, tag in enumerate(names)}
    numbers = [torch.tensor([place.get(tag, -1) for _, row in part for tag in row]) for part in parts]
    print(f"\ntags, {dev.parent.name}: {len(numbers[0]):,} tokens to train on, {len(numbers[1]):,} to tag")
    results: dict[str, float] = {}
    for system in systems:
        for layers in system.layers:
            x, dev_x = (
                torch.from_numpy(np.concatenate(system.embed([words for words, _ in part], layers))) for part in parts
            )
            right = accuracy(x, numbers[0], dev_x, numbers[1], seed=0)
            results[f"{system.name}, {layers}"] = right
            print(f"{system.name + ', ' + str(layers):24}{right:9.2f}%", flush=True)
    return results


def words_in_context(folder: Path, systems: list[System]) -> dict[str, float]:
    """Measure the accuracy on dev with the threshold that is best on train."""
    parts = [(_lines(folder / f"{part}.data.txt"), _lines(folder / f"{part}.gold.txt")) for part in ("train", "dev")]
    print(f"\nwords in context: {len(parts[0][0]):,} pairs to tune on, {len(parts[1][0])} to test")
    results: dict[str, float] = {}
    for system in systems:
        for layers in (*system.layers, *system.views):
            cosines, is_same = [], []
            for data, gold in parts:
                pairs = [row.split("\t") for row in data]
                sentences = [side.split(" ") for pair in pairs for side in pair[3:5]]
                vectors = system.embed(sentences, layers)
                places = [int(place) for pair in pairs for place in pair[2].split("-")]
                selected = [rows[place] for rows, place in zip(vectors, places, strict=True)]
                cosines.append(np.array([similarity(a, b) for a, b in zip(selected[::2], selected[1::2], strict=True)]))
                is_same.append(np.array([row == "T" for row in gold]))
            steps = np.unique(cosines[0])
            best = max(steps, key=lambda step: float(((cosines[0] >= step) == is_same[0]).mean()))
            right = float(((cosines[1] >= best) == is_same[1]).mean()) * 100
            results[f"{system.name}, {layers}"] = right
            area = results[f"{system.name}, {layers}, AUC"] = 100 * area_under_curve(cosines[1], is_same[1])
            figures = f"{right:9.2f}%   threshold {best:.3f}   AUC {area:.2f}%"
            print(f"{system.name + ', ' + str(layers):24}{figures}", flush=True)
    return results


def area_under_curve(scores: Vectors, is_positive: Vectors) -> float:
    """Return the share of pairs of a positive and a negative in which the positive has the higher score."""
    positive, negative = scores[is_positive, None], scores[~is_positive]
    return float(np.mean((positive > negative) + 0.5 * (positive == negative)))


def _lines(path: Path) -> list[str]:
    path = path if path.exists() else path.with_name(f"{path.name}.xz")
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


if __name__ == "__main__":
    main()
