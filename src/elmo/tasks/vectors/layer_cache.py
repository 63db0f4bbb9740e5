"""Sentences and an encoder in, their frozen layers out: computed once, kept on disk in half precision.

A folder per encoder holds blocks of sentences, each a safetensors file that is there whole or not at all; a
sentence is known by a hash of its words. So data sets share what they have in common, a killed run loses
one block, and what was used longest ago goes first when the folder grows beyond its bound.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elmo.embed.array_file import read_arrays, write_arrays
from elmo.embed.atomic import cannot_write, replacing
from elmo.embed.progress import tracked
from elmo.embed.reading import DAMAGE
from elmo.errors import ConfigError

Words = tuple[str, ...]
States = NDArray[np.float16]  # (layer, time, width)
BLOCK_TOKENS = 20_000  # of a file: some 40 MB for a model 320 wide
DEFAULT_LIMIT = 20 << 30  # bytes
_SUFFIX = ".block"
_KEY_BYTES = 16
_DEAD = 24 * 3600  # seconds after which an unfinished file has no writer any more
_log = logging.getLogger(__name__)


class Encoder(Protocol):
    """Whatever gives each word of a sentence one vector or several, depending on the sentence alone."""

    @property
    def key(self) -> str:
        """Names the encoder and all that its vectors depend on; letters, digits, ``-`` and ``_``."""
        ...

    @property
    def n_layers(self) -> int:
        """Vectors per word."""
        ...

    @property
    def width(self) -> int:
        """Width of each."""
        ...

    def layers(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each sentence."""
        ...


class LayerCache:
    """Layers on disk, in ``folder``; without one they are computed each time they are asked for."""

    def __init__(self, folder: Path | None, *, limit: int = DEFAULT_LIMIT) -> None:
        """``limit`` bounds the folder in bytes, as far as what is in use at the time allows."""
        if limit < 0:
            raise ConfigError(f"the limit of a cache must not be negative, found {limit}")
        self.folder = folder
        self.limit = limit

    def layers(
        self, encoder: Encoder, sentences: Iterable[Words], *, show_progress: bool = False
    ) -> SentenceLayers:
        """A view of the layers of all ``sentences``, computing those that are not there yet."""
        wanted = {key_of(words): words for words in dict.fromkeys(sentences)}
        if self.folder is None:
            return Computed(encoder)
        place = self.folder / encoder.key
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(place, error) from error
        blocks = _Blocks(place, (encoder.n_layers, encoder.width))
        used = blocks.holding(wanted)
        missing = [(key, words) for key, words in wanted.items() if key not in blocks.rows]
        if missing:
            _log.info("%d of %d sentences are not in the cache: computing", len(missing), len(wanted))
        for part in tracked(list(_parts(missing)), "Embedding", is_shown=show_progress):
            used.add(blocks.write(part, encoder.layers([words for _, words in part])))
        self._forget_old(used)
        return Kept(blocks)

    def _forget_old(self, used: set[Path]) -> None:
        """Remove what was used longest ago until the rest fits, but nothing that is in use now."""
        if self.folder is None:
            return
        found = []
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            with suppress(OSError):  # another process may have been faster
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                break
            if path not in used:
                with suppress(OSError):
                    path.unlink()
                total -= size
        if total > self.limit:
            _log.warning("the cache takes %d MB, all in use: more than its limit", total >> 20)


class SentenceLayers(Protocol):
    """Gives layers by sentence."""

    def of(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each."""
        ...


class Computed:
    """Layers that are computed each time."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def of(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each."""
        return self._encoder.layers(sentences)


class Kept:
    """Layers that lie on disk, mapped into memory: pages that are not used cost nothing."""

    def __init__(self, blocks: _Blocks) -> None:
        self._blocks = blocks

    def of(self, sentences: Sequence[Words]) -> list[NDArray[Any]]:
        """(layer, time, width) for each, in half precision."""
        return [self._blocks.states(key_of(words)) for words in sentences]


class _Blocks:
    """The blocks of one encoder."""

    def __init__(self, folder: Path, form: tuple[int, int]) -> None:
        self.folder = folder
        self.rows: dict[bytes, tuple[Path, int, int]] = {}  # block, first token, number of tokens
        self._form = form  # layers, width
        self._mapped: dict[Path, NDArray[Any]] = {}
        for path in folder.glob(f".*{_SUFFIX}.part"):  # of a killed run
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _DEAD:
                    path.unlink()
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            arrays, _ = read_arrays(path, is_mapped=True)
            states, lengths, keys = (arrays[name] for name in ("states", "lengths", "keys"))
            if states.shape != (int(lengths.sum()), *self._form) or keys.shape != (len(lengths), _KEY_BYTES):
                raise ValueError(f"states of shape {states.shape}")
        except DAMAGE as error:
            _log.warning("%s: damaged, left out and computed again (%s)", path.name, error)
            with suppress(OSError):
                path.unlink()
            return
        self._mapped[path] = states
        first = 0
        for key, length in zip(keys, lengths.tolist(), strict=True):
            self.rows.setdefault(key.tobytes(), (path, first, length))
            first += length

    def holding(self, wanted: Mapping[bytes, Words]) -> set[Path]:
        """The blocks that hold some of ``wanted``; they count as used now."""
        found = {self.rows[key][0] for key in wanted if key in self.rows}
        for path in found:
            with suppress(OSError):
                os.utime(path)
        return found

    def write(self, part: Sequence[tuple[bytes, Words]], layers: Sequence[NDArray[Any]]) -> Path:
        """A new block with these sentences."""
        keys = np.frombuffer(b"".join(key for key, _ in part), np.uint8).reshape(-1, _KEY_BYTES)
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
        path = self.folder / f"{name}-{os.getpid()}{_SUFFIX}"  # two processes may compute the same sentences
        with np.errstate(over="ignore"):
            states = np.concatenate([one.transpose(1, 0, 2).astype(np.float16) for one in layers])
        if not np.isfinite(states).all():
            raise ConfigError("the layers of this model do not fit into half precision; run without a cache")
        arrays = [
            ("lengths", np.array([len(words) for _, words in part], np.int64)),
            ("states", states),
            ("keys", keys),
        ]
        with replacing(path) as temporary, temporary.open("wb") as file:
            write_arrays(arrays, {"layers": self._form[0], "width": self._form[1]}, file)
        self._open(path)
        return path

    def states(self, key: bytes) -> States:
        path, first, length = self.rows[key]
        return self._mapped[path][first : first + length].transpose(1, 0, 2)


def key_of(words: Words) -> bytes:
    """A sentence's name: no two lists of words have the same bytes before they are hashed."""
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for word in words:
        raw = word.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()


def _parts(missing: Sequence[tuple[bytes, Words]]) -> Iterator[list[tuple[bytes, Words]]]:
    """Runs of sentences of about as many tokens as a block holds."""
    part: list[tuple[bytes, Words]] = []
    n_tokens = 0
    for item in missing:
        part.append(item)
        n_tokens += len(item[1])
        if n_tokens >= BLOCK_TOKENS:
            yield part
            part, n_tokens = [], 0
    if part:
        yield part
