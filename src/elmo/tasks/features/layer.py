"""Words in, vectors of their characters out: one convolution, the largest value of each filter.

Characters are UTF-8 bytes, so any script is read and no list of characters is needed.

Sentences in, [x; ELMo] for a head's input and ELMo for its output out; what is learned of it is a module.

``VectorSource`` looks a batch up (rows of static vectors, characters, frozen layers); ``WordVectors`` turns
what was looked up into vectors, with the weights that a task learns: the mixes, the characters' network, and
the biLM where it is fine-tuned.

Sentences in, the vectors that a task's head reads out: vectors of words and head as one module.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from elmo.errors import ConfigError
from elmo.model.bilm import Layers
from elmo.model.mix import LayerMix
from elmo.tasks.data.examples import Words
from elmo.tasks.features.static import TunedTable
from elmo.tasks.heads.layers import SentenceVectors, Widths

if TYPE_CHECKING:
    from elmo.model.bilm import BiLm
    from elmo.tasks.features.static import StaticVectors
    from elmo.tasks.features.store import SentenceLayers
    from elmo.text.ids import CharBatch, TokenIndexer


MAX_BYTES = 40  # of a word; what is longer is cut
_PADDING, _BEGIN, _END = 0, 257, 258  # bytes are 1..256


@dataclass(frozen=True, eq=False)
class CharacterIds:
    """The characters of a batch: each word once, and where it stands."""

    words: Tensor  # (word, char): begin, bytes, end, padding; row 0 is padding alone
    places: Tensor  # (batch, time): rows of words


def character_ids(sentences: Sequence[Sequence[str]], longest: int) -> CharacterIds:
    """The bytes of a batch's words."""
    rows: dict[str, int] = {}
    places = np.zeros((len(sentences), longest), np.int64)
    for k, words in enumerate(sentences):
        places[k, : len(words)] = [rows.setdefault(word, len(rows) + 1) for word in words]
    found = [_ids(word) for word in rows]
    ids = np.zeros((len(rows) + 1, max(map(len, found), default=3)), np.int64)
    for row, one in enumerate(found, start=1):
        ids[row, : len(one)] = one
    return CharacterIds(torch.from_numpy(ids), torch.from_numpy(places))


@lru_cache(maxsize=1 << 16)
def _ids(word: str) -> NDArray[np.int16]:
    raw = np.frombuffer(word.encode("utf-8", "surrogatepass")[:MAX_BYTES], np.uint8)
    return np.concatenate([[_BEGIN], raw.astype(np.int16) + 1, [_END]], dtype=np.int16)


class CharacterVectors(nn.Module):
    """Filters three bytes wide over embedded bytes (Ma and Hovy 2016)."""

    def __init__(self, width: int, *, byte_width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, byte_width, padding_idx=_PADDING)
        self.filters = nn.Conv1d(byte_width, width, kernel_size=3, padding=1)

    def forward(self, ids: CharacterIds) -> Tensor:
        """(batch, time, width), zero where there is no word; a word that stands often is computed once."""
        words = ids.words[1:]  # (word, char)
        found = self.filters(self.embedding(words).transpose(1, 2))  # (word, width, char)
        found = found.masked_fill((words == _PADDING)[:, None], -torch.inf).amax(dim=2)  # (word, width)
        return functional.embedding(ids.places, functional.pad(found, (0, 0, 1, 0)))


Place = Literal["none", "input", "output", "both"]
PLACES = ("none", "input", "output", "both")


