"""BLEU and chrF are the figures of sacrebleu; two systems are compared by its paired bootstrap."""

from __future__ import annotations

import pytest

from elmo import DataError
from elmo.tasks.scores.translation import compare_translations, score_signatures, translation_scores

sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")

GOLD = ["Zwei Männer stehen am Herd und bereiten Essen zu.", "Ein Hund rennt.", "Ein Mann schläft in einem Raum."] * 5
GOOD = ["Zwei Männer stehen am Herd und kochen Essen.", "Ein Hund rennt.", "Ein Mann schläft im Raum."] * 5
BAD = ["Männer Herd Essen kochen und stehen.", "Hund Ein.", ""] * 5


def test_scores_are_those_of_sacrebleu() -> None:
    for predicted in (GOOD, BAD, GOLD):
        scores = translation_scores(GOLD, predicted)
        assert scores["bleu"] == sacrebleu.corpus_bleu(predicted, [GOLD]).score / 100
        assert scores["chrf"] == sacrebleu.corpus_chrf(predicted, [GOLD]).score / 100
    assert translation_scores(GOLD, GOLD)["bleu"] == pytest.approx(1.0)


def test_chinese_references_are_split_into_characters() -> None:
    gold, predicted = ["两个男人站在炉子旁边做饭。", "一只狗在跑。"], ["两个男人在炉子旁边做饭。", "一只狗跑。"]
    assert (
        translation_scores(gold, predicted)["bleu"]
        == sacrebleu.corpus_bleu(predicted, [gold], tokenize="zh").score / 100
    )
    assert "|tok:zh|" in score_signatures(gold)["bleu"]
    assert "|tok:13a|" in score_signatures(GOLD)["bleu"]


def test_a_signature_is_that_of_the_scores() -> None:
    metric = sacrebleu.BLEU()
    metric.corpus_score(GOOD, [GOLD])
    assert score_signatures(GOLD)["bleu"] == str(metric.get_signature())
    assert f"version:{sacrebleu.__version__}" in score_signatures(GOLD)["chrf"]


def test_systems_are_compared_by_a_paired_bootstrap() -> None:
    compared = compare_translations(GOLD, GOOD, BAD)
    assert set(compared) == {"bleu", "chrf"}
    for name, score in compared.items():
        assert score.score == translation_scores(GOLD, GOOD)[name]
        assert score.other == translation_scores(GOLD, BAD)[name]
        assert score.margin > 0
        assert score.p_value < 0.05
        assert "bs:1000|seed:12345" in score.signature
    assert compare_translations(GOLD, GOOD, BAD) == compared


def test_equal_scores_are_no_significant_difference() -> None:
    assert [score.p_value for score in compare_translations(GOLD, GOOD, GOOD).values()] == [1.0, 1.0]


def test_no_translations_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="cannot compute scores: there are no translations"):
        translation_scores([], [])
