"""A text of four sentences, and corpora built from such files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmo.train import Corpus, CorpusOptions, build_corpus

TEXT = "the cat sat\nthe dog sat down\n\na cat and a dog\nthe end\n"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def build(
    texts: str | Path | Sequence[str | Path], folder: str | Path, *, on_progress: Any = None, **options: Any
) -> Corpus:
    return build_corpus(texts, folder, CorpusOptions(**options), on_progress=on_progress)


def build_tokens(path: Path, folder: Path, **options: Any) -> Corpus:
    return build(path, folder, **{"input_format": "tokens", "heldout": 0, **options})
