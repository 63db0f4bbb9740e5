"""Files with a word and its labels a line in, sentences with one label per word out.

CoNLL-U columns go by their names: ``upos``, ``xpos``, ``deprel``, ``feats:Number`` for one feature. Other
files have columns separated by tabs or, where there are none, by spaces, known by number from 1 or by the name
in a header. A line of white space ends a sentence. A word without the feature, or with CoNLL-U's ``_``, has
no label.

A model and labelled text in, how much of the labels each layer holds out: linear probes with controls.

A probe is a softmax regression on the vectors of one layer, or on ELMo's learned mix of all layers, each
standardised. It is measured beside a control task (Hewitt & Liang 2019): every word type has a label drawn
once from the task's label distribution, which a probe can only learn by heart. Selectivity is the accuracy
on the task minus that on the control.
"""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from elmo.engine.batches import MAX_TOKENS, split_batches
from elmo.errors import ConfigError, DataError
from elmo.storage.files import format_path
from elmo.text.lines import ErrorPolicy, Line, Source, expand_paths, read_lines

if TYPE_CHECKING:
    from torch import Tensor

    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.model.mix import LayerMix


FileFormat = Literal["auto", "conllu", "columns"]
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU_NAME = re.compile(r"\.conllu(\.(gz|xz|bz2|zst))?$", re.IGNORECASE)
_FIRST_ID = re.compile(r"1|1-[0-9]+|0\.1")
_NO_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a range that words spell out, or an empty node
Row = tuple[str, str | None]  # a word and its label
Split = Callable[[str, str], Row]  # a line and its place to its row


@dataclass(frozen=True)
class LabelledSentence:
    """The words of a sentence, each with its label or None."""

    tokens: tuple[str, ...]
    labels: tuple[str | None, ...]
    place: str  # file:line of its first word

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class LabelledText:
    """Sentences that have labels; those without any are left out."""

    sentences: tuple[LabelledSentence, ...]
    n_labels: int  # words with a label
    n_without: int  # words without one
    is_cut: bool  # there was more than was asked for

    @classmethod
    def of(cls, sentences: Iterable[LabelledSentence], *, max_tokens: int | None = None) -> LabelledText:
        """Whole sentences, at least one, as long as they have no more than ``max_tokens`` labels together."""
        kept: list[LabelledSentence] = []
        n_labels = n_without = 0
        for sentence in sentences:
            n = sum(label is not None for label in sentence.labels)
            if n and kept and max_tokens is not None and n_labels + n > max_tokens:
                return cls(tuple(kept), n_labels, n_without, is_cut=True)
            n_labels, n_without = n_labels + n, n_without + len(sentence) - n
            if n:
                kept.append(sentence)
        return cls(tuple(kept), n_labels, n_without, is_cut=False)

    @property
    def labels(self) -> list[str]:
        """All labels, in the order of the text."""
        return [label for one in self.sentences for label in one.labels if label is not None]

    @property
    def words(self) -> list[str]:
        """The words that have these labels."""
        return [
            word
            for one in self.sentences
            for word, label in zip(one.tokens, one.labels, strict=True)
            if label is not None
        ]


def read_labelled(
    path: str | Path,
    column: str | int,
    *,
    tokens_column: str | int | None = None,
    file_format: FileFormat = "auto",
    has_header: bool = False,
    max_tokens: int | None = None,
    errors: ErrorPolicy = "strict",
) -> LabelledText:
    """The labels in a column of a file, a glob or a folder, compressed or not; ``-`` is stdin.

    A header is read where a column is given by name, or with ``has_header``. Words stand in the column
    ``tokens_column``: by default ``form`` of CoNLL-U, the first of other files.
    """
    if file_format not in get_args(FileFormat):
        raise ConfigError(f"file format must be auto, conllu or columns, not {str(file_format)!r:.40}")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1, found {max_tokens}")
    files = expand_paths([str(path)])
    sentences = chain.from_iterable(
        _of_file(
            file,
            read_lines(file, errors=errors),
            column=str(column),
            tokens_column=None if tokens_column is None else str(tokens_column),
            file_format=file_format,
            has_header=has_header,
        )
        for file in files
    )
    found = LabelledText.of(sentences, max_tokens=max_tokens)
    if not found.n_labels:
        what = f"{found.n_without:,} words without one" if found.n_without else "no words"
        name = ", ".join(map(format_path, files[:3]))
        raise DataError(f"{name}: expected labels in column {str(column)[:40]}, found {what}")
    return found


