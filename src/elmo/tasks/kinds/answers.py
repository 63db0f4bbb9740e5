"""Question answering: find the span of a passage that answers a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Question, format_location
from elmo.tasks.heads.answers import AnswersHead, AnswerSpan
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from elmo.tasks.kinds.task import Embed, HeadOptions, unique_rows
from elmo.tasks.scores.answers import answer_scores, is_mostly_chinese

N_BEST = 3  # predicted answers per question


@dataclass(frozen=True)
class AnswersOptions(HeadOptions):
    """Options of the head and of the scores for question answering.

    Args:
        hidden_width: Width of the hidden states.
        dropout: Dropout inside the network.
        max_length: Maximum length of an answer in tokens.
        by_character: Whether scores compare characters as in CMRC 2018 instead of words as in SQuAD; None
            compares characters if most gold answers are Chinese.

    Example:
        >>> options = AnswersOptions(max_length=10)
    """

    hidden_width: int = 90
    dropout: float = 0.2
    max_length: int = 17
    by_character: bool | None = None


@dataclass(frozen=True)
class PredictedAnswer:
    """The most probable answers to a question with their probabilities, best first."""

    answers: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """The most probable answer."""
        return self.answers[0][0]

    def to_json(self) -> dict[str, Any]:
        """Return the answers as JSON values, with probabilities rounded to 4 digits."""
        answers = [{"text": text, "probability": round(p, 4)} for text, p in self.answers]
        return {"answer": self.text, "answers": answers}


@dataclass(frozen=True)
class Answers:
    """Question answering; every answer is a span of the passage.

    Attributes:
        options: Options of the head.

    Example:
        >>> Answers(AnswersOptions(max_length=10)).main_score
        'f1'
    """

    kind: ClassVar[str] = "answers"
    main_score: ClassVar[str] = "f1"
    options: AnswersOptions = AnswersOptions()

    @classmethod
    def from_examples(cls, train: Sequence[Question], options: AnswersOptions | None = None) -> Self:
        """Create the task; raise ``DataError`` if no training question has an answer in its passage."""
        if not any(example.spans for example in train):
            raise DataError("training questions must have answers in their passages; found none")
        return cls(options or AnswersOptions())

    def build_head(self, widths: FeatureWidths) -> AnswersHead:
        """Build a network with bidirectional attention and self-attention."""
        return AnswersHead(widths, hidden_width=self.options.hidden_width, dropout=self.options.dropout)

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[Question]) -> Tensor:
        """Compute the negative log-likelihood of the first and last tokens of the gold answers."""
        examples = [example for example in examples if example.spans]
        if not examples:
            return torch.zeros(())
        passages, questions, rows = _embed_examples(embed, examples)
        is_start = torch.zeros(len(examples), passages.mask.size(1), dtype=torch.bool)
        is_end = torch.zeros_like(is_start)
        for k, example in enumerate(examples):
            for span in example.spans:
                is_start[k, span.start] = is_end[k, span.end - 1] = True
        return cast("AnswersHead", head).loss(passages, questions, is_start=is_start, is_end=is_end, rows=rows)

    def predict(self, head: nn.Module, embed: Embed, examples: Sequence[Question]) -> list[PredictedAnswer]:
        """Predict the most probable answers to each question, as they are written in the passage."""
        passages, questions, rows = _embed_examples(embed, examples)
        best_spans = cast("AnswersHead", head).predict(
            passages, questions, rows=rows, max_length=self.options.max_length, n_best=N_BEST
        )
        return [
            PredictedAnswer(tuple((_answer_text(example, span), span.probability) for span in best))
            for example, best in zip(examples, best_spans, strict=True)
        ]

    def check(self, examples: Sequence[Question]) -> None:
        """Raise ``DataError`` for a question without a gold answer."""
        for example in examples:
            if not example.answers:
                raise DataError(
                    f"{format_location(example.location)}question {example.id[:40]!r} must have an answer; found none"
                )

    def score(self, examples: Sequence[Question], predictions: Sequence[PredictedAnswer]) -> dict[str, float]:
        """Compute F1 and exact match by the rules of SQuAD, or of CMRC 2018 if most gold answers are Chinese.

        SQuAD splits words at spaces, so a Chinese answer would count as a single word. The option
        ``by_character`` sets the rules explicitly.
        """
        gold = [example.answers for example in examples]
        by_character = self.options.by_character
        scores = answer_scores(
            gold,
            [prediction.text for prediction in predictions],
            by_character=is_mostly_chinese(gold) if by_character is None else by_character,
        )
        return {"f1": scores.f1, "exact_match": scores.exact_match}

    def to_json(self) -> dict[str, Any]:
        """Return the options as JSON values."""
        return {"options": self.options.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create a task from the values that ``to_json`` returned."""
        return cls(AnswersOptions(**values["options"]))


def _embed_examples(embed: Embed, examples: Sequence[Question]) -> tuple[FeatureVectors, FeatureVectors, Tensor]:
    """Return the features of the unique passages and of the questions, and the passage index of each question."""
    passages, rows = unique_rows(example.passage for example in examples)
    return embed(passages), embed([example.question for example in examples]), rows


def _answer_text(example: Question, span: AnswerSpan) -> str:
    return example.text[example.offsets[span.start][0] : example.offsets[span.end - 1][1]]
