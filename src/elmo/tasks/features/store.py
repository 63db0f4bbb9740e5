"""The feature store, which looks up the features of words, and the cache of frozen layers on disk.

``FeatureStore`` holds the biLM, the static vectors and other encoders. ``FeatureCache`` keeps the layers of frozen
encoders, which are computed once and stored in half precision. Each encoder has a folder of blocks. A block is a
safetensors file with many sentences, written atomically, so an interrupted run loses at most one block. A sentence is
identified by a hash of its words, so data sets share the sentences that they have in common. The cache never grows
beyond its limit: the least recently used blocks are removed first, and sentences that do not fit are computed each
time they are used.
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
from elmo.storage.atomic import atomic_file, make_folder
from elmo.storage.files import format_error, format_path
from elmo.storage.tensors import read_arrays, write_arrays
from elmo.tasks.data.examples import Words
from elmo.tasks.features.layer import FeatureBatch, FeatureLayer, Features, Lookup, character_ids
from elmo.tasks.features.static import StaticVectors

if TYPE_CHECKING:
    from elmo.embed.elmo import Elmo

LayerLookup = Callable[[Sequence[Words]], list[NDArray[Any]]]  # (layer, time, width) for each sentence


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Looks up the features of words.

    Args:
        features: The features that the task uses.
        elmo: The biLM; required unless ``features.elmo`` is "none".
        static: Static word vectors.
        others: Additional encoders, such as ``TransformerEncoder``.
        cache: Cache for the layers of frozen encoders; by default, they are computed each time.
        start: Start state of the LSTMs for each sentence: "zero" or "warm".
    """

    features: Features
    elmo: Elmo | None = None
    static: StaticVectors | None = None
    others: tuple[FrozenEncoder, ...] = ()
    cache: FeatureCache = field(default_factory=lambda: FeatureCache(None))
    start: Start = "zero"
    _encoders: list[tuple[object, ElmoEncoder]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.features.is_bilm_tuned and self.start != "zero":
            raise ConfigError(f"start must be 'zero' if the biLM is tuned; found {self.start!r:.20}")
        if self.features.is_bilm_tuned and self.used_elmo is not None:
            self.used_elmo.pretrained.check_unaligned("tune")

    @property
    def used_elmo(self) -> Elmo | None:
        """The biLM if the task uses it, else None."""
        return self.elmo if self.features.has_elmo else None

    def build_layer(self) -> FeatureLayer:
        """Build a feature layer with initial weights."""
        elmo = self.used_elmo
        return FeatureLayer(
            self.features,
            elmo_shape=(elmo.n_layers, elmo.width) if elmo else (0, 0),
            other_widths=[encoder.width for encoder in self.others],
            static=self.static,
            bilm=copy.deepcopy(elmo.bilm).requires_grad_(True) if elmo and self.features.is_bilm_tuned else None,
        )

    def prepare(self, sentences: Iterable[Words], *, show_progress: bool = False) -> Lookup:
        """Cache the frozen layers of ``sentences``; return a function that looks up batches of sentences."""
        unique = list(dict.fromkeys(sentences))
        elmo, is_tuned = self.used_elmo, self.features.is_bilm_tuned
        encoders = [*([self._encoder(elmo)] if elmo and not is_tuned else []), *self.others]
        lookups = [self.cache.lookup(encoder, unique, show_progress=show_progress) for encoder in encoders]
        n_elmo = len(lookups) - len(self.others)  # 0 or 1

        def look_up(batch: Sequence[Words]) -> FeatureBatch:
            """Look up all words of a batch, padded to the longest sentence."""
            longest = max(len(words) for words in batch)
            mask = torch.zeros(len(batch), longest, dtype=torch.bool)
            rows = np.zeros(mask.shape, np.int64)  # row 0 is for padding, row 1 for words without a vector
            for k, words in enumerate(batch):
                mask[k, : len(words)] = True
                if self.static is not None:
                    rows[k, : len(words)] = [self.static.row(word) + 2 for word in words]
            layers = [_pad_layers(lookup, batch, longest) for lookup in lookups]
            return FeatureBatch(
                mask,
                static=None if self.static is None else torch.from_numpy(rows),
                characters=character_ids(batch, longest) if self.features.characters else None,
                layers=layers[0] if n_elmo else None,
                ids=elmo.indexer.batch(batch) if elmo and is_tuned else None,
                others=tuple(states.mean(dim=1) for states in layers[n_elmo:]),
            )

        return look_up

    def _encoder(self, elmo: Elmo) -> ElmoEncoder:
        """Return the encoder of the biLM; it is reused until the biLM changes, because its fingerprint takes time."""
        if not self._encoders or self._encoders[0][0] is not elmo.pretrained:
            self._encoders[:] = [(elmo.pretrained, ElmoEncoder(elmo, start=self.start))]
        return self._encoders[0][1]


def _pad_layers(lookup: LayerLookup, sentences: Sequence[Words], longest: int) -> Tensor:
    """Look up layers and stack them to (batch, layer, time, width), zero at padding."""
    arrays = lookup(sentences)
    n_layers, _, width = arrays[0].shape
    dtype = np.result_type(*arrays)  # float16 from the cache: torch converts it faster than numpy
    states = np.zeros((len(arrays), n_layers, longest, width), dtype)
    for k, array in enumerate(arrays):
        states[k, :, : array.shape[1]] = array
    return torch.from_numpy(states).float()


class FrozenEncoder(Protocol):
    """A frozen model that computes one or more vectors per word, which depend only on the sentence."""

    @property
    def key(self) -> str:
        """Name of the folder of this encoder in the cache; identifies everything that the vectors depend on."""
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
    """Encoder that computes all layers of a frozen biLM."""

    def __init__(self, elmo: Elmo, *, start: Start = "zero") -> None:
        if isinstance(start, Carry):
            raise ConfigError(
                "start must be 'zero' or 'warm'; found a carried state, which depends on the order of sentences"
            )
        self.elmo = elmo
        self.start: Literal["zero", "warm"] = start

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights and, if it is used, of the warm state; computed on first use, because it takes time."""
        current = replace(self.elmo.pretrained, weights=self.elmo.bilm.state_dict())
        return fingerprint(current, with_warm=self.start == "warm")

    @property
    def key(self) -> str:
        """Fingerprint, precision and start state of the biLM, as the name of a folder in the cache."""
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


Item = tuple[bytes, Words]  # a sentence with its key
States = NDArray[np.float16]  # (layer, time, width)
BLOCK_TOKENS = 20_000  # about 40 MB for a model of width 320
DEFAULT_LIMIT = 20 << 30  # bytes
_SUFFIX = ".block"
_KEY_BYTES = 16
_LENGTH_BYTES = 8
_HEADER_BYTES = 512  # upper bound for the header of a block
_STALE_SECONDS = 24 * 3600  # an unfinished file that is older was abandoned by its writer
_log = logging.getLogger(__name__)


class FeatureCache:
    """Keeps the layers of frozen encoders on disk.

    Args:
        folder: Folder of the cache; None disables the cache, so that layers are computed each time.
        limit: Maximum size of the folder in bytes.

    Example:
        >>> cache = FeatureCache("layers", limit=2_000_000_000)
    """

    def __init__(self, folder: str | Path | None, *, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 0:
            raise ConfigError(f"the cache limit must be at least 0 bytes; found {limit}")
        self.folder = None if folder is None else Path(folder)
        self.limit = limit

    def __repr__(self) -> str:
        return f"FeatureCache({str(self.folder) if self.folder else None!r}, limit={self.limit})"

    def lookup(self, encoder: FrozenEncoder, sentences: Iterable[Words], *, show_progress: bool = False) -> LayerLookup:
        """Compute and cache the layers of new ``sentences``; return a function that looks up layers."""
        if self.folder is None:
            return encoder.layers
        items = {sentence_key(words): words for words in dict.fromkeys(sentences)}
        folder = self.folder / encoder.key
        make_folder(folder)
        blocks = _CacheBlocks(folder, (encoder.n_layers, encoder.width), items)
        blocks.drop_beyond(self.limit)
        missing = [(key, words) for key, words in items.items() if key not in blocks.rows]
        fitting = _select_fitting(missing, self.limit - blocks.n_bytes, blocks.token_bytes)
        if fitting:
            _log.info(
                "computing the layers of %d of %d sentences, which are not in the cache %s",
                len(missing), len(items), format_path(self.folder),
            )  # fmt: skip
        parts = list(_split_blocks(fitting))
        for part in track_progress(parts, "Embedding", is_shown=show_progress):
            small = blocks.small(_count_tokens(part)) if part is parts[-1] else []
            size = _block_size(part, blocks.token_bytes)
            small_size = sum(block.n_bytes for block in small)  # merged blocks exist twice for a moment
            if blocks.n_bytes + size + small_size > self.limit:
                small, small_size = [], 0
            if not self._free(size + small_size, keep=blocks):
                break
            blocks.write(part, encoder.layers([words for _, words in part]), merge=small)
        self._free(0, keep=blocks)
        if n_uncached := sum(key not in blocks.rows for key in items):
            _log.warning(
                "the layers of all sentences need %d MB, but the cache is limited to %d MB (--cache-limit): "
                "the layers of %d of %d sentences are computed each time they are used",
                _block_size(list(items.items()), blocks.token_bytes) >> 20, self.limit >> 20, n_uncached, len(items),
            )  # fmt: skip
        known = {words: key for key, words in items.items()}  # hashed once: every epoch looks them up again

        def look_up(sentences: Sequence[Words]) -> list[NDArray[Any]]:
            """Return (layer, time, width) for each sentence, in half precision if the sentence is cached."""
            keys = [known.get(tuple(words)) or sentence_key(words) for words in sentences]
            missing = {key: words for key, words in zip(keys, sentences, strict=True) if key not in blocks.rows}
            layers = encoder.layers(list(missing.values())) if missing else []
            computed = dict(zip(missing, layers, strict=True))
            return [computed[key] if key in computed else blocks.states(key) for key in keys]

        return look_up

    def _free(self, n_bytes: int, *, keep: _CacheBlocks) -> bool:
        """Remove the least recently used blocks, except those that ``keep`` uses, until ``n_bytes`` more bytes fit.

        Return whether they fit.
        """
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


@dataclass(frozen=True, eq=False)
class _CacheBlock:
    """A file with the layers of many sentences."""

    path: Path
    n_bytes: int
    keys: tuple[bytes, ...]
    lengths: tuple[int, ...]

    @property
    def n_tokens(self) -> int:
        return sum(self.lengths)


class _CacheBlocks:
    """The blocks of one encoder; only blocks that contain sentences of ``items`` are mapped into memory."""

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
        """Total size of the blocks in use."""
        return sum(block.n_bytes for block in self.used.values())

    def _read(self, path: Path) -> _CacheBlock | None:
        """Read the index of a block; return None if the file is gone, or if it was damaged and is now removed."""
        try:
            arrays, _ = read_arrays(path, is_mapped=True)  # unmapped again when this method returns
            states, lengths, keys = (arrays[name] for name in ("states", "lengths", "keys"))
            n_bytes = path.stat().st_size
            if states.shape != (int(lengths.sum()), *self._shape) or keys.shape != (len(lengths), _KEY_BYTES):
                raise ValueError(f"wrong shape of the states: {states.shape}")
            if states.dtype != np.float16 or lengths.dtype != np.int64 or (lengths < 0).any():
                raise ValueError(
                    f"states must be float16 and lengths int64 of at least 0; found {states.dtype} and {lengths.dtype}"
                )
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
        """Map a block into memory if it has needed sentences that no mapped block has; mark it as recently used."""
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
        """Map the states (token, layer, width) of a block into memory; return None if its file is gone.

        Unlike Python's ``mmap``, ``torch.from_file`` does not keep a file descriptor open.
        """
        try:
            raw = torch.from_file(str(block.path), shared=False, size=block.n_bytes, dtype=torch.uint8).numpy()
        except (RuntimeError, MemoryError, UnicodeError) as error:
            if not block.path.exists():
                return None
            raise _unreadable(block.path, error) from error
        raw.flags.writeable = False
        # the file contains the length of the header, the header, and the arrays in the order of ``write``
        start = 8 + int.from_bytes(raw[:8].tobytes(), "little") + _LENGTH_BYTES * len(block.lengths)
        end = start + block.n_tokens * self.token_bytes
        if end + _KEY_BYTES * len(block.keys) != block.n_bytes:
            return _remove_damaged(block.path, f"wrong size: {block.n_bytes} bytes")
        return raw[start:end].view("<f2").reshape(-1, *self._shape)

    def drop_beyond(self, limit: int) -> None:
        """Stop using blocks that do not fit into ``limit`` bytes; keep those with the most needed tokens per byte."""
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
        """Return small blocks that can be merged into one block together with ``n_tokens`` new tokens."""
        small = []
        for block in self._small.values():
            n_tokens += block.n_tokens
            if n_tokens > BLOCK_TOKENS:
                break
            small.append(block)
        return small

    def write(self, part: Sequence[Item], layers: Sequence[NDArray[Any]], *, merge: list[_CacheBlock]) -> None:
        """Write a block with the sentences of ``part`` and of the blocks ``merge``; then remove the merged blocks."""
        with np.errstate(over="ignore"):
            states = [array.transpose(1, 0, 2).astype(np.float16) for array in layers]
        if not all(np.isfinite(array).all() for array in states):
            raise ConfigError(
                "cannot cache the layers of this model: they exceed the range of half precision; use --no-cache"
            )
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
        """Return the layers (layer, time, width) of a cached sentence."""
        path, first, length = self.rows[key]
        return self._mapped[path][first : first + length].transpose(1, 0, 2)


def _remove_damaged(path: Path, problem: str) -> None:
    _log.warning("removing the damaged cache block %s (%s); its layers are computed again", path.name, problem)
    with suppress(OSError):
        path.unlink()


def _unreadable(path: Path, error: BaseException) -> OutputError:
    return OutputError(f"cannot read the cache block {format_path(path)}: {format_error(error)}")


def sentence_key(words: Words) -> bytes:
    """Hash a sentence; the length of each word is included, so that word boundaries matter."""
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for word in words:
        raw = word.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def _split_blocks(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Split sentences into groups of about ``BLOCK_TOKENS`` tokens."""
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
    """Return an upper bound for the size in bytes of a block with these sentences."""
    return _HEADER_BYTES + len(part) * (_KEY_BYTES + _LENGTH_BYTES) + _count_tokens(part) * token_bytes


def _select_fitting(items: Sequence[Item], n_bytes: int, token_bytes: int) -> list[Item]:
    """Return the first sentences, as many as fit into blocks of ``n_bytes`` bytes in total."""
    fitting: list[Item] = []
    n_tokens = 0
    for item in items:
        n_tokens += len(item[1])
        n_bytes -= _KEY_BYTES + _LENGTH_BYTES + len(item[1]) * token_bytes
        if n_bytes < _HEADER_BYTES * (n_tokens // BLOCK_TOKENS + 1):
            break
        fitting.append(item)
    return fitting
