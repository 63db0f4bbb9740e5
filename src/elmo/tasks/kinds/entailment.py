"""Textual entailment: classify the relation between two texts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.heads.pairs import EsimHead
from elmo.tasks.kinds.classification import LabelTask
from elmo.tasks.kinds.task import HeadOptions


@dataclass(frozen=True)
class EntailmentOptions(HeadOptions):
    """Options of the head for textual entailment.

    Args:
        hidden_width: Width of the hidden states.
        dropout: Dropout inside the network.

    Example:
        >>> options = EntailmentOptions(hidden_width=50)
    """

    hidden_width: int = 150
    dropout: float = 0.5


@dataclass(frozen=True)
class Entailment(LabelTask):
    """Classification of text pairs into the labels of the training pairs.

    Attributes:
        labels: The labels.
        options: Options of the head.

    Example:
        >>> task = load("entailment.safetensors").task  # doctest: +SKIP
        >>> task.labels  # doctest: +SKIP
    """

    kind: ClassVar[str] = "entailment"
    options_type: ClassVar[type[HeadOptions]] = EntailmentOptions
    options: EntailmentOptions = EntailmentOptions()

    def build_head(self, widths: FeatureWidths) -> EsimHead:
        """Build an ESIM network (Chen et al. 2017)."""
        return EsimHead(widths, n_labels=len(self.labels), **asdict(self.options))