def _of_file(
    file: Source,
    lines: Iterator[Line],
    *,
    column: str,
    tokens_column: str | None,
    file_format: FileFormat,
    has_header: bool,
) -> Iterator[LabelledSentence]:
    start: list[Line] = []  # up to the first line with columns
    for line in lines:
        start.append(line)
        if line.text.strip() and not _is_comment(line.text):
            break
    if not any(line.text.strip() for line in start):
        return iter(())  # no words, and no header to look for a column in
    first = start[-1].text
    is_tabbed = "\t" in first
    split: Split
    if is_conllu := file_format == "conllu" or (file_format == "auto" and _seems_conllu(file, first)):
        split = _conllu_rows(column, tokens_column or "form")
    else:
        has_name = any(name is not None and not _is_number(name) for name in (column, tokens_column))
        header = start.pop() if has_header or has_name else None
        split = _column_rows(column, tokens_column or "1", header=header, is_tabbed=is_tabbed)
    return _sentences(chain(start, lines), split, is_conllu=is_conllu, is_tabbed=is_tabbed)


def _seems_conllu(file: Source, first: str) -> bool:
    """Whether a file's name, or the first of its lines with columns, says so."""
    columns = first.split("\t")
    is_first_word = len(columns) == len(CONLLU) and _FIRST_ID.fullmatch(columns[0]) is not None
    return is_first_word or _CONLLU_NAME.search(str(file)) is not None


def _sentences(
    lines: Iterable[Line], split: Split, *, is_conllu: bool, is_tabbed: bool
) -> Iterator[LabelledSentence]:
    rows: list[Row] = []
    place, n_columns = "", 0
    for line in lines:
        here = f"{line.path}:{line.number}"
        if not line.text.strip():
            if rows:
                yield _sentence(rows, place)
            rows, n_columns = [], 0
            continue
        columns = _cut(line.text, is_tabbed=is_tabbed)
        if _is_comment(line.text) and (is_conllu or is_tabbed or columns[0] in ("#begin", "#end")):
            continue
        if columns[0] == "-DOCSTART-" or (is_conllu and _NO_WORD.fullmatch(columns[0])):
            continue
        # files with a column per predicate have more of them in some sentences than in others
        n_columns = n_columns or len(columns)
        if len(columns) != n_columns:
            raise DataError(
                f"{here}: expected {n_columns} columns parted by {_by(is_tabbed)}, as in the line before, "
                f"found {len(columns)}"
            )
        place = place if rows else here
        rows.append(split(line.text, here))
        if len(rows) > MAX_TOKENS:
            raise DataError(f"{place}: expected an empty line within {MAX_TOKENS:,} words, found none")
    if rows:
        yield _sentence(rows, place)


def _sentence(rows: Sequence[Row], place: str) -> LabelledSentence:
    return LabelledSentence(tuple(word for word, _ in rows), tuple(label for _, label in rows), place)


def _conllu_rows(column: str, tokens_column: str) -> Split:
    name, _, part = column.partition(":")
    label_at, word_at = _conllu_column(name), _conllu_column(tokens_column)
    if part and CONLLU[label_at] not in ("feats", "misc"):
        raise ConfigError(f"column {column[:40]!r}: only feats and misc have parts, such as feats:Number")

    def row(text: str, place: str) -> Row:
        columns = text.split("\t")
        if len(columns) != len(CONLLU):
            raise DataError(
                f"{place}: expected {len(CONLLU)} columns separated by tabs, found {len(columns)}"
            )
        word, label = columns[word_at], columns[label_at].strip()
        if not word:
            raise DataError(f"{place}: expected a word in column {CONLLU[word_at]}, found nothing")
        if not label:
            raise DataError(f"{place}: expected a label or _ in column {CONLLU[label_at]}, found nothing")
        if part:
            parts = dict(one.split("=", 1) for one in label.split("|") if "=" in one)
            return word, parts.get(part)
        return word, None if label == "_" else label

    return row


def _conllu_column(name: str) -> int:
    if _is_number(name) and 1 <= int(name) <= len(CONLLU):
        return int(name) - 1
    if name.lower() not in CONLLU:
        raise ConfigError(f"column: CoNLL-U has {', '.join(CONLLU)} and 1..10, not {name[:40]!r}")
    return CONLLU.index(name.lower())


