"""Sizes and a time to train in, the size to train out: the one that a scaling law expects most of.

A few windows of real training on the real corpus tell how fast a size is; of a large one its arithmetic tells
first whether it comes into question at all. The law is L = E + A / N^α + B / D^β for N weights and D tokens,
with the constants that Hoffmann et al. 2022 fitted ("Training Compute-Optimal Large Language Models"); tokens
that are read again, and weights that a text cannot feed, count for less and less, as Muennighoff et al. 2023
found ("Scaling Data-Constrained Language Models"). These were Transformers: we do not believe the loss, and
use only the order in which it puts our sizes. What it chooses reads some 3 to 50 tokens a weight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from elmo.config import BiLmConfig, n_parameters
from elmo.train.corpus_folder import Corpus
from elmo.train.evaluate import perplexity
from elmo.train.loop import Trainer, TrainOptions
from elmo.train.ranks import Ranks
from elmo.train.word_types import EOS

EVALUATION = 0.05  # of the time, for held-out perplexity
REST = 0.03  # of the time, for checkpoints and the model that is written in the end
MOST_EPOCHS = 40  # more of the same text teaches nothing (Muennighoff et al. 2023)
EVALUATED_TOKENS = 2048  # to measure evaluation by
_WINDOW_SECONDS = 3.0  # to measure a size for
_MOST_WINDOWS = 30
_SAME = 0.02  # nats: of sizes that are so near to each other, the smallest
_NEAR = 0.5  # nats: a size that may prove better when it is measured
_MEASURING = 0.05  # of the time: a size that would take longer to measure is out of reach
_A, _B, _E, _ALPHA, _BETA = 406.4, 410.7, 1.69, 0.34, 0.28  # Hoffmann et al. 2022


@dataclass(frozen=True)
class Speed:
    """Of a size on this machine and corpus."""

    train: float  # tokens a second
    evaluate: float | None  # tokens a second; None: there is no held-out text
    seconds: float = 0.0  # that measuring took


Measure = Callable[[BiLmConfig, TrainOptions], Speed]


class Choice:
    """Sizes against each other: the smallest is measured, and larger ones where they may be better."""

    def __init__(
        self,
        corpus: Corpus,
        seconds: float,
        *,
        sizes: Mapping[str, BiLmConfig],
        options: TrainOptions,
        measure: Measure,
    ) -> None:
        self.sizes, self.options, self.seconds, self.measure = sizes, options, seconds, measure
        self.n_unique = len(corpus.train)
        self.window_tokens = options.n_rows * options.n_steps
        self.measured: dict[str, Speed] = {}
        n_vocab = min(options.n_vocab, len(corpus.types))
        distinct = _distinct_share(corpus, options)
        self.work = {
            name: products(config, options, n_vocab=n_vocab, distinct=distinct)
            for name, config in sizes.items()
        }

    def best(self) -> str:
        """The size with the lowest expected loss; it and those next to it have been measured by then."""
        by_work = sorted(self.sizes, key=self.work.__getitem__)
        self._try(by_work[0])
        while True:
            reached = [name for name in by_work if self._is_within_reach(name)]
            least = min(map(self.expected_loss, reached))
            place = next(k for k, name in enumerate(reached) if self.expected_loss(name) < least + _SAME)
            # Estimated speeds are rough: large products run better than small ones.
            rivals = [
                name
                for name in reached[max(place - 1, 0) : place + 2]
                if name not in self.measured and self.expected_loss(name) < least + _NEAR
            ]
            if not rivals:
                return reached[place]
            self._try(rivals[0])

    def speed(self, name: str) -> float:
        """Tokens a second, measured or estimated from the next smaller size that was measured."""
        if name in self.measured:
            return self.measured[name].train
        nearest = min(self.measured, key=lambda other: abs(math.log(self.work[other] / self.work[name])))
        return self.measured[nearest].train * self.work[nearest] / self.work[name]

    def n_tokens(self, name: str) -> float:
        """That a size reads in the time that is left for training."""
        left = self.seconds * (1 - EVALUATION - REST) - sum(each.seconds for each in self.measured.values())
        return min(max(left, 0.1 * self.seconds) * self.speed(name), MOST_EPOCHS * self.n_unique)

    def expected_loss(self, name: str) -> float:
        """What the scaling law says of it."""
        return expected_loss(
            n_weights=n_parameters(self.sizes[name]), n_tokens=self.n_tokens(name), n_unique=self.n_unique
        )

    def reasons(self) -> list[str]:
        """A line for each size."""
        lines = []
        for name, config in self.sizes.items():
            how = "measured" if name in self.measured else "by its arithmetic"
            n_tokens = self.n_tokens(name)
            lines.append(
                f"{name}: {self.speed(name):,.0f} tokens/s {how}, {short(n_tokens)} tokens, "
                f"{n_tokens / n_parameters(config):.2g} a weight, "
                f"{self.expected_loss(name):.2f} by the law"
            )
        return lines

    def _try(self, name: str) -> None:
        self.measured[name] = self.measure(self.sizes[name], self.options)

    def _is_within_reach(self, name: str) -> bool:
        """Whether it can be measured in a small part of the time; it takes three windows at least."""
        return name in self.measured or 3 * self.window_tokens / self.speed(name) < _MEASURING * self.seconds


def expected_loss(*, n_weights: float, n_tokens: float, n_unique: float) -> float:
    """In nats a token, after ``n_tokens`` of a text that has ``n_unique``; to compare sizes by, no more."""
    tokens = _worth(n_tokens, n_unique, 15.4)
    # more weights than a text can feed are worth as little as reading it again: Muennighoff et al. 2023
    enough = (_A * _ALPHA / (_B * _BETA) * n_unique**_BETA) ** (1 / _ALPHA)
    weights = _worth(n_weights, enough, 5.3)
    return _E + _A / weights**_ALPHA + _B / tokens**_BETA


def _worth(number: float, enough: float, half_life: float) -> float:
    """What so many tokens or weights count for, when those beyond ``enough`` count for less and less."""
    beyond = max(0.0, number / enough - 1)
    return max(1.0, min(number, enough) + enough * half_life * (1 - math.exp(-beyond / half_life)))


def products(config: BiLmConfig, options: TrainOptions, *, n_vocab: int, distinct: float) -> float:
    """Multiplications of a forward pass, for a token; ``distinct`` is the share of tokens that differ."""
    lstm = config.lstm
    layer = 8 * lstm.cell_width * lstm.state_width + lstm.has_projection * lstm.cell_width * lstm.state_width
    compared = options.cutoffs[0] if options.cutoffs else min(options.n_samples or n_vocab, n_vocab)
    n_directions = 2 if options.directions == "both" else 1
    total = n_directions * (lstm.n_layers * layer + compared * lstm.state_width)
    if config.chars is not None:
        chars = config.chars
        weights = sum(width * count for width, count in chars.filters) * chars.char_width
        convolved = weights * chars.max_characters
        above = 2 * chars.n_highway * chars.n_filters**2 + chars.n_filters * lstm.state_width
        total += n_directions * distinct * (convolved + above)
    return float(total)


def short(number: float) -> str:
    """A large number for people: 41M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}" if number < 10 * size else f"{number / size:,.0f}{letter}"
    return f"{number:.0f}"


