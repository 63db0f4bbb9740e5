"""What is long or comes again: sentences of thousands of words, and epochs that ask for the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from elmo.tasks.data.examples import Document, Predicate, Question, Span, TaggedSentence, TextPair, Words
from elmo.tasks.heads import layers as attention
from elmo.tasks.heads.layers import SentenceGroups, FeatureVectors, FeatureWidths
from elmo.tasks.kinds import coreference, roles, tagging
from elmo.tasks.kinds.answers import Answers
from elmo.tasks.kinds.coreference import Coreference, embed_document
from elmo.tasks.kinds.entailment import Entailment
from elmo.tasks.kinds.registry import build_options
from elmo.tasks.kinds.roles import Roles
from elmo.tasks.kinds.tagging import Tagging


class Vectors:
    """Three numbers for every word, told by the word; the tokens that were asked for, padding counted."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, sentences: Sequence[Words]) -> FeatureVectors:
        longest = max(map(len, sentences))
        self.sizes.append(len(sentences) * longest)
        inputs = torch.zeros(len(sentences), longest, 3)
        mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
        for k, words in enumerate(sentences):
            for place, word in enumerate(words):
                inputs[k, place] = torch.tensor([len(word) / 9, ord(word[0]) % 7 / 7, 1.0])
            mask[k, : len(words)] = True
        return FeatureVectors(inputs, mask)


def test_a_document_with_one_long_sentence_is_not_padded_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (*(("ab", "c", "def", "g", "he")[: 1 + k % 5] for k in range(60)), ("x", "yz") * 50)
    document = Document("d", text, ((Span(0, 1), Span(3, 5)), (Span(10, 11),)))
    task = Coreference.from_examples([document], build_options("coreference", {"hidden_width": 4, "dropout": 0}))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3)).eval()
    padded, grouped = Vectors(), Vectors()
    assert isinstance(embed_document(padded, text), FeatureVectors)
    expected = task.loss(head, padded, [document]).item()
    said = task.predict(head, padded, [document])
    monkeypatch.setattr(coreference, "MAX_PADDED", 300)
    assert isinstance(embed_document(grouped, text), SentenceGroups)
    n_words = sum(map(len, text))
    assert sum(grouped.sizes) <= 2 * n_words < padded.sizes[0]
    assert task.loss(head, grouped, [document]).item() == pytest.approx(expected, abs=1e-5)
    assert task.predict(head, grouped, [document])[0].clusters == said[0].clusters


@pytest.mark.parametrize("has_crf", [True, False])
def test_a_sentence_of_two_thousand_words_is_tagged(has_crf: bool) -> None:
    words, tags = ("a", "Bc", "d", "e") * 500, ("O", "B-X", "I-X", "O") * 500
    task = Tagging.from_examples(
        [TaggedSentence(words, tags)], build_options("tagging", {"hidden_width": 4, "has_crf": has_crf})
    )
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3))
    loss = task.loss(head, Vectors(), [TaggedSentence(words, tags)])
    loss.backward()
    assert loss.isfinite()
    assert all(one.grad is None or one.grad.isfinite().all() for one in head.parameters())
    (said,) = task.predict(head.eval(), Vectors(), [TaggedSentence(words, None)])
    assert len(said.tags) == 2000
    assert all(0 < one <= 1.001 for one in said.confidences)


def test_an_answer_is_learned_and_found_in_a_passage_of_many_blocks() -> None:
    passage = tuple("ab" if k % 3 else "c" for k in range(2500))
    offsets = tuple((3 * k, 3 * k + len(word)) for k, word in enumerate(passage))
    text = "".join(word.ljust(3) for word in passage)
    question = Question("1", ("who",), passage, text, offsets, ("ab",), (Span(2400, 2401),))
    task = Answers.from_examples([question], build_options("answers", {"hidden_width": 3}))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3))
    loss = task.loss(head, Vectors(), [question])
    loss.backward()
    assert loss.isfinite()
    (said,) = task.predict(head.eval(), Vectors(), [question])
    assert said.text in text


def test_a_long_premise_is_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [TextPair(("ab", "c") * 40, ("c", "ab") * 30, label) for label in ("yes", "no")]
    task = Entailment.from_examples(pairs, build_options("entailment", {"hidden_width": 4}))
    torch.manual_seed(0)
    head = task.build_head(FeatureWidths(3)).eval()
    whole = task.loss(head, Vectors(), pairs).item()
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 1000)
    assert task.loss(head, Vectors(), pairs).item() == pytest.approx(whole, abs=1e-6)


def test_tags_are_put_into_another_scheme_and_numbered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("B-X", "I-X", "O"), ("O", "B-Y", "O"), ("B-X", "I-X", "O")]
    examples = [TaggedSentence(("a", "b", "c"), row) for row in rows]
    task = Tagging.from_examples(examples, build_options("tagging", {"hidden_width": 2, "dropout": 0}))
    converted, asked = tagging.converted, []

    def counted(tags: tuple[str, ...], *schemes: tagging.Scheme) -> tuple[str, ...]:
        asked.append(tags)
        return converted(tags, *schemes)

    monkeypatch.setattr(tagging, "converted", counted)
    head = task.build_head(FeatureWidths(3))
    first, second = (task.loss(head, Vectors(), examples).item() for _ in range(2))
    assert first == second
    assert sorted(asked) == sorted(set(rows))
    names = [task.labels.names[number] for number in task._encode_tags(examples[0])[1]]
    assert names == ["B-X", "E-X", "O"]


def test_roles_are_numbered_once_for_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = (Span(0, 1, "ARG0"),)
    examples = [Predicate(("a",) * n, 1, spans) for n in (2, 3, 3)]
    task = Roles.from_examples(examples, build_options("roles", {"hidden_width": 2, "n_layers": 1}))
    tags_of, asked = roles.tags_of, []

    def counted(given: tuple[Span, ...], n: int, scheme: tagging.Scheme) -> tuple[str, ...]:
        asked.append(n)
        return tags_of(given, n, scheme)

    monkeypatch.setattr(roles, "tags_of", counted)
    head = task.build_head(FeatureWidths(3)).eval()
    assert task.loss(head, Vectors(), examples).item() == task.loss(head, Vectors(), examples).item()
    assert asked == [2, 3]