def _column_rows(column: str, tokens_column: str, *, header: Line | None, is_tabbed: bool) -> Split:
    label_at, word_at = (_place_of(name, header, is_tabbed=is_tabbed) for name in (column, tokens_column))
    if label_at == word_at:
        raise ConfigError(f"column {column[:40]!r} holds the words: name another, or another for the words")
    n_names = len(_cut(header.text, is_tabbed=is_tabbed)) if header else 0

    def row(text: str, place: str) -> Row:
        columns = _cut(text, is_tabbed=is_tabbed)
        n_needed = max(label_at, word_at) + 1
        if len(columns) < n_needed or (n_names and len(columns) != n_names):
            expected = f"{n_names} columns, as in the header," if n_names else f"{n_needed} columns or more"
            raise DataError(f"{place}: expected {expected} parted by {_by(is_tabbed)}, found {len(columns)}")
        word, label = columns[word_at], columns[label_at].strip()
        if not word:
            raise DataError(f"{place}: expected a word in column {word_at + 1}, found nothing")
        if not label:
            raise DataError(f"{place}: expected a label in column {label_at + 1}, found nothing")
        return word, label

    return row


def _place_of(name: str, header: Line | None, *, is_tabbed: bool) -> int:
    if _is_number(name):
        if int(name) < 1:
            raise ConfigError("column: numbers count from 1, found 0")
        return int(name) - 1
    names = [one.strip() for one in _cut(header.text, is_tabbed=is_tabbed)] if header else []
    if name not in names:
        found = ", ".join(names[:12])[:120] or "nothing"
        where = f"{header.path}:{header.number}: " if header else ""
        raise DataError(f"{where}expected a header with {name[:40]!r}, found {found}; or give a number")
    return names.index(name)


def _cut(text: str, *, is_tabbed: bool) -> list[str]:
    return text.split("\t") if is_tabbed else [part for part in text.split(" ") if part]


def _by(is_tabbed: bool) -> str:
    return "tabs" if is_tabbed else "spaces"


def _is_comment(text: str) -> bool:
    """Whether a line may be one: # is a word, too, where more columns follow."""
    return text.startswith("#") and "\t" not in text


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 6


MAX_TRAIN_TOKENS = 300_000  # of train: about 1.8 GB of vectors for three layers of 1,024
MAX_LABELS = 1_000  # more are hardly labels
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5, 0.0)  # L2, the strongest first; one is chosen for each layer
CHOICE_TOKENS = 60_000  # that the penalty is chosen on, every tenth sentence held out
BATCH, N_ROUNDS, MIN_STEPS, RATE = 1024, 8, 600, 5e-3
Numbers = NDArray[np.int64]
OnProgress = Callable[[str], None]  # hears what was done


