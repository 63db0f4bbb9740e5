"""BLEU and chrF of translations, and a significance test for two systems, computed by sacrebleu (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from elmo.errors import DataError, importing_extra
from elmo.tasks.scores.answers import is_mostly_chinese


@dataclass(frozen=True)
class ComparedScore:
    """A score of two systems on the same texts, divided by 100, compared by a paired bootstrap (Koehn 2004).

    Attributes:
        score: Score of the model.
        margin: Half the width of its 95 % confidence interval.
        other: Score of the other system.
        other_margin: Half the width of its 95 % confidence interval.
        p_value: Probability of a difference of at least this size if the systems are equally good.
        signature: The settings of sacrebleu.
    """

    score: float
    margin: float
    other: float
    other_margin: float
    p_value: float
    signature: str


def check_sacrebleu() -> None:
    """Raise ``MissingExtraError`` if sacrebleu is not installed."""
    with importing_extra("scoring translations", extra="translation"):
        import sacrebleu  # noqa: F401


def translation_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """Compute BLEU (``bleu``) and chrF (``chrf``), divided by 100, with one reference per text."""
    return {
        name: metric.corpus_score(list(predicted), [list(gold)]).score / 100 for name, metric in _metrics(gold).items()
    }


def score_signatures(gold: Sequence[str]) -> dict[str, str]:
    """Return the settings of sacrebleu for each score, in its own notation."""
    signatures = {}
    for name, metric in _metrics(gold).items():
        metric.corpus_score([gold[0]], [[gold[0]]])  # counts the references
        signatures[name] = str(metric.get_signature())
    return signatures


def compare_translations(
    gold: Sequence[str], predicted: Sequence[str], other: Sequence[str]
) -> dict[str, ComparedScore]:
    """Compare two systems by a paired bootstrap, for BLEU (``bleu``) and chrF (``chrf``)."""
    metrics = _metrics(gold)
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [("other", list(other)), ("model", list(predicted))]
    signatures, results = PairedTest(systems, metrics, [list(gold)], test_type="bs")()
    compared = {}
    for name, label in zip(metrics, signatures, strict=True):
        baseline, system = cast("list[Any]", results[label])
        values = [float(value) / 100 for value in (system.score, system.ci, baseline.score, baseline.ci)]
        # the p-value of sacrebleu for equal scores is 0.001
        p_value = 1.0 if system.score == baseline.score else float(system.p_value)
        compared[name] = ComparedScore(*values, p_value=p_value, signature=str(signatures[label]))
    return compared


def _metrics(gold: Sequence[str]) -> dict[str, Any]:
    """Create the metrics; Chinese references are split into characters."""
    check_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if not gold:
        raise DataError("cannot compute scores: there are no translations")
    tokenizer = "zh" if is_mostly_chinese([[text] for text in gold]) else "13a"
    return {"bleu": BLEU(tokenize=tokenizer), "chrf": CHRF()}
