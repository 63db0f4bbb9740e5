"""What else could stand there? SWORDS (Lee et al. 2021): each combination beside one direction and GloVe.

usage: substitutes.py MODEL SWORDS.json[.xz] [--glove FOLDER] [--start zero|warm] [--tune] [--json FILE]

The published measures, over targets of the whole part and of its two halves (by the target's id: "a" served
to choose beta, temperature and the default combination, "b" did not):

generation  F of the 10 best, as the official code counts: P = right / given, R = right / min(10, right ones),
            over all targets together. Right are acceptable (a: more than half of the judges say yes) or
            conceivable (c: a tenth or more) substitutes; lenient leaves out of a system's best 50 what nobody
            judged. (The code as published gives lenient a under all four names; here each is itself.)
ranking     generalised average precision (Kishida 2005) of the judged candidates, by the share of yes.

Substitutes and judged candidates are compared by lemma: simplemma's, for all systems alike, where the
official code has WordNet's. GloVe's neighbors of the target, and the cosine of a candidate's mean vector
with it, know no context. Its neighbors are sought among as many words as the model's vocabulary has, the
most frequent ones.
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
from elmo.lexicon.substitutes import Lemmatizer
from elmo.lexicon.usages import unit_rows
from elmo.lexicon.substitutes import BETA, TEMPERATURE, Combine, Substituter
from elmo.lexicon.usages import Usage
from elmo.text.sentences import split_sentences

N, N_GIVEN = 10, 50
COLUMNS = ("lenient a", "lenient c", "strict a", "strict c", "GAP")
BETAS, TEMPERATURES = (0.0, 0.5, 1.0), (0.1, 0.07, 0.05, 0.03)


@dataclass(frozen=True)
class Target:
    """A word in its sentence, and what judges said about substitutes: the share of yes, by lemma."""

    usage: Usage
    word: str
    judged: dict[str, float]
    is_a: bool  # of the half that things were chosen on


@dataclass(frozen=True)
class Answers:
    """Of one system, for each target: lemmas that it generates, and the judged ones in its order."""

    generated: list[list[str]]
    ranked: list[list[str]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--glove", type=Path)
    parser.add_argument("--start", default="zero")
    parser.add_argument("--tune", action="store_true", help="beta and temperature, on half a")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with Told("elmo.lexicon"):
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """All combinations on all targets, or with --tune the settings of two on half of them."""
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
    found: dict[str, Any] = {}
    for name, answer in systems.items():
        answers = answer()
        found[name] = {half: figures(targets, answers, chosen) for half, chosen in halves.items()}
        rows = ["".join(f"{value:12.2f}" for value in row.values()) for row in found[name].values()]
        print(f"{name:14}" + "".join(rows), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


class Told(logging.Handler):
    """Counts what a part of the library warns of, one line a target, and tells it in one line a kind."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self.counts: Counter[str] = Counter()
        self._logger = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        """Count the kind of message: its words without what it is about."""
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
    """The targets, each in the one sentence of its context where it stands."""
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
        sure = {s: [x for x in each if x != "UNSURE"] for s, each in labels[number].items() if s != own}
        judged = {s: each.count("TRUE") / len(each) for s, each in sure.items() if each}
        is_a = int(hashlib.sha1(number.encode()).hexdigest(), 16) % 2 == 0
        yield Target(Usage(tokens, inside[0], inside[-1] + 1, number), target["target"], judged, is_a)


def phrase_lemma(phrase: str, lemmas: Lemmatizer) -> str:
    """Word by word."""
    return " ".join(map(lemmas, phrase.split()))


def ours(elmo: Elmo, targets: Sequence[Target], **options: Any) -> Answers:
    """A combination's answers."""
    substituter = Substituter(elmo, language="en", **options)
    usages = [target.usage for target in targets]
    generated = [[one.lemma for one in each.found] for each in substituter.substitutes(usages, n=N_GIVEN)]
    ranked = substituter.rank(usages, [list(target.judged) for target in targets])
    return Answers(generated, [[str(one.candidate) for one in each.found] for each in ranked])


def static(glove: Glove, targets: Sequence[Target], lemmas: Lemmatizer, n_words: int) -> Answers:
    """Neighbors of the target's static vector, and candidates by the cosine with it."""
    words = [word for word in list(glove.rows)[:n_words] if word.replace("-", "").isalpha()]
    rows = unit_rows(glove(words))
    generated: list[list[str]] = []
    ranked: list[list[str]] = []
    for target in targets:
        vector = unit_rows(glove([target.word]))[0]
        best = [lemmas(words[k]) for k in np.argsort(-(rows @ vector))[: 4 * N_GIVEN]]
        own = phrase_lemma(target.word, lemmas)
        generated.append([lemma for lemma in dict.fromkeys(best) if lemma != own][:N_GIVEN])
        given = list(target.judged)
        cosines = unit_rows(np.stack([glove(phrase.split()).mean(axis=0) for phrase in given])) @ vector
        ranked.append([given[k] for k in np.argsort(-cosines, kind="stable")])
    return Answers(generated, ranked)


def figures(targets: Sequence[Target], answers: Answers, chosen: Sequence[bool]) -> dict[str, float]:
    """The published measures over the chosen targets, in per cent."""
    these = [k for k, is_chosen in enumerate(chosen) if is_chosen]
    values = [
        f_at_n([targets[k] for k in these], [answers.generated[k] for k in these], least, is_lenient=lenient)
        for lenient in (True, False)
        for least in (0.5 + 1e-4, 0.1)
    ]
    precisions = [average_precision(targets[k].judged, answers.ranked[k]) for k in these]
    values.append(float(np.mean([value for value in precisions if value is not None])))
    return {name: 100 * value for name, value in zip(COLUMNS, values, strict=True)}


def f_at_n(
    targets: Sequence[Target], generated: Sequence[list[str]], least: float, *, is_lenient: bool
) -> float:
    """F of the N best; ``least`` is the share of yes that makes a substitute right."""
    right = given = wanted = 0
    for target, lemmas in zip(targets, generated, strict=True):
        gold = {lemma for lemma, share in target.judged.items() if share >= least}
        best = [lemma for lemma in lemmas if not is_lenient or lemma in target.judged][:N]
        right += sum(lemma in gold for lemma in best)
        given += len(best)
        wanted += min(len(gold), N)
    return 2 * right / (given + wanted)


def average_precision(gold: dict[str, float], ranked: Sequence[str]) -> float | None:
    """Generalised: a candidate's gain is its share of yes; None where nothing gained is possible."""

    def total(gains: list[float]) -> float:
        sums = np.cumsum(gains)
        return float(sum(s / (k + 1) for k, (s, g) in enumerate(zip(sums, gains, strict=True)) if g > 0))

    ideal = total(sorted(gold.values(), reverse=True))
    return total([gold[candidate] for candidate in ranked]) / ideal if ideal else None


def tune(elmo: Elmo, targets: Sequence[Target], start: str) -> None:
    """Figures on half a for settings of the two combinations that have some; the last column is the mean."""
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
