"""The feature layer: computes the word vectors that a head reads at its input and at its output.

``Features`` has the options. ``FeatureBatch`` holds the ids and frozen layers of a batch of sentences;
``FeatureLayer`` computes vectors from them, with weights that the task learns. ``TaskNetwork`` combines a feature
layer and a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    from elmo.text.ids import IdBatch

ElmoPosition = Literal["none", "input", "output", "both"]


@dataclass(frozen=True)
class Features:
    """The features that a task uses.

    Args:
        elmo: Where the network receives ELMo vectors: none, input, output or both.
        top_only: Use only the top layer instead of a learned mix of all layers.
        layer_norm: Normalize each layer before mixing.
        dropout: Dropout on the ELMo vectors, as in the paper.
        mix_penalty: λ of the penalty λ‖w‖² on the mix weights; with a large value, the mix is close to the mean of
            all layers.
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
            raise ConfigError(f"elmo must be one of {', '.join(positions)}; found {self.elmo!r:.40}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout of the ELMo vectors must be at least 0 and below 1; found {self.dropout}")
        if not 0 <= self.mix_penalty < math.inf:
            raise ConfigError(f"mix_penalty must be a number of at least 0; found {self.mix_penalty}")
        if self.characters < 0:
            raise ConfigError(f"characters must be at least 0; found {self.characters}")
        if self.elmo == "none":
            for name in ("top_only", "layer_norm", "is_bilm_tuned"):
                if getattr(self, name):
                    raise ConfigError(f"cannot use {name}: elmo is 'none'; set elmo to input, output or both")

    @property
    def has_elmo(self) -> bool:
        """Whether the network receives ELMo vectors."""
        return self.elmo != "none"


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """Ids and frozen layers of a padded batch of sentences; the input of ``FeatureLayer``."""

    mask: Tensor  # (batch, time): true for words
    static: Tensor | None = None  # (batch, time): rows in the table of static vectors
    characters: CharacterIds | None = None
    layers: Tensor | None = None  # (batch, layer, time, width)
    ids: IdBatch | None = None  # input of a tuned biLM: (batch, time + 2, char)
    others: tuple[Tensor, ...] = ()  # (batch, time, width) each


Lookup = Callable[[Sequence[Words]], FeatureBatch]


class FeatureLayer(nn.Module):
    """Computes word vectors from a ``FeatureBatch``; the same module is used for every kind of task.

    Args:
        features: The features that the task uses.
        elmo_shape: Number of layers of the biLM and their width; (0, 0) without a biLM.
        other_widths: Widths of the vectors from other encoders.
        static: Initial values of the static vectors.
        bilm: The biLM, if it is trained together with the task.
    """

    def __init__(
        self,
        features: Features,
        *,
        elmo_shape: tuple[int, int] = (0, 0),
        other_widths: Sequence[int] = (),
        static: StaticVectors | None = None,
        bilm: BiLm | None = None,
    ) -> None:
        super().__init__()
        n_layers, elmo_width = elmo_shape
        self.features = features
        self.static = _build_table(features, static)
        self.characters = CharacterVectors(features.characters) if features.characters else None
        has_input, has_output = (features.elmo in (position, "both") for position in ("input", "output"))
        if features.has_elmo and not elmo_width:
            raise ConfigError(f"cannot set elmo to {features.elmo!r}: there is no biLM; pass one, or set elmo to none")
        self.bilm = bilm
        self.input_mix = self._build_mix(n_layers) if has_input else None
        self.output_mix = self._build_mix(n_layers) if has_output else None
        width = features.characters + sum(other_widths) + elmo_width * has_input + (static.width if static else 0)
        if not width:
            raise ConfigError(
                "a task needs word vectors at its input; use static vectors, characters, or ELMo at the input"
            )
        self.widths = FeatureWidths(width, elmo_width * has_output)

    def _build_mix(self, n_layers: int) -> LayerMix:
        options = self.features
        return LayerMix(n_layers, top_only=options.top_only, layer_norm=options.layer_norm, dropout=options.dropout)

    @property
    def mixes(self) -> dict[str, LayerMix]:
        """The layer mixes that are used, by position (``input``, ``output``)."""
        mixes = {"input": self.input_mix, "output": self.output_mix}
        return {position: mix for position, mix in mixes.items() if mix is not None}

    def penalty(self) -> Tensor:
        """Return the penalty λ‖w‖² on the weights of all mixes (Peters et al. 2018, section 3.4)."""
        squares = [mix.w.square().sum() for mix in self.mixes.values() if mix.w.requires_grad]
        return self.features.mix_penalty * torch.stack(squares).sum() if squares else torch.zeros(())

    def forward(self, batch: FeatureBatch) -> FeatureVectors:
        """Compute vectors (batch, time, width) for the input of the head and, if used, for its output."""
        parts: list[Tensor] = []
        if self.static is not None:
            parts.append(self.static(cast("Tensor", batch.static)))
        if self.characters is not None:
            parts.append(self.characters(cast("CharacterIds", batch.characters)))
        parts += batch.others
        layers = self._layers(batch) if self.mixes else None
        if self.input_mix is not None:
            parts.append(self.input_mix(cast("Layers", layers)))
        outputs = None if self.output_mix is None else self.output_mix(cast("Layers", layers))
        return FeatureVectors(torch.cat(parts, dim=-1), batch.mask, outputs)

    def _layers(self, batch: FeatureBatch) -> Layers:
        if self.bilm is None:
            return Layers(cast("Tensor", batch.layers), batch.mask, has_boundaries=False)
        ids = cast("IdBatch", batch.ids)
        chars, words = (None if array is None else torch.from_numpy(array) for array in (ids.char_ids, ids.word_ids))
        return self.bilm(chars, words, lengths=torch.from_numpy(ids.lengths)).layers


