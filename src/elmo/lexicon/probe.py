"""Linear probes: measure how well the labels of words can be predicted from each layer of a model.

A probe is a softmax regression on the standardized vectors of one layer, or on a learned mix of all layers. It
is compared with a control task (Hewitt and Liang 2019), in which each distinct word has a random label from the
same distribution, so that the labels can only be memorized. Selectivity is the accuracy on the task minus the
accuracy on the control task.
"""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
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

MAX_TRAIN_TOKENS = 300_000  # about 1.8 GB of vectors for three layers of 1,024
MAX_LABELS = 1_000  # a column with more different values is probably the wrong one
PENALTIES = (1e-2, 1e-3, 1e-4, 1e-5, 0.0)  # candidate weights of the L2 penalty, the strongest first
SELECTION_TOKENS = 60_000  # maximum number of words to train on when the penalty is chosen
BATCH_SIZE, N_EPOCHS, MIN_STEPS, LEARNING_RATE = 1024, 8, 600, 5e-3
Integers = NDArray[np.int64]
OnProgress = Callable[[str], None]  # receives a message after each stage


@dataclass(frozen=True)
class MeanScore:
    """The mean of a score over seeds, and its standard deviation (0 for one seed)."""

    mean: float
    spread: float = 0.0

    @classmethod
    def from_seeds(cls, values: Sequence[float]) -> MeanScore:
        """Summarize the scores of all seeds."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True)
class Baseline:
    """Scores of a simple prediction that uses no vectors."""

    accuracy: float
    unseen: float | None  # accuracy on words that are not in train; None if there are none


@dataclass(frozen=True)
class LayerProbe:
    """Scores of the probe of one layer on dev, from 0 to 1.

    Attributes:
        layer: Number of the layer, such as "0", or "mix".
        accuracy: Accuracy.
        unseen: Accuracy on words that are not in train; None if there are none.
        control: Accuracy on the control task.
        selectivity: Accuracy minus accuracy on the control task.
        macro_f1: Mean F1 of all labels of dev.
        f1: F1 of each label of dev.
        penalty: Weight of the L2 penalty.
        shares: Weights of the layers in the mix, averaged over seeds.
        gamma: Scale of the mix, averaged over seeds.
    """

    layer: str
    accuracy: MeanScore
    unseen: MeanScore | None
    control: MeanScore
    selectivity: MeanScore
    macro_f1: MeanScore
    f1: Mapping[str, MeanScore]
    penalty: float
    shares: tuple[float, ...] = ()
    gamma: float | None = None


@dataclass(frozen=True)
class ProbeResults:
    """The scores of the probes of all layers and of the mix, and of two baselines.

    Attributes:
        layers: Scores of the probe of each layer; the last one is that of the mix.
        labels: Number of words in dev with each label, the most frequent label first.
        majority: Scores of always predicting the most frequent label of train.
        per_word: Scores of predicting the most frequent label of each word in train, and the majority label
            for words that are not in train.
        unknown_labels: Number of words in dev with each label that is not in train; they count as errors.
        n_train: Number of labeled words in train.
        n_dev: Number of labeled words in dev.
        n_unseen: Number of labeled words in dev that are not in train.
        n_seeds: Number of probes per layer.
    """

    layers: tuple[LayerProbe, ...]
    labels: Mapping[str, int]
    majority: Baseline
    per_word: Baseline
    unknown_labels: Mapping[str, int]
    n_train: int
    n_dev: int
    n_unseen: int
    n_seeds: int

    def rows(self) -> Iterator[tuple[str, str, str, int, float, float]]:
        """Yield table rows: layer or baseline, measure, label, number of words, mean and spread."""
        for name, baseline in (("majority", self.majority), ("per word", self.per_word)):
            yield name, "accuracy", "", self.n_dev, baseline.accuracy, 0.0
            if baseline.unseen is not None:
                yield name, "unseen", "", self.n_unseen, baseline.unseen, 0.0
        for layer in self.layers:
            for name in ("accuracy", "unseen", "control", "selectivity", "macro_f1"):
                score: MeanScore | None = getattr(layer, name)
                if score is not None:
                    n = self.n_unseen if name == "unseen" else self.n_dev
                    yield layer.layer, name, "", n, score.mean, score.spread
            for label, score in layer.f1.items():
                yield layer.layer, "f1", label, self.labels[label], score.mean, score.spread

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary of JSON values."""
        return asdict(self)


