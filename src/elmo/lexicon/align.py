"""Align the vectors of a model with those of a model of another language (Schuster et al. 2019).

A word has one anchor per layer: the mean of its vectors in a corpus. For each layer, the pairs of a dictionary give the
orthogonal matrix that moves the anchors of the source words closest to the anchors of their translations (Procrustes).
The vectors of words in context are then multiplied by the same matrix, which preserves all lengths and cosines within
the source language. Words are translated by nearest neighbors, or by CSLS (Conneau et al. 2018), which subtracts the
mean similarity of a vector to its nearest neighbors, so that vectors that are near to everything are not preferred.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, DataError, FormatError
from elmo.formats.alignment import Alignment, alignment_shapes
from elmo.formats.containers.torch_matrix import read_matrix
from elmo.formats.pretrained import Pretrained
from elmo.jobs.sharded import compute_fingerprint
from elmo.lexicon.usages import EntryKey, entry_key
from elmo.storage.files import format_path
from elmo.text.lines import read_lines
from elmo.text.tokenizers import Tokens
from elmo.train.initial_weights import pad_states

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

logger = logging.getLogger(__name__)

Pairs = Literal["dictionary", "identical", "frequency"]
Vectors = NDArray[np.floating[Any]]
WordPairs = Sequence[tuple[str, str]]

SENSE = "sense"
N_WORDS = 20_000  # words with an anchor, in each language
MAX_TOKENS = 1_000_000  # tokens to read in each language
N_TEST = 1500  # source words held out for the evaluation
TEST_RANK = 10_000  # they are among this number of most frequent words
MIN_PAIRS = 20
N_INDUCED = 5000  # most frequent words of each language among which refinement finds new pairs
N_HUBS = 5000  # most frequent source words from which CSLS estimates the density around target words
N_NEAREST = 10  # neighbors whose mean similarity CSLS subtracts
_MAX_TEST_SHARE = 4  # at most one source word in four is held out
_MAX_LENGTH = 100  # longer sentences are skipped
_BATCH_SENTENCES = 512
_BLOCK_ROWS = 1024  # rows of similarities in memory at once
_MAX_DEVIATION = 1e-2  # of W @ W.T from a multiple of the identity, for an orthogonal matrix
_TIE = 1e-6  # weight of the identity, which decides in directions that no word pair determines


# --- Anchors ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AnchorText:
    """The text from which anchors are computed.

    Attributes:
        words: Dictionary entries of the words that have an anchor, the most frequent first.
        sentences: The sentences.
        n_tokens: Number of tokens of the sentences.
    """

    words: tuple[str, ...]
    sentences: tuple[Tokens, ...]
    n_tokens: int


@dataclass(frozen=True, eq=False)
class Anchors:
    """The anchor of each word in each layer: the mean of its vectors in a corpus.

    Attributes:
        words: Dictionary entries, the most frequent first.
        layers: Names of the layers: their numbers and, for models with a softmax, "sense".
        vectors: Anchors of unit length (layer, word, width).
        n_tokens: Number of tokens of the corpus.
    """

    words: tuple[str, ...]
    layers: tuple[str, ...]
    vectors: NDArray[np.float32]
    n_tokens: int


WordSources = tuple[AnchorText, AnchorText] | tuple[Anchors, Anchors]  # of the source and of the target language


def compute_anchors(
    elmo: Elmo,
    sentences: Iterable[Tokens],
    *,
    n_words: int = N_WORDS,
    max_tokens: int = MAX_TOKENS,
    show_progress: bool = False,
) -> Anchors:
    """Compute the anchors of the most frequent words of a corpus.

    Args:
        elmo: The model; its alignment is not applied.
        sentences: The corpus. Sentences of more than 100 tokens are skipped.
        n_words: Maximum number of words.
        max_tokens: Maximum number of tokens to read.
        show_progress: Whether to show a progress bar.

    Example:
        >>> anchors = compute_anchors(elmo, [elmo.tokenizer("The bank of the river.")])
        >>> "bank" in anchors.words
        True
    """
    text = read_anchor_text(elmo, sentences, n_words=n_words, max_tokens=max_tokens)
    return _encode_anchors(elmo, text, show_progress=show_progress)


def read_anchor_text(elmo: Elmo, sentences: Iterable[Tokens], *, n_words: int, max_tokens: int) -> AnchorText:
    """Read sentences with at most ``max_tokens`` tokens, and find their most frequent words."""
    key = entry_key(elmo)
    corpus: list[Tokens] = []
    counts: Counter[str] = Counter()
    n_tokens = n_skipped = 0
    for sentence in sentences:
        if not 0 < len(sentence) <= _MAX_LENGTH:
            n_skipped += len(sentence) > _MAX_LENGTH
            continue
        if corpus and n_tokens + len(sentence) > max_tokens:
            break
        n_tokens += len(sentence)
        corpus.append(sentence)
        counts.update(key(token) for token in sentence.tokens if any(map(str.isalnum, token)))
    if n_skipped:
        skipped = f"{n_skipped:,}"
        logger.warning("skipped %s sentences of more than %d tokens; --split splits lines", skipped, _MAX_LENGTH)
    return AnchorText(tuple(word for word, _ in counts.most_common(n_words)), tuple(corpus), n_tokens)


def _encode_anchors(elmo: Elmo, text: AnchorText, *, show_progress: bool) -> Anchors:
    """Encode a text, and compute the anchors of its words."""
    elmo, key, numbers = elmo.unaligned(), entry_key(elmo), _number_words(text.words)
    layers = tuple(map(str, range(elmo.n_layers)))
    if elmo.softmax is not None and elmo.vocab is not None:
        layers = (*layers, SENSE)
    sums = torch.zeros(len(layers), len(text.words), elmo.width)
    for begin in track_progress(range(0, len(text.sentences), _BATCH_SENTENCES), "Anchors", is_shown=show_progress):
        batch = text.sentences[begin : begin + _BATCH_SENTENCES]
        tokens = chain.from_iterable(sentence.tokens for sentence in batch)
        ids = torch.tensor([numbers.get(key(token), -1) for token in tokens], dtype=torch.int64)
        is_word = ids >= 0
        for kind in ("all", SENSE)[: 1 + (SENSE in layers)]:
            encodings = elmo.encode(batch, layers="all" if kind == "all" else SENSE, as_tensor=True)
            vectors = torch.cat([torch.as_tensor(encoding.vectors).float().cpu() for encoding in encodings], dim=-2)
            for row, states in enumerate(vectors if kind == "all" else vectors[None]):
                sums[row if kind == "all" else -1].index_add_(0, ids[is_word], states[is_word])
    return Anchors(text.words, layers, unit(sums.numpy()), text.n_tokens)


def _number_words(words: Sequence[str]) -> dict[str, int]:
    """Return the number of each word."""
    return {word: number for number, word in enumerate(words)}


def unit(vectors: Vectors) -> NDArray[np.float32]:
    """Scale vectors (…, width) to unit length; zero vectors stay zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


