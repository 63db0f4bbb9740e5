"""The feature layer: computes [x; ELMo] for the input of a head and ELMo for its output.

``Features`` are the options. A ``FeatureBatch`` holds what was looked up for a batch of sentences;
``FeatureLayer`` turns it into vectors with the weights that a task learns. ``TaskNetwork`` joins a feature
layer and a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from elmo.errors import ConfigError
from elmo.model.bilm import Layers
from elmo.model.mix import LayerMix
from elmo.tasks.data.examples import Words
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths

if TYPE_CHECKING:
    from elmo.model.bilm import BiLm
    from elmo.tasks.features.static import StaticVectors
    from elmo.tasks.features.store import FeatureLookup
    from elmo.text.ids import IdBatch

ElmoPosition = Literal["none", "input", "output", "both"]


@dataclass(frozen=True)
class Features:
    """Which features a task uses.

    Args:
        elmo: Where the network receives ELMo vectors: none, input, output or both.
        top_only: Use the top layer only instead of a learned mix of all layers.
        layer_norm: Normalize each layer before mixing.
        dropout: Dropout on the ELMo vectors, as in the paper.
        mix_penalty: λ of the penalty λ‖w‖² on the mix weights; a large value makes all layers equally
            important.
        is_bilm_tuned: Train the biLM together with the task.
        is_static_tuned: Train the static vectors together with the task.
        characters: Width of the character-based word vectors; 0 turns them off.
    """

    elmo: ElmoPosition = "input"
    top_only: bool = False
    layer_norm: bool = False
    dropout: float = 0.5
    mix_penalty: float = 0.001
    is_bilm_tuned: bool = False
    is_static_tuned: bool = False
    characters: int = 0

    def __post_init__(self) -> None:
        positions = get_args(ElmoPosition)
        if self.elmo not in positions:
            raise ConfigError(f"elmo must be one of {', '.join(positions)}, found {self.elmo!r:.40}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout of the ELMo vectors must be at least 0 and below 1, found {self.dropout}")
        if not 0 <= self.mix_penalty < math.inf:
            raise ConfigError(f"mix_penalty must be a number of at least 0, found {self.mix_penalty}")
        if self.characters < 0:
            raise ConfigError(f"characters must be at least 0, found {self.characters}")
        if self.elmo == "none":
            for name in ("top_only", "layer_norm", "is_bilm_tuned"):
                if getattr(self, name):
                    raise ConfigError(f"{name} needs ELMo, but elmo is 'none'; set elmo to input, output or both")

    @property
    def has_elmo(self) -> bool:
        """Whether the network receives ELMo vectors."""
        return self.elmo != "none"


@dataclass(frozen=True)
class StoreWidths:
    """Sizes of what a feature store provides; 0 for what it does not have."""

    static: tuple[int, int] = (0, 0)  # words, width
    n_layers: int = 0
    elmo: int = 0
    others: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """What was looked up for a padded batch of sentences."""

    mask: Tensor  # (batch, time)
    static: Tensor | None = None  # (batch, time): rows of the table
    characters: CharacterIds | None = None
    layers: Tensor | None = None  # (batch, layer, time, width)
    ids: IdBatch | None = None  # input of a tuned biLM: (batch, time + 2, char)
    others: tuple[Tensor, ...] = ()  # (batch, time, width) each


class FeatureLayer(nn.Module):
    """Computes word vectors from a ``FeatureBatch``; the same for every kind of task."""

    def __init__(
        self, features: Features, widths: StoreWidths, *, static: StaticVectors | None = None, bilm: BiLm | None = None
    ) -> None:
        """Create the layer; ``static`` initializes the table (a loaded model has it among its weights)."""
        super().__init__()
        self.features = features
        self.static = _build_table(features, widths, static)
        self.characters = CharacterVectors(features.characters) if features.characters else None
        has_input, has_output = (features.elmo in (position, "both") for position in ("input", "output"))
        if features.has_elmo and not widths.elmo:
            raise ConfigError(f"elmo is {features.elmo!r}, but no biLM was given; pass a model or set elmo to none")
        self.bilm = bilm if features.is_bilm_tuned else None
        self.input_mix = self._build_mix(widths.n_layers) if has_input else None
        self.output_mix = self._build_mix(widths.n_layers) if has_output else None
        width = widths.static[1] + features.characters + sum(widths.others) + (widths.elmo if has_input else 0)
        if not width:
            raise ConfigError(
                "a task needs word vectors at its input; use static vectors, characters, or ELMo at the input"
            )
        self.widths = FeatureWidths(width, widths.elmo if has_output else 0)

    def _build_mix(self, n_layers: int) -> LayerMix:
        options = self.features
        return LayerMix(n_layers, top_only=options.top_only, layer_norm=options.layer_norm, dropout=options.dropout)

    @property
    def mixes(self) -> dict[str, LayerMix]:
        """The layer mixes by position: input, output."""
        mixes = {"input": self.input_mix, "output": self.output_mix}
        return {position: mix for position, mix in mixes.items() if mix is not None}

    def penalty(self) -> Tensor:
        """Return λ‖w‖² over all mixes (Peters et al. 2018, section 3.4)."""
        squares = [mix.w.square().sum() for mix in self.mixes.values() if mix.w.requires_grad]
        return self.features.mix_penalty * torch.stack(squares).sum() if squares else torch.zeros(())

    def forward(self, batch: FeatureBatch) -> FeatureVectors:
        """Compute vectors (batch, time, width) for the input and, where used, for the output."""
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
        return FeatureVectors(torch.cat(parts, dim=-1), batch.mask, outputs)

    def _layers(self, batch: FeatureBatch) -> Layers:
        if self.bilm is None:
            return Layers(cast("Tensor", batch.layers), batch.mask, has_boundaries=False)
        ids = cast("IdBatch", batch.ids)
        chars, words = (None if array is None else torch.from_numpy(array) for array in (ids.char_ids, ids.word_ids))
        return self.bilm(chars, words, lengths=torch.from_numpy(ids.lengths)).layers


class TaskNetwork(nn.Module):
    """Everything that a task learns: a feature layer and a head."""

    def __init__(self, words: FeatureLayer, head: nn.Module) -> None:
        super().__init__()
        self.words = words  # the name is part of the file format of task models
        self.head = head

    def embed(self, lookup: FeatureLookup, sentences: Sequence[Words]) -> FeatureVectors:
        """Compute the features of a padded batch of sentences."""
        return self.words(lookup.batch(sentences))


def _build_table(
    features: Features, widths: StoreWidths, static: StaticVectors | None
) -> nn.Embedding | TunedTable | None:
    """Build the table of static vectors: row 0 is padding, row 1 is for words without a vector."""
    n_words, width = widths.static
    if not width:
        if features.is_static_tuned:
            raise ConfigError("cannot tune static vectors, because none were given; pass a file of vectors")
        return None
    table = nn.Embedding(n_words + 2, width, padding_idx=0)
    if static is not None:
        mean = static.vectors.mean(axis=0, keepdims=True)  # initial vector of words without one
        rows = np.concatenate([np.zeros_like(mean), mean, static.vectors])
        table.weight.data.copy_(torch.from_numpy(rows))
    table.requires_grad_(features.is_static_tuned)
    if features.is_static_tuned and static is not None and static.is_used is not None:
        tuned = np.concatenate([[1], static.is_used.nonzero()[0] + 2])
        return TunedTable(table.weight.detach(), torch.from_numpy(tuned))
    return table


class TunedTable(nn.Module):
    """A table of vectors of which only some ``rows`` (tuned,) are learned.

    Learning all rows of a large table takes an optimizer longer than everything else, although most rows
    never change. The state dict has one ``weight``, the same as that of ``nn.Embedding``.
    """

    weight: Tensor
    rows: Tensor
    indices: Tensor

    def __init__(self, weight: Tensor, rows: Tensor) -> None:
        super().__init__()
        indices = torch.full((len(weight),), -1)
        indices[rows] = torch.arange(len(rows))
        self.tuned = nn.Parameter(weight[rows])  # (tuned, width)
        self.register_buffer("weight", weight, persistent=False)  # (row, width): values of the other rows
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("indices", indices, persistent=False)  # (row,): index into ``tuned``, or -1

    def forward(self, rows: Tensor) -> Tensor:
        """Return the vectors (batch, time, width) of ``rows`` (batch, time)."""
        indices = self.indices[rows]
        learned = functional.embedding(indices.clamp(min=0), self.tuned)
        return torch.where((indices >= 0).unsqueeze(-1), learned, functional.embedding(rows, self.weight))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight.index_copy(0, self.rows, self.tuned.detach())

    def _load_from_state_dict(  # noqa: PLR0917 -- the signature of torch
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is None:
            missing_keys.append(f"{prefix}weight")
            return
        with torch.no_grad():
            self.weight.copy_(weight)
            self.tuned.copy_(self.weight[self.rows])


MAX_BYTES = 40  # longer words are cut
_PADDING, _BEGIN, _END = 0, 257, 258  # bytes are 1..256


@dataclass(frozen=True, eq=False)
class CharacterIds:
    """The characters of a batch, as UTF-8 bytes: any script, without a character list."""

    words: Tensor  # (word, char), each word once: begin, bytes, end, padding; row 0 is padding only
    rows: Tensor  # (batch, time): rows of ``words``


def character_ids(sentences: Sequence[Sequence[str]], longest: int) -> CharacterIds:
    """Look up the bytes of all words of a batch that is padded to ``longest`` words."""
    row_of: dict[str, int] = {}
    rows = np.zeros((len(sentences), longest), np.int64)
    for k, words in enumerate(sentences):
        rows[k, : len(words)] = [row_of.setdefault(word, len(row_of) + 1) for word in words]
    word_bytes = [_byte_ids(word) for word in row_of]
    ids = np.zeros((len(row_of) + 1, max(map(len, word_bytes), default=3)), np.int64)
    for row, values in enumerate(word_bytes, start=1):
        ids[row, : len(values)] = values
    return CharacterIds(torch.from_numpy(ids), torch.from_numpy(rows))


@lru_cache(maxsize=1 << 16)
def _byte_ids(word: str) -> NDArray[np.int16]:
    raw = np.frombuffer(word.encode("utf-8", "surrogatepass")[:MAX_BYTES], np.uint8)
    return np.concatenate([[_BEGIN], raw.astype(np.int16) + 1, [_END]], dtype=np.int16)


class CharacterVectors(nn.Module):
    """Convolution of width 3 over byte embeddings, max-pooled over the word (Ma and Hovy 2016)."""

    def __init__(self, width: int, *, byte_width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, byte_width, padding_idx=_PADDING)
        self.filters = nn.Conv1d(byte_width, width, kernel_size=3, padding=1)

    def forward(self, ids: CharacterIds) -> Tensor:
        """Return (batch, time, width), zero at padding; a repeated word is computed once."""
        words = ids.words[1:]  # (word, char)
        states = self.filters(self.embedding(words).transpose(1, 2))  # (word, width, char)
        pooled = states.masked_fill((words == _PADDING)[:, None], -torch.inf).amax(dim=2)  # (word, width)
        return functional.embedding(ids.rows, functional.pad(pooled, (0, 0, 1, 0)))
