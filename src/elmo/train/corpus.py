"""A corpus folder in; its token streams, its types and their counts out, read where they lie on disk.

::

    manifest.json   how it was made, of what, and the size and SHA-256 of each file
    types.txt       one word a line, in the order of ids; then those of the text that look like a boundary
    type_ends.u64   where each of those lines ends
    counts.u64      how often each type occurs in the training part
    train.u32       type ids; every sentence ends in </S>
    heldout.u32     the same for the part that is set aside

Type ids of a corpus in, what a biLM's token layer reads out: character ids, word ids, or both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.config import BiLmConfig
from elmo.errors import ConfigError, DataError, FormatError, raise_all
from elmo.storage.checksums import sha256
from elmo.storage.files import member, read_json, shown
from elmo.text.ids import N_BYTE_CHARACTERS, ByteAlphabet, Vocabulary
from elmo.train.vocabulary import EOS, FIRST_WORD, UNKNOWN

VERSION = 1
MANIFEST = "manifest.json"
FILES = ("types.txt", "type_ends.u64", "counts.u64", "train.u32", "heldout.u32")
TYPES, TYPE_ENDS, COUNTS, TRAIN, HELDOUT = FILES
_MANIFEST_LIMIT = 1 << 28  # bytes: about a million input files


@dataclass(frozen=True)
class CorpusSizes:
    """What a corpus holds; words do not include ``</S>``."""

    types: int
    train_words: int
    train_sentences: int
    heldout_words: int
    heldout_sentences: int
    duplicates: int  # sentences left out
    repaired_lines: int  # by the policy for bytes that are not UTF-8
    skipped_lines: int
    given_types: int | None = None  # of the vocabulary that the user gave
    look_alikes: int = 0  # spellings behind the types: words of the text that are spelled like a boundary

    def bytes_of(self, name: str) -> int | None:
        """How large a file must be; None when that cannot be told from here."""
        sizes = {
            TYPE_ENDS: 8 * (self.types + self.look_alikes),
            COUNTS: 8 * self.types,
            TRAIN: 4 * (self.train_words + self.train_sentences),
            HELDOUT: 4 * (self.heldout_words + self.heldout_sentences),
        }
        return sizes.get(name)


@dataclass(frozen=True)
class CorpusManifest:
    """How a corpus was made, and of what."""

    options: dict[str, Any]  # all that changes its bytes, but for the input
    inputs: list[dict[str, Any]]  # path, size and time of change of each file; of stdin, the path "-" alone
    sizes: CorpusSizes
    files: dict[str, str]  # SHA-256 by name
    tokenizer: str | None = None  # for raw text of this kind; it cut this one, if it was raw

    def to_json(self) -> str:
        """The manifest's text; its last entry is a SHA-256 of the others."""
        values = {"kind": "elmo corpus", "version": VERSION, **asdict(self)}
        return json.dumps({**values, "sha256": _digest(values)}, indent=1, ensure_ascii=True) + "\n"