# --- Word pairs -------------------------------------------------------------------------------------


def read_dictionary(path: str | Path) -> list[tuple[str, str]]:
    """Read the word pairs of a dictionary: one source word and one translation per line, separated by a tab or a space.

    Pairs with a phrase of several words are left out; they must be separated by a tab.

    Args:
        path: The file, plain or compressed.

    Example:
        >>> _ = Path("dictionary.txt").write_text("river Fluss")
        >>> read_dictionary("dictionary.txt")
        [('river', 'Fluss')]
    """
    pairs: list[tuple[str, str]] = []
    n_lines = 0
    with closing(read_lines(Path(path))) as lines:
        for line in lines:
            text = line.text.removeprefix("\ufeff") if line.number == 1 else line.text
            if not text.strip():
                continue
            n_lines += 1
            fields = [field.strip() for field in text.split("\t")] if "\t" in text else text.split()
            if len(fields) != 2 or not all(fields):
                raise DataError(
                    f"{line.path}:{line.number}: expected a word and its translation, separated by a tab, found "
                    f"{text!r:.60}"
                )
            if not any(" " in field for field in fields):
                pairs.append((fields[0], fields[1]))
    if not pairs:
        found = f"only phrases (lines: {n_lines:,})" if n_lines else "an empty file"
        raise DataError(f"{format_path(path)}: expected pairs of words, found {found}")
    return pairs


