"""Words marked with senses in, vectors of these senses out; words in context in, their senses ranked out.

Peters et al. 2018, Table 5: a word has the sense whose centroid in SemCor is nearest to its vector, and a
word that SemCor does not have gets WordNet's first sense.
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
from elmo.lexicon.usages import embed_usages, find_marked_usages, unit_rows
from elmo.lexicon.wordnet import PARTS_OF_SPEECH, Pos, WordNet, is_key
from elmo.storage.atomic import atomic_file, make_parents
from elmo.storage.files import format_error, format_path, open_regular

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.embed.encoding import LayerChoice

Method = Literal["knn", "prior", "centroid", "first"]
METHODS: tuple[Method, ...] = ("knn", "prior", "centroid", "first")
Rows = NDArray[np.floating[Any]]
Heard = Callable[[int, int], None]  # sentences and tokens that are done

_FORMAT, _VERSION = "elmo-senses", "1"
_SENTENCES = 512  # read at once
_DTYPES = {"keys": np.uint8, "counts": np.int32, "centroids": np.float16, "uses": np.float16}


@dataclass(frozen=True)
class Tuning:
    """How much a sense's frequency counts beside its vectors; chosen on a tenth of SemCor."""

    n_neighbours: int = 20
    temperature: float = 0.1  # a use whose cosine is less by this much has 1/e of the vote
    rank_votes: float = 3.0  # that WordNet's first sense has from the start; the second has half of it, …
    prior_weight: float = 0.1  # of the logarithm of a sense's uses, beside the cosine
    rank_uses: float = 4.0  # that WordNet's first sense is taken to have had more; the second half of it, …