class Types(Sequence[str]):
    """The spellings of all types by id, read from disk when they are asked for.

    Of ids beyond the last type, ``spellings`` and ``padded_bytes`` tell what stood in the text: a word that
    is spelled like a boundary, and that no vocabulary holds.
    """

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64], n_types: int | None = None) -> None:
        self._text = text
        self._ends = ends
        self._n_types = len(ends) if n_types is None else n_types

    def __len__(self) -> int:
        return self._n_types

    def __getitem__(self, index: Any) -> Any:  # an int gives a str, a slice a list of them
        if isinstance(index, slice):
            return self.spellings(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"type {index} of {len(self)}")
        return self.spellings(np.array([index % len(self)]))[0]

    def spellings(self, ids: NDArray[np.integer]) -> list[str]:
        """The words with these ids."""
        starts, lengths = self._places(ids)
        text = gathered(self._text, starts, lengths).tobytes()
        ends = np.cumsum(lengths).tolist()
        try:
            return [
                text[start:end].decode("utf-8", "surrogatepass")  # lone surrogates, if that policy was chosen
                for start, end in zip([0, *ends], ends, strict=False)
            ]
        except UnicodeDecodeError as error:
            raise DataError(f"{TYPES}: expected UTF-8 words, found damage; build the corpus again") from error

    def padded_bytes(
        self, ids: NDArray[np.integer], width: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The first ``width`` UTF-8 bytes of each word, (n, width) with zeros behind, and their number."""
        starts, lengths = self._places(ids)
        lengths = np.minimum(lengths, width)
        padded = np.zeros((len(ids), width), dtype=np.uint8)
        padded[np.arange(width) < lengths[:, None]] = gathered(self._text, starts, lengths)
        return padded, lengths

    def _places(self, ids: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = np.asarray(ids, dtype=np.int64)
        starts = np.where(ids > 0, self._ends[ids - 1], 0)
        return starts, self._ends[ids] - 1 - starts


@dataclass(frozen=True)
class Corpus:
    """A text as type ids: 0 ``<S>``, 1 ``</S>``, 2 ``<UNK>``, then words by falling count.

    Words of a vocabulary that was given come before all others, in its order, even those the text lacks.
    Counts are those of the training part; of equal counts the word that came first has the lower id. A
    sentence is ``w1 … wn 1``. ``counts[0]`` and ``counts[1]`` are the number of sentences. A word of the text
    that is spelled like a boundary has an id beyond all types, and counts as unknown.
    """

    folder: Path
    manifest: CorpusManifest
    types: Types
    counts: NDArray[np.int64]  # (type,)
    train: NDArray[np.uint32]  # (token,)
    heldout: NDArray[np.uint32]  # (token,)

    @property
    def n_tokens(self) -> int:
        """Words of the training part; ``</S>`` is none."""
        return self.manifest.sizes.train_words

    @property
    def n_sentences(self) -> int:
        """Sentences of the training part."""
        return self.manifest.sizes.train_sentences

    @property
    def n_given(self) -> int | None:
        """How many types, the first ones, are those of the vocabulary that was given; None: none was."""
        return self.manifest.sizes.given_types

    @property
    def is_simplified(self) -> bool:
        """Whether Chinese words of either script were kept in simplified characters."""
        return bool(self.manifest.options.get("is_simplified"))

    @property
    def tokenizer(self) -> str:
        """The name of the tokeniser that cut the text, or would suit it had it not come as tokens."""
        return self.manifest.tokenizer or self.manifest.options.get("tokenizer") or "en"

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> Corpus:
        """Open what ``build`` made; ``DataError`` for anything else.

        ``verify`` reads every file once, to hold it against its SHA-256; sizes are checked in any case.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        problems = []
        for name in FILES:
            try:
                path = member(folder, name)
                size, expected = path.stat().st_size, manifest.sizes.bytes_of(name)
                if expected is not None and size != expected:
                    problems.append(f"{name}: expected {expected} bytes, found {size}")
                elif verify and sha256(path) != manifest.files[name]:
                    problems.append(f"{name}: its SHA-256 is not the recorded one")
            except FormatError as error:
                problems.append(str(error))
        subject = f"{shown(folder)}: this corpus is damaged; build it again"
        raise_all(problems, subject=subject, kind=DataError)
        texts, ends = _mapped(folder / TYPES, "u1"), _mapped(folder / TYPE_ENDS, "<i8")
        types = Types(texts, ends, manifest.sizes.types)
        arrays = {name: _mapped(folder / name, "<u4") for name in (TRAIN, HELDOUT)}
        return cls(folder, manifest, types, _mapped(folder / COUNTS, "<i8"), arrays[TRAIN], arrays[HELDOUT])

    def vocab(self, n_vocab: int | None = None) -> Vocabulary:
        """The first ``n_vocab`` types, fewer when there are not so many; else those given, else all."""
        n_vocab = self.n_given if n_vocab is None else n_vocab
        if n_vocab is not None and n_vocab <= FIRST_WORD:
            raise ConfigError(
                f"vocabulary: expected a size above {FIRST_WORD} (the special words), found {n_vocab}"
            )
        return Vocabulary(tuple(self.types[:n_vocab]))


def read_manifest(folder: Path) -> CorpusManifest:
    """What ``CorpusManifest.to_json`` wrote; ``DataError`` for anything else."""
    try:
        values = read_json(member(folder, MANIFEST), _MANIFEST_LIMIT)
    except FormatError as error:
        raise DataError(f"{shown(folder)}: expected a corpus: {error}") from error
    place = shown(folder / MANIFEST)
    if not isinstance(values, dict) or values.get("kind") != "elmo corpus":
        raise DataError(f"{place}: expected the manifest of a corpus, found something else")
    if values.get("version") != VERSION:
        found = str(values.get("version"))[:20]
        raise DataError(f"{place}: expected version {VERSION}, found {found}; build the corpus again")
    digest = values.pop("sha256", None)
    if digest != _digest(values):
        raise DataError(f"{place}: its SHA-256 is not the recorded one: damaged; build the corpus again")
    try:
        return CorpusManifest(
            values["options"],
            values["inputs"],
            CorpusSizes(**values["sizes"]),
            values["files"],
            values.get("tokenizer"),
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{place}: expected the keys of a corpus manifest, found others") from error


def gathered(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """The stretches of ``data`` that begin at ``starts``, one after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return data[np.arange(total) + np.repeat(starts - (ends - lengths), lengths)]


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    """The numbers of a file, read-only and only in memory where they are looked at."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


BOS = 0
_PAD = N_BYTE_CHARACTERS  # the padding character is the last id


class TypeIds:
    """Looks the types of one corpus up for one model."""

    def __init__(
        self, corpus: Corpus, config: BiLmConfig, n_vocab: int, *, device: str | torch.device = "cpu"
    ) -> None:
        if config.alphabet == "unicode":
            raise ConfigError("a model with a Unicode alphabet cannot be trained here: use bytes")
        self._types = corpus.types
        self._n_vocab = n_vocab
        self._device = torch.device(device)
        self._has_words = config.words is not None
        self._alphabet = ByteAlphabet(config.chars.max_characters) if config.chars else None

    def targets(self, ids: NDArray[np.int64]) -> Tensor:
        """The words to predict: those outside the vocabulary are unknown."""
        return self.on_device(np.where(ids < self._n_vocab, ids, UNKNOWN))

    def on_device(self, numbers: NDArray[Any]) -> Tensor:
        """An array as a tensor where the model is."""
        return torch.from_numpy(numbers).to(self._device)

    def inputs(self, ids: NDArray[np.int64]) -> tuple[Tensor | None, Tensor | None]:
        """``char_ids`` (type, char) and ``word_ids`` (type,), those that the model reads."""
        char_ids = self.on_device(self._characters(ids)) if self._alphabet else None
        word_ids = self.targets(ids) + 1 if self._has_words else None
        return char_ids, word_ids

    def _characters(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """What ``ByteAlphabet.ids`` gives for each type, all at once."""
        alphabet = self._alphabet or ByteAlphabet()
        size = alphabet.max_characters
        text, lengths = self._types.padded_bytes(ids, size - 2)
        begin, end = alphabet.begin(), alphabet.end()
        rows = np.full((len(ids), size), _PAD, dtype=np.int64)
        rows[:, 0] = begin[0]  # begin of word
        inner = np.arange(size - 2) < lengths[:, None]
        rows[:, 1:-1][inner] = text[inner].astype(np.int64) + 1
        rows[np.arange(len(ids)), lengths + 1] = begin[2]  # end of word
        for boundary, row in ((BOS, begin), (EOS, end)):
            rows[ids == boundary] = row
        return rows
