"""A small plan with its data and static vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

PLAN = """
[defaults]
vectors = "glove.txt"
model = "model"
seeds = 2

[defaults.fit]
epochs = 2
batch_size = 8
learning_rate = 0.02

[ner]
kind = "tagging"
train = "ner/train.conll"
dev = "ner/dev.conll"
[ner.head]
hidden_width = 4

[mood]
kind = "classification"
train = "mood.train.txt"
dev = ["mood.dev.txt"]
max_train = 16
[mood.reader]
tokenizer = "whitespace"
[mood.head]
network = "linear"
"""


def write_plan(folder: Path, plan: str = PLAN) -> Path:
    """Write the plan: uppercase words are entities; a text with more ``a`` than ``b`` is good."""
    random = np.random.default_rng(1)
    (folder / "ner").mkdir(exist_ok=True)
    for part, n in (("train", 24), ("dev", 12)):
        rows, texts = [], []
        for _ in range(n):
            words = [str(random.choice(["a", "b", "Q"])) for _ in range(random.integers(2, 7))]
            rows.append("".join(f"{word} {'B-X' if word == 'Q' else 'O'}\n" for word in words) + "\n")
            label = "good" if words.count("a") > words.count("b") else "bad"
            texts.append(f"{label} {' '.join(words)}\n")
        (folder / "ner" / f"{part}.conll").write_text("".join(rows))
        (folder / f"mood.{part}.txt").write_text("".join(texts))
    (folder / "glove.txt").write_text("a 0.5 1.0 0.1\nb -1.0 0.25 0.2\nq 0.3 -0.5 0.9\nz 9 9 9\n")
    path = folder / "plan.toml"
    path.write_text(plan, encoding="utf-8")
    return path
