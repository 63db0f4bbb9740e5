"""A document in, which of its spans speak of the same thing out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Document, Span
from elmo.tasks.heads.coreference import CoreferenceHead
from elmo.tasks.heads.sentence_vectors import Widths
from elmo.tasks.scores.coreference import coreference_scores
from elmo.tasks.task import Vectors

Clusters = tuple[tuple[Span, ...], ...]
MAX_TRAINED_TOKENS = 1500  # of a document in training: a longer one is cut between sentences


@dataclass(frozen=True)
class CoreferenceOptions:
    """Of the head."""

    hidden_width: int = 150
    max_span_width: int = 10
    kept_share: float = 0.4
    max_antecedents: int = 100
    dropout: float = 0.2


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
    """Whether clusters of one mention count follows from the training data."""

    kind: ClassVar[str] = "coreference"
    has_singletons: bool
    options: CoreferenceOptions = CoreferenceOptions()

    @classmethod
    def of(cls, train: Sequence[Document], options: CoreferenceOptions | None = None) -> Self:
        """The task that these examples set."""
        sizes = [len(cluster) for example in train for cluster in _known(example)]
        if not sizes:
            raise DataError("expected documents with clusters to learn from, found none")
        return cls(min(sizes) == 1, options or CoreferenceOptions())

    @property
    def main_score(self) -> str:
        """The mean of the F1 of MUC, B³ and CEAFe, as in the CoNLL-2012 shared task."""
        return "conll"

    def head(self, widths: Widths) -> CoreferenceHead:
        """End-to-end span ranking."""
        return CoreferenceHead(widths, has_singletons=self.has_singletons, **asdict(self.options))

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[Document]) -> Tensor:
        """How unlikely the right antecedents are, on average over documents."""
        losses = []
        for example in examples:
            for part in parts_of(example, MAX_TRAINED_TOKENS):
                found = vectors(part.text)
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
            found = cast("CoreferenceHead", head).predict(vectors(example.text), speakers=_speakers(example))
            clusters = tuple(tuple(mention.span for mention in cluster) for cluster in found)
            sure = tuple(tuple(mention.probability for mention in cluster) for cluster in found)
            predicted.append(PredictedClusters(clusters, sure))
        return predicted

    def check(self, examples: Sequence[Document]) -> None:
        """Refuse documents whose clusters are not known."""
        for example in examples:
            _known(example)

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
        return {"has_singletons": self.has_singletons, "options": asdict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(bool(values["has_singletons"]), CoreferenceOptions(**values["options"]))


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
        where = "" if example.place is None else f"{example.place}: "
        raise DataError(f"{where}expected the clusters of {example.name[:40]!r}, found none")
    return example.clusters


def _speakers(example: Document) -> Tensor | None:
    """A number for each token's speaker; -1 where there is none."""
    if example.speakers is None:
        return None
    names: dict[str, int] = {"-": -1, "_": -1, "": -1}
    return torch.tensor([names.setdefault(name, len(names)) for name in example.speakers])