def _distinct_share(corpus: Corpus, options: TrainOptions) -> float:
    """The share of a window's tokens that are other words: those go through the character network."""
    last = max(1, len(corpus.train) - options.n_steps)
    starts = np.random.default_rng(0).integers(last, size=options.n_rows)
    window = [corpus.train[start : start + options.n_steps] for start in starts]
    return len(np.unique(np.concatenate(window))) / sum(map(len, window))


def measure_on(corpus: Corpus, ranks: Ranks) -> Measure:
    """Measures by training: what it learns is thrown away."""

    def measure(config: BiLmConfig, options: TrainOptions) -> Speed:
        begin = time.perf_counter()
        trainer = Trainer(corpus, config, options, corpus.folder, ranks=ranks)  # writes nothing until it runs
        try:
            trainer.objective.train()
            trainer._train_one_window()  # buffers are made, caches filled
            first, n_windows, seconds = time.perf_counter(), 0, 0.0
            while n_windows < 2 or (seconds < _WINDOW_SECONDS and n_windows < _MOST_WINDOWS):
                trainer._train_one_window()
                n_windows += 1
                seconds = ranks.from_first(time.perf_counter() - first)  # all stop at the same window
            train = n_windows * options.n_rows * options.n_steps / seconds
            evaluate = None
            ends = np.flatnonzero(corpus.heldout[:EVALUATED_TOKENS] == EOS)
            if len(ends):
                stream = corpus.heldout[: int(ends[-1]) + 1]
                first = time.perf_counter()
                perplexity(trainer.objective, trainer.ids, stream, ranks=ranks)
                evaluate = len(stream) / ranks.from_first(time.perf_counter() - first)
        finally:
            trainer.gradients.close()
        return Speed(train, evaluate, ranks.from_first(time.perf_counter() - begin))

    return measure
