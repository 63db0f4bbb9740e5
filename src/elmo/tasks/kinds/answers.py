"""Question answering: find the span of a passage that answers a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Question, format_location
from elmo.tasks.heads.answers import AnswersHead, AnswerSpan
from elmo.tasks.heads.layers import FeatureVectors, FeatureWidths
from elmo.tasks.kinds.task import Embed, check_options, unique_rows
from elmo.tasks.scores.answers import answer_scores, is_mostly_chinese

N_BEST = 3  # answers per question


@dataclass(frozen=True)
class AnswersOptions:
    """Options of the head and of the scores.

    Args:
        hidden_width: Width of the hidden states.
        dropout: Dropout inside the network.
        max_length: Maximum length of an answer in tokens.
        by_character: Compare characters as in CMRC 2018, not words as in SQuAD; None decides by the gold
            answers.
    """

    hidden_width: int = 90
    dropout: float = 0.2
    max_length: int = 17
    by_character: bool | None = None

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedAnswer:
    """The most probable answers with their probabilities, best first."""

    answers: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """The best answer."""
        return self.answers[0][0]

    def to_json(self) -> dict[str, Any]:
        """Return the values of an output line."""
        answers = [{"text": text, "probability": round(p, 4)} for text, p in self.answers]
        return {"answer": self.text, "answers": answers}


@dataclass(frozen=True)
class Answers:
    """Question answering with answers that are spans of the passage."""

    kind: ClassVar[str] = "answers"
    options: AnswersOptions = AnswersOptions()

    @classmethod
    def from_examples(cls, train: Sequence[Question], options: AnswersOptions | None = None) -> Self:
        """Create the task; it has no labels, so the examples are only checked."""
        if not any(example.spans for example in train):
            raise DataError("expected training questions with answers, found none")
        return cls(options or AnswersOptions())

    @property
    def main_score(self) -> str:
        """F1 over words (SQuAD) or characters (CMRC 2018)."""
        return "f1"

    def build_head(self, widths: FeatureWidths) -> AnswersHead:
        """Build a network with bidirectional attention and self-attention."""
        return AnswersHead(widths, hidden_width=self.options.hidden_width, dropout=self.options.dropout)

    def loss(self, head: nn.Module, embed: Embed, examples: Sequence[Question]) -> Tensor:
        """Return the negative log-likelihood of the first and last words of the answers."""
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
        """Predict the most probable answers, as they are written in the passage."""
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
                    f"{format_location(example.location)}question {example.id[:40]!r}: expected an answer, found none"
                )

    def score(self, examples: Sequence[Question], predictions: Sequence[PredictedAnswer]) -> dict[str, float]:
        """Compute F1 and exact match by the rules of SQuAD, or of CMRC 2018 if most gold answers are Chinese.

        SQuAD splits words at spaces, so that a Chinese answer would count as a single word. The option
        ``by_character`` overrides the choice.
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
        """Return labels and options, for a saved model."""
        return {"options": asdict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Restore a task from the result of ``to_json``."""
        return cls(AnswersOptions(**values["options"]))


def _embed_examples(embed: Embed, examples: Sequence[Question]) -> tuple[FeatureVectors, FeatureVectors, Tensor]:
    """Return features of the unique passages, features of the questions, and the passage of each question."""
    passages, rows = unique_rows(example.passage for example in examples)
    return embed(passages), embed([example.question for example in examples]), torch.tensor(rows)


def _answer_text(example: Question, span: AnswerSpan) -> str:
    return example.text[example.offsets[span.start][0] : example.offsets[span.end - 1][1]]
