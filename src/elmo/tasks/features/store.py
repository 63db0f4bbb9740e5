"""The feature store: where the features of words are looked up, and the cache of frozen layers on disk.

``FeatureStore`` holds the biLM, the static vectors and other encoders. ``FeatureCache`` keeps the layers of
frozen encoders, computed once and in half precision. Each encoder has a folder of blocks. A block is a
safetensors file with many sentences, written atomically. A sentence is identified by a hash of its words, so
data sets share common sentences, and a killed run loses at most one block. The folder never grows beyond its
limit: the least recently used blocks are removed first, and sentences that do not fit next to the blocks in
use are computed each time.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmo.embed.start import Carry, Start
from elmo.engine.batches import track_progress
from elmo.errors import ConfigError, FormatError, OutputError
from elmo.formats.pretrained import fingerprint
from elmo.jobs.reader import DAMAGED_FILE_ERRORS
from elmo.storage.atomic import atomic_file, cannot_write
from elmo.storage.files import format_error, format_path
from elmo.storage.tensors import read_arrays, write_arrays
from elmo.tasks.data.examples import Words
from elmo.tasks.features.layer import FeatureBatch, FeatureLayer, Features, StoreWidths, character_ids
from elmo.tasks.features.static import StaticVectors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo
    from elmo.text.ids import TokenIndexer

LayerLookup = Callable[[Sequence[Words]], list[NDArray[Any]]]  # (layer, time, width) for each sentence


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Everything that word features are looked up in.

    Args:
        features: Which features the task uses.
        elmo: The biLM; needed unless ``features.elmo`` is "none".
        static: Static word vectors.
        others: Further encoders, such as ``TransformerEncoder``.
        cache: Where the layers of frozen encoders are kept.
        start: Start state of the LSTMs for each sentence, "zero" or "warm".
    """

    features: Features
    elmo: Elmo | None = None
    static: StaticVectors | None = None
    others: tuple[FeatureEncoder, ...] = ()
    cache: FeatureCache = field(default_factory=lambda: FeatureCache(None))
    start: Start = "zero"
    _encoders: list[tuple[object, ElmoEncoder]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.features.is_bilm_tuned and self.start != "zero":
            raise ConfigError(
                f"start must be zero if the biLM is tuned, found {self.start!r:.20}; change one of these options"
            )

    @property
    def used_elmo(self) -> Elmo | None:
        """The biLM if the task uses it, else None."""
        return self.elmo if self.features.has_elmo else None

    @property
    def widths(self) -> StoreWidths:
        """Sizes of everything that the store provides."""
        elmo = self.used_elmo
        return StoreWidths(
            static=(0, 0) if self.static is None else (len(self.static.words), self.static.width),
            n_layers=elmo.n_layers if elmo else 0,
            elmo=elmo.width if elmo else 0,
            others=tuple(encoder.width for encoder in self.others),
        )

    def build_layer(self) -> FeatureLayer:
        """Build a feature layer with new weights."""
        bilm = None
        if self.features.is_bilm_tuned and self.elmo is not None:
            bilm = copy.deepcopy(self.elmo.bilm).requires_grad_(True)
        return FeatureLayer(self.features, self.widths, static=self.static, bilm=bilm)

    def prepare(self, sentences: Iterable[Words], *, show_progress: bool = False) -> FeatureLookup:
        """Compute the frozen layers of ``sentences`` that are not cached yet; return what looks them up."""
        unique: Sequence[Words] = list(dict.fromkeys(sentences))
        elmo, layers, indexer = self.used_elmo, None, None
        if elmo is not None and self.features.is_bilm_tuned:
            indexer = elmo.indexer
        elif elmo is not None:
            layers = self.cache.lookup(self._encoder(elmo), unique, show_progress=show_progress)
        return FeatureLookup(
            static=self.static,
            has_characters=self.features.characters > 0,
            elmo=layers,
            bilm_indexer=indexer,
            others=tuple(self.cache.lookup(encoder, unique, show_progress=show_progress) for encoder in self.others),
        )

    def _encoder(self, elmo: Elmo) -> ElmoEncoder:
        """Reuse the encoder, whose fingerprint hashes all weights, until the model is warmed up."""
        if not self._encoders or self._encoders[0][0] is not elmo.pretrained:
            self._encoders[:] = [(elmo.pretrained, ElmoEncoder(elmo, start=self.start))]
        return self._encoders[0][1]


@dataclass(frozen=True, eq=False)
class FeatureLookup:
    """Looks up the features of batches of sentences."""

    static: StaticVectors | None = None
    has_characters: bool = False
    elmo: LayerLookup | None = None
    bilm_indexer: TokenIndexer | None = None  # of a tuned biLM, instead of ``elmo``
    others: tuple[LayerLookup, ...] = ()

    def batch(self, sentences: Sequence[Words]) -> FeatureBatch:
        """Look up all words of a batch, padded to the longest sentence."""
        longest = max(len(words) for words in sentences)
        mask = torch.zeros(len(sentences), longest, dtype=torch.bool)
        for k, words in enumerate(sentences):
            mask[k, : len(words)] = True
        static = characters = layers = ids = None
        if self.static is not None:
            rows = np.zeros(mask.shape, np.int64)  # row 0 is padding, row 1 is for words without a vector
            for k, words in enumerate(sentences):
                rows[k, : len(words)] = [self.static.row(word) + 2 for word in words]
            static = torch.from_numpy(rows)
        if self.has_characters:
            characters = character_ids(sentences, longest)
        if self.elmo is not None:
            layers = _pad_layers(self.elmo, sentences, longest)
        elif self.bilm_indexer is not None:
            ids = self.bilm_indexer.batch(sentences)
        others = tuple(_pad_layers(lookup, sentences, longest).mean(dim=1) for lookup in self.others)
        return FeatureBatch(mask, static, characters, layers, ids, others)


def _pad_layers(lookup: LayerLookup, sentences: Sequence[Words], longest: int) -> Tensor:
    """Return (batch, layer, time, width), zero at padding."""
    arrays = lookup(sentences)
    n_layers, _, width = arrays[0].shape
    dtype = np.result_type(*arrays)  # float16 from the cache: torch converts it faster than numpy
    states = np.zeros((len(arrays), n_layers, longest, width), dtype)
    for k, array in enumerate(arrays):
        states[k, :, : array.shape[1]] = array
    return torch.from_numpy(states).float()


class FeatureEncoder(Protocol):
    """A model that gives each word of a sentence one or more vectors, which depend on the sentence only."""

    @property
    def key(self) -> str:
        """Identifies the encoder and everything that its vectors depend on; letters, digits, ``-``, ``_``."""
        ...

    @property
    def n_layers(self) -> int:
        """Number of vectors per word."""
        ...

    @property
    def width(self) -> int:
        """Width of each vector."""
        ...

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """Compute (layer, time, width) for each sentence."""
        ...


class ElmoEncoder:
    """All layers of a frozen biLM."""

    def __init__(self, elmo: Elmo, *, start: Start = "zero") -> None:
        if isinstance(start, Carry):
            raise ConfigError(
                "start must be zero or warm, found a carried state, which depends on the order of sentences"
            )
        self.elmo = elmo
        self.start: Literal["zero", "warm"] = start

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights and of a warm start; computed on first use, because it takes time."""
        current = replace(self.elmo.pretrained, weights=self.elmo.bilm.state_dict())
        return fingerprint(current, with_warm=self.start == "warm")

    @property
    def key(self) -> str:
        """The fingerprint of the model, its precision and its start state."""
        return f"elmo-{self.fingerprint[:24]}-{self.elmo.precision}-{self.start}"

    @property
    def n_layers(self) -> int:
        """Number of layers of the biLM."""
        return self.elmo.n_layers

    @property
    def width(self) -> int:
        """Width of each layer."""
        return self.elmo.width

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """Compute (layer, time, width) for each sentence."""
        encodings = self.elmo.encode([list(words) for words in sentences], layers="all", start=self.start)
        return [np.asarray(encoding.vectors) for encoding in encodings]


Item = tuple[bytes, Words]  # the key of a sentence, and the sentence
States = NDArray[np.float16]  # (layer, time, width)
BLOCK_TOKENS = 20_000  # about 40 MB for a model of width 320
DEFAULT_LIMIT = 20 << 30  # bytes
_SUFFIX = ".block"
_KEY_BYTES = 16
_LENGTH_BYTES = 8
_HEADER_BYTES = 512  # upper bound for a block
_STALE_SECONDS = 24 * 3600  # after this time, the writer of an unfinished file is gone
_log = logging.getLogger(__name__)


class FeatureCache:
    """Layers of frozen encoders in ``folder``; with None, they are computed each time.

    Args:
        folder: Where blocks are kept.
        limit: Maximum size of the folder in bytes.
    """

    def __init__(self, folder: str | Path | None, *, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 0:
            raise ConfigError(f"the cache limit must be at least 0 bytes, found {limit}")
        self.folder = None if folder is None else Path(folder)
        self.limit = limit

    def lookup(
        self, encoder: FeatureEncoder, sentences: Iterable[Words], *, show_progress: bool = False
    ) -> LayerLookup:
        """Compute the layers of ``sentences`` that are not cached; return a function that looks them up."""
        if self.folder is None:
            return encoder.layers
        items = {sentence_key(words): words for words in dict.fromkeys(sentences)}
        folder = self.folder / encoder.key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
        blocks = _CacheBlocks(folder, (encoder.n_layers, encoder.width), items)
        blocks.drop_beyond(self.limit)
        missing = [(key, words) for key, words in items.items() if key not in blocks.rows]
        fitting = _select_fitting(missing, self.limit - blocks.n_bytes, blocks.token_bytes)
        if fitting:
            _log.info(
                "computing %d of %d sentences that are not in the cache %s",
                len(missing), len(items), format_path(self.folder),
            )  # fmt: skip
        parts = list(_split_blocks(fitting))
        for part in track_progress(parts, "Embedding", is_shown=show_progress):
            small = blocks.small(_count_tokens(part)) if part is parts[-1] else []
            size = _block_size(part, blocks.token_bytes)
            small_size = sum(block.n_bytes for block in small)  # they exist twice while they are merged
            if blocks.n_bytes + size + small_size > self.limit:
                small, small_size = [], 0
            if not self._free(size + small_size, keep=blocks):
                break
            blocks.write(part, encoder.layers([words for _, words in part]), merge=small)
        self._free(0, keep=blocks)
        self._warn_of_uncached(blocks, items)
        return _CachedLayers(blocks, encoder, {words: key for key, words in items.items()})

    def _free(self, n_bytes: int, *, keep: _CacheBlocks) -> bool:
        """Remove the least recently used blocks until ``n_bytes`` fit; return whether they fit."""
        files: list[tuple[int, int, Path]] = []
        for path in [] if self.folder is None else self.folder.glob(f"*/*{_SUFFIX}*"):
            with suppress(OSError):  # another process may have removed it
                status = path.stat()
                if path.suffix == ".part" and time.time() - status.st_mtime > _STALE_SECONDS:
                    path.unlink()
                else:
                    files.append((status.st_mtime_ns, status.st_size, path))
        total = n_bytes + sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            if path.suffix == _SUFFIX and path not in keep.used:
                with suppress(OSError):
                    path.unlink()
                    total -= size
        return total <= self.limit

    def _warn_of_uncached(self, blocks: _CacheBlocks, items: Mapping[bytes, Words]) -> None:
        n_uncached = sum(key not in blocks.rows for key in items)
        if n_uncached:
            _log.warning(
                "the layers of all sentences take %d MB, but the cache is limited to %d MB (--cache-limit): "
                "%d of %d sentences are computed each time they are used",
                _block_size(list(items.items()), blocks.token_bytes) >> 20,
                self.limit >> 20,
                n_uncached,
                len(items),
            )


class _CachedLayers:
    """Looks up layers in memory-mapped blocks; computes those of sentences that did not fit."""

    def __init__(self, blocks: _CacheBlocks, encoder: FeatureEncoder, keys: Mapping[Words, bytes]) -> None:
        self._blocks = blocks
        self._encoder = encoder
        self._keys = keys  # hashed once: every epoch looks them up again

    def __call__(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """Return (layer, time, width) for each sentence, in half precision if it is cached."""
        keys = [self._keys.get(tuple(words)) or sentence_key(words) for words in sentences]
        missing = {key: words for key, words in zip(keys, sentences, strict=True) if key not in self._blocks.rows}
        layers = self._encoder.layers(list(missing.values())) if missing else []
        computed = dict(zip(missing, layers, strict=True))
        return [computed[key] if key in computed else self._blocks.states(key) for key in keys]


@dataclass(frozen=True, eq=False)
class _CacheBlock:
    """A file of sentences."""

    path: Path
    n_bytes: int
    keys: tuple[bytes, ...]
    lengths: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return sum(self.lengths)


class _CacheBlocks:
    """The blocks of one encoder; only those with sentences of ``items`` are mapped into memory."""

    def __init__(self, folder: Path, shape: tuple[int, int], items: Mapping[bytes, Words]) -> None:
        self.folder = folder
        self.used: dict[Path, _CacheBlock] = {}
        self.rows: dict[bytes, tuple[Path, int, int]] = {}  # block, first token, number of tokens
        self.token_bytes = shape[0] * shape[1] * np.dtype(np.float16).itemsize
        self._shape = shape  # layers, width
        self._items = items
        self._mapped: dict[Path, NDArray[Any]] = {}
        self._small: dict[Path, _CacheBlock] = {}
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            block = self._read(path)
            if block is not None:
                if block.n_tokens < BLOCK_TOKENS // 4:
                    self._small[path] = block
                self._use(block)

    @property
    def n_bytes(self) -> int:
        """Size of the blocks in use."""
        return sum(block.n_bytes for block in self.used.values())

    def _read(self, path: Path) -> _CacheBlock | None:
        """Read the index of a block; remove a damaged block, but not one that is unreadable for now."""
        try:
            arrays, _ = read_arrays(path, is_mapped=True)  # unmapped again when this method returns
            states, lengths, keys = (arrays[name] for name in ("states", "lengths", "keys"))
            n_bytes = path.stat().st_size
            if states.shape != (int(lengths.sum()), *self._shape) or keys.shape != (len(lengths), _KEY_BYTES):
                raise ValueError(f"states of shape {states.shape}")
            if states.dtype != np.float16 or lengths.dtype != np.int64 or (lengths < 0).any():
                raise ValueError(f"states of type {states.dtype}, lengths of type {lengths.dtype}")
            return _CacheBlock(path, n_bytes, tuple(key.tobytes() for key in keys), tuple(lengths.tolist()))
        except FileNotFoundError:  # another process removed it
            return None
        except (OSError, MemoryError) as error:
            raise _unreadable(path, error) from error
        except (FormatError, *DAMAGED_FILE_ERRORS) as error:
            cause = error.__cause__ if isinstance(error, FormatError) else None
            if isinstance(cause, FileNotFoundError):
                return None
            if isinstance(cause, OSError):
                raise _unreadable(path, cause) from error
            return _remove_damaged(path, format_error(error))

    def _use(self, block: _CacheBlock) -> None:
        """Map a block if it has sentences that are needed and in no other block; mark it as recently used."""
        is_new = [key in self._items and key not in self.rows for key in block.keys]
        states = self._map(block) if any(is_new) else None
        if states is None:
            return
        with suppress(OSError):
            os.utime(block.path)
        self.used[block.path] = block
        self._mapped[block.path] = states
        first = 0
        for key, length, is_needed in zip(block.keys, block.lengths, is_new, strict=True):
            if is_needed:
                self.rows[key] = (block.path, first, length)
            first += length

    def _map(self, block: _CacheBlock) -> States | None:
        """Map the states (token, layer, width) of a block; None if its file is gone.

        ``torch.from_file`` keeps no file descriptor, unlike ``mmap`` of Python.
        """
        try:
            raw = torch.from_file(str(block.path), shared=False, size=block.n_bytes, dtype=torch.uint8).numpy()
        except (RuntimeError, MemoryError, UnicodeError) as error:
            if not block.path.exists():
                return None
            raise _unreadable(block.path, error) from error
        raw.flags.writeable = False
        # the length of the header, the header, then the arrays in the order of ``write``
        start = 8 + int.from_bytes(raw[:8].tobytes(), "little") + _LENGTH_BYTES * len(block.lengths)
        end = start + block.n_tokens * self.token_bytes
        if end + _KEY_BYTES * len(block.keys) != block.n_bytes:
            return _remove_damaged(block.path, f"{block.n_bytes} bytes")
        return raw[start:end].view("<f2").reshape(-1, *self._shape)

    def drop_beyond(self, limit: int) -> None:
        """Stop using blocks that do not fit into ``limit`` bytes; the most useful ones are kept."""
        if self.n_bytes <= limit:
            return
        n_used = dict.fromkeys(self.used, 0)
        for path, _, length in self.rows.values():
            n_used[path] += length
        dropped: set[Path] = set()
        for block in sorted(self.used.values(), key=lambda block: -n_used[block.path] / block.n_bytes):
            if block.n_bytes <= limit:
                limit -= block.n_bytes
            else:
                dropped.add(block.path)
        self._drop(dropped)

    def _drop(self, paths: set[Path]) -> None:
        for path in paths:
            for blocks in (self.used, self._mapped, self._small):
                blocks.pop(path, None)
        self.rows = {key: row for key, row in self.rows.items() if row[0] not in paths}

    def small(self, n_tokens: int) -> list[_CacheBlock]:
        """Return small blocks that fit into one block together with ``n_tokens`` tokens."""
        small = []
        for block in self._small.values():
            n_tokens += block.n_tokens
            if n_tokens > BLOCK_TOKENS:
                break
            small.append(block)
        return small

    def write(self, part: Sequence[Item], layers: Sequence[NDArray[Any]], *, merge: list[_CacheBlock]) -> None:
        """Write a block with these sentences and those of the blocks to ``merge``, then remove the latter."""
        with np.errstate(over="ignore"):
            states = [array.transpose(1, 0, 2).astype(np.float16) for array in layers]
        if not all(np.isfinite(array).all() for array in states):
            raise ConfigError("the layers of this model do not fit into half precision; use --no-cache")
        contents = dict(zip((key for key, _ in part), states, strict=True))
        for block in merge:
            mapped = self._map(block)
            pieces = [] if mapped is None else np.split(mapped, np.cumsum(block.lengths)[:-1])
            for key, piece in zip(block.keys, pieces, strict=False):  # no pieces if the file is gone
                contents.setdefault(key, piece)
        keys = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, _KEY_BYTES)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
        path = self.folder / f"{name}-{os.getpid()}{_SUFFIX}"  # two processes may compute the same sentences
        arrays = [
            ("lengths", np.array([len(array) for array in contents.values()], np.int64)),
            ("states", np.concatenate(list(contents.values()))),
            ("keys", keys),
        ]
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            write_arrays(arrays, {"layers": self._shape[0], "width": self._shape[1]}, file)
        merged = {block.path for block in merge} - {path}
        self._drop(merged)
        for merged_path in merged:  # other processes keep what they have mapped
            with suppress(OSError):
                merged_path.unlink()
        block = self._read(path)
        if block is not None:
            self._use(block)

    def states(self, key: bytes) -> States:
        """Return (layer, time, width) of a cached sentence."""
        path, first, length = self.rows[key]
        return self._mapped[path][first : first + length].transpose(1, 0, 2)


def _remove_damaged(path: Path, problem: str) -> None:
    _log.warning("%s: damaged cache block removed (%s); computing it again", path.name, problem)
    with suppress(OSError):
        path.unlink()


def _unreadable(path: Path, error: BaseException) -> OutputError:
    return OutputError(f"cannot read {format_path(path)}, a block of the cache: {format_error(error)}")


def sentence_key(words: Words) -> bytes:
    """Hash a sentence; lengths are included, so different word lists never hash the same bytes."""
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for word in words:
        raw = word.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def _split_blocks(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Split sentences into parts of about ``BLOCK_TOKENS`` tokens."""
    part: list[Item] = []
    n_tokens = 0
    for item in items:
        part.append(item)
        n_tokens += len(item[1])
        if n_tokens >= BLOCK_TOKENS:
            yield part
            part, n_tokens = [], 0
    if part:
        yield part


def _count_tokens(part: Iterable[Item]) -> int:
    return sum(len(words) for _, words in part)


def _block_size(part: Sequence[Item], token_bytes: int) -> int:
    """Return the maximum size in bytes of a block of these sentences."""
    return _HEADER_BYTES + len(part) * (_KEY_BYTES + _LENGTH_BYTES) + _count_tokens(part) * token_bytes


def _select_fitting(items: Sequence[Item], n_bytes: int, token_bytes: int) -> list[Item]:
    """Select the first sentences whose blocks fit into ``n_bytes``."""
    fitting: list[Item] = []
    n_tokens = 0
    for item in items:
        n_tokens += len(item[1])
        n_bytes -= _KEY_BYTES + _LENGTH_BYTES + len(item[1]) * token_bytes
        if n_bytes < _HEADER_BYTES * (n_tokens // BLOCK_TOKENS + 1):
            break
        fitting.append(item)
    return fitting
