"""Measure how similar random usages of the same word are, to rank similarities."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from elmo.embed.comparison import spell_entry
from elmo.embed.elmo import Elmo
from elmo.engine.batches import split_batches, track_progress
from elmo.errors import DataError
from elmo.formats import native
from elmo.formats.similarity import LEVELS, SimilarityStatistics
from elmo.text.lines import ErrorPolicy
from elmo.text.reader import read_sentences
from elmo.text.tokenizers import Tokens

N_WORDS = 4000  # maximum number of words with their own statistics
N_USAGES = 24  # maximum number of usages per word: 276 pairs
MIN_USAGES = 12
MAX_TOKENS = 1_000_000
SENTENCE_LENGTHS = (5, 60)  # shortest and longest sentence to use, in tokens


def compute_similarity_statistics(
    elmo: Elmo, sentences: Iterable[Tokens], *, max_tokens: int = MAX_TOKENS, seed: int = 0, show_progress: bool = False
) -> SimilarityStatistics:
    """Compute quantiles of the cosine between random usages of the same word, with ``layers="sense"``.

    Args:
        elmo: The model.
        sentences: Tokenized text on many subjects. Up to 24 random usages of each word are used.
        max_tokens: Number of tokens to read.
        seed: Random seed for choosing usages.
        show_progress: Show a progress bar on stderr.
    """
    usages = _collect_usages(elmo, sentences, max_tokens=max_tokens, seed=seed)
    if not usages:
        raise DataError(
            f"cannot compute similarity statistics: expected a text in which some words occur in {MIN_USAGES} "
            f"sentences of {SENTENCE_LENGTHS[0]} to {SENTENCE_LENGTHS[1]} tokens, found none"
        )
    vectors = _embed(elmo, usages, show_progress=show_progress)
    levels = np.array(LEVELS)
    cosines = {word: _pair_cosines(rows) for word, rows in vectors.items()}
    words = {word: tuple(np.quantile(values, levels).tolist()) for word, values in cosines.items()}
    return SimilarityStatistics(tuple(np.quantile(np.concatenate([*cosines.values()]), levels).tolist()), words)


_Usage = tuple[Tokens, int]  # a sentence and the position of the word


def _collect_usages(elmo: Elmo, sentences: Iterable[Tokens], *, max_tokens: int, seed: int) -> dict[str, list[_Usage]]:
    """Return random usages of the most frequent words, in different sentences."""
    usages: defaultdict[str, list[_Usage]] = defaultdict(list)
    counts: defaultdict[str, int] = defaultdict(int)
    generator = random.Random(seed)
    n_read = 0
    seen: set[tuple[str, ...]] = set()
    for sentence in sentences:
        n_read += len(sentence)
        if n_read > max_tokens:
            break
        if not SENTENCE_LENGTHS[0] <= len(sentence) <= SENTENCE_LENGTHS[1] or sentence.tokens in seen:
            continue
        seen.add(sentence.tokens)
        for word, time in {
            spell_entry(elmo, token): k for k, token in enumerate(sentence.tokens) if token.isalpha()
        }.items():
            counts[word] += 1
            if len(usages[word]) < N_USAGES:
                usages[word].append((sentence, time))
            elif (slot := generator.randrange(counts[word])) < N_USAGES:  # reservoir sampling
                usages[word][slot] = sentence, time
    frequent = sorted((word for word in usages if counts[word] >= MIN_USAGES), key=lambda word: (-counts[word], word))
    return {word: usages[word] for word in frequent[:N_WORDS]}


def _embed(elmo: Elmo, usages: dict[str, list[_Usage]], *, show_progress: bool) -> dict[str, np.ndarray]:
    """Return the vectors of the usages of each word (usage, width), in half precision."""
    positions: defaultdict[Tokens, list[tuple[str, int]]] = defaultdict(list)
    for word, items in usages.items():
        for sentence, time in items:
            positions[sentence].append((word, time))
    vectors: defaultdict[str, list[np.ndarray]] = defaultdict(list)
    batches = list(split_batches(list(positions), batch_size=None))
    for batch in track_progress(batches, "Embedding", is_shown=show_progress):
        for sentence, encoding in zip(batch, elmo.encode(batch, layers="sense"), strict=True):
            for word, time in positions[sentence]:
                vectors[word].append(np.asarray(encoding.vectors[time], dtype=np.float16))
    return {word: np.stack(vectors[word]) for word in usages}


def _pair_cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of vectors (pair,)."""
    rows = vectors.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(norms > 0, norms, 1)
    first, second = np.triu_indices(len(rows), k=1)
    return np.clip((rows @ rows.T)[first, second], -1, 1)


def calibrate_model(
    model: str | Path,
    texts: str | Sequence[str],
    *,
    out: Path | None = None,
    max_tokens: int = MAX_TOKENS,
    split: bool | None = None,
    errors: ErrorPolicy = "strict",
    tokenizer: str | None = None,
    device: str = "cpu",
    show_progress: bool = False,
) -> tuple[Path, SimilarityStatistics]:
    """Compute similarity statistics from text and store them with the model; return its folder and the statistics.

    Args:
        model: A name as in ``Elmo.from_pretrained``.
        texts: Files, globs or folders of text; "-" is stdin.
        out: New folder for a copy of the model in elmo's native format. Default: the statistics are added to the
            model itself or, if its format cannot store them, to a copy NAME-calibrated in the current folder.
        max_tokens: Number of tokens to read.
        split: Split lines of text into sentences. Default: if they are paragraphs.
        errors: What to do with bytes that are not UTF-8: stop ("strict"), replace them, skip the line, or keep them
            as surrogate escapes.
        tokenizer: Tokenizer to use instead of that of the model.
        device: Device of the network.
        show_progress: Show a progress bar on stderr.

    Example:
        >>> folder, statistics = calibrate_model("en", "long.txt", out=Path("calibrated"))
        >>> folder.name
        'calibrated'
    """
    folder = Path(model)
    out = native.choose_copy(folder, out, suffix="calibrated")
    elmo = Elmo.from_pretrained(model, device=device, tokenizer=tokenizer)
    texts = [texts] if isinstance(texts, str) else texts
    sentences = read_sentences(texts, tokenizer=elmo.tokenizer, split=split, errors=errors)
    statistics = compute_similarity_statistics(
        elmo, (sentence.tokens for sentence in sentences), max_tokens=max_tokens, show_progress=show_progress
    )
    if out is None:
        native.add_similarity(folder, statistics)
    else:
        native.write(replace(elmo.pretrained, similarity=statistics), out)
    return out or folder, statistics
