"""Tiny data for tasks, and the command that trains on it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Outcome, Run

TAGS = {"The": "O", "river": "O", "lends": "O", "Bank": "B-ORG", "London": "B-LOC", ".": "O"}
SENTENCES = ("The Bank lends .", "London lends The river .", "The river London .", "Bank .", "The London Bank")
TEXTS = ("good\tthe river is fine", "bad\tthe bank is broke", "good\ta fine river", "bad\ta broke bank")
# word, tag, lemma, roleset, brackets for each predicate
# two parallel texts
ENGLISH = "Two men walk.\nA man walks.\nTwo dogs run.\nA dog runs.\nTwo men run.\nA dog walks.\n"
GERMAN = (
    "Zwei Männer gehen.\nEin Mann geht.\nZwei Hunde rennen.\nEin Hund rennt.\nZwei Männer rennen.\nEin Hund geht.\n"
)
ROLES = "They\tP\tthey\t-\t(ARG0*)\nlent\tV\tlend\tlend.01\t(V*)\nmoney\tN\tmoney\t-\t(ARG1*)\n.\t.\t.\t-\t*\n\n"
MORE_ROLES = "Banks\tN\tb\t-\t(ARG0*)\nlend\tV\tlend\tlend.01\t(V*)\ncash\tN\tcash\t-\t(ARG1*)\n\n"
FAST = ("--no-cache", "--epochs", "2", "--hidden", "4", "--batch-size", "4", "--learning-rate", "0.02")


def conll(sentences: tuple[str, ...]) -> str:
    rows = ("".join(f"{word} {TAGS[word]}\n" for word in one.split()) for one in sentences)
    return "".join(f"{row}\n" for row in rows)


def write_files(here: Path) -> None:
    """Write the files that the examples in the help use."""
    for name in ("train.conll", "dev.conll"):
        (here / name).write_text(conll(SENTENCES))
    (here / "texts.tsv").write_text("label\ttext\n" + "".join(f"{row}\n" for row in TEXTS))
    (here / "train.en").write_text(ENGLISH * 2)
    (here / "train.de").write_text(GERMAN * 2, encoding="utf-8")
    (here / "roles.tsv").write_text(ROLES + MORE_ROLES)
    words = "".join(f"{word} {k}.5 {-k} 0.25\n" for k, word in enumerate(TAGS))
    (here / "v").write_text(words)


def train_translator(run: Run, *more: str, out: str = "de.safetensors") -> Outcome:
    files = ("train.de", "--dev", "train.en", "--dev", "train.de", "--set", "head.n_units=60")
    return train(run, "translation", "train.en", *files, *more, out=out)


def train(run: Run, kind: str, file: str, *more: str, out: str = "ner.safetensors") -> Outcome:
    return run("task", "train", kind, file, "--out", out, "--model", "model", *FAST, *more)
