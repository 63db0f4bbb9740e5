"""Coreference resolution: cluster the mentions of a document by the entity they refer to."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Document, Span, Words, format_location
from elmo.tasks.heads.coreference import CoreferenceHead, DocumentFeatures
from elmo.tasks.heads.layers import FeatureWidths, SentenceGroups
from elmo.tasks.kinds.task import OPTIONAL, Embed, HeadOptions
from elmo.tasks.scores.coreference import check_extra, coreference_scores

Clusters = tuple[tuple[Span, ...], ...]
SINGLETON_SHARE = 0.02  # if a smaller fraction of the clusters has one mention, these are treated as annotation errors
MAX_TRAINED_TOKENS = 1500  # longer training documents are split between sentences
MAX_PADDED = 16_384  # maximum size of a document with padding; the sentences of larger documents are grouped by length

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreferenceOptions(HeadOptions):
    """Options of the head for coreference resolution.

    Args:
        hidden_width: Width of the hidden states.
        max_span_width: Maximum width of a mention in tokens.
        kept_share: Number of spans to keep as candidate mentions, as a fraction of the number of tokens.
        max_antecedents: Maximum number of antecedents to score for a mention.
        dropout: Dropout inside the network.
        has_singletons: Whether to predict clusters of one mention; None detects it from the training data.
        is_coarse: Whether to choose candidate antecedents by a bilinear score instead of by distance.
        feature_width: Width of the embeddings of span widths, distances and speakers.
        input_dropout: Dropout on the input features.

    Example:
        >>> options = CoreferenceOptions(max_span_width=5)
    """

    hidden_width: int = 150
    max_span_width: int = 10
    kept_share: float = 0.4
    max_antecedents: int = 100
    dropout: float = 0.2
    has_singletons: bool | None = None
    is_coarse: bool = field(default=False, metadata=OPTIONAL)
    feature_width: int = field(default=20, metadata=OPTIONAL)
    input_dropout: float = field(default=0.5, metadata=OPTIONAL)


@dataclass(frozen=True)
class PredictedClusters:
    """Clusters of mentions; a confidence is the probability that a mention has its link, or has no link."""

    clusters: Clusters
    confidences: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the clusters as JSON values, with confidences rounded to 4 digits."""
        return {
            "clusters": [
                [
                    {"start": span.start, "end": span.end, "confidence": round(confidence, 4)}
                    for span, confidence in zip(cluster, confidences, strict=True)
                ]
                for cluster, confidences in zip(self.clusters, self.confidences, strict=True)
            ]
        }


