"""A model and labelled text in, how much of the labels each layer holds out: linear probes with controls.

A probe is a softmax regression on the vectors of one layer, or on ELMo's learned mix of all layers, each
standardised. It is measured beside a control task (Hewitt & Liang 2019): every word type has a label drawn
once from the task's label distribution, which a probe can only learn by heart. Selectivity is the accuracy
on the task minus that on the control.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elmo.embed.pieces import pieces
from elmo.errors import ConfigError, DataError
from elmo.lexicon.labelled import LabelledText

if TYPE_CHECKING:
    from torch import Tensor

    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start
    from elmo.model.mix import LayerMix

MAX_TOKENS = 300_000  # of train: about 1.8 GB of vectors for three layers of 1,024
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
    for piece in pieces(text.sentences, batch_size=None):
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

        from elmo.model.layers import Layers

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
