"""What every reader of a published format returns: a config, its weights, and what came with them.

A model in, one SHA-256 out that names it: the same in every format that keeps its numbers.
"""

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
    """The output layer that both language models share."""

    weight: Tensor  # (words, width)
    bias: Tensor  # (words,)


@dataclass(frozen=True)
class WarmState:
    """One recurrent state for every sentence to start from."""

    hidden: Tensor  # (direction, layer, width)
    cell: Tensor  # (direction, layer, cell)


@dataclass(frozen=True)
class MixWeights:
    """Eq. 1 as a publisher fixed it: one share per layer (before softmax), and γ."""

    weights: tuple[float, ...]
    gamma: float


@dataclass(frozen=True)
class Pretrained:
    """A model as its files give it; ``weights`` carry the names of ``config.parameter_shapes``."""

    config: BiLmConfig
    weights: Mapping[str, Tensor]
    format: str  # as `elmo info` names it
    vocab: Vocabulary | None = None
    characters: Mapping[str, int] | None = None  # a Unicode alphabet's dictionary
    softmax: SoftmaxWeights | None = None
    warm: WarmState | None = None
    mix: MixWeights | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)  # JSON values; "tokenizer" names its text's

    def __post_init__(self) -> None:
        raise_all(self._mismatches(), subject=f"{self.format} model")

    def indexer(self) -> TokenIndexer:
        """What looks words up for the token layer."""
        alphabet, chars = None, self.config.chars
        if chars is not None and self.config.alphabet == "unicode":
            alphabet = UnicodeAlphabet(self.characters or {}, chars.max_characters)
        elif chars is not None:
            is_simplified = self.config.alphabet == "simplified"
            alphabet = (SimplifiedAlphabet if is_simplified else ByteAlphabet)(chars.max_characters)
        return TokenIndexer(alphabet, self.vocab if self.config.words else None)

    def _mismatches(self) -> list[str]:
        """Everything that does not fit together, each in a few words."""
        expected = parameter_shapes(self.config)
        problems = [f"missing {name} {shape}" for name, shape in expected.items() if name not in self.weights]
        problems += [f"unexpected {name}" for name in self.weights if name not in expected]
        for name, weight in self.weights.items():
            if name in expected and tuple(weight.shape) != expected[name]:
                problems.append(f"{name}: expected {expected[name]}, found {tuple(weight.shape)}")
        for name, values in self._every_tensor():
            if not values.isfinite().all():
                problems.append(f"{name}: holds values that are not finite")
        lstm = self.config.lstm
        if self.config.words and (self.vocab is None or len(self.vocab) != self.config.words.n_words):
            problems.append(
                f"a table of {self.config.words.n_words} words needs a vocabulary of as many, found "
                f"{'none' if self.vocab is None else len(self.vocab)}"
            )
        if self.config.alphabet == "unicode" and self.characters is None:
            problems.append("a Unicode alphabet needs its character dictionary")
        if self.characters is not None and self.config.chars is not None:
            n = self.config.chars.n_characters
            outside = [i for i in self.characters.values() if not 0 <= i < n]
            if outside:
                problems.append(f"character ids must lie in 0..{n - 1}, found {outside[0]!r:.40}")
        if self.softmax is not None:
            rows, width = self.softmax.weight.shape
            if width != lstm.state_width or tuple(self.softmax.bias.shape) != (rows,):
                problems.append(
                    f"softmax: expected width {lstm.state_width} and {rows} biases, found "
                    f"{width} and {tuple(self.softmax.bias.shape)}"
                )
            if self.vocab is not None and len(self.vocab) != rows:
                problems.append(f"softmax has {rows} rows, but the vocabulary {len(self.vocab)} words")
        if self.warm is not None:
            shapes = (2, lstm.n_layers, lstm.state_width), (2, lstm.n_layers, lstm.cell_width)
            found = tuple(self.warm.hidden.shape), tuple(self.warm.cell.shape)
            if found != shapes:
                problems.append(f"warm state: expected {shapes}, found {found}")
        if self.mix is not None and len(self.mix.weights) != self.config.n_layers:
            problems.append(f"mix: expected {self.config.n_layers} weights, found {len(self.mix.weights)}")
        return problems

    def _every_tensor(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights.items()
        for name, part in (("softmax", self.softmax), ("warm state", self.warm)):
            if part is not None:
                for field_name, values in vars(part).items():
                    yield f"{name} {field_name}", values


def fingerprint(model: Pretrained, *, with_warm: bool = False) -> str:
    """SHA-256 over all that a model's layers depend on: config, alphabet, word table and weights.

    The softmax, a published mix and the metadata leave the layers alone and are not counted; neither is the
    warm state, unless asked for: it matters only to what starts from it.
    """
    digest = hashlib.sha256()
    config = model.config.to_json()
    # 3 and 3.0 are one clip, however a publisher wrote it
    config["lstm"] |= {key: float(value) for key, value in config["lstm"].items() if type(value) is int}
    _add(digest, "config", config)
    if model.characters is not None:
        _add(digest, "characters", dict(model.characters))
    if model.config.words and model.vocab:
        vocab = model.vocab
        _add(digest, "words", [vocab.bos, vocab.eos, vocab.unknown, *vocab.words])
    tensors = dict(model.weights)
    if with_warm and model.warm:
        tensors |= {"warm.hidden": model.warm.hidden, "warm.cell": model.warm.cell}
    for name in sorted(tensors):
        _add(digest, name, list(tensors[name].shape))
        digest.update(_raw(tensors[name]))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, name: str, value: Any) -> None:
    line = json.dumps([name, value], sort_keys=True)  # one line whatever it holds: parts cannot run together
    digest.update(line.encode() + b"\n")


def _raw(tensor: Tensor) -> Any:
    import torch

    array = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return array.astype("<f4", copy=False).reshape(-1).view("u1")  # as bytes, not copied