@dataclass(frozen=True)
class Coreference:
    """Coreference resolution.

    By default, clusters of one mention are predicted if at least 2 % of the training clusters have one mention.

    Attributes:
        has_singletons: Whether to predict clusters of one mention.
        options: Options of the head.

    Example:
        >>> Coreference(has_singletons=False).main_score
        'conll'
    """

    kind: ClassVar[str] = "coreference"
    main_score: ClassVar[str] = "conll"  # the mean F1 of MUC, B³ and CEAFe, as in the CoNLL-2012 shared task
    has_singletons: bool
    options: CoreferenceOptions = CoreferenceOptions()

    @classmethod
    def from_examples(cls, train: Sequence[Document], options: CoreferenceOptions | None = None) -> Self:
        """Create the task, with or without singletons as in the training documents."""
        check_extra()
        options = options or CoreferenceOptions()
        clusters = [cluster for example in train for cluster in _check_mentions(example)]
        if not clusters:
            raise DataError("training documents must have clusters; found none")
        widths = [span.end - span.start for cluster in clusters for span in cluster]
        if n_wide := sum(width > options.max_span_width for width in widths):
            _log.warning(
                "%.1f %% of the mentions (%d of %d) are wider than max_span_width (%d) and cannot be predicted",
                100 * n_wide / len(widths), n_wide, len(widths), options.max_span_width,
            )  # fmt: skip
        has_singletons = options.has_singletons
        if has_singletons is None:
            n_single = sum(len(cluster) == 1 for cluster in clusters)
            has_singletons = n_single >= SINGLETON_SHARE * len(clusters)
        return cls(has_singletons, options)

    def build_head(self, widths: FeatureWidths) -> CoreferenceHead:
        """Build an end-to-end span-ranking network."""
        return CoreferenceHead(widths, **{**asdict(self.options), "has_singletons": self.has_singletons})

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[Document]) -> Tensor:
        """Compute the negative log-likelihood of the gold antecedents, averaged over documents."""
        parts = [part for example in examples for part in split_document(example, MAX_TRAINED_TOKENS)]
        loss = cast("CoreferenceHead", head).loss
        losses = [
            loss(embed_document(embed, part.text), _gold_clusters(part), speakers=_speaker_ids(part)) for part in parts
        ]
        return torch.stack(losses).mean()

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[Document]) -> list[PredictedClusters]:
        """Predict the clusters of each document."""
        predictions = []
        for example in examples:
            features = embed_document(embed, example.text)
            mentions = cast("CoreferenceHead", head).predict(features, speakers=_speaker_ids(example))
            clusters = tuple(tuple(mention.span for mention in cluster) for cluster in mentions)
            confidences = tuple(tuple(mention.probability for mention in cluster) for cluster in mentions)
            predictions.append(PredictedClusters(clusters, confidences))
        return predictions

    def check(self, examples: Sequence[Document]) -> None:
        """Raise ``DataError`` for a document without clusters, or with a mention in two clusters."""
        check_extra()
        for example in examples:
            _check_mentions(example)

    def score(self, examples: Sequence[Document], predictions: Sequence[PredictedClusters]) -> dict[str, float]:
        """Compute F1 of MUC, B³, CEAFe and LEA, and the mean of the first three."""
        scores = coreference_scores(
            [_gold_clusters(example) for example in examples], [prediction.clusters for prediction in predictions]
        )
        return {
            "conll": scores.conll,
            "muc": scores.muc.f1,
            "b_cubed": scores.b_cubed.f1,
            "ceaf_e": scores.ceaf_e.f1,
            "lea": scores.lea.f1,
        }

    def to_json(self) -> dict[str, Any]:
        """Return ``has_singletons`` and the options as JSON values."""
        return {"has_singletons": self.has_singletons, "options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        return cls(bool(values["has_singletons"]), CoreferenceOptions(**values["options"]))


def embed_document(embed: Embed, text: Sequence[Words]) -> DocumentFeatures:
    """Compute the features of a document.

    The sentences of a large document are grouped by length, so that one long sentence does not pad all others
    to its length. In a group, no sentence is more than twice as long as another, so at most half of a group is padding.
    """
    if len(text) * max(map(len, text), default=0) <= MAX_PADDED:
        return embed(text)
    groups: dict[int, list[int]] = {}
    for index, words in enumerate(text):
        groups.setdefault((len(words) - 1).bit_length(), []).append(index)
    order = [index for group in groups.values() for index in group]
    return SentenceGroups(
        tuple(embed([text[index] for index in group]) for group in groups.values()), torch.tensor(order).argsort()
    )


def split_document(document: Document, max_tokens: int) -> list[Document]:
    """Split a document between sentences into parts of similar length.

    The parts have about ``max_tokens`` tokens or less. The mentions of a cluster that are in the same part stay
    together.
    """
    total = sum(map(len, document.text))
    n_parts = -(-total // max_tokens)
    if n_parts <= 1:
        return [document]
    parts: list[Document] = []
    first = begin = end = 0  # first sentence of the part, its first token, and the token after its last
    for number, words in enumerate(document.text, start=1):
        end += len(words)
        if end - begin >= total / n_parts or number == len(document.text):
            inside = (
                tuple(
                    Span(span.start - begin, span.end - begin, span.label)
                    for span in cluster
                    if begin <= span.start and span.end <= end
                )
                for cluster in _gold_clusters(document)
            )
            clusters = tuple(cluster for cluster in inside if cluster)
            speakers = None if document.speakers is None else document.speakers[begin:end]
            parts.append(Document(document.name, document.text[first:number], clusters, speakers, document.location))
            first, begin = number, end
    return parts


def _gold_clusters(example: Document) -> Clusters:
    if example.clusters is None:
        raise DataError(
            f"{format_location(example.location)}document {example.name[:40]!r} must have clusters; found none"
        )
    return example.clusters


def _check_mentions(example: Document) -> Clusters:
    """Return the gold clusters; raise ``DataError`` if a mention occurs twice: metrics would be wrong."""
    seen: set[tuple[int, int]] = set()
    for span in (span for cluster in _gold_clusters(example) for span in cluster):
        if (span.start, span.end) in seen:
            raise DataError(
                f"{format_location(example.location)}each mention of document {example.name[:40]!r} must be in one "
                f"cluster; found tokens {span.start} to {span.end} twice"
            )
        seen.add((span.start, span.end))
    return _gold_clusters(example)


def _speaker_ids(example: Document) -> Tensor | None:
    """Return the speaker id of each token, -1 for an unknown speaker; None for a document without speakers."""
    if example.speakers is None:
        return None
    ids: dict[str, int] = {"-": -1, "_": -1, "": -1}
    return torch.tensor([ids.setdefault(name, len(ids)) for name in example.speakers])