@dataclass(frozen=True)
class Measure:
    """The mean over seeds, and their standard deviation: 0 for one seed."""

    mean: float
    spread: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Measure:
        """Of what each seed gave."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Baseline:
    """What can be had without vectors."""

    accuracy: float
    unseen: float | None  # accuracy on words that train does not have; None: there are none


@dataclass(frozen=True)
class LayerProbe:
    """What the probe of one layer reached on dev; shares are in 0..1."""

    layer: str  # "0", "1", …, "mix"
    accuracy: Measure
    unseen: Measure | None  # on words that train does not have; None: there are none
    control: Measure  # accuracy on the control task
    selectivity: Measure
    macro_f1: Measure  # the mean F1 of the labels that dev has
    f1: Mapping[str, Measure]  # of each label that dev has
    penalty: float  # L2
    shares: tuple[float, ...] = ()  # of the layers in the mix: mean over seeds
    gamma: float | None = None  # of the mix


@dataclass(frozen=True)
class Probing:
    """Probes of every layer and of their mix, with what they are to be compared with."""

    layers: tuple[LayerProbe, ...]
    labels: Mapping[str, int]  # how often dev has each, the most frequent first
    majority: Baseline  # the most frequent label of train
    per_word: Baseline  # of each word its most frequent label in train, else that of all words
    unknown_labels: Mapping[str, int]  # labels of dev that train does not have: always wrong
    n_train: int  # labels
    n_dev: int
    n_unseen: int  # of dev on words that train does not have
    n_seeds: int

    def rows(self) -> Iterator[tuple[str, str, str, int, float, float]]:
        """Layer or baseline, measure, label, what it is counted on, mean and spread."""
        for name, found in (("majority", self.majority), ("per word", self.per_word)):
            yield name, "accuracy", "", self.n_dev, found.accuracy, 0.0
            if found.unseen is not None:
                yield name, "unseen", "", self.n_unseen, found.unseen, 0.0
        for layer in self.layers:
            for name in ("accuracy", "unseen", "control", "selectivity", "macro_f1"):
                measure: Measure | None = getattr(layer, name)
                if measure is not None:
                    n = self.n_unseen if name == "unseen" else self.n_dev
                    yield layer.layer, name, "", n, measure.mean, measure.spread
            for label, measure in layer.f1.items():
                yield layer.layer, "f1", label, self.labels[label], measure.mean, measure.spread

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        from dataclasses import asdict

        return asdict(self)


def probe(
    elmo: Elmo,
    train: LabelledText,
    dev: LabelledText,
    *,
    n_seeds: int = 1,
    seed: int = 0,
    start: Start = "zero",
    on_progress: OnProgress | None = None,
) -> Probing:
    """Learn the labels of ``train`` from each layer and from their mix, and measure that on ``dev``.

    A seed decides the order in which words are learned from, and the control task's labels. The same seed
    gives the same figures. ``on_progress`` hears a line after each part of the work.
    """
    if n_seeds < 1:
        raise ConfigError(f"n_seeds must be at least 1, found {n_seeds}")
    task = _Task(train, dev)
    tell = on_progress or (lambda _: None)
    vectors = []
    for name, part in (("train", train), ("dev", dev)):
        vectors.append(_vectors(elmo, part, start, scale=vectors[0][1] if vectors else None))
        tell(f"{name}: {part.n_labels:,} labelled words read")
    (x, _), (dev_x, _) = vectors
    layers: list[LayerProbe] = []
    for name in [*map(str, range(len(x))), "mix"]:
        is_mix = name == "mix"
        here = (x, dev_x) if is_mix else (x[int(name), None], dev_x[int(name), None])
        layers.append(_probed(task, *here, name=name, seeds=range(seed, seed + n_seeds)))
        tell(f"{'mix' if is_mix else f'layer {name}'}: accuracy {layers[-1].accuracy.mean:.2%}")
    return Probing(
        layers=tuple(layers),
        labels=dict(task.dev_counts.most_common()),
        majority=task.baseline([task.majority] * dev.n_labels),
        per_word=task.baseline(task.by_word()),
        unknown_labels={
            label: n for label, n in task.dev_counts.most_common() if label not in task.number_of
        },
        n_train=train.n_labels,
        n_dev=dev.n_labels,
        n_unseen=int(task.is_unseen.sum()),
        n_seeds=n_seeds,
    )


class _Task:
    """The labels of both parts as numbers, and those of their controls."""

    def __init__(self, train: LabelledText, dev: LabelledText) -> None:
        for name, part in (("train", train), ("dev", dev)):
            if not part.n_labels:
                raise DataError(f"{name}: expected words with labels, found none")
        labels, dev_labels = train.labels, dev.labels
        counts = Counter(labels)
        if not 2 <= len(counts) <= MAX_LABELS:
            raise DataError(
                f"train: expected 2 to {MAX_LABELS:,} different labels, found {len(counts):,}; "
                "is it the right column?"
            )
        self.names = sorted(counts)
        self.number_of = {label: k for k, label in enumerate(self.names)}
        self.words, self.dev_words = train.words, dev.words
        self.y = np.array([self.number_of[label] for label in labels])
        self.dev_y = np.array([self.number_of.get(label, -1) for label in dev_labels])
        self.dev_counts = Counter(dev_labels)
        self.majority = self.number_of[counts.most_common(1)[0][0]]
        known = set(self.words)
        self.is_unseen = np.array([word not in known for word in self.dev_words])
        sentence = [k for k, one in enumerate(train.sentences) for x in one.labels if x is not None]
        self.is_held_out = np.array(sentence) % 10 == 9  # to choose a penalty by

    def controls(self, seed: int) -> tuple[Numbers, Numbers]:
        """A label for each word of train and of dev, the same wherever the same word stands."""
        shares = np.cumsum(np.bincount(self.y) / len(self.y))
        drawn: dict[str, int] = {}
        for word in {*self.words, *self.dev_words}:
            chance = random.Random(f"{seed} {word}".encode("utf-8", "surrogatepass")).random()
            drawn[word] = min(int(np.searchsorted(shares, chance, side="right")), len(self.names) - 1)
        train, dev = ([drawn[word] for word in words] for words in (self.words, self.dev_words))
        return np.array(train), np.array(dev)

    def by_word(self) -> list[int]:
        """The label that each word of dev mostly has in train."""
        seen: dict[str, Counter[int]] = defaultdict(Counter)
        for word, label in zip(self.words, self.y.tolist(), strict=True):
            seen[word][label] += 1
        best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        return [best.get(word, self.majority) for word in self.dev_words]

    def baseline(self, guessed: Sequence[int]) -> Baseline:
        is_right = np.array(guessed) == self.dev_y
        unseen = float(is_right[self.is_unseen].mean()) if self.is_unseen.any() else None
        return Baseline(float(is_right.mean()), unseen)

    def f1(self, guessed: Numbers) -> dict[str, float]:
        """Of each label that dev has."""
        found = {}
        for label, n in self.dev_counts.most_common():
            number = self.number_of.get(label, -2)  # of a label unknown to train nothing is found
            n_right = int(((guessed == number) & (self.dev_y == number)).sum())
            found[label] = 2 * n_right / (n + int((guessed == number).sum()))
        return found


def _vectors(
    elmo: Elmo, text: LabelledText, start: Start, *, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Vectors of the labelled words (layer, token, width) in float16, and what they were divided by."""
    import torch

    found: list[Tensor] = []
    for piece in split_batches(text.sentences, batch_size=None):
        encoded = elmo.encode(
            [one.tokens for one in piece], layers="all", start=start, as_tensor=True, dtype="float32"
        )
        for encoding, one in zip(encoded, piece, strict=True):
            is_labelled = torch.tensor([label is not None for label in one.labels])
            found.append(torch.as_tensor(encoding.vectors).cpu()[:, is_labelled])
        rows = found[-len(piece) :]
        if scale is None:  # float16 holds numbers around 1 best; probes standardise in any case
            size = torch.cat(rows, dim=1).abs().amax(dim=(1, 2), keepdim=True)
            scale = torch.where(size > 0, size / 64, 1.0)
        found[-len(piece) :] = [(torch.cat(rows, dim=1) / scale).clamp(-6e4, 6e4).half()]
    assert scale is not None  # noqa: S101 -- there is a sentence
    return torch.cat(found, dim=1), scale


