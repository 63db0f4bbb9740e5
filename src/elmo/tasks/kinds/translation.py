"""Translation: predict the text in another language."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from elmo.errors import DataError
from elmo.tasks.data.examples import SourceText, format_location
from elmo.tasks.data.units import BEGIN, END, PADDING, TargetUnits, Unit, UnitKind
from elmo.tasks.heads.beam_search import BeamOptions, search_beam
from elmo.tasks.heads.layers import FeatureWidths
from elmo.tasks.heads.translation import IGNORED, TargetBatch, TranslationHead
from elmo.tasks.kinds.task import Embed, HeadOptions
from elmo.tasks.scores.translation import (
    ComparedScore,
    check_sacrebleu,
    compare_translations,
    score_signatures,
    translation_scores,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TranslationOptions(HeadOptions):
    """Options of the head and of the search for translation.

    Args:
        hidden_width: Width of the hidden states.
        n_layers: Number of layers of the encoder.
        dropout: Dropout inside the network.
        label_smoothing: Share of the probability that training distributes over all units.
        units: What the decoder predicts: pieces of words (bpe) or words.
        n_units: Maximum number of units.
        max_units: Maximum length of a training target in units; a longer target is cut.
        beam_width: Width of beam search; 1 is greedy search.
        length_power: Power of the length by which beam search divides the log-probability of a translation.

    Example:
        >>> options = TranslationOptions(beam_width=1)  # greedy search
    """

    hidden_width: int = 256
    n_layers: int = 1
    dropout: float = 0.3
    label_smoothing: float = 0.1
    units: UnitKind = "bpe"
    n_units: int = 4000
    max_units: int = 200
    beam_width: int = 5
    length_power: float = 1.0


@dataclass(frozen=True, eq=False)
class PredictedTranslation:
    """A translation of a text.

    Attributes:
        text: The translation.
        units: The units of the translation; ``▁`` is a space.
        attention: For each unit, the attention to each source word.
        score: Log-probability of the translation, divided by a power of its length.
    """

    text: str
    units: tuple[str, ...]
    attention: tuple[tuple[float, ...], ...]
    score: float

    @property
    def alignment(self) -> tuple[int, ...]:
        """For each unit, the index of the source word with the most attention."""
        return tuple(max(range(len(weights)), key=weights.__getitem__) for weights in self.attention)

    def to_json(self) -> dict[str, Any]:
        """Return the translation as JSON values; each unit has the index of the source word with the most attention."""
        return {
            "translation": self.text,
            "score": round(self.score, 4),
            "units": list(self.units),
            "alignment": list(self.alignment),
        }


@dataclass(frozen=True)
class Translation:
    """Translation with attention.

    Attributes:
        units: The units that the decoder predicts.
        options: Options of the head.

    Example:
        >>> task = load("translation.safetensors").task  # doctest: +SKIP
        >>> task.main_score  # doctest: +SKIP
    """

    kind: ClassVar[str] = "translation"
    main_score: ClassVar[str] = "bleu"
    units: TargetUnits
    options: TranslationOptions = TranslationOptions()

    @classmethod
    def from_examples(cls, train: Sequence[SourceText], options: TranslationOptions | None = None) -> Self:
        """Create the task, with the units of the target texts."""
        check_sacrebleu()
        options = options or TranslationOptions()
        texts = [_gold(example) for example in train]
        task = cls(TargetUnits.learn(texts, kind=options.units, n_units=options.n_units), options)
        if n_long := sum(len(task.units.encode(text)) > options.max_units for text in texts):
            _log.warning(
                "%d of %d training targets are longer than max_units (%d) and are cut", n_long, len(texts),
                options.max_units,
            )  # fmt: skip
        return task

    def build_head(self, widths: FeatureWidths) -> TranslationHead:
        """Build an encoder and a decoder with attention."""
        options = self.options
        return TranslationHead(
            widths,
            n_units=len(self.units.names),
            hidden_width=options.hidden_width,
            n_layers=options.n_layers,
            dropout=options.dropout,
            label_smoothing=options.label_smoothing,
        )

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[SourceText]) -> Tensor:
        """Compute the mean cross entropy of the target units, and of the positions of copied words."""
        features = embed([example.source for example in examples])
        return cast("TranslationHead", head).loss(features, self._targets(examples, features.mask.size(1)))

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[SourceText]) -> list[PredictedTranslation]:
        """Predict the translation of each text; each one is encoded alone and does not depend on the others."""
        translator = cast("TranslationHead", head)
        sources = [
            (example.source, translator.encode(embed([example.source]))) for example in examples if example.source
        ]
        hypotheses = iter(
            search_beam(translator, sources, BeamOptions(self.options.beam_width, self.options.length_power))
        )
        predictions = []
        for example in examples:
            if not example.source:
                predictions.append(PredictedTranslation("", (), (), 0.0))
                continue
            best = next(hypotheses)
            attention = tuple(map(tuple, best.attention.tolist()))
            names = tuple(map(self.units.format, best.units))
            predictions.append(PredictedTranslation(self.units.decode(best.units), names, attention, best.score))
        return predictions

    def check(self, examples: Sequence[SourceText]) -> None:
        """Raise ``DataError`` for a text without a translation."""
        check_sacrebleu()
        for example in examples:
            _gold(example)

    def score(self, examples: Sequence[SourceText], predictions: Sequence[PredictedTranslation]) -> dict[str, float]:
        """Compute BLEU and chrF with sacrebleu."""
        gold = [_gold(example) for example in examples]
        return translation_scores(gold, [prediction.text for prediction in predictions])

    def signatures(self, examples: Sequence[SourceText]) -> dict[str, str]:
        """Return the settings of sacrebleu for each score."""
        return score_signatures([_gold(example) for example in examples])

    def compare(
        self, examples: Sequence[SourceText], predictions: Sequence[PredictedTranslation], other: Sequence[str]
    ) -> dict[str, ComparedScore]:
        """Compare BLEU and chrF with those of another system by a paired bootstrap."""
        gold = [_gold(example) for example in examples]
        return compare_translations(gold, [prediction.text for prediction in predictions], other)

    def to_json(self) -> dict[str, Any]:
        """Return the units and the options as JSON values."""
        return {"units": self.units.to_json(), "options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        return cls(TargetUnits.from_json(values["units"]), TranslationOptions(**values["options"]))

    def _targets(self, examples: Sequence[SourceText], longest: int) -> TargetBatch:
        """Return the units of the targets, padded, and the source words that they copy.

        ``longest`` is the number of words of the longest text.
        """
        end = Unit(END)
        rows = [self.units.encode(_gold(example), example.source) for example in examples]
        most = self.options.max_units
        rows = [[*row, end] if len(row) <= most else row[:most] for row in rows]  # a target that is cut has no end
        ids = [torch.tensor([unit.id for unit in row]) for row in rows]
        targets = pad_sequence(ids, batch_first=True, padding_value=IGNORED)
        previous = torch.cat([torch.full((len(rows), 1), BEGIN), targets[:, :-1]], dim=1)
        copied = None
        if any(unit.word for row in rows for unit in row):
            copied = torch.zeros(*targets.shape, longest, dtype=torch.bool)
            for k, (example, row) in enumerate(zip(examples, rows, strict=True)):
                for step, unit in enumerate(row):
                    if unit.word:
                        copied[k, step, : len(example.source)] = torch.tensor(
                            [word == unit.word for word in example.source]
                        )
        return TargetBatch(previous.masked_fill(previous == IGNORED, PADDING), targets, copied)


def _gold(example: SourceText) -> str:
    if not example.target or not example.target.strip():
        raise DataError(f"{format_location(example.location)}the text must have a translation; found none")
    return example.target