def probe_layers(
    elmo: Elmo,
    train: LabeledSentences,
    dev: LabeledSentences,
    *,
    n_seeds: int = 1,
    seed: int = 0,
    start: Start = "zero",
    on_progress: OnProgress | None = None,
) -> ProbeResults:
    """Train a probe on each layer and on the mix of all layers, and evaluate the probes on ``dev``.

    Args:
        elmo: The model.
        train: Sentences to train on.
        dev: Sentences to evaluate on.
        n_seeds: Number of probes per layer, which have consecutive seeds.
        seed: First seed. It determines the order of the training words and the labels of the control task.
        start: Start state of the LSTMs, as in ``Elmo.encode``.
        on_progress: Called with a message after each stage.

    Example:
        >>> train, dev = (read_labels(f"{part}.conll", "2") for part in ("train", "dev"))
        >>> results = probe_layers(elmo, train, dev)
        >>> len(results.layers) == elmo.n_layers + 1  # and the mix of all layers
        True
    """
    if n_seeds < 1:
        raise ConfigError(f"n_seeds must be at least 1; found {n_seeds}")
    task = _ProbeTask(train, dev)
    report = on_progress or (lambda _: None)
    x, scale = _embed(elmo, train, start)
    report(f"train: {train.n_labels:,} labeled words embedded")
    dev_x, _ = _embed(elmo, dev, start, scale=scale)
    report(f"dev: {dev.n_labels:,} labeled words embedded")
    seeds = range(seed, seed + n_seeds)
    layers: list[LayerProbe] = []
    for k in range(len(x)):
        layers.append(_probe(task, x[k, None], dev_x[k, None], name=str(k), seeds=seeds))
        report(f"layer {k}: accuracy {layers[-1].accuracy.mean:.2%}")
    layers.append(_probe(task, x, dev_x, name="mix", seeds=seeds))
    report(f"mix: accuracy {layers[-1].accuracy.mean:.2%}")
    return ProbeResults(
        layers=tuple(layers),
        labels=dict(task.dev_counts.most_common()),
        majority=task.score([task.majority] * dev.n_labels),
        per_word=task.score(task.predict_by_word()),
        unknown_labels={label: n for label, n in task.dev_counts.most_common() if label not in task.id_of_label},
        n_train=train.n_labels,
        n_dev=dev.n_labels,
        n_unseen=int(task.is_unseen.sum()),
        n_seeds=n_seeds,
    )