def _probed(task: _Task, x: Tensor, dev_x: Tensor, *, name: str, seeds: Sequence[int]) -> LayerProbe:
    """The probe of ``x`` (layer, token, width): of one layer, or of the mix of several."""
    penalty = _penalty(task, x, seed=seeds[0])
    accuracies, unseen, controls, f1s, fits = [], [], [], [], []
    for seed in seeds:
        control, dev_control = task.controls(seed)
        fit = _fit(
            x, np.stack([task.y, control]), n_labels=len(task.names), penalties=[penalty] * 2, seed=seed
        )
        guessed, guessed_control = fit.guesses(dev_x)
        is_right = guessed == task.dev_y
        accuracies.append(float(is_right.mean()))
        unseen.append(float(is_right[task.is_unseen].mean()) if task.is_unseen.any() else None)
        controls.append(float((guessed_control == dev_control).mean()))
        f1s.append(task.f1(guessed))
        fits.append(fit)
    mixes = [fit.mixes[0] for fit in fits if fit.mixes]
    return LayerProbe(
        layer=name,
        accuracy=Measure.of(accuracies),
        unseen=Measure.of(unseen) if task.is_unseen.any() else None,
        control=Measure.of(controls),
        selectivity=Measure.of([a - c for a, c in zip(accuracies, controls, strict=True)]),
        macro_f1=Measure.of([statistics.fmean(f1.values()) for f1 in f1s]),
        f1={label: Measure.of([f1[label] for f1 in f1s]) for label in f1s[0]},
        penalty=penalty,
        shares=tuple(statistics.fmean(s) for s in zip(*(mix.shares.tolist() for mix in mixes), strict=True)),
        gamma=statistics.fmean(float(mix.gamma.detach()) for mix in mixes) if mixes else None,
    )


