"""A corpus on disk, and the ids that a model reads from it.

``Corpus.open`` maps a folder that ``build_corpus`` wrote into memory::

    manifest.json   options and input files of the build, counts, SHA-256 of each file
    types.txt       one word per line, in the order of type ids; words of the text spelled <S> or </S> come last
    type_ends.u64   offset of the end of each line of types.txt
    counts.u64      number of occurrences of each type in the training part
    train.u32       type ids of the training part; every sentence ends in </S>
    heldout.u32     type ids of the held-out part, in the same format

A *type* is a distinct word, a *token* one occurrence of it. ``TypeIds`` converts type ids to the character
and word ids that a biLM reads.
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
from elmo.storage.files import compute_sha256, find_member, format_path, read_json
from elmo.text.ids import N_BYTE_CHARACTERS, ByteAlphabet, Vocabulary

BOS, EOS, UNKNOWN, FIRST_WORD = 0, 1, 2, 3  # type ids
SPECIAL = ("<S>", "</S>", "<UNK>")
VERSION = 2
_READABLE_VERSIONS = (1, VERSION)  # version 1 has paths and modification times instead of checksums of the text
MANIFEST = "manifest.json"
FILES = ("types.txt", "type_ends.u64", "counts.u64", "train.u32", "heldout.u32")
TYPES, TYPE_ENDS, COUNTS, TRAIN, HELDOUT = FILES
_MANIFEST_LIMIT = 1 << 28  # bytes; enough for about a million input files


@dataclass(frozen=True)
class CorpusSizes:
    """Counts of words, sentences and lines in a corpus. Word counts do not include ``</S>``.

    Attributes:
        types: Number of types.
        train_words: Number of words in the training part.
        train_sentences: Number of sentences in the training part.
        heldout_words: Number of words in the held-out part.
        heldout_sentences: Number of sentences in the held-out part.
        duplicates: Number of repeated sentences that were dropped.
        repaired_lines: Number of lines that were not UTF-8 and were repaired.
        skipped_lines: Number of lines that were not UTF-8 and were skipped.
        given_types: Number of types in the user's vocabulary, or None without a vocabulary.
        look_alikes: Number of distinct words spelled ``<S>`` or ``</S>`` in the text. They are stored after the types.
    """

    types: int
    train_words: int
    train_sentences: int
    heldout_words: int
    heldout_sentences: int
    duplicates: int
    repaired_lines: int
    skipped_lines: int
    given_types: int | None = None
    look_alikes: int = 0

    def file_sizes(self) -> dict[str, int]:
        """Return the expected size in bytes of each file that contains numbers."""
        return {
            TYPE_ENDS: 8 * (self.types + self.look_alikes),
            COUNTS: 8 * self.types,
            TRAIN: 4 * (self.train_words + self.train_sentences),
            HELDOUT: 4 * (self.heldout_words + self.heldout_sentences),
        }


@dataclass(frozen=True)
class CorpusManifest:
    """How a corpus was built, and from which files.

    Attributes:
        options: Options of ``build_corpus`` that change the content of the corpus.
        inputs: Name, size and SHA-256 of each input file. For stdin and pipes, only the path ``-``.
        sizes: Counts of words, sentences and lines.
        files: SHA-256 of each file by name.
        tokenizer: Name of the tokenizer that split the raw text. For text that was already tokenized, the tokenizer
            that fits its language.
    """

    options: dict[str, Any]
    inputs: list[dict[str, Any]]
    sizes: CorpusSizes
    files: dict[str, str]
    tokenizer: str | None = None

    def to_json(self) -> str:
        """Return the manifest as JSON. The last entry is the SHA-256 of the other entries."""
        values = {"kind": "elmo corpus", "version": VERSION, **asdict(self)}
        return json.dumps({**values, "sha256": hash_json(values)}, indent=1) + "\n"


def read_manifest(folder: Path) -> CorpusManifest:
    """Read the manifest of a corpus; raise ``DataError`` if it is missing, damaged or of another version."""
    try:
        values = read_json(find_member(folder, MANIFEST), _MANIFEST_LIMIT)
    except FormatError as error:
        raise DataError(f"cannot read the corpus {format_path(folder)}: {error}") from error
    path = format_path(folder / MANIFEST)
    if not isinstance(values, dict) or values.get("kind") != "elmo corpus":
        raise DataError(f"{path} must be the manifest of a corpus; found another JSON file")
    if (version := values.get("version")) not in _READABLE_VERSIONS:
        raise DataError(f"{path} must have version {VERSION}; found {version!r:.20}; build the corpus again")
    if values.pop("sha256", None) != hash_json(values):
        raise DataError(f"{path} is damaged: its SHA-256 differs from the recorded one; build the corpus again")
    try:
        sizes = CorpusSizes(**values["sizes"])
        return CorpusManifest(
            values["options"], values["inputs"], sizes, values["files"], tokenizer=values.get("tokenizer")
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} does not have the keys of a corpus manifest; build the corpus again") from error


def hash_json(values: Any) -> str:
    """Return the SHA-256 of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class Types(Sequence[str]):
    """The spellings of all types by type id, read from disk on demand.

    ``spellings`` and ``padded_bytes`` also accept ids after the last type. These ids belong to words of the text that
    are spelled ``<S>`` or ``</S>`` and are not part of any vocabulary.
    """

    def __init__(self, text: NDArray[np.uint8], ends: NDArray[np.int64], n_types: int) -> None:
        self._text = text
        self._ends = ends
        self._n_types = n_types

    def __len__(self) -> int:
        return self._n_types

    def __getitem__(self, index: Any) -> Any:  # int -> str, slice -> list[str]
        if isinstance(index, slice):
            return self.spellings(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"type id must be at least {-len(self)} and below {len(self)}; found {index}")
        return self.spellings(np.array([index % len(self)]))[0]

    def spellings(self, ids: NDArray[np.integer]) -> list[str]:
        """Return the spelling of each type id."""
        starts, lengths = self._locate(ids)
        text = gather_slices(self._text, starts, lengths).tobytes()
        ends = np.cumsum(lengths).tolist()
        try:
            return [
                text[start:end].decode("utf-8", "surrogatepass")  # for text read with errors="surrogateescape"
                for start, end in zip([0, *ends], ends, strict=False)
            ]
        except UnicodeDecodeError as error:
            raise DataError(f"{TYPES} must be UTF-8; found other bytes; build the corpus again") from error

    def padded_bytes(self, ids: NDArray[np.integer], width: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the first ``width`` UTF-8 bytes of each word, zero-padded (word, width), and their number (word,)."""
        starts, lengths = self._locate(ids)
        lengths = np.minimum(lengths, width)
        padded = np.zeros((len(ids), width), dtype=np.uint8)
        padded[np.arange(width) < lengths[:, None]] = gather_slices(self._text, starts, lengths)
        return padded, lengths

    def _locate(self, ids: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = np.asarray(ids, dtype=np.int64)
        starts = np.where(ids > 0, self._ends[ids - 1], 0)
        return starts, self._ends[ids] - 1 - starts


def gather_slices(data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Concatenate slices of ``data``, given by their starts and lengths."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return data[np.arange(total) + np.repeat(starts - (ends - lengths), lengths)]


@dataclass(frozen=True)
class Corpus:
    """A text as type ids: 0 is ``<S>``, 1 is ``</S>``, 2 is ``<UNK>``, followed by the words from frequent to rare.

    Words with equal counts are sorted by first occurrence. If the user gave a vocabulary, its words come first, in
    their order, even if the text does not contain them. Each sentence ends in ``</S>``. The counts of ``<S>`` and
    ``</S>`` are the number of sentences. Words of the text that are spelled ``<S>`` or ``</S>`` have ids after all
    types and count as unknown words.

    Attributes:
        folder: Folder of the corpus.
        manifest: How the corpus was built.
        types: Spellings by type id.
        counts: (type,) Number of occurrences in the training part.
        train: (token,) Type ids of the training part.
        heldout: (token,) Type ids of the held-out part.
    """

    folder: Path
    manifest: CorpusManifest
    types: Types
    counts: NDArray[np.int64]
    train: NDArray[np.uint32]
    heldout: NDArray[np.uint32]

    @property
    def n_tokens(self) -> int:
        """Number of words in the training part, without ``</S>``."""
        return self.manifest.sizes.train_words

    @property
    def n_sentences(self) -> int:
        """Number of sentences in the training part."""
        return self.manifest.sizes.train_sentences

    @property
    def n_given(self) -> int | None:
        """Number of types in the user's vocabulary, or None without a vocabulary."""
        return self.manifest.sizes.given_types

    @property
    def is_simplified(self) -> bool:
        """Whether Chinese words were converted to simplified characters."""
        return bool(self.manifest.options.get("is_simplified"))

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer that split the raw text, or that fits the language of tokenized text."""
        return self.manifest.tokenizer or self.manifest.options.get("tokenizer") or "en"

    @classmethod
    def open(cls, folder: str | Path, *, verify: bool = True) -> Corpus:
        """Open a corpus; raise ``DataError`` if it is missing or damaged.

        Args:
            folder: Folder that ``build_corpus`` wrote.
            verify: Whether to read every file and check its SHA-256. Sizes are always checked.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        sizes = manifest.sizes.file_sizes()
        problems = []
        for name in FILES:
            try:
                path = find_member(folder, name)
                if name in sizes and (size := path.stat().st_size) != sizes[name]:
                    problems.append(f"{name} must have {sizes[name]} bytes; found {size}")
                elif verify and compute_sha256(path) != manifest.files[name]:
                    problems.append(f"the SHA-256 of {name} differs from the recorded one")
            except FormatError as error:
                problems.append(str(error))
        subject = f"the corpus {format_path(folder)} is damaged; build it again"
        raise_all(problems, subject=subject, kind=DataError)
        types = Types(map_array(folder / TYPES, "u1"), map_array(folder / TYPE_ENDS, "<i8"), manifest.sizes.types)
        train, heldout = (map_array(folder / name, "<u4") for name in (TRAIN, HELDOUT))
        return cls(folder, manifest, types, map_array(folder / COUNTS, "<i8"), train, heldout)

    def vocab(self, n_vocab: int | None = None) -> Vocabulary:
        """Return the first ``n_vocab`` types as a vocabulary.

        By default, these are the types of the user's vocabulary if there is one, otherwise all types.
        """
        n_vocab = self.n_given if n_vocab is None else n_vocab
        if n_vocab is not None and n_vocab <= FIRST_WORD:
            raise ConfigError(f"n_vocab must be above {FIRST_WORD}, the number of special words; found {n_vocab}")
        return Vocabulary(tuple(self.types[:n_vocab]))


def map_array(path: Path, dtype: str) -> NDArray[Any]:
    """Map a file of numbers into memory for reading."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def whole_sentences(stream: NDArray[np.uint32], n_tokens: int) -> NDArray[np.uint32]:
    """Return the sentences that end within the first ``n_tokens`` tokens of a stream."""
    ends = np.flatnonzero(stream[:n_tokens] == EOS)
    return stream[: int(ends[-1]) + 1] if len(ends) else stream[:0]


class TypeIds:
    """Converts type ids of one corpus to the input ids and targets of one model.

    Args:
        corpus: The corpus.
        config: Configuration of the model.
        n_vocab: Number of words that the model predicts.
        device: Device of the ids.

    Example:
        >>> corpus = build_corpus("corpus.txt", "ids-corpus")
        >>> ids = TypeIds(corpus, PRESETS["tiny"], n_vocab=50)
    """

    def __init__(self, corpus: Corpus, config: BiLmConfig, n_vocab: int, *, device: str | torch.device = "cpu") -> None:
        if config.alphabet == "unicode":
            raise ConfigError("cannot train a model with alphabet='unicode'; use alphabet='bytes'")
        self._types = corpus.types
        self._n_vocab = n_vocab
        self._device = torch.device(device)
        self._has_words = config.words is not None
        self._has_chars = config.chars is not None
        alphabet = ByteAlphabet(config.chars.max_characters) if config.chars else ByteAlphabet()
        self._boundaries = {BOS: np.array(alphabet.begin()), EOS: np.array(alphabet.end())}  # (char,) each

    def targets(self, ids: NDArray[np.int64]) -> Tensor:
        """Return the ids of the words to predict. Words outside the vocabulary become ``<UNK>``."""
        return self.on_device(np.where(ids < self._n_vocab, ids, UNKNOWN))

    def on_device(self, numbers: NDArray[Any]) -> Tensor:
        """Convert an array to a tensor on the model's device."""
        return torch.from_numpy(numbers).to(self._device)

    def inputs(self, ids: NDArray[np.int64]) -> tuple[Tensor | None, Tensor | None]:
        """Return character ids (type, char) and word ids (type,); each is None if the model does not read them."""
        char_ids = self.on_device(self._char_ids(ids)) if self._has_chars else None
        word_ids = self.targets(ids) + 1 if self._has_words else None
        return char_ids, word_ids

    def _char_ids(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Compute the same ids as ``ByteAlphabet.ids``, (type, char), for all types at once."""
        begin = self._boundaries[BOS]
        size = len(begin)
        text, lengths = self._types.padded_bytes(ids, size - 2)
        rows = np.full((len(ids), size), N_BYTE_CHARACTERS, dtype=np.int64)  # the padding character
        rows[:, 0] = begin[0]  # begin of word
        inner = np.arange(size - 2) < lengths[:, None]
        rows[:, 1:-1][inner] = text[inner].astype(np.int64) + 1
        rows[np.arange(len(ids)), lengths + 1] = begin[2]  # end of word
        for boundary, row in self._boundaries.items():
            rows[ids == boundary] = row
        return rows


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_numbers(seed: int, numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each number. Different seeds give unrelated hashes.

    NumPy's random generators are not used because their numbers may change between versions. The hash function is
    that of SplitMix64 (Steele, Lea and Flood 2014).
    """
    start = _mix(np.array([seed % (1 << 64)], dtype=np.uint64) + _GOLDEN)
    return _mix((numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN + start)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