@dataclass(frozen=True)
class VectorChoice:
    """How a task is given ELMo, and what else its words' vectors are made of."""

    elmo: Place = "input"
    top_only: bool = False
    layer_norm: bool = False
    dropout: float = 0.5  # of ELMo's vectors, as in the paper
    mix_penalty: float = 0.001  # λ of λ‖w‖²: large gives every layer an equal share
    is_bilm_tuned: bool = False
    is_static_tuned: bool = False
    characters: int = 0  # width of the vectors that are made of a word's characters; 0: none

    def __post_init__(self) -> None:
        if self.elmo not in PLACES:
            raise ConfigError(f"ELMo can be at {', '.join(PLACES)}, not at {self.elmo!r:.40}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(
                f"the dropout of ELMo's vectors must lie in 0..1, below 1, found {self.dropout}"
            )
        if not 0 <= self.mix_penalty < math.inf:
            raise ConfigError(f"the penalty of the mix must not be negative, found {self.mix_penalty}")
        if self.characters < 0:
            raise ConfigError(f"the width of characters must not be negative, found {self.characters}")
        if self.is_bilm_tuned and self.elmo == "none":
            raise ConfigError("a biLM that is given no place cannot be fine-tuned")
        for is_wanted, what in (
            (self.top_only, "the top layer alone is wanted"),
            (self.layer_norm, "layers are to be normalised"),
        ):
            if is_wanted and self.elmo == "none":
                raise ConfigError(f"{what}, but ELMo is at none; give it a place, or leave it out")


@dataclass(frozen=True, eq=False)
class WordBatch:
    """What was looked up for a batch of sentences, padded."""

    mask: Tensor  # (batch, time)
    static: Tensor | None = None  # (batch, time): rows
    characters: CharacterIds | None = None
    layers: Tensor | None = None  # (batch, layer, time, width)
    ids: CharBatch | None = None  # for a biLM that is tuned: (batch, time + 2, char)
    others: tuple[Tensor, ...] = ()  # (batch, time, width) each


@dataclass(frozen=True, eq=False)
class VectorSource:
    """Where the vectors of words come from."""

    static: StaticVectors | None = None
    has_characters: bool = False
    elmo: SentenceLayers | None = None
    bilm_indexer: TokenIndexer | None = None  # for a biLM that is tuned, instead of ``elmo``
    others: tuple[SentenceLayers, ...] = ()

    def batch(self, sentences: Sequence[Words]) -> WordBatch:
        """Look all words of a batch up."""
        longest = max(len(words) for words in sentences)
        mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
        for k, words in enumerate(sentences):
            mask[k, : len(words)] = True
        static = characters = layers = ids = None
        if self.static is not None:
            rows = np.zeros(mask.shape, np.int64)  # row 0 pads, row 1 is of words without a vector
            for k, words in enumerate(sentences):
                rows[k, : len(words)] = [self.static.place(word) + 2 for word in words]
            static = torch.from_numpy(rows)
        if self.has_characters:
            characters = character_ids(sentences, longest)
        if self.elmo is not None:
            layers = _padded(self.elmo, sentences, longest)
        elif self.bilm_indexer is not None:
            ids = self.bilm_indexer.batch(sentences)
        others = tuple(_padded(one, sentences, longest).mean(dim=1) for one in self.others)
        return WordBatch(mask, static, characters, layers, ids, others)


def _padded(source: SentenceLayers, sentences: Sequence[Words], longest: int) -> Tensor:
    """(batch, layer, time, width), zero where there is no word."""
    found = source.of(sentences)
    n_layers, _, width = found[0].shape
    kind = np.result_type(*found)  # kept ones are halves, which torch turns into floats faster than numpy
    states = np.zeros((len(found), n_layers, longest, width), kind)
    for k, one in enumerate(found):
        states[k, :, : one.shape[1]] = one
    return torch.from_numpy(states).float()


@dataclass(frozen=True)
class SourceWidths:
    """Of what a source gives; 0 for what it does not have."""

    static: tuple[int, int] = (0, 0)  # words, width
    n_layers: int = 0
    elmo: int = 0
    others: tuple[int, ...] = ()


