"""``Pretrained``: a model as every format reader returns it, and the fingerprint that identifies it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elmo.config import BiLmConfig, parameter_shapes
from elmo.errors import raise_all
from elmo.text.ids import ByteAlphabet, SimplifiedAlphabet, TokenIndexer, UnicodeAlphabet, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SoftmaxWeights:
    """The output layer, shared by the forward and the backward language model."""

    weight: Tensor  # (words, width)
    bias: Tensor  # (words,)


@dataclass(frozen=True)
class WarmState:
    """An average LSTM state from which every sentence can start."""

    hidden: Tensor  # (direction, layer, width)
    cell: Tensor  # (direction, layer, cell)


@dataclass(frozen=True)
class MixWeights:
    """A published layer mix (Eq. 1 of the paper): one weight per layer, before the softmax, and γ."""

    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True)
class Pretrained:
    """A model as read from its files.

    Creating one checks that all parts fit together, and reports every mismatch in one ``FormatError``.

    Args:
        config: Sizes of the network.
        weights: Parameters, named and shaped as in ``config.parameter_shapes``.
        format: Name of the file format, as ``elmo info`` shows it.
        vocab: Words of the word table or of the softmax, in id order.
        characters: Ids of a Unicode alphabet's characters.
        softmax: The output layer.
        warm: A stored start state.
        mix: A published layer mix.
        metadata: JSON values; ``"tokenizer"`` names the tokenizer of the training text.
    """

    config: BiLmConfig
    weights: Mapping[str, Tensor]
    format: str
    vocab: Vocabulary | None = None
    characters: Mapping[str, int] | None = None
    softmax: SoftmaxWeights | None = None
    warm: WarmState | None = None
    mix: MixWeights | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        raise_all(self._mismatches(), subject=f"{self.format} model")

    def indexer(self) -> TokenIndexer:
        """Build the indexer that turns tokens into the ids of the token layer."""
        alphabet, chars = None, self.config.chars
        if chars is not None and self.config.alphabet == "unicode":
            alphabet = UnicodeAlphabet(self.characters or {}, chars.max_characters)
        elif chars is not None:
            is_simplified = self.config.alphabet == "simplified"
            alphabet = (SimplifiedAlphabet if is_simplified else ByteAlphabet)(chars.max_characters)
        return TokenIndexer(alphabet, self.vocab if self.config.words else None)

    def _mismatches(self) -> list[str]:
        """List everything that does not fit together."""
        config, lstm = self.config, self.config.lstm
        expected = parameter_shapes(config)
        problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in self.weights]
        problems += [f"unexpected {name}" for name in self.weights if name not in expected]
        for name, weight in self.weights.items():
            if name in expected and tuple(weight.shape) != expected[name]:
                problems.append(f"{name}: expected {expected[name]}, found {tuple(weight.shape)}")
        problems += [
            f"{name}: contains values that are not finite"
            for name, values in self._tensors()
            if not values.isfinite().all()
        ]
        if config.words and (self.vocab is None or len(self.vocab) != config.words.n_words):
            problems.append(
                f"a table of {config.words.n_words} words needs a vocabulary of the same size, found "
                f"{'none' if self.vocab is None else len(self.vocab)}"
            )
        if config.alphabet == "unicode" and self.characters is None:
            problems.append("a Unicode alphabet needs its character dictionary, found none")
        if self.characters is not None and config.chars is not None:
            n = config.chars.n_characters
            outside = [i for i in self.characters.values() if not 0 <= i < n]
            if outside:
                problems.append(f"character ids must be in 0..{n - 1}, found {outside[0]!r:.40}")
        if self.softmax is not None:
            rows, width = self.softmax.weight.shape
            if width != lstm.state_width or tuple(self.softmax.bias.shape) != (rows,):
                problems.append(
                    f"softmax: expected width {lstm.state_width} and {rows} biases, found "
                    f"{width} and {tuple(self.softmax.bias.shape)}"
                )
            if self.vocab is not None and len(self.vocab) != rows:
                problems.append(f"softmax has {rows} rows, but the vocabulary has {len(self.vocab)} words")
        if self.warm is not None:
            shapes = (2, lstm.n_layers, lstm.state_width), (2, lstm.n_layers, lstm.cell_width)
            actual = tuple(self.warm.hidden.shape), tuple(self.warm.cell.shape)
            if actual != shapes:
                problems.append(f"warm state: expected {shapes}, found {actual}")
        if self.mix is not None and len(self.mix.weights) != config.n_layers:
            problems.append(f"mix: expected {config.n_layers} weights, found {len(self.mix.weights)}")
        return problems

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights.items()
        for name, part in (("softmax", self.softmax), ("warm state", self.warm)):
            if part is not None:
                yield from ((f"{name} {key}", tensor) for key, tensor in vars(part).items())


def fingerprint(model: Pretrained, *, with_warm: bool = False) -> str:
    """Compute the SHA-256 of everything that determines a model's layers; it is the same in every format.

    That is the config, the alphabet, the word table and the weights. The softmax, a published mix and the
    metadata do not change the layers and are not included.

    Args:
        model: The model.
        with_warm: Include the warm state, which matters to results computed with ``start="warm"``.
    """
    digest = hashlib.sha256()

    def add(name: str, value: Any) -> None:
        line = json.dumps([name, value], sort_keys=True)  # always one line, so parts cannot run together
        digest.update(line.encode() + b"\n")

    config = model.config.to_json()
    # publishers write the same clip as 3 or as 3.0
    config["lstm"] |= {key: float(value) for key, value in config["lstm"].items() if type(value) is int}
    add("config", config)
    if model.characters is not None:
        add("characters", dict(model.characters))
    if model.config.words and model.vocab:
        vocab = model.vocab
        add("words", [vocab.bos, vocab.eos, vocab.unknown, *vocab.words])
    tensors = dict(model.weights)
    if with_warm and model.warm:
        tensors |= {"warm.hidden": model.warm.hidden, "warm.cell": model.warm.cell}
    for name in sorted(tensors):
        add(name, list(tensors[name].shape))
        array = tensors[name].detach().cpu().float().contiguous().numpy()
        digest.update(array.astype("<f4", copy=False).reshape(-1).view("u1").data)
    return digest.hexdigest()
