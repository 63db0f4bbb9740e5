"""A biLM, static vectors and other encoders in, what a task looks its words up in out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elmo.errors import ConfigError
from elmo.tasks.data.examples import Words
from elmo.tasks.vectors.encoders import ElmoEncoder
from elmo.tasks.vectors.layer_cache import Encoder, LayerCache
from elmo.tasks.vectors.static import StaticVectors
from elmo.tasks.vectors.word_vectors import SourceWidths, VectorChoice, VectorSource, WordVectors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.start import Start


@dataclass(frozen=True, eq=False)
class WordSources:
    """All that vectors of words can come from."""

    choice: VectorChoice
    elmo: Elmo | None = None
    static: StaticVectors | None = None
    others: tuple[Encoder, ...] = ()
    cache: LayerCache = field(default_factory=lambda: LayerCache(None))
    start: Start = "zero"
    _known: dict[str, tuple[Any, ElmoEncoder]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.choice.is_bilm_tuned and self.start != "zero":
            raise ConfigError(
                f"a biLM that is fine-tuned starts from zero, found the start {self.start!r:.20}; "
                "leave one of the two out"
            )

    @property
    def widths(self) -> SourceWidths:
        """Of all that is given."""
        return SourceWidths(
            static=(0, 0) if self.static is None else (len(self.static.words), self.static.width),
            n_layers=self.elmo.n_layers if self.elmo and self.choice.elmo != "none" else 0,
            elmo=self.elmo.width if self.elmo and self.choice.elmo != "none" else 0,
            others=tuple(one.width for one in self.others),
        )

    def _encoder(self, elmo: Elmo) -> ElmoEncoder:
        """One for all pieces of a corpus: to know a biLM, all its weights are hashed.

        A model that was warmed up meanwhile is another one.
        """
        known = self._known.get("pretrained")
        if known is None or known[0] is not elmo.pretrained:
            known = self._known["pretrained"] = (elmo.pretrained, ElmoEncoder(elmo, start=self.start))
        return known[1]

    def network(self) -> WordVectors:
        """New weights for what a task learns of its words' vectors."""
        bilm = None
        if self.choice.is_bilm_tuned and self.elmo is not None:
            import copy

            bilm = copy.deepcopy(self.elmo.bilm).requires_grad_(True)
        return WordVectors(self.choice, self.widths, static=self.static, bilm=bilm)

    def of(self, sentences: Iterable[Words], *, show_progress: bool = False) -> VectorSource:
        """Where these sentences' vectors are looked up; frozen layers are computed now, if not before."""
        wanted: Sequence[Words] = list(dict.fromkeys(sentences))
        layers = None
        has_elmo = self.elmo is not None and self.choice.elmo != "none"
        if has_elmo and self.elmo is not None and not self.choice.is_bilm_tuned:
            layers = self.cache.layers(self._encoder(self.elmo), wanted, show_progress=show_progress)
        indexer = self.elmo.indexer if has_elmo and self.elmo and self.choice.is_bilm_tuned else None
        return VectorSource(
            static=self.static,
            has_characters=self.choice.characters > 0,
            elmo=layers,
            bilm_indexer=indexer,
            others=tuple(self.cache.layers(one, wanted, show_progress=show_progress) for one in self.others),
        )
