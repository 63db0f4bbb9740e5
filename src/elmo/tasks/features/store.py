"""The feature store: the biLM, the static vectors and other encoders that a task looks its words up in."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.start import Carry, Start
from elmo.errors import ConfigError
from elmo.formats.pretrained import fingerprint
from elmo.tasks.data.examples import Words
from elmo.tasks.features.cache import FeatureCache, FeatureEncoder, LayerLookup
from elmo.tasks.features.layer import FeatureBatch, FeatureLayer, Features, StoreWidths, character_ids
from elmo.tasks.features.static import StaticVectors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.text.ids import TokenIndexer


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Everything that word features are looked up in.

    Args:
        features: Which features the task uses.
        elmo: The biLM; needed unless ``features.elmo`` is "none".
        static: Static word vectors.
        others: Further encoders, such as ``TransformerEncoder``.
        cache: Where the layers of frozen encoders are kept.
        start: Start state of the LSTMs for each sentence, "zero" or "warm".
    """

    features: Features
    elmo: Elmo | None = None
    static: StaticVectors | None = None
    others: tuple[FeatureEncoder, ...] = ()
    cache: FeatureCache = field(default_factory=lambda: FeatureCache(None))
    start: Start = "zero"
    _encoders: list[tuple[object, ElmoEncoder]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.features.is_bilm_tuned and self.start != "zero":
            raise ConfigError(
                f"a tuned biLM needs the start state zero, found {self.start!r:.20}; drop one of the options"
            )

    @property
    def used_elmo(self) -> Elmo | None:
        """The biLM if the task uses it, else None."""
        return self.elmo if self.features.has_elmo else None

    @property
    def widths(self) -> StoreWidths:
        """Sizes of everything that the store provides."""
        elmo = self.used_elmo
        return StoreWidths(
            static=(0, 0) if self.static is None else (len(self.static.words), self.static.width),
            n_layers=elmo.n_layers if elmo else 0,
            elmo=elmo.width if elmo else 0,
            others=tuple(encoder.width for encoder in self.others),
        )

    def build_layer(self) -> FeatureLayer:
        """Build a feature layer with new weights."""
        bilm = None
        if self.features.is_bilm_tuned and self.elmo is not None:
            bilm = copy.deepcopy(self.elmo.bilm).requires_grad_(True)
        return FeatureLayer(self.features, self.widths, static=self.static, bilm=bilm)

    def prepare(self, sentences: Iterable[Words], *, show_progress: bool = False) -> FeatureLookup:
        """Compute the frozen layers of ``sentences`` that are not cached yet; return what looks them up."""
        unique: Sequence[Words] = list(dict.fromkeys(sentences))
        elmo, layers, indexer = self.used_elmo, None, None
        if elmo is not None and self.features.is_bilm_tuned:
            indexer = elmo.indexer
        elif elmo is not None:
            layers = self.cache.lookup(self._encoder(elmo), unique, show_progress=show_progress)
        return FeatureLookup(
            static=self.static,
            has_characters=self.features.characters > 0,
            elmo=layers,
            bilm_indexer=indexer,
            others=tuple(
                self.cache.lookup(encoder, unique, show_progress=show_progress) for encoder in self.others
            ),
        )

    def _encoder(self, elmo: Elmo) -> ElmoEncoder:
        """Reuse the encoder, whose fingerprint hashes all weights, until the model is warmed up."""
        if not self._encoders or self._encoders[0][0] is not elmo.pretrained:
            self._encoders[:] = [(elmo.pretrained, ElmoEncoder(elmo, start=self.start))]
        return self._encoders[0][1]


class ElmoEncoder:
    """All layers of a frozen biLM."""

    def __init__(self, elmo: Elmo, *, start: Start = "zero") -> None:
        if isinstance(start, Carry):
            raise ConfigError(
                "start: expected zero or warm, found a carried state, which depends on the order of sentences"
            )
        self.elmo = elmo
        self.start: Literal["zero", "warm"] = start

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights and of a warm start; computed on first use, because it takes time."""
        current = replace(self.elmo.pretrained, weights=self.elmo.bilm.state_dict())
        return fingerprint(current, with_warm=self.start == "warm")

    @property
    def key(self) -> str:
        """The fingerprint of the model, its precision and its start state."""
        return f"elmo-{self.fingerprint[:24]}-{self.elmo.precision}-{self.start}"

    @property
    def n_layers(self) -> int:
        """Number of layers of the biLM."""
        return self.elmo.n_layers

    @property
    def width(self) -> int:
        """Width of each layer."""
        return self.elmo.width

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """Compute (layer, time, width) for each sentence."""
        encodings = self.elmo.encode([list(words) for words in sentences], layers="all", start=self.start)
        return [np.asarray(encoding.vectors) for encoding in encodings]


@dataclass(frozen=True, eq=False)
class FeatureLookup:
    """Looks up the features of batches of sentences."""

    static: StaticVectors | None = None
    has_characters: bool = False
    elmo: LayerLookup | None = None
    bilm_indexer: TokenIndexer | None = None  # of a tuned biLM, instead of ``elmo``
    others: tuple[LayerLookup, ...] = ()

    def batch(self, sentences: Sequence[Words]) -> FeatureBatch:
        """Look up all words of a batch, padded to the longest sentence."""
        longest = max(len(words) for words in sentences)
        mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
        for k, words in enumerate(sentences):
            mask[k, : len(words)] = True
        static = characters = layers = ids = None
        if self.static is not None:
            rows = np.zeros(mask.shape, np.int64)  # row 0 is padding, row 1 is for words without a vector
            for k, words in enumerate(sentences):
                rows[k, : len(words)] = [self.static.row(word) + 2 for word in words]
            static = torch.from_numpy(rows)
        if self.has_characters:
            characters = character_ids(sentences, longest)
        if self.elmo is not None:
            layers = _pad_layers(self.elmo, sentences, longest)
        elif self.bilm_indexer is not None:
            ids = self.bilm_indexer.batch(sentences)
        others = tuple(_pad_layers(lookup, sentences, longest).mean(dim=1) for lookup in self.others)
        return FeatureBatch(mask, static, characters, layers, ids, others)


def _pad_layers(lookup: LayerLookup, sentences: Sequence[Words], longest: int) -> Tensor:
    """Return (batch, layer, time, width), zero at padding."""
    arrays = lookup(sentences)
    n_layers, _, width = arrays[0].shape
    dtype = np.result_type(*arrays)  # float16 from the cache: torch converts it faster than numpy
    states = np.zeros((len(arrays), n_layers, longest, width), dtype)
    for k, array in enumerate(arrays):
        states[k, :, : array.shape[1]] = array
    return torch.from_numpy(states).float()