def _penalty(task: _Task, x: Tensor, *, seed: int) -> float:
    """The penalty that is best on a slice of train; of equals the strongest."""
    import torch

    inside = np.flatnonzero(~task.is_held_out)[:CHOICE_TOKENS]
    slice_ = np.flatnonzero(task.is_held_out)[: CHOICE_TOKENS // 6]
    if not len(slice_):  # fewer than ten sentences
        return PENALTIES[1]
    y = np.broadcast_to(task.y[inside], (len(PENALTIES), len(inside)))
    fit = _fit(x[:, torch.from_numpy(inside)], y, n_labels=len(task.names), penalties=PENALTIES, seed=seed)
    guessed = fit.guesses(x[:, torch.from_numpy(slice_)])  # (penalty, token)
    return PENALTIES[int((guessed == task.y[slice_]).mean(axis=1).argmax())]


@dataclass(frozen=True, eq=False)
class _Fit:
    """Several classifiers of the same vectors, each of which has its own labels or its own penalty."""

    mean: Tensor  # (layer, 1, width)
    spread: Tensor
    weight: Tensor  # (head, width, label)
    bias: Tensor  # (head, 1, label)
    mixes: Sequence[LayerMix]  # one for each, or none where there is one layer

    def logits(self, x: Tensor) -> Tensor:
        """(layer, token, width) to (head, token, label)."""
        import torch

        from elmo.model.bilm import Layers

        states = (x.float() - self.mean) / self.spread
        if not self.mixes:
            return torch.baddbmm(self.bias, states.expand(len(self.weight), -1, -1), self.weight)
        mask = torch.ones(1, x.size(1), dtype=torch.bool)
        layers = Layers(states[None], mask, has_boundaries=False)
        return torch.baddbmm(self.bias, torch.cat([mix(layers) for mix in self.mixes]), self.weight)

    def guesses(self, x: Tensor) -> Numbers:
        """The likeliest label (head, token)."""
        import torch

        with torch.inference_mode():
            return torch.cat(
                [self.logits(part).argmax(dim=2) for part in x.split(8192, dim=1)], dim=1
            ).numpy()


def _fit(x: Tensor, y: Numbers, *, n_labels: int, penalties: Sequence[float], seed: int) -> _Fit:
    """Softmax regressions of labels ``y`` (head, token) on ``x`` (layer, token, width), all in one pass."""
    import torch
    import torch.nn.functional as F

    from elmo.model.mix import LayerMix

    n_heads, n_tokens = y.shape
    targets = torch.from_numpy(np.ascontiguousarray(y))
    weight = torch.zeros(n_heads, x.size(2), n_labels, requires_grad=True)
    bias = torch.zeros(n_heads, 1, n_labels, requires_grad=True)
    mixes = [LayerMix(len(x)) for _ in range(n_heads)] if len(x) > 1 else []
    fit = _Fit(*_moments(x), weight, bias, mixes)
    penalty = torch.tensor(penalties)[:, None, None]
    size = min(BATCH, max(16, n_tokens // 32))  # a small text needs small batches to take its steps in
    n_batches = -(-n_tokens // size)
    n_rounds = max(N_ROUNDS, -(-MIN_STEPS // n_batches))
    parameters = [weight, bias, *(p for mix in mixes for p in mix.parameters())]
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    order = torch.Generator().manual_seed(seed)
    for _ in range(n_rounds):
        for batch in torch.randperm(n_tokens, generator=order).split(size):
            logits = fit.logits(x[:, batch])
            # a sum over heads: none of them takes part in another's gradient
            loss = n_heads * F.cross_entropy(logits.flatten(0, 1), targets[:, batch].flatten())
            loss = loss + (penalty * weight.square()).sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            optimiser.param_groups[0]["lr"] -= RATE / (n_rounds * n_batches)  # evenly down to nothing
    return fit


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column of each layer, (layer, 1, width), in float64 sums."""
    import torch

    sums = torch.zeros(2, len(x), 1, x.size(2), dtype=torch.float64)
    for part in x.split(8192, dim=1):
        exact = part.double()
        sums += torch.stack([exact.sum(dim=1, keepdim=True), exact.square().sum(dim=1, keepdim=True)])
    mean, square = sums / x.size(1)
    spread = (square - mean.square()).clamp(min=0).sqrt()
    return mean.float(), torch.where(spread > 1e-6, spread, 1.0).float()  # what never changes tells nothing