@dataclass(frozen=True)
class SplitDictionary:
    """The pairs of a dictionary whose words have anchors, as numbers of words; no source word is in both parts.

    Attributes:
        train: Pairs to learn from.
        test: The translations of each held-out source word.
    """

    train: tuple[tuple[int, int], ...]
    test: Mapping[int, tuple[int, ...]]


def split_dictionary(
    pairs: WordPairs, words: WordSources, keys: tuple[EntryKey, EntryKey], *, n_test: int, seed: int = 0
) -> SplitDictionary:
    """Hold out random source words of a dictionary for the evaluation.

    The words are among the 10,000 most frequent words of the corpus, and at most a quarter of the source words.

    Args:
        pairs: The dictionary.
        words: The words that have anchors, in both languages.
        keys: Functions that map a word of each language to its dictionary entry; see ``entry_key``.
        n_test: Maximum number of words to hold out.
        seed: Random seed.
    """
    source_numbers, target_numbers = (_number_words(part.words) for part in words)
    translations: dict[int, dict[int, None]] = {}
    for word, translation in pairs:
        a, b = source_numbers.get(keys[0](word)), target_numbers.get(keys[1](translation))
        if a is not None and b is not None:
            translations.setdefault(a, {})[b] = None
    frequent = sorted(number for number in translations if number < TEST_RANK)
    n_held_out = min(n_test, len(translations) // _MAX_TEST_SHARE, len(frequent))
    held_out = set(random.Random(seed).sample(frequent, n_held_out))
    train = tuple((a, b) for a in sorted(translations) if a not in held_out for b in translations[a])
    return SplitDictionary(train, {a: tuple(translations[a]) for a in sorted(held_out)})


def find_start(pairs: Pairs, words: WordSources) -> tuple[tuple[int, int], ...]:
    """Return word pairs to start from without a dictionary, as numbers of words."""
    source, target = (part.words for part in words)
    if pairs == "identical":
        numbers = _number_words(target)
        return tuple((a, numbers[word]) for a, word in enumerate(source) if word in numbers)
    return tuple((k, k) for k in range(min(len(source), len(target))))


# --- The matrices -----------------------------------------------------------------------------------


def fit_orthogonal(source: Vectors, target: Vectors) -> NDArray[np.float64]:
    """Return the orthogonal matrix W (width, width) with the smallest ‖source @ W.T - target‖ (Schönemann 1966)."""
    product = target.astype(np.float64).T @ source.astype(np.float64)
    product += _TIE * np.eye(len(product))
    left, _, right = np.linalg.svd(product)
    return left @ right


def induce_pairs(source: Vectors, target: Vectors) -> NDArray[np.int64]:
    """Return the pairs of vectors (pair, 2) that are the nearest neighbors of each other by CSLS."""
    forward = nearest_by_csls(source, target).numbers[:, 0]
    backward = nearest_by_csls(target, source).numbers[:, 0]
    rows = np.flatnonzero(backward[forward] == np.arange(len(source)))
    return np.stack([rows, forward[rows]], axis=1)


@dataclass(frozen=True, eq=False)
class Nearest:
    """The best candidates for each query, best first: their numbers and scores (query, k).

    Attributes:
        numbers: Numbers of the nearest candidates, the best first, (query, k).
        scores: Their scores, (query, k).
    """

    numbers: NDArray[np.int64]
    scores: NDArray[np.float32]


def nearest_by_csls(
    queries: Vectors, candidates: Vectors, *, k: int = 1, among: Vectors | None = None, is_plain: bool = False
) -> Nearest:
    """Find the candidates that are nearest to each query, by CSLS (Conneau et al. 2018).

    The score of a query x and a candidate y is 2 cos(x, y) - r(x) - r(y), where r is the mean cosine with the ten
    nearest vectors of the other side.

    Args:
        queries: Vectors to search for (query, width), in the same coordinates as the candidates.
        candidates: Vectors to search among (candidate, width).
        k: Number of candidates per query.
        among: All vectors of the language of the queries, from which r(y) is computed. Default: the queries.
        is_plain: Rank by the cosine alone.

    Example:
        >>> nearest_by_csls(np.eye(3), np.eye(3)).numbers[:, 0].tolist()
        [0, 1, 2]
    """
    k = min(k, len(candidates))
    x, y = unit(queries), unit(candidates)
    hubness = np.zeros(len(y), np.float32) if is_plain else _mean_nearest(y, x if among is None else unit(among))
    numbers, scores = np.zeros((len(x), k), np.int64), np.zeros((len(x), k), np.float32)
    for begin in range(0, len(x), _BLOCK_ROWS):
        rows = slice(begin, begin + _BLOCK_ROWS)
        cosines = x[rows] @ y.T
        if not is_plain:
            cosines = 2 * cosines - _mean_of_largest(cosines)[:, None] - hubness
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
        numbers[rows], scores[rows] = order, np.take_along_axis(cosines, order, axis=1)
    return Nearest(numbers, scores)


def _mean_nearest(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean cosine of each unit vector (row,) with the nearest of the others."""
    blocks = (vectors[begin : begin + _BLOCK_ROWS] for begin in range(0, len(vectors), _BLOCK_ROWS))
    return np.concatenate([np.zeros(0, np.float32), *(_mean_of_largest(block @ others.T) for block in blocks)])


def _mean_of_largest(cosines: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of the largest values of each row."""
    n = min(N_NEAREST, cosines.shape[1])
    return np.partition(cosines, cosines.shape[1] - n, axis=1)[:, -n:].mean(axis=1)


# --- Evaluation -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """Share of the held-out words with a translation of the dictionary among the nearest, and among the nearest ten.

    Attributes:
        at_1: Share with a translation as the nearest word.
        at_10: Share with a translation among the nearest ten words.
    """

    at_1: float
    at_10: float


@dataclass(frozen=True)
class LayerScores:
    """How well held-out words are translated in one layer.

    Attributes:
        layer: Name of the layer.
        nearest: Precision by nearest neighbor.
        csls: Precision by CSLS.
        shuffled: Precision by CSLS after training with the translations in random order, as a control.
    """

    layer: str
    nearest: Precision
    csls: Precision
    shuffled: Precision


def measure_precision(
    source: Vectors, target: Vectors, test: Mapping[int, Sequence[int]], *, is_plain: bool = False
) -> Precision:
    """Translate the words of ``test`` by their vectors in common coordinates (word, width), among all target words."""
    if not test:
        return Precision(float("nan"), float("nan"))
    queries = source[list(test)]
    numbers = nearest_by_csls(queries, target, k=10, among=source[:N_HUBS], is_plain=is_plain).numbers
    hits = np.array([np.isin(row, correct) for row, correct in zip(numbers, test.values(), strict=True)])
    return Precision(float(hits[:, 0].mean()), float(hits.any(axis=1).mean()))


# --- Alignment of models ----------------------------------------------------------------------------


@dataclass(frozen=True)
class AlignOptions:
    """How ``align_models`` finds the matrices.

    Attributes:
        pairs: Word pairs to start from: those of the dictionary; words with the same spelling in both languages
            (identical); or words with the same rank in both corpora (frequency). With the last two, the dictionary is
            used for the evaluation only.
        refinements: Number of refinements. Each one adds pairs of frequent words that are nearest neighbors of each
            other, and fits the matrices again.
        centered: Subtract the mean of the anchors before the matrices are fitted.
        n_words: Maximum number of words per language, the most frequent ones.
        n_test: Maximum number of source words of the dictionary to hold out for the evaluation.
        max_tokens: Maximum number of tokens to read per language.
        seed: Random seed for the held-out words and the control.

    Example:
        >>> options = AlignOptions(pairs="identical", refinements=5)
    """

    pairs: Pairs = "dictionary"
    refinements: int = 0
    centered: bool = False
    n_words: int = N_WORDS
    n_test: int = N_TEST
    max_tokens: int = MAX_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.pairs not in get_args(Pairs):
            raise ConfigError(f"pairs must be one of {', '.join(get_args(Pairs))}; found {self.pairs!r:.40}")
        for name, least in (("refinements", 0), ("n_words", 1), ("n_test", 0), ("max_tokens", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}; found {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class AlignedModel:
    """A model in the coordinates of another model, with its evaluation on held-out words.

    Attributes:
        model: The aligned model.
        scores: Scores of each layer.
        n_pairs: Number of word pairs from which the matrices were computed, before refinement.
        n_test: Number of held-out source words.
        n_candidates: Number of target words among which translations were searched.
    """

    model: Pretrained
    scores: tuple[LayerScores, ...]
    n_pairs: int
    n_test: int
    n_candidates: int

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as a dictionary of JSON values."""
        return {
            "pairs": self.n_pairs,
            "test": self.n_test,
            "candidates": self.n_candidates,
            "layers": {
                scores.layer: {name: vars(getattr(scores, name)) for name in ("nearest", "csls", "shuffled")}
                for scores in self.scores
            },
        }


def align_models(
    source: Elmo,
    target: Elmo,
    texts: tuple[Iterable[Tokens], Iterable[Tokens]],
    dictionary: WordPairs = (),
    options: AlignOptions | None = None,
    *,
    show_progress: bool = False,
) -> AlignedModel:
    """Compute the matrices that map the vectors of a model to the coordinates of another model.

    If the vectors of the target are wider, the source first gets zeros at the end of each half of its vectors, which
    changes neither its probabilities nor its similarities.

    Args:
        source: The model to align.
        target: The model of the other language, with as many layers, and vectors that are not narrower.
        texts: Sentences of the source and of the target language; they need not be translations of each other.
        dictionary: Pairs of a source word and its translation.
        options: How the matrices are found.
        show_progress: Whether to show progress bars.

    Example:
        >>> from elmo.jobs import EmbedJob
        >>> sentences = [sentence.tokens for sentence in EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer)]
        >>> aligned = align_models(elmo, elmo, (sentences, sentences), options=AlignOptions(pairs="identical"))
    """
    options = options or AlignOptions()
    source = match_width(source, target)
    check_alignable(source, target)
    elmos = source, target
    first, second = (
        read_anchor_text(elmo, text, n_words=options.n_words, max_tokens=options.max_tokens)
        for elmo, text in zip(elmos, texts, strict=True)
    )
    _choose_pairs(dictionary, elmos, (first, second), options)  # raises an error before the text is encoded
    anchors = [
        _encode_anchors(elmo, text, show_progress=show_progress)
        for elmo, text in zip(elmos, (first, second), strict=True)
    ]
    return align_anchors(source, target, (anchors[0], anchors[1]), dictionary, options)


def align_anchors(
    source: Elmo,
    target: Elmo,
    anchors: tuple[Anchors, Anchors],
    dictionary: WordPairs = (),
    options: AlignOptions | None = None,
) -> AlignedModel:
    """Do the same as ``align_models`` with anchors that are already computed.

    Args:
        source: The model to align.
        target: The model of the other language.
        anchors: The anchors of the source and of the target.
        dictionary: Pairs of a source word and its translation.
        options: How the matrices are found.

    Example:
        >>> from elmo.jobs import EmbedJob
        >>> sentences = [sentence.tokens for sentence in EmbedJob(("corpus.txt",)).sentences(elmo.tokenizer)]
        >>> anchors = compute_anchors(elmo, sentences)
        >>> aligned = align_anchors(elmo, elmo, (anchors, anchors), options=AlignOptions(pairs="identical"))
    """
    options = options or AlignOptions()
    pairs, split = _choose_pairs(dictionary, (source, target), anchors, options)
    if len(pairs) < source.width:
        logger.warning(
            "only %d word pairs for vectors of width %d: the alignment will be poor; use a larger dictionary or corpus",
            len(pairs),
            source.width,
        )
    names = [name for name in anchors[0].layers if name in anchors[1].layers]
    matrices: dict[str, NDArray[np.float64]] = {}
    scores: list[LayerScores] = []
    shuffled = np.array(pairs)
    shuffled[:, 1] = np.random.default_rng(options.seed).permutation(shuffled[:, 1])
    for name in names:
        x, y = (part.vectors[part.layers.index(name)] for part in anchors)
        matrices[name] = _fit(x, y, np.array(pairs), options)
        mapped, control = (x @ matrix.T for matrix in (matrices[name], _fit(x, y, shuffled, options)))
        scores.append(
            LayerScores(
                name,
                measure_precision(mapped, y, split.test, is_plain=True),
                measure_precision(mapped, y, split.test),
                measure_precision(control, y, split.test),
            )
        )
    layers = np.stack([matrices[name] for name in names if name != SENSE])
    sense = matrices.get(SENSE)
    about = {"pairs": options.pairs, "n_pairs": len(pairs), "refinements": options.refinements, "seed": options.seed}
    model = apply_matrices(source, target, layers, sense, about)
    return AlignedModel(model, tuple(scores), len(pairs), len(split.test), len(anchors[1].words))


def _choose_pairs(
    dictionary: WordPairs, elmos: tuple[Elmo, Elmo], words: WordSources, options: AlignOptions
) -> tuple[Sequence[tuple[int, int]], SplitDictionary]:
    """Return the word pairs to start from, and the dictionary with its held-out words."""
    keys = entry_key(elmos[0]), entry_key(elmos[1])
    split = split_dictionary(dictionary, words, keys, n_test=options.n_test, seed=options.seed)
    pairs = split.train if options.pairs == "dictionary" else find_start(options.pairs, words)
    if len(pairs) < MIN_PAIRS:
        n_tokens = f"the corpora have {words[0].n_tokens:,} and {words[1].n_tokens:,} tokens"
        hint = f"use more text, or --split if its lines have more than {_MAX_LENGTH} tokens, which are skipped"
        if options.pairs == "dictionary":
            subject = f"pairs of the dictionary, which has {len(dictionary):,}, to occur in the corpora"
            hint += "; check that each line of the dictionary has the source word first"
        elif options.pairs == "identical":
            subject = "words to occur in both corpora"
        else:
            subject = "different words in each corpus"
        raise DataError(f"expected at least {MIN_PAIRS} {subject}; found {len(pairs)}; {n_tokens}: {hint}")
    return pairs, split


def _fit(x: Vectors, y: Vectors, pairs: NDArray[np.int64], options: AlignOptions) -> NDArray[np.float64]:
    """Fit the matrix for one layer, and refine it."""
    if options.centered:
        x, y = unit(x - x.mean(axis=0)), unit(y - y.mean(axis=0))
    matrix = fit_orthogonal(x[pairs[:, 0]], y[pairs[:, 1]])
    for _ in range(options.refinements):
        induced = induce_pairs(x[:N_INDUCED] @ matrix.T, y[:N_INDUCED])
        known = pairs if options.pairs == "dictionary" else pairs[:0]
        both = np.concatenate([known, induced])
        matrix = fit_orthogonal(x[both[:, 0]], y[both[:, 1]])
    return matrix


def read_matrices(source: Elmo, target: Elmo, paths: Sequence[str | Path]) -> Pretrained:
    """Align a model by published matrices, one file per layer, such as those of Schuster et al. (2019).

    Each file was written by ``torch.save`` and has one matrix (width, width), a tensor or a NumPy array. The files are
    not unpickled.

    Args:
        source: The model to align.
        target: The model into whose coordinates the matrices map.
        paths: The file of each layer, the token layer first.

    Example:
        >>> paths = [f"mapping-{layer}.th" for layer in range(elmo.n_layers)]
        >>> for path in paths:
        ...     torch.save(torch.eye(elmo.width), path)
        >>> aligned = Elmo(read_matrices(elmo, elmo, paths))
    """
    check_alignable(source, target)
    if len(paths) != source.n_layers:
        raise ConfigError(f"expected {source.n_layers} matrices, one per layer of the model; found {len(paths)}")
    shape = alignment_shapes(source.config)["layers"][1:]
    matrices = []
    for path in map(Path, paths):
        matrix = read_matrix(path)
        if tuple(matrix.shape) != shape:
            raise FormatError(f"{format_path(path)}: expected a matrix of shape {shape}, found {tuple(matrix.shape)}")
        if not matrix.isfinite().all():
            raise FormatError(f"{format_path(path)}: the matrix contains values that are not finite")
        product = matrix @ matrix.t()
        scale = product.diagonal().mean()  # some published matrices are multiples of an orthogonal one
        if (product - scale * torch.eye(len(matrix))).abs().max() > _MAX_DEVIATION * scale or not scale:
            logger.warning(
                "%s: the matrix is not orthogonal, so it changes the similarities within the language",
                format_path(path),
            )
        matrices.append(matrix.numpy())
    return apply_matrices(source, target, np.stack(matrices), None, {"pairs": "published"})


def apply_matrices(
    source: Elmo, target: Elmo, layers: Vectors, sense: Vectors | None, about: Mapping[str, Any] | None = None
) -> Pretrained:
    """Return the source model with matrices that map its vectors to the coordinates of the target.

    Args:
        source: The model to align.
        target: The model of the other language.
        layers: One matrix per layer (layer, width, width).
        sense: The matrix for ``layers="sense"`` (width, width); None if there is none.
        about: Metadata of the alignment.

    Example:
        >>> matrices = np.stack([np.eye(elmo.width, dtype=np.float32)] * elmo.n_layers)  # changes nothing
        >>> aligned = Elmo(apply_matrices(elmo, elmo, matrices, None))
        >>> np.allclose(aligned.encode("Yes.").vectors, elmo.encode("Yes.").vectors, atol=1e-5)
        True
    """
    check_alignable(source, target)
    alignment = Alignment(
        _to_tensor(layers), None if sense is None else _to_tensor(sense), tuple(sorted(_fingerprints(target)))
    )
    model = source.as_pretrained()
    return replace(model, alignment=alignment, metadata={**model.metadata, "aligned": dict(about or {})})


def _to_tensor(matrix: Vectors) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix, dtype=np.float32))