@dataclass(frozen=True, eq=False)
class SenseCentroids:
    """What a corpus taught about senses: of each, how often it came, its mean vector, and its uses' vectors.

    Senses are sorted by key. ``uses`` (use, width) has those of the first sense first, and so on; it is None
    in a compact file. ``model`` is the fingerprint of the model that read the corpus.
    """

    keys: tuple[str, ...]
    counts: NDArray[np.int32]  # (sense,)
    centroids: Rows  # (sense, width)
    uses: Rows | None
    model: str
    layers: str
    start: str = "zero"

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def of(cls, keys: Sequence[Sequence[str]], vectors: Rows, **about: Any) -> Self:
        """From the sense keys of each use and its vector; a use of two senses counts for both."""
        pairs = sorted((key, use) for use, found in enumerate(keys) for key in dict.fromkeys(found))
        if not pairs:
            raise DataError("expected words that are marked with senses, found none")
        names, counts = np.unique([key for key, _ in pairs], return_counts=True)
        uses = vectors[[use for _, use in pairs]]
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        centroids = np.add.reduceat(uses, begins, axis=0, dtype=np.float32) / counts[:, None]
        return cls(tuple(names.tolist()), counts.astype(np.int32), centroids, uses, **about)

    def compact(self) -> Self:
        """Without the single uses: a tenth of the size, for all methods but knn."""
        return replace(self, uses=None)

    @property
    def layer_choice(self) -> LayerChoice | int:
        """The layers as ``Elmo.encode`` takes them."""
        return int(self.layers) if self.layers.isdecimal() else cast("LayerChoice", self.layers)

    def count(self, key: str) -> int:
        """How many uses of a sense the corpus had."""
        place = self._places.get(key)
        return 0 if place is None else int(self.counts[place])

    def check_model(self, elmo: Elmo) -> None:
        """Refuse a model whose vectors are not comparable with these."""
        if (found := compute_fingerprint(elmo, start=self.start)) != self.model:
            raise ConfigError(
                f"these senses were learned with the model {self.model[:12]}…, but the model given is "
                f"{found[:12]}…; give that model, or train senses with this one"
            )

    def scores(
        self,
        vectors: Rows,
        candidates: Sequence[str],
        *,
        method: Method = "knn",
        tuning: Tuning | None = None,
    ) -> NDArray[np.float64]:
        """Of each vector (word, width) with each candidate, the most frequent sense first: (word, sense).

        NaN where a method has no opinion: of a sense that the corpus has not, by centroid. Where it has none
        of the candidates, and for the method first, a candidate's share is that of its rank alone.
        """
        tuning = tuning or Tuning()
        by_rank = 1.0 / np.arange(1, len(candidates) + 1)  # (sense,)
        counts = np.array([self.count(key) for key in candidates])
        if method == "first" or not counts.any():
            return np.tile(by_rank / by_rank.sum(), (len(vectors), 1))
        units = unit_rows(vectors, dtype=np.float32)
        if method == "knn":
            votes = self._votes(units, candidates, tuning) + tuning.rank_votes * by_rank
            return votes / votes.sum(axis=1, keepdims=True)
        if method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, not {method!r:.40}")
        cosines = np.full((len(vectors), len(candidates)), np.nan)
        is_seen = counts > 0
        centroids = self.centroids[[self._places[key] for key in candidates if key in self._places]]
        cosines[:, is_seen] = units @ unit_rows(centroids, dtype=np.float32).T
        if method == "centroid":
            return cosines
        # A sense without uses is taken to be as far away as the farthest that has some.
        cosines[:, ~is_seen] = np.nanmin(cosines, axis=1, keepdims=True)
        return cosines + tuning.prior_weight * np.log(counts + tuning.rank_uses * by_rank)

    def _votes(self, units: Rows, candidates: Sequence[str], tuning: Tuning) -> NDArray[np.float64]:
        """The nearest uses vote for their sense, the nearest of all with one vote: (word, sense)."""
        if self.uses is None:
            raise ConfigError(
                "these senses are compact: they have no single uses, which knn needs; use prior"
            )
        places = [self._places.get(key) for key in candidates]
        spans = [(0, 0) if k is None else (self._ends[k] - self.counts[k], self._ends[k]) for k in places]
        uses = np.concatenate([self.uses[begin:end] for begin, end in spans])
        sense_of = np.repeat(np.arange(len(spans)), [end - begin for begin, end in spans])
        cosines = units @ unit_rows(uses, dtype=np.float32).T  # (word, use)
        n_kept = min(tuning.n_neighbours, len(uses))
        least = -np.partition(-cosines, n_kept - 1, axis=1)[:, n_kept - 1 : n_kept]
        nearness = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / tuning.temperature)
        nearness[cosines < least] = 0
        return nearness @ (sense_of[:, None] == np.arange(len(spans)))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: k for k, key in enumerate(self.keys)}

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts, dtype=np.int64)

    # --- files --------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all; vectors are kept in float16."""
        from safetensors.numpy import save_file

        found = {
            "keys": np.frombuffer("\n".join(self.keys).encode(), np.uint8),
            "counts": self.counts,
            "centroids": self.centroids,
        } | ({} if self.uses is None else {"uses": self.uses})
        tensors = {name: np.ascontiguousarray(value, _DTYPES[name]) for name, value in found.items()}
        about = {"format": _FORMAT, "version": _VERSION, "model": self.model, "layers": self.layers}
        path = Path(path)
        make_parents(path)
        with atomic_file(path) as temporary:
            temporary.touch()
            mode = temporary.stat().st_mode
            save_file(tensors, temporary, metadata=about | {"start": self.start})
            temporary.chmod(mode)  # safetensors hides its files from everybody else

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote; ``FormatError`` for anything else."""
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        open_regular(path).close()
        try:
            with safe_open(path, framework="numpy") as file:
                about = cast("dict[str, str]", file.metadata() or {})
                names = set(file.keys()) & set(_DTYPES)
                tensors = {name: cast("NDArray[Any]", file.get_tensor(name)) for name in names}
        except (SafetensorError, OSError, ValueError, TypeError) as error:
            raise FormatError(
                f"{format_path(path)}: expected a file of senses, found {format_error(error)}"
            ) from error
        if (about.get("format"), about.get("version")) != (_FORMAT, _VERSION):
            raise FormatError(
                f"{format_path(path)}: expected senses from elmo wsd --train, found {str(about)[:80]}"
            )
        keys = _checked_keys(tensors, path)
        return cls(
            keys,
            tensors["counts"],
            tensors["centroids"],
            tensors.get("uses"),
            model=about.get("model", ""),
            layers=about.get("layers", ""),
            start=about.get("start", "zero"),
        )


def _checked_keys(tensors: Mapping[str, NDArray[Any]], path: Path) -> tuple[str, ...]:
    """The sense keys of a file, once all that it holds fits together."""
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
        rows = {"centroids": (len(keys), width), "counts": (len(keys),)}
        if "uses" in tensors and counts.ndim == 1:
            rows["uses"] = (int(counts.sum(dtype=np.int64)), width)
        problems += [
            f"{name}: expected {shape}, found {tensors[name].shape}"
            for name, shape in rows.items()
            if tensors[name].shape != shape
        ]
        if any(a >= b for a, b in pairwise(keys)) or not all(map(is_key, keys)):
            problems.append("keys: expected sorted sense keys")
        if (counts < 1).any() or not all(np.isfinite(tensors[name]).all() for name in rows):
            problems.append("expected counts from 1 and finite vectors")
    if problems:
        raise FormatError(f"{format_path(path)}: {'; '.join(problems)}; train it again")
    return tuple(keys)


# --- learning ---------------------------------------------------------------------------------------


def train(
    elmo: Elmo,
    corpus: Iterable[SenseSentence],
    *,
    layers: LayerChoice | int = "top",
    start: Literal["zero", "warm"] = "zero",
    on_progress: Heard | None = None,
) -> SenseCentroids:
    """Read a corpus whose words have senses; ``on_progress`` hears how many sentences and tokens are done."""
    keys: list[tuple[str, ...]] = []
    rows: list[Rows] = []
    for sentences, vectors in _read(elmo, corpus, layers=layers, start=start, on_progress=on_progress):
        keys += [each.keys for sentence in sentences for each in sentence.instances]
        with np.errstate(over="ignore"):
            rows.append(vectors.astype(np.float16))
        if not np.isfinite(rows[-1]).all():
            raise OutputError("a number of the senses' vectors does not fit float16, in which they are kept")
    model = compute_fingerprint(elmo, start=start)
    width = rows or [np.zeros((0, 0), np.float16)]
    return SenseCentroids.of(keys, np.concatenate(width), model=model, layers=str(layers), start=start)


def _read(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    *,
    layers: LayerChoice | int,
    start: str,
    on_progress: Heard | None,
) -> Iterator[tuple[list[SenseSentence], Rows]]:
    """Some sentences at a time, with the vectors of their instances: (instance, width)."""
    left = iter(sentences)
    n_sentences = n_tokens = 0
    while some := list(islice(left, _SENTENCES)):
        usages = [usage for sentence in some for usage in sentence.usages()]
        yield some, embed_usages(elmo, usages, layers=layers, start=start).vectors
        n_sentences += len(some)
        n_tokens += sum(len(sentence.tokens) for sentence in some)
        if on_progress is not None:
            on_progress(n_sentences, n_tokens)


# --- asking -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedSense:
    """A sense that a word may have here."""

    key: str
    score: float | None  # None where the method has no opinion
    n_uses: int  # in the corpus that the senses were learned from


@dataclass(frozen=True)
class Answer:
    """The senses of an instance, the best first; none where WordNet does not have the word."""

    instance: Instance
    sentence: SenseSentence
    senses: tuple[RankedSense, ...]
    is_back_off: bool  # the corpus had no use of any of them, so that WordNet's order stands

    @property
    def key(self) -> str | None:
        """The best sense."""
        return self.senses[0].key if self.senses else None

    @property
    def word(self) -> str:
        """The word as it stands in the sentence."""
        return self.sentence.word(self.instance)


def disambiguate(
    elmo: Elmo,
    sentences: Iterable[SenseSentence],
    senses: SenseCentroids,
    *,
    wordnet: WordNet,
    method: Method = "knn",
    tuning: Tuning | None = None,
    on_progress: Heard | None = None,
) -> Iterator[Answer]:
    """The senses of each instance, in order; those of lemma and part of speech are weighed."""
    senses.check_model(elmo)
    settings: Any = {"layers": senses.layer_choice, "start": senses.start}
    for some, vectors in _read(elmo, sentences, **settings, on_progress=on_progress):
        pairs = ((sentence, each) for sentence in some for each in sentence.instances)
        for (sentence, instance), vector in zip(pairs, vectors, strict=True):
            keys = _candidates(wordnet, sentence, instance)
            ranked = ranking(senses, vector, keys, method=method, tuning=tuning)
            yield Answer(instance, sentence, ranked, is_back_off=not any(map(senses.count, keys)))


def disambiguate_text(
    elmo: Elmo,
    text: str,
    senses: SenseCentroids,
    *,
    wordnet: WordNet,
    pos: Pos | None = None,
    method: Method = "knn",
    number: int = 1,
) -> list[Answer]:
    """The senses of the words that a text marks like [[this]]; of all parts of speech unless one is given.

    ``number`` is the text's among several, for messages.
    """
    sentence = SenseSentence.of_usages(find_marked_usages(elmo.tokenizer, text, number=number), pos=pos)
    answers = list(disambiguate(elmo, [sentence], senses, wordnet=wordnet, method=method))
    for answer in answers:
        if not answer.senses:
            raise DataError(
                f"sentence {number}: WordNet has no {pos or 'word'} {answer.word[:40]!r}; mark another"
            )
    return answers


def _candidates(wordnet: WordNet, sentence: SenseSentence, instance: Instance) -> list[str]:
    """The senses that a word may have, the most frequent first."""
    if instance.lemma and instance.pos:
        return [sense.key for sense in wordnet.senses(instance.lemma, instance.pos)]
    word = instance.lemma or sentence.word(instance)
    found = {
        sense.key: sense
        for pos in ((instance.pos,) if instance.pos else PARTS_OF_SPEECH)
        for lemma in wordnet.base_forms(word, pos)
        for sense in wordnet.senses(lemma, pos)
    }
    return sorted(found, key=lambda key: (-found[key].count, found[key].number))


def ranking(
    senses: SenseCentroids,
    vector: Rows,
    candidates: Sequence[str],
    *,
    method: Method = "knn",
    tuning: Tuning | None = None,
) -> tuple[RankedSense, ...]:
    """The candidates, given as the most frequent first, with their scores for one vector, best first."""
    if not candidates:
        return ()
    scores = senses.scores(vector[None], candidates, method=method, tuning=tuning)[0]
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")  # equals stay in WordNet's order
    ranked = [(candidates[int(k)], float(scores[k])) for k in order]
    return tuple(
        RankedSense(key, None if np.isnan(found) else found, senses.count(key)) for key, found in ranked
    )
