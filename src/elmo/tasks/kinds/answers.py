"""A question and a passage in, the passage's words that answer it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from elmo.errors import DataError
from elmo.tasks.data.examples import Question, Words, at
from elmo.tasks.heads.answers import AnswersHead, FoundAnswer
from elmo.tasks.heads.layers import SentenceVectors, Widths
from elmo.tasks.kinds.task import Vectors, check_options
from elmo.tasks.scores.answers import answer_scores, is_mostly_chinese

N_BEST = 3


@dataclass(frozen=True)
class AnswersOptions:
    """Of the head, and of what counts as an answer; how answers are compared is told from them by default."""

    hidden_width: int = 90
    dropout: float = 0.2
    max_length: int = 17  # tokens
    by_character: bool | None = None  # compared as CMRC 2018 does, not as SQuAD

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class PredictedAnswer:
    """The likeliest answers, the best first: text and probability."""

    answers: tuple[tuple[str, float], ...]

    @property
    def text(self) -> str:
        """The best."""
        return self.answers[0][0]

    def to_json(self) -> dict[str, Any]:
        """For a line of output."""
        found = [{"text": text, "probability": round(share, 4)} for text, share in self.answers]
        return {"answer": self.text, "answers": found}


@dataclass(frozen=True)
class Answers:
    """Answers are spans of their passage."""

    kind: ClassVar[str] = "answers"
    options: AnswersOptions = AnswersOptions()

    @classmethod
    def of(cls, train: Sequence[Question], options: AnswersOptions | None = None) -> Self:
        """The task that these examples set; there is nothing to learn of them beforehand."""
        if not any(example.spans for example in train):
            raise DataError("expected questions with answers to learn from, found none")
        return cls(options or AnswersOptions())

    @property
    def main_score(self) -> str:
        """SQuAD's F1 of words, or CMRC's of characters."""
        return "f1"

    def head(self, widths: Widths) -> AnswersHead:
        """Bidirectional attention with self-attention."""
        return AnswersHead(widths, hidden_width=self.options.hidden_width, dropout=self.options.dropout)

    def loss(self, head: nn.Module, vectors: Vectors, examples: Sequence[Question]) -> Tensor:
        """How unlikely the right first and last words are."""
        examples = [example for example in examples if example.spans]
        if not examples:
            return torch.zeros(())
        passages, questions, rows = _looked_up(vectors, examples)
        is_start = torch.zeros(len(examples), passages.mask.size(1), dtype=torch.bool)
        is_end = torch.zeros_like(is_start)
        for k, example in enumerate(examples):
            for span in example.spans:
                is_start[k, span.start] = is_end[k, span.end - 1] = True
        return cast("AnswersHead", head).loss(
            passages, questions, is_start=is_start, is_end=is_end, rows=rows
        )

    def predict(
        self, head: nn.Module, vectors: Vectors, examples: Sequence[Question]
    ) -> list[PredictedAnswer]:
        """The likeliest answers, as they are written in the passage."""
        passages, questions, rows = _looked_up(vectors, examples)
        found = cast("AnswersHead", head).predict(
            passages, questions, rows=rows, max_length=self.options.max_length, n_best=N_BEST
        )
        return [
            PredictedAnswer(tuple((_written(example, one), one.probability) for one in best))
            for example, best in zip(examples, found, strict=True)
        ]

    def check(self, examples: Sequence[Question]) -> None:
        """Refuse questions that nobody answered."""
        for example in examples:
            if not example.answers:
                raise DataError(
                    f"{at(example.place)}question {example.id[:40]!r}: expected an answer, found none"
                )

    def scores(
        self, examples: Sequence[Question], predictions: Sequence[PredictedAnswer]
    ) -> dict[str, float]:
        """F1 and exact match by SQuAD's rules; by CMRC 2018's where most of the gold answers is Chinese.

        To SQuAD's rules, which part words at spaces, a Chinese answer is a single word, right or wrong.
        The option ``by_character`` chooses instead.
        """
        gold = [example.answers for example in examples]
        by_character = self.options.by_character
        found = answer_scores(
            gold,
            [one.text for one in predictions],
            by_character=is_mostly_chinese(gold) if by_character is None else by_character,
        )
        return {"f1": found.f1, "exact_match": found.exact_match}

    def to_json(self) -> dict[str, Any]:
        """For a saved model."""
        return {"options": asdict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """What ``to_json`` gave."""
        return cls(AnswersOptions(**values["options"]))


def _looked_up(
    vectors: Vectors, examples: Sequence[Question]
) -> tuple[SentenceVectors, SentenceVectors, Tensor]:
    """Vectors of each passage once, of each question, and which passage is whose."""
    places: dict[Words, int] = {}
    rows = [places.setdefault(example.passage, len(places)) for example in examples]
    return vectors(list(places)), vectors([example.question for example in examples]), torch.tensor(rows)


def _written(example: Question, found: FoundAnswer) -> str:
    return example.text[example.offsets[found.start][0] : example.offsets[found.end - 1][1]]