class TaskNetwork(nn.Module):
    """The network of a task: a feature layer and a head."""

    def __init__(self, words: FeatureLayer, head: nn.Module) -> None:
        super().__init__()
        self.words = words  # this attribute name is part of the file format
        self.head = head

    def embed(self, lookup: Lookup, sentences: Sequence[Words]) -> FeatureVectors:
        """Look up a batch of sentences and compute their word vectors."""
        return self.words(lookup(sentences))


def _build_table(features: Features, static: StaticVectors | None) -> nn.Embedding | TunedTable | None:
    """Build the table of static vectors: row 0 is for padding, row 1 for words without a vector."""
    if static is None:
        if features.is_static_tuned:
            raise ConfigError("cannot tune static vectors: there are none; pass a file with static vectors")
        return None
    table = nn.Embedding(len(static.words) + 2, static.width, padding_idx=0)
    mean = static.vectors.mean(axis=0, keepdims=True)  # initial vector for words without one
    rows = np.concatenate([np.zeros_like(mean), mean, static.vectors])
    table.weight.data.copy_(torch.from_numpy(rows))
    table.requires_grad_(features.is_static_tuned)
    if features.is_static_tuned and static.is_used is not None:
        tuned = np.concatenate([[1], static.is_used.nonzero()[0] + 2])
        return TunedTable(table.weight.detach(), torch.from_numpy(tuned))
    return table


class TunedTable(nn.Module):
    """A table of vectors in which only the ``rows`` (tuned,) are learned.

    If all rows of a large table were parameters, the optimizer would take most of the training time, although most
    rows never change. The state dict has one ``weight``, like that of ``nn.Embedding``.
    """

    weight: Tensor
    rows: Tensor
    indices: Tensor

    def __init__(self, weight: Tensor, rows: Tensor) -> None:
        super().__init__()
        indices = torch.full((len(weight),), -1)
        indices[rows] = torch.arange(len(rows))
        self.tuned = nn.Parameter(weight[rows])  # (tuned, width)
        self.register_buffer("weight", weight, persistent=False)  # (row, width): the values of the other rows
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


MAX_BYTES = 40  # longer words are truncated
_PADDING, _BEGIN, _END = 0, 257, 258  # the ids 1 to 256 stand for the bytes 0 to 255


@dataclass(frozen=True, eq=False)
class CharacterIds:
    """The words of a batch as UTF-8 bytes, which represent any script without a character vocabulary."""

    words: Tensor  # (word, char), each word once: begin, bytes, end, padding; row 0 is padding only
    rows: Tensor  # (batch, time): rows of ``words``


def character_ids(sentences: Sequence[Sequence[str]], longest: int) -> CharacterIds:
    """Return the byte ids of all words in a batch, padded to ``longest`` words per sentence."""
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
    """Character-based word vectors: a convolution of width 3 over bytes, then max pooling (Ma and Hovy 2016)."""

    def __init__(self, width: int, *, byte_width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(259, byte_width, padding_idx=_PADDING)
        self.filters = nn.Conv1d(byte_width, width, kernel_size=3, padding=1)

    def forward(self, ids: CharacterIds) -> Tensor:
        """Return vectors (batch, time, width), zero at padding; a repeated word is computed only once."""
        words = ids.words[1:]  # (word, char)
        states = self.filters(self.embedding(words).transpose(1, 2))  # (word, width, char)
        pooled = states.masked_fill((words == _PADDING)[:, None], -torch.inf).amax(dim=2)  # (word, width)
        return functional.embedding(ids.rows, functional.pad(pooled, (0, 0, 1, 0)))