def _fingerprints(elmo: Elmo) -> set[str]:
    """Return all fingerprints of a model in full precision that indexes and task models store."""
    exact = elmo.snapshot().to(dtype="float32")
    return {
        compute_fingerprint(exact, start=start, layers=layers)
        for start in ("zero", "warm")
        for layers in ("average", SENSE)
    }


def match_width(source: Elmo, target: Elmo) -> Elmo:
    """Return the source model, with zeros appended to each half of its vectors if those of the target are wider.

    Args:
        source: The model to align.
        target: The model of the other language.

    Example:
        >>> match_width(elmo, elmo) is elmo
        True
    """
    if source.width >= target.width:
        return source
    from elmo.embed.elmo import Elmo

    return Elmo(pad_states(source.as_pretrained(), target.width // 2), device=source.device)


def check_alignable(source: Elmo, target: Elmo) -> None:
    """Raise ``ConfigError`` if a model cannot be aligned to another one."""
    if target.pretrained.alignment is not None:
        raise ConfigError("cannot align to an aligned model; use the model that it was aligned to")
    if source.n_layers != target.n_layers:
        raise ConfigError(
            "both models must have the same number of layers to be aligned; found "
            f"{source.n_layers} and {target.n_layers}"
        )
    if source.width > target.width:
        raise ConfigError(
            f"cannot align vectors of width {source.width} to vectors of width {target.width}; align the other model "
            "to this one instead"
        )
    if source.width < target.width:
        raise ConfigError(
            f"expected two models with vectors of the same width, found {source.width} and {target.width}; "
            "call match_width first"
        )