class WordVectors(nn.Module):
    """The part of a task's model that makes vectors of words, whatever the task."""

    def __init__(
        self,
        choice: VectorChoice,
        widths: SourceWidths,
        *,
        static: StaticVectors | None = None,
        bilm: BiLm | None = None,
    ) -> None:
        """``static`` gives the table its numbers; a loaded model has them among its weights."""
        super().__init__()
        self.choice = choice
        self.static: nn.Embedding | TunedTable | None = None
        n_words, static_width = widths.static
        if static_width:
            self.static = nn.Embedding(n_words + 2, static_width, padding_idx=0)
            if static is not None:
                mean = static.vectors.mean(axis=0, keepdims=True)  # what a word without a vector starts from
                table = np.concatenate([np.zeros_like(mean), mean, static.vectors])
                self.static.weight.data.copy_(torch.from_numpy(table))
            self.static.requires_grad_(choice.is_static_tuned)
            if choice.is_static_tuned and static is not None and static.is_met is not None:
                met = np.concatenate([[1], static.is_met.nonzero()[0] + 2])  # words without a vector, too
                self.static = TunedTable(self.static.weight.detach(), torch.from_numpy(met))
        elif choice.is_static_tuned:
            raise ConfigError("static vectors are to be fine-tuned, but none were given; name a file of them")
        self.characters = CharacterVectors(choice.characters) if choice.characters else None
        has_input, has_output = (choice.elmo in (place, "both") for place in ("input", "output"))
        if choice.elmo != "none" and not widths.elmo:
            raise ConfigError(f"ELMo is wanted at {choice.elmo}, but no model was given")
        self.bilm = bilm if choice.is_bilm_tuned else None
        self.input_mix = self._mix(widths.n_layers) if has_input else None
        self.output_mix = self._mix(widths.n_layers) if has_output else None
        width = static_width + choice.characters + sum(widths.others) + (widths.elmo if has_input else 0)
        if not width:
            raise ConfigError("a task needs vectors of words: static ones, characters, or ELMo at the input")
        self.widths = Widths(width, widths.elmo if has_output else 0)

    def _mix(self, n_layers: int) -> LayerMix:
        choice = self.choice
        return LayerMix(
            n_layers, top_only=choice.top_only, layer_norm=choice.layer_norm, dropout=choice.dropout
        )

    @property
    def mixes(self) -> dict[str, LayerMix]:
        """By place."""
        found = {"input": self.input_mix, "output": self.output_mix}
        return {place: mix for place, mix in found.items() if mix is not None}

    def penalty(self) -> Tensor:
        """λ‖w‖² of the mixes (section 3.4 of the paper)."""
        squares = [mix.w.square().sum() for mix in self.mixes.values() if mix.w.requires_grad]
        return self.choice.mix_penalty * torch.stack(squares).sum() if squares else torch.zeros(())

    def forward(self, batch: WordBatch) -> SentenceVectors:
        """Vectors (batch, time, width) for the input, and those for the output."""
        parts: list[Tensor] = []
        if self.static is not None:
            parts.append(self.static(cast("Tensor", batch.static)))
        if self.characters is not None:
            parts.append(self.characters(cast("CharacterIds", batch.characters)))
        parts += batch.others
        layers = self._layers(batch) if self.mixes else None
        if self.input_mix is not None:
            parts.append(self.input_mix(layers))
        outputs = None if self.output_mix is None else self.output_mix(layers)
        return SentenceVectors(torch.cat(parts, dim=-1), batch.mask, outputs)

    def _layers(self, batch: WordBatch) -> Layers:
        if self.bilm is None:
            return Layers(cast("Tensor", batch.layers), batch.mask, has_boundaries=False)
        ids = cast("CharBatch", batch.ids)
        chars, words = (
            None if one is None else torch.from_numpy(one) for one in (ids.char_ids, ids.word_ids)
        )
        return self.bilm(chars, words, lengths=torch.from_numpy(ids.lengths)).layers


class TaskNetwork(nn.Module):
    """All that a task learns."""

    def __init__(self, words: WordVectors, head: nn.Module) -> None:
        super().__init__()
        self.words = words
        self.head = head

    def vectors(self, source: VectorSource, sentences: Sequence[Words]) -> SentenceVectors:
        """The vectors of these sentences, padded."""
        return self.words(source.batch(sentences))
