"""A document in, which of its spans speak of the same thing out."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Document, Span, Words, at
from elmo.tasks.heads.coreference import CoreferenceHead, Sentences
from elmo.tasks.heads.layers import SentenceGroups, Widths
from elmo.tasks.kinds.task import LATER, Vectors, check_options, kept_options
from elmo.tasks.scores.coreference import check_extra, coreference_scores

Clusters = tuple[tuple[Span, ...], ...]
SINGLETON_SHARE = 0.02  # of clusters: where fewer have one mention, those are slips
MAX_TRAINED_TOKENS = 1500  # of a document in training: a longer one is cut between sentences
MAX_PADDED = 16_384  # tokens, padding counted, of sentences that are read together whatever their lengths

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreferenceOptions:
    """Of the head; whether clusters of one mention count is told from the data by default."""

    hidden_width: int = 150
    max_span_width: int = 10
    kept_share: float = 0.4
    max_antecedents: int = 100
    dropout: float = 0.2
    has_singletons: bool | None = None
    is_coarse: bool = field(default=False, metadata=LATER)  # candidates by a bilinear score, not the nearest
    feature_width: int = field(default=20, metadata=LATER)  # of vectors of widths, distances and speakers
    input_dropout: float = field(default=0.5, metadata=LATER)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedClusters:
    """Clusters of spans, and the probability of each mention's link (or of its having none)."""

    clusters: Clusters
    confidences: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        return {
            "clusters": [
                [
                    {"start": span.start, "end": span.end, "confidence": round(sure, 4)}
                    for span, sure in zip(cluster, chances, strict=True)
                ]
                for cluster, chances in zip(self.clusters, self.confidences, strict=True)
            ]
        }


@dataclass(frozen=True)
class Coreference:
    """Clusters of one mention count where the training data has them (2 % of clusters or more)."""

    kind: ClassVar[str] = "coreference"
    has_singletons: bool
    options: CoreferenceOptions = CoreferenceOptions()

    @classmethod
    def of(cls, train: Sequence[Document], options: CoreferenceOptions | None = None) -> Self:
        """The task that these examples set."""
        check_extra()
        options = options or CoreferenceOptions()
        clusters = [cluster for example in train for cluster in _once(example)]
        if not clusters:
            raise DataError("expected documents with clusters to learn from, found none")
        widths = [span.end - span.start for cluster in clusters for span in cluster]
        if n_wide := sum(width > options.max_span_width for width in widths):
            _log.warning(
                "%.1f %% of the mentions (%d of %d) are wider than max_span_width, %d: they are never found",
                100 * n_wide / len(widths), n_wide, len(widths), options.max_span_width,
            )  # fmt: skip
        has_singletons = options.has_singletons
        if has_singletons is None:
            n_single = sum(len(cluster) == 1 for cluster in clusters)
            has_singletons = n_single >= SINGLETON_SHARE * len(clusters)
        return cls(has_singletons, options)

    @property
    def main_score(self) -> str:
        """The mean of the F1 of MUC, B³ and CEAFe, as in the CoNLL-2012 shared task."""
        return "conll"

    def head(self, widths: Widths) -> CoreferenceHead:
        """End-to-end span ranking."""
        return CoreferenceHead(widths, **{**asdict(self.options), "has_singletons": self.has_singletons})

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[Document]) -> Tensor:
        """How unlikely the right antecedents are, on average over documents."""
        losses = []
        for example in examples:
            for part in parts_of(example, MAX_TRAINED_TOKENS):
                found = read_sentences(vectors, part.text)
                losses.append(
                    cast("CoreferenceHead", head).loss(found, _known(part), speakers=_speakers(part))
                )
        return torch.stack(losses).mean()

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[Document]
    ) -> list[PredictedClusters]:
        """The clusters of each document."""
        predicted = []
        for example in examples:
            read = read_sentences(vectors, example.text)
            found = cast("CoreferenceHead", head).predict(read, speakers=_speakers(example))
            clusters = tuple(tuple(mention.span for mention in cluster) for cluster in found)
            sure = tuple(tuple(mention.probability for mention in cluster) for cluster in found)
            predicted.append(PredictedClusters(clusters, sure))
        return predicted

    def check(self, examples: Sequence[Document]) -> None:
        """Refuse documents whose clusters are not known, or share a mention."""
        check_extra()
        for example in examples:
            _once(example)

    def scores(
        self, examples: Sequence[Document], predictions: Sequence[PredictedClusters]
    ) -> dict[str, float]:
        """F1 of MUC, B³, CEAFe and LEA, and the mean of the first three."""
        found = coreference_scores(
            [_known(example) for example in examples], [one.clusters for one in predictions]
        )
        return {
            "conll": found.conll,
            "muc": found.muc.f1,
            "b_cubed": found.b_cubed.f1,
            "ceaf_e": found.ceaf_e.f1,
            "lea": found.lea.f1,
        }

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {"has_singletons": self.has_singletons, "options": kept_options(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(bool(values["has_singletons"]), CoreferenceOptions(**values["options"]))


def read_sentences(vectors: Vectors, text: Sequence[Words]) -> Sentences:
    """The vectors of a document; one long sentence among many short ones does not pad them all to its length.

    In a group no sentence is more than twice as long as another, so that at most half of it is padding.
    """
    if len(text) * max(map(len, text), default=0) <= MAX_PADDED:
        return vectors(text)
    groups: dict[int, list[int]] = {}
    for place, words in enumerate(text):
        groups.setdefault((len(words) - 1).bit_length(), []).append(place)
    order = [place for group in groups.values() for place in group]
    return SentenceGroups(
        tuple(vectors([text[place] for place in group]) for group in groups.values()),
        torch.tensor(order).argsort(),
    )


def parts_of(document: Document, max_tokens: int) -> list[Document]:
    """A document in parts of about equal length, cut between sentences; clusters go with their mentions."""
    total = sum(map(len, document.text))
    n_parts = -(-total // max_tokens)
    if n_parts <= 1:
        return [document]
    parts: list[Document] = []
    first = begin = 0  # sentence, token
    end = 0
    for number, words in enumerate(document.text, start=1):
        end += len(words)
        if end - begin >= total / n_parts or number == len(document.text):
            inside = tuple(
                tuple(
                    Span(span.start - begin, span.end - begin, span.label)
                    for span in cluster
                    if begin <= span.start and span.end <= end
                )
                for cluster in _known(document)
            )
            speakers = None if document.speakers is None else document.speakers[begin:end]
            clusters = tuple(cluster for cluster in inside if cluster)
            parts.append(
                Document(document.name, document.text[first:number], clusters, speakers, document.place)
            )
            first, begin = number, end
    return parts


def _known(example: Document) -> Clusters:
    if example.clusters is None:
        raise DataError(f"{at(example.place)}expected the clusters of {example.name[:40]!r}, found none")
    return example.clusters


def _once(example: Document) -> Clusters:
    """The clusters of a document that has each mention once: no measure is defined for others."""
    seen: set[tuple[int, int]] = set()
    for span in (span for cluster in _known(example) for span in cluster):
        if (span.start, span.end) in seen:
            raise DataError(
                f"{at(example.place)}{example.name[:40]!r}: expected each mention once, "
                f"found tokens {span.start} to {span.end} again"
            )
        seen.add((span.start, span.end))
    return _known(example)


def _speakers(example: Document) -> Tensor | None:
    """A number for each token's speaker; -1 where there is none."""
    if example.speakers is None:
        return None
    names: dict[str, int] = {"-": -1, "_": -1, "": -1}
    return torch.tensor([names.setdefault(name, len(names)) for name in example.speakers])
