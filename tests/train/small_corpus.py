"""A text of four sentences, and corpora made of such files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elmo.train.build_corpus import Corpus, build

TEXT = "the cat sat\nthe dog sat down\n\na cat and a dog\nthe end\n"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tokens_of(path: Path, folder: Path, **options: Any) -> Corpus:
    return build(path, folder, **{"input_format": "tokens", "heldout": 0, **options})
