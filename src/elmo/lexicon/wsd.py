"""Word sense disambiguation with WordNet: learn the senses of a tagged corpus, and rank the senses of a word.

Peters et al. (2018, Table 5) choose the sense whose centroid in SemCor is nearest to the vector of the word, and
the first sense of WordNet for words that are not in SemCor. ``SenseCentroids.scores`` implements this method
(``centroid``) and better ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray

from elmo.errors import ConfigError, DataError, FormatError, OutputError
from elmo.jobs.sharded import compute_fingerprint
from elmo.lexicon.sense_corpora import Instance, SenseSentence
from elmo.lexicon.usages import Usage, embed_usages, find_marked_usages, unit_rows
from elmo.lexicon.wordnet import PARTS_OF_SPEECH, Pos, WordNet, is_key
from elmo.storage.atomic import atomic_file, make_parents
from elmo.storage.files import format_error, format_path, open_regular
from elmo.storage.tensors import write_safetensors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice

Method = Literal["knn", "prior", "centroid", "first"]
METHODS: tuple[Method, ...] = ("knn", "prior", "centroid", "first")
Rows = NDArray[np.floating[Any]]
OnProgress = Callable[[int, int], None]  # receives the number of sentences and of tokens processed so far

ALL = "all"  # senses with all layers
_FORMAT, _VERSION = "elmo-senses", "1"
_BATCH_SENTENCES = 512
_DTYPES = {"keys": np.uint8, "counts": np.int32, "centroids": np.float16, "uses": np.float16}


@dataclass(frozen=True)
class WsdOptions:
    """Options of the methods ``knn`` and ``prior``; the defaults were chosen on a held-out tenth of SemCor.

    Attributes:
        n_neighbors: Number of nearest usages that vote (knn).
        temperature: Temperature of the votes: the nearest usage has one vote, and a usage whose cosine is lower by
            this much has 1/e votes (knn).
        rank_votes: Extra votes for WordNet's first sense; the second sense gets 1/2 of them, the third 1/3,
            and so on (knn).
        prior_weight: Weight of the log frequency of a sense relative to the cosine (prior).
        rank_usages: Extra usages for WordNet's first sense; the second sense gets 1/2 of them, the third 1/3,
            and so on (prior).

    Example:
        >>> options = WsdOptions(n_neighbors=10)
    """

    n_neighbors: int = 20
    temperature: float = 0.1
    rank_votes: float = 3.0
    prior_weight: float = 0.1
    rank_usages: float = 4.0


@dataclass(frozen=True, eq=False)
class SenseCentroids:
    """The senses of a tagged corpus: counts, mean vectors, and the vectors of all usages.

    Attributes:
        keys: Sense keys of WordNet, sorted.
        counts: Number of usages of each sense (sense,).
        centroids: Mean vectors of the senses (sense, width).
        uses: Vectors of all usages (usage, width), grouped by sense in the order of ``keys``; None after ``compact``.
        model: Fingerprint of the model that computed the vectors.
        layers: Layers of the vectors; ``all`` if the vectors of all layers are concatenated, for ``select``.
        start: Start state of the LSTMs.
    """

    keys: tuple[str, ...]
    counts: NDArray[np.int32]
    centroids: Rows
    uses: Rows | None
    model: str
    layers: str
    start: str = "zero"

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def from_usages(
        cls, keys: Sequence[Sequence[str]], vectors: Rows, *, model: str, layers: str, start: str = "zero"
    ) -> Self:
        """Compute centroids from the sense keys and vectors of usages; a usage may have several keys."""
        pairs = sorted((key, row) for row, senses in enumerate(keys) for key in dict.fromkeys(senses))
        if not pairs:
            raise DataError("expected words with sense keys, found none")
        names, counts = np.unique([key for key, _ in pairs], return_counts=True)
        uses = vectors[[row for _, row in pairs]]
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        centroids = np.add.reduceat(uses, begins, axis=0, dtype=np.float32) / counts[:, None]
        return cls(tuple(names.tolist()), counts.astype(np.int32), centroids, uses, model, layers, start)

    def compact(self) -> Self:
        """Return a copy without the vectors of usages, which is much smaller but cannot be used for knn."""
        return replace(self, uses=None)

    def select(self, layers: LayerChoice | int, *, n_layers: int) -> Self:
        """Return the senses of one layer, or of the average of the layers, if they were trained with all layers.

        Args:
            layers: ``average``, ``top``, ``concat`` or the number of a layer.
            n_layers: Number of layers of the model.
        """
        if self.layers != ALL:
            raise ConfigError(f"cannot select layers: these senses were trained with layers={self.layers!r}, not 'all'")
        if self.centroids.shape[1] % n_layers:
            raise ConfigError(f"cannot split vectors of width {self.centroids.shape[1]} into {n_layers} layers")
        if layers == "concat":
            return replace(self, layers="concat")
        names: dict[Any, int] = {"top": n_layers - 1, **{k: k for k in range(n_layers)}}
        if layers != "average" and layers not in names:
            raise ConfigError(
                f"layers of senses must be average, top, concat or 0..{n_layers - 1}; found {layers!r:.40}"
            )

        def view(rows: Rows) -> Rows:
            by_layer = rows.reshape(len(rows), n_layers, -1)
            if layers == "average":
                return by_layer.mean(axis=1, dtype=np.float32).astype(rows.dtype)
            return by_layer[:, names[layers]]

        uses = None if self.uses is None else view(self.uses)
        return replace(self, layers=str(layers), centroids=view(self.centroids), uses=uses)

    @property
    def layer_choice(self) -> LayerChoice | int:
        """The layers as an argument of ``Elmo.encode``."""
        if self.layers == ALL:
            raise ConfigError("these senses have all layers; choose one with select, or with --layers")
        return int(self.layers) if self.layers.isdecimal() else cast("LayerChoice", self.layers)

    def count(self, key: str) -> int:
        """Return the number of usages of a sense in the corpus."""
        row = self._row_of_key.get(key)
        return 0 if row is None else int(self.counts[row])

    def check_model(self, elmo: Elmo) -> None:
        """Raise ``ConfigError`` if another model computed the vectors."""
        if (fingerprint := compute_fingerprint(elmo, start=self.start, layers=self.layers)) != self.model:
            raise ConfigError(
                f"these senses were trained with the model {self.model[:12]}…, but this model is "
                f"{fingerprint[:12]}…; use the other model, or train senses with this one"
            )

    def scores(
        self, vectors: Rows, candidates: Sequence[str], *, method: Method = "knn", options: WsdOptions | None = None
    ) -> NDArray[np.float64]:
        """Score candidate senses for vectors (word, width); return the scores (word, sense).

        Args:
            vectors: Vectors of words in context (word, width).
            candidates: Sense keys, the most frequent sense first.
            method: ``knn``: votes of the nearest usages. ``centroid``: cosine with the centroid of the sense,
                or NaN if the corpus does not have the sense. ``prior``: cosine plus the weighted log frequency
                of the sense. ``first``: 1 / rank in WordNet, normalized to a sum of 1. If the corpus has none
                of the candidates, all methods score like ``first``.
            options: Options of ``knn`` and ``prior``.
        """
        options = options or WsdOptions()
        by_rank = 1.0 / np.arange(1, len(candidates) + 1)  # (sense,)
        counts = np.array([self.count(key) for key in candidates])
        if method == "first" or not counts.any():
            return np.tile(by_rank / by_rank.sum(), (len(vectors), 1))
        units = unit_rows(vectors, dtype=np.float32)
        if method == "knn":
            votes = self._votes(units, candidates, options) + options.rank_votes * by_rank
            return votes / votes.sum(axis=1, keepdims=True)
        if method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}; found {method!r:.40}")
        cosines = np.full((len(vectors), len(candidates)), np.nan)
        is_seen = counts > 0
        centroids = self.centroids[[self._row_of_key[key] for key in candidates if key in self._row_of_key]]
        cosines[:, is_seen] = units @ unit_rows(centroids, dtype=np.float32).T
        if method == "centroid":
            return cosines
        # The cosine of a sense without usages is unknown; it is set to the lowest cosine of the other senses.
        cosines[:, ~is_seen] = np.nanmin(cosines, axis=1, keepdims=True)
        return cosines + options.prior_weight * np.log(counts + options.rank_usages * by_rank)

    def _votes(self, units: Rows, candidates: Sequence[str], options: WsdOptions) -> NDArray[np.float64]:
        """Return the votes of the nearest usages for each sense (word, sense); the nearest one has one vote."""
        if self.uses is None:
            raise ConfigError("cannot use knn: these senses are compact and have no vectors of usages; use prior")
        rows = [self._row_of_key.get(key) for key in candidates]
        spans = [(0, 0) if k is None else (self._ends[k] - self.counts[k], self._ends[k]) for k in rows]
        uses = np.concatenate([self.uses[begin:end] for begin, end in spans])
        sense_of = np.repeat(np.arange(len(spans)), [end - begin for begin, end in spans])
        cosines = units @ unit_rows(uses, dtype=np.float32).T  # (word, usage)
        n_kept = min(options.n_neighbors, len(uses))
        smallest = -np.partition(-cosines, n_kept - 1, axis=1)[:, n_kept - 1 : n_kept]
        votes = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / options.temperature)
        votes[cosines < smallest] = 0
        return votes @ (sense_of[:, None] == np.arange(len(spans)))

    @cached_property
    def _row_of_key(self) -> dict[str, int]:
        return {key: k for k, key in enumerate(self.keys)}

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts, dtype=np.int64)

    # --- Files --------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the senses to a safetensors file, with vectors in float16."""
        arrays: dict[str, NDArray[Any]] = {"counts": self.counts, "centroids": self.centroids}
        arrays |= {} if self.uses is None else {"uses": self.uses}
        arrays["keys"] = np.frombuffer("\n".join(self.keys).encode(), np.uint8)
        tensors = [(name, np.ascontiguousarray(value, _DTYPES[name])) for name, value in arrays.items()]
        metadata = {"format": _FORMAT, "version": _VERSION, "model": self.model, "layers": self.layers}
        path = Path(path)
        make_parents(path)
        with atomic_file(path) as temporary, temporary.open("xb") as file:
            write_safetensors(tensors, metadata | {"start": self.start}, file)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that ``save`` wrote; raise ``FormatError`` for other files."""
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        open_regular(path).close()
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = cast("dict[str, str]", file.metadata() or {})
                names = set(file.keys()) & set(_DTYPES)
                tensors = {name: cast("NDArray[Any]", file.get_tensor(name)) for name in names}
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise FormatError(f"cannot read {format_path(path)} as a file of senses: {format_error(error)}") from error
        if (metadata.get("format"), metadata.get("version")) != (_FORMAT, _VERSION):
            raise FormatError(
                f"{format_path(path)}: expected senses from elmo wsd --train, found the metadata {str(metadata)[:80]}"
            )
        keys = _check_tensors(tensors, path)
        return cls(
            keys,
            tensors["counts"],
            tensors["centroids"],
            tensors.get("uses"),
            model=metadata.get("model", ""),
            layers=metadata.get("layers", ""),
            start=metadata.get("start", "zero"),
        )


def _check_tensors(tensors: Mapping[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    """Check that the tensors of a file are consistent, and return its sense keys."""
    problems = [f"{name} is missing" for name in ("keys", "counts", "centroids") if name not in tensors]
    problems += [
        f"{name}: expected {np.dtype(_DTYPES[name])}, found {value.dtype}"
        for name, value in tensors.items()
        if value.dtype != _DTYPES[name]
    ]
    keys: list[str] = []
    if not problems:
        keys = tensors["keys"].tobytes().decode("utf-8", "replace").split("\n")
        counts, centroids = tensors["counts"], tensors["centroids"]
        width = centroids.shape[-1] if centroids.ndim else 0
        shapes = {"centroids": (len(keys), width), "counts": (len(keys),)}
        if "uses" in tensors and counts.ndim == 1:
            shapes["uses"] = (int(counts.sum(dtype=np.int64)), width)
        problems += [
            f"{name}: expected {shape}, found {tensors[name].shape}"
            for name, shape in shapes.items()
            if tensors[name].shape != shape
        ]
        if any(a >= b for a, b in pairwise(keys)) or not all(map(is_key, keys)):
            problems.append("keys: expected sorted sense keys, found others")
        if (counts < 1).any() or not all(np.isfinite(tensors[name]).all() for name in shapes):
            problems.append("counts must be at least 1 and vectors must be finite")
    if problems:
        raise FormatError(f"{format_path(path)}: {'; '.join(problems)}; train the senses again")
    return tuple(keys)


# --- Training ---------------------------------------------------------------------------------------


def train_senses(
    elmo: Elmo,
    corpus: Iterable[SenseSentence],
    *,
    layers: LayerChoice | int = "top",
    start: Literal["zero", "warm"] = "zero",
    on_progress: OnProgress | None = None,
) -> SenseCentroids:
    """Compute the vectors of all senses of a sense-tagged corpus.

    Args:
        elmo: The model.
        corpus: Sentences with sense keys, as ``read_sense_corpus`` yields them.
        layers: Layers of the vectors, as in ``Elmo.encode``. With ``"all"``, the corpus is read once for all layers;
            ``SenseCentroids.select`` chooses one of them afterwards.
        start: Start state of the LSTMs.
        on_progress: Called with the number of sentences and the number of tokens processed so far.

    Example:
        >>> senses = train_senses(elmo, read_sense_corpus("semcor.jsonl"))
        >>> senses.count("bank%1:17:01::")
        1
        >>> senses.save("senses.safetensors")
    """
    keys: list[tuple[str, ...]] = []
    rows: list[Rows] = []
    view = "concat" if layers == ALL else layers
    for sentences, vectors in _embed(elmo, corpus, layers=view, start=start, on_progress=on_progress):
        keys += [instance.keys for sentence in sentences for instance in sentence.instances]
        with np.errstate(over="ignore"):
            rows.append(vectors.astype(np.float16))
        if not np.isfinite(rows[-1]).all():
            raise OutputError("cannot store the vectors as float16: a number is too large")
    vectors = np.concatenate(rows or [np.zeros((0, 0), np.float16)])
    model = compute_fingerprint(elmo, start=start, layers=layers)
    return SenseCentroids.from_usages(keys, vectors, model=model, layers=str(layers), start=start)


def _embed(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    *,
    layers: LayerChoice | int,
    start: str,
    on_progress: OnProgress | None,
) -> Iterator[tuple[list[SenseSentence], Rows]]:
    """Yield batches of sentences with the vectors (instance, width) of their instances."""
    rest = iter(sentences)
    n_sentences = n_tokens = 0
    while batch := list(islice(rest, _BATCH_SENTENCES)):
        usages = [usage for sentence in batch for usage in sentence.usages()]
        yield batch, embed_usages(elmo, usages, layers=layers, start=start).vectors
        n_sentences += len(batch)
        n_tokens += sum(len(sentence.tokens) for sentence in batch)
        if on_progress is not None:
            on_progress(n_sentences, n_tokens)


# --- Prediction -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedSense:
    """A candidate sense of a word in context."""

    key: str
    score: float | None  # None if the method cannot score this sense
    n_usages: int  # number of usages in the training corpus


@dataclass(frozen=True)
class SensePrediction:
    """The ranked senses of a word in context.

    Attributes:
        instance: The word to disambiguate.
        sentence: Its sentence.
        senses: The best first; empty if WordNet does not have the word.
        is_back_off: Whether the senses are in WordNet's order, because the training corpus has none of them.
    """

    instance: Instance
    sentence: SenseSentence
    senses: tuple[RankedSense, ...]
    is_back_off: bool

    @property
    def key(self) -> str | None:
        """Key of the best sense; None if there are no senses."""
        return self.senses[0].key if self.senses else None

    @property
    def usage(self) -> Usage:
        """The word in its sentence."""
        return self.sentence.usage(self.instance)

    def to_json(self, wordnet: WordNet) -> dict[str, Any]:
        """Return the prediction as a dictionary of JSON values, with the glosses of all senses."""
        return {
            "word": self.usage.word,
            "tokens": list(self.sentence.tokens.tokens),
            "span": [self.instance.begin, self.instance.end],
            "is_back_off": self.is_back_off,
            "senses": [
                {"key": sense.key, "score": sense.score, "uses": sense.n_usages,
                 "gloss": wordnet.gloss(sense.key)}
                for sense in self.senses
            ],
        }  # fmt: skip


def disambiguate(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    senses: SenseCentroids,
    *,
    wordnet: WordNet,
    method: Method = "knn",
    options: WsdOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[SensePrediction]:
    """Rank the senses of each instance; the candidates are the senses of its lemma and part of speech.

    Args:
        elmo: The model that the senses were trained with.
        sentences: Sentences with instances, as ``read_sense_corpus`` yields them.
        senses: Senses from ``train_senses`` or ``SenseCentroids.load``.
        wordnet: The WordNet database.
        method: Votes of the nearest usages (knn), nearest centroid with or without the frequency of the sense
            (prior, centroid), or WordNet's first sense (first).
        options: Options of knn and prior.
        on_progress: Called with the number of sentences and the number of tokens processed so far.

    Example:
        >>> senses = train_senses(elmo, read_sense_corpus("semcor.jsonl"))
        >>> test = read_sense_corpus("test.xml")  # doctest: +SKIP
        >>> predictions = list(disambiguate(elmo, test, senses, wordnet=WordNet()))  # doctest: +SKIP
    """
    senses.check_model(elmo)
    batches = _embed(elmo, sentences, layers=senses.layer_choice, start=senses.start, on_progress=on_progress)
    for batch, vectors in batches:
        pairs = ((sentence, instance) for sentence in batch for instance in sentence.instances)
        for (sentence, instance), vector in zip(pairs, vectors, strict=True):
            keys = _find_candidates(wordnet, sentence, instance)
            ranked = rank_senses(senses, vector, keys, method=method, options=options)
            yield SensePrediction(instance, sentence, ranked, is_back_off=not any(map(senses.count, keys)))


def disambiguate_text(
    elmo: Elmo,
    text: str,
    senses: SenseCentroids,
    *,
    wordnet: WordNet,
    pos: Pos | None = None,
    method: Method = "knn",
    number: int = 1,
) -> list[SensePrediction]:
    """Rank the senses of the words that are marked like ``[[this]]`` in a sentence.

    Args:
        elmo: The model that the senses were trained with.
        text: A sentence with marked words.
        senses: Senses from ``train_senses`` or ``SenseCentroids.load``.
        wordnet: The WordNet database.
        pos: Part of speech of the marked words. Default: any part of speech.
        method: Method of ranking, as in ``disambiguate``.
        number: Number of the sentence, for messages.

    Example:
        >>> senses = SenseCentroids.load("senses.safetensors")  # doctest: +SKIP
        >>> disambiguate_text(elmo, "They sat on the [[bank]].", senses, wordnet=WordNet())  # doctest: +SKIP
    """
    sentence = SenseSentence.from_usages(find_marked_usages(elmo.tokenizer, text, number=number), pos=pos)
    predictions = list(disambiguate(elmo, [sentence], senses, wordnet=wordnet, method=method))
    for prediction in predictions:
        if not prediction.senses:
            raise DataError(
                f"sentence {number}: WordNet has no {pos or 'word'} {prediction.usage.word[:40]!r}; mark another word"
            )
    return predictions


def _find_candidates(wordnet: WordNet, sentence: SenseSentence, instance: Instance) -> list[str]:
    """Return the keys of all senses that a word can have, the most frequent first."""
    if instance.lemma and instance.pos:
        return [sense.key for sense in wordnet.senses(instance.lemma, instance.pos)]
    word = instance.lemma or sentence.usage(instance).word
    senses = {
        sense.key: sense
        for pos in ((instance.pos,) if instance.pos else PARTS_OF_SPEECH)
        for lemma in wordnet.base_forms(word, pos)
        for sense in wordnet.senses(lemma, pos)
    }
    return sorted(senses, key=lambda key: (-senses[key].count, senses[key].number))


def rank_senses(
    senses: SenseCentroids,
    vector: Rows,
    candidates: Sequence[str],
    *,
    method: Method = "knn",
    options: WsdOptions | None = None,
) -> tuple[RankedSense, ...]:
    """Rank the senses ``candidates``, sorted by frequency, by their scores for one vector (width,)."""
    if not candidates:
        return ()
    scores = senses.scores(vector[None], candidates, method=method, options=options)[0]
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")  # ties keep WordNet's order
    ranked = [(candidates[int(k)], float(scores[k])) for k in order]
    return tuple(RankedSense(key, None if np.isnan(score) else score, senses.count(key)) for key, score in ranked)


def write_predictions(path: str | Path, predictions: Iterable[SensePrediction]) -> int:
    """Write one line with id and sense key for each instance that has a prediction; return the number of lines."""
    lines = [f"{prediction.instance.id} {prediction.key}\n" for prediction in predictions if prediction.key]
    make_parents(Path(path))
    with atomic_file(Path(path)) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
    return len(lines)