class _ProbeTask:
    """The words and label ids of train and dev, for the task and the control task."""

    def __init__(self, train: LabeledSentences, dev: LabeledSentences) -> None:
        for name, part in (("train", train), ("dev", dev)):
            if not part.n_labels:
                raise DataError(f"{name}: expected words with labels, found none")
        labels, dev_labels = train.labels, dev.labels
        counts = Counter(labels)
        if not 2 <= len(counts) <= MAX_LABELS:
            raise DataError(
                f"train: expected 2 to {MAX_LABELS:,} different labels, found {len(counts):,}; check the column"
            )
        self.names = sorted(counts)
        self.id_of_label = {label: k for k, label in enumerate(self.names)}
        self.words, self.dev_words = train.words, dev.words
        self.y = np.array([self.id_of_label[label] for label in labels])
        self.dev_y = np.array([self.id_of_label.get(label, -1) for label in dev_labels])
        self.dev_counts = Counter(dev_labels)
        self.majority = self.id_of_label[counts.most_common(1)[0][0]]
        known = set(self.words)
        self.is_unseen = np.array([word not in known for word in self.dev_words])
        numbers = [k for k, sentence in enumerate(train.sentences) for x in sentence.labels if x is not None]
        self.is_held_out = np.array(numbers) % 10 == 9  # to choose the penalty

    def control_labels(self, seed: int) -> tuple[Integers, Integers]:
        """Draw a random label for each distinct word; return the labels of the words of train and of dev."""
        cumulative = np.cumsum(np.bincount(self.y) / len(self.y))
        labels: dict[str, int] = {}
        for word in {*self.words, *self.dev_words}:
            x = random.Random(f"{seed} {word}".encode("utf-8", "surrogatepass")).random()
            labels[word] = min(int(np.searchsorted(cumulative, x, side="right")), len(self.names) - 1)
        train, dev = ([labels[word] for word in words] for words in (self.words, self.dev_words))
        return np.array(train), np.array(dev)

    def predict_by_word(self) -> list[int]:
        """Predict the most frequent label of each word in train, and the majority label for other words."""
        seen: dict[str, Counter[int]] = defaultdict(Counter)
        for word, label in zip(self.words, self.y.tolist(), strict=True):
            seen[word][label] += 1
        best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        return [best.get(word, self.majority) for word in self.dev_words]

    def score(self, predicted: Sequence[int] | Integers) -> Baseline:
        """Compute the accuracy of predictions for dev, on all words and on words that are not in train."""
        is_right = np.array(predicted) == self.dev_y
        unseen = float(is_right[self.is_unseen].mean()) if self.is_unseen.any() else None
        return Baseline(float(is_right.mean()), unseen)

    def f1(self, predicted: Integers) -> dict[str, float]:
        """Compute the F1 of each label of dev."""
        scores = {}
        for label, n in self.dev_counts.most_common():
            label_id = self.id_of_label.get(label, -2)  # labels that are not in train are never predicted
            n_right = int(((predicted == label_id) & (self.dev_y == label_id)).sum())
            scores[label] = 2 * n_right / (n + int((predicted == label_id).sum()))
        return scores


