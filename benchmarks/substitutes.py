"""Compare the ways to combine language models on lexical substitution: SWORDS (Lee et al. 2021), and GloVe.

usage: substitutes.py MODEL SWORDS.json[.xz] [--glove FOLDER] [--start zero|warm] [--tune] [--json FILE]

The published measures, over all targets and over two halves (by the id of the target: beta, temperature and
the default combination were chosen on half "a"; half "b" was not used):

generation  F of the 10 best, computed like the official code: P = correct / generated, R = correct / min(10,
            all correct ones), summed over all targets. Correct are acceptable (a: more than half of the
            annotators say yes) or conceivable (c: at least a tenth) substitutes. Lenient ignores substitutes
            among the best 50 that nobody judged. (The official code prints lenient a under all four names;
            here each is computed.)
ranking     generalized average precision (GAP, Kishida 2005) of the judged candidates, by the share of yes.

Substitutes and judged candidates are compared by lemma, with simplemma for all systems (the official code:
WordNet). GloVe ranks neighbors of the target, and candidates by the cosine of their mean vector, without
context. Its neighbors come from the most frequent words, as many as the vocabulary of the model has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import lzma
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
from quality import Glove

from elmo import Elmo
from elmo.lexicon.substitutes import BETA, TEMPERATURE, Combine, Lemmatizer, Substituter
from elmo.lexicon.usages import Usage, unit_rows
from elmo.text.sentences import split_sentences

N, N_GENERATED = 10, 50
COLUMNS = ("lenient a", "lenient c", "strict a", "strict c", "GAP")
BETAS, TEMPERATURES = (0.0, 0.5, 1.0), (0.1, 0.07, 0.05, 0.03)


@dataclass(frozen=True)
class Target:
    """A word in its sentence, and the share of annotators who accept each substitute, by lemma."""

    usage: Usage
    word: str
    judged: dict[str, float]
    is_a: bool  # in the half that was used for tuning


@dataclass(frozen=True)
class Answers:
    """The answers of one system for each target: generated lemmas, and the ranking of the judged ones."""

    generated: list[list[str]]
    ranked: list[list[str]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--glove", type=Path)
    parser.add_argument("--start", default="zero")
    parser.add_argument("--tune", action="store_true", help="try values of beta and temperature on half a")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with WarningCounter("elmo.lexicon"):
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Evaluate all combinations, or with --tune the settings of two of them on half a."""
    elmo = Elmo.from_pretrained(options.model)
    lemmas = Lemmatizer("en")
    targets = list(read(options.data, elmo, lemmas))
    if options.tune:
        tune(elmo, targets, options.start)
        return
    halves = {name: [t.is_a in which for t in targets] for name, which in
              (("all", (True, False)), ("half a", (True,)), ("half b", (False,)))}  # fmt: skip
    print(f"{len(targets)} targets, {sum(halves['half a'])} in half a, start {options.start}")
    print(f"{'':14}" + "".join(f"{f'{name}: ' + ' | '.join(COLUMNS):>60}" for name in halves))
    systems: dict[str, Callable[[], Answers]] = {
        name: lambda name=name: ours(elmo, targets, combine=name, start=options.start)
        for name in ("forward", "backward", "mean", "product", "bcomb", "inject")
    }
    assert set(systems) == set(get_args(Combine))
    if options.glove:
        n_words = len(elmo.vocab or ())
        systems["GloVe"] = lambda: static(Glove(options.glove), targets, lemmas, n_words)
    results: dict[str, Any] = {}
    for name, answer in systems.items():
        answers = answer()
        results[name] = {half: figures(targets, answers, chosen) for half, chosen in halves.items()}
        rows = ["".join(f"{value:12.2f}" for value in row.values()) for row in results[name].values()]
        print(f"{name:14}" + "".join(rows), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


class WarningCounter(logging.Handler):
    """Counts the warnings of a logger and prints one line for each kind, instead of one per target."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self.counts: Counter[str] = Counter()
        self._logger = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        """Count the message without its arguments."""
        self.counts[" ".join(str(record.msg).replace("%s", "…").replace("%r", "…").split())] += 1

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True
        for message, n in self.counts.items():
            print(f"{n:,} × {message}", file=sys.stderr)


def read(path: Path, elmo: Elmo, lemmas: Lemmatizer) -> Iterator[Target]:
    """Read the targets, each in its sentence."""
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        data = json.load(file)
    labels: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for number, substitute in data["substitutes"].items():
        lemma = phrase_lemma(substitute["substitute"], lemmas)
        labels[substitute["target_id"]][lemma] += data["substitute_labels"][number]
    for number, target in data["targets"].items():
        text, at = data["contexts"][target["context_id"]]["context"], target["offset"]
        begin, end = next(span for span in split_sentences(text) if span[0] <= at < span[1])
        tokens = elmo.tokenizer(text[begin:end])
        first, last = at - begin, at - begin + len(target["target"])
        inside = [k for k, (a, b) in enumerate(tokens.offsets or ()) if a < last and b > first]
        own = phrase_lemma(target["target"], lemmas)
        sure = {s: [x for x in votes if x != "UNSURE"] for s, votes in labels[number].items() if s != own}
        judged = {s: votes.count("TRUE") / len(votes) for s, votes in sure.items() if votes}
        is_a = int(hashlib.sha1(number.encode()).hexdigest(), 16) % 2 == 0
        yield Target(Usage(tokens, inside[0], inside[-1] + 1, number), target["target"], judged, is_a)


def phrase_lemma(phrase: str, lemmas: Lemmatizer) -> str:
    """Lemmatize a phrase word by word."""
    return " ".join(map(lemmas, phrase.split()))


def ours(elmo: Elmo, targets: Sequence[Target], **options: Any) -> Answers:
    """Return the answers of one combination."""
    substituter = Substituter(elmo, language="en", **options)
    usages = [target.usage for target in targets]
    generated = [[item.lemma for item in result.items] for result in substituter.substitutes(usages, n=N_GENERATED)]
    ranked = substituter.rank(usages, [list(target.judged) for target in targets])
    return Answers(generated, [[str(item.candidate) for item in result.items] for result in ranked])


def static(glove: Glove, targets: Sequence[Target], lemmas: Lemmatizer, n_words: int) -> Answers:
    """Return the answers of static vectors: neighbors of the target, and candidates by cosine."""
    words = [word for word in list(glove.rows)[:n_words] if word.replace("-", "").isalpha()]
    rows = unit_rows(glove(words))
    generated: list[list[str]] = []
    ranked: list[list[str]] = []
    for target in targets:
        vector = unit_rows(glove([target.word]))[0]
        best = [lemmas(words[k]) for k in np.argsort(-(rows @ vector))[: 4 * N_GENERATED]]
        own = phrase_lemma(target.word, lemmas)
        generated.append([lemma for lemma in dict.fromkeys(best) if lemma != own][:N_GENERATED])
        candidates = list(target.judged)
        cosines = unit_rows(np.stack([glove(phrase.split()).mean(axis=0) for phrase in candidates])) @ vector
        ranked.append([candidates[k] for k in np.argsort(-cosines, kind="stable")])
    return Answers(generated, ranked)


def figures(targets: Sequence[Target], answers: Answers, chosen: Sequence[bool]) -> dict[str, float]:
    """Compute the published measures over the chosen targets, in percent."""
    these = [k for k, is_chosen in enumerate(chosen) if is_chosen]
    values = [
        f_at_n([targets[k] for k in these], [answers.generated[k] for k in these], least, is_lenient=lenient)
        for lenient in (True, False)
        for least in (0.5 + 1e-4, 0.1)
    ]
    precisions = [average_precision(targets[k].judged, answers.ranked[k]) for k in these]
    values.append(float(np.mean([value for value in precisions if value is not None])))
    return {name: 100 * value for name, value in zip(COLUMNS, values, strict=True)}


def f_at_n(targets: Sequence[Target], generated: Sequence[list[str]], least: float, *, is_lenient: bool) -> float:
    """Compute F of the N best; a substitute is correct if the share of yes is at least ``least``."""
    n_correct = n_generated = n_gold = 0
    for target, lemmas in zip(targets, generated, strict=True):
        gold = {lemma for lemma, share in target.judged.items() if share >= least}
        best = [lemma for lemma in lemmas if not is_lenient or lemma in target.judged][:N]
        n_correct += sum(lemma in gold for lemma in best)
        n_generated += len(best)
        n_gold += min(len(gold), N)
    return 2 * n_correct / (n_generated + n_gold)


def average_precision(gold: dict[str, float], ranked: Sequence[str]) -> float | None:
    """Compute generalized average precision, where the gain is the share of yes; None without any gain."""

    def total(gains: list[float]) -> float:
        sums = np.cumsum(gains)
        return float(sum(s / (k + 1) for k, (s, g) in enumerate(zip(sums, gains, strict=True)) if g > 0))

    ideal = total(sorted(gold.values(), reverse=True))
    return total([gold[candidate] for candidate in ranked]) / ideal if ideal else None


def tune(elmo: Elmo, targets: Sequence[Target], start: str) -> None:
    """Print the measures on half a for settings of two combinations; the last column is the mean."""
    half = [target for target in targets if target.is_a]
    grid: list[dict[str, Any]] = [{"combine": "bcomb", "beta": beta} for beta in BETAS]
    grid += [
        {"combine": "inject", "beta": beta, "temperature": temperature}
        for beta in BETAS
        for temperature in TEMPERATURES
    ]
    print(f"half a, {len(half)} targets; in use: beta {BETA}, temperature {TEMPERATURE}")
    for options in grid:
        row = figures(half, ours(elmo, half, start=start, **options), [True] * len(half))
        name = f"{options['combine']}, beta {options['beta']}, temperature {options.get('temperature', '-')}"
        print(f"{name:44}" + "".join(f"{v:8.2f}" for v in (*row.values(), np.mean(list(row.values())))))


if __name__ == "__main__":
    main()