def _embed(elmo: Elmo, text: LabeledSentences, start: Start, *, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the vectors of labeled words (layer, token, width) in float16, divided by ``scale``, and the scale."""
    import torch

    pieces: list[Tensor] = []
    for batch in split_batches(text.sentences, batch_size=None):
        tokens = [sentence.tokens for sentence in batch]
        encodings = elmo.encode(tokens, layers="all", start=start, as_tensor=True, dtype="float32")
        rows = [
            torch.as_tensor(encoding.vectors).cpu()[:, torch.tensor([label is not None for label in sentence.labels])]
            for encoding, sentence in zip(encodings, batch, strict=True)
        ]
        vectors = torch.cat(rows, dim=1)
        if scale is None:  # avoids overflow and underflow in float16; probes standardize the vectors anyway
            largest = vectors.abs().amax(dim=(1, 2), keepdim=True)
            scale = torch.where(largest > 0, largest / 64, 1.0)
        pieces.append((vectors / scale).clamp(-6e4, 6e4).half())
    assert scale is not None  # noqa: S101 -- there is at least one sentence
    return torch.cat(pieces, dim=1), scale


def _probe(task: _ProbeTask, x: Tensor, dev_x: Tensor, *, name: str, seeds: Sequence[int]) -> LayerProbe:
    """Train and evaluate probes on ``x`` (layer, token, width), which has one layer or all layers to mix."""
    penalty = _choose_penalty(task, x, seed=seeds[0])
    accuracies, unseen, controls, f1s, mixes = [], [], [], [], []
    for seed in seeds:
        control, dev_control = task.control_labels(seed)
        y = np.stack([task.y, control])
        probes = _fit(x, y, n_labels=len(task.names), penalties=[penalty] * 2, seed=seed)
        predicted, predicted_control = probes.predict(dev_x)
        scores = task.score(predicted)
        accuracies.append(scores.accuracy)
        unseen.append(scores.unseen)
        controls.append(float((predicted_control == dev_control).mean()))
        f1s.append(task.f1(predicted))
        mixes += probes.mixes[:1]
    return LayerProbe(
        layer=name,
        accuracy=MeanScore.from_seeds(accuracies),
        unseen=MeanScore.from_seeds(unseen) if task.is_unseen.any() else None,
        control=MeanScore.from_seeds(controls),
        selectivity=MeanScore.from_seeds([a - c for a, c in zip(accuracies, controls, strict=True)]),
        macro_f1=MeanScore.from_seeds([statistics.fmean(f1.values()) for f1 in f1s]),
        f1={label: MeanScore.from_seeds([f1[label] for f1 in f1s]) for label in f1s[0]},
        penalty=penalty,
        shares=tuple(statistics.fmean(s) for s in zip(*(mix.shares.tolist() for mix in mixes), strict=True)),
        gamma=statistics.fmean(float(mix.gamma.detach()) for mix in mixes) if mixes else None,
    )


def _choose_penalty(task: _ProbeTask, x: Tensor, *, seed: int) -> float:
    """Choose the penalty with the best accuracy on held-out sentences of train; if several are equal, the strongest."""
    import torch

    train = np.flatnonzero(~task.is_held_out)[:SELECTION_TOKENS]
    held_out = np.flatnonzero(task.is_held_out)[: SELECTION_TOKENS // 6]
    if not len(held_out):  # fewer than ten sentences
        return PENALTIES[1]
    y = np.broadcast_to(task.y[train], (len(PENALTIES), len(train)))
    probes = _fit(x[:, torch.from_numpy(train)], y, n_labels=len(task.names), penalties=PENALTIES, seed=seed)
    predicted = probes.predict(x[:, torch.from_numpy(held_out)])  # (penalty, token)
    return PENALTIES[int((predicted == task.y[held_out]).mean(axis=1).argmax())]


@dataclass(frozen=True, eq=False)
class _SoftmaxRegressions:
    """Several softmax regressions (heads) on the same vectors, with different labels or penalties."""

    mean: Tensor  # (layer, 1, width)
    spread: Tensor
    weight: Tensor  # (head, width, label)
    bias: Tensor  # (head, 1, label)
    mixes: Sequence[LayerMix]  # one per head; empty for one layer

    def logits(self, x: Tensor) -> Tensor:
        """Map vectors (layer, token, width) to logits (head, token, label)."""
        import torch

        from elmo.model.bilm import Layers

        states = (x.float() - self.mean) / self.spread
        if not self.mixes:
            return torch.baddbmm(self.bias, states.expand(len(self.weight), -1, -1), self.weight)
        mask = torch.ones(1, x.size(1), dtype=torch.bool)
        layers = Layers(states[None], mask, has_boundaries=False)
        return torch.baddbmm(self.bias, torch.cat([mix(layers) for mix in self.mixes]), self.weight)

    def predict(self, x: Tensor) -> Integers:
        """Return the most probable labels (head, token)."""
        import torch

        with torch.inference_mode():
            return torch.cat([self.logits(part).argmax(dim=2) for part in x.split(8192, dim=1)], dim=1).numpy()


def _fit(x: Tensor, y: Integers, *, n_labels: int, penalties: Sequence[float], seed: int) -> _SoftmaxRegressions:
    """Fit softmax regressions from vectors ``x`` (layer, token, width) to labels ``y`` (head, token)."""
    import torch
    import torch.nn.functional as F

    from elmo.model.mix import LayerMix

    n_heads, n_tokens = y.shape
    targets = torch.from_numpy(np.ascontiguousarray(y))
    weight = torch.zeros(n_heads, x.size(2), n_labels, requires_grad=True)
    bias = torch.zeros(n_heads, 1, n_labels, requires_grad=True)
    mixes = [LayerMix(len(x)) for _ in range(n_heads)] if len(x) > 1 else []
    probes = _SoftmaxRegressions(*_moments(x), weight, bias, mixes)
    penalty = torch.tensor(penalties)[:, None, None]
    batch_size = min(BATCH_SIZE, max(16, n_tokens // 32))  # smaller batches give a small text enough steps
    n_batches = -(-n_tokens // batch_size)
    n_epochs = max(N_EPOCHS, -(-MIN_STEPS // n_batches))
    parameters = [weight, bias, *(p for mix in mixes for p in mix.parameters())]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    order = torch.Generator().manual_seed(seed)
    for _ in range(n_epochs):
        for batch in torch.randperm(n_tokens, generator=order).split(batch_size):
            logits = probes.logits(x[:, batch])
            # The losses of the heads are added, so that the gradient of a head does not depend on the others.
            loss = n_heads * F.cross_entropy(logits.flatten(0, 1), targets[:, batch].flatten())
            loss = loss + (penalty * weight.square()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            optimizer.param_groups[0]["lr"] -= LEARNING_RATE / (n_epochs * n_batches)  # linear decay
    return probes


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the standard deviation of each feature (layer, 1, width), in float64."""
    import torch

    sums = torch.zeros(2, len(x), 1, x.size(2), dtype=torch.float64)
    for part in x.split(8192, dim=1):
        exact = part.double()
        sums += torch.stack([exact.sum(dim=1, keepdim=True), exact.square().sum(dim=1, keepdim=True)])
    mean, square = sums / x.size(1)
    spread = (square - mean.square()).clamp(min=0).sqrt()
    return mean.float(), torch.where(spread > 1e-6, spread, 1.0).float()  # constant features are not scaled


# --- Files with labels ------------------------------------------------------------------------------

FileFormat = Literal["auto", "conllu", "columns"]
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_CONLLU_NAME = re.compile(r"\.conllu(\.(gz|xz|bz2|zst))?$", re.IGNORECASE)
_FIRST_ID = re.compile(r"1|1-[0-9]+|0\.1")
_NOT_A_WORD = re.compile(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+")  # a multiword token, or an empty node
WordAndLabel = tuple[str, str | None]


@dataclass(frozen=True)
class LabeledSentence:
    """The words of a sentence with their labels; None for words without a label."""

    tokens: tuple[str, ...]
    labels: tuple[str | None, ...]
    place: str  # file:line of its first word

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class LabeledSentences:
    """Sentences of a text that have at least one label.

    Attributes:
        sentences: The sentences.
        n_labels: Number of words with a label.
        n_unlabeled: Number of words without a label, including those in sentences without any label.
        is_truncated: Whether the text has more labels than were read.
    """

    sentences: tuple[LabeledSentence, ...]
    n_labels: int
    n_unlabeled: int
    is_truncated: bool

    @classmethod
    def collect(cls, sentences: Iterable[LabeledSentence], *, max_tokens: int | None = None) -> LabeledSentences:
        """Collect sentences with at most ``max_tokens`` labels in total, but always at least one sentence."""
        kept: list[LabeledSentence] = []
        n_labels = n_unlabeled = 0
        for sentence in sentences:
            n = sum(label is not None for label in sentence.labels)
            if n and kept and max_tokens is not None and n_labels + n > max_tokens:
                return cls(tuple(kept), n_labels, n_unlabeled, is_truncated=True)
            n_labels, n_unlabeled = n_labels + n, n_unlabeled + len(sentence) - n
            if n:
                kept.append(sentence)
        return cls(tuple(kept), n_labels, n_unlabeled, is_truncated=False)

    @property
    def labels(self) -> list[str]:
        """All labels, in the order of the text."""
        return [label for sentence in self.sentences for label in sentence.labels if label is not None]

    @property
    def words(self) -> list[str]:
        """All words that have a label, in the order of the text."""
        return [
            word
            for sentence in self.sentences
            for word, label in zip(sentence.tokens, sentence.labels, strict=True)
            if label is not None
        ]


def read_labels(
    path: str | Path,
    column: str | int,
    *,
    tokens_column: str | int | None = None,
    file_format: FileFormat = "auto",
    has_header: bool = False,
    max_tokens: int | None = None,
    errors: ErrorPolicy = "strict",
) -> LabeledSentences:
    """Read words and their labels from CoNLL-U or from other files with one word per line.

    A line with only white space ends a sentence. In CoNLL-U, a word with ``_`` or without the feature has no
    label.

    Args:
        path: A file, glob or folder, compressed or not; ``-`` is stdin.
        column: Column of the labels. In CoNLL-U, the name of a column (``upos``, ``xpos``, ``deprel``) or of
            a feature (``feats:Number``); in other files, the number of a column from 1, or its name in a header.
        tokens_column: Column of the words. Default: ``form`` in CoNLL-U, the first column in other files.
        file_format: CoNLL-U (conllu), or columns separated by tabs or, in files without tabs, by spaces.
        has_header: Whether the first line has the names of the columns. True if a column is given by name.
        max_tokens: Maximum number of labels to read.
        errors: What to do with bytes that are not UTF-8.

    Example:
        >>> data = read_labels("train.conll", 2)
        >>> "B-LOC" in data.labels
        True
    """
    if file_format not in get_args(FileFormat):
        raise ConfigError(f"file_format must be auto, conllu or columns; found {str(file_format)!r:.40}")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"max_tokens must be at least 1; found {max_tokens}")
    files = expand_paths([str(path)])
    with closing(
        _read_sentences(
            files, str(column), tokens_column, file_format=file_format, has_header=has_header, errors=errors
        )
    ) as sentences:  # closes the file at once after an error or if the limit is reached
        labeled = LabeledSentences.collect(sentences, max_tokens=max_tokens)
    if not labeled.n_labels:
        content = f"{labeled.n_unlabeled:,} words without a label" if labeled.n_unlabeled else "no words"
        name = ", ".join(map(format_path, files[:3]))
        raise DataError(f"{name}: expected labels in column {str(column)[:40]}, found {content}")
    return labeled


@dataclass(frozen=True)
class _Columns:
    """Where the words and the labels of a file are; columns are numbered from 0."""

    word: int
    label: int
    is_tabbed: bool  # columns are separated by tabs, otherwise by spaces
    is_conllu: bool = False
    feature: str = ""  # feature in a CoNLL-U column, such as Number; empty for the whole column
    n_columns: int = 0  # number of columns in every line; 0 if unknown

    def parse(self, columns: Sequence[str], place: str) -> WordAndLabel:
        """Return the word and the label of a line."""
        n_needed = max(self.word, self.label) + 1
        if len(columns) < n_needed or (self.n_columns and len(columns) != self.n_columns):
            expected = f"{self.n_columns} columns" if self.n_columns else f"{n_needed} columns or more"
            raise DataError(
                f"{place}: expected {expected} separated by {_separator(self.is_tabbed)}, found {len(columns)}"
            )
        word, label = columns[self.word], columns[self.label].strip()
        label_or_blank = "a label or _" if self.is_conllu else "a label"
        for text, what, k in ((word, "a word", self.word), (label, label_or_blank, self.label)):
            if not text:
                name = CONLLU[k] if self.is_conllu else k + 1
                raise DataError(f"{place}: expected {what} in column {name}, found nothing")
        if self.feature:
            features = dict(pair.split("=", 1) for pair in label.split("|") if "=" in pair)
            return word, features.get(self.feature)
        return word, None if self.is_conllu and label == "_" else label


def _read_sentences(
    files: Iterable[Source],
    column: str,
    tokens_column: str | int | None,
    *,
    file_format: FileFormat,
    has_header: bool,
    errors: ErrorPolicy,
) -> Generator[LabeledSentence]:
    for file in files:
        with closing(read_lines(file, errors=errors)) as lines:
            head: list[Line] = []  # up to the first line with columns
            for line in lines:
                head.append(line)
                if line.text.strip() and not _is_comment(line.text):
                    break
            if not any(line.text.strip() for line in head):
                continue
            if file_format == "conllu" or (file_format == "auto" and _seems_conllu(file, head[-1].text)):
                columns = _find_conllu_columns(column, str(tokens_column or "form"))
            else:
                has_name = any(name is not None and not _is_number(str(name)) for name in (column, tokens_column))
                is_tabbed = "\t" in head[-1].text
                header = head.pop() if has_header or has_name else None
                columns = _find_columns(column, str(tokens_column or 1), header=header, is_tabbed=is_tabbed)
            yield from _parse_sentences(chain(head, lines), columns)


def _seems_conllu(file: Source, first: str) -> bool:
    """Return whether the name of a file, or its first line with columns, is typical of CoNLL-U."""
    columns = first.split("\t")
    is_first_word = len(columns) == len(CONLLU) and _FIRST_ID.fullmatch(columns[0]) is not None
    return is_first_word or _CONLLU_NAME.search(str(file)) is not None


def _parse_sentences(lines: Iterable[Line], layout: _Columns) -> Iterator[LabeledSentence]:
    is_conllu, is_tabbed = layout.is_conllu, layout.is_tabbed
    rows: list[WordAndLabel] = []
    place, n_columns = "", 0
    for line in lines:
        here = f"{line.path}:{line.number}"
        if not line.text.strip():
            if rows:
                yield _build_sentence(rows, place)
            rows, n_columns = [], 0
            continue
        columns = _split_columns(line.text, is_tabbed=is_tabbed)
        if _is_comment(line.text) and (is_tabbed or columns[0] in ("#begin", "#end")):
            continue
        if columns[0] == "-DOCSTART-" or (is_conllu and _NOT_A_WORD.fullmatch(columns[0])):
            continue
        # In files with one column per predicate, the number of columns differs between sentences.
        n_columns = n_columns or len(columns)
        if len(columns) != n_columns:
            raise DataError(
                f"{here}: expected {n_columns} columns separated by {_separator(is_tabbed)}, as in the line "
                f"before, found {len(columns)}"
            )
        place = place if rows else here
        rows.append(layout.parse(columns, here))
        if len(rows) > MAX_TOKENS:
            raise DataError(f"{place}: expected an empty line after at most {MAX_TOKENS:,} words, found none")
    if rows:
        yield _build_sentence(rows, place)


def _build_sentence(rows: Sequence[WordAndLabel], place: str) -> LabeledSentence:
    return LabeledSentence(tuple(word for word, _ in rows), tuple(label for _, label in rows), place)


def _find_conllu_columns(column: str, tokens_column: str) -> _Columns:
    name, _, feature = column.partition(":")
    label, word = _find_conllu_column(name), _find_conllu_column(tokens_column)
    if feature and CONLLU[label] not in ("feats", "misc"):
        raise ConfigError(f"cannot use column {column[:40]!r}: only feats and misc have parts, such as feats:Number")
    return _Columns(word, label, is_tabbed=True, is_conllu=True, feature=feature, n_columns=len(CONLLU))


def _find_conllu_column(name: str) -> int:
    if _is_number(name) and 1 <= int(name) <= len(CONLLU):
        return int(name) - 1
    if name.lower() not in CONLLU:
        raise ConfigError(f"column must be one of {', '.join(CONLLU)} or 1 to 10 in CoNLL-U; found {name[:40]!r}")
    return CONLLU.index(name.lower())


def _find_columns(column: str, tokens_column: str, *, header: Line | None, is_tabbed: bool) -> _Columns:
    label, word = (_find_column(name, header, is_tabbed=is_tabbed) for name in (column, tokens_column))
    if label == word:
        raise ConfigError(
            f"column {column[:40]!r} contains the words; choose another column for the labels or the words"
        )
    n_columns = len(_split_columns(header.text, is_tabbed=is_tabbed)) if header else 0
    return _Columns(word, label, is_tabbed=is_tabbed, n_columns=n_columns)


def _find_column(name: str, header: Line | None, *, is_tabbed: bool) -> int:
    if _is_number(name):
        if int(name) < 1:
            raise ConfigError("column must be at least 1; found 0")
        return int(name) - 1
    names = [name.strip() for name in _split_columns(header.text, is_tabbed=is_tabbed)] if header else []
    if name not in names:
        listed = ", ".join(names[:12])[:120] or "nothing"
        prefix = f"{header.path}:{header.number}: " if header else ""
        raise DataError(f"{prefix}expected a header with {name[:40]!r}, found {listed}; use a name in it, or a number")
    return names.index(name)


def _split_columns(text: str, *, is_tabbed: bool) -> list[str]:
    return text.split("\t") if is_tabbed else [part for part in text.split(" ") if part]


def _separator(is_tabbed: bool) -> str:
    return "tabs" if is_tabbed else "spaces"


def _is_comment(text: str) -> bool:
    """Return whether a line can be a comment; a # at the start of a line with tabs is a word."""
    return text.startswith("#") and "\t" not in text


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 6
